"""Errands that may take long hold up nobody."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread, current_thread

import pytest

from opencqrs_py.web.errands import Errands, ErrandTimeoutError

LONG = 60.0


@pytest.fixture
def errands() -> Iterator[Errands]:
    """Two threads that do errands."""
    made = Errands("errands", threads=2)
    made.start()
    yield made
    made.stop(0.0)


def test_who_asks_gets_what_the_call_returns_on_another_thread(errands):
    assert errands.do(lambda: current_thread().name, LONG) == "errands"
    assert errands.do(lambda: None, LONG) is None


def test_who_asks_gets_what_the_call_raises_and_the_thread_goes_on(errands):
    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            errands.do(lambda: 1 / 0, LONG)
    assert errands.do(lambda: 7, LONG) == 7


def test_one_that_hangs_does_not_hold_up_the_next_one(errands):
    left = Event()
    with pytest.raises(ErrandTimeoutError):
        errands.do(lambda: left.wait(LONG), 0.0)
    assert errands.do(lambda: 7, LONG) == 7
    left.set()


def test_one_that_nobody_waits_for_any_more_is_never_begun(errands):
    left, begun = Event(), []
    hanging = [Event(), Event()]

    def hang(entered):
        entered.set()
        left.wait(LONG)

    asking = [Thread(target=errands.do, args=(lambda each=each: hang(each), LONG)) for each in hanging]
    for thread in asking:
        thread.start()
    assert all(each.wait(LONG) for each in hanging)
    with pytest.raises(ErrandTimeoutError):
        errands.do(lambda: begun.append(1), 0.0)
    left.set()
    for thread in asking:
        thread.join()
    assert errands.do(lambda: 7, LONG) == 7
    assert begun == []


def test_after_the_stop_none_is_done_and_who_waits_is_let_go(errands):
    errands.stop(LONG)
    with pytest.raises(ErrandTimeoutError):
        errands.do(lambda: 7, LONG)

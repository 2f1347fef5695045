"""Calls that may take long delay no other caller."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread, current_thread

import pytest

from opencqrs_py.web.errands import Errands, ErrandTimeoutError

LONG = 60.0


@pytest.fixture
def errands() -> Iterator[Errands]:
    """Return two threads that run calls."""
    made = Errands("errands", threads=2)
    made.start()
    yield made
    made.stop(0.0)


def test_a_call_runs_on_another_thread_and_returns_its_result(errands):
    assert errands.do(lambda: current_thread().name, LONG) == "errands"
    assert errands.do(lambda: None, LONG) is None


def test_an_exception_of_a_call_is_raised_to_the_caller_and_the_thread_survives(errands):
    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            errands.do(lambda: 1 / 0, LONG)
    assert errands.do(lambda: 7, LONG) == 7


def test_a_hanging_call_does_not_delay_the_next_one(errands):
    left = Event()
    with pytest.raises(ErrandTimeoutError):
        errands.do(lambda: left.wait(LONG), 0.0)
    assert errands.do(lambda: 7, LONG) == 7
    left.set()


def test_a_call_whose_caller_no_longer_waits_is_never_begun(errands):
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


def test_after_a_stop_calls_are_refused(errands):
    errands.stop(LONG)
    with pytest.raises(ErrandTimeoutError):
        errands.do(lambda: 7, LONG)

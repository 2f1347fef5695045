"""The turns of events that are handled alone: one at a time, waiting for a slow one only once."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from threading import Thread

from opencqrs_py.processing.isolation import Turns


def _waiter(turns: Turns, order: list[str], name: str) -> Thread:
    def wait() -> None:
        with turns.taken():
            order.append(name)

    thread = Thread(target=wait)
    thread.start()
    while not turns.waiting and thread.is_alive():
        pass
    return thread


def test_the_next_turn_begins_when_the_previous_one_has_ended() -> None:
    turns, order = Turns(patience=60), list[str]()
    with turns.taken():
        thread = _waiter(turns, order, "second")
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_turn_that_raises_ends() -> None:
    turns, order = Turns(patience=60), list[str]()
    with suppress(ZeroDivisionError), turns.taken():
        _ = 1 / 0
    _waiter(turns, order, "next").join()
    assert order == ["next"]


def test_a_slow_turn_is_not_waited_for_and_only_ends_itself() -> None:
    hasty, order = Turns(patience=0), list[str]()
    with ExitStack() as slow:
        slow.enter_context(hasty.taken())
        with hasty.taken():
            slow.close()
            patient = hasty
            patient._patience = 60
            thread = _waiter(patient, order, "third")
            order.append("second")
        thread.join()
    assert order == ["second", "third"]

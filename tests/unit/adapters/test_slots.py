"""Slots: how many connections the threads of a process use at once, and how threads wait for one."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Signal
from threading import Thread

import pytest

from opencqrs_py.adapters.sql.dialects.dialect import is_outage
from opencqrs_py.adapters.sql.dialects.faults import DatabaseBusyError
from opencqrs_py.adapters.sql.slots import Slot, Slots

AT_ONCE = 0.0
LONG = 60.0


def taken_elsewhere(slots: Slots, *, lasting: bool = True, name: str | None = None) -> Slot:
    """Return a slot that another thread has taken."""
    found: list[Slot] = []
    thread = Thread(target=lambda: found.append(slots.take(lasting=lasting)), name=name)
    thread.start()
    thread.join()
    found[0].thread = -len(slots._taken)  # as if it were alive: the id of an ended thread is reused
    return found[0]


@pytest.fixture
def waiting() -> Callable[[Slots], Thread]:
    """Start a thread that takes a slot for a transaction; return once it waits for one."""

    def start(slots: Slots, done: Callable[[Slot], None]) -> Thread:
        before = len(slots._waiting)
        thread = Thread(target=lambda: done(slots.take(lasting=True)), daemon=True)
        thread.start()
        while len(slots._waiting) == before and thread.is_alive():
            thread.join(0.001)
        return thread

    return start


def test_transactions_leave_one_connection_for_reads() -> None:
    slots = Slots(3, "db", patience=AT_ONCE)
    for _ in range(2):
        taken_elsewhere(slots)
    with pytest.raises(DatabaseBusyError, match="OCQ-347"):
        slots.take(lasting=True)
    assert not slots.take(lasting=False).lasting


def test_reads_within_a_transaction_use_the_remaining_connection() -> None:
    slots = Slots(2, "db", patience=AT_ONCE)
    assert slots.take(lasting=True)
    assert slots.take(lasting=False)
    assert len(slots._taken) == 2


def test_a_transaction_may_use_the_only_connection() -> None:
    slots = Slots(1, "db", patience=AT_ONCE)
    assert slots.take(lasting=True)


@pytest.mark.parametrize(("most", "held"), [(1, 1), (2, 2), (8, 2)])
def test_a_thread_holding_its_maximum_never_waits_for_another_connection(most: int, held: int) -> None:
    slots = Slots(most, "db", patience=AT_ONCE)
    for _ in range(held):
        slots.take(lasting=False)
    while len(slots._taken) < most:
        taken_elsewhere(slots, lasting=False)
    assert slots.take(lasting=False)
    assert len(slots._taken) == most + 1


def test_threads_get_connections_in_the_order_in_which_they_wait(waiting) -> None:
    slots, order = Slots(2, "db", patience=LONG), []
    first = taken_elsewhere(slots)
    threads = []
    for number in range(3):

        def done(slot: Slot, number: int = number) -> None:
            order.append(number)
            slots.free(slot)

        threads.append(waiting(slots, done))
    slots.free(first)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2]


def test_waiting_too_long_for_a_connection_is_an_outage_that_names_the_blocking_thread() -> None:
    slots = Slots(1, "postgresql://host/db", patience=AT_ONCE)
    taken_elsewhere(slots, name="opencqrs-books-0/2")
    with pytest.raises(DatabaseBusyError) as caught:
        slots.take(lasting=True)
    assert is_outage(caught.value)
    assert "all 1 of this process are in use, one for 0 s by thread opencqrs-books-0/2" in str(caught.value)
    assert "increase database.pool-size" in str(caught.value)
    assert not slots._waiting


def test_a_slot_is_freed_only_once(waiting) -> None:
    slots, given = Slots(1, "db", patience=LONG), Signal()
    hung = taken_elsewhere(slots)
    thread = waiting(slots, lambda _slot: given.set())
    slots.free(hung)
    thread.join()
    slots.free(hung)
    assert given.is_set()
    assert len(slots._taken) == 1


def test_an_interrupted_wait_does_not_leak_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(1, "db", patience=LONG)
    held = taken_elsewhere(slots)

    def interrupted(_signal: Signal, _seconds: float | None = None) -> bool:
        slots.free(held)  # which assigns it to the interrupted thread
        raise KeyboardInterrupt

    monkeypatch.setattr(Signal, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        slots.take(lasting=True)
    monkeypatch.undo()
    assert slots._taken == []
    assert not slots._waiting

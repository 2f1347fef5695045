"""The work of a transaction: connections when they are asked for, and calls for after the commit."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from opencqrs_py import AfterCommit, Event, ProcessingContext
from opencqrs_py.errors import NonTransientError, ProjectCodeError
from opencqrs_py.model import Partition
from opencqrs_py.processing.binding import Work

ONE = Partition(1, 0)


def event(position: int) -> Event:
    return Event(position, "4711", "s", "/", "t", None, "application/json", None, None)


class Unit:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._connection = SimpleNamespace(connection=SimpleNamespace(driver_connection="the driver's"))

    @property
    def connection(self) -> Any:
        self.asked.append("connection")
        return self._connection

    @property
    def session(self) -> Any:
        self.asked.append("session")
        return "the session"


def test_the_unit_is_asked_once_for_each_kind_and_not_before_somebody_wants_it() -> None:
    unit = Unit()
    work = Work("group", ONE, unit)
    assert unit.asked == []
    assert [work.session, work.session] == ["the session"] * 2
    assert work.connection is work.connection
    assert unit.asked == ["session", "connection"]


def test_the_drivers_connection_is_the_one_below() -> None:
    work = Work("group", ONE, Unit())
    assert [work.driver_connection] * 2 == ["the driver's"] * 2


def test_a_kept_after_commit_takes_no_calls_when_its_transaction_is_over() -> None:
    work, made = Work("group", ONE, Unit()), []
    kept = work.after_commit

    def call() -> None:
        made.append("first")
        kept(lambda: made.append("led to by the first"))

    kept(call)
    work.close()
    with pytest.raises(ProjectCodeError, match="OCQ-225"):
        kept(call)
    assert work.committed() == []
    assert made == ["first", "led to by the first"]
    with pytest.raises(ProjectCodeError, match="OCQ-225"):
        kept(call)


@pytest.mark.parametrize(("position", "attempt"), [(6, 1), (7, 3), (8, 1)])
def test_attempts_are_those_of_the_failing_event(position: int, attempt: int) -> None:
    work = Work("group", Partition(2, 1), Unit(), failing=7, attempt=3)
    assert work.context(event(position)) == ProcessingContext("group", Partition(2, 1), position, attempt)


# After the commit


def test_without_calls_nothing_is_made() -> None:
    work = Work("group", ONE, Unit())
    assert work.committed() == []
    assert isinstance(work.after_commit, AfterCommit)
    assert work.committed() == []


def test_what_cannot_be_called_is_refused_before_the_commit() -> None:
    work = Work("group", ONE, Unit())
    with pytest.raises(NonTransientError, match=r"got NoneType: write after_commit\(lambda: \.\.\.\)"):
        work.after_commit([].append(1))  # type: ignore[arg-type,func-returns-value]  # which was called at once
    work.close()
    assert work.committed() == []


def test_calls_are_made_in_their_order_and_not_before_the_commit() -> None:
    made: list[str] = []
    work = Work("group", ONE, Unit())
    work.after_commit(lambda: made.append("first"))
    work.after_commit(lambda: made.append("second"))
    assert made == []
    assert work.committed() == []
    assert made == ["first", "second"]


def test_a_call_that_is_awaitable_is_awaited() -> None:
    made: list[str] = []

    async def ring() -> None:
        await asyncio.sleep(0)
        made.append("rung")

    work = Work("group", ONE, Unit())
    work.after_commit(ring)
    work.after_commit(lambda: (ring(), None)[0])  # what only a look at the result can tell
    assert work.committed() == []
    assert made == ["rung", "rung"]


def raising(error: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3), CancelledError("mine")])
def test_a_call_that_raises_is_reported_and_the_others_are_made(error: BaseException) -> None:
    made: list[str] = []
    work = Work("group", ONE, Unit())
    work.after_commit(raising(error))
    work.after_commit(lambda: made.append("behind"))
    assert work.committed() == [error]
    assert made == ["behind"]


def test_an_interrupt_is_none_of_the_events() -> None:
    work = Work("group", ONE, Unit())
    work.after_commit(raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        work.committed()


def test_a_handler_that_changes_the_partition_it_is_shown_changes_none_of_ours() -> None:
    work = Work("group", Partition(1, 0), Unit())
    shown = work.context(event(1)).partition
    assert shown == work.partition
    object.__setattr__(shown, "residue", 7)
    assert work.partition == Partition(1, 0)

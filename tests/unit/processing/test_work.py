"""The work of a transaction: connections on demand, and after-commit calls."""

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
    """Counts the requests."""

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


def test_connection_and_session_are_requested_once_and_only_on_demand() -> None:
    unit = Unit()
    work = Work("group", ONE, unit)
    assert unit.asked == []
    assert [work.session, work.session] == ["the session"] * 2
    assert work.connection is work.connection
    assert unit.asked == ["session", "connection"]


def test_the_driver_connection_is_the_underlying_one() -> None:
    work = Work("group", ONE, Unit())
    assert [work.driver_connection] * 2 == ["the driver's"] * 2


def test_a_kept_after_commit_refuses_calls_once_its_transaction_is_over() -> None:
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


def test_a_commit_without_calls_calls_nothing() -> None:
    work = Work("group", ONE, Unit())
    assert work.committed() == []
    assert isinstance(work.after_commit, AfterCommit)
    assert work.committed() == []


def test_an_after_commit_call_that_is_not_callable_is_refused_before_the_commit() -> None:
    work = Work("group", ONE, Unit())
    with pytest.raises(NonTransientError, match=r"got NoneType: write after_commit\(lambda: \.\.\.\)"):
        work.after_commit([].append(1))  # type: ignore[arg-type,func-returns-value]  # which was called at once
    work.close()
    assert work.committed() == []


def test_after_commit_calls_run_in_order_and_not_before_the_commit() -> None:
    made: list[str] = []
    work = Work("group", ONE, Unit())
    work.after_commit(lambda: made.append("first"))
    work.after_commit(lambda: made.append("second"))
    assert made == []
    assert work.committed() == []
    assert made == ["first", "second"]


def test_an_awaitable_after_commit_call_is_awaited() -> None:
    made: list[str] = []

    async def ring() -> None:
        await asyncio.sleep(0)
        made.append("rung")

    work = Work("group", ONE, Unit())
    work.after_commit(ring)
    work.after_commit(lambda: (ring(), None)[0])  # which only the result reveals
    assert work.committed() == []
    assert made == ["rung", "rung"]


def raising(error: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3), CancelledError("mine")])
def test_a_failing_after_commit_call_is_reported_and_the_others_run(error: BaseException) -> None:
    made: list[str] = []
    work = Work("group", ONE, Unit())
    work.after_commit(raising(error))
    work.after_commit(lambda: made.append("behind"))
    assert work.committed() == [error]
    assert made == ["behind"]


def test_an_interrupt_in_an_after_commit_call_propagates() -> None:
    work = Work("group", ONE, Unit())
    work.after_commit(raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        work.committed()


def test_a_handler_cannot_change_the_partition_of_its_transaction() -> None:
    work = Work("group", Partition(1, 0), Unit())
    shown = work.context(event(1)).partition
    assert shown == work.partition
    object.__setattr__(shown, "residue", 7)
    assert work.partition == Partition(1, 0)

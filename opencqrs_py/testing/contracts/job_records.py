"""What the contract of job stores is about: runs of two jobs, and how they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TypeVar

import pytest

from opencqrs_py.jobs.ports import JobStore
from opencqrs_py.jobs.runs import JobRun, RunPosition, RunStatus
from opencqrs_py.model.job import Trigger
from opencqrs_py.processing.ports import Transactions

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
JOB, OTHER = "größe 😀 %s :x", "Größe 😀 %s :x"
QUEUED = JobRun("run 😀", JOB, Trigger.MANUAL, NOON)
RUNNING = replace(QUEUED, status=RunStatus.RUNNING, started_at=NOON, attempt=1, owner="node 1", node="host:1", token=7)
BEFORE, AFTER = RunPosition(after=3, items=3), RunPosition(after=5, items=5, gone=2**40, unmet=2**41, rest="größe 😀")
ODD = "a text \0 with \ud800, 'quotes', \\ and ü 😀"
FULL = JobRun(
    "job@2026-01-01T12:00:00.000Z",
    JOB,
    Trigger.SCHEDULE,
    NOON,
    ids=("a", "größe", "😀" * 100, ODD),
    scheduled_at=NOON + timedelta(milliseconds=1),
    due_at=NOON + timedelta(milliseconds=2),
    status=RunStatus.RUNNING,
    started_at=NOON + timedelta(milliseconds=3),
    attempt=4,
    deaths=2,
    owner="node 1",
    node="größe:1",
    token=2**40,
    position=RunPosition(
        "😀", done=True, items=2**40, failed=("a", "b"), only=("a", "b", ODD), error=ODD, gone=1, unmet=2, rest=ODD
    ),
    done=2**40,
    total=2**41,
    error=ODD * 5_000,
    reason=ODD,
    actor="Zoë",
    into="another",
    reserved="node 2",
    queued=True,
    waits_until=NOON + timedelta(milliseconds=5),
    cancelled_at=NOON + timedelta(milliseconds=4),
    ticks=12,
)
REQUESTED = JobRun(
    FULL.id,
    JOB,
    FULL.trigger,
    NOON,
    ids=FULL.ids,
    scheduled_at=FULL.scheduled_at,
    due_at=NOON,
    reason=f"asked by {ODD}",
    actor="Ann",
    ticks=3,
)
SECONDS = 60  # longest wait for another thread
LONG = 300  # likewise, if several threads wait for each other, or the store is unavailable
STILL_WAITS = "a call still waits although no block and no transaction is open"
MOMENT = 0.2  # seconds in which a call that does not wait would be done

T = TypeVar("T")


class RolledBackError(Exception):
    """Ends a transaction."""


def put(store: JobStore, *runs: JobRun) -> None:
    """Write runs as they are."""
    with store.open({run.job for run in runs}) as book:
        for run in runs:
            book.put(run)


def ended(number: int, minutes: int, job: str = JOB, *, began: bool = True) -> JobRun:
    """Return a run that has ended so many minutes after noon."""
    run = replace(QUEUED, id=f"run {number}", job=job, requested_at=NOON + timedelta(seconds=number))
    run = replace(run, started_at=run.requested_at if began else None)
    return run.ended(RunStatus.SUCCEEDED if began else RunStatus.SKIPPED, NOON + timedelta(minutes=minutes))


def cancelled(number: int, minutes: int, job: str = JOB) -> JobRun:
    """Return a run that was cancelled so many minutes after noon, when it had begun."""
    return replace(ended(number, minutes, job), status=RunStatus.CANCELLED)


def taken(run: JobRun) -> JobRun:
    """Return a run as taken from its owner, to be attempted again."""
    return replace(run, status=RunStatus.RETRYING, owner="", token=run.token + 1, deaths=run.deaths + 1)


def roll_back(recorded: bool) -> None:  # noqa: FBT001 of the one call
    """Raise after something was recorded."""
    assert recorded
    raise RolledBackError


def put_taken(store: JobStore) -> JobRun:
    """Take the run from its owner, as it was read; return it as the new owner sees it."""
    with store.open([JOB]) as book:
        book.put(taken(next(run for run in book.runs if run.id == RUNNING.id)))
        return next(run for run in book.runs if run.id == RUNNING.id)


class JobStores:
    """The stores that a test is about.

    Give ``store``, which is empty; ``another``, which sees the same as a second process would; and, if a run can be
    recorded in one, ``transactions`` of the same database, and ``other_transactions`` of another one.
    """

    @pytest.fixture
    def store(self) -> JobStore:
        """Return an empty store."""
        raise NotImplementedError

    @pytest.fixture
    def another(self, store: JobStore) -> JobStore:
        """Return another store of the same tables."""
        return store

    @pytest.fixture
    def transactions(self) -> Transactions | None:
        """Return the transactions in which runs can be recorded."""
        return None

    @pytest.fixture
    def other_transactions(self) -> Transactions | None:
        """Return transactions of another database, in which none can be recorded."""
        return None

    @pytest.fixture
    def joined(self, transactions: Transactions | None) -> Transactions:
        """Return the same for a test that is about them."""
        if transactions is None:
            pytest.skip("has no transactions")
        return transactions

    def at_last(self, store: JobStore, call: Callable[[], T]) -> T:
        """Return the result of a call once the store is available: on a busy machine, other calls may take long."""
        until = monotonic() + LONG
        while True:
            try:
                return call()
            except Exception as error:
                if not store.is_outage(error) or monotonic() > until:
                    raise

    def is_done(self, store: JobStore, call: Callable[[], object]) -> bool:
        """Make a call, and return whether it was done: it may have to wait for an open transaction."""
        try:
            call()
        except Exception as error:
            if not store.is_outage(error):
                raise
            return False
        return True

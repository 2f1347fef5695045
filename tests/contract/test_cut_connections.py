"""A server ends a connection before any of the statements of a call: an outage, and the call can be made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import text
from support.cutting import Cutter, session_of

from opencqrs_py import Event
from opencqrs_py.adapters.sql import (
    Database,
    DatabaseTransactions,
    SqlControlStore,
    SqlEventStore,
    SqlJobStore,
    SqlProgressTracker,
)
from opencqrs_py.control.records import Node, ProcessIdentity
from opencqrs_py.jobs.runs import RunPosition
from opencqrs_py.model import layout
from opencqrs_py.model.appending import SubjectIsPristine
from opencqrs_py.model.inbox import InboxChange
from opencqrs_py.testing.contracts.job_records import NOON, QUEUED, RUNNING, put
from opencqrs_py.testing.contracts.repartitioning_tracker import carry_to
from opencqrs_py.testing.contracts.resettable_tracker import reset, waits

SERVERS = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("postgresql", "mariadb")]
)


class Calls:
    """What is called, each with a number, so that no two calls are about the same.

    Args:
        database: On which it is called.
    """

    def __init__(self, database: Database) -> None:
        control = database.for_control()
        assert control is not None
        self.database = database
        self.joined = 0
        self.events, self.jobs = SqlEventStore(database), SqlJobStore(database)
        self.tracker, self.control = SqlProgressTracker(database), SqlControlStore(control)

    def append(self, number: int) -> object:
        """Append an event whose subject has to be new."""
        added = Event(0, f"{number}", "s", f"/{number}", "t", None, "application/json", None, None)
        return self.events.append([added], [SubjectIsPristine(f"/{number}")])

    def open_jobs(self, number: int) -> object:
        """Change a run while the row of its job is held."""
        run = replace(RUNNING, id=f"run {number}", job=f"job {number}")
        put(self.jobs, run)
        return self.jobs.find(run.id) == run

    def request(self, number: int) -> object:
        """Request a run."""
        return self.jobs.request(replace(QUEUED, id=f"run {number}"))

    def advance(self, number: int) -> object:
        """Record how far a run has come, in a transaction."""
        run = replace(RUNNING, id=f"run {number}", job=f"job {number}")
        put(self.jobs, run)
        with DatabaseTransactions(self.database).begin() as unit:
            return self.jobs.advance(run, RunPosition(items=7), unit)

    def claim(self, number: int) -> object:
        """Claim the partitions of a group, and move one."""
        cursor, *_ = self.tracker.claim(f"group {number}", layout(2), 0, "owner")
        with self.tracker.unit(f"group {number}", cursor, cursor.position + 5):
            pass
        return self.tracker.reached(f"group {number}")

    def reset(self, number: int) -> object:
        """Reset a group in which an event waits."""
        group = f"group {number}"
        (cursor,) = self.tracker.claim(group, layout(1), 0, "owner")
        if cursor.position < 8:
            with self.tracker.unit(group, cursor, 8, change=InboxChange(NOON, (waits(5)._replace(group=group),))):
                pass
        with self.tracker.resetting(reset(3, group=group), layout(1)):
            pass
        return self.tracker.reached(group), self.tracker.entries(group)

    def repartition(self, number: int) -> object:
        """Split the partitions of a group, unless that is done."""
        group = f"group {number}"
        known = [status.partition for status in self.tracker.statuses() if status.group == group]
        if len(known) < 4:
            self.tracker.claim(group, layout(2), 0, "owner")
            self.tracker.repartition(group, layout(4), carry_to(layout(4)))
        return len([status for status in self.tracker.statuses() if status.group == group])

    def spread(self, number: int) -> object:
        """Give a run parts, and gather them."""
        run = replace(RUNNING, id=f"run {number}", job=f"job {number}")
        put(self.jobs, run)
        child = replace(QUEUED, id=f"part {number}", job=run.job, parent=run.id)
        spread = self.jobs.spread(run, [child])
        return spread, self.jobs.take_children(run, "owner") == [], self.jobs.gather(run, RunPosition(items=3))

    def join(self, number: int) -> object:
        """Join the nodes, as another one each time, and leave them."""
        self.joined += 1
        name = f"node {number} {self.joined}"
        self.control.join(Node(name, name, ProcessIdentity("boot", "pid:[1]", 17, "4711")), 60)
        joined = name in self.control.view().alive
        self.control.leave(name)
        return joined


@SERVERS
@pytest.mark.release(name=("repartition", "reset"))  # as the others, of many statements
@pytest.mark.release(kind="postgresql", name=("reset", "spread", "join", "advance", "request"))  # as the others
@pytest.mark.parametrize("name", [name for name in vars(Calls) if not name.startswith("_")])
def test_a_connection_lost_before_any_statement_is_an_outage_and_the_call_can_be_repeated(
    name: str, database: Database, cutter: Cutter
) -> None:
    calls = Calls(database)
    call: Callable[[int], object] = getattr(calls, name)
    call(0)  # which makes the tables
    with cutter.counting() as sent:
        wanted = call(1)
    outages = 0
    for number in range(2, sent() + 2):
        try:
            with cutter.counting(number - 2):
                found = call(number)
        except Exception as error:  # any, of any of the stores
            if not database.is_outage(error):
                raise
            outages += 1
            found = call(number)
        assert found == wanted  # also where all was committed before
    assert outages >= 2
    calls.control.close()


@SERVERS
def test_returning_a_lost_connection_logs_no_traceback_of_the_pool(
    database: Database, cutter: Cutter, caplog: pytest.LogCaptureFixture
) -> None:
    """Its user has the error, or no longer needs it."""
    with database.engine.connect() as connection:
        connection.connection.cursor().execute("SELECT 1")
        cutter.cut(session_of(connection))
    assert caplog.records == []
    with database.reading() as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1

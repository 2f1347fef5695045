"""A group whose events wait in the inbox of a database: parked ones, or those of a scheduled group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, text

from opencqrs_py import Event, InMemoryEventStore, NoRetry
from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.assembly.inbox import InboxControl
from opencqrs_py.config.choices import Mode
from opencqrs_py.control.layouts import Log, carried_over
from opencqrs_py.engines.driver import PartitionDriver, claim, claim_after_timeout
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.spark.groups import RunnableGroup
from opencqrs_py.engines.spark.tasks import (
    ALWAYS,
    Permission,
    Task,
    TaskResult,
    read_result,
    read_task,
    run_task,
    write_result,
    write_task,
)
from opencqrs_py.model import Handler, HandlerMark, layout
from opencqrs_py.model.choices import BatchMode, OnExhausted
from opencqrs_py.model.inbox import InboxEntry
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.processing.binding import NothingProvided, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.inbox.batches import ScheduleRule
from opencqrs_py.processing.inbox.parked_entries import ParkingRule
from opencqrs_py.processing.inbox.schedules import FixedDelay
from opencqrs_py.processing.recovery import ExponentialBackOff
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import Sequencing, SequencingByEvent
from opencqrs_py.testing import FakeClock
from support.partitions import Seen

GROUP = "group"
SCHEDULE = ScheduleRule(FixedDelay(10, 6), back_off=ExponentialBackOff(60, 2, 600, max_attempts=4))
PARKING = ParkingRule(ExponentialBackOff(30.0, 2.0, 3_600.0, max_attempts=5))
STEPS = 1_000  # more than any test needs


def lent(number: int, subject: str, id_: str = "") -> Event:
    """Return an event of a subject."""
    return Event(0, id_ or f"id {number}", "s", subject, "lent", None, "application/json", "{}", None)


def end_unseen(connection: Connection) -> None:
    """Commit in a way that no driver reports."""
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        with driver:
            pass
    elif connection.dialect.name == "postgresql":
        driver.pgconn.exec_(b"COMMIT")
    else:
        type(driver).commit(driver)


class WaitingWorld:
    """A group that writes the positions of its events, and fails as ``errors`` says, by position.

    Args:
        database: Where progress, inbox and rows are.
        subjects: Subjects of the first events.
        schedule: How a scheduled group handles its events; ``None``: it parks those that fail.
        rest: Further parts of the group.
    """

    def __init__(
        self,
        database: Database,
        subjects: Iterable[str],
        *,
        schedule: ScheduleRule | None = None,
        partitions: int = 1,
        batch_size: int = 4,
        sequencing: Sequencing | None = None,
    ) -> None:
        self.database = database
        with database.writing() as connection:
            connection.execute(text("CREATE TABLE written (number INTEGER, position INTEGER)"))
        self.tracker = SqlProgressTracker(database)
        self.clock = FakeClock()
        self.seen = Seen()
        self.errors: dict[int, BaseException] = {}
        self.meanwhile: Callable[[Connection], object] = lambda _: None
        self.commits: set[int] = set()  # positions of events whose handler ends the transaction after its statement
        self.store = InMemoryEventStore()
        self.append(subjects)
        self.schedule, self.partitions, self.batch_size = schedule, partitions, batch_size
        self.drivers: list[PartitionDriver] = []
        self._sequencing = SequencingByEvent(PerSubject()) if sequencing is None else sequencing
        self._numbers = count(1)
        self.build()

    def build(self, **changes: Any) -> None:
        """Set the group up, with other settings than before; it is to be claimed then."""
        for name, value in changes.items():
            setattr(self, name, value)

        def handle(raw: Event, connection: Connection) -> None:
            if (error := self.errors.get(raw.position)) is not None:
                raise error
            row = {"number": next(self._numbers), "position": raw.position}
            connection.execute(text("INSERT INTO written VALUES (:number, :position)"), row)
            self.meanwhile(connection)
            if raw.position in self.commits:
                end_unseen(connection)

        bound = bind(Handler(HandlerMark(GROUP), handle, "handlers.py:7"), NothingProvided())
        scheduled = self.schedule is not None
        processing = GroupProcessing(
            GROUP,
            self.store,
            self.tracker,
            Dispatcher([bound], []),
            subject="/",
            recursive=True,
            sequencing=self._sequencing,
            partitions=self.partitions,
            batch_size=self.batch_size,
            clock=self.clock,
            parking=None if scheduled else replace(PARKING, retry=NoRetry(), on_exhausted=OnExhausted.PARK),
            schedule=self.schedule,
        )
        exhausted = OnExhausted.STOP if scheduled else OnExhausted.PARK
        self.run = GroupRun(processing, layout(self.partitions), lambda: 0, NoRetry(), exhausted)
        group = SimpleNamespace(
            name=GROUP,
            processing=SimpleNamespace(mode=Mode.SCHEDULED if scheduled else Mode.STREAMING),
            batch=SimpleNamespace(mode=BatchMode.ALL if self.schedule and self.schedule.each else BatchMode.FAIL_FIRST),
            life_cycle=SimpleNamespace(partitions=self.partitions),
        )
        groups: Any = {GROUP: group}
        self.control = InboxControl(groups, lambda _: self.tracker, lambda: self.store, lambda: self.clock)

    def append(self, subjects: Iterable[str], *ids: str) -> None:
        first = self.store.head() + 1
        named = dict(enumerate(ids))
        self.store.append(lent(n, subject, named.get(n - first, "")) for n, subject in enumerate(subjects, first))

    def claim(self) -> None:
        """Start like a process; the previous one has crashed, unless it was released."""
        self.drivers = claim(self.run, self.run.partitions, "owner", self.clock, self.seen)

    def release(self) -> None:
        for driver in self.drivers:
            driver.release()
        self.drivers = []

    def drain(self) -> None:
        """Do everything that can be done now."""
        if not self.drivers:
            self.claim()
        for driver in self.drivers:
            for _ in range(STEPS):
                if driver.wait() > 0 or (driver.step().idle and not driver.supervised.is_due_in_inbox):
                    break
            else:
                pytest.fail("the partition does not come to rest")

    def pass_time(self, seconds: float) -> None:
        """Let time pass, from tick to tick."""
        until = self.clock.now() + timedelta(seconds=seconds)
        while (left := (until - self.clock.now()).total_seconds()) > 0:
            ticks = [driver.supervised.until_tick() for driver in self.drivers]
            self.clock.advance(min([left, *(wait for wait in ticks if wait > 0)]))
            self.drain()

    def hang(self, driver: PartitionDriver, position: int, sequence_id: str = "/a") -> PartitionDriver:
        """Give the call for an event of the inbox up, whose thread hangs; return the driver of the new claim."""
        work = SimpleNamespace(parked=True, unit=SimpleNamespace(end_session=lambda: True))
        call: Any = SimpleNamespace(index=0, chunk=[position], work=work, sequence_id=sequence_id)
        failure = Failure(
            Origin.HANDLER, permanent=False, error="HandlerTimeoutError", message="hangs", position=position
        )
        driver.abandoned = True
        return claim_after_timeout(self.run, driver, call, failure, "owner", self.clock, self.seen)

    def merge(self) -> PartitionDriver:
        """Merge the partitions of the stopped group; return the driver of the only one."""
        target, processing = layout(1), self.run.processing
        log = Log(processing.hashes_at, processing.positions_of)
        self.tracker.repartition(GROUP, target, lambda known: carried_over(known, target, log))
        self.build(partitions=1)
        self.claim()
        return self.drivers[0]

    @property
    def entries(self) -> list[InboxEntry]:
        return self.tracker.entries(GROUP)

    @property
    def waiting(self) -> dict[int, str]:
        """The status of each event that waits, by its position."""
        return {each.position: each.status_at(self.clock.now()).value for each in self.entries}

    @property
    def written(self) -> list[int]:
        return [row[0] for row in self.database.fetch("SELECT position FROM written ORDER BY number")]


class OneStep:
    """The permission of a task that takes one step."""

    def __init__(self) -> None:
        self._left = 1

    @property
    def holds(self) -> bool:
        self._left -= 1
        return self._left >= 0


class SparkWorld(WaitingWorld):
    """The same, with the decisions of the engine spark and its tasks, which run here and not on executors.

    Attributes:
        permission: Makes what says of a task whether it may begin another step.
    """

    permission: Callable[[], Permission] = lambda _: ALWAYS

    def claim(self) -> None:
        super().claim()
        self._watcher = SimpleNamespace(head=self.store.head(), interruptions=0, refusal=None)
        self._runnable = RunnableGroup(self.run, SimpleNamespace(of=lambda _: self.drivers), self._watcher)  # type: ignore[arg-type]

    def drain(self) -> None:
        if not self.drivers:
            self.claim()
        self._watcher.head = self.store.head()
        for _ in range(STEPS):
            self._runnable.look_at_inbox((), self.clock)
            if not (ready := self._runnable.ready(())):
                return
            for driver, outcome in zip(ready, self.run_task(ready).outcomes, strict=True):
                driver.settle(outcome)
        pytest.fail("the partitions do not come to rest")

    def run_task(self, drivers: Iterable[PartitionDriver]) -> TaskResult:
        """Run a task with the next steps of partitions; it has new processors, as on any worker."""
        task = Task(tuple(driver.supervised.begin() for driver in drivers), 0.05)
        done = run_task(self.run.processing, read_task(write_task(task)), self.permission())
        return read_result(write_result(done))


class OneStepWorld(SparkWorld):
    """The same, with tasks that take one step each."""

    permission = OneStep

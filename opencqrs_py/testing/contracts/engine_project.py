"""A project in one file of SQLite, whose groups note each event: what the engines of a contract run."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from threading import Condition
from threading import Event as Signal
from typing import TypeAlias

import pytest

from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.engines.runs import Engine, GroupRun
from opencqrs_py.model import Handler, HandlerMark, Outcome, Partition, PartitionStatus, ProcessorState, layout
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event
from opencqrs_py.model.replay import Reset
from opencqrs_py.processing.binding import NothingProvided, Work, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.inbox.batches import ScheduleRule
from opencqrs_py.processing.inbox.parked_entries import ParkingRule
from opencqrs_py.processing.inbox.schedules import FixedDelay
from opencqrs_py.processing.notices import Notice, Observer
from opencqrs_py.processing.ports import BackOff, Clock, SystemClock
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.processing.replays import ReplayRule
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.testing.contracts.calls import begun, returned

MakeEngine: TypeAlias = Callable[[Sequence[GroupRun], str, Observer, Clock], Engine]
"""What packages register as an engine: a class or a function."""

SECONDS = 120
"""Longest wait for an engine that reports nothing."""
LONGEST_SECONDS = 600
"""Longest wait for an engine that reports steps or notices."""
SOON = ScheduleRule(FixedDelay(0.01, 0.02), back_off=FixedBackOff(0.01))
"""Ticks come at once, and so do further attempts."""
FIRST, SECOND = "/order/1", "/order/4"
"""Subjects of two partitions, 0 and 1."""

HELD_SECONDS = 60.0
"""Longest wait for a call that does not wait for a held handler."""
_LOOK_SECONDS = 0.05
_TABLE = "CREATE TABLE handled (number INTEGER PRIMARY KEY, group_name TEXT, event_id INTEGER, subject TEXT)"
_INSERT = "INSERT INTO handled (group_name, event_id, subject) VALUES (?, ?, ?)"
_EPOCHS = "SELECT epoch FROM opencqrs_progress ORDER BY group_name, modulus, residue"


class WatchingObserver(Observer):
    """Keeps what it is notified of, and lets a test wait for it.

    Attributes:
        notices: What it was given as notices.
        steps: Group, partition and outcome of each step.
        on_advanced: Called after each step.
    """

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.steps: list[tuple[str, Partition, Outcome]] = []
        self.on_advanced: Callable[[Outcome], object] = lambda _outcome: None
        self._changed = Condition()

    def advanced(self, group: str, partition: Partition, outcome: Outcome) -> None:
        """Keep a step."""
        self.steps.append((group, partition, outcome))
        self.notify()
        self.on_advanced(outcome)

    def noticed(self, notice: Notice) -> None:
        """Keep a notice."""
        self.notices.append(notice)
        self.notify()

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait for a notification, or for a condition that is true soon after one."""
        begun_at = moved_at = time.monotonic()
        count = self._count()
        with self._changed:
            while not condition():
                now = time.monotonic()
                if count != (count := self._count()):
                    moved_at = now
                if now > min(moved_at + SECONDS, begun_at + LONGEST_SECONDS):
                    pytest.fail(
                        f"the engine has not done what the test waits for (within {now - begun_at:.0f} s, the last "
                        f"{now - moved_at:.0f} s without a step or notice); it has reported {self._reported()}"
                    )
                self._changed.wait(_LOOK_SECONDS)

    def _count(self) -> int:
        return len(self.steps) + len(self.notices)

    def _reported(self) -> str:
        last = f", the last one {self.steps[-1]}" if self.steps else ""
        return f"{len(self.steps)} steps{last}, and as notices {self.notices[-3:]}"

    def notify(self) -> None:
        """End a wait whose condition has become true."""
        with self._changed:
            self._changed.notify_all()


class KilledError(BaseException):
    """Raised in a handler whose task is killed."""


class Gate:
    """Holds a handler until the test opens it, or its task is killed."""

    def __init__(self) -> None:
        self.reached = Signal()
        self.opened = Signal()
        self._killed = False

    def wait(self) -> None:
        """Wait until the handler is held."""
        if not self.reached.wait(SECONDS):
            pytest.fail(f"the engine has not called the handler of an event that it has to handle (within {SECONDS} s)")

    def __call__(self, _context: ProcessingContext) -> None:
        """Hold the handler."""
        self.reached.set()
        assert self.opened.wait(SECONDS)
        if self._killed:
            self._killed = False  # the next task lives
            raise KilledError

    def hold_during(self, call: Callable[[], object]) -> None:
        """Make a call that does not wait for the handler; fail, and open the gate, if it does."""
        try:
            returned(begun(call), HELD_SECONDS, "the call waits longer than its timeout for a handler that is held")
        except BaseException:
            self.opened.set()
            raise

    def kill(self) -> None:
        """Raise in the handler that is held."""
        self._killed = True
        self.opened.set()


class EngineProject:
    """A project, and the engines that were made for it.

    Attributes:
        before: What the handler does for the event of an id before it notes it.
    """

    def __init__(self, url: str, make: MakeEngine) -> None:
        self.database = Database(url)
        self.store = SqlEventStore(self.database)
        self.tracker = SqlProgressTracker(self.database)
        self.engines: list[tuple[Engine, WatchingObserver]] = []
        self.before: dict[str, Callable[[ProcessingContext], None]] = {}
        self._make = make
        self._is_stuck = False
        with self.database.writing() as connection:
            connection.exec_driver_sql(_TABLE)

    def close(self) -> None:
        """Stop the engines, and close the database."""
        with ExitStack() as ending:  # also if an engine fails to stop
            ending.callback(self.database.close)
            for engine, _ in reversed(self.engines):
                ending.callback(self.stop, engine)

    def stop(self, engine: Engine) -> None:
        """Stop an engine; fail if that does not return; after that, leave all engines."""
        if self._is_stuck:
            return
        stopping = begun(engine.stop, SECONDS)
        try:
            returned(stopping, SECONDS + HELD_SECONDS, "the engine's stop does not return")
        finally:
            self._is_stuck = not stopping.done()

    def append(self, *subjects: str) -> None:
        """Add events, whose ids count from 0."""
        first = self.store.count()
        self.store.append(
            Event(0, str(number), "s", subject, "t", None, "application/json", "{}", None)
            for number, subject in enumerate(subjects, first)
        )

    def run(
        self,
        group: str = "orders",
        partitions: int = 2,
        back_off: BackOff | None = None,
        on_exhausted: OnExhausted = OnExhausted.SKIP,
        batch_size: int | None = None,
        prepare: Callable[[], None] = lambda: None,
        parking: ParkingRule | None = None,
        schedule: ScheduleRule | None = None,
        at_replay_end: Callable[[Reset, Work], None] | None = None,
    ) -> GroupRun:
        """Return a group that notes each event, after what ``before`` says for it."""

        def handle(raw: Event, connection: sqlite3.Connection, context: ProcessingContext) -> None:
            if raw.id in self.before:
                self.before[raw.id](context)
            connection.execute(_INSERT, (context.group, int(raw.id), raw.subject))

        dispatcher = Dispatcher([bind(Handler(HandlerMark(group), handle, "here"), NothingProvided())], [])
        processing = GroupProcessing(
            group,
            self.store,
            self.tracker,
            dispatcher,
            subject="/",
            recursive=True,
            sequencing=SequencingByEvent(PerSubject()),
            partitions=partitions,
            batch_size=batch_size,
            parking=parking,
            schedule=schedule,
            replays=ReplayRule(dispatcher, [at_replay_end]) if at_replay_end else None,
        )
        back_off = back_off or FixedBackOff(0.001)
        return GroupRun(
            processing, layout(partitions), lambda: 0, back_off, on_exhausted, prepare, recipe=lambda: processing
        )

    def engine(self, *runs: GroupRun, owner: str = "me") -> tuple[Engine, WatchingObserver]:
        """Return a new engine, to which nothing is assigned."""
        watching = WatchingObserver()
        self.engines.append((self._make(runs, owner, watching, SystemClock()), watching))
        return self.engines[-1]

    def started(self, *runs: GroupRun, owner: str = "me") -> tuple[Engine, WatchingObserver]:
        """Return a new engine that has all partitions and runs."""
        engine, watching = self.engine(*runs, owner=owner)
        for run in runs:
            engine.assign(run.group, run.partitions)
        engine.start()
        return engine, watching

    def gate(self, event_id: str) -> Gate:
        """Return the gate that holds the handler of an event."""
        self.before[event_id] = gate = Gate()
        return gate

    def kill(self) -> None:
        """Kill the tasks whose handlers are held; for engines that kill tasks, such as Spark's."""
        for gate in self.before.values():
            if isinstance(gate, Gate):
                gate.kill()

    def rows(self, group: str = "orders", subject: str | None = None) -> list[int]:
        """Return the numbers of the events noted, in the order in which they were handled."""
        query = "SELECT event_id FROM handled WHERE group_name = ? AND subject = coalesce(?, subject) ORDER BY number"
        with self.database.reading() as connection:
            return [number for (number,) in connection.exec_driver_sql(query, (group, subject))]

    def statuses(self) -> list[PartitionStatus]:
        """Return what is stored of each partition."""
        return self.tracker.statuses()

    def states(self) -> list[ProcessorState]:
        """Return the stored state of each partition."""
        return [status.state for status in self.statuses()]

    def epochs(self) -> list[int]:
        """Return how often each partition was claimed."""
        with self.database.reading() as connection:
            return [epoch for (epoch,) in connection.exec_driver_sql(_EPOCHS)]

    def waiting(self) -> int:
        """Return how many events wait in the inbox."""
        return sum(count for status in self.statuses() for _, count in status.parked)

    def when_done(self, engine: Engine, watching: WatchingObserver) -> None:
        """Wait until everything in the store is handled."""
        head = self.store.head()
        watching.wait_for(lambda: all(partition.done(head) for partition in engine.partitions()))


def over(engine: Engine) -> bool:
    """Return whether an engine has lost or left all its partitions."""
    return all(partition.over for partition in engine.partitions())


def subjects(count: int, kinds: int = 7) -> list[str]:
    """Return the subjects of some events, by turns."""
    return [f"/order/{number % kinds}" for number in range(count)]


def numbers(given: Iterable[str], subject: str) -> list[int]:
    """Return the numbers of the events of a subject."""
    return [number for number, other in enumerate(given) if other == subject]

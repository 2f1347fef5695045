"""The laws of processing, tried against whatever can go wrong, in any order.

Processes start, take over from each other, go on as zombies, fail, crash in mid-chunk and lose their database, with
random sizes of chunks and reads, while events arrive. What must hold after every single step is in ``check``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from opencqrs_py import Event, NonTransientError, ProcessingContext
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.model import Handler, HandlerMark, Origin, Partition, ProcessorState, Selection, layout
from opencqrs_py.processing.backoff import FixedBackOff
from opencqrs_py.processing.dispatch import Dispatcher, bind
from opencqrs_py.processing.feed import Feed
from opencqrs_py.processing.processor import PartitionProcessor
from opencqrs_py.processing.recovery import OnExhausted
from opencqrs_py.processing.sequencing import PerSubject
from opencqrs_py.processing.supervision import SupervisedPartition
from opencqrs_py.testing import FakeClock

if TYPE_CHECKING:
    from sqlalchemy import Connection

SUBJECTS = [f"/books/{n}" for n in range(7)]
FAULTS = ["", "", "", "", "error", "error", "permanent", "outage", "crash", "take over"]  # of calls of the handler


class CrashError(BaseException):
    """The end of a process."""


class Unit:
    def __init__(self) -> None:
        self.connection: list[int] = []
        self.session = self.connection


class Database:
    """All or nothing; away, or refusing a commit, when it is told to be."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.away = 0  # for so many transactions
        self.refusals: list[Exception] = []

    @contextmanager
    def begin(self) -> Iterator[Unit]:
        if self.away:
            self.away -= 1
            raise ConnectionError
        unit = Unit()
        yield unit
        if self.refusals:
            raise self.refusals.pop()
        self.rows += unit.connection

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)


class Nothing:
    def provides(self, wanted: object) -> bool:
        return False

    def provide(self, wanted: object) -> Any:
        raise AssertionError(wanted)


class Process:
    """All partitions of the group, as one process runs them."""

    def __init__(self, machine: Processing, batch_size: int, limit: int, retries: int) -> None:
        self.clock = FakeClock()
        self.retries = retries
        self.errors: Counter[int] = Counter()
        handler = bind(Handler(HandlerMark("group"), machine.handle, "here"), Nothing())
        feed = Feed(machine.store, Selection(), PerSubject(), limit, memory=2)
        dispatcher = Dispatcher([handler], [])
        back_off = FixedBackOff(1, retries)
        cursors = machine.tracker.claim("group", machine.partitions, 0, "owner")
        self.partitions = [
            SupervisedPartition("group", cursor, back_off, OnExhausted.SKIP, self.clock) for cursor in cursors
        ]
        self._processors = [
            PartitionProcessor("group", cursor.partition, feed, machine.tracker, dispatcher, batch_size)
            for cursor in cursors
        ]

    def step(self, number: int) -> int | None:
        """Let a partition do its next step; return the position of the event that was given up, if one was."""
        partition = self.partitions[number]
        if partition.over:
            return None
        self.clock.advance(partition.wait())
        before = partition.cursor
        outcome = self._processors[number].step(before)
        assert outcome.cursor.position >= before.position
        assert outcome.cursor.stored >= before.stored
        if outcome.trouble is not None and outcome.trouble.origin is Origin.HANDLER:
            assert outcome.trouble.position is not None
            self.errors[outcome.trouble.position] += not outcome.trouble.permanent
        partition.take(outcome)
        assert not outcome.skipped or before.skip
        return before.troubled if outcome.skipped else None


class Processing(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 4))
    def begin(self, partitions: int) -> None:
        self.partitions = layout(partitions)
        self.store = InMemoryEventStore()
        self.database = Database()
        self.tracker = InMemoryProgressTracker(self.database)
        self.processes: list[Process] = []
        self.faults: list[str] = []
        self.given_up: set[int] = set()
        self.stored = dict.fromkeys(self.partitions, 0)

    def handle(self, raw: Event, connection: Connection, context: ProcessingContext) -> None:
        connection.append(raw.position)  # type: ignore[attr-defined]
        assert context.partition.owns(raw.subject)
        match self.faults.pop() if self.faults else "":
            case "error":
                raise ValueError
            case "permanent":
                raise NonTransientError
            case "outage":
                raise ConnectionError
            case "crash":
                raise CrashError
            case "take over":
                heir = Process(self, batch_size=3, limit=5, retries=1)
                self.processes.append(heir)
                self._step(heir, self.partitions.index(context.partition))

    # What happens

    @rule(subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=10))
    def append(self, subjects: list[str]) -> None:
        first = self.store.head() + 1
        self.store.append(
            Event(0, str(n), "s", subject, "t", None, "application/json", None, None)
            for n, subject in enumerate(subjects, first)
        )

    @rule(batch_size=st.integers(1, 7), limit=st.integers(1, 12), retries=st.integers(0, 2))
    def start_a_process(self, batch_size: int, limit: int, retries: int) -> None:
        self.processes.append(Process(self, batch_size, limit, retries))
        del self.processes[:-3]

    @rule(faults=st.lists(st.sampled_from(FAULTS), min_size=1, max_size=10))
    def let_handlers_fail(self, faults: list[str]) -> None:
        self.faults = faults

    @rule(error=st.sampled_from([ValueError, ConnectionError]), times=st.integers(1, 3))
    def let_commits_fail(self, error: type[Exception], times: int) -> None:
        self.database.refusals = [error() for _ in range(times)]

    @rule(away=st.integers(1, 4))
    def let_the_database_be_away(self, away: int) -> None:
        self.database.away = away

    @precondition(lambda self: self.processes)
    @rule(process=st.sampled_from([0, 0, 0, 1, 2]), partitions=st.lists(st.integers(0, 3), min_size=1, max_size=12))
    def go_on(self, process: int, partitions: list[int]) -> None:
        chosen = self.processes[-1 - process % len(self.processes)]  # the newest, or a zombie
        for partition in partitions:
            self._step(chosen, partition % len(self.partitions))
            self.check()

    def _step(self, process: Process, partition: int) -> None:
        try:
            given_up = process.step(partition)
        except CrashError:
            self.processes = [other for other in self.processes if other is not process]
            return
        if given_up is not None:
            assert process.errors[given_up] > process.retries, "given up before its attempts were used up"
            self.given_up.add(given_up)

    # What must hold

    @invariant()
    def check(self) -> None:
        found = {status.partition: status.position for status in self.tracker.statuses()}
        for partition, position in found.items():
            assert position >= self.stored[partition], "progress moved backward"
            self.stored[partition] = position
        for partition in self.partitions:
            rows = [position for position in self.database.rows if partition.owns(self._subject(position))]
            assert rows == self._due(partition), "lost, doubled, or out of order"

    def _due(self, partition: Partition) -> list[int]:
        """Return the positions that must have been handled, given the progress."""
        events = self.store.read(0, 1_000, Selection()).events
        done = [e.position for e in events if partition.owns(e.subject) and e.position <= self.stored[partition]]
        return [position for position in done if position not in self.given_up]

    def _subject(self, position: int) -> str:
        return self.store.read(position - 1, 1, Selection()).events[0].subject

    def teardown(self) -> None:
        """When nothing fails any more, everything is handled."""
        if not hasattr(self, "store"):
            return
        self.faults, self.database.refusals, self.database.away = [], [], 0
        last = Process(self, batch_size=4, limit=9, retries=0)
        for number, partition in enumerate(last.partitions):
            for _ in range(2 * self.store.head() + 2):
                self._step(last, number)
                assert partition.state is ProcessorState.RUNNING
            assert partition.done(self.store.head())
        self.check()
        assert sorted({*self.database.rows, *self.given_up}) == list(range(1, self.store.head() + 1))
        assert all(a != b for a, b in pairwise(sorted(self.database.rows)))


Processing.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestProcessing = Processing.TestCase

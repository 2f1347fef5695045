"""The laws of processing, tested against everything that can go wrong, in any order.

Processes start, take over from each other, continue as zombies, fail, crash in mid-chunk and lose their database, with
random sizes of chunks and reads, while events arrive. ``World.check`` has what must hold after every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py import Event, NonTransientError, ProcessingContext
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.model import Handler, HandlerMark, Origin, ProcessorState, Selection, layout
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.binding import NothingProvided, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.feed import Feed
from opencqrs_py.processing.processor import PartitionProcessor, ProcessorParts
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.processing.supervision import SupervisedPartition
from opencqrs_py.testing import FakeClock

if TYPE_CHECKING:
    from sqlalchemy import Connection

SUBJECTS = [f"/books/{n}" for n in range(7)]
FAULTS = ["", "", "", "", "error", "error", "permanent", "outage", "crash", "take over"]  # of handler calls


class CrashError(KeyboardInterrupt):
    """The end of a process."""


class Unit:
    def __init__(self) -> None:
        self.connection: list[int] = []
        self.session = self.connection

    def flush(self) -> None:
        pass

    def ended_early(self, error: BaseException) -> None:
        return None


class Database:
    """Atomic transactions; unavailable, or failing at a commit, when set so."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.away = 0  # how many more transactions fail
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


class Process:
    """All partitions of the group, as one process runs them."""

    def __init__(self, world: World, batch_size: int, limit: int, retries: int) -> None:
        self.clock = FakeClock()
        self.retries = retries
        self.errors: Counter[int] = Counter()
        handler = bind(Handler(HandlerMark("group"), world.handle, "here"), NothingProvided())
        feed = Feed(world.store, Selection(), SequencingByEvent(PerSubject()), limit, memory=2)
        dispatcher = Dispatcher([handler], [])
        back_off = FixedBackOff(1, retries)
        cursors = world.tracker.claim("group", world.partitions, 0, "owner")
        self.partitions = [
            SupervisedPartition("group", cursor, back_off, OnExhausted.SKIP, self.clock) for cursor in cursors
        ]
        self._processors = [
            PartitionProcessor(cursor.partition, ProcessorParts("group", feed, world.tracker, dispatcher, batch_size))
            for cursor in cursors
        ]

    def step(self, number: int) -> int | None:
        """Let a partition take its next step; return the position of the abandoned event, if any."""
        partition = self.partitions[number]
        if partition.over:
            return None
        self.clock.advance(partition.wait())
        before = partition.cursor
        outcome = self._processors[number].step(before)
        assert outcome.cursor.position >= before.position
        assert outcome.cursor.stored >= before.stored
        if outcome.failure is not None and outcome.failure.origin is Origin.HANDLER:
            assert outcome.failure.position is not None
            self.errors[outcome.failure.position] += not outcome.failure.permanent
        partition.take(outcome)
        assert not outcome.skipped or before.skip
        return before.failing if outcome.skipped else None


@dataclass(frozen=True)
class Turn:
    """What happens next: events arrive, a process starts, and one process continues while things fail.

    Attributes:
        subjects: Of the events that arrive.
        start: Sizes of chunk and read, and retries, of a process that starts; ``None`` if none does.
        process: Which process continues: 0 is the newest, the others are zombies.
        partitions: The partitions that it steps, in this order.
        faults: What the handler calls do, the last one first.
        away: For how many transactions the database is unavailable.
        refusals: The errors of the next commits.
    """

    subjects: list[str]
    start: tuple[int, int, int] | None
    process: int
    partitions: list[int]
    faults: list[str]
    away: int
    refusals: list[type[Exception]]


turns = st.builds(
    Turn,
    subjects=st.lists(st.sampled_from(SUBJECTS), max_size=10),
    start=st.sampled_from([None] * 4) | st.tuples(st.integers(1, 7), st.integers(1, 12), st.integers(0, 2)),
    process=st.sampled_from([0, 0, 0, 1, 2]),
    partitions=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    faults=st.lists(st.sampled_from(FAULTS), max_size=8),
    away=st.sampled_from([0, 0, 0, 0, 1, 2]),
    refusals=st.lists(st.sampled_from([ValueError, ConnectionError]), max_size=1),
)


class World:
    """A store, a database, and all processes."""

    def __init__(self, partitions: int) -> None:
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
                heir = self.start(3, 5, 1)
                self.step(heir, self.partitions.index(context.partition))

    def append(self, subjects: list[str]) -> None:
        first = self.store.head() + 1
        self.store.append(
            Event(0, str(n), "s", subject, "t", None, "application/json", None, None)
            for n, subject in enumerate(subjects, first)
        )

    def start(self, batch_size: int, limit: int, retries: int) -> Process:
        self.processes = [*self.processes[-2:], Process(self, batch_size, limit, retries)]
        return self.processes[-1]

    def take(self, turn: Turn) -> None:
        self.append(turn.subjects)
        if turn.start is not None or not self.processes:
            self.start(*(turn.start or (4, 9, 1)))
        self.faults = list(turn.faults)
        self.database.away = turn.away
        self.database.refusals = [refusal() for refusal in turn.refusals]
        process = self.processes[-1 - turn.process % len(self.processes)]
        for partition in turn.partitions:
            self.step(process, partition % len(self.partitions))
            self.check()

    def step(self, process: Process, partition: int) -> None:
        try:
            given_up = process.step(partition)
        except CrashError:
            self.processes = [other for other in self.processes if other is not process]
            return
        if given_up is not None:
            assert process.errors[given_up] > process.retries, "abandoned before its attempts were exhausted"
            self.given_up.add(given_up)

    def check(self) -> None:
        for status in self.tracker.statuses():
            assert status.position >= self.stored[status.partition], "progress moved backward"
            self.stored[status.partition] = status.position
        events = self.store.read(0, 1_000, Selection()).events
        for partition in self.partitions:
            own = [event.position for event in events if partition.owns(event.subject)]
            due = [n for n in own if n <= self.stored[partition] and n not in self.given_up]
            assert [n for n in self.database.rows if n in own] == due, "lost, duplicated or out of order"

    def finish(self) -> None:
        """Let a last process do the remaining work without faults."""
        self.faults, self.database.refusals, self.database.away = [], [], 0
        last = self.start(4, 9, 0)
        for number, partition in enumerate(last.partitions):
            for _ in range(self.store.head() + 2):
                self.step(last, number)
            assert partition.state is ProcessorState.RUNNING
            assert partition.done(self.store.head())
        self.check()


@given(st.integers(1, 4), st.lists(turns, min_size=1, max_size=12))
def test_no_event_is_lost_duplicated_or_reordered_whatever_goes_wrong(partitions: int, turns: list[Turn]) -> None:
    world = World(partitions)
    for turn in turns:
        world.take(turn)
    world.finish()
    assert sorted([*world.database.rows, *world.given_up]) == list(range(1, world.store.head() + 1))

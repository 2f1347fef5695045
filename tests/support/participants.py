"""What self-checkpointing is tried with: participants that answer as a test says, and partitions moved step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import pytest

from opencqrs_py import (
    CheckpointParticipant,
    CheckpointTrigger,
    Event,
    InMemoryEventStore,
    InMemoryProgressTracker,
    ProcessingContext,
    checkpointing,
    event_handling,
)
from opencqrs_py.adapters.sql import SqlProgressTracker
from opencqrs_py.engines.checkpointing import CheckpointRule
from opencqrs_py.engines.driver import PartitionDriver, claim
from opencqrs_py.engines.parts import ProcessorOptions, make_processing
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.model import Outcome, Partition, layout
from opencqrs_py.model.checkpoint import LATEST
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.inbox import InboxChange
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointMode
from opencqrs_py.processing.definitions import Definition, in_order
from opencqrs_py.processing.inbox.parked_entries import ParkingRule
from opencqrs_py.processing.ports import BackOff
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import PartitionKeyResolver
from opencqrs_py.testing import FakeClock
from support.partitions import Seen

FIRST, SECOND = "/order/1", "/order/4"  # subjects of two partitions, 0/2 and 1/2
GROUP = "board"
PARK_SECONDS = 100.0
"""Between two attempts of a parked event: longer than ``World.until_idle`` waits."""


def event(number: int, subject: str = FIRST, event_type: str = "moved") -> Event:
    return Event(0, str(number), "s", subject, event_type, None, "application/json", "{}", None)


@checkpointing(GROUP)
class Board(CheckpointParticipant):
    """Records its calls. ``answers`` are functions of partition and position, by the name of a callback.

    Attributes:
        seen: Positions of the events handled, in their order, with the partition as text.
        replayed: Those of them that were replays.
        out_of_inbox: Those of them that had been parked.
        calls: Callback, partition as text, and position of each call but for events.
        before: Called before an event is handled, by its position.
    """

    def __init__(self, **answers: Callable[[Partition, int], Any]) -> None:
        self.seen: list[tuple[str, int]] = []
        self.replayed: list[int] = []
        self.out_of_inbox: list[int] = []
        self.calls: list[tuple[Any, ...]] = []
        self.triggers: dict[Partition, CheckpointTrigger] = {}
        self.old_triggers: list[CheckpointTrigger] = []
        self.of_events: list[CheckpointTrigger] = []
        self.answers = answers
        self.before: dict[int, Callable[[], object]] = {}

    def on_partition_claimed(self, partition: Partition, resume_at: int, trigger: CheckpointTrigger) -> object:
        self.calls.append(("claimed", str(partition), resume_at))
        if partition in self.triggers:
            self.old_triggers.append(self.triggers[partition])
        self.triggers[partition] = trigger
        return self._answer("claimed", partition, resume_at)

    def on_checkpoint(self, partition: Partition, requested: int) -> object:
        self.calls.append(("checkpoint", str(partition), requested))
        return self._answer("checkpoint", partition, requested)

    def on_partition_released(self, partition: Partition, up_to: int) -> object:
        self.calls.append(("released", str(partition), up_to))
        return self._answer("released", partition, up_to)

    def on_partition_closed(self, partition: Partition) -> object:
        self.calls.append(("closed", str(partition)))
        return self._answer("closed", partition, 0)

    def on_parked_handled(self, partition: Partition, positions: Sequence[int]) -> object:
        self.calls.append(("parked", str(partition), tuple(positions)))
        return self._answer("parked", partition, positions[0])

    def _answer(self, name: str, partition: Partition, position: int) -> object:
        return self.answers.get(name, lambda _, given: given)(partition, position)

    @event_handling(types=["*"])
    def handle(self, raw: Event, context: ProcessingContext, trigger: CheckpointTrigger) -> None:
        self.before.get(context.position, lambda: None)()
        self.seen.append((str(context.partition), context.position))
        self.of_events.append(trigger)
        if context.replaying:
            self.replayed.append(context.position)
        if context.parked:
            self.out_of_inbox.append(context.position)

    @property
    def positions(self) -> list[int]:
        return [position for _, position in self.seen]

    def asked(self, name: str = "checkpoint") -> list[int]:
        """Return the positions with which a callback was called."""
        return [call[2] for call in self.calls if call[0] == name]

    def parked(self) -> list[tuple[int, ...]]:
        """Return the positions of the parked events that it had to make durable."""
        return [call[2] for call in self.calls if call[0] == "parked"]

    @property
    def trigger(self) -> CheckpointTrigger:
        (trigger,) = self.triggers.values()
        return trigger


def raising(error: Exception) -> Callable[..., Any]:
    """Return a function that raises."""

    def raise_(*_: object, **_named: object) -> None:
        raise error

    return raise_


def max_of(position: int) -> Callable[[Partition, int], int]:
    """Return an answer of a participant that is durable up to a position already."""
    return lambda _, asked: max(asked, position)


def stuck_at(answer: Any) -> Callable[[Partition, int], Any]:
    """Return an answer that is always the same."""
    return lambda _partition, _asked: answer


LATEST_ALWAYS = stuck_at(LATEST)


class Counting(Protocol):
    """A tracker that notes to where progress is stored."""

    stores: list[int]
    database: Any
    unit: Any

    def statuses(self) -> list[Any]: ...


def counting(tracker: Any) -> Any:
    """Have a tracker record the positions at which progress is stored.

    It stays itself: what hands all on to another object is none of the protocols that it fulfils, from Python 3.12 on.
    """
    unit = tracker.unit

    @contextmanager
    def counted(group: str, cursor: Any, to: int, **rest: Any) -> Iterator[Any]:
        with unit(group, cursor, to, **rest) as opened:
            yield opened
        if to > cursor.stored:
            tracker.stores.append(to)

    tracker.stores, tracker.unit = [], counted
    if not isinstance(tracker, SqlProgressTracker):
        tracker.database = None
    return tracker


TRACKERS = [
    "memory",
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
"""Where progress is kept: in memory, and in each database."""


def counting_tracker(kind: str, request: pytest.FixtureRequest) -> Any:
    """Return a tracker of one of these kinds; those of databases take that of the fixture ``database``."""
    if kind == "memory":
        return counting(InMemoryProgressTracker())
    return counting(SqlProgressTracker(request.getfixturevalue("database")))


class World:
    """A group, its log and its progress; each ``claimed`` is a start of a process.

    Args:
        tracker: Where progress goes.
        definitions: Handlers, such as those of boards.
        partitions: How many.
        rest: Further parts of a ``CheckpointRule``, as ``mode`` and ``timeout``, and of how events are tried again.
    """

    def __init__(
        self,
        tracker: Any,
        *definitions: Definition,
        partitions: int = 1,
        batch_size: int | None = None,
        mode: CheckpointMode = CheckpointMode.AUTO,
        timeout: float = 60.0,
        back_off: BackOff | None = None,
        on_exhausted: OnExhausted = OnExhausted.SKIP,
        store: InMemoryEventStore | None = None,
        clock: Any = None,
        on_undecodable: OnExhausted = OnExhausted.STOP,
        park_seconds: float = PARK_SECONDS,
        park_attempts: int | None = None,
        most_of_sequence: int = 1_024,
    ) -> None:
        self.tracker = tracker
        self.store = InMemoryEventStore() if store is None else store
        self.clock = FakeClock() if clock is None else clock
        self.seen = Seen()
        back_off = FixedBackOff(1.0) if back_off is None else back_off
        options = ProcessorOptions(
            clock=self.clock,
            batch_size=batch_size,
            checkpointing=CheckpointRule(mode, timeout),
            on_exhausted=on_exhausted,
            parking=ParkingRule(
                FixedBackOff(park_seconds, max_attempts=park_attempts),
                most_of_sequence=most_of_sequence,
                retry=back_off,
                on_exhausted=on_exhausted,
                on_undecodable=on_undecodable,
            ),
        )
        self.processing = make_processing(
            GROUP,
            in_order(definitions),
            self.store,
            tracker,
            PerSubject(),
            PartitionKeyResolver(partitions),
            options,
            subject="/",
            recursive=True,
        )
        parts = (self.processing, layout(partitions), lambda: 0, back_off, on_exhausted)
        self.run = GroupRun(*parts, on_undecodable=on_undecodable)

    def append(self, *subjects: str) -> None:
        first = self.store.head() + 1
        self.store.append([event(number, subject) for number, subject in enumerate(subjects, first)])

    def given(self, count: int, subject: str = FIRST) -> World:
        """Append some events."""
        self.append(*[subject] * count)
        return self

    def claimed(self, partitions: Sequence[Partition] | None = None) -> list[PartitionDriver]:
        return claim(self.run, partitions or self.run.partitions, "owner", self.clock, self.seen)

    def driver(self) -> PartitionDriver:
        """Return the driver of the only partition, claimed now."""
        (driver,) = self.claimed()
        return driver

    def until_idle(self, *drivers: PartitionDriver, most: int = 200) -> None:
        """Step partitions until each has nothing to do now; waits pass at once, up to a minute in all."""
        until = self.clock.monotonic() + 60
        for driver in drivers:
            for _ in range(most):
                if (wait := driver.wait()) > 0:
                    if self.clock.monotonic() + wait > until:
                        break
                    self.clock.advance(wait)
                if driver.over or driver.step().idle:
                    break

    def waiting(self) -> dict[int, str]:
        """Return the status of each event in the inbox, by its position."""
        return {entry.position: entry.status.value for entry in self.tracker.entries(GROUP)}

    def as_a_person(self, position: int, how: str) -> bool:
        """Skip or pause an event in the inbox; return whether it was there as it was seen."""
        (entry,) = (entry for entry in self.tracker.entries(GROUP) if entry.position == position)
        now = in_milliseconds(self.clock.now())
        if how == "skip":
            change = InboxChange(now, removed=(entry,))
        else:
            change = InboxChange(now, changed=((entry, entry.paused()),))
        done: bool = self.tracker.change(GROUP, change)
        return done

    def stored(self, partition: Partition | None = None) -> int:
        known = {status.partition: status.position for status in self.tracker.statuses()}
        return known[partition or next(iter(known))]

    def stored_of_all(self) -> Mapping[str, int]:
        return {str(status.partition): status.position for status in self.tracker.statuses()}


def failures(seen: Seen) -> list[str]:
    """Return the codes of the failures."""
    return [notice.failure.code for notice in seen.notices if notice.failure is not None]


def outcome_without_cursor(outcome: Outcome) -> Outcome:
    """Return an outcome to compare."""
    return replace(outcome, cursor=replace(outcome.cursor, epoch=0))

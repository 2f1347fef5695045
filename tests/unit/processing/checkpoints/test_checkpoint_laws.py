"""Invariants of checkpoints, whatever happens: crashes, slow, stuck and lying participants, failing handlers.

No event that a participant has not confirmed is ever at or before the stored position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.participants import FIRST, GROUP, PARK_SECONDS, SECOND, World

from opencqrs_py import (
    LATEST,
    CheckpointParticipant,
    CheckpointTrigger,
    Event,
    InMemoryEventStore,
    InMemoryProgressTracker,
    NoRetry,
    checkpointing,
    event_handling,
)
from opencqrs_py.model import Partition, layout
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.testing import FakeClock

BEHAVIOURS = ["flushes", "latest", "lies", "half", "stuck", "raises", "nothing"]
SUBJECTS = {FIRST: Partition(2, 0), "/order/2": Partition(2, 0), SECOND: Partition(2, 1), "/order/5": Partition(2, 1)}


class Disk:
    """The durable events of a participant, by partition; they survive crashes."""

    def __init__(self) -> None:
        self.events: dict[Partition, set[int]] = defaultdict(set)
        self.handled: dict[str, set[int]] = defaultdict(set)
        self.behaviour = "flushes"
        self.claim_fails = False


@checkpointing(GROUP)
class Writer(CheckpointParticipant):
    """Keeps events in memory until a checkpoint; its disk holds its behaviour."""

    def __init__(self, disk: Disk, poison: set[int]) -> None:
        self.disk = disk
        self.poison = poison
        self.memory: dict[Partition, list[int]] = {}
        self.triggers: dict[Partition, CheckpointTrigger] = {}

    def on_partition_claimed(self, partition: Partition, resume_at: int, trigger: CheckpointTrigger) -> None:
        if self.disk.claim_fails:
            raise OSError("no room")
        assert partition not in self.memory, "claimed twice"
        self.memory[partition] = []
        self.triggers[partition] = trigger

    @event_handling(types=["*"])
    def handle(self, raw: Event) -> None:
        self.keep([raw])

    def keep(self, raws: list[Event]) -> None:
        """Keep events in memory, all of them or none."""
        if any(raw.position in self.poison for raw in raws):
            raise OSError("poison")
        for raw in raws:
            self.memory[SUBJECTS[raw.subject]].append(raw.position)
            self.disk.handled[raw.subject].add(raw.position)

    def on_checkpoint(self, partition: Partition, requested: int) -> Any:
        memory, disk = self.memory[partition], self.disk
        match disk.behaviour:
            case "raises":
                raise OSError("disk full")
            case "nothing":
                return None
            case "half":  # reports truthfully what is durable
                done = memory[: len(memory) // 2]
            case "stuck":
                done = []
            case _:
                done = list(memory)
        disk.events[partition].update(done)
        self.memory[partition] = memory = memory[len(done) :]
        if memory:
            return min(memory) - 1
        return {"latest": LATEST, "lies": requested + 1_000}.get(disk.behaviour, requested)

    def on_parked_handled(self, partition: Partition, positions: Sequence[int]) -> None:
        memory, disk = self.memory[partition], self.disk
        if disk.behaviour in {"raises", "stuck"}:
            raise OSError("disk full")
        assert set(positions) <= set(memory)
        done = memory if disk.behaviour == "latest" else positions  # it may flush everything else, too
        disk.events[partition].update(done)
        self.memory[partition] = [position for position in memory if position not in set(done)]

    def on_partition_closed(self, partition: Partition) -> None:
        self.memory.pop(partition, None)
        self.triggers.pop(partition, None)


@checkpointing(GROUP)
class ListWriter(Writer):
    """Takes the events of a chunk at once."""

    @event_handling(types=["*"])
    def handle(self, raws: list[Event]) -> None:  # type: ignore[override]
        self.keep(raws)


class Checkpoints(RuleBasedStateMachine):
    """A group of two partitions, moved by hand."""

    @initialize(
        writers=st.lists(st.sampled_from([Writer, ListWriter]), min_size=1, max_size=3),
        mixed=st.booleans(),
        exhausted=st.sampled_from([OnExhausted.PARK, OnExhausted.SKIP, None]),
        batch_size=st.sampled_from([None, 1, 3]),
        subjects=st.lists(st.sampled_from(sorted(SUBJECTS)), min_size=4, max_size=8),
        bad=st.integers(0, 7),
    )
    def begin(
        self,
        writers: list[type[Writer]],
        *,
        mixed: bool,
        exhausted: OnExhausted | None,
        batch_size: int | None,
        subjects: list[str],
        bad: int,
    ) -> None:
        self.classes = writers
        self.disks = [Disk() for _ in writers]
        self.poison: set[int] = set()
        self.store, self.tracker, self.clock = InMemoryEventStore(), InMemoryProgressTracker(), FakeClock()
        self.mixed, self.exhausted, self.batch_size = mixed, exhausted, batch_size
        self.subjects: dict[int, str] = {}
        self.rows: list[int] = []
        self.before: dict[str, int] = {}
        self._start()
        self.append(subjects, bad)

    def _start(self) -> None:
        self.writers = [cls(disk, self.poison) for cls, disk in zip(self.classes, self.disks, strict=True)]

        @event_handling(GROUP, types=["*"])
        def note(raw: Event) -> None:
            self.rows.append(raw.position)

        self.world = World(
            self.tracker,
            *[writer.handle for writer in self.writers],
            *([note] if self.mixed else []),
            partitions=2,
            batch_size=self.batch_size,
            back_off=FixedBackOff(1.0) if self.exhausted is None else NoRetry(),
            on_exhausted=self.exhausted or OnExhausted.SKIP,
            store=self.store,
            clock=self.clock,
        )
        self.drivers = self.world.claimed()

    @rule(subjects=st.lists(st.sampled_from(sorted(SUBJECTS)), min_size=1, max_size=8), bad=st.integers(0, 11))
    def append_more(self, subjects: list[str], bad: int) -> None:
        self.append(subjects, bad)

    def append(self, subjects: list[str], bad: int) -> None:
        """Append events, of which the one with the index ``bad``, if it exists, fails for now."""
        first = self.store.head() + 1
        if bad < len(subjects) and not self.poison:
            self.poison.add(first + bad)
        self.world.append(*subjects)
        self.subjects |= dict(enumerate(subjects, first))

    @rule(number=st.integers(0, 1), times=st.integers(1, 3))
    def step(self, number: int, times: int) -> None:
        driver = self.drivers[number]
        for _ in range(times):
            if driver.wait() == 0 and not driver.over:
                driver.step()

    @rule()
    def run_on(self) -> None:
        self.world.until_idle(*self.drivers, most=20)

    @rule(seconds=st.sampled_from([0.5, 2, 70, 2 * PARK_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(number=st.integers(0, 1), back=st.integers(0, 3), latest=st.booleans(), writer=st.integers(0, 2))
    def request(self, number: int, back: int, *, latest: bool, writer: int) -> None:
        partition = layout(2)[number]
        trigger = self.writers[writer % len(self.writers)].triggers.get(partition)
        claimed = self.drivers[number].processor._claimed
        if trigger is not None and claimed is not None:
            trigger.request() if latest else trigger.request(max(0, claimed.positions.polled - back))

    @rule(writer=st.integers(0, 2), behaviour=st.sampled_from(BEHAVIOURS), claim_fails=st.booleans())
    def behave(self, writer: int, behaviour: str, *, claim_fails: bool) -> None:
        disk = self.disks[writer % len(self.disks)]
        disk.behaviour, disk.claim_fails = behaviour, claim_fails

    @precondition(lambda self: self.poison)
    @rule()
    def heal(self) -> None:
        self.poison.clear()

    @rule()
    def crash(self) -> None:
        """The process crashes: its memory is lost."""
        self._start()

    @rule()
    def release(self) -> None:
        for driver in self.drivers:
            driver.release()
        assert not any(writer.memory for writer in self.writers)
        self._start()

    @invariant()
    def nothing_unconfirmed_is_stored(self) -> None:
        if not hasattr(self, "world"):
            return
        passed = {skip.position for skip in self.tracker.skipped()} | self.world.waiting().keys()
        stored = self.world.stored_of_all()
        for position, subject in self.subjects.items():
            partition = SUBJECTS[subject]
            if position <= stored.get(str(partition), 0) and position not in passed:
                for disk in self.disks:
                    assert position in disk.events[partition], f"{position} is stored and not durable"
        for partition, position in stored.items():
            assert position >= self.before.get(partition, 0), "progress moved backward"
        self.before = dict(stored)

    @invariant()
    def no_event_overtakes_another_of_its_sequence(self) -> None:
        if not hasattr(self, "world"):
            return
        skipped = {skip.position for skip in self.tracker.skipped()}
        for disk in self.disks:
            for subject, handled in disk.handled.items():
                own = {position for position, each in self.subjects.items() if each == subject} - skipped
                assert {position for position in own if position < max(handled)} <= handled

    def teardown(self) -> None:
        """Once all faults are gone, everything is handled and durable."""
        if not hasattr(self, "world"):
            return
        self.poison.clear()
        for disk in self.disks:
            disk.behaviour, disk.claim_fails = "flushes", False
        for _ in range(3):  # failing events are parked and retried
            self.clock.advance(2 * PARK_SECONDS)
            self.world.until_idle(*self.drivers)
        assert not self.world.waiting()
        for driver in self.drivers:
            driver.release()
        self.no_event_overtakes_another_of_its_sequence()
        self.nothing_unconfirmed_is_stored()
        skipped = {skip.position for skip in self.tracker.skipped()}
        for partition in layout(2):
            assert self.world.stored(partition) == self.store.head()
            own = {position for position, each in self.subjects.items() if SUBJECTS[each] == partition} - skipped
            for disk in self.disks:
                assert disk.events[partition] >= own
        if self.mixed:
            assert set(self.rows) == self.subjects.keys() - skipped


Checkpoints.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestCheckpoints = Checkpoints.TestCase

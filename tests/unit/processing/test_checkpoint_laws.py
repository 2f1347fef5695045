"""What holds for checkpoints whatever happens: crashes, slow, stuck and lying participants, handlers that fail.

No event that a participant has not confirmed is ever at or before the stored position.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.participants import FIRST, GROUP, SECOND, World

from opencqrs_py import (
    LATEST,
    CheckpointParticipant,
    CheckpointTrigger,
    Event,
    InMemoryEventStore,
    InMemoryProgressTracker,
    NoRetry,
    ProcessingContext,
    checkpointing,
    event_handling,
)
from opencqrs_py.model import Partition, layout
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.testing import FakeClock

BEHAVIOURS = ["flushes", "latest", "lies", "half", "stuck", "raises", "nothing"]
SUBJECTS = {FIRST: Partition(2, 0), SECOND: Partition(2, 1)}


class Disk:
    """What a participant has made durable, by partition: it outlives crashes."""

    def __init__(self) -> None:
        self.events: dict[Partition, set[int]] = defaultdict(set)
        self.behaviour = "flushes"
        self.claim_fails = False


@checkpointing(GROUP)
class Writer(CheckpointParticipant):
    """Keeps events in memory until a checkpoint; how it behaves is on its disk."""

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
    def handle(self, raw: Event, context: ProcessingContext) -> None:
        if context.position in self.poison:
            raise OSError("poison")
        memory = self.memory[context.partition]
        memory.append(context.position)

    def on_checkpoint(self, partition: Partition, requested: int) -> Any:
        memory, disk = self.memory[partition], self.disk
        match disk.behaviour:
            case "raises":
                raise OSError("disk full")
            case "nothing":
                return None
            case "half":  # what is durable is said as it is
                done = memory[: len(memory) // 2]
            case "stuck":
                done = []
            case _:
                done = list(memory)
        disk.events[partition].update(done)
        self.memory[partition] = memory = memory[len(done) :]
        if memory:
            return memory[0] - 1
        return {"latest": LATEST, "lies": requested + 1_000}.get(disk.behaviour, requested)

    def on_partition_closed(self, partition: Partition) -> None:
        self.memory.pop(partition, None)
        self.triggers.pop(partition, None)


class Checkpoints(RuleBasedStateMachine):
    """A group of two partitions, moved by hand."""

    @initialize(
        writers=st.integers(1, 3),
        mixed=st.booleans(),
        skips=st.booleans(),
        batch_size=st.sampled_from([None, 1, 3]),
    )
    def begin(self, writers: int, *, mixed: bool, skips: bool, batch_size: int | None) -> None:
        self.disks = [Disk() for _ in range(writers)]
        self.poison: set[int] = set()
        self.store, self.tracker, self.clock = InMemoryEventStore(), InMemoryProgressTracker(), FakeClock()
        self.mixed, self.skips, self.batch_size = mixed, skips, batch_size
        self.owners: dict[int, Partition] = {}
        self.rows: list[int] = []
        self.before: dict[str, int] = {}
        self._start()

    def _start(self) -> None:
        self.writers = [Writer(disk, self.poison) for disk in self.disks]

        @event_handling(GROUP, types=["*"])
        def note(raw: Event) -> None:
            self.rows.append(raw.position)

        self.world = World(
            self.tracker,
            *[writer.handle for writer in self.writers],
            *([note] if self.mixed else []),
            partitions=2,
            batch_size=self.batch_size,
            back_off=NoRetry() if self.skips else FixedBackOff(1.0),
            store=self.store,
            clock=self.clock,
        )
        self.drivers = self.world.claimed()

    @rule(subjects=st.lists(st.sampled_from(sorted(SUBJECTS)), min_size=1, max_size=8))
    def append(self, subjects: list[str]) -> None:
        first = self.store.head() + 1
        self.world.append(*subjects)
        self.owners |= {position: SUBJECTS[subject] for position, subject in enumerate(subjects, first)}

    @rule(number=st.integers(0, 1), times=st.integers(1, 3))
    def step(self, number: int, times: int) -> None:
        driver = self.drivers[number]
        for _ in range(times):
            if driver.wait() == 0 and not driver.over:
                driver.step()

    @rule(seconds=st.sampled_from([0.5, 2, 70]))
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

    @precondition(lambda self: self.store.head() and not self.poison)
    @rule(back=st.integers(0, 5))
    def poison_event(self, back: int) -> None:
        self.poison.add(max(1, self.store.head() - back))

    @precondition(lambda self: self.poison)
    @rule()
    def heal(self) -> None:
        self.poison.clear()

    @rule()
    def crash(self) -> None:
        """The process ends without a word: what was in memory is gone."""
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
        skipped = {skip.position for skip in self.tracker.skipped()}
        stored = self.world.stored_of_all()
        for position, partition in self.owners.items():
            if position <= stored.get(str(partition), 0) and position not in skipped:
                for disk in self.disks:
                    assert position in disk.events[partition], f"{position} is stored and not durable"
        for partition, position in stored.items():
            assert position >= self.before.get(partition, 0), "progress has gone back"
        self.before = dict(stored)

    def teardown(self) -> None:
        """When all is well again, everything is handled and durable."""
        if not hasattr(self, "world"):
            return
        self.poison.clear()
        for disk in self.disks:
            disk.behaviour, disk.claim_fails = "flushes", False
        self.clock.advance(100)
        self.world.until_idle(*self.drivers)
        for driver in self.drivers:
            driver.release()
        self.nothing_unconfirmed_is_stored()
        skipped = {skip.position for skip in self.tracker.skipped()}
        for partition in layout(2):
            assert self.world.stored(partition) == self.store.head()
            own = {position for position, owner in self.owners.items() if owner == partition} - skipped
            for disk in self.disks:
                assert disk.events[partition] >= own
        if self.mixed:
            assert set(self.rows) == self.owners.keys() - skipped


Checkpoints.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestCheckpoints = Checkpoints.TestCase

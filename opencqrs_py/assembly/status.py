"""How far groups are, and how a run ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from opencqrs_py.control.records import TaskLoad
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import PartitionStatus, ProcessorState


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What one live node has in hand on Spark, of all groups that it can run there.

    Attributes:
        node: Its name.
        load: What it has in hand, as of its last heartbeat; of this process, as of now.
        id: Its id; empty for a process that uses no leases.
    """

    node: str
    load: TaskLoad
    id: str = ""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How far a group is.

    Attributes:
        group: Processing group.
        head: Position of the newest event in the store; ``None`` if the store has not answered.
        partitions: What is known of each partition; empty before the first run.
        lag_seconds: By partition: the age of the oldest event that it has not handled, in seconds, 0 if there is none;
            ``None`` if that event has no time, or the store has not answered.
        events_per_second: By partition: how many events of the log it passed in a second, between two polls; ``None``
            where there was only one.
        nodes_on_spark: The live nodes that can run the group on Spark, with what they have in hand.
        record: Where the group began, and how its handlers have changed; ``None`` if that is not known.
    """

    group: str
    head: int | None
    partitions: tuple[PartitionStatus, ...]
    lag_seconds: Mapping[Partition, float | None] = field(default_factory=dict)
    events_per_second: Mapping[Partition, float | None] = field(default_factory=dict)
    nodes_on_spark: tuple[NodeLoad, ...] = ()
    record: GroupRecord | None = None

    @property
    def lag(self) -> int | None:
        """Positions between the head and the slowest partition, at least 0; ``None`` if the head is not known."""
        return self.lag_at(min((p.position for p in self.partitions), default=0))

    def lag_at(self, position: int) -> int | None:
        """Return the lag of a partition at a position; ``None`` if the head is not known."""
        return None if self.head is None else max(0, self.head - position)


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """How far the replay of a partition is.

    Attributes:
        start: Position after which it began.
        until: Position at which it ends.
        percent: How much is done, 0 to 100, by positions.
        events_per_second: How many events of the log it passes in a second: between two polls, or since the reset;
            ``None`` if that is not known.
        seconds_left: Until it ends at that rate; ``None`` if that is not known.
    """

    start: int
    until: int
    percent: float
    events_per_second: float | None
    seconds_left: float | None

    @classmethod
    def of(cls, status: PartitionStatus, rate: float | None, now: datetime) -> ReplayProgress | None:
        """Return how far a partition is, with its rate as measured between two looks; ``None`` without a replay."""
        if status.replay is None:
            return None
        start, until = status.replay.reset.position, status.replay.until
        done, since = status.position - start, now - datetime.fromisoformat(status.replay.reset.reset_at)
        if rate is None and done > 0 and since.total_seconds() > 0:
            rate = round(done / since.total_seconds(), 3)
        left = max(0, until - status.position)
        seconds = round(left / rate, 1) if rate else None
        return cls(start, until, round(min(100.0, 100 * done / (until - start)), 1), rate, seconds)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        partitions: Status of each partition.
        handled: Events handled by each partition in this run.
        skipped: Events whose attempts were exhausted in this run.
        parked: Events of its groups that wait in the inbox.
        failed_runs: Runs of jobs that have failed in this run, with no attempt left.
        stopped: Whether ``stop`` in another thread, or an interrupt, has ended it: its work may be incomplete.
        expired: Events that were removed from the inbox unhandled in this run, as they had expired.
    """

    partitions: tuple[PartitionStatus, ...]
    handled: Mapping[tuple[str, Partition], int]
    skipped: int = 0
    parked: int = 0
    failed_runs: int = 0
    stopped: bool = False
    expired: int = 0

    @property
    def failed(self) -> bool:
        """Whether a processor failed, or lost its partition to another process; or a run of a job failed.

        After a stop, an error does not count: its event is tried again at the next start.
        """
        return self.failed_runs > 0 or any(
            p.state is ProcessorState.FAILED or (p.error and not self.stopped) for p in self.partitions
        )

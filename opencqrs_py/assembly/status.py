"""How far groups are, and how a run ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opencqrs_py.control.records import TaskLoad
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import PartitionStatus, ProcessorState


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What one node that lives has in hand on Spark, of all groups that it can run there.

    Attributes:
        node: Its name.
        load: What it has in hand, as of its last heartbeat; of this process, as of now.
        id: Its id; empty for a process that leases lead nothing in.
    """

    node: str
    load: TaskLoad
    id: str = ""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How far a group is.

    Attributes:
        group: Processing group.
        head: Position of the newest event in the store.
        partitions: What is known of each partition; empty before the first run.
        lag_seconds: By partition: the age of the oldest event that it has not handled, in seconds, 0 if there is none;
            ``None`` if that event has no time.
        events_per_second: By partition: how many events of the log it passed in a second, between two looks; ``None``
            where only one was taken.
        nodes_on_spark: The nodes that live and can run the group on Spark, with what they have in hand.
        record: Where the group began, and how its handlers have changed; ``None`` if that is not known.
    """

    group: str
    head: int
    partitions: tuple[PartitionStatus, ...]
    lag_seconds: Mapping[Partition, float | None] = field(default_factory=dict)
    events_per_second: Mapping[Partition, float | None] = field(default_factory=dict)
    nodes_on_spark: tuple[NodeLoad, ...] = ()
    record: GroupRecord | None = None

    @property
    def lag(self) -> int:
        """Positions between the head and the slowest partition, at least 0."""
        return max(0, self.head - min((p.position for p in self.partitions), default=0))


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        partitions: Where each partition stands.
        handled: Events handled by each partition in this run.
        skipped: Events whose attempts were exhausted in this run.
        parked: Events of its groups that wait in the inbox.
    """

    partitions: tuple[PartitionStatus, ...]
    handled: Mapping[tuple[str, Partition], int]
    skipped: int = 0
    parked: int = 0

    @property
    def failed(self) -> bool:
        """Whether a processor failed, or lost its partition to another process."""
        return any(p.state is ProcessorState.FAILED or p.error for p in self.partitions)

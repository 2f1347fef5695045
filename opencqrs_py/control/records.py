"""The records of the control tables: nodes, leases, and requests for groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from opencqrs_py.model.partition import Partition


class GroupPartition(NamedTuple):
    """A partition of a group, by which leases are known."""

    group: str
    partition: Partition

    def __str__(self) -> str:
        return f"{self.group} {self.partition}"


class Wanted(StrEnum):
    """What is requested for a group or one of its partitions. It outlives the processes that carry it out."""

    STARTED = "started"
    STOPPED = "stopped"
    PAUSED = "paused"  # for a command that starts it again when it is done


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """What identifies a process on one machine, even after its number is reused.

    Attributes:
        boot: The machine's boot id; empty if it is not known, and then nothing can be proved.
        namespace: The PID namespace, in which the number counts.
        pid: The process's number.
        started: When it began, in clock ticks since the boot.
    """

    boot: str
    namespace: str
    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class Runnable:
    """A group that a node can run.

    Attributes:
        modulus: How many partitions the group is to have, by the settings of the node.
        fingerprint: What identifies the group's handlers.
        starts: Whether the node starts it unless a command says otherwise.
        exclusive: Whether the node runs either all of its partitions or none.
        most: Most of its partitions that the node takes, at least 1; ``None``: all.
    """

    modulus: int
    fingerprint: str = ""
    starts: bool = True
    exclusive: bool = False
    most: int | None = None


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """What a node has in hand of the groups that it runs by tasks, on Spark.

    Attributes:
        tasks: How many tasks of each group are under way, by the group's name.
        slots: How many tasks Spark runs at once; 0 until it is ready.
        executors: How many executors a cluster has given it; ``None`` until Spark is ready, and with a local master.
        handled_by_driver: Events that the driver handled itself before Spark took over.
    """

    tasks: Mapping[str, int] = field(default_factory=dict)
    slots: int = 0
    executors: int | None = None
    handled_by_driver: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A process that runs processors, from its start to its end. A process that lost its leases comes back as another.

    Attributes:
        id: Unique among all nodes that ever were.
        name: Its name for people, ``host:pid`` by default.
        process: What identifies its process.
        groups: The groups that it can run, by name. It is assigned nothing else.
        most: Most partitions that it takes in all, at least 1; ``None``: no limit.
        started_at: ISO 8601 time.
        lease_seconds: How long its leases last; 0 if unknown.
        load: What it has in hand on Spark, as of a heartbeat; ``None`` if it runs no group there, or that is unknown.
        jobs: The jobs that it runs, by name, each with what identifies its schedule; empty for one without.
    """

    id: str
    name: str
    process: ProcessIdentity
    groups: Mapping[str, Runnable] = field(default_factory=dict)
    most: int | None = None
    started_at: str = ""
    lease_seconds: float = 0.0
    load: TaskLoad | None = None
    jobs: Mapping[str, str] = field(default_factory=dict)

    def can_run(self, key: GroupPartition) -> bool:
        """Return whether it can run a partition."""
        return key.group in self.groups


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as others see it.

    Attributes:
        node: The node.
        seconds_left: How long its leases last without another heartbeat; 0 or less: they have ended.
        alive: Whether it holds its leases.
    """

    node: Node
    seconds_left: float
    alive: bool


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of a node to work on a partition.

    Attributes:
        key: The partition.
        node: Id of the node that has it; empty if none has.
        term: How often its holder changed.
        since: ISO 8601 time at which the node took it; empty if none has it.
        avoids: Id of the node that is not to have it for a while; empty for none.
    """

    key: GroupPartition
    node: str = ""
    term: int = 0
    since: str = ""
    avoids: str = ""


@dataclass(frozen=True)
class ControlView:
    """The contents of the control tables at one moment.

    Attributes:
        nodes: Every known node, including crashed ones, by start.
        leases: The lease of each partition of the groups that a node has ever been able to run.
        wanted: What is requested for whole groups, by name; missing groups have no command.
        wanted_partitions: What is requested for single partitions, which takes precedence.
        now: The time in UTC, by the store's clock; ``None`` if that is this machine's.
    """

    nodes: tuple[NodeRecord, ...] = ()
    leases: tuple[Lease, ...] = ()
    wanted: Mapping[str, Wanted] = field(default_factory=dict)
    wanted_partitions: Mapping[GroupPartition, Wanted] = field(default_factory=dict)
    now: datetime | None = field(default=None, compare=False)

    def without(self, has_ended: Callable[[ProcessIdentity], bool], but: str = "") -> ControlView:
        """Return the view with those nodes as dead whose processes have ended; the node with the id ``but`` lives."""
        ended = {
            record.node.id
            for record in self.nodes
            if record.alive and record.node.id != but and has_ended(record.node.process)
        }
        nodes = (replace(each, alive=False) if each.node.id in ended else each for each in self.nodes)
        return replace(self, nodes=tuple(nodes)) if ended else self

    @property
    def alive(self) -> dict[str, Node]:
        """The nodes that hold their leases, by id."""
        return {record.node.id: record.node for record in self.nodes if record.alive}

    @property
    def schedules(self) -> dict[str, str]:
        """The schedule of each job that live nodes run: the last started node decides."""
        youngest = sorted(self.alive.values(), key=lambda node: (node.started_at, node.id))
        return {job: schedule for node in youngest for job, schedule in node.jobs.items()}

    def record_of(self, node: str) -> NodeRecord | None:
        """Return what is known of the node with this id."""
        return next((record for record in self.nodes if record.node.id == node), None)

    def owner_of(self, lease: Lease) -> Node | None:
        """Return the node that holds a lease, ``None`` if none does."""
        return self.alive.get(lease.node)

    def commanded(self, key: GroupPartition) -> Wanted | None:
        """Return what a command requests for a partition: its own, else its group's; ``None`` without one."""
        return self.wanted_partitions.get(key) or self.wanted.get(key.group)

    def wanted_of(self, key: GroupPartition, *, starts: bool = False) -> Wanted:
        """Return what is requested for a partition: by its own command, else its group's, else by its nodes.

        Without a command and a live node ``starts`` decides: whether the next node starts the group.
        """
        commanded = self.commanded(key)
        if commanded is not None:
            return commanded
        able = [node.groups[key.group] for node in self.alive.values() if key.group in node.groups]
        started = any(runnable.starts for runnable in able) if able else starts
        return Wanted.STARTED if started else Wanted.STOPPED

"""Engines, and the groups that they run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from opencqrs_py.control.records import GroupPartition, TaskLoad
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.group_records import RecordRule
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.ports import BackOff
from opencqrs_py.processing.supervision import SupervisedPartition

Parts_co = TypeVar("Parts_co", covariant=True)


class Recipe(Hashable, Protocol[Parts_co]):
    """Builds the parts of a group or a job in another process. Pickled on the driver, called once per Spark worker."""

    def __call__(self) -> Parts_co:
        """Build them."""
        ...


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class GroupRun:
    """A group whose partitions may be assigned to an engine.

    Attributes:
        processing: Its parts in this process.
        partitions: All its partitions at the start; a command may change them.
        initial: Returns the position at which partitions without progress start.
        back_off: Waits between an event's attempts.
        on_exhausted: What happens to an event whose attempts are exhausted.
        prepare: Runs the group's ``@on_start`` functions in one transaction.
        recipe: Builds the same parts in another process, for engines with several.
        on_undecodable: What happens to an event that cannot be decoded.
        record: How the group's record is kept; ``None``: not at all.
        most_at_once: Most partitions handled at the same time, on Spark most tasks; ``None``: as many as
            the engine can.
        hold: Seconds for which a Spark task keeps a partition, if the group has participants.
        rebuilding: Whether it fills the tables of a rebuild: the swap takes its partitions, which is not logged.
        ticks_at_once: Whether a tick of a scheduled group is begun after each claim, whatever the schedule.
    """

    processing: GroupProcessing
    partitions: tuple[Partition, ...]
    initial: Callable[[], int]
    back_off: BackOff
    on_exhausted: OnExhausted
    prepare: Callable[[], None] = _nothing
    recipe: Recipe[GroupProcessing] | None = None
    on_undecodable: OnExhausted = OnExhausted.STOP
    record: RecordRule | None = None
    most_at_once: int | None = None
    hold: float = 30.0
    rebuilding: bool = False
    ticks_at_once: bool = False

    @property
    def group(self) -> str:
        """The group's name."""
        return self.processing.group


class Engine(Protocol):
    """Drives the partitions that it is assigned until they are released.

    Partitions assigned before ``start`` are claimed and wait for it, so that nothing is handled if a later claim fails.
    """

    def assign(self, group: str, partitions: Sequence[Partition]) -> None:
        """Claim partitions of a group, from other owners if necessary, and drive them. Those assigned already stay so.

        Raises:
            ValueError: For an unknown group or partition.
            EngineError: If the engine cannot run on this machine.
            EventStoreError: If the group's progress does not fit its configuration.
        """
        ...

    def start(self) -> None:
        """Start driving the assigned partitions.

        Raises:
            EngineError: If the engine cannot run on this machine.
        """
        ...

    def release(self, group: str, partitions: Sequence[Partition], patience: float) -> None:
        """Finish the events in hand, for at most ``patience`` seconds, and release the partitions. Others continue.

        What is not released in time is released as soon as its events are finished.

        Raises:
            ValueError: For an unknown group or partition.
        """
        ...

    def assigned(self) -> Collection[GroupPartition]:
        """Return the partitions of the engine: assigned, not completely released, and not lost to others."""
        ...

    def warm_up(self) -> None:
        """Start whatever is slow to start, so that partitions are driven as soon as they are assigned.

        Raises:
            EngineError: If the engine cannot run on this machine.
        """
        ...

    def check(self) -> None:
        """Raise the error that ended the engine, if one did."""
        ...

    def stop(self, patience: float) -> None:
        """Finish the events in hand, for at most ``patience`` seconds, and release everything. Idempotent."""
        ...

    def partitions(self) -> Sequence[SupervisedPartition]:
        """Return the state of every partition that the engine has or had."""
        ...


@runtime_checkable
class RunsTasks(Protocol):
    """An engine that runs its partitions by tasks, and shows its load."""

    def task_load(self) -> TaskLoad:
        """Return its load now. Called at each heartbeat, so it does not block."""
        ...


@runtime_checkable
class StoresSoon(Protocol):
    """An engine that stores progress over events of others in quiet moments, and sooner while a caller waits for it."""

    def hasten(self, group: str) -> None:
        """Store the progress of a group without delay for a while. Does not block."""
        ...


@runtime_checkable
class BeginsStop(Protocol):
    """An engine whose stop can be requested before it is waited for, so that several engines stop at the same time."""

    def begin_stop(self) -> None:
        """Begin nothing more; ``stop``, which follows, waits for the current work. Does not wait itself.

        Tasks on the executors of a cluster cannot be notified: they continue until their time is over, or ``stop``
        cancels them.
        """
        ...


@runtime_checkable
class EndsClaims(Protocol):
    """An engine whose claims can be ended before it is stopped, as a claim may wait for the end of an outage."""

    def end_claims(self) -> None:
        """Claim nothing from now on, as after ``stop``: a waiting ``assign`` returns. Driven partitions continue."""
        ...


@runtime_checkable
class EndsAsAWhole(Protocol):
    """An engine that an error may end for all of its partitions, as when Spark is lost; ``check`` raises that error."""

    def has_ended(self) -> bool:
        """Return whether an error has ended it: it handles nothing more, whatever it is assigned."""
        ...


def end_claims(engine: object) -> None:
    """Have an engine claim nothing from now on, if it can do so before it is stopped."""
    if isinstance(engine, EndsClaims):
        engine.end_claims()


def begin_stops(engines: Sequence[Engine]) -> list[Engine]:
    """Request all engines to stop; return them in the order in which to wait for them.

    Engines without ``begin_stop`` come first, so the others stop in the meantime.
    """
    for engine in engines:
        if isinstance(engine, BeginsStop):
            engine.begin_stop()
    return sorted(engines, key=lambda engine: isinstance(engine, BeginsStop))


def hasten(engine: object, group: str) -> None:
    """Have an engine store the progress of a group without delay, if it does not do so anyway."""
    if isinstance(engine, StoresSoon):
        engine.hasten(group)


def engine_has_ended(engine: object) -> bool:
    """Return whether an error has ended an engine for all of its partitions."""
    return isinstance(engine, EndsAsAWhole) and engine.has_ended()


def load_of(engines: Iterable[Engine]) -> TaskLoad | None:
    """Return the load of a node's engine that runs tasks; ``None`` if none does."""
    return next((engine.task_load() for engine in engines if isinstance(engine, RunsTasks)), None)

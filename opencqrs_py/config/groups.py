"""The settings of a processing group, each with its type, built-in default and description.

A group inherits from the standard, which inherits from what is built in; see :mod:`opencqrs_py.config.inheritance`.
These values travel to Spark's workers: they import nothing heavy, pickle, and compare by content.

Source:
    OpenCQRS reference, "Event Handling Processor Settings", and this package's added settings. There, a reference in
    the standard overrides the group's own setting (a known flaw), which this package does not copy.
"""

# ruff: noqa: RUF009 `setting` returns the field of a dataclass

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, TypeAlias

from annotated_types import Ge

from opencqrs_py.config.choices import (
    Checkpointing,
    Controller,
    Engine,
    Interval,
    LiveDuringRebuild,
    Mode,
    Resolution,
    RetryPolicy,
    Tracking,
)
from opencqrs_py.config.inheritance import AtLeastOne, Family, Inherited, InheritedSection, LeafName, setting
from opencqrs_py.config.value_types import (
    Attempts,
    Cron,
    Duration,
    EndlessDuration,
    Jitter,
    Multiplier,
    Name,
    PartitionCount,
    Position,
    Subject,
    TotalAttempts,
    Zone,
)
from opencqrs_py.model.choices import BatchMode, BatchOrder, OnBatchExhausted, OnChangedHandlers, OnExhausted, OnLost

if TYPE_CHECKING:
    from opencqrs_py.config.settings import Settings


@dataclass(frozen=True, slots=True, repr=False)
class FetchSettings(InheritedSection):
    """Which events a group reads."""

    subject: Subject = setting("/", "Subject at or below which events are read.")
    recursive: bool = setting(default=True, description="Whether the subjects below are read too.")
    initial_position: Position = setting(
        "tail", "Where a new group starts: tail (oldest event), head (after newest), time, time ago (-P7D), position."
    )


@dataclass(frozen=True, slots=True, repr=False)
class LeaseSettings(InheritedSection):
    """How long a process keeps its partitions without a heartbeat. The shortest values of a process' groups apply."""

    duration: Annotated[Duration, Ge(1)] = setting(10.0, "Time after which the partitions of a lost process are free.")
    heartbeat: Annotated[Duration, Ge(0.1)] = setting(3.0, "Time between two extensions; at most half the duration.")


@dataclass(frozen=True, slots=True, repr=False)
class LifeCycleSettings(InheritedSection):
    """When and how often a group runs."""

    auto_start: bool = setting(default=True, description="Whether the group starts with the application.")
    controller: Controller | None = setting(
        None,
        "How partitions are assigned: leader_election shares them among processes, with application_context a process "
        "has all or none. Unset: leader_election when the progress is in SQL or there is a lock registry, else "
        "application_context.",
    )
    controller_registration: Name | None = setting(
        None, "Name of the provider that makes what starts and stops each partition, and replaces the controller."
    )
    lock_registry: Name | None = setting(None, "Name of the provider of leader locks: leader election with it.")
    partitions: PartitionCount = setting(1, "How many partitions the group starts with.")
    max_partitions_per_node: AtLeastOne | None = setting(
        None, "Most partitions of the group that one process takes. Unset: all."
    )
    lease: LeaseSettings = setting(LeaseSettings(), "How long partitions are held.")


@dataclass(frozen=True, slots=True, repr=False)
class ProgressSettings(InheritedSection):
    """Where a group keeps its progress."""

    tracking: Tracking | None = setting(
        None, "Kind of tracker. Unset: sql when there is exactly one database, else in_memory."
    )
    tracker_ref: Name | None = setting(None, "Name of the provider that replaces the tracker.")
    on_lost: OnLost = setting(
        OnLost.REFUSE, "Whether a group whose progress is gone is refused, or begins again at its initial position."
    )


@dataclass(frozen=True, slots=True, repr=False)
class SequenceSettings(InheritedSection):
    """What a group handles in order; ``resolution`` is ``None`` when ``resolver_ref`` replaces it."""

    resolution: Resolution | None = setting(
        Resolution.PER_SECOND_LEVEL_SUBJECT, "Which events must be handled in order."
    )
    resolver_ref: Name | None = setting(None, "Name of the provider that replaces the resolution.")
    level: AtLeastOne | None = setting(
        None, "Levels of the subject that identify the sequence, with resolution per_level_subject."
    )
    data_field: Name | None = setting(
        None, "Field of the data that identifies the sequence, with resolution per_data_field; dots lead into objects."
    )
    metadata_key: Name | None = setting(
        None, "Key of the metadata that identifies the sequence, with resolution per_metadata_key."
    )


@dataclass(frozen=True, slots=True, repr=False)
class RetrySettings(InheritedSection):
    """What happens when an event fails. Durations are seconds, ``math.inf`` and no attempts mean no limit.

    ``policy`` is ``None`` when ``back_off_ref`` replaces it.
    """

    policy: RetryPolicy | None = setting(
        RetryPolicy.EXPONENTIAL_BACKOFF, "How the waits between attempts follow each other."
    )
    back_off_ref: Name | None = setting(None, "Name of the provider of waits that replaces the policy.")
    initial_interval: Duration = setting(2.0, "First wait; with policy fixed, every wait.")
    max_interval: Duration = setting(30.0, "Longest wait.")
    max_elapsed_time: EndlessDuration = setting(math.inf, "Sum of waits after which an event's attempts are exhausted.")
    multiplier: Multiplier = setting(1.5, "Each wait divided by the one before it.")
    max_attempts: Attempts = setting(None, "How often an event is tried again.")
    on_exhausted: OnExhausted = setting(
        OnExhausted.SKIP,
        "What happens to an event whose attempts are exhausted: skip it, stop its partition, or park it in the inbox.",
    )
    on_undecodable: OnExhausted = setting(
        OnExhausted.STOP, "What happens to an event whose data cannot be decoded for a handler."
    )
    jitter: Jitter = setting(0.0, "How much of each wait is left out at most, at random.")


@dataclass(frozen=True, slots=True, repr=False)
class ParkRetrySettings(InheritedSection):
    """When a parked event is tried again. Durations are seconds, no attempts mean no limit."""

    initial_interval: Duration = setting(30.0, "Wait before the first attempt of a parked event.")
    max_interval: Duration = setting(3_600.0, "Longest wait.")
    multiplier: Multiplier = setting(2.0, "Each wait divided by the one before it.")
    max_attempts: Attempts = setting(5, "How often it is tried; after that it waits for a person.")


@dataclass(frozen=True, slots=True, repr=False)
class ParkSettings(InheritedSection):
    """What waits in the inbox: events that were parked, and later ones of their sequences."""

    max_sequences: AtLeastOne = setting(1_024, "Most sequences of the group that wait; with more the partition fails.")
    max_sequence_size: AtLeastOne = setting(1_024, "Most events of a sequence that wait; with more, likewise.")
    retry: ParkRetrySettings = setting(ParkRetrySettings(), "When a parked event is tried again.")


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleRetrySettings(InheritedSection):
    """When an event of a scheduled group is tried again. Durations are seconds, no attempts mean no limit."""

    initial_interval: Duration = setting(60.0, "Wait after the first attempt that has failed.")
    max_interval: Duration = setting(10_800.0, "Longest wait.")
    multiplier: Multiplier = setting(2.0, "Each wait divided by the one before it.")
    max_attempts: TotalAttempts = setting(100, "Attempts in all, after which the event is exhausted.")


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleSettings(InheritedSection):
    """When a scheduled group handles the events that wait. ``interval`` is ``None`` when ``cron`` replaces it."""

    initial_delay: Duration = setting(10.0, "Time until the first tick, after a process has taken a partition.")
    interval: Annotated[Duration, Ge(0.01)] | None = setting(6.0, "Time between two ticks.")
    kind: Interval = setting(
        Interval.FIXED_DELAY, "Whether the interval counts from the end of a tick, or from its beginning."
    )
    cron: Cron | None = setting(None, "Cron expression that replaces delay and interval.")
    time_zone: Zone = setting("UTC", "Time zone of the cron expression.")
    error_grace_period: Duration = setting(
        0.0, "How long after its arrival an event's failures use no attempt: it is tried at each tick."
    )
    expires_after: Annotated[EndlessDuration, Ge(0.01)] = setting(
        math.inf, "How long after its arrival an event is tried; then it is removed."
    )
    on_exhausted: OnBatchExhausted = setting(
        OnBatchExhausted.BLOCK,
        "What happens to an event whose attempts are used up: it waits for a person, or is skipped.",
    )
    retry: ScheduleRetrySettings = setting(ScheduleRetrySettings(), "When an event is tried again.")


@dataclass(frozen=True, slots=True, repr=False)
class BatchSettings(InheritedSection):
    """The waiting events of a sequence of a scheduled group, which are handled together.

    ``ordering`` is ``None`` when ``ordering_ref`` replaces it.
    """

    mode: BatchMode = setting(
        BatchMode.FAIL_FIRST, "Whether the others of a batch wait for an event that has failed, or each is tried."
    )
    size: AtLeastOne | None = setting(None, "Most events of a sequence in a tick. Unset: all.")
    ordering: BatchOrder | None = setting(BatchOrder.INSERTED, "In which order its events are handled.")
    ordering_ref: Name | None = setting(
        None, "Name of the provider of a function from an event to its sort key, which replaces the ordering."
    )
    fetch_size: AtLeastOne = setting(1_000, "Most events that are read at once.")


@dataclass(frozen=True, slots=True, repr=False)
class ProcessingSettings(InheritedSection):
    """What runs a group, and in which chunks."""

    engine: Engine = setting(Engine.SPARK, "What runs the processors of the group.")
    mode: Mode = setting(
        Mode.STREAMING, "Whether events are handled as they come, or wait in the inbox for a schedule."
    )
    batch_size: AtLeastOne | None = setting(None, "Most events in one transaction. Unset: chosen from the handlers.")
    handler_warn_after: Annotated[EndlessDuration, Ge(0.1)] = setting(
        30.0, "Time after which a call of a handler is reported by a warning; the next comes at twice the time."
    )
    handler_timeout: Annotated[EndlessDuration, Ge(0.1)] = setting(
        math.inf, "How long a call of a handler may take; after that its event has failed."
    )
    on_changed_handlers: OnChangedHandlers = setting(
        OnChangedHandlers.WARN, "What happens at a start if different handlers have built the read model up to here."
    )


@dataclass(frozen=True, slots=True, repr=False)
class RebuildSettings(InheritedSection):
    """How the group is rebuilt beside the running one."""

    tables: tuple[str, ...] = setting(
        (), "Tables of the group that no @on_start makes, such as those of migrations: they are made again, empty."
    )
    shared_tables: tuple[str, ...] = setting(
        (), "Tables that the group only reads: they appear in the rebuild as they are, and cannot be written there."
    )
    run_all_handlers: bool = setting(
        default=False, description="Whether handlers that do not ask for the transaction are called in a rebuild, too."
    )
    live: LiveDuringRebuild = setting(
        LiveDuringRebuild.PAUSE, "What processes with the handlers of an unfinished rebuild do with the old tables."
    )
    max_events_per_second: AtLeastOne | None = setting(
        None, "Most events of the log that a rebuild passes in a second, all partitions together. Unset: no limit."
    )
    max_tasks: AtLeastOne | None = setting(
        None, "Most partitions that a rebuild handles at once, on Spark most tasks. Unset: as many as the engine can."
    )


@dataclass(frozen=True, slots=True, repr=False)
class CheckpointingSettings(InheritedSection):
    """When the progress of a group with participants is stored: classes that confirm what is durable."""

    mode: Checkpointing = setting(
        Checkpointing.AUTO,
        "When: deferred, once a participant requests it; auto, deferred if all handlers are participants', else with "
        "each chunk; require-deferred, deferred, and other handlers are refused.",
    )
    timeout: Annotated[Duration, Ge(0.01)] = setting(30.0, "How long participants have to answer.")
    hold: Annotated[Duration, Ge(0.1)] = setting(
        30.0, "On Spark, how long a task has a partition of a group with participants before it releases it."
    )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class GroupSettings(InheritedSection):
    """The settings of a processing group, or the standard for all groups."""

    fetch: FetchSettings = setting(FetchSettings(), "Which events are read.")
    life_cycle: LifeCycleSettings = setting(LifeCycleSettings(), "When and how often the group runs.")
    progress: ProgressSettings = setting(ProgressSettings(), "Where the progress is kept.")
    sequence: SequenceSettings = setting(SequenceSettings(), "Which events are handled in order.")
    retry: RetrySettings = setting(RetrySettings(), "What happens when an event fails.")
    park: ParkSettings = setting(ParkSettings(), "What waits in the inbox.")
    schedule: ScheduleSettings = setting(ScheduleSettings(), "When a scheduled group handles what waits.")
    batch: BatchSettings = setting(BatchSettings(), "What a scheduled group handles together.")
    processing: ProcessingSettings = setting(ProcessingSettings(), "What runs the group.")
    rebuild: RebuildSettings = setting(RebuildSettings(), "How the group is rebuilt while it runs.")
    checkpointing: CheckpointingSettings = setting(CheckpointingSettings(), "How handlers report what is durable.")


@dataclass(frozen=True, slots=True, repr=False)
class EffectiveGroup(GroupSettings):
    """Every setting of the processing group ``name`` as it applies; by default, the built-in ones.

    ``set_leaves`` are those that a source sets, for choices that depend on other parts when they are not set.
    ``origins`` are the places of those that are checked when the group starts. Neither makes another group of two that
    have the same values.
    """

    name: str
    set_leaves: frozenset[LeafName] = field(default=frozenset(), compare=False)
    origins: Mapping[LeafName, object] = field(default_factory=dict, compare=False)

    def place_of(self, *leaf: str) -> str:
        """Return a setting of the group as messages name it, with its origin if a source sets it."""
        path, origin = ".".join(leaf).replace("_", "-"), self.origins.get(leaf)
        return f"{path} ({origin})" if origin else path


SECTIONS = tuple(section.name for section in fields(GroupSettings))

GROUP_FAMILY = Family(
    named=("event_handling", "groups"),
    standard=("event_handling", "standard"),
    built_in=GroupSettings(),
    replacements=(
        (("progress", "tracking"), ("progress", "tracker_ref")),
        (("sequence", "resolution"), ("sequence", "resolver_ref")),
        (("retry", "policy"), ("retry", "back_off_ref")),
        (("life_cycle", "controller"), ("life_cycle", "controller_registration")),
        (("schedule", "interval"), ("schedule", "cron")),
        (("batch", "ordering"), ("batch", "ordering_ref")),
    ),
    # A lock registry is part of leader election, and does not replace it; it and the application context exclude each
    # other. On one level, the context applies, so that a named registry can be switched off.
    ruled_out=((("life_cycle", "controller"), Controller.APPLICATION_CONTEXT, ("life_cycle", "lock_registry")),),
)
"""The settings of all groups, and how each is inherited."""

_CHECKED_LATER = {  # not when settings are read
    ("fetch", "initial_position"),
    ("sequence", "resolution"),
    ("sequence", "resolver_ref"),
    ("batch", "ordering_ref"),
}
OriginOf: TypeAlias = Callable[[LeafName, Mapping[LeafName, Inherited]], object]


def effective_group(settings: "Settings", name: str, origin_of: OriginOf | None = None) -> EffectiveGroup:
    """Return every setting of the group ``name``, in any spelling; it need not be configured itself.

    ``origin_of`` knows where a setting comes from; ``None`` for settings that were made in code.
    """
    chosen = GROUP_FAMILY.inherited(settings, name)
    given = frozenset(leaf for leaf, each in chosen.items() if each.is_given and not each.replaced_by)
    group = GROUP_FAMILY.effective(chosen)
    origins = {} if origin_of is None else {leaf: origin_of(leaf, chosen) for leaf in given & _CHECKED_LATER}
    return EffectiveGroup(name, given, origins, **{section: getattr(group, section) for section in SECTIONS})

"""The settings of a processing group, each with its type, built-in default and description, and their inheritance.

Group, then standard, then built-in, leaf by leaf: what a group and the standard say is merged before it is validated
(:func:`merged_group`). Which of two settings that exclude each other applies, and who decided it, is found afterwards.

These values travel to Spark's workers: they import nothing heavy, pickle, and compare by content. Pydantic validates
them as they stand, in :mod:`opencqrs_py.config.settings`.

Source:
    OpenCQRS reference, "Event Handling Processor Settings", and this package's added settings. There, a reference set
    as standard beats what a group says (a known flaw). Here the nearer level wins, and ``null`` resets what would be
    inherited.
"""

# ruff: noqa: RUF009 `setting` returns the field of a dataclass

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeAlias

from annotated_types import Ge, Le

from opencqrs_py.config.choices import (
    BatchMode,
    BatchOrdering,
    Controller,
    Engine,
    Interval,
    LiveDuringRebuild,
    Mode,
    OnBatchExhausted,
    OnChangedHandlers,
    OnExhausted,
    OnLost,
    Resolution,
    RetryPolicy,
    Tracking,
)
from opencqrs_py.config.value_types import (
    Attempts,
    Cron,
    Duration,
    EndlessDuration,
    Fact,
    Name,
    Number,
    Position,
    Subject,
    TotalAttempts,
    Whole,
    Zone,
)
from opencqrs_py.model.masking import masked
from opencqrs_py.model.naming import canonical

if TYPE_CHECKING:
    from opencqrs_py.config.settings import Settings

LeafName: TypeAlias = tuple[str, ...]
"""Sections and leaf of a group setting, as field names."""

AtLeastOne = Annotated[Whole, Ge(1), Fact(unit="1 or more")]


def setting(default: Any, description: str) -> Any:
    """Return the field of a setting with its built-in default."""
    return field(default=default, metadata={"description": description})


class GroupSection:
    """A part of a group's settings. Unknown names are refused; its ``repr`` hides what is secret."""

    __slots__ = ("_given",)
    _given: set[str]
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "coerce_numbers_to_str": True}

    def __new__(cls, *values: Any, **by_name: Any) -> Self:
        """Remember which values are given: a given default beats what would be inherited."""
        section = super().__new__(cls)
        names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
        object.__setattr__(section, "_given", {*names[: len(values)], *by_name})
        return section

    def __repr__(self) -> str:
        values = ((each.name, getattr(self, each.name)) for each in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={masked(name, value)!r}' for name, value in values)})"

    def given(self) -> dict[str, Any]:
        """Return what was said when this section was made, by field name; also what is not built in."""
        defaults = {each.name: each.default for each in fields(self)}  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in defaults}
        return {name: value for name, value in values.items() if name in self._given or value != defaults[name]}


@dataclass(frozen=True, slots=True, repr=False)
class FetchSettings(GroupSection):
    """Which events a group reads."""

    subject: Subject = setting("/", "Subject at or below which events are read.")
    recursive: bool = setting(default=True, description="Whether the subjects below are read too.")
    initial_position: Position = setting(
        "tail", "Where a new group starts: tail (oldest event), head (after newest), time, time ago (-P7D), position."
    )


@dataclass(frozen=True, slots=True, repr=False)
class LeaseSettings(GroupSection):
    """How long a process has its partitions without being heard of. The shortest of a process' groups count."""

    duration: Annotated[Duration, Ge(1)] = setting(10.0, "Time after which the partitions of a lost process are free.")
    heartbeat: Annotated[Duration, Ge(0.1)] = setting(3.0, "Time between two extensions; at most half the duration.")


@dataclass(frozen=True, slots=True, repr=False)
class LifeCycleSettings(GroupSection):
    """When and how often a group runs."""

    auto_start: bool = setting(default=True, description="Whether the group starts with the application.")
    controller: Controller | None = setting(
        None,
        "Who has the partitions: leader_election shares them among processes, application_context has all or none. "
        "Unset: leader_election when the progress is in SQL or there is a lock registry, else application_context.",
    )
    controller_registration: Name | None = setting(
        None, "Name of the provider that makes what starts and stops each partition, in the controller's place."
    )
    lock_registry: Name | None = setting(None, "Name of the provider of leader locks: leader election with it.")
    partitions: AtLeastOne = setting(1, "How many partitions the group starts with.")
    max_partitions_per_node: AtLeastOne | None = setting(
        None, "Most partitions of the group that one process takes. Unset: all."
    )
    lease: LeaseSettings = setting(LeaseSettings(), "How long partitions are held.")


@dataclass(frozen=True, slots=True, repr=False)
class ProgressSettings(GroupSection):
    """Where a group keeps its progress."""

    tracking: Tracking | None = setting(
        None, "Kind of tracker. Unset: sql when there is exactly one database, else in_memory."
    )
    tracker_ref: Name | None = setting(None, "Name of the provider that takes the tracker's place.")
    on_lost: OnLost = setting(
        OnLost.REFUSE, "Whether a group whose progress is gone is refused, or begins again at its initial position."
    )


@dataclass(frozen=True, slots=True, repr=False)
class SequenceSettings(GroupSection):
    """What a group handles in order; ``resolution`` is ``None`` when ``resolver_ref`` takes its place."""

    resolution: Resolution | None = setting(
        Resolution.PER_SECOND_LEVEL_SUBJECT, "Which events must be handled in order."
    )
    resolver_ref: Name | None = setting(None, "Name of the provider that takes the resolution's place.")
    level: AtLeastOne | None = setting(None, "Levels of the subject that count, with resolution per_level_subject.")
    data_field: Name | None = setting(
        None, "Field of the data that counts, with resolution per_data_field; dots lead into objects."
    )
    metadata_key: Name | None = setting(None, "Key of the metadata that counts, with resolution per_metadata_key.")


@dataclass(frozen=True, slots=True, repr=False)
class RetrySettings(GroupSection):
    """What happens when an event fails. Durations are seconds, ``math.inf`` and no attempts mean no limit.

    ``policy`` is ``None`` when ``back_off_ref`` takes its place.
    """

    policy: RetryPolicy | None = setting(
        RetryPolicy.EXPONENTIAL_BACKOFF, "How the waits between attempts follow each other."
    )
    back_off_ref: Name | None = setting(None, "Name of the provider of waits that takes the policy's place.")
    initial_interval: Duration = setting(2.0, "First wait; with policy fixed, every wait.")
    max_interval: Duration = setting(30.0, "Longest wait.")
    max_elapsed_time: EndlessDuration = setting(math.inf, "Sum of waits after which an event is given up.")
    multiplier: Annotated[Number, Ge(1), Fact(unit="factor, 1 or more")] = setting(
        1.5, "Each wait by the one before it."
    )
    max_attempts: Attempts = setting(None, "How often an event is tried again.")
    on_exhausted: OnExhausted = setting(
        OnExhausted.SKIP,
        "What happens to an event that is given up: skip it, stop its partition, or park it in the inbox.",
    )
    on_undecodable: OnExhausted = setting(
        OnExhausted.STOP, "What happens to an event whose data cannot be decoded for a handler."
    )
    jitter: Annotated[Number, Ge(0), Le(1), Fact(unit="share of the wait, 0 to 1")] = setting(
        0.0, "How much of each wait is at most left out, at random."
    )


@dataclass(frozen=True, slots=True, repr=False)
class ParkRetrySettings(GroupSection):
    """When a parked event is tried again. Durations are seconds, no attempts mean no limit."""

    initial_interval: Duration = setting(30.0, "Wait before the first attempt of a parked event.")
    max_interval: Duration = setting(3_600.0, "Longest wait.")
    multiplier: Annotated[Number, Ge(1), Fact(unit="factor, 1 or more")] = setting(
        2.0, "Each wait by the one before it."
    )
    max_attempts: Attempts = setting(5, "How often it is tried; after that it waits for a person.")


@dataclass(frozen=True, slots=True, repr=False)
class ParkSettings(GroupSection):
    """What waits in the inbox: events that were parked, and those of their sequences behind them."""

    max_sequences: AtLeastOne = setting(1_024, "Most sequences of the group that wait; with more the partition fails.")
    max_sequence_size: AtLeastOne = setting(1_024, "Most events of a sequence that wait; with more, likewise.")
    retry: ParkRetrySettings = setting(ParkRetrySettings(), "When a parked event is tried again.")


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleRetrySettings(GroupSection):
    """When an event of a scheduled group is tried again. Durations are seconds, no attempts mean no limit."""

    initial_interval: Duration = setting(60.0, "Wait after the first attempt that has failed.")
    max_interval: Duration = setting(10_800.0, "Longest wait.")
    multiplier: Annotated[Number, Ge(1), Fact(unit="factor, 1 or more")] = setting(
        2.0, "Each wait by the one before it."
    )
    max_attempts: TotalAttempts = setting(100, "Attempts in all, after which the event is exhausted.")


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleSettings(GroupSection):
    """When a scheduled group handles the events that wait. ``interval`` is ``None`` when ``cron`` takes its place."""

    initial_delay: Duration = setting(10.0, "Time until the first tick, after a process has taken a partition.")
    interval: Annotated[Duration, Ge(0.01)] | None = setting(6.0, "Time between two ticks.")
    kind: Interval = setting(
        Interval.FIXED_DELAY, "Whether the interval counts from the end of a tick, or from its beginning."
    )
    cron: Cron | None = setting(None, "Cron expression that takes the place of delay and interval.")
    time_zone: Zone = setting("UTC", "Time zone of the cron expression.")
    error_grace_period: Duration = setting(
        0.0, "How long after an event has come in its failures do not count: it is tried at each tick."
    )
    expires_after: EndlessDuration = setting(
        math.inf, "How long after it has come in an event is tried; then it is removed."
    )
    on_exhausted: OnBatchExhausted = setting(
        OnBatchExhausted.BLOCK,
        "What happens to an event whose attempts are used up: it waits for a person, or is skipped.",
    )
    retry: ScheduleRetrySettings = setting(ScheduleRetrySettings(), "When an event is tried again.")


@dataclass(frozen=True, slots=True, repr=False)
class BatchSettings(GroupSection):
    """The waiting events of a sequence of a scheduled group, which are handled together.

    ``ordering`` is ``None`` when ``ordering_ref`` takes its place.
    """

    mode: BatchMode = setting(
        BatchMode.FAIL_FIRST, "Whether the others of a batch wait for an event that has failed, or each is tried."
    )
    size: AtLeastOne | None = setting(None, "Most events of a sequence in a tick. Unset: all.")
    ordering: BatchOrdering | None = setting(BatchOrdering.INSERTED, "In which order its events are handled.")
    ordering_ref: Name | None = setting(
        None, "Name of the provider of a function from an event to what decides the order, in the ordering's place."
    )
    fetch_size: AtLeastOne = setting(1_000, "Most events that are read at once.")


@dataclass(frozen=True, slots=True, repr=False)
class ProcessingSettings(GroupSection):
    """What runs a group, and in which chunks."""

    engine: Engine = setting(Engine.SPARK, "What runs the processors of the group.")
    mode: Mode = setting(
        Mode.STREAMING, "Whether events are handled as they come, or wait in the inbox for a schedule."
    )
    batch_size: AtLeastOne | None = setting(None, "Most events in one transaction. Unset: chosen from the handlers.")
    handler_warn_after: Annotated[EndlessDuration, Ge(0.1)] = setting(
        30.0, "How long a call of a handler takes before a warning, the next at twice the time."
    )
    handler_timeout: Annotated[EndlessDuration, Ge(0.1)] = setting(
        math.inf, "How long a call of a handler may take; after that its event has failed."
    )
    on_changed_handlers: OnChangedHandlers = setting(
        OnChangedHandlers.WARN, "What happens at a start if others have built the read model up to here."
    )


@dataclass(frozen=True, slots=True, repr=False)
class RebuildSettings(GroupSection):
    """How the group is rebuilt beside the one that runs."""

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


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class GroupSettings(GroupSection):
    """The settings of a processing group, or the standard for all groups."""

    fetch: FetchSettings = setting(FetchSettings(), "Which events are read.")
    life_cycle: LifeCycleSettings = setting(LifeCycleSettings(), "When and how often the group runs.")
    progress: ProgressSettings = setting(ProgressSettings(), "Where the progress is kept.")
    sequence: SequenceSettings = setting(SequenceSettings(), "What is handled in order.")
    retry: RetrySettings = setting(RetrySettings(), "What happens when an event fails.")
    park: ParkSettings = setting(ParkSettings(), "What waits in the inbox.")
    schedule: ScheduleSettings = setting(ScheduleSettings(), "When a scheduled group handles what waits.")
    batch: BatchSettings = setting(BatchSettings(), "What a scheduled group handles together.")
    processing: ProcessingSettings = setting(ProcessingSettings(), "What runs the group.")
    rebuild: RebuildSettings = setting(RebuildSettings(), "How the group is rebuilt while it runs.")


@dataclass(frozen=True, slots=True, repr=False)
class EffectiveGroup(GroupSettings):
    """Every setting of the processing group ``name`` as it applies; by default, the built-in ones.

    ``set_leaves`` are those that a source sets, for choices that depend on what else there is when they are not set.
    They make no other group of two that have the same values.
    """

    name: str
    set_leaves: frozenset[LeafName] = field(default=frozenset(), compare=False)


SECTIONS = tuple(section.name for section in fields(GroupSettings))
BUILT_IN = GroupSettings()


def _leaves(section: GroupSection, path: LeafName = ()) -> Iterator[LeafName]:
    for each in fields(section):  # type: ignore[arg-type]
        value, below = getattr(section, each.name), (*path, each.name)
        yield from _leaves(value, below) if isinstance(value, GroupSection) else (below,)


LEAVES: tuple[LeafName, ...] = tuple(_leaves(BUILT_IN))
"""All settings of a group, in their order."""

_SECTIONS = frozenset(leaf[:depth] for leaf in LEAVES for depth in range(1, len(leaf)))

Said: TypeAlias = "dict[LeafName, object]"
"""What one level says of a group's settings, before it is validated."""

_REPLACEMENTS: tuple[tuple[LeafName, LeafName], ...] = (
    (("progress", "tracking"), ("progress", "tracker_ref")),
    (("sequence", "resolution"), ("sequence", "resolver_ref")),
    (("retry", "policy"), ("retry", "back_off_ref")),
    (("life_cycle", "controller"), ("life_cycle", "controller_registration")),
    (("schedule", "interval"), ("schedule", "cron")),
    (("batch", "ordering"), ("batch", "ordering_ref")),
)
"""Settings, each with the one that takes its place, mostly the reference to a provider."""

_CONTROLLER: LeafName = ("life_cycle", "controller")
_LOCKS: LeafName = ("life_cycle", "lock_registry")


class Level(Enum):
    """Who decides a setting of a group, from the nearest."""

    GROUP = auto()
    STANDARD = auto()
    BUILT_IN = auto()


@dataclass(frozen=True, slots=True)
class Inherited:
    """One setting of a group after inheritance."""

    value: Any  # validated
    level: Level  # who decided it
    reset: bool = False  # that level said ``null``, so that the value is the built-in one
    replaced_by: LeafName | None = None  # the leaf that takes this one's place; the value is ``None`` then

    @property
    def is_given(self) -> bool:
        """Whether a level gives a value."""
        return self.level is not Level.BUILT_IN and not self.reset


def said(group: object) -> Said:
    """Return the values set in ``group``, a nested mapping or settings made in code; nothing for anything else."""
    return dict(_said(group, ()))


def _said(group: object, path: LeafName) -> Iterator[tuple[LeafName, object]]:
    values = group.given() if isinstance(group, GroupSection) else group
    for name, value in values.items() if isinstance(values, Mapping) else ():
        below = (*path, name)
        if below in _SECTIONS and isinstance(value, Mapping | GroupSection):
            yield from _said(value, below)
        elif path:
            yield below, value


def merged_group(own: object, standard: Said) -> object:
    """Return ``own`` with what it inherits from ``standard``, and without what is reset to its built-in default."""
    if own is not None and not isinstance(own, Mapping | GroupSettings):
        return own  # which is refused when it is validated
    as_given = own if isinstance(own, Mapping) else {}
    merged = {name: {} if isinstance(value, Mapping) else value for name, value in as_given.items()}
    for (*sections, leaf), value in (standard | said(own)).items():
        below: Any = merged
        for section in sections:
            below = below.setdefault(section, {}) if isinstance(below, dict) else None
        if value is not None and isinstance(below, dict):
            below[leaf] = value
    return merged


def effective_group(settings: Settings, name: str) -> EffectiveGroup:
    """Return every setting of the group ``name``, in any spelling; it need not have settings of its own."""
    chosen = inherited(settings, name)
    given = frozenset(leaf for leaf, each in chosen.items() if each.is_given and not each.replaced_by)
    built_in = ((section, getattr(BUILT_IN, section)) for section in SECTIONS)
    sections: dict[str, Any] = {name: _effective(section, (name,), chosen) for name, section in built_in}
    return EffectiveGroup(name, given, **sections)


def _effective(section: GroupSection, path: LeafName, chosen: Mapping[LeafName, Inherited]) -> GroupSection:
    values = {}
    for each in fields(section):  # type: ignore[arg-type]
        below, built_in = (*path, each.name), getattr(section, each.name)
        is_section = isinstance(built_in, GroupSection)
        values[each.name] = _effective(built_in, below, chosen) if is_section else chosen[below].value
    return type(section)(**values)


def inherited(settings: Settings, name: str) -> dict[LeafName, Inherited]:
    """Return each setting of the group ``name`` with who decided it."""
    handling, standard = settings.event_handling, settings.event_handling.said_of(None)
    alike = (known for known in handling.groups if canonical(known) == canonical(name))
    group = name if name in handling.groups else next(alike, None)
    merged, own = (handling.groups[group], handling.said_of(group)) if group is not None else (handling.standard, {})
    chosen: dict[LeafName, Inherited] = {}
    for leaf in LEAVES:
        level = Level.GROUP if leaf in own else Level.STANDARD if leaf in standard else Level.BUILT_IN
        reset = level is not Level.BUILT_IN and (own if level is Level.GROUP else standard)[leaf] is None
        chosen[leaf] = Inherited(reduce(getattr, leaf, merged), level, reset)
    for choice, reference in _REPLACEMENTS:
        if chosen[reference].is_given:
            _let_one_replace_the_other(chosen, reference, choice)
    # A lock registry is part of leader election, whose place it does not take; it and the application context rule each
    # other out. On one level, the context counts, so that a named registry can be switched off.
    if chosen[_CONTROLLER].value is Controller.APPLICATION_CONTEXT and chosen[_LOCKS].is_given:
        _let_one_replace_the_other(chosen, _CONTROLLER, _LOCKS)
    return chosen


def _let_one_replace_the_other(chosen: dict[LeafName, Inherited], first: LeafName, second: LeafName) -> None:
    """Mark one of two settings as replaced by the other: the second, unless it is given on a nearer level."""
    is_nearer = chosen[second].is_given and chosen[second].level.value < chosen[first].level.value
    wins, loses = (second, first) if is_nearer else (first, second)
    chosen[loses] = replace(chosen[loses], value=None, replaced_by=wins)

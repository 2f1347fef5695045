"""The settings of a processing group: each with its type, its built-in default and its description.

These values travel to Spark's workers: they import nothing heavy, pickle, and compare by content. Pydantic validates
them as they stand, in :mod:`opencqrs_py.config.settings`.

Source:
    OpenCQRS reference, "Event Handling Processor Settings", and this package's added settings.
"""

# ruff: noqa: RUF009 `setting` returns the field of a dataclass

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, TypeAlias

from annotated_types import Ge, Le

from opencqrs_py.config.choices import Controller, Engine, OnExhausted, Resolution, RetryPolicy, Tracking
from opencqrs_py.config.value_types import (
    Attempts,
    Duration,
    EndlessDuration,
    Fact,
    Name,
    Number,
    Position,
    Subject,
    Whole,
)
from opencqrs_py.model.masking import masked

LeafName: TypeAlias = tuple[str, str]
"""Section and leaf of a group setting, as field names."""

AtLeastOne = Annotated[Whole, Ge(1), Fact(unit="1 or more")]


def setting(default: Any, description: str) -> Any:
    """Return the field of a setting with its built-in default."""
    return field(default=default, metadata={"description": description})


class GroupSection:
    """A part of a group's settings. Unknown names are refused; its ``repr`` hides what is secret."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "coerce_numbers_to_str": True}

    def __repr__(self) -> str:
        values = ((each.name, getattr(self, each.name)) for each in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={masked(name, value)!r}' for name, value in values)})"


@dataclass(frozen=True, slots=True, repr=False)
class FetchSettings(GroupSection):
    """Which events a group reads."""

    subject: Subject = setting("/", "Subject at or below which events are read.")
    recursive: bool = setting(default=True, description="Whether the subjects below are read too.")
    initial_position: Position = setting(
        "tail", "Where a group without progress starts: tail (oldest event), head (after newest), time, position."
    )


@dataclass(frozen=True, slots=True, repr=False)
class LifeCycleSettings(GroupSection):
    """When and how often a group runs."""

    auto_start: bool = setting(default=True, description="Whether the group starts with the application.")
    controller: Controller | None = setting(
        None,
        "Who starts and stops the group. Unset: leader_election when exactly one lock registry is "
        "registered, else application_context. Leader election is not there yet and is refused at the start.",
    )
    controller_registration: Name | None = setting(
        None, "Name of the provider that takes the controller's place. Not there yet: refused at the start."
    )
    lock_registry: Name | None = setting(None, "Name of the provider of leader locks: leader election with it.")
    partitions: AtLeastOne = setting(1, "How many partitions the group starts with.")


@dataclass(frozen=True, slots=True, repr=False)
class ProgressSettings(GroupSection):
    """Where a group keeps its progress."""

    tracking: Tracking | None = setting(
        None, "Kind of tracker. Unset: sql when there is exactly one database, else in_memory."
    )
    tracker_ref: Name | None = setting(None, "Name of the provider that takes the tracker's place.")


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
    """What happens when an event fails. Durations are seconds, ``math.inf`` and no attempts mean no limit."""

    policy: RetryPolicy = setting(RetryPolicy.EXPONENTIAL_BACKOFF, "How the waits between attempts follow each other.")
    initial_interval: Duration = setting(2.0, "First wait; with policy fixed, every wait.")
    max_interval: Duration = setting(30.0, "Longest wait.")
    max_elapsed_time: EndlessDuration = setting(math.inf, "Sum of waits after which an event is given up.")
    multiplier: Annotated[Number, Ge(1), Fact(unit="factor, 1 or more")] = setting(
        1.5, "Each wait by the one before it."
    )
    max_attempts: Attempts = setting(None, "How often an event is tried again.")
    on_exhausted: OnExhausted = setting(
        OnExhausted.SKIP,
        "What happens to an event that is given up. Parking is not there yet and is refused.",
    )
    jitter: Annotated[Number, Ge(0), Le(1), Fact(unit="share of the wait, 0 to 1")] = setting(
        0.0, "How much of each wait is at most left out, at random."
    )


@dataclass(frozen=True, slots=True, repr=False)
class ProcessingSettings(GroupSection):
    """What runs a group, and in which chunks."""

    engine: Engine = setting(Engine.SPARK, "What runs the processors of the group.")
    batch_size: AtLeastOne | None = setting(None, "Most events in one transaction. Unset: chosen from the handlers.")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class GroupSettings(GroupSection):
    """The settings of a processing group, or the standard for all groups."""

    fetch: FetchSettings = setting(FetchSettings(), "Which events are read.")
    life_cycle: LifeCycleSettings = setting(LifeCycleSettings(), "When and how often the group runs.")
    progress: ProgressSettings = setting(ProgressSettings(), "Where the progress is kept.")
    sequence: SequenceSettings = setting(SequenceSettings(), "What is handled in order.")
    retry: RetrySettings = setting(RetrySettings(), "What happens when an event fails.")
    processing: ProcessingSettings = setting(ProcessingSettings(), "What runs the group.")


@dataclass(frozen=True, slots=True, repr=False)
class EffectiveGroup(GroupSettings):
    """Every setting of the processing group ``name`` as it applies; by default, the built-in ones."""

    name: str


SECTIONS = tuple(section.name for section in fields(GroupSettings))
BUILT_IN = GroupSettings()
LEAVES: tuple[LeafName, ...] = tuple(
    (section, leaf.name) for section in SECTIONS for leaf in fields(getattr(BUILT_IN, section))
)
"""All settings of a group, in their order."""

"""The settings of one processing group as they apply, and the built-in default of each.

These values travel to Spark's workers: they import nothing heavy, pickle, and compare by content.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opencqrs_py.config.choices import Controller, Engine, OnExhausted, Resolution, RetryPolicy, Tracking

__all__ = [
    "EffectiveGroup",
    "FetchRule",
    "LifeCycleRule",
    "ProcessingRule",
    "ProgressRule",
    "RetryRule",
    "SequenceRule",
]


@dataclass(frozen=True, slots=True)
class FetchRule:
    """Which events a group reads.

    Args:
        subject: Subject at or below which events are read; starts with ``/``.
        recursive: Whether the subjects below ``subject`` are read too.
        initial_position: Where a group without progress starts: ``tail`` (the oldest event), ``head`` (after the
            newest), a time in ISO-8601 with zone, or a position of the store in digits.
    """

    subject: str = "/"
    recursive: bool = True
    initial_position: str = "tail"


@dataclass(frozen=True, slots=True)
class LifeCycleRule:
    """When and how often a group runs.

    Args:
        auto_start: Whether the group starts with the application.
        controller: Who starts and stops it; ``None``: decided at assembly by what is registered.
        controller_registration: Name of a provider that replaces ``controller``.
        lock_registry: Name of the provider of leader locks.
        partitions: How many partitions the group starts with, from 1.
    """

    auto_start: bool = True
    controller: Controller | None = None
    controller_registration: str | None = None
    lock_registry: str | None = None
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class ProgressRule:
    """Where a group keeps its progress.

    Args:
        tracking: Kind of tracker; ``None``: decided at assembly by what is configured.
        tracker_ref: Name of a provider that replaces ``tracking``.
    """

    tracking: Tracking | None = None
    tracker_ref: str | None = None


@dataclass(frozen=True, slots=True)
class SequenceRule:
    """What a group handles in order.

    Args:
        resolution: How an event's sequence is found; ``None`` when ``resolver_ref`` replaces it.
        resolver_ref: Name of a provider that replaces ``resolution``.
        level: Levels of the subject that ``per_level_subject`` keeps, from 1.
        data_field: Field of the data for ``per_data_field``; dots lead into objects.
        metadata_key: Key of the metadata for ``per_metadata_key``.
    """

    resolution: Resolution | None = Resolution.PER_SECOND_LEVEL_SUBJECT
    resolver_ref: str | None = None
    level: int | None = None
    data_field: str | None = None
    metadata_key: str | None = None


@dataclass(frozen=True, slots=True)
class RetryRule:
    """What happens when an event fails.

    Args:
        policy: How the waits follow each other.
        initial_interval: First wait, in seconds; every wait of the policy ``fixed``.
        max_interval: Longest wait, in seconds.
        max_elapsed_time: Sum of waits in seconds after which the event is given up; ``math.inf``: no limit.
        multiplier: Each wait by the one before it, from 1.
        max_attempts: How often an event is tried again; ``None``: no limit.
        on_exhausted: What happens to an event that is given up.
        jitter: Share of each wait, 0 to 1, of which a random part is left out.
    """

    policy: RetryPolicy = RetryPolicy.EXPONENTIAL_BACKOFF
    initial_interval: float = 2.0
    max_interval: float = 30.0
    max_elapsed_time: float = math.inf
    multiplier: float = 1.5
    max_attempts: int | None = None
    on_exhausted: OnExhausted = OnExhausted.SKIP
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessingRule:
    """What runs a group, and in which chunks.

    Args:
        engine: What runs the processors.
        batch_size: Most events in one transaction, from 1; ``None``: chosen from the handlers.
    """

    engine: Engine = Engine.SPARK
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class EffectiveGroup:
    """Every setting of one processing group after inheritance; without arguments, the built-in defaults.

    Source:
        OpenCQRS reference, "Event Handling Processor Settings", and this package's added settings.
    """

    name: str
    fetch: FetchRule = FetchRule()
    life_cycle: LifeCycleRule = LifeCycleRule()
    progress: ProgressRule = ProgressRule()
    sequence: SequenceRule = SequenceRule()
    retry: RetryRule = RetryRule()
    processing: ProcessingRule = ProcessingRule()

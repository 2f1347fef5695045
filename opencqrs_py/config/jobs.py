"""The settings of a job, each with its type, built-in default and description.

A job inherits from the standard, which inherits from what is built in; see :mod:`opencqrs_py.config.inheritance`.
These values travel to Spark's workers: they import nothing heavy, pickle, and compare by content.
"""

# ruff: noqa: RUF009 `setting` returns the field of a dataclass

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from opencqrs_py.config.choices import Engine, RetryPolicy
from opencqrs_py.config.inheritance import AtLeastOne, Family, InheritedSection, setting
from opencqrs_py.config.job_types import IdSource, JobCron, JobEngine
from opencqrs_py.config.value_types import Attempts, Duration, EndlessDuration, Jitter, Multiplier, Zone
from opencqrs_py.model.choices import JobTransaction, Misfire, Overlap, OverlapScope

if TYPE_CHECKING:
    from opencqrs_py.config.settings import Settings

_DAY = 86_400.0

Tick = Annotated[Duration, Ge(0.1)]
"""Seconds between two ticks."""


@dataclass(frozen=True, slots=True, repr=False)
class EventTriggerSettings(InheritedSection):
    """Which events start a run of a job."""

    types: tuple[str, ...] = setting((), "Event types, or patterns such as library.*, whose events start a run.")
    ids: IdSource | None = setting(
        None,
        "Where an event's id for the job comes from: subject, id, or a field such as data.order.id. Unset: the run is "
        "for all.",
    )


@dataclass(frozen=True, slots=True, repr=False)
class TriggerSettings(InheritedSection):
    """What starts the runs of a job, apart from people. Durations are seconds.

    At most one of ``fixed_rate``, ``fixed_delay`` and ``cron`` is not ``None``.
    """

    startup: bool = setting(default=False, description="Whether each start of a process starts a run.")
    fixed_rate: Tick | None = setting(None, "Time between two ticks, however long runs take. 100ms or more.")
    fixed_delay: Tick | None = setting(None, "Time from the end of a run to the next tick. 100ms or more.")
    cron: JobCron = setting(None, "When ticks are: five fields, or six with seconds first.")
    zone: Zone = setting("UTC", "Time zone of the cron expression.")
    initial_delay: Duration = setting(
        0.0, "Time until the first run after a start, with startup, fixed-rate and fixed-delay."
    )
    jitter: Duration = setting(0.0, "How much later than its tick a run begins at most, at random.")
    events: EventTriggerSettings = setting(EventTriggerSettings(), "Which events start a run.")


@dataclass(frozen=True, slots=True, repr=False)
class JobRetrySettings(InheritedSection):
    """What happens when a run fails. Durations are seconds, ``math.inf`` and no attempts mean no limit."""

    policy: RetryPolicy = setting(RetryPolicy.EXPONENTIAL_BACKOFF, "How the waits between attempts follow each other.")
    initial_interval: Duration = setting(2.0, "First wait; with policy fixed, every wait.")
    max_interval: Duration = setting(30.0, "Longest wait.")
    max_elapsed_time: EndlessDuration = setting(math.inf, "Sum of waits after which a run has failed.")
    multiplier: Multiplier = setting(1.5, "Each wait divided by the one before it.")
    max_attempts: Attempts = setting(3, "How often a run is tried again.")
    jitter: Jitter = setting(0.0, "How much of each wait is left out at most, at random.")


@dataclass(frozen=True, slots=True, repr=False)
class JobProcessingSettings(InheritedSection):
    """What runs a job."""

    engine: JobEngine = setting(Engine.THREAD, "What handles the items of a page.")


@dataclass(frozen=True, slots=True, repr=False)
class HistorySettings(InheritedSection):
    """What is kept of runs that have ended. Durations are seconds."""

    keep: Annotated[Duration, Ge(60)] = setting(7 * _DAY, "How long a run that has ended is listed. 1m or more.")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class JobSettings(InheritedSection):
    """The settings of a job, or the standard for all jobs. Durations are seconds, ``math.inf`` means no limit."""

    enabled: bool = setting(
        default=True, description="Whether the triggers start runs. A person or program always can."
    )
    triggers: TriggerSettings = setting(TriggerSettings(), "What starts runs.")
    misfire: Misfire = setting(
        Misfire.RUN_ONCE,
        "What happens to ticks that have passed: one run for all of them, none, or one for each (of the last 1,000).",
    )
    misfire_grace: Duration = setting(10.0, "With misfire skip: how late a tick may begin.")
    overlap: Overlap = setting(
        Overlap.SKIP,
        "What happens to a run that is to begin before another has ended: it is left out, waits, or ends the other.",
    )
    overlap_scope: OverlapScope = setting(
        OverlapScope.ALL_RUNS, "Which runs must not overlap: all of the job, or those for the same id."
    )
    queue_size: AtLeastOne = setting(1, "With overlap queue: most runs that wait.")
    cancel_grace: Duration = setting(30.0, "With overlap cancel: how long the other run may take to end.")
    exclusive_with: tuple[str, ...] = setting((), "Jobs of which no run overlaps one of this job.")
    transaction: JobTransaction | None = setting(
        None, "What of a run is one transaction. Unset: page if the job has an input, else run."
    )
    limit: AtLeastOne = setting(1_000, "Most ids of a page.")
    max_items_per_run: AtLeastOne | None = setting(
        None, "Most items that one run handles; the next run handles the others. Unset: no limit."
    )
    time_budget: Annotated[EndlessDuration, Ge(0.1)] = setting(
        math.inf, "How long after its beginning a run begins new pages. 100ms or more."
    )
    retry: JobRetrySettings = setting(JobRetrySettings(), "What happens when a run fails.")
    processing: JobProcessingSettings = setting(JobProcessingSettings(), "What runs the job.")
    history: HistorySettings = setting(HistorySettings(), "What is kept of runs that have ended.")


JOB_FAMILY = Family(
    named=("jobs",),
    standard=("jobs", "standard"),
    built_in=JobSettings(),
    rivals=(("triggers", "fixed_rate"), ("triggers", "fixed_delay"), ("triggers", "cron")),
)
"""The settings of all jobs, and how each is inherited."""


def effective_job(settings: "Settings", name: str) -> JobSettings:
    """Return every setting of the job ``name``, in any spelling; it need not be configured itself."""
    job: JobSettings = JOB_FAMILY.effective(JOB_FAMILY.inherited(settings, name))
    return job

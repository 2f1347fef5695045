"""How a job runs: its schedule, what happens when runs meet, and what a run may take."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta

from opencqrs_py.model.choices import JobTransaction, Misfire, Overlap, OverlapScope
from opencqrs_py.processing.inbox.schedules import Schedule
from opencqrs_py.processing.ports import BackOff
from opencqrs_py.processing.recovery import NoRetry


@dataclass(frozen=True, slots=True)
class Ticking:
    """When a job runs automatically.

    Attributes:
        schedule: Computes the ticks; ``None`` without any.
        text: What identifies the schedule, so that a changed one is noticed; empty without one.
        from_end: Whether the next tick counts from the end of a run.
        startup: Whether there is a run after each start of a process.
        delay: Seconds from that start to the run.
        jitter: Seconds by which a run begins later at most.
        misfire: What happens with ticks that no process handled in time.
        grace: Seconds by which a tick may be late before it counts as missed.
    """

    schedule: Schedule | None = None
    text: str = ""
    from_end: bool = False
    startup: bool = False
    delay: float = 0.0
    jitter: float = 0.0
    misfire: Misfire = Misfire.RUN_ONCE
    grace: float = 10.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """What happens when runs meet.

    Attributes:
        overlap: What happens with a run while another one has not ended.
        scope: Which runs of the job exclude each other.
        queue_size: How many runs may wait, at least 1.
        grace: Seconds that a run gets to end when a newer one replaces it.
        exclusive: Names of other jobs whose runs exclude those of this job.
    """

    overlap: Overlap = Overlap.SKIP
    scope: OverlapScope = OverlapScope.ALL_RUNS
    queue_size: int = 1
    grace: float = 30.0
    exclusive: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class JobRule:
    """How a job runs.

    Attributes:
        name: Name of the job.
        ticking: When it runs automatically.
        meeting: What happens when runs meet.
        transaction: What is committed together.
        limit: Ids of a page, at least 1.
        most_items: Ids of a run at most, at least 1; ``None``: all.
        budget: Seconds after which a run begins no further page; ``math.inf``: none.
        back_off: Waits before further attempts of a run that has failed.
        keep: How long runs are listed after their end.
        spark: Whether its items are handled on Spark.
    """

    name: str
    ticking: Ticking = field(default_factory=Ticking)
    meeting: Meeting = field(default_factory=Meeting)
    transaction: JobTransaction = JobTransaction.RUN
    limit: int = 1_000
    most_items: int | None = None
    budget: float = math.inf
    back_off: BackOff = field(default_factory=NoRetry)
    keep: timedelta = timedelta(days=7)
    spark: bool = False

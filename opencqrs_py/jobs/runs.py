"""What is recorded of jobs and their runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from opencqrs_py.model.job import JobId, Trigger


class RunStatus(StrEnum):
    """The status of a run. A run whose owner has ended, or that failed, is attempted again under the same record."""

    QUEUED = "queued"  # it has not begun yet
    RUNNING = "running"
    RETRYING = "retrying"  # it has begun, and is attempted again when it is due
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"  # it never began; the reason says why
    COALESCED = "coalesced"  # another run has taken its place


OPEN = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.RETRYING)
"""The statuses of runs that have not ended."""

WAITING = "waiting"
"""How a run is shown that is running, and waits as a database is unavailable."""

OUTCOMES = (RunStatus.SUCCEEDED, RunStatus.FAILED)
"""The statuses of runs that show whether their job works; one that was cancelled shows nothing."""

UNSTARTED = (RunStatus.SKIPPED, RunStatus.COALESCED)
"""The statuses of runs that have ended without a start."""


@dataclass(frozen=True, slots=True)
class RunPosition:
    """The part of a run that is done. It is stored with what the job writes, so that nothing of it is repeated.

    Attributes:
        after: The last id that is done; ``None``: none is.
        done: Whether nothing is left to do.
        items: How many ids are done.
        failed: The ids of the items that have failed, where each item has its own transaction. They are attempted
            again once each of the others was, in an attempt that is for them ``only``.
        only: The ids that this attempt is for, as the others are done; ``None``: all.
        error: Why the first of ``failed`` has failed, in one line.
        gone: How many of the ids that had failed no longer applied when they were to be attempted again.
        unmet: How many ids of its events the input did not return.
        rest: The limit that has ended it, as the rest is for the next run; empty: none has.
    """

    after: JobId | None = None
    done: bool = False
    items: int = 0
    failed: tuple[JobId, ...] = ()
    only: tuple[JobId, ...] | None = None
    error: str = ""
    gone: int = 0
    unmet: int = 0
    rest: str = ""


def chosen_ids(ids: Sequence[JobId]) -> tuple[JobId, ...]:
    """Return the ids for which a run is requested, each once.

    Raises:
        ValueError: If there are none: the job must not run for all then.
        TypeError: If one is not an id.
    """
    if isinstance(ids, str | bytes):
        raise TypeError(f"ids are a list, and {ids!r} is one of them: write [{ids!r}]")
    wanted = tuple(ids)
    for each in wanted:
        if isinstance(each, bool) or not isinstance(each, int | str):
            raise TypeError(f"{each!r} is not an id: ids are whole numbers and texts, such as str() of a UUID")
    if not wanted:
        raise ValueError("ids is empty: name some, or leave it out to run the job for all that applies")
    return distinct(wanted)


def distinct(ids: Iterable[JobId]) -> tuple[JobId, ...]:
    """Return ids without those that are named twice: those of the command line are texts, whatever the input yields."""
    found: dict[str, JobId] = {}
    for each in ids:
        found.setdefault(str(each), each)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job, from its request on. All times are in UTC, by the store's clock.

    Attributes:
        id: Unique; of a tick the job and the instant, so that there is one for each tick.
        job: Name of the job.
        trigger: What has started it.
        requested_at: When it was recorded.
        ids: What it is for; ``None``: all that applies.
        scheduled_at: The tick that it is of; ``None`` if no schedule has started it.
        due_at: When it may begin, or be attempted again.
        status: Its status.
        started_at: When its first attempt began.
        ended_at: When it ended.
        attempt: Number of its attempts, the one in hand included.
        deaths: How many attempts ended with their process.
        owner: Id of the node that has it in hand; empty for none.
        node: Name of that node, or of the last one that had it.
        token: Grows with each attempt, and whenever the run is taken from its owner, which can then write nothing more.
        position: What of it is done.
        done, total: How far it is, as the job itself says.
        error: How its last attempt failed, or why it waits, in one line; with the lines of the job's own code below.
        reason: Why it was skipped, cancelled or ended early.
        actor: The person who has requested it, if any.
        into: Id of the run that has taken its place.
        reserved: Id of the node whose caller is to run it; empty: any may. Once it has begun, it is reserved only as
            long as that process lasts.
        queued: Whether it was admitted to wait for others to end.
        waits_until: Until when its attempt waits as a database is unavailable; earlier than now, or ``None``: it does
            not.
        cancelled_at: When it was asked to end.
        ticks: How many ticks the record covers, at least 1.
        parent: Id of the run whose ids it has a part of; empty: it is not a child. A child is in no list, and does not
            count as a run; its owner is the job of Spark that has it in hand.
    """

    id: str
    job: str
    trigger: Trigger
    requested_at: datetime
    ids: tuple[JobId, ...] | None = None
    scheduled_at: datetime | None = None
    due_at: datetime | None = None
    status: RunStatus = RunStatus.QUEUED
    started_at: datetime | None = None
    ended_at: datetime | None = None
    attempt: int = 0
    deaths: int = 0
    owner: str = ""
    node: str = ""
    token: int = 0
    position: RunPosition = field(default_factory=RunPosition)
    done: int | None = None
    total: int | None = None
    error: str = ""
    reason: str = ""
    actor: str = ""
    into: str = ""
    reserved: str = ""
    queued: bool = False
    waits_until: datetime | None = None
    cancelled_at: datetime | None = None
    ticks: int = 1
    parent: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status in OPEN

    @property
    def is_active(self) -> bool:
        """Whether it has begun and not ended: others may have to wait for it."""
        return self.status in (RunStatus.RUNNING, RunStatus.RETRYING)

    def is_due(self, now: datetime) -> bool:
        """Return whether it may begin, or be attempted again."""
        waits = self.status in (RunStatus.QUEUED, RunStatus.RETRYING)
        return waits and (self.due_at is None or self.due_at <= now)

    def awaits_database(self, now: datetime) -> bool:
        """Return whether its attempt waits as a database is unavailable; ``error`` says which error that is."""
        return self.status is RunStatus.RUNNING and self.waits_until is not None and self.waits_until > now

    def gives_way(self, now: datetime) -> bool:
        """Return whether its tick may still start a run: it started none, and the clock was ahead when it was recorded.

        A new run with its id then replaces it.
        """
        return self.status in UNSTARTED and self.started_at is None and self.requested_at > now

    def ended(self, status: RunStatus, now: datetime, reason: str = "", into: str = "") -> JobRun:
        """Return it as it has ended; later writes of its owner have no effect."""
        token = self.token + (1 if self.status is RunStatus.RUNNING else 0)
        return replace(
            self, status=status, ended_at=now, reason=reason or self.reason, into=into, owner="", token=token
        )


@dataclass(frozen=True, slots=True)
class LastRuns:
    """The last runs of a job. They are kept, however long ago they ended.

    Attributes:
        ended: The run that has begun and ended last.
        outcome: The run that has succeeded or failed last; ``None``: none has.
    """

    ended: JobRun
    outcome: JobRun | None = None


def last_runs(runs: Iterable[JobRun]) -> dict[str, LastRuns]:
    """Return the last of some runs for each of their jobs; of those that end at the same moment, by id."""
    found: dict[str, LastRuns] = {}
    begun = (run for run in runs if not run.is_open and run.started_at is not None)
    for run in sorted(begun, key=lambda run: (run.ended_at or run.requested_at, run.id)):
        known = found.get(run.job)
        outcome = run if run.status in OUTCOMES else known.outcome if known is not None else None
        found[run.job] = LastRuns(run, outcome)
    return found


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is kept of a job.

    Attributes:
        name: Its name.
        schedule: The schedule by which ``next_tick`` was found, as text; empty without one.
        next_tick: The next tick, which is not recorded as a run yet; ``None`` without a schedule, and while a run lasts
            from whose end the next one counts.
        paused_at: When it was paused; ``None`` if it is not.
        paused_by: The person who has paused it.
        reason: Why.
        succeeded_at: When a run of it has succeeded last; ``None``: none has.
    """

    name: str
    schedule: str = ""
    next_tick: datetime | None = None
    paused_at: datetime | None = None
    paused_by: str = ""
    reason: str = ""
    succeeded_at: datetime | None = None

    @property
    def is_paused(self) -> bool:
        """Whether triggers start no run of it."""
        return self.paused_at is not None

    @property
    def pause_text(self) -> str:
        """That it is paused, by whom and why, as far as known."""
        by = f" by {self.paused_by}" if self.paused_by else ""
        return f"paused{by}: {self.reason}" if self.reason else f"paused{by}"


@dataclass(frozen=True)
class JobsView:
    """The state of all jobs at one moment.

    Attributes:
        now: The moment, by the store's clock.
        records: What is kept of each job, by name.
        runs: The runs that have not ended, by time of request.
    """

    now: datetime
    records: Mapping[str, JobRecord] = field(default_factory=dict)
    runs: tuple[JobRun, ...] = ()

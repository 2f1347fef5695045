"""The jobs of an application: views and requests, whichever process runs them."""

from __future__ import annotations

import logging
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf

from opencqrs_py.assembly.actor import actor
from opencqrs_py.assembly.conditions import raise_together
from opencqrs_py.assembly.jobs.rules import respelled
from opencqrs_py.control.records import ControlView
from opencqrs_py.engines.job_runner import JobRunner
from opencqrs_py.errors import JobError, KeyReusedError, UnknownJobError, WaitTimedOutError
from opencqrs_py.jobs.desk import JobDesk
from opencqrs_py.jobs.execution import OUTAGE_BACK_OFF
from opencqrs_py.jobs.ports import JobStore
from opencqrs_py.jobs.rules import JobRule
from opencqrs_py.jobs.runs import WAITING, JobRecord, JobRun, chosen_ids
from opencqrs_py.jobs.upcoming import Upcoming, upcoming
from opencqrs_py.model.job import Job, JobId, Trigger
from opencqrs_py.model.naming import canonical, counted, listed, nearest
from opencqrs_py.processing.exceptions import one_line

_log = logging.getLogger("opencqrs.jobs")
_POLL_SECONDS = 0.1  # between two polls of a run that is waited for


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as ``opencqrs jobs list`` shows it.

    Attributes:
        job: The job.
        rule: How it runs.
        record: What is kept of it; ``None`` before the first process has run it.
        open: Its runs that have not ended, by time of request.
        last: The run that has begun and ended last; ``None``: there is none.
        outcome: The run that has succeeded or failed last, which shows whether the job works; ``None``: there is none.
        nodes: Names of the living processes that run it.
        events: Patterns of event types that start it.
        now: When this was, by the store's clock.
    """

    job: Job
    rule: JobRule
    record: JobRecord | None
    open: tuple[JobRun, ...]
    last: JobRun | None
    outcome: JobRun | None
    nodes: tuple[str, ...]
    events: tuple[str, ...]
    now: datetime

    @property
    def waiting(self) -> JobRun | None:
        """The run that has waited longest to begin; ``None`` while one of its job has begun, or none waits.

        A run that is reserved waits for its caller, and one for events of a paused job for the end of the pause.
        """
        is_paused = self.record is not None and self.record.is_paused
        if any(run.is_active for run in self.open):
            return None
        those = (run for run in self.open if run.is_due(self.now) and not run.reserved)
        waiting = (run for run in those if not (is_paused and run.trigger is Trigger.EVENT))
        return min(waiting, key=lambda run: run.due_at or run.requested_at, default=None)

    def state_of(self, run: JobRun) -> str:
        """Return the status of one of its runs; ``waiting`` if its attempt waits as a database is unavailable."""
        return WAITING if run.awaits_database(self.now) else run.status.value

    @property
    def waited_seconds(self) -> float:
        """For how long that run has waited since it was due; 0 without one."""
        return 0.0 if (run := self.waiting) is None else (self.now - (run.due_at or run.requested_at)).total_seconds()

    @property
    def lag_seconds(self) -> float | None:
        """How much later than its tick the last run began, or how long the next one is overdue; ``None`` without."""
        record = self.record
        if self.waiting is not None:
            return self.waited_seconds
        if record is not None and record.next_tick is not None and record.next_tick < self.now:
            return (self.now - record.next_tick).total_seconds()
        if self.last is None or self.last.scheduled_at is None or self.last.started_at is None:
            return None
        return max(0.0, (self.last.started_at - self.last.scheduled_at).total_seconds())


@dataclass(frozen=True, slots=True)
class KnownJobs:
    """The jobs of an application, and where their runs are recorded.

    Attributes:
        jobs: The jobs.
        rules: How each runs, by name.
        store: The tables of jobs.
        view: Returns the control tables.
        runner: Returns what runs jobs in this process; ``None`` while it runs none.
        events: Patterns of event types that start each job, by name.
    """

    jobs: Sequence[Job]
    rules: Mapping[str, JobRule]
    store: JobStore
    view: Callable[[], ControlView]
    runner: Callable[[], JobRunner | None]
    events: Mapping[str, tuple[str, ...]]


class Jobs:
    """Lists, runs, pauses and cancels jobs, whichever process runs them.

    Args:
        parts: The jobs, and where their runs are recorded.
    """

    def __init__(self, parts: KnownJobs) -> None:
        self._known = parts
        self._desk = JobDesk(parts.store, parts.rules)

    def statuses(self) -> list[JobStatus]:
        """Return all jobs, by name, by a number of statements that does not grow with them."""
        parts, nodes = self._known, self._known.view().alive.values()
        view, last = parts.store.look(), parts.store.last_runs()
        return [
            JobStatus(
                job,
                parts.rules[job.name],
                view.records.get(job.name),
                tuple(run for run in view.runs if run.job == job.name),
                last[job.name].ended if job.name in last else None,
                last[job.name].outcome if job.name in last else None,
                tuple(sorted(node.name for node in nodes if job.name in node.jobs)),
                parts.events.get(job.name, ()),
                view.now,
            )
            for job in sorted(parts.jobs, key=lambda each: each.name)
        ]

    def runs(self, name: str | None = None, limit: int = 100) -> list[JobRun]:
        """Return runs, newest request first.

        Args:
            name: Name of a job, in any spelling; ``None``: of all.
            limit: How many at most.

        Raises:
            JobError: OCQ-667 for a name that is not a job.
        """
        return self._known.store.history(None if name is None else self._named(name).name, limit)

    def request(
        self,
        name: str,
        ids: Sequence[JobId] | None = None,
        *,
        by: str | None = None,
        trigger: Trigger = Trigger.MANUAL,
        key: str = "",
    ) -> JobRun:
        """Request a run, and return without waiting for it. A process that runs jobs begins it, now or later.

        Args:
            name: Name of the job, in any spelling.
            ids: Ids to run it for, at least one; ``None``: all that applies.
            by: The caller's name; ``None``: the user of this process.
            trigger: What requests it.
            key: Identifies the run among requests with a key: a call with the same one returns the same run, for as
                long as that is kept. Empty: the run is always a new one.

        Raises:
            JobError: OCQ-667 for a name that is not a job; OCQ-675, if the run of the key is for other ids.
            ValueError: If there are no ids; TypeError, if one is neither a whole number nor a text.
        """
        run = replace(self.new_run(name, ids, by), trigger=trigger)
        if key:
            run = replace(run, id=f"{run.job}:key:{key}")
        is_new = self._known.store.request(run)
        self._wake()
        stands = self._known.store.find(run.id) or run
        if (stands.job, stands.ids) != (run.job, run.ids):
            fix = "use a new key for each run; reuse a key only to repeat a call"
            raise KeyReusedError(
                "OCQ-675", f"run '{run.id}' exists already, and is for other ids", f"job {run.job}", fix
            )
        if is_new:
            _log.info("[job %s] run %s was requested%s", run.job, run.id, _for(run), extra={"action": "requested"})
        return stands

    def new_run(self, name: str, ids: Sequence[JobId] | None, by: str | None = None) -> JobRun:
        """Return a run that is not requested yet. Arguments and errors are those of ``request``."""
        job, now = self._named(name).name, datetime.now(UTC)
        wanted = None if ids is None else chosen_ids(ids)
        return JobRun(f"{job}:{uuid.uuid4().hex[:12]}", job, Trigger.MANUAL, now, ids=wanted, actor=by or actor())

    def wait(self, run: str, timeout: float | None = None) -> JobRun:
        """Wait until a run has ended, and return it; if another run covers it, that one. An outage does not end it.

        Args:
            run: Its id.
            timeout: Longest wait in seconds; ``None``: no limit.

        Raises:
            JobError: OCQ-668, if there is no such run.
            WaitTimedOutError: OCQ-664, if the time is over; the run is not cancelled.
        """
        until = inf if timeout is None else time.monotonic() + timeout
        waits: Iterator[float] | None = None
        while True:
            try:
                found = self.find(run)
            except Exception as error:
                if not self._known.store.is_outage(error):
                    raise
                state = f"the database is unavailable: {one_line(error)}"
                if waits is None:
                    _log.warning("the wait for run %s continues; %s", run, state)
                    waits = OUTAGE_BACK_OFF.waits()
                pause = next(waits)
            else:
                waits = None
                if found.into and not found.is_open:
                    run = found.into  # which covers it
                    continue
                if not found.is_open:
                    return found
                state, pause = f"it is {found.status.value}", _POLL_SECONDS
            left = until - time.monotonic()
            if left <= 0:
                what = f"run {run} has not ended within {timeout:g} s: {state}"
                fix = f"it is not cancelled: opencqrs jobs show {shlex.quote(run)} shows how it ends"
                raise WaitTimedOutError("OCQ-664", what, fix=fix)
            time.sleep(min(pause, left))

    def find(self, run: str) -> JobRun:
        """Return a run.

        Raises:
            JobError: OCQ-668, if there is no such run.
        """
        found = self._known.store.find(run)
        if found is None:
            raise JobError("OCQ-668", f"there is no run '{run}'", fix="opencqrs jobs runs lists them")
        return found

    def pause(self, name: str, reason: str = "", by: str | None = None) -> JobRecord:
        """Keep triggers from starting a job until ``resume``. Runs in progress continue, and people can still run it.

        A job that is paused already keeps the person and the reason that it was paused with, which is logged.

        Raises:
            JobError: OCQ-667 for a name that is not a job; OCQ-676, if it is recorded in another spelling.
        """
        job, by = self._recorded(name), by or actor()
        record, is_new = self._desk.pause(job, by, reason)
        said = f"paused by {by}" if is_new else f"is already {record.pause_text}"
        _log.info("[job %s] %s", job, said, extra={"action": "paused" if is_new else "unchanged", "job": job})
        return record

    def resume(self, name: str) -> JobRecord:
        """Let triggers start runs of a job again.

        Raises:
            JobError: As ``pause``.
        """
        job = self._recorded(name)
        record, was_paused = self._desk.resume(job)
        self._wake()
        said = f"resumed by {actor()}" if was_paused else "is not paused"
        _log.info("[job %s] %s", job, said, extra={"action": "resumed" if was_paused else "unchanged", "job": job})
        return record

    def cancel(self, name: str, run: str | None = None, reason: str = "", by: str | None = None) -> list[JobRun]:
        """Ask runs of a job to end; those that have not begun end at once. Return them in their current state.

        If the application no longer has the job, runs whose process has ended end at once, too.

        Args:
            name: Name of the job, in any spelling; as it is recorded, if the application no longer has it.
            run: Id of one of its runs; ``None``: all that have not ended.
            reason: Why.
            by: The caller's name; ``None``: the user of this process.

        Raises:
            JobError: OCQ-667 for a name that is not a job; OCQ-668, if the job has no such run that has not ended.
        """
        runs, by = self._known.store.look().runs, by or actor()
        is_left = name not in self._known.rules and any(each.job == name for each in runs)
        job = name if is_left else self._named(name).name
        those = [each for each in runs if each.job == job and run in (None, each.id)]
        if run is not None and not those:
            what = f"job '{job}' has no run '{run}' that has not ended"
            raise JobError("OCQ-668", what, fix=f"opencqrs jobs runs {job} lists its runs")
        said = f"cancelled by {by}" + (f": {reason}" if reason else "")
        alive_now = (lambda: self._known.view().alive) if is_left else None
        ended = self._desk.cancel_all(job, those, said, by, alive_now)
        self._wake()
        return ended

    def explain(self, name: str, count: int = 10) -> tuple[Upcoming, ...]:
        """Return the next instants at which a job runs by its schedule, the first one as it is recorded.

        Raises:
            JobError: OCQ-667 for a name that is not a job; OCQ-669, if it has no schedule.
        """
        job = self._named(name).name
        rule, view = self._known.rules[job], self._known.store.look([job])
        if rule.ticking.schedule is None:
            fix = f"set one of jobs.{job}.triggers.cron, fixed-rate and fixed-delay"
            raise JobError("OCQ-669", f"job '{job}' has no schedule", f"job {job}", fix)
        record = view.records.get(job)
        recorded = record.next_tick if record is not None and record.schedule == rule.ticking.text else None
        return upcoming(rule.ticking, view.now, count, recorded)

    def now(self) -> datetime:
        """Return the time by the clock to which the times of runs refer."""
        return self._known.store.look(()).now

    def runners(self, name: str) -> list[str]:
        """Return the names of the living processes that run a job."""
        job = self._named(name).name
        return sorted(node.name for node in self._known.view().alive.values() if job in node.jobs)

    def has_no_runner(self, name: str) -> bool:
        """Return whether no living process runs a job; ``False`` while the database is unavailable."""
        try:
            return not self.runners(name)
        except Exception as error:
            if not self._known.store.is_outage(error):
                raise
            return False

    def _wake(self) -> None:
        runner = self._known.runner()
        if runner is not None:
            runner.wake()

    def _recorded(self, name: str) -> str:
        """Return the name under which a job is recorded, or will be."""
        job = self._named(name).name
        raise_together([*respelled([job], self._known.store.look().records)])
        return job

    def _named(self, name: str) -> Job:
        known = {canonical(job.name): job for job in self._known.jobs}
        found = known.get(canonical(name))
        if found is None:
            names = [job.name for job in self._known.jobs]
            close = nearest(name, names)
            fix = f"did you mean {close}?" if close else f"jobs: {listed(names) or 'none'}"
            raise UnknownJobError("OCQ-667", f"there is no job '{name}'", fix=fix)
        return found


def _for(run: JobRun) -> str:
    return "" if run.ids is None else f", for {counted(len(run.ids), 'id')}"

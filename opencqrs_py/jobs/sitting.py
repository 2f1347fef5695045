"""A sitting: what the desk decides about the runs of one job within a transaction of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from opencqrs_py.jobs.overlap import Admission, Verdict, admission, excludes
from opencqrs_py.jobs.ports import JobBook
from opencqrs_py.jobs.rules import JobRule, Ticking
from opencqrs_py.jobs.runs import JobRecord, JobRun, RunStatus, distinct
from opencqrs_py.jobs.ticks import Tick, missed_by, ticks_until
from opencqrs_py.model.choices import Misfire, OverlapScope
from opencqrs_py.model.job import JobId, Trigger
from opencqrs_py.processing.recovery import wait_after

MOST_DEATHS = 3
"""Processes that may end during a run before it counts as failed, as for events that end their process."""

_TOLERANCE = timedelta(seconds=1)  # a clock that goes back by this or less was not set back

AttemptKey = tuple[str, int]
"""Id and token of a run: what names one attempt of it."""


def attempt_key(run: JobRun) -> AttemptKey:
    """Return what names the attempt of a run that is in hand."""
    return run.id, run.token


@dataclass(frozen=True, slots=True)
class Room:
    """The process that begins runs, and how many.

    Attributes:
        node: Id of the process.
        name: Its name for people.
        free: How many runs it can begin.
        only: Id of the one run that it may begin, for a caller; empty: any that is not reserved.
    """

    node: str
    name: str
    free: int
    only: str = ""

    def may_begin(self, run: JobRun) -> bool:
        """Return whether the run is one that it may begin: a reserved run is for the caller that names it."""
        if self.only:
            return run.id == self.only and run.reserved in ("", self.node)
        return not run.reserved


class Sitting:
    """Decides about runs while their records are locked.

    Args:
        book: The records, locked against other changes.
        rules: How each job runs that this process knows, by name.
    """

    def __init__(self, book: JobBook, rules: Mapping[str, JobRule]) -> None:
        self._book = book
        self._rules = rules
        self._runs = {run.id: run for run in book.runs}

    @property
    def now(self) -> datetime:
        """Now, by the store's clock."""
        return self._book.now

    @property
    def runs(self) -> Sequence[JobRun]:
        """The runs that have not ended, including changes."""
        return list(self._runs.values())

    def find(self, run: str) -> JobRun | None:
        """Return a run that has not ended."""
        return self._runs.get(run)

    def put(self, run: JobRun) -> JobRun:
        """Write a run, and return it as ``_write`` does; if the next tick counts from its end, record that tick."""
        run = self._write(run)
        rule = self._rules.get(run.job)
        if run.is_open or run.trigger is not Trigger.SCHEDULE or rule is None or not rule.ticking.from_end:
            return run
        schedule, record = rule.ticking.schedule, self._book.records[run.job]
        if schedule is not None and record.next_tick is None and record.schedule == rule.ticking.text:
            self._book.put_record(replace(record, next_tick=schedule.following(self.now, self.now)))
        return run

    def recover(self, run: JobRun) -> JobRun:
        """Take a run from its process, which has ended; return it as it is now."""
        return self.put(_recovered(run, self.now))

    def bring_forward(self, job: str) -> None:
        """Have runs of a job begin after their waits as of now, if they wait longer as the clock was set back."""
        rule = self._rules[job]
        for run in self.runs:
            if run.job == job and is_too_late(run, rule, self.now):
                self._write(replace(run, due_at=self.now + timedelta(seconds=_longest_wait(run, rule))))

    def take_back(self, run: JobRun) -> JobRun:
        """Take a run back from this process, which does not know that it began: the answer was lost."""
        if run.reserved and run.token == 1:
            return self.put(run.ended(RunStatus.CANCELLED, self.now, "its caller could not learn that it had begun"))
        back = replace(run, status=RunStatus.RETRYING, due_at=self.now, owner="", reserved="", token=run.token + 1)
        return self.put(replace(back, attempt=run.attempt - 1))

    def reserve(self, run: JobRun, node: str) -> None:
        """Reserve a run for a node that is the same process as the one that it was reserved for."""
        if run.reserved != node:
            self._write(replace(run, reserved=node))

    def tick(self, rule: JobRule, draw: Callable[[], float]) -> int:
        """Record the ticks of a job that are due.

        Args:
            rule: How the job runs.
            draw: Source of numbers in ``0..1`` for jitter.

        Returns:
            How many ticks start no run although each one is to: more have passed than are recorded one by one.
        """
        record, ticking, now = self._book.records[rule.name], rule.ticking, self.now
        if needs_tick(record, ticking, self.runs, now):
            record = self._with_next(record, ticking)
        if record.next_tick is None or record.next_tick > now or ticking.schedule is None:
            return 0
        ticks = ticks_until(ticking, record.next_tick, now)
        due = self._without_ended(ticks.due, rule.name)
        for tick in due:
            if tick_id(rule.name, tick.at) not in self._runs:
                jitter = ticking.jitter * draw() if ticking.jitter else 0.0
                self._write(_run_of(tick, record, now, tick_id(rule.name, due[-1].at), jitter))
        following = ticks.next
        if record.is_paused and ticking.from_end:
            following = ticking.schedule.following(now, now)
        self._book.put_record(replace(record, next_tick=following))
        catches_up = ticking.misfire is Misfire.CATCH_UP and not record.is_paused
        return sum(tick.count for tick in due if tick.missed) if catches_up else 0

    def begin(self, job: str, room: Room) -> list[JobRun]:
        """Begin those runs of a job that may begin, up to the free capacity; decide about the others."""
        begun: list[JobRun] = []
        due = [run for run in self.runs if run.job == job and run.is_due(self.now) and room.may_begin(run)]
        one_at_a_time = self._rules[job].meeting.scope is OverlapScope.ALL_RUNS
        blocked = False
        for each in sorted(due, key=lambda each: (each.due_at or each.requested_at, each.id)):
            run = self._runs.get(each.id)
            if run is None:
                continue
            full = len(begun) >= room.free
            if run.status is RunStatus.RETRYING:
                admitted = not full
            elif self._is_held(run) or self._is_missed(run):
                continue
            elif blocked and one_at_a_time and _only_waits(run):
                self._let_wait(run)
                continue
            elif full and _only_waits(run):
                continue
            else:
                admitted = self._admitted(run, full=full)
                blocked = True
            if admitted:
                begun.append(self._begin(self._with_events(self._runs[run.id]), room))
        return begun

    def _write(self, run: JobRun) -> JobRun:
        """Write a run; return it with what its owner has committed since the book was opened, if it is taken."""
        run = self._book.put(run)
        if run.is_open:
            self._runs[run.id] = run
        else:
            self._runs.pop(run.id, None)
        return run

    def _without_ended(self, ticks: Sequence[Tick], job: str) -> list[Tick]:
        """Return ticks without those that repeat, as the clock was set back, after their runs have ended.

        The last one covers those before it, even if its run is there already.
        """
        recorded = self._book.recorded([tick_id(job, each.at) for each in ticks])
        left = [each for each in ticks if (id_ := tick_id(job, each.at)) not in recorded or id_ in self._runs]
        return [*left[:-1], *(replace(each, with_later=False) for each in left[-1:])]

    def _with_next(self, record: JobRecord, ticking: Ticking) -> JobRecord:
        """Return a record with its next tick; a past tick of the previous schedule is recorded."""
        schedule, now, overdue = ticking.schedule, self.now, record.next_tick
        following = None
        if record.schedule == ticking.text and schedule is not None:
            following = schedule.following(now, now)
        elif schedule is not None:
            following = schedule.first(now)
        if overdue is not None and overdue <= now:
            missed = "the job has no schedule any more" if schedule is None else missed_by(ticking, overdue, now)
            id_ = tick_id(record.name, overdue)
            if not self._book.recorded([id_]):
                self._write(_run_of(Tick(overdue, missed), record, now))
            is_open = id_ in self._runs
            following = None if is_open and ticking.from_end else following
        record = replace(record, schedule=ticking.text, next_tick=following)
        self._book.put_record(record)
        return record

    def _is_held(self, run: JobRun) -> bool:
        """Return whether a run does not begin as its job is paused; one that need not wait is skipped."""
        record = self._book.records[run.job]
        if not record.is_paused or run.trigger not in (Trigger.EVENT, Trigger.STARTUP, Trigger.SCHEDULE):
            return False
        if run.trigger is not Trigger.EVENT:
            self.put(run.ended(RunStatus.SKIPPED, self.now, f"the job is {record.pause_text}"))
        return True

    def _is_missed(self, run: JobRun) -> bool:
        """Return whether a recorded tick does not begin as no process could begin it in time; it is skipped."""
        if run.trigger is not Trigger.SCHEDULE or run.queued or run.due_at is None:  # what waits for others may be late
            return False
        missed = missed_by(self._rules[run.job].ticking, run.due_at, self.now)
        if missed:
            self.put(run.ended(RunStatus.SKIPPED, self.now, missed))
        return bool(missed)

    def _admitted(self, run: JobRun, *, full: bool) -> bool:
        """Return whether a run may begin now; else record what happens to it."""
        verdict = self._verdict(run)
        if verdict.cancel and self._ask_to_end(verdict.cancel, run):
            verdict = self._verdict(run)
        for each in verdict.replaces:
            self.put(each.ended(RunStatus.COALESCED, self.now, into=run.id))
        match verdict.verdict:
            case Verdict.BEGIN if full:
                return False
            case Verdict.BEGIN:
                for each in verdict.fence:
                    reason = f"it did not end within {self._rules[run.job].meeting.grace:g} s"
                    self.put(each.ended(RunStatus.CANCELLED, self.now, reason))
                return True
            case Verdict.WAIT:
                self._let_wait(run)
            case Verdict.SKIP:
                self.put(run.ended(RunStatus.SKIPPED, self.now, verdict.reason))
            case Verdict.COALESCE:  # pragma: no branch there is no other verdict
                self.put(run.ended(RunStatus.COALESCED, self.now, into=verdict.into))
        return False

    def _verdict(self, run: JobRun) -> Admission:
        record = self._book.records[run.job]
        own = [each for each in self._runs.values() if each.job == run.job and each.id != run.id]
        if record.is_paused:  # what waits for the end of the pause blocks no other run
            own = [each for each in own if each.is_active or each.trigger is not Trigger.EVENT]
        others = [each for each in self._runs.values() if each.job != run.job]
        return admission(run, own, others, self._rules[run.job].meeting, self.now)

    def _ask_to_end(self, runs: Sequence[JobRun], by: JobRun) -> bool:
        """Ask runs to end; return whether one of them has ended with that."""
        asked = [asked_to_end(each, self.now, f"run {by.id} is to take its place") for each in runs]
        for each in asked:
            self.put(each)
        return not all(each.is_open for each in asked)

    def _let_wait(self, run: JobRun) -> None:
        if not run.queued:
            self._write(replace(run, queued=True))

    def _with_events(self, run: JobRun) -> JobRun:
        """Merge runs for other events that may begin into a run for an event, up to the ids of a page."""
        if run.trigger is not Trigger.EVENT or run.status is not RunStatus.QUEUED:
            return run
        rule = self._rules[run.job]
        ids = run.ids
        active = [each for each in self._runs.values() if each.job == run.job and each.is_active]
        for other in self.runs:
            same = other.job == run.job and other.id != run.id and other.trigger is Trigger.EVENT
            if not same or other.status is not RunStatus.QUEUED or not other.is_due(self.now):
                continue
            together = _together(ids, other.ids)
            if together is not None and len(together) > rule.limit:
                continue
            if any(excludes(other, each, rule.meeting.scope) for each in active):
                continue
            ids = together
            self.put(other.ended(RunStatus.COALESCED, self.now, into=run.id))
        return replace(run, ids=ids)

    def _begin(self, run: JobRun, room: Room) -> JobRun:
        begun = replace(
            run,
            status=RunStatus.RUNNING,
            started_at=run.started_at or self.now,
            attempt=run.attempt + 1,
            owner=room.node,
            node=room.name,
            token=run.token + 1,
            reserved=room.node if run.id == room.only else "",
            queued=False,
            reason="",
            waits_until=None,
        )
        return self._write(begun)


def asked_to_end(run: JobRun, now: datetime, reason: str) -> JobRun:
    """Return a run after a request to end; it has ended, unless a process executes it."""
    if run.status is RunStatus.RUNNING:
        return replace(run, cancelled_at=run.cancelled_at or now, reason=reason)
    return run.ended(RunStatus.CANCELLED, now, reason)


def tick_is_due(tick: datetime | None, now: datetime) -> bool:
    """Return whether a tick is due."""
    return tick is not None and tick <= now


def needs_tick(record: JobRecord, ticking: Ticking, runs: Sequence[JobRun], now: datetime) -> bool:
    """Return whether the next tick has to be found.

    It has if the recorded one belongs to another schedule, or is so far away that the clock must have been set back by
    more than the time between two ticks; or if the end of the previous run was not noticed.
    """
    if record.schedule != ticking.text:
        return True
    if record.next_tick is not None:
        return record.next_tick > now and _is_too_far(record.next_tick, ticking, now)
    if not ticking.from_end:
        return False
    return not any(run.job == record.name and run.trigger is Trigger.SCHEDULE for run in runs)


def _is_too_far(tick: datetime, ticking: Ticking, now: datetime) -> bool:
    """Return whether a tick is later than the second next one of a process that starts now, or a run that ends now."""
    schedule = ticking.schedule
    if schedule is None or tick <= (following := schedule.following(now, now)):  # as nearly always
        return False
    following = max(following, schedule.first(now))
    return tick > schedule.following(following, following)


def is_too_late(run: JobRun, rule: JobRule, now: datetime) -> bool:
    """Return whether an attempt waits longer than it has to, as the clock was set back since its time was recorded.

    It would not begin until then, and would keep other runs of its job from beginning.
    """
    of_desk = run.status is RunStatus.RETRYING or (run.trigger is Trigger.SCHEDULE and run.status is RunStatus.QUEUED)
    if not of_desk or run.due_at is None or run.due_at <= now:  # as nearly always
        return False
    return run.due_at - now > timedelta(seconds=_longest_wait(run, rule)) + _TOLERANCE


def _longest_wait(run: JobRun, rule: JobRule) -> float:
    """Return the seconds that an attempt waits at most, counted from when its time is recorded."""
    if run.status is RunStatus.RETRYING:
        return wait_after(rule.back_off, max(0, run.attempt - 1 - run.deaths), run.id) or 0.0
    return rule.ticking.jitter


def tick_id(job: str, at: datetime) -> str:
    """Return the id of the run of a tick."""
    return f"{job}@{at.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}"


def _recovered(run: JobRun, now: datetime) -> JobRun:
    if run.status is RunStatus.QUEUED:
        return run.ended(RunStatus.CANCELLED, now, "the process that was to run it has ended")
    error = f"the process of node {run.node} has ended"
    if run.status is RunStatus.RETRYING:  # its caller waited for the next attempt: the last one has failed by itself
        return replace(run, reserved="", token=run.token + 1, reason=error)
    deaths = run.deaths + 1
    if run.cancelled_at is not None:
        return replace(run, deaths=deaths).ended(RunStatus.CANCELLED, now)
    if deaths >= MOST_DEATHS:
        last = f"{deaths} processes have ended during this run, the last one is node {run.node}"
        return replace(run, deaths=deaths, error=last).ended(RunStatus.FAILED, now)
    taken = replace(run, deaths=deaths, owner="", reserved="", token=run.token + 1, error=error)
    return replace(taken, status=RunStatus.RETRYING, due_at=now)


def _run_of(tick: Tick, record: JobRecord, now: datetime, newest: str = "", jitter: float = 0.0) -> JobRun:
    """Return the run of a tick, which has ended if the tick starts none."""
    run = JobRun(
        tick_id(record.name, tick.at),
        record.name,
        Trigger.SCHEDULE,
        now,
        scheduled_at=tick.at,
        due_at=tick.at + timedelta(seconds=jitter),
        queued=tick.waits,
        ticks=tick.count,
    )
    if record.is_paused:
        return run.ended(RunStatus.SKIPPED, now, f"the job is {record.pause_text}")
    if tick.missed:
        return run.ended(RunStatus.SKIPPED, now, tick.missed)
    return run.ended(RunStatus.COALESCED, now, into=newest) if tick.with_later else run


def _only_waits(run: JobRun) -> bool:
    """Return whether a run that cannot begin waits, whatever blocks it."""
    return run.queued or run.trigger is Trigger.EVENT


def _together(ids: tuple[JobId, ...] | None, more: tuple[JobId, ...] | None) -> tuple[JobId, ...] | None:
    return None if ids is None or more is None else distinct((*ids, *more))

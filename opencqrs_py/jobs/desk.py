"""The desk: records what becomes of ticks, requests and runs, so that each is done once, by one process."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from opencqrs_py.jobs.overlap import Verdict, admission
from opencqrs_py.jobs.ports import JobBook, JobStore
from opencqrs_py.jobs.rules import JobRule, Ticking
from opencqrs_py.jobs.runs import JobRecord, JobRun, JobsView, Position, RunStatus
from opencqrs_py.jobs.ticks import Tick, ticks_until
from opencqrs_py.model.job import JobId, Trigger
from opencqrs_py.processing.recovery import wait_after

MOST_DEATHS = 3
"""Processes that may end during a run before it counts as failed, as for events that end their process."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that runs jobs, as it stands.

    Attributes:
        node: Its id.
        name: How people know it.
        alive: Ids of all processes whose runs go on, its own included.
        free: How many runs it can begin.
        ticks_of: The jobs whose schedule it may follow: no younger process has another one.
    """

    node: str
    name: str
    alive: frozenset[str]
    free: int
    ticks_of: frozenset[str]


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt of a run has ended.

    Attributes:
        position: What of it is done.
        error: How it failed; empty if it did not.
        permanent: Whether no further attempt helps.
        reason: Why it ended early, or was cancelled; empty if all is done.
        cancelled: Whether it was asked to end.
        released: Whether it continues in another process, as this one ends.
    """

    position: Position
    error: str = ""
    permanent: bool = False
    reason: str = ""
    cancelled: bool = False
    released: bool = False


class JobDesk:
    """What is decided about the runs of jobs. Each method is one transaction, or a short one for each job.

    Args:
        store: The tables of jobs.
        rules: How each job runs that this process knows, by name.
        draw: Source of numbers in ``0..1`` for jitter.
    """

    def __init__(
        self, store: JobStore, rules: Mapping[str, JobRule], draw: Callable[[], float] = random.random
    ) -> None:
        self.store = store
        self.rules = rules
        self._draw = draw
        self._exclusive = _both_ways(rules)

    def attend(self, worker: Worker) -> list[JobRun]:
        """Record the ticks that have come, take up what dead processes had in hand, and begin what may begin.

        Returns:
            The runs that the worker has to execute now.
        """
        view = self.store.look()
        begun: list[JobRun] = []
        for name in sorted(self._with_work(view, worker)):
            free = replace(worker, free=worker.free - len(begun))
            begun += self._attended(name, free)
        return begun

    def next_due(self, view: JobsView, worker: Worker) -> datetime | None:
        """Return when there is something to do by what is known, ``None`` if nothing is."""
        ticks = (
            record.next_tick
            for name in worker.ticks_of & view.records.keys()
            if (record := view.records[name]).next_tick is not None
        )
        runs = (
            each.due_at or each.requested_at
            for each in view.runs
            if each.job in self.rules and not each.queued and each.status is not RunStatus.RUNNING
        )
        return min(filter(None, (*ticks, *runs)), default=None)

    def begin(self, run: str, worker: Worker) -> JobRun:
        """Begin one run now if it may begin; return it as it stands."""
        found = self.store.find(run)
        if found is None or not found.is_open:
            raise LookupError(run)
        begun = self._attended(found.job, worker, only=run)
        return begun[0] if begun else self.store.find(run) or found

    def request(self, run: JobRun) -> bool:
        """Record a run that a person, a program or an event asks for; return whether it is new."""
        return self.store.request(run)

    def finish(self, run: JobRun, ending: Ending) -> JobRun | None:
        """Record how an attempt has ended.

        Args:
            run: The run as it was begun.
            ending: How it ended.

        Returns:
            The run as it stands now; ``None`` if it was taken from its owner meanwhile.
        """
        rule = self.rules[run.job]
        with self.store.open([run.job]) as book:
            known = _known(book, run)
            if known is None:
                return None
            ended = _after(known, ending, rule, book.now)
            self._put(book, ended)
        return ended

    def cancel(self, run: str, reason: str, actor: str = "") -> JobRun | None:
        """Ask a run to end, or end it if it has not begun; return it, ``None`` if it has ended or is not known."""
        found = self.store.find(run)
        if found is None:
            return None
        with self.store.open([found.job]) as book:
            known = next((each for each in book.runs if each.id == run), None)
            if known is None:
                return None
            known = replace(known, reason=reason, actor=actor or known.actor)
            if known.status is RunStatus.RUNNING:
                known = replace(known, cancelled_at=known.cancelled_at or book.now)
            else:
                known = known.ended(RunStatus.CANCELLED, book.now)
            self._put(book, known)
        return known

    def pause(self, job: str, actor: str, reason: str) -> JobRecord:
        """Have no trigger start runs of a job until it is resumed; one in hand goes on."""
        with self.store.open([job]) as book:
            record = book.records[job]
            if not record.is_paused:
                record = replace(record, paused_at=book.now, paused_by=actor, reason=reason)
                book.put_record(record)
        return record

    def resume(self, job: str) -> JobRecord:
        """Let triggers start runs of a job again."""
        with self.store.open([job]) as book:
            record = replace(book.records[job], paused_at=None, paused_by="", reason="")
            book.put_record(record)
        return record

    def purge(self) -> int:
        """Remove runs that ended longer ago than they are to be listed; return how many."""
        now = self.store.look(()).now
        return sum(self.store.purge(name, now - rule.keep) for name, rule in self.rules.items())

    def _with_work(self, view: JobsView, worker: Worker) -> set[str]:
        """Return the jobs of which something is to be done, as far as a look shows."""
        names: set[str] = set()
        for name in worker.ticks_of:
            record = view.records.get(name, JobRecord(name))
            if _has_come(record.next_tick, view.now) or _needs_tick(record, self.rules[name].ticking, view.runs):
                names.add(name)
        for run in view.runs:
            if run.job in self.rules and (run.is_due(view.now) or _is_orphan(run, worker.alive)):
                names.add(run.job)
        return names

    def _attended(self, name: str, worker: Worker, only: str = "") -> list[JobRun]:
        exclusive = self._exclusive[name]
        with self.store.open({name, *exclusive}) as book:
            self._recover(book, worker)
            if name in worker.ticks_of:
                self._tick(book, self.rules[name])
            return self._begun(book, name, worker, only)

    def _recover(self, book: JobBook, worker: Worker) -> None:
        """Take from their owners the runs of processes that have ended."""
        for run in list(book.runs):
            if not _is_orphan(run, worker.alive):
                continue
            if run.reserved:
                self._put(book, run.ended(RunStatus.CANCELLED, book.now, "the process that was to run it has ended"))
                continue
            deaths = run.deaths + 1
            taken = replace(run, deaths=deaths, owner="", token=run.token + 1)
            if run.cancelled_at is not None:
                self._put(book, replace(taken, status=RunStatus.CANCELLED, ended_at=book.now))
            elif deaths >= MOST_DEATHS:
                error = f"{deaths} processes have ended during this run, the last one is node {run.node}"
                self._put(book, replace(taken, status=RunStatus.FAILED, ended_at=book.now, error=error))
            else:
                error = f"the process of node {run.node} has ended"
                self._put(book, replace(taken, status=RunStatus.RETRYING, due_at=book.now, error=error))

    def _tick(self, book: JobBook, rule: JobRule) -> None:
        record, ticking, now = book.records[rule.name], rule.ticking, book.now
        if _needs_tick(record, ticking, book.runs):
            first = ticking.schedule.first(now) if ticking.schedule is not None else None
            record = replace(record, schedule=ticking.text, next_tick=first)
            book.put_record(record)
        if record.next_tick is None or record.next_tick > now:
            return
        ticks = ticks_until(ticking, record.next_tick, now)
        newest = _tick_id(rule.name, ticks.due[-1].at)
        for tick in ticks.due:
            book.put(self._run_of(tick, rule, newest, record, now))
        book.put_record(replace(record, next_tick=ticks.next))
        if record.is_paused and ticking.from_end and ticking.schedule is not None:
            book.put_record(replace(record, next_tick=ticking.schedule.following(now, now)))

    def _run_of(self, tick: Tick, rule: JobRule, newest: str, record: JobRecord, now: datetime) -> JobRun:
        id_ = _tick_id(rule.name, tick.at)
        jitter = timedelta(seconds=rule.ticking.jitter * self._draw()) if rule.ticking.jitter else timedelta()
        run = JobRun(
            id_,
            rule.name,
            Trigger.SCHEDULE,
            now,
            scheduled_at=tick.at,
            due_at=tick.at + jitter,
            queued=tick.waits,
            ticks=tick.count,
        )
        if record.is_paused:
            return run.ended(RunStatus.SKIPPED, now, f"the job is paused{_by(record)}")
        if tick.missed:
            return run.ended(RunStatus.SKIPPED, now, tick.missed)
        return run.ended(RunStatus.COALESCED, now, into=newest) if tick.with_later else run

    def _begun(self, book: JobBook, name: str, worker: Worker, only: str) -> list[JobRun]:
        """Begin those runs of a job that may begin, as many as the worker has room for."""
        begun: list[JobRun] = []
        due = [run for run in book.runs if run.job == name and run.is_due(book.now) and (not only or run.id == only)]
        for run in sorted(due, key=lambda each: (each.due_at or each.requested_at, each.id)):
            current = next((each for each in book.runs if each.id == run.id), None)
            if current is None or (current.reserved and current.reserved != worker.node):
                continue
            admitted = current if current.status is RunStatus.RETRYING else self._admitted(book, current)
            if admitted is not None and len(begun) < worker.free:
                begun.append(self._begin(book, admitted, worker))
        return begun

    def _admitted(self, book: JobBook, run: JobRun) -> JobRun | None:
        """Return a run if it may begin now; else record what becomes of it."""
        record = book.records[run.job]
        if record.is_paused and run.trigger in (Trigger.EVENT, Trigger.STARTUP, Trigger.SCHEDULE):
            if run.trigger is not Trigger.EVENT:
                self._put(book, run.ended(RunStatus.SKIPPED, book.now, f"the job is paused{_by(record)}"))
            return None
        own = [each for each in book.runs if each.job == run.job and each.id != run.id]
        others = [each for each in book.runs if each.job != run.job]
        verdict = admission(run, own, others, self.rules[run.job].meeting, book.now)
        for each in verdict.cancel:
            book.put(_asked_to_end(each, book.now, f"run {run.id} is to take its place"))
        for each in verdict.replaces:
            self._put(book, each.ended(RunStatus.COALESCED, book.now, into=run.id))
        match verdict.verdict:
            case Verdict.BEGIN:
                for each in verdict.fence:
                    reason = f"it did not end within {self.rules[run.job].meeting.grace:g} s"
                    self._put(book, each.ended(RunStatus.CANCELLED, book.now, reason))
                return self._with_events(book, run)
            case Verdict.WAIT:
                book.put(replace(run, queued=True))
            case Verdict.SKIP:
                self._put(book, run.ended(RunStatus.SKIPPED, book.now, verdict.reason))
            case Verdict.COALESCE:
                self._put(book, run.ended(RunStatus.COALESCED, book.now, into=verdict.into))
        return None

    def _with_events(self, book: JobBook, run: JobRun) -> JobRun:
        """Let a run for an event stand for those of other events that wait, up to the ids of a page."""
        if run.trigger is not Trigger.EVENT:
            return run
        limit = self.rules[run.job].limit
        ids = run.ids
        for other in list(book.runs):
            same = other.job == run.job and other.id != run.id and other.trigger is Trigger.EVENT
            if not same or other.status is not RunStatus.QUEUED or not other.is_due(book.now):
                continue
            together = _together(ids, other.ids)
            if together is not None and len(together) > limit:
                continue
            ids = together
            self._put(book, other.ended(RunStatus.COALESCED, book.now, into=run.id))
        run = replace(run, ids=ids)
        book.put(run)
        return run

    def _begin(self, book: JobBook, run: JobRun, worker: Worker) -> JobRun:
        begun = replace(
            run,
            status=RunStatus.RUNNING,
            started_at=run.started_at or book.now,
            attempt=run.attempt + 1,
            owner=worker.node,
            node=worker.name,
            token=run.token + 1,
            queued=False,
        )
        book.put(begun)
        return begun

    def _put(self, book: JobBook, run: JobRun) -> None:
        """Write a run; if it has ended and the next tick counts from that, record that tick."""
        book.put(run)
        rule = self.rules.get(run.job)
        if run.is_open or run.trigger is not Trigger.SCHEDULE or rule is None or not rule.ticking.from_end:
            return
        schedule, record = rule.ticking.schedule, book.records[run.job]
        if schedule is not None and record.next_tick is None:
            book.put_record(replace(record, next_tick=schedule.following(book.now, book.now)))


def _after(run: JobRun, ending: Ending, rule: JobRule, now: datetime) -> JobRun:
    """Return a run as it stands after an attempt."""
    run = replace(run, position=ending.position)
    if ending.released:
        back = replace(run, status=RunStatus.RETRYING, due_at=now, owner="", token=run.token + 1)
        return replace(back, attempt=run.attempt - 1, reason=ending.reason)
    if ending.cancelled:
        return run.ended(RunStatus.CANCELLED, now, ending.reason)
    if not ending.error:
        return replace(run.ended(RunStatus.SUCCEEDED, now), error="", reason=ending.reason)
    run = replace(run, error=ending.error)
    wait = None if ending.permanent else wait_after(rule.back_off, run.attempt - 1 - run.deaths)
    if wait is None:
        return run.ended(RunStatus.FAILED, now)
    position = run.position
    if position.failed:
        position = replace(position, only=position.failed, failed=(), after=None, done=False, error="")
    due = now + timedelta(seconds=wait)
    return replace(run, status=RunStatus.RETRYING, due_at=due, owner="", token=run.token + 1, position=position)


def _known(book: JobBook, run: JobRun) -> JobRun | None:
    """Return a run as it is recorded, if its owner still has it."""
    found = next((each for each in book.runs if each.id == run.id), None)
    mine = found is not None and found.status is RunStatus.RUNNING and found.token == run.token
    return found if mine else None


def _asked_to_end(run: JobRun, now: datetime, reason: str) -> JobRun:
    if run.status is RunStatus.RUNNING:
        return replace(run, cancelled_at=now, reason=reason)
    return run.ended(RunStatus.CANCELLED, now, reason)


def _together(ids: tuple[JobId, ...] | None, more: tuple[JobId, ...] | None) -> tuple[JobId, ...] | None:
    if ids is None or more is None:
        return None
    return tuple(dict.fromkeys((*ids, *more)))


def _is_orphan(run: JobRun, alive: Collection[str]) -> bool:
    """Return whether the process has ended that has a run in hand, or is the only one that may have it."""
    owner = run.owner if run.status is RunStatus.RUNNING else run.reserved
    return bool(owner) and owner not in alive


def _has_come(tick: datetime | None, now: datetime) -> bool:
    return tick is not None and tick <= now


def _needs_tick(record: JobRecord, ticking: Ticking, runs: Sequence[JobRun]) -> bool:
    """Return whether the next tick has to be found: of another schedule, or since the run before has ended unseen."""
    if record.schedule != ticking.text:
        return True
    ended = not any(run.job == record.name and run.trigger is Trigger.SCHEDULE for run in runs)
    return ticking.from_end and record.next_tick is None and ended


def _tick_id(job: str, at: datetime) -> str:
    return f"{job}@{at.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}"


def _by(record: JobRecord) -> str:
    by = f" by {record.paused_by}" if record.paused_by else ""
    return f"{by}: {record.reason}" if record.reason else by


def _both_ways(rules: Mapping[str, JobRule]) -> dict[str, frozenset[str]]:
    """Return the jobs that exclude each job, also those that say so only themselves."""
    found: dict[str, set[str]] = {name: set(rule.meeting.exclusive) - {name} for name, rule in rules.items()}
    for name, rule in rules.items():
        for other in rule.meeting.exclusive:
            if other != name:
                found.setdefault(other, set()).add(name)
    return {name: frozenset(others) for name, others in found.items()}

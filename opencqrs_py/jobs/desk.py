"""The desk: records what happens to ticks, requests and runs, so that each is done once, by one process."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from opencqrs_py.jobs.ports import JobStore
from opencqrs_py.jobs.rules import JobRule
from opencqrs_py.jobs.runs import JobRecord, JobRun, JobsView, RunPosition, RunStatus
from opencqrs_py.jobs.sitting import (
    AttemptKey,
    Room,
    Sitting,
    asked_to_end,
    attempt_key,
    is_too_late,
    needs_tick,
    tick_is_due,
)
from opencqrs_py.jobs.ticks import MOST_TICKS
from opencqrs_py.model.job import Trigger
from opencqrs_py.model.naming import counted
from opencqrs_py.processing.recovery import wait_after

_log = logging.getLogger("opencqrs.jobs")

_HELD = timedelta(seconds=3)
"""How long a job is skipped whose records stay locked for too long, so that the other jobs do not wait for it."""


@dataclass(frozen=True, slots=True)
class Worker:
    """The state of a process that runs jobs.

    Attributes:
        node: Its id.
        name: Its name for people.
        alive: Ids of all processes whose runs continue, its own included, as of some time ago.
        free: How many runs it can begin.
        ticks_of: The jobs whose schedule it may follow: no later process has another one.
        alive_now: Returns the current ``alive``, from the control plane itself. It is called after reading
            the runs, if one of them seems to have lost its process, so that none is taken from a process that has
            started since ``alive`` was read.
        own: Earlier ids of the process, which lost its leases.
    """

    node: str
    name: str
    alive: frozenset[str]
    free: int
    ticks_of: frozenset[str]
    alive_now: Callable[[], Collection[str]]
    own: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt of a run has ended.

    Attributes:
        position: What of it is done.
        error: How it failed; empty if it did not. If it was asked to end while it waited, why it waited.
        permanent: Whether no further attempt helps.
        reason: Why it ended early, or was cancelled; empty if all is done.
        cancelled: Whether it was asked to end.
        released: Whether it continues in another process, as this one ends; in the result of a task on Spark, which has
            loaded other code, together with the error.
    """

    position: RunPosition
    error: str = ""
    permanent: bool = False
    reason: str = ""
    cancelled: bool = False
    released: bool = False


class JobDesk:
    """Decisions about the runs of jobs. Each method is one transaction, or a short one for each job.

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
        self._concerned = self._exclusive.keys()
        self._mine: set[AttemptKey] = set()  # what this desk has begun, and returned
        self._meant: dict[AttemptKey, JobRun] = {}  # ends whose commit got no answer
        self._taken: dict[AttemptKey, JobRun] = {}  # from their processes, by a commit that got no answer
        self._recovered: deque[JobRun] = deque()  # taken from their processes, and not reported yet
        self._held: dict[str, datetime] = {}  # jobs whose records could not be opened, and until when they are skipped

    def attend(self, worker: Worker) -> list[JobRun]:
        """Record the ticks that are due, take over the runs of dead processes, and begin what may begin.

        Call it also when the worker is full: then runs that are to be skipped are skipped in time. If
        it raises, the next call takes over what it has begun.

        Returns:
            The runs that the worker has to execute now. Those reserved for a caller are left to ``begin``.
        """
        self._confirm()
        view = self.store.look()
        dead = self._dead(view, worker)
        begun: list[JobRun] = []
        for name in self._with_work(view, worker, dead):
            free = replace(worker, free=worker.free - len(begun))
            try:
                begun += self._attended(name, free, dead)
            except BaseException as error:
                if isinstance(error, Exception) and self.store.is_outage(error):
                    self._held[name] = view.now + _HELD
                    if begun:
                        break
                self._mine.difference_update(map(attempt_key, begun))
                raise
        return begun

    @property
    def leaves_out(self) -> bool:
        """Whether the last ``attend`` has skipped a job, as its records could not be opened."""
        return bool(self._held)

    def recovered(self) -> Iterator[JobRun]:
        """Yield the runs that this desk has taken from dead processes, as recorded; each once.

        It also yields runs that were cancelled because their callers could not learn that they had begun. If ``attend``
        or ``begin`` raises, the next call of either finds out what was recorded.
        """
        while self._recovered:
            yield self._recovered.popleft()

    def next_due(self, view: JobsView, worker: Worker) -> datetime | None:
        """Return when a worker with free capacity has something to do, as far as known; ``None`` if never.

        What waits for other runs, for the end of a pause or for the caller that it is reserved for has no time.
        """
        ticks = (
            self._not_held(name, record.next_tick)
            for name in worker.ticks_of & view.records.keys()
            if (record := view.records[name]).next_tick is not None
        )
        runs = (
            self._not_held(run.job, run.due_at or run.requested_at) for run in view.runs if self._has_time(run, view)
        )
        return min((*ticks, *runs), default=None)

    def begin(self, run: str, worker: Worker) -> JobRun:
        """Begin one run now if it may begin; return its state.

        Call it again until it is running for this worker, or has ended. A run that is ``reserved`` for a worker begins
        with this only, so that it does so on the thread of its caller; while that has it in hand, it is ``reserved``.

        Raises:
            LookupError: If there is no such run, or its job is not known here.
        """
        self._confirm()
        found = self.store.find(run)
        if found is None or found.job not in self.rules:
            raise LookupError(run)
        if not found.is_open:
            return found
        view = self.store.look({found.job, *self._exclusive[found.job]})
        begun = self._attended(found.job, worker, self._dead(view, worker), only=run)
        return begun[0] if begun else self.store.find(run) or found

    def left(self, job: str, worker: Worker) -> list[JobRun]:
        """Return the requested runs of a job that have begun, and that no process has in hand; the oldest first."""
        view = self.store.look([job])
        dead = self._dead(view, worker)
        begun = [run for run in view.runs if run.is_active and run.trigger is Trigger.MANUAL]
        free = [run for run in begun if run.status is RunStatus.RETRYING and not run.reserved]
        return [run for run in begun if run in free or attempt_key(run) in dead]

    def finish(self, run: JobRun, ending: Ending) -> JobRun | None:
        """Record how an attempt has ended.

        Args:
            run: The run as it was begun.
            ending: How it ended.

        Returns:
            The state of the run after the attempt; ``None`` if it was taken from its owner meanwhile.
        """
        rule, key, ended = self.rules[run.job], attempt_key(run), None
        with self.store.open([run.job]) as book:
            sitting = Sitting(book, self.rules)
            known = sitting.find(run.id)
            if known is not None and known.status is RunStatus.RUNNING and known.token == run.token:
                ended = self._meant[key] = _after(known, ending, rule, book.now)
                sitting.put(ended)
                if ended.status is RunStatus.SUCCEEDED:
                    book.put_record(replace(book.records[run.job], succeeded_at=book.now))
        meant = self._meant.get(key)
        if ended is None and meant is not None:  # perhaps recorded by a call whose answer was lost
            ended = meant if _is_recorded(meant, self.store.find(run.id)) else None
        self._meant.pop(key, None)
        self._mine.discard(key)
        return ended

    def cancel(
        self, run: str, reason: str, actor: str = "", alive_now: Callable[[], Collection[str]] | None = None
    ) -> JobRun | None:
        """Ask a run to end, or end it if it has not begun; return it, ``None`` if it has ended or is not known.

        Args:
            run: Its id.
            reason: Why.
            actor: The caller's name.
            alive_now: As for :class:`Worker`, if no process takes over the runs of dead ones, as none has the job; such
                a run ends at once, too.
        """
        found = self.store.find(run)
        ended = [] if found is None else self.cancel_all(found.job, [found], reason, actor, alive_now)
        return ended[0] if ended else None

    def cancel_all(
        self,
        job: str,
        runs: Sequence[JobRun],
        reason: str,
        actor: str = "",
        alive_now: Callable[[], Collection[str]] | None = None,
    ) -> list[JobRun]:
        """Ask runs of a job to end, as ``cancel`` does, all at once; return those that had not ended."""
        if not runs:
            return []
        running = [run for run in runs if run.status is RunStatus.RUNNING]
        alive = alive_now() if alive_now is not None and running else None
        dead = {attempt_key(run) for run in running if alive is not None and _is_orphan(run, alive)}
        ended: list[JobRun] = []
        with self.store.open([job]) as book:
            sitting = Sitting(book, self.rules)
            for run in runs:
                known = sitting.find(run.id)
                if known is not None and attempt_key(known) in dead:
                    sitting.recover(known)
                    known = sitting.find(run.id)
                if known is not None:
                    ended.append(asked_to_end(replace(known, actor=actor or known.actor), book.now, reason))
                    sitting.put(ended[-1])
        return ended

    def pause(self, job: str, actor: str, reason: str) -> tuple[JobRecord, bool]:
        """Keep triggers from starting runs of a job until it is resumed; a run in progress continues.

        Returns:
            What is kept of the job, and whether that is new: a paused job keeps the person and the reason that it has.
        """
        with self.store.open([job]) as book:
            record = book.records[job]
            if record.is_paused:
                return record, False
            record = replace(record, paused_at=book.now, paused_by=actor, reason=reason)
            book.put_record(record)
        return record, True

    def resume(self, job: str) -> tuple[JobRecord, bool]:
        """Let triggers start runs of a job again; return what is kept of it, and whether it was paused."""
        with self.store.open([job]) as book:
            known = book.records[job]
            record = replace(known, paused_at=None, paused_by="", reason="")
            book.put_record(record)
        return record, known.is_paused

    def purge(self) -> int:
        """Remove runs that ended longer ago than they are to be listed; return how many."""
        now = self.store.look(()).now
        return sum(self.store.purge(name, now - rule.keep) for name, rule in self.rules.items())

    def _with_work(self, view: JobsView, worker: Worker, dead: Collection[AttemptKey]) -> list[str]:
        """Return the jobs that have something to do, as far as a read shows.

        The oldest comes first, so that no job takes the capacity that another one has waited for longer.
        """
        self._held = {name: until for name, until in self._held.items() if until > view.now}
        since: dict[str, datetime] = {}
        for name in worker.ticks_of:
            record, ticking = view.records.get(name, JobRecord(name)), self.rules[name].ticking
            if tick_is_due(record.next_tick, view.now) or needs_tick(record, ticking, view.runs, view.now):
                since[name] = min(record.next_tick or view.now, view.now)
        for run in view.runs:
            if run.job in self.rules:
                to_do = (run.is_due(view.now) and not run.reserved) or is_too_late(run, self.rules[run.job], view.now)
                if to_do or attempt_key(run) in dead or self._is_lost(run, worker):
                    since[run.job] = min(since.get(run.job, view.now), run.due_at or run.requested_at)
        return sorted(since.keys() - self._held.keys(), key=lambda name: (since[name], name))

    def _dead(self, view: JobsView, worker: Worker) -> frozenset[AttemptKey]:
        """Return the runs of processes that have ended."""
        orphans = [run for run in view.runs if run.job in self._concerned and _is_orphan(run, worker.alive)]
        alive = worker.alive_now() if orphans else ()
        return frozenset(attempt_key(run) for run in orphans if _is_orphan(run, alive))

    def _confirm(self) -> None:
        """Find out which runs were taken from their processes by calls whose answers were lost."""
        for claim, meant in list(self._taken.items()):
            is_recorded = _is_recorded(meant, self.store.find(meant.id))
            if self._taken.pop(claim, None) is not None and is_recorded:
                self._recovered.append(meant)

    def _is_lost(self, run: JobRun, worker: Worker) -> bool:
        """Return whether a run is recorded as begun here, and no call has returned that."""
        is_own = run.owner == worker.node or run.owner in worker.own
        return run.status is RunStatus.RUNNING and is_own and attempt_key(run) not in self._mine

    def _not_held(self, job: str, at: datetime) -> datetime:
        return max(at, self._held.get(job, at))

    def _has_time(self, run: JobRun, view: JobsView) -> bool:
        if run.job not in self.rules or run.status is RunStatus.RUNNING or run.reserved:
            return False
        if run.due_at is not None and run.due_at > view.now:
            return True
        return not run.queued and not is_held(run, view)

    def _attended(self, name: str, worker: Worker, dead: Collection[AttemptKey], only: str = "") -> list[JobRun]:
        begun: list[JobRun] = []
        taken: dict[AttemptKey, JobRun] = {}
        try:
            with self.store.open({name, *self._exclusive[name]}) as book:
                sitting = Sitting(book, self.rules)
                for run in sitting.runs:
                    if attempt_key(run) in dead:
                        taken[attempt_key(run)] = sitting.recover(run)
                    elif self._is_lost(run, worker):
                        if not (back := sitting.take_back(run)).is_open:
                            taken[attempt_key(run)] = back
                    elif run.id == only and run.reserved in worker.own:
                        sitting.reserve(run, worker.node)
                sitting.bring_forward(name)
                left_out = sitting.tick(self.rules[name], self._draw) if name in worker.ticks_of else 0
                begun = sitting.begin(name, Room(worker.node, worker.name, worker.free, only))
                self._mine.update(map(attempt_key, begun))  # before others can see them
            self._recovered += taken.values()
            if left_out:
                text = "[job %s] %s no run: misfire catch-up starts at most the last %s"
                ticks = counted(left_out, "missed tick starts", "missed ticks start")
                _log.warning(text, name, ticks, f"{MOST_TICKS:,}", extra={"action": "skipped", "job": name})
            if known := book.known:  # as another program has used the id of a tick
                begun = [run for run in begun if run.id not in known]
        except BaseException:  # whether they have begun, or were taken, is not known
            self._mine.difference_update(map(attempt_key, begun))
            self._taken.update(taken)
            raise
        return begun


def is_held(run: JobRun, view: JobsView) -> bool:
    """Return whether a run waits for the end of a pause of its job."""
    record = view.records.get(run.job)
    return record is not None and record.is_paused and run.trigger is Trigger.EVENT


def _after(known: JobRun, ending: Ending, rule: JobRule, now: datetime) -> JobRun:
    """Return the state of a run after an attempt."""
    run = replace(known, position=ending.position)
    if ending.cancelled or ending.released:  # meanwhile its own thread may have recorded more
        run = replace(run, position=known.position, error=ending.error or known.error)
    if ending.released and run.cancelled_at is None:
        back = replace(run, status=RunStatus.RETRYING, due_at=now, owner="", token=run.token + 1)
        return replace(back, attempt=run.attempt - 1, reason=ending.reason)
    if ending.cancelled or ending.released:
        return run.ended(RunStatus.CANCELLED, now, ending.reason)
    if not ending.error:
        return replace(run.ended(RunStatus.SUCCEEDED, now), error="", reason=ending.reason)
    run = replace(run, error=ending.error)
    if run.cancelled_at is not None:
        return run.ended(RunStatus.CANCELLED, now)
    wait = None if ending.permanent else wait_after(rule.back_off, run.attempt - 1 - run.deaths, run.id)
    if wait is None:
        return run.ended(RunStatus.FAILED, now)
    position = run.position
    if position.failed and position.done:
        position = replace(position, only=position.failed, failed=(), after=None, done=False, error="")
    due = now + timedelta(seconds=wait)
    return replace(run, status=RunStatus.RETRYING, due_at=due, owner="", token=run.token + 1, position=position)


def _is_recorded(meant: JobRun, found: JobRun | None) -> bool:
    """Return whether the state of a run that was written by a call whose answer was lost is recorded.

    Args:
        meant: What was written.
        found: The run as it is recorded now. What was to be attempted again may have begun, and ended, since then.
    """
    if found is None:
        return False
    if meant.is_open:
        due = found.due_at is not None and meant.due_at is not None and _ms(found.due_at) == _ms(meant.due_at)
        return due and found.token >= meant.token and found.deaths == meant.deaths
    return _end_of(found) == _end_of(meant)


def _end_of(run: JobRun) -> tuple[RunStatus, int, str, str, datetime | None]:
    """Return what identifies the end of a run; the time distinguishes it from one that another process has recorded."""
    return run.status, run.token, run.error, run.reason, run.ended_at


def _ms(moment: datetime) -> datetime:
    """Return a moment as stores keep it."""
    return moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)


def _is_orphan(run: JobRun, alive: Collection[str]) -> bool:
    """Return whether the process that executes a run, or for which it is reserved, has ended."""
    owner = run.owner if run.status is RunStatus.RUNNING else run.reserved
    return bool(owner) and owner not in alive


def _both_ways(rules: Mapping[str, JobRule]) -> dict[str, frozenset[str]]:
    """Return the jobs that exclude each job, in either direction."""
    found: dict[str, set[str]] = {name: set(rule.meeting.exclusive) - {name} for name, rule in rules.items()}
    for name, rule in rules.items():
        for other in rule.meeting.exclusive:
            if other != name:
                found.setdefault(other, set()).add(name)
    return {name: frozenset(others) for name, others in found.items()}

"""The runner of jobs: one thread watches what is due, and each active run has its own thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Condition, Lock, Thread
from threading import Event as Signal

from opencqrs_py.engines.job_parts import Company, JobParts
from opencqrs_py.engines.leading import END_PATIENCE, join_all
from opencqrs_py.engines.long_runs import warned_of
from opencqrs_py.engines.run_log import log_begin, log_end, logger
from opencqrs_py.errors import WaitTimedOutError
from opencqrs_py.jobs.desk import Ending, JobDesk, Worker, is_held
from opencqrs_py.jobs.execution import OUTAGE_BACK_OFF, JobExecution, Surroundings
from opencqrs_py.jobs.runs import JobRun, JobsView, RunStatus
from opencqrs_py.jobs.sitting import AttemptKey, attempt_key
from opencqrs_py.model.job import RunSignals, Trigger
from opencqrs_py.processing.exceptions import one_line, raise_interrupt
from opencqrs_py.processing.loggers import enable_loggers

POLL_SECONDS = 1.0
"""Seconds between two polls for requests of other processes and people."""

_WAIT_SECONDS = 0.1  # between two polls of a run for which a caller waits
_PURGE_SECONDS = 600.0
_ENDING = "its process is ending"


@dataclass(eq=False)
class _InHand:
    """A run that this process executes."""

    run: JobRun
    signals: RunSignals
    began: float
    warned: int = 0
    thread: Thread | None = None
    reported: tuple[int | None, int | None] = (None, None)
    released: bool = False  # by a stop that has not waited for it
    adopted: bool = False  # whether another process has left it


class JobRunner:
    """Runs jobs in this process. Safe for several threads.

    Args:
        parts: Its parts.
        company: Returns this process among those that run jobs; ``None`` while it has no leases, and begins nothing.

    Source:
        J4, J13, J18 and J21.
    """

    def __init__(self, parts: JobParts, company: Callable[[], Company | None]) -> None:
        self._parts = parts
        self._company = company
        self._rules = {name: job.rule for name, job in parts.jobs.items()}
        self.desk = JobDesk(parts.store, self._rules)
        self._continuing = Lock()  # while a caller continues what others have left
        self._in_hand: dict[AttemptKey, _InHand] = {}
        self._ids: set[str] = set()  # of this process: it gets a new one after the end of its leases
        self._callers = 0  # that wait for runs on their threads
        self._changed = Condition()
        self._stopping = False
        self._asked_for_starts = False  # whether the runs after the start of the process are recorded
        self._woken = False
        self._attended = False  # whether what was due at the start has begun
        self._unreported = False  # whether runs of dead processes may have ended that are not counted yet
        self._failure: BaseException | None = None
        self._failed = 0
        self._purged_at = time.monotonic()
        self._thread = Thread(target=self._guarded, name="opencqrs-jobs", daemon=True)
        self._around = Surroundings(parts.store, parts.transactions, parts.select, parts.clock, self._pause)

    @property
    def schedules(self) -> dict[str, str]:
        """Fingerprint of the schedule of each job, by name."""
        return {name: rule.ticking.text for name, rule in self._rules.items()}

    def node(self) -> str:
        """Return the id of this process among those that run jobs; empty while it has no leases."""
        company = self._company()
        if company is None:
            return ""
        with self._changed:
            self._ids.add(company.node)
        return company.node

    def start(self) -> None:
        """Start following schedules and running requested jobs; nothing after a stop."""
        self._appear()
        if self._stopping:  # a stop in another thread may be over
            self._parts.runners.difference_update(self._ids)
            return
        company = self._company()
        if company is not None:
            self._request_starts(company)
        self._thread.start()

    def end(self) -> None:
        """Begin no further run, and request the active ones to end."""
        with self._changed:
            self._stopping = True
            for each in self._in_hand.values():
                each.signals.cancelled = each.signals.cancelled or _ENDING
            self._changed.notify_all()

    def stop(self, patience: float) -> None:
        """Begin no further run, request runs to end, wait at most ``patience`` seconds, and release the others.

        Those continue in another process, or at the next start, under the same record. What they write here from then
        on is not committed.
        """
        self.end()
        until = time.monotonic() + patience
        join_all(self._threads(), patience)
        join_all([self._thread], END_PATIENCE)
        join_all(self._threads(), until - time.monotonic())  # which it has begun in the meantime
        if self.in_hand:  # in the background: an active run may hold the write lock of an SQLite file
            letting_go = Thread(target=self._let_go, name="opencqrs-jobs-release", daemon=True)
            letting_go.start()
            letting_go.join(END_PATIENCE)
        self._parts.runners.difference_update(self._ids)

    def check(self) -> None:
        """Raise the error that ended the watching thread, if any."""
        if self._failure is not None:
            raise self._failure

    def wake(self) -> None:
        """Check at once what is due."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    @property
    def in_hand(self) -> list[JobRun]:
        """The runs that this process executes."""
        return [each.run for each in self._executed()]

    @property
    def failed(self) -> int:
        """How many runs have failed in this process, with no attempt left."""
        return self._failed

    def is_busy(self) -> bool:
        """Return whether a run is active, was just taken, may begin, or has an attempt left after one that failed.

        Due ticks and runs of ended processes count as runs that may begin only after they were first processed. A run
        that has failed with its processes counts as active until it is counted.
        """
        if self.in_hand or (self._thread.ident is not None and not self._attended):
            return True
        view = self._parts.store.look(self._rules)
        with self._changed:
            taken = any(run.status is RunStatus.RUNNING and run.owner in self._ids for run in view.runs)
        waiting = [run for run in view.runs if not (run.reserved or is_held(run, view))]
        begins = any(run.status is RunStatus.RETRYING or run.is_due(view.now) for run in waiting)
        return taken or begins or self._unreported  # queried last: what the view shows as ended may be reported by then

    def run_here(self, run: str, timeout: float | None = None) -> JobRun:
        """Run a requested run on the caller's thread, and return it.

        While it waits for others, continue those that a process leaves by its end, as ``continue_left`` does.

        Args:
            run: Id of a run that is reserved for this process.
            timeout: Seconds that it may wait for others to end before it begins, from now or from the end of the last
                one that was continued here; ``None``: no limit.

        Returns:
            The run as it ended; or as it is, if this runner is stopped while another thread or process has it.

        Raises:
            WaitTimedOutError: OCQ-664, if others have not ended in time; the run is then cancelled, as it is if this
                runner is stopped before it has begun, or while it waits for its next attempt.

        Source:
            J5 and J13.
        """
        with self._called():
            return self._run_here(run, timeout)

    def continue_left(self, job: str) -> bool:
        """Continue the requested runs of a job that no process has in hand, each to its end; return whether there were.

        Does nothing if this runner is started, or another live process runs the job: runs that wait for their next
        attempts are theirs then.
        """
        company = self._company()
        if company is None or job in company.schedules or self._thread.ident is not None:
            return False
        with self._called(), self._continuing:  # a run in the hands of another caller would seem to be this one's
            left = self.desk.left(job, self._worker(company))
            for run in left:
                logger.info("[job %s] run %s, which another process has left, is continued first", job, run.id)
                self._continue(run.id)
        return bool(left)

    def _continue(self, run: str) -> None:
        """Continue a run that another process has left, unless a third one has it by now."""
        while not self._stopping:
            company = self._company()
            if company is not None:
                stands = self._stands(run, company, adopted=True)
                if stands.status is not RunStatus.RETRYING or stands.reserved not in ("", company.node):
                    return
            self._wait_for_change()

    def _run_here(self, run: str, timeout: float | None) -> JobRun:
        until = _end_of(timeout)
        while True:
            company = self._company()
            if company is not None:
                stands = self._stands(run, company)
                if not stands.is_open:
                    return stands
                if stands.is_active:
                    until = None
                elif self.continue_left(stands.job):
                    until = _end_of(timeout)
            if self._stopping:
                left = self._parts.store.find(run)
                if left is not None and left.reserved:  # nothing else can begin it
                    left = self.desk.cancel(run, _ENDING) or self._parts.store.find(run)
                if left is not None:
                    return left
            if until is not None and time.monotonic() >= until:
                self.desk.cancel(run, "it waited too long")
                what = f"run {run} could not begin within {timeout:g} s because others have not ended"
                raise WaitTimedOutError("OCQ-664", what, fix="wait longer, or opencqrs jobs cancel the others")
            self._wait_for_change()

    def _stands(self, run: str, company: Company, *, adopted: bool = False) -> JobRun:
        """Execute an attempt of a caller's run if it may begin now; return the state of the run after that."""
        only_this = replace(self._worker(company, free=1), ticks_of=frozenset())
        stands = self.desk.begin(run, only_this)
        self._tell_of_dead()
        is_own = stands.owner == company.node and stands.reserved == company.node  # else another thread may have it
        if stands.status is not RunStatus.RUNNING or not is_own:
            return stands
        taken = self._taken(stands)
        taken.adopted = adopted
        self._execute(taken)
        return self._parts.store.find(run) or stands

    def _wait_for_change(self) -> None:
        with self._changed:
            self._changed.wait(_WAIT_SECONDS)

    @contextmanager
    def _called(self) -> Iterator[None]:
        """Count a caller, so that runs reserved for a former id of this process do not count as abandoned."""
        with self._changed:
            self._callers += 1
        try:
            yield
        finally:
            with self._changed:
                self._callers -= 1

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow runs on the thread of the caller, in a process in which this runner is not started."""
        self._appear()
        ended = Signal()
        thread = Thread(target=self._follow_until, args=(ended,), name="opencqrs-jobs", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(END_PATIENCE)
            self._parts.runners.difference_update(self._ids)

    def _appear(self) -> None:
        """Let the other runners of this process know that this one's runs are not abandoned."""
        if node := self.node():
            self._parts.runners.add(node)

    def _guarded(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # check() reports it; the end of a thread alone is not noticed
            self._failure = error

    def _watch(self) -> None:
        waits = None
        while not self._stopping:
            enable_loggers()
            self._warn_of_long()
            try:
                pause = self._attend()
                waits = None
            except Exception as error:
                if not self._is_outage(error):
                    raise
                if waits is None:
                    logger.warning("jobs wait for their database: %s", one_line(error))
                    waits = OUTAGE_BACK_OFF.waits()
                pause = next(waits)
            with self._changed:
                if not (self._stopping or self._woken):
                    self._changed.wait(pause)
                self._woken = False

    def _attend(self) -> float:
        """Do what is due; return the seconds until there may be more."""
        company = self._company()
        if company is None:
            return POLL_SECONDS
        if not self._asked_for_starts:  # at the start this process had no leases
            self._request_starts(company)
        worker = self._worker(company)
        self._unreported = True  # also after an outage: what was recorded is known after the next call
        begun = self.desk.attend(worker)
        self._tell_of_dead()  # before its next attempt may end this process, too
        self._unreported = False
        for run in begun:
            self._begin(run)
        self._attended = self._attended or not self.desk.leaves_out
        view = self._look()
        if time.monotonic() - self._purged_at > _PURGE_SECONDS:
            self._purged_at = time.monotonic()
            self.desk.purge()
        due = self.desk.next_due(view, worker) if len(self._in_hand) < self._parts.most else None
        return POLL_SECONDS if due is None else min(POLL_SECONDS, max(0.0, (due - view.now).total_seconds()))

    def _look(self) -> JobsView:
        """Read the store, and follow the active runs."""
        in_hand = self._executed()  # before the poll, which does not see runs that begin later
        view = self._parts.store.look(self._rules)
        self._follow(view, in_hand)
        return view

    def _follow_until(self, ended: Signal) -> None:
        """Follow the active run; an unavailable store does not end it."""
        failed = False
        while not ended.wait(POLL_SECONDS):
            self._warn_of_long()
            try:
                self._look()
                failed = False
            except Exception as error:
                if not failed:
                    logger.warning("a run cannot be cancelled for now: %s", one_line(error))
                failed = True

    def _tell_of_dead(self) -> None:
        """Log and count the results of runs whose processes have ended, since these cannot."""
        for run in self.desk.recovered():
            log_end(run, run)
            self._failed += run.status is RunStatus.FAILED
            self._observe(run)

    def _observe(self, run: JobRun) -> None:
        if not run.is_open and self._parts.observer is not None:
            self._parts.observer.ended(run)

    def _warn_of_long(self) -> None:
        """Warn about active runs that exceed their time budgets."""
        now = self._parts.clock.monotonic()
        for each in self._executed():
            budget = self._rules[each.run.job].budget
            each.warned = warned_of(each.run, now - each.began, budget, each.warned)

    def _worker(self, company: Company, free: int | None = None) -> Worker:
        with self._changed:
            self._ids.add(company.node)
            own = frozenset(self._ids)
            present = own if self._in_hand or self._callers else frozenset()
            free = self._parts.most - len(self._in_hand) if free is None else free
        mine = frozenset(name for name, text in self.schedules.items() if company.schedules.get(name, text) == text)
        alive = company.alive | present
        return Worker(
            company.node, company.name, alive, max(0, free), mine, lambda: {*company.alive_now(), *present}, own
        )

    def _follow(self, view: JobsView, in_hand: Collection[_InHand]) -> None:
        """Signal to runs of this process that they should end, and record their reported progress."""
        stands = {run.id: run for run in view.runs}
        for each in in_hand:
            known = stands.get(each.run.id)
            if known is None or known.token != each.run.token:
                each.signals.cancelled = each.signals.cancelled or "another process has taken it over"
                continue
            if known.cancelled_at is not None and not each.signals.cancelled:
                each.signals.cancelled = known.reason or "it was cancelled"
                with self._changed:
                    self._changed.notify_all()
            said = (each.signals.done, each.signals.total)
            if said != each.reported:
                each.reported = said
                self._parts.store.report(replace(each.run, done=said[0], total=said[1]))

    def _begin(self, run: JobRun) -> None:
        taken = self._taken(run)
        taken.thread = Thread(target=self._run_taken, args=(taken,), name=f"opencqrs-job-{run.job}", daemon=True)
        taken.thread.start()

    def _run_taken(self, taken: _InHand) -> None:
        try:
            self._execute(taken)
        except BaseException as error:
            self._failure = self._failure or error
        self.wake()

    def _taken(self, run: JobRun) -> _InHand:
        taken = _InHand(run, RunSignals(), self._parts.clock.monotonic())
        with self._changed:
            if self._stopping:
                taken.signals.cancelled = _ENDING
            self._in_hand[attempt_key(run)] = taken
        return taken

    def _execute(self, taken: _InHand) -> None:
        """Execute an attempt on this thread, and record how it ended."""
        run, job, ended = taken.run, self._parts.jobs[taken.run.job], None
        log_begin(run)
        make = self._parts.on_spark if job.rule.spark and self._parts.on_spark is not None else JobExecution
        try:
            ending = make(job, run, self._around, taken.signals, lambda: self._stopping).execute()
            ended = self._recorded(run, ending) if ending is not None else None
        except KeyboardInterrupt:  # any other error leaves the run to the process that notices that this one ended
            self._interrupted(taken)
            raise
        finally:
            with self._changed:
                self._failed += ended is not None and ended.status is RunStatus.FAILED
                self._in_hand.pop(attempt_key(run), None)
                self._changed.notify_all()
        log_end(run, ended, released=taken.released)
        if ended is not None:
            self._observe(ended)

    def _recorded(self, run: JobRun, ending: Ending) -> JobRun | None:
        """Record how an attempt ended; retry after outages, until the run is released."""
        for wait in OUTAGE_BACK_OFF.waits():
            try:
                return self.desk.finish(run, ending)
            except Exception as error:
                raise_interrupt(error)
                if not self._is_outage(error):
                    raise
                logger.warning("[job %s] its end cannot be recorded yet: %s", run.job, one_line(error))
            with self._changed:
                self._changed.wait(wait)
        return None

    def _interrupted(self, taken: _InHand) -> None:
        """Cancel a run that a person has interrupted; release one that another process has left."""
        run = taken.run
        try:
            known = self._parts.store.find(run.id)
            if known is not None:
                is_left = taken.adopted
                ending = Ending(known.position, reason="interrupted", cancelled=not is_left, released=is_left)
                self.desk.finish(run, ending)
        except Exception as failed:
            logger.warning("[job %s] its end cannot be recorded: %s", run.job, one_line(failed))

    def _let_go(self) -> None:
        """Take runs away from threads that have not ended, so that other processes can continue them."""
        for each in self._executed():
            try:
                known = self._parts.store.find(each.run.id)
                if known is not None:
                    ending = Ending(known.position, reason=_ENDING, released=True)
                    each.released = self.desk.finish(each.run, ending) is not None
            except Exception as error:
                logger.warning("[job %s] run %s ends with its process: %s", each.run.job, each.run.id, one_line(error))

    def _request_starts(self, company: Company) -> None:
        for name, rule in self._rules.items():
            if rule.ticking.startup:
                now = self._parts.store.look(()).now
                due = now + timedelta(seconds=rule.ticking.delay)
                self.desk.request(JobRun(f"{name}@start:{company.node}", name, Trigger.STARTUP, now, due_at=due))
        self._asked_for_starts = True

    def _executed(self) -> list[_InHand]:
        with self._changed:
            return list(self._in_hand.values())

    def _threads(self) -> list[Thread]:
        threads = (each.thread for each in self._executed())
        return [each for each in threads if each is not None and each.ident is not None]

    def _pause(self, seconds: float, signals: RunSignals) -> None:
        until = time.monotonic() + seconds
        with self._changed:
            while not signals.cancelled and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)

    def _is_outage(self, error: BaseException) -> bool:
        transactions = self._parts.transactions
        return self._parts.store.is_outage(error) or (transactions is not None and transactions.is_outage(error))


def _end_of(timeout: float | None) -> float | None:
    """Return when a wait that begins now is to end, by the monotonic clock."""
    return None if timeout is None else time.monotonic() + timeout

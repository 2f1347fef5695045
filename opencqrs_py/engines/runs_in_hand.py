"""The runs of jobs that this process executes: their threads, their signals, and how their attempts end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition, Thread

from opencqrs_py.engines.job_parts import Company, JobParts
from opencqrs_py.engines.leading import END_PATIENCE, join_all
from opencqrs_py.engines.long_runs import warned_of
from opencqrs_py.engines.run_log import log_begin, log_end, logger
from opencqrs_py.jobs.desk import Ending, JobDesk, Worker
from opencqrs_py.jobs.execution import OUTAGE_BACK_OFF, JobExecution, Surroundings
from opencqrs_py.jobs.runs import JobRun, JobsView, RunStatus
from opencqrs_py.jobs.sitting import AttemptKey, attempt_key
from opencqrs_py.model.job import RunSignals
from opencqrs_py.processing.exceptions import one_line, raise_interrupt

POLL_SECONDS = 1.0  # between two polls for requests of other processes and people
ENDING = "its process is ending"


@dataclass(eq=False)
class _InHand:
    """A run that this process executes."""

    run: JobRun
    began: float
    signals: RunSignals
    adopted: bool  # whether another process has left it
    thread: Thread | None = None
    warned: int = 0
    reported: tuple[int | None, int | None] = (None, None)
    released: bool = False  # by a stop that has not waited for it


class RunsInHand:
    """Executes attempts of runs, and ends them on request. Safe for several threads.

    Args:
        parts: Its parts.
        company: Returns this process among those that run jobs; ``None`` while it has no leases.
        ended: Called after each attempt.
    """

    def __init__(
        self, parts: JobParts, company: Callable[[], Company | None], ended: Callable[[], None] = lambda: None
    ) -> None:
        self.desk = JobDesk(parts.store, {name: job.rule for name, job in parts.jobs.items()})
        self.around = Surroundings(parts.store, parts.transactions, parts.select, parts.clock, self._pause)
        self.stopping = False
        self.failed = 0  # runs with no attempt left
        self.failure: BaseException | None = None  # the first one that has ended a thread
        self._parts = parts
        self._company = company
        self._ended = ended
        self._in_hand: dict[AttemptKey, _InHand] = {}
        self._ids: set[str] = set()  # of this process: it gets a new one after the end of its leases
        self._callers = 0  # that wait for runs on their threads
        self._changed = Condition()

    @property
    def active(self) -> list[JobRun]:
        """The runs that this process executes."""
        return [each.run for each in self._executed()]

    @property
    def ids(self) -> frozenset[str]:
        """All ids that this process has had."""
        with self._changed:
            return frozenset(self._ids)

    def company(self) -> Company | None:
        """Return this process among those that run jobs; ``None`` while it has no leases."""
        company = self._company()
        if company is not None:
            with self._changed:
                self._ids.add(company.node)
        return company

    def appear(self) -> None:
        """Let the other runners of this process know that its runs are not abandoned, unless it is stopping."""
        company = self.company()
        with self._changed:
            if company is not None and not self.stopping:
                self._parts.runners.add(company.node)

    @contextmanager
    def called(self) -> Iterator[None]:
        """Count a caller, so that runs reserved for a former id of this process do not count as abandoned."""
        with self._changed:
            self._callers += 1
        try:
            yield
        finally:
            with self._changed:
                self._callers -= 1

    def worker(self, company: Company) -> Worker:
        """Return the state of this process for the desk."""
        with self._changed:
            own = frozenset(self._ids)
            present = own if self._in_hand or self._callers else frozenset()
            free = max(0, self._parts.most - len(self._in_hand))
        schedules = self._parts.schedules
        mine = frozenset(name for name, text in schedules.items() if company.schedules.get(name, text) == text)
        alive = company.alive | present
        return Worker(company.node, company.name, alive, free, mine, lambda: {*company.alive_now(), *present}, own)

    def begin(self, run: JobRun) -> None:
        """Execute an attempt on a thread of its own."""
        taken = self._taken(run)
        work = partial(self._execute, taken)
        taken.thread = Thread(target=self.guarded, args=(work,), name=f"opencqrs-job-{run.job}", daemon=True)
        taken.thread.start()

    def execute(self, run: JobRun, *, adopted: bool) -> None:
        """Execute an attempt on this thread; ``adopted``: of a run that another process has left."""
        self._execute(self._taken(run, adopted=adopted))

    def look(self) -> JobsView:
        """Read the runs; signal to those in hand that they should end, and record their reported progress."""
        in_hand = self._executed()  # before the poll, which does not see runs that begin later
        view = self.desk.store.look(self.desk.rules)
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
                self.desk.store.report(replace(each.run, done=said[0], total=said[1]))
        return view

    def warn_of_long(self) -> None:
        """Warn about active runs that exceed their time budgets."""
        now = self._parts.clock.monotonic()
        for each in self._executed():
            budget = self.desk.rules[each.run.job].budget
            each.warned = warned_of(each.run, now - each.began, budget, each.warned)

    def report_dead(self) -> None:
        """Log and count the results of runs whose processes have ended, since these cannot."""
        for run in self.desk.recovered():
            self._count(run)  # first, since an observer that raises must not change the exit code
            self._report(run, run)

    def wait(self, seconds: float) -> None:
        """Wait until an attempt or a wait in this process ends, at most ``seconds``."""
        with self._changed:
            self._changed.wait(seconds)

    def guarded(self, work: Callable[[], None]) -> None:
        """Do the work of a thread, and keep the error that ends it: the end of a thread alone is not noticed."""
        try:
            work()
        except BaseException as error:
            self.failure = self.failure or error

    def end(self) -> None:
        """Request the active runs to end, and those that begin later."""
        with self._changed:
            self.stopping = True
            for each in self._in_hand.values():
                each.signals.cancelled = each.signals.cancelled or ENDING
            self._changed.notify_all()

    def join(self, patience: float) -> None:
        """Wait for the threads of the active runs, at most ``patience`` seconds."""
        join_all([each.thread for each in self._executed() if each.thread is not None], patience)

    def leave(self) -> None:
        """Take runs away from threads that have not ended, and let other runners and processes continue them."""
        if self._in_hand:  # in the background: an active run may hold the write lock of an SQLite file
            thread = Thread(target=self._let_go, name="opencqrs-jobs-release", daemon=True)
            thread.start()
            thread.join(END_PATIENCE)
        self._parts.runners.difference_update(self._ids)

    def _taken(self, run: JobRun, *, adopted: bool = False) -> _InHand:
        taken = _InHand(run, self._parts.clock.monotonic(), RunSignals(), adopted)
        with self._changed:
            if self.stopping:
                taken.signals.cancelled = ENDING
            self._in_hand[attempt_key(run)] = taken
        return taken

    def _execute(self, taken: _InHand) -> None:
        """Execute an attempt on this thread, and record how it ended."""
        run, job, ended = taken.run, self._parts.jobs[taken.run.job], None
        try:
            log_begin(run)
            make = self._parts.on_spark if job.rule.spark and self._parts.on_spark is not None else JobExecution
            ending = make(job, run, self.around, taken.signals, lambda: self.stopping).execute()
            ended = self._recorded(run, ending) if ending is not None else None
        except KeyboardInterrupt:  # any other error leaves the run to the process that notices that this one ended
            self._interrupted(taken)
            raise
        finally:
            with self._changed:
                self._count(ended)
                self._in_hand.pop(attempt_key(run), None)
                self._changed.notify_all()
            self._ended()
        self._report(run, ended, released=taken.released)

    def _recorded(self, run: JobRun, ending: Ending) -> JobRun | None:
        """Record how an attempt ended; retry after outages, until the run is released."""
        for wait in OUTAGE_BACK_OFF.waits():
            try:
                return self.desk.finish(run, ending)
            except Exception as error:
                raise_interrupt(error)
                if not self.around.is_outage(error):
                    raise
                logger.warning("[job %s] its end cannot be recorded yet: %s", run.job, one_line(error))
            self.wait(wait)
        return None

    def _interrupted(self, taken: _InHand) -> None:
        """Cancel a run that a person has interrupted; release one that another process has left."""
        try:
            self._finish_early(taken, "interrupted", released=taken.adopted)
        except Exception as failed:
            logger.warning("[job %s] its end cannot be recorded: %s", taken.run.job, one_line(failed))

    def _let_go(self) -> None:
        for each in self._executed():
            try:
                each.released = self._finish_early(each, ENDING, released=True)
            except Exception as error:
                logger.warning("[job %s] run %s ends with its process: %s", each.run.job, each.run.id, one_line(error))

    def _finish_early(self, taken: _InHand, reason: str, *, released: bool) -> bool:
        """Release or cancel a run as it is recorded; return whether that was still possible."""
        known = self.desk.store.find(taken.run.id)
        if known is None:
            return False
        ending = Ending(known.position, reason=reason, cancelled=not released, released=released)
        return self.desk.finish(taken.run, ending) is not None

    def _count(self, ended: JobRun | None) -> None:
        with self._changed:
            self.failed += ended is not None and ended.status is RunStatus.FAILED

    def _report(self, run: JobRun, ended: JobRun | None, *, released: bool = False) -> None:
        log_end(run, ended, released=released)
        if ended is not None and not ended.is_open and self._parts.observer is not None:
            self._parts.observer.ended(ended)

    def _executed(self) -> list[_InHand]:
        with self._changed:
            return list(self._in_hand.values())

    def _pause(self, seconds: float, signals: RunSignals) -> None:
        with self._changed:
            self._changed.wait_for(lambda: signals.cancelled, seconds)

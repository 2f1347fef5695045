"""The runner of jobs: a thread that watches what is due."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from threading import Event as Signal
from threading import Thread

from opencqrs_py.engines.job_parts import Company, JobParts
from opencqrs_py.engines.leading import END_PATIENCE, join_all
from opencqrs_py.engines.local_runs import LocalRuns
from opencqrs_py.engines.run_log import logger
from opencqrs_py.engines.runs_in_hand import POLL_SECONDS, RunsInHand
from opencqrs_py.jobs.desk import is_held
from opencqrs_py.jobs.execution import OUTAGE_BACK_OFF
from opencqrs_py.jobs.runs import JobRun, RunStatus
from opencqrs_py.model.job import Trigger
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.processing.loggers import enable_loggers

_PURGE_SECONDS = 600.0


class JobRunner:
    """Runs jobs in this process. Safe for several threads.

    Args:
        parts: Its parts.
        company: Returns this process among those that run jobs; ``None`` while it has no leases, and begins nothing.

    Attributes:
        runs: The runs that this process executes.
        local: Runs on the threads of callers, whether or not this runner is started.

    Source:
        J4, J13, J18 and J21.
    """

    def __init__(self, parts: JobParts, company: Callable[[], Company | None]) -> None:
        self._woken = Signal()
        self.runs = RunsInHand(parts, company, ended=self.wake)
        self.local = LocalRuns(self.runs, is_watched=lambda: self._thread.ident is not None)
        self._desk = self.runs.desk
        self._asked_for_starts = False  # whether the runs after the start of the process are recorded
        self._attended = False  # whether what was due at the start has begun
        self._unreported = False  # whether runs of dead processes may have ended that are not counted yet
        self._purged_at = time.monotonic()
        self._thread = Thread(target=self.runs.guarded, args=(self._watch,), name="opencqrs-jobs", daemon=True)

    def start(self) -> None:
        """Start following schedules and running requested jobs; nothing after a stop."""
        self.runs.appear()
        if self.runs.stopping:
            return
        if (company := self.runs.company()) is not None:
            self._request_starts(company.node)
        self._thread.start()

    def end(self) -> None:
        """Begin no further run, and request the active ones to end."""
        self.runs.end()
        self.wake()

    def stop(self, patience: float) -> None:
        """Begin no further run, request runs to end, wait at most ``patience`` seconds, and release the others.

        Those continue in another process, or at the next start, under the same record. What they write here from then
        on is not committed.
        """
        self.end()
        until = time.monotonic() + patience
        self.runs.join(patience)
        join_all([self._thread], END_PATIENCE)
        self.runs.join(until - time.monotonic())  # for those that the thread has begun in the meantime
        self.runs.leave()

    def check(self) -> None:
        """Raise the error that ended the watching thread or that of a run, if any."""
        if self.runs.failure is not None:
            raise self.runs.failure

    def wake(self) -> None:
        """Check at once what is due."""
        self._woken.set()

    def is_busy(self) -> bool:
        """Return whether a run is active, was just taken, may begin, or has an attempt left after one that failed.

        Due ticks and runs of ended processes count as runs that may begin only after they were first processed. A run
        that has failed with its processes counts as active until it is counted.
        """
        if self.runs.active or (self._thread.ident is not None and not self._attended):
            return True
        view = self._desk.store.look(self._desk.rules)
        own = self.runs.ids
        taken = any(run.status is RunStatus.RUNNING and run.owner in own for run in view.runs)
        waiting = [run for run in view.runs if not (run.reserved or is_held(run, view))]
        begins = any(run.status is RunStatus.RETRYING or run.is_due(view.now) for run in waiting)
        return taken or begins or self._unreported  # queried last: what the view shows as ended may be reported by then

    def _watch(self) -> None:
        waits = None
        while not self.runs.stopping:
            enable_loggers()
            self.runs.warn_of_long()
            try:
                pause = self._attend()
                waits = None
            except Exception as error:
                if not self.runs.around.is_outage(error):
                    raise
                if waits is None:
                    logger.warning("jobs wait for their database: %s", one_line(error))
                    waits = OUTAGE_BACK_OFF.waits()
                pause = next(waits)
            self._woken.wait(pause)
            self._woken.clear()

    def _attend(self) -> float:
        """Do what is due; return the seconds until there may be more."""
        company = self.runs.company()
        if company is None:
            return POLL_SECONDS
        if not self._asked_for_starts:  # at the start this process had no leases
            self._request_starts(company.node)
        worker = self.runs.worker(company)
        self._unreported = True  # also after an outage: what was recorded is known after the next call
        begun = self._desk.attend(worker)
        self.runs.report_dead()  # before its next attempt may end this process, too
        self._unreported = False
        for run in begun:
            self.runs.begin(run)
        self._attended = self._attended or not self._desk.leaves_out
        view = self.runs.look()
        if time.monotonic() - self._purged_at > _PURGE_SECONDS:
            self._purged_at = time.monotonic()
            self._desk.purge()
        due = self._desk.next_due(view, worker) if worker.free > len(begun) else None
        return POLL_SECONDS if due is None else min(POLL_SECONDS, max(0.0, (due - view.now).total_seconds()))

    def _request_starts(self, node: str) -> None:
        for name, rule in self._desk.rules.items():
            if rule.ticking.startup:
                now = self._desk.store.look(()).now
                due = now + timedelta(seconds=rule.ticking.delay)
                self._desk.store.request(JobRun(f"{name}@start:{node}", name, Trigger.STARTUP, now, due_at=due))
        self._asked_for_starts = True

"""Runs of jobs on the threads of their callers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event as Signal
from threading import Lock, Thread

from opencqrs_py.engines.job_parts import Company
from opencqrs_py.engines.leading import END_PATIENCE
from opencqrs_py.engines.run_log import logger
from opencqrs_py.engines.runs_in_hand import ENDING, POLL_SECONDS, RunsInHand
from opencqrs_py.errors import WaitTimedOutError
from opencqrs_py.jobs.runs import JobRun, RunStatus
from opencqrs_py.processing.exceptions import one_line

_WAIT_SECONDS = 0.1  # between two polls of a run for which a caller waits


class LocalRuns:
    """Runs jobs on the threads of callers. Safe for several threads.

    Args:
        runs: The runs that this process executes.
        is_watched: Returns whether this process also runs jobs on other threads.

    Source:
        J5 and J13.
    """

    def __init__(self, runs: RunsInHand, is_watched: Callable[[], bool] = lambda: False) -> None:
        self._runs = runs
        self._is_watched = is_watched
        self._desk = runs.desk
        self._continuing = Lock()  # while a caller continues what others have left

    def run(self, run: JobRun, timeout: float | None = None) -> JobRun:
        """Request a run, execute it on this thread, and return it.

        Before that, and while it waits for others, continue those that a process leaves by its end, as
        ``continue_left`` does.

        Args:
            run: The run; it is reserved for this process.
            timeout: Seconds that it may wait for others to end before it begins, from now or from the end of the last
                one that was continued here; ``None``: no limit.

        Returns:
            The run as it ended; or as it is, if this process stops while another thread or process has it.

        Raises:
            WaitTimedOutError: OCQ-664, if others have not ended in time; the run is then cancelled, as it is if this
                process stops before it has begun, or while it waits for its next attempt.
        """
        with self._runs.called():
            self.continue_left(run.job)  # first, so that the run neither waits for them nor is skipped because of them
            company = self._runs.company()
            self._desk.store.request(replace(run, reserved="" if company is None else company.node))
            return self._to_its_end(run.id, math.inf if timeout is None else timeout)

    def continue_left(self, job: str) -> bool:
        """Continue the requested runs of a job that no process has in hand, each to its end; return whether there were.

        Does nothing if this process or another live one runs the job: runs that wait for their next attempts are theirs
        then.
        """
        company = self._runs.company()
        if company is None or job in company.schedules or self._is_watched():
            return False
        with self._runs.called(), self._continuing:  # a run in the hands of another caller would seem to be this one's
            left = self._desk.left(job, self._runs.worker(company))
            for run in left:
                logger.info("[job %s] run %s, which another process has left, is continued first", job, run.id)
                self._continue(run.id)
        return bool(left)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow requests to end these runs, in a process in which nothing else runs jobs."""
        self._runs.appear()
        ended = Signal()
        thread = Thread(target=self._follow_until, args=(ended,), name="opencqrs-jobs", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(END_PATIENCE)
            self._runs.leave()

    def _follow_until(self, ended: Signal) -> None:
        """Follow the active run; an unavailable store does not end it."""
        failed = False
        while not ended.wait(POLL_SECONDS):
            self._runs.warn_of_long()
            try:
                self._runs.look()
                failed = False
            except Exception as error:
                if not failed:
                    logger.warning("a run cannot be cancelled for now: %s", one_line(error))
                failed = True

    def _continue(self, run: str) -> None:
        """Continue a run that another process has left, unless a third one has it by now."""
        while not self._runs.stopping:
            company = self._runs.company()
            if company is not None:
                stands = self._stands(run, company, adopted=True)
                if stands.status is not RunStatus.RETRYING or stands.reserved not in ("", company.node):
                    return
            self._runs.wait(_WAIT_SECONDS)

    def _to_its_end(self, run: str, timeout: float) -> JobRun:
        until = time.monotonic() + timeout
        while True:
            company = self._runs.company()
            if company is not None:
                stands = self._stands(run, company)
                if not stands.is_open:
                    return stands
                if stands.is_active:
                    until = math.inf
                elif self.continue_left(stands.job):
                    until = time.monotonic() + timeout
            if self._runs.stopping:
                left = self._desk.store.find(run)
                if left is not None and left.reserved:  # nothing else can begin it
                    left = self._desk.cancel(run, ENDING) or self._desk.store.find(run)
                if left is not None:
                    return left
            if time.monotonic() >= until:
                self._desk.cancel(run, "it waited too long")
                what = f"run {run} could not begin within {timeout:g} s because others have not ended"
                raise WaitTimedOutError("OCQ-664", what, fix="wait longer, or opencqrs jobs cancel the others")
            self._runs.wait(_WAIT_SECONDS)

    def _stands(self, run: str, company: Company, *, adopted: bool = False) -> JobRun:
        """Execute an attempt of a caller's run if it may begin now; return the state of the run after that."""
        only_this = replace(self._runs.worker(company), free=1, ticks_of=frozenset())
        stands = self._desk.begin(run, only_this)
        self._runs.report_dead()
        is_own = stands.owner == company.node and stands.reserved == company.node  # else another thread may have it
        if stands.status is not RunStatus.RUNNING or not is_own:
            return stands
        self._runs.execute(stands, adopted=adopted)
        return self._desk.store.find(run) or stands

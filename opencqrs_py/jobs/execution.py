"""The execution of a run: page by page, each committed with what it has done, on the thread of the caller."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

from opencqrs_py.errors import JobCancelledError, JobError, NonTransientError, UnavailableError
from opencqrs_py.jobs.binding import BoundJob, work_of
from opencqrs_py.jobs.children import EndedError, RunFencedError, counted_in_run, fenced, page_of, with_part
from opencqrs_py.jobs.desk import Ending
from opencqrs_py.jobs.items import IdPage, Items
from opencqrs_py.jobs.ports import JobStore, Selector
from opencqrs_py.jobs.runs import JobRun, RunPosition
from opencqrs_py.model.choices import JobTransaction
from opencqrs_py.model.job import JobContext, RunSignals
from opencqrs_py.model.naming import counted
from opencqrs_py.processing.exceptions import leaves, one_line, own_frames, raise_interrupt
from opencqrs_py.processing.ports import Clock, Transactions, UnitOfWork
from opencqrs_py.processing.recovery import ExponentialBackOff

OUTAGE_BACK_OFF = ExponentialBackOff(initial=0.5, multiplier=2, maximum=30)
"""Waits while a database is unavailable, which uses no attempt."""

MOST_FAILED = 1_000
"""Items that may fail in an attempt before it ends, where each has its own transaction."""

_log = logging.getLogger("opencqrs.jobs")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What executions of runs need.

    Attributes:
        store: The tables of jobs.
        transactions: Opens transactions on the read models' database; ``None`` if there is none.
        select: Executes statements that inputs return.
        clock: For time budgets.
        pause: Waits a number of seconds, or until a run is to end.
        missed: Receives what a call after a commit has raised, once that is logged.
        failed: Receives what an attempt or one of its items has failed with, and the wait until the next attempt.
    """

    store: JobStore
    transactions: Transactions | None
    select: Selector
    clock: Clock
    pause: Callable[[float, RunSignals], None]
    missed: Callable[[BaseException], None] = lambda _error: None
    failed: Callable[[BaseException], None] = lambda _error: None

    def is_outage(self, error: BaseException) -> bool:
        """Return whether an error means that a database is temporarily unavailable."""
        transactions = self.transactions
        return self.store.is_outage(error) or (transactions is not None and transactions.is_outage(error))


class JobExecution:
    """Executes one attempt of a run.

    Args:
        job: The job.
        run: The run as it was begun.
        around: What executions need.
        signals: Tell it that it is to end.
        released: Returns whether the run continues in another process, as this one ends.

    Source:
        J1, J2, J12, J13 and J16.
    """

    def __init__(
        self,
        job: BoundJob,
        run: JobRun,
        around: Surroundings,
        signals: RunSignals,
        released: Callable[[], bool] = lambda: False,
    ) -> None:
        self._job = job
        self._run = run
        self._around = around
        self._signals = signals
        self._released = released
        self._items = Items(job, run, around.select)
        budget = job.rule.budget
        self._until = math.inf if budget == math.inf else around.clock.monotonic() + budget
        self._deadline = None if budget == math.inf else around.clock.now() + timedelta(seconds=budget)
        self._position = run.position
        self._failed_before = len(run.position.failed)
        self._may_help = bool(run.position.failed)  # whether an item has failed that may succeed later
        self._committed: list[Callable[[], list[BaseException]]] = []

    def execute(self) -> Ending | None:
        """Execute the attempt, and return how it has ended.

        Returns:
            ``None`` if the run was taken from this process meanwhile: nothing more of it is to be recorded.
        """
        waits: Iterator[float] | None = None
        stuck_at = self._position
        while True:
            try:
                if waits is not None and not self._found_again():
                    return None
                return self._to_its_end()
            except BaseException as error:
                raise_interrupt(error)
                if issubclass(type(error), RunFencedError):
                    return None
                if not isinstance(error, EndedError):  # the child has reported its failure
                    self._around.failed(error)
                if not self._is_outage(error):
                    return self._failed(error)
                if waits is None or self._position != stuck_at:  # else it is the same outage
                    waits = OUTAGE_BACK_OFF.waits()
                stuck_at = self._position
                self._wait(error, next(waits))
                if self._signals.cancelled:
                    return self._ended_early(_text_of(error))

    def _wait(self, error: BaseException, wait: float) -> None:
        """Wait as a database is unavailable, and record that if its own one answers."""
        _log.warning("[job %s] %s; next attempt in %.1f s", self._job.job.name, one_line(error), wait)
        began = self._around.clock.monotonic()
        if not (self._run.parent or self._signals.cancelled):
            self._record_wait(error, wait)
        self._around.pause(max(0.0, wait - (self._around.clock.monotonic() - began)), self._signals)

    def _record_wait(self, error: BaseException, wait: float) -> None:
        try:
            self._around.store.report_wait(self._run, _text_of(error), wait)
        except Exception as failed:
            raise_interrupt(failed)
            if not self._is_outage(failed):
                text = "[job %s] that run %s waits cannot be recorded: %s"
                _log.warning(text, self._run.job, self._run.id, one_line(failed))

    def _to_its_end(self) -> Ending:
        if self._run.token > 1 and not self._run.parent:  # else there was no earlier attempt
            self._finish_children()
        if self._mode is JobTransaction.RUN:
            return self._in_one_transaction()
        while not self._position.done:
            if self._signals.cancelled:
                return self._ended_early()
            if reason := self._limit_reached():
                return self._with_failed(reason)
            if self._too_many_failed:
                break
            self._next_page()
        return self._with_failed()

    @property
    def _mode(self) -> JobTransaction:
        """What is committed together: a run without a transaction records each page."""
        mode = self._job.rule.transaction
        return mode if self._job.transactional or mode is JobTransaction.ITEM else JobTransaction.PAGE

    def _in_one_transaction(self) -> Ending:
        if self._position.done:  # and its owner ended, or its database was cut off, before that was recorded
            return self._with_failed()
        with self._unit(needed=True) as unit:
            position, reason = self._position, ""
            while not position.done:
                if self._signals.cancelled:
                    raise JobCancelledError(self._signals.cancelled)
                page = self._items.page(position, self._most(position), unit)
                self._call(page, unit)
                position = self._after(position, page)
                if reason := self._limit_reached(position):
                    break
            position = replace(position, done=True, rest=position.rest or reason)
            self._advance(position, unit)
        self._position = position
        return self._with_failed()  # of an earlier attempt, under other settings

    def _finish_children(self) -> None:
        """Handle the rest of the page that an earlier attempt has distributed to tasks, as on Spark."""
        children = self._taken(self._run.owner)
        position = self._position
        for child in children:
            if child.position.done:
                continue
            rule = replace(self._job.rule, limit=max(1, len(child.ids or ())), budget=self._seconds_left)
            job = replace(self._job, rule=rule, input=None)
            ending = JobExecution(job, child, self._around, self._signals, self._released).execute()
            if ending is None:
                raise fenced(self._run)
            if not ending.position.done:  # what children have done is counted when they are taken again
                raise EndedError(replace(ending, position=self._position))
            position = with_part(position, ending.position)
            self._may_help = self._may_help or (bool(ending.position.failed) and not ending.permanent)
        if children:
            page = page_of(children, position, position.only or self._run.ids)
            self._gather(self._items.passed(position, page))

    def _taken(self, owner: str) -> list[JobRun]:
        """Take over the children of the run and move their results to it; return them."""
        children = self._around.store.take_children(self._run, owner)
        if children is None:
            raise fenced(self._run)
        position = self._position
        for child in children:
            position = with_part(position, child.position)
            self._may_help = self._may_help or bool(child.position.failed)
        if position != self._position:
            children = [replace(child, position=counted_in_run(child.position)) for child in children]
            self._gather(position, children)
        return [replace(child, attempt=self._run.attempt) for child in children]

    def _gather(self, position: RunPosition, children: Sequence[JobRun] = ()) -> None:
        run = replace(self._run, done=self._signals.done, total=self._signals.total)
        if not self._around.store.gather(run, position, children):
            raise fenced(self._run)
        self._position = position

    @property
    def _seconds_left(self) -> float:
        """What is left of the time budget, in seconds."""
        return max(0.0, self._until - self._around.clock.monotonic())

    def _next_page(self) -> None:
        if self._mode is JobTransaction.ITEM:
            self._items_one_by_one()
        elif self._job.transactional:
            with self._unit(needed=True) as unit:
                page = self._items.page(self._position, self._most(self._position), unit)
                self._call(page, unit)
                position = self._after(self._position, page)
                self._advance(position, unit)
            self._position = position
        else:
            page = self._read_page()
            with self._unit(needed=False):
                self._call(page, None)
            self._record(self._after(self._position, page))

    def _read_page(self) -> IdPage:
        reads = self._job.input is not None and self._job.input.reads
        with self._unit(needed=reads) as unit:
            return self._items.page(self._position, self._most(self._position), unit)

    def _items_one_by_one(self) -> None:
        pages, rest = self._read_page().one_by_one()
        for page in pages:
            if self._signals.cancelled or self._time_is_over(self._position):
                return
            self._one(page)
            if self._too_many_failed:
                return
        if not self._position.done:
            self._record(self._items.passed(self._position, rest))

    def _one(self, page: IdPage) -> None:
        position = self._position
        try:
            with self._unit(needed=self._job.transactional) as unit:
                self._call(page, unit)
                done = self._after(position, page)
                self._advance(done, unit)
            self._position = done
        except BaseException as error:
            raise_interrupt(error)
            if (
                not page.ids
                or issubclass(type(error), RunFencedError)
                or self._is_outage(error)
                or self._is_asked(error)
            ):
                raise
            self._around.failed(error)
            self._may_help = self._may_help or not _is_permanent(error)
            text = position.error or f"{page.ids[0]}: {_text_of(error)}"
            failed = (*position.failed, *page.ids)
            self._record(replace(self._items.passed(position, page), failed=failed, error=text))

    def _call(self, page: IdPage, unit: UnitOfWork | None) -> None:
        if not page.call:
            return
        work = work_of(self._job.job.name, unit)
        context = JobContext(
            self._job.job.name,
            self._run.parent or self._run.id,
            self._run.trigger,
            page.ids,
            self._run.attempt,
            self._run.scheduled_at,
            self._deadline,
            self._signals,
        )
        try:
            self._job.call(context, work)
            self._raise_if_caught()
            if unit is not None:
                unit.flush()
        except BaseException as error:
            ended = unit.ended_early(error) if unit is not None else None
            if ended is not None:
                raise ended from error
            raise_interrupt(error)
            if not issubclass(type(error), JobCancelledError):
                self._raise_if_caught()
            raise
        finally:
            work.close()
        self._committed.append(work.committed)

    def _raise_if_caught(self) -> None:
        """End the call if ``raise_if_cancelled`` has raised and the job has caught that, perhaps with other errors."""
        if self._signals.raised:
            raise JobCancelledError(self._signals.cancelled)

    @contextmanager
    def _unit(self, *, needed: bool) -> Iterator[UnitOfWork | None]:
        """Open a transaction if one is needed; after its commit make the calls that wait for it."""
        self._committed = []
        if needed and self._around.transactions is not None:
            with self._around.transactions.begin() as unit:
                yield unit
        else:
            yield None
        for committed in self._committed:
            for error in committed():
                _log.error("[job %s] a call after the commit failed: %s", self._job.job.name, one_line(error))
                self._around.missed(error)

    def _advance(self, position: RunPosition, unit: UnitOfWork | None) -> None:
        run = replace(self._run, done=self._signals.done, total=self._signals.total)
        if not self._around.store.advance(run, position, unit):
            raise fenced(self._run)

    def _after(self, position: RunPosition, page: IdPage) -> RunPosition:
        """Return a position as it is after a page whose items the job has handled."""
        return self._items.passed(replace(position, items=position.items + len(page.ids)), page)

    def _record(self, position: RunPosition) -> None:
        self._advance(position, None)
        self._position = position

    def _most(self, position: RunPosition) -> int:
        rule = self._job.rule
        if rule.most_items is None or self._is_named:
            return rule.limit
        return min(rule.limit, rule.most_items - position.items - len(position.failed))

    @property
    def _is_named(self) -> bool:
        """Whether it is for named ids: no other run may include them, so it leaves none of them out."""
        return self._run.ids is not None

    @property
    def _too_many_failed(self) -> bool:
        return len(self._position.failed) - self._failed_before >= MOST_FAILED

    def _time_is_over(self, position: RunPosition) -> bool:
        """Return whether the time budget is exhausted; each attempt has one, and handles something."""
        begun = (position.items, position.failed) != (self._run.position.items, self._run.position.failed)
        return begun and not self._is_named and self._around.clock.monotonic() >= self._until

    def _limit_reached(self, position: RunPosition | None = None) -> str:
        """Return why no further page begins; empty if one does."""
        position = self._position if position is None else position
        if position.done:
            return ""
        if self._time_is_over(position):
            return f"its time budget of {self._job.rule.budget:g} s is used up; the rest is for the next run"
        if self._most(position) < 1:
            return f"it has handled {self._job.rule.most_items} items, its maximum; the rest is for the next run"
        return ""

    def _ended_early(self, error: str = "") -> Ending:
        released = self._released()
        error = "" if self._run.parent else error  # an attempt of the run fails with the error of a child
        return Ending(self._position, error, reason=self._signals.cancelled, cancelled=not released, released=released)

    def _with_failed(self, reason: str = "") -> Ending:
        position = replace(self._position, rest=self._position.rest or reason)
        failed = len(position.failed)
        if not failed:
            return Ending(position, reason=_left_undone(position))
        rest = "" if position.done or reason else ", and the rest was not tried"
        text = f"{failed} of {failed + position.items} items have failed{rest}, the first one {position.error}"
        position = replace(position, done=position.done or bool(reason))  # what is left over is for the next run
        return Ending(position, error=text, permanent=position.done and not self._may_help)

    def _failed(self, error: BaseException) -> Ending:
        if isinstance(error, EndedError):
            return error.ending if error.ending.error else self._ended_early()
        if self._is_asked(error):
            return self._ended_early()
        return Ending(self._position, error=_text_of(error), permanent=_is_permanent(error))

    def _is_asked(self, error: BaseException) -> bool:
        """Return whether the job has ended as requested."""
        return issubclass(type(error), JobCancelledError) and bool(self._signals.cancelled)

    def _found_again(self) -> bool:
        """Read what of the run is recorded, since it is not known whether the last commit has reached the database."""
        known = self._around.store.find(self._run.id)
        if known is None or known.token != self._run.token:
            return False
        self._position = known.position
        return True

    def _is_outage(self, error: BaseException) -> bool:
        return issubclass(type(error), UnavailableError) or self._around.is_outage(error)


def _left_undone(position: RunPosition) -> str:
    """Return what a run that has succeeded has left undone in all its attempts; empty if nothing."""
    gone = f"{counted(position.gone, 'item')} that had failed did not apply any more" if position.gone else ""
    unmet = f"the input did not return {counted(position.unmet, 'id')} of its events" if position.unmet else ""
    return "; ".join(filter(None, (position.rest, gone, unmet)))


def _is_permanent(error: BaseException) -> bool:
    return any(issubclass(type(one), NonTransientError | SystemExit) for one in leaves(error))


def _text_of(error: BaseException) -> str:
    """Return an error in one line, with the lines of the job's own code below; of ours, how to fix it."""
    if isinstance(error, JobError):
        return str(error)
    frames = own_frames(error)
    return f"{one_line(error)}\n{frames}" if frames else one_line(error)

"""Tests of jobs: with a clock that is moved by hand, on the thread of the test."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Self

from opencqrs_py.adapters.memory import InMemoryJobStore
from opencqrs_py.adapters.sql import Database, DatabaseTransactions, Engine, SqlSelector, rows_in, table_rows
from opencqrs_py.assembly.discovery.discovered import GroupFunction
from opencqrs_py.assembly.discovery.discovery import discover_members
from opencqrs_py.assembly.jobs.rules import bound_jobs, rule_for
from opencqrs_py.config import load
from opencqrs_py.jobs.desk import JobDesk, Worker
from opencqrs_py.jobs.execution import JobExecution, Surroundings
from opencqrs_py.jobs.items import Items
from opencqrs_py.jobs.rules import JobRule
from opencqrs_py.jobs.runs import JobRun, RunStatus, chosen_ids
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.job import Job, JobId, RunSignals, Trigger
from opencqrs_py.model.naming import canonical
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.binding import Work, run_on_start
from opencqrs_py.testing.clock import FakeClock, forward
from opencqrs_py.testing.closing import closing
from opencqrs_py.testing.databases import opened_database
from opencqrs_py.testing.given import by_type, members_given
from opencqrs_py.testing.showing import difference, from_users_frame

_log = logging.getLogger("opencqrs.settings")

_NODE = "test"
_MOST_WAITS = 100  # for a database that is unavailable, in one attempt
_MOST_RUNS = 10_000  # in one advance of the clock; then the test moves it too far, or the job has no end


class JobTest:
    """Runs a job as a project would, on the thread of the test: no process, no Spark, no waiting.

    Transactions are real. The test has its own clock: ``advance`` moves it, and each tick in that time starts a run
    that takes no time, unless the job moves ``clock`` itself.

    Example:
        ``JobTest(remind).run().expect_rows("SELECT id FROM reminders", [(1,)])``

    Args:
        jobs: Modules, or functions and classes. ``@on_start`` functions among them run once, before the first run.
        name: The job to test; needed if there are several.
        settings: Its settings, as below ``opencqrs.jobs.<name>``, nested or with dotted keys. These have no effect:
            ``triggers.events``, ``exclusive-with``, ``cancel-grace``, ``processing.engine`` and ``history.keep``.
        database: Where the job writes: a URL, a ``Database`` or a SQLAlchemy engine. By default a new SQLite database
            in memory.
        provide: Objects by the type that jobs take; they replace what containers provide.
        start: The time of day at the beginning.

    Raises:
        ValueError: If there is no job, or several and none is named.
        TypeError: If ``provide`` is not keyed by type, or ``database`` or ``start`` is of another type.
        HandlerSignatureError: If the job cannot be called as it is written.
        ConfigurationErrors: If the settings are wrong.
    """

    def __init__(
        self,
        *jobs: ModuleType | type | Callable[..., Any],
        name: str = "",
        settings: Mapping[str, object] | None = None,
        database: Database | Engine | str = "",
        provide: Mapping[type, object] | None = None,
        start: datetime | None = None,
    ) -> None:
        found = discover_members(members_given(jobs, "a JobTest"), provided=by_type(provide))
        self.job = _only(found.jobs, name)
        self.clock = FakeClock() if start is None else FakeClock(start)
        self.database = opened_database(database)
        self._starts: Sequence[GroupFunction] = found.functions[Declaration.ON_START]
        self._injector = found.injector
        self._closing = closing(self, self.database, [found.injector], is_own=isinstance(database, str))
        self._transactions = DatabaseTransactions(self.database)
        self._store = InMemoryJobStore(self.clock)
        rules = _rules(self.job, found.jobs, settings or {})
        self._bound = bound_jobs([self.job], rules, found.injector, lambda _signature, _place: None)[self.job.name]
        self._desk = JobDesk(self._store, rules)
        self._signals = RunSignals()
        self._error: BaseException | None = None
        self._missed: list[BaseException] = []  # what calls after the commit have raised since run() or advance()
        self._tried: dict[str, BaseException | None] = {}  # since then: ids of runs, and how their last attempt failed
        self._waits = 0  # for a database, in one attempt
        self._started = self._prepared = self._asked_for_startup = False

    def run(self, *ids: JobId) -> Self:
        """Run the job now: for some ids, or for all that it applies to.

        Raises:
            BaseException: What the job, its input or the commit raised, also if a further attempt follows: a test that
                expects this catches it, and reaches that attempt with ``advance``. Or what a call after the commit
                raised.
            AssertionError: If the run has done nothing, such as one that is skipped while another one waits for its
                next attempt; not if the test has cancelled it.
        """
        self._prepare()
        is_cancelled = bool(self._signals.cancelled)
        now = self.clock.now()
        run = self._request(Trigger.MANUAL, now, chosen_ids(ids) if ids else None)
        self._execute_due(now, run.id)
        self._execute_due(self.clock.now())  # what became due while it ran
        self._raise_failed(run.id, *self._tried)
        found = self._store.find(run.id) or run
        if found.status is not RunStatus.SUCCEEDED and not (is_cancelled and found.status is RunStatus.CANCELLED):
            raise AssertionError(self._undone(found))
        self._raise_missed()
        return self

    def advance(self, seconds: float) -> Self:
        """Let some seconds pass; ticks and further attempts in that time are run, each at its time.

        For ``triggers.startup``, the first call is the start of the process.
        If the job itself moves ``clock`` past that time, what is then due is left to the next call.

        Raises:
            ValueError: If they are negative.
            AssertionError: If there are too many runs in that time.
            BaseException: What the last of these attempts of a run raised, once the time has passed: a test that
                expects this catches it. Or what a call after the commit raised.
        """
        passing = timedelta(seconds=forward(seconds))
        until = self.clock.now() + passing
        self._request_startup()
        self._prepare()
        self._execute_due(until)
        self._pass_until(until)
        self._raise_failed(*self._tried)
        self._raise_missed()
        return self

    def cancel(self) -> Self:
        """Request the end of the next run, as ``opencqrs jobs cancel`` does while it runs."""
        self._signals.cancelled = "cancelled by the test"
        return self

    @property
    def runs(self) -> list[JobRun]:
        """All runs, by time of request."""
        return self._store.history(limit=_MOST_RUNS)[::-1]

    @property
    def error(self) -> BaseException | None:
        """What the last failed attempt raised."""
        return self._error

    def connection(self) -> AbstractContextManager[Any]:
        """Open a transaction on the database, to arrange or inspect rows."""
        return self.database.writing()

    def rows(self, query: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query: SQL text, or a statement of SQLAlchemy."""
        return rows_in(self.database, query)

    def tables(self) -> dict[str, list[str]]:
        """Return the rows of all tables but those of this package, by their names, each row as text."""
        return table_rows(self.database)

    def expect_rows(self, query: Any, expected: Sequence[Sequence[Any]]) -> Self:
        """Expect the rows of a query, in this order."""
        __tracebackhide__ = True
        found, wanted = self.rows(query), [tuple(row) for row in expected]
        if found != wanted:
            raise AssertionError(f"rows of {query}: not as expected\n{difference(wanted, found)}")
        return self

    def expect_statuses(self, *expected: str) -> Self:
        """Expect the statuses of the runs, by time of request: ``succeeded``, ``skipped``, …."""
        __tracebackhide__ = True
        found = [run.status.value for run in self.runs]
        if found != list(expected):
            raise AssertionError(f"runs: not as expected\n{difference(list(expected), found)}")
        return self

    def close(self) -> None:
        """Close resources of containers, and the database unless the caller passed it open.

        Done automatically when the test is dropped.
        """
        self._closing()

    @property
    def _worker(self) -> Worker:
        return Worker(_NODE, _NODE, frozenset({_NODE}), 1, frozenset({self.job.name}), lambda: (_NODE,))

    def _prepare(self) -> None:
        self._missed.clear()
        self._tried.clear()
        if self._prepared:
            return
        self._prepared = True
        self._start()
        self._execute_due(self.clock.now())  # ticks count from now

    def _start(self) -> None:
        """Run the ``@on_start`` functions, unless they were run."""
        if self._started:
            return
        self._started = True
        with self._transactions.begin(guarded=False) as unit:
            for each in self._starts:
                run_on_start(each.call, each.place, self._injector, Work(each.group, Partition(1, 0), unit))

    def _request_startup(self) -> None:
        """Request the run after the start of a process, unless that was done."""
        ticking = self._bound.rule.ticking
        if ticking.startup and not self._asked_for_startup:
            self._request(Trigger.STARTUP, self.clock.now() + timedelta(seconds=ticking.delay))
        self._asked_for_startup = True

    def _request(self, trigger: Trigger, due: datetime, ids: tuple[JobId, ...] | None = None) -> JobRun:
        name = f"{self.job.name}:{len(self.runs) + 1:04}"  # sorted before a tick of the same time, which begins later
        run = JobRun(name, self.job.name, trigger, self.clock.now(), due_at=due, ids=ids)
        self._store.request(run)
        return run

    def _execute_due(self, until: datetime, run: str = "") -> None:
        """Execute what is due up to a time, each at its time, and a run, if one is named, to the end of its attempt.

        Nothing else begins once the job has moved the clock past that time.
        """
        seconds = (until - self.clock.now()).total_seconds()
        for _ in range(2 * _MOST_RUNS):  # a step is a run, or the move to the next one
            if self.clock.now() > until and not self._is_queued(run):
                return
            if self._execute_next():
                continue
            due = self._desk.next_due(self._store.look(), self._worker)
            if due is None or due > until:
                return
            self._pass_until(due)
        fix = "move the clock by less at a time, or limit the attempts (retry.max-attempts)"
        raise AssertionError(f"more than {_MOST_RUNS:,} runs in {seconds:g} s: {fix}")

    def _is_queued(self, run: str) -> bool:
        found = self._store.find(run)
        return found is not None and found.status is RunStatus.QUEUED

    def _pass_until(self, time: datetime) -> None:
        self.clock.advance(max(0.0, (time - self.clock.now()).total_seconds()))

    def _execute_next(self) -> bool:
        """Execute the run that may begin now; return whether there was one."""
        around = Surroundings(
            self._store,
            self._transactions,
            SqlSelector(self.database),
            self.clock,
            lambda seconds, _: self._wait(seconds),
            self._missed.append,
            self._note,
        )
        runs = self._desk.attend(self._worker)
        for run in runs:
            self._error, self._waits = None, 0
            ending = JobExecution(self._bound, run, around, self._signals).execute()
            self._signals = RunSignals()
            self._tried[run.id] = self._error
            self._desk.attend(replace(self._worker, free=0))  # ticks that have passed meanwhile meet this run
            if ending is not None:
                self._desk.finish(run, ending)
        return bool(runs)

    def _has_left_items(self, run: JobRun) -> bool:
        """Return whether a run has ended at a limit before items that its input selects."""
        if not run.reason:
            return False
        with self._transactions.begin(guarded=False) as unit:
            return bool(Items(self._bound, run, SqlSelector(self.database)).page(run.position, 1, unit).ids)

    def _raise_failed(self, *runs: str) -> None:
        """Raise the error of the first failed run that was attempted, unless a later attempt has succeeded."""
        for each in runs:
            run, error = self._store.find(each), self._tried.get(each)
            if error is not None and run is not None and run.status in {RunStatus.FAILED, RunStatus.RETRYING}:
                raise from_users_frame(error)

    def _undone(self, run: JobRun) -> str:
        """Return that a run has not done its work, why, and what to do about it."""
        why = run.reason or ("because it waits for other runs to end" if run.is_open else "")
        what = f"job '{self.job.name}' did not run: run {run.id} is {run.status.value}{why and f', {why}'}"
        for other in self.runs:
            if other.status is RunStatus.RETRYING and other.due_at is not None:
                seconds = f"{(other.due_at - self.clock.now()).total_seconds():g}"
                waits = f"the next attempt of run {other.id} is due in {seconds} s"
                return f"{what}; {waits}: reach it with advance({seconds})"
        return what

    def _raise_missed(self) -> None:
        if not self._missed:
            return
        error = self._missed[0]
        self._missed.clear()
        with suppress(Exception):  # an error that takes no notes is raised as it is
            error.add_note("raised by a call after the commit")
        raise from_users_frame(error)

    def _wait(self, seconds: float) -> None:
        """Let the time of a wait for a database pass; a database that stays unavailable would be waited for forever."""
        self._waits += 1
        if self._waits > _MOST_WAITS and self._error is not None:
            raise from_users_frame(self._error)
        self.clock.advance(seconds)

    def _note(self, error: BaseException) -> None:
        self._error = error


def assert_idempotent(job: JobTest | ModuleType | type | Callable[..., Any], *ids: JobId, **arguments: Any) -> JobTest:
    """Run a job twice, and compare the tables after each run.

    Args:
        job: The job, as ``JobTest`` takes it; or a ``JobTest``, whose tables may already have rows.
        ids: What it is run for; none: everything that it applies to.
        arguments: Further arguments of ``JobTest``.

    Returns:
        The test.

    Raises:
        AssertionError: If the second run changed something, with the rows; or a limit ended a run before everything was
            handled; or nothing was tested: the first run had no item or, for a job without an input, changed nothing,
            or there is no table.
        BaseException: What the job raised, even if a further attempt would follow.

    Source:
        J9.
    """
    __tracebackhide__ = True
    test = job if isinstance(job, JobTest) else JobTest(job, **arguments)
    test._start()  # noqa: SLF001 of this module
    before = test.tables()
    ran, once = _succeeded(test, ids), test.tables()
    selects = bool(ids) or test.job.mark.input is not None
    if selects and not ran.position.items:
        raise _not_tested(test, "its input selected nothing; first add rows that it selects")
    if not once:
        raise _not_tested(test, "its database has no table that it could change; pass database=…")
    if not selects and once == before:
        raise _not_tested(test, "its first run changed nothing; first add rows that it changes")
    _succeeded(test, ids)
    again = test.tables()
    if once == again:
        return test
    changed = sorted(name for name in once.keys() | again.keys() if once.get(name) != again.get(name))
    shown = "\n".join(f"table {name}\n{difference(once.get(name, []), again.get(name, []))}" for name in changed)
    raise AssertionError(f"job '{test.job.name}' is not idempotent: its second run changed something\n{shown}")


def _succeeded(test: JobTest, ids: Sequence[JobId]) -> JobRun:
    """Run a job, and return the run; raise unless it has handled everything at once."""
    ran = [run for run in test.run(*ids).runs if run.trigger is Trigger.MANUAL][-1]  # a tick's may have followed
    if ran.status is RunStatus.SUCCEEDED:
        if not test._has_left_items(ran):  # noqa: SLF001 of this module
            return ran
        what = f"a run has not handled everything: {ran.reason}; increase max-items-per-run or time-budget in the test"
        raise _not_tested(test, what)
    raise AssertionError(f"a run of job '{test.job.name}' did not succeed: it is {ran.status.value}, {ran.reason}")


def _not_tested(test: JobTest, why: str) -> AssertionError:
    return AssertionError(f"job '{test.job.name}' was not tested: {why}")


def _only(jobs: Sequence[Job], name: str) -> Job:
    found = [job for job in jobs if not name or canonical(job.name) == canonical(name)]
    names = ", ".join(job.name for job in jobs)
    if not found:
        raise ValueError(f"there is no job '{name}'; the jobs are: {names}" if jobs and name else "no job was found")
    if len(found) > 1:
        raise ValueError(f"several jobs: choose one of {names} with name=…")
    return found[0]


def _rules(job: Job, others: Sequence[Job], settings: Mapping[str, object]) -> dict[str, JobRule]:
    with TemporaryDirectory() as folder:
        defaults = {"opencqrs": {"jobs": {job.name: dict(settings)}}}
        configuration = load(Path(folder), environ={}, defaults=defaults)
        known = configuration.for_code({}, {each.name: each.place for each in others})
        for warning in known.warnings:
            _log.warning("%s", warning)
        return {job.name: rule_for(job, others, known)}

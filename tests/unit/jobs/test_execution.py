"""One attempt of a run: its transactions, its pages, and what interrupts it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection

from opencqrs_py import NonTransientError
from opencqrs_py.adapters.memory.jobs import InMemoryJobStore
from opencqrs_py.errors import HandlerSignatureError, JobCancelledError, JobError, UnavailableError
from opencqrs_py.jobs import execution
from opencqrs_py.jobs.binding import BoundJob, NoTransaction, bind_job
from opencqrs_py.jobs.desk import Ending, JobDesk, Worker
from opencqrs_py.jobs.execution import JobExecution, Surroundings
from opencqrs_py.jobs.rules import JobRule
from opencqrs_py.jobs.runs import JobRun, RunPosition, RunStatus
from opencqrs_py.model.choices import JobTransaction
from opencqrs_py.model.job import Job, JobContext, JobId, JobMark, JobPage, RunSignals, Trigger
from opencqrs_py.processing.after_commit import AfterCommit
from opencqrs_py.processing.binding import NothingProvided
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.testing.clock import FakeClock
from tests.support.partitions import CrashError

RUN, PAGE, ITEM = JobTransaction.RUN, JobTransaction.PAGE, JobTransaction.ITEM


@dataclass(frozen=True)
class Select:
    """A statement: all ids below ``end``."""

    end: int


class Database:
    """Rows and the progress of runs, in atomic transactions whose connection can be lost at the commit."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        # of each next commit, when its connection is lost: "before" or "after" it takes effect, or "" for never
        self.cuts: list[str] = []
        self.commits = 0
        self.ended = ""

    @contextmanager
    def begin(self, *, guarded: bool = True) -> Iterator[SimpleNamespace]:
        written: list[Any] = []
        done: list[Callable[[], bool]] = []
        unit = SimpleNamespace(connection=written, session=written, done=done)
        unit.flush = lambda: None
        unit.ended_early = lambda error: RuntimeError(self.ended) if self.ended else None
        yield unit
        cut = self.cuts.pop(0) if self.cuts else ""
        if cut == "before":
            raise ConnectionError
        self.rows += written
        self.commits += 1
        for each in done:
            each()
        if cut == "after":
            raise ConnectionError

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)


class Store(InMemoryJobStore):
    """Runs in that database; lookups of runs can lose the connection, too."""

    cuts = 0

    def advance(self, run: JobRun, position: RunPosition, unit: Any = None) -> bool:
        if unit is None:
            return super().advance(run, position)
        known = self.find(run.id)
        if known is None or known.token != run.token:
            return False
        unit.done.append(lambda: InMemoryJobStore.advance(self, run, position))
        return True

    def find(self, run: str) -> JobRun | None:
        if self.cuts:
            self.cuts -= 1
            raise ConnectionError
        return super().find(run)


class Queries:
    """Executes statements and counts them."""

    def __init__(self) -> None:
        self.pages: list[JobPage] = []

    def limited(self, statement: object, unit: object) -> None:
        return None

    def ids(self, statement: object, page: JobPage, unit: Any) -> Sequence[JobId] | None:
        if not isinstance(statement, Select):
            return None
        self.pages.append(page)
        if page.ids is not None:
            return [each for each in range(statement.end) if str(each) in set(map(str, page.ids))]
        begin = 0 if page.after is None else int(page.after) + 1
        return list(range(begin, min(begin + page.limit, statement.end)))


@dataclass
class World:
    """A job with its database."""

    call: Callable[..., Any]
    input: Callable[..., Any] | None = None
    rule: JobRule = field(default_factory=lambda: JobRule("job"))
    database: Database | None = field(default_factory=Database)

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.store = Store(self.clock)
        self.desk = JobDesk(self.store, {"job": self.rule})
        self.queries = Queries()
        self.signals = RunSignals()
        self.released = False
        self.pauses: list[float] = []
        self.bound = bound(self.call, self.input, self.rule)

    def begun(self, *ids: JobId, trigger: Trigger = Trigger.MANUAL) -> JobRun:
        if not self.store.look().runs:
            self.store.request(JobRun("run", "job", trigger, self.clock.now(), ids=ids or None))
        (run,) = self.desk.attend(Worker("a", "a", frozenset("a"), 4, frozenset(), lambda: "a"))
        return run

    def execution(self, run: JobRun) -> JobExecution:
        self.signals = RunSignals()
        around = Surroundings(self.store, self.database, self.queries, self.clock, self._pause)
        return JobExecution(self.bound, run, around, self.signals, lambda: self.released)

    def run(self, *ids: JobId, trigger: Trigger = Trigger.MANUAL) -> JobRun:
        """Execute one attempt, and return the state of the run."""
        run = self.begun(*ids, trigger=trigger)
        ending = self.execution(run).execute()
        assert ending is not None
        ended = self.desk.finish(run, ending)
        assert ended is not None
        return ended

    def taken(self) -> JobRun:
        """Let another process take the run, as if this one had ended."""
        self.desk = JobDesk(self.store, {"job": self.rule})
        (run,) = self.desk.attend(Worker("b", "b", frozenset("b"), 4, frozenset(), lambda: "b"))
        return run

    def run_again(self) -> JobRun:
        """Execute the attempt of another process after this one has ended, and return the state of the run."""
        again = self.taken()
        ending = self.execution(again).execute()
        assert ending is not None
        ended = self.desk.finish(again, ending)
        assert ended is not None
        return ended

    def _pause(self, seconds: float, signals: RunSignals) -> None:
        self.pauses.append(seconds)

    @property
    def rows(self) -> list[Any]:
        assert self.database is not None
        return self.database.rows


def bound(call: Callable[..., Any], given: Callable[..., Any] | None, rule: JobRule) -> BoundJob:
    return bind_job(Job(JobMark("job", given), call, "jobs.py:1 (call)"), rule, NothingProvided())


def rule(transaction: JobTransaction = PAGE, **others: Any) -> JobRule:
    return JobRule("job", **{"transaction": transaction, "limit": 2, "back_off": FixedBackOff(0), **others})


def write(context: JobContext, connection: Connection) -> None:
    connection += list(context.ids) or ["all"]  # type: ignore[operator, assignment]


def numbers(end: int) -> Callable[[], Select]:
    def due() -> Select:
        return Select(end)

    return due


def failing(*wrong: JobId, error: type[BaseException] = ValueError) -> Callable[..., None]:
    def call(context: JobContext, connection: Connection) -> None:
        for each in context.ids:
            if each in wrong:
                raise error(f"not {each}")
            connection.append(each)  # type: ignore[attr-defined]

    return call


# --------------------------------------------------------------------------------------------- J1, J2, J3, J9, J13, J16


@pytest.mark.parametrize("transaction", list(JobTransaction))
@pytest.mark.parametrize(
    ("ids", "handled"),
    [
        pytest.param((), [0, 1, 2, 3, 4], id="J1: all"),
        pytest.param((3,), [3], id="J1: one"),
        pytest.param(("4", "1"), [4, 1], id="J1: ids of the command line are texts"),
        pytest.param((3, "3", 3, 1), [3, 1], id="J1: a duplicate id"),
        pytest.param((99,), [], id="J1: one id that does not apply"),
        pytest.param((99, 2, 98, 97, 0), [2, 0], id="J1: some ids that do not apply"),
        pytest.param(("None", 1), [1], id="J1: an id that is called None"),
    ],
)
def test_j1_a_job_runs_for_all_ids_or_for_the_named_ids(transaction, ids, handled):
    for limit in (1, 2, 9):
        world = World(write, numbers(5), rule(transaction, limit=limit))
        ended = world.run(*ids)
        assert ended.status is RunStatus.SUCCEEDED
        assert world.rows == handled
        assert ended.position.items == len(handled)
        assert ended.position.done


@pytest.mark.parametrize("transaction", list(JobTransaction))
@pytest.mark.parametrize(
    ("given", "handled"),
    [
        pytest.param(lambda: [3, 1, 2, 2], [1, 2, 3], id="a list"),
        pytest.param(lambda: iter("cab"), ["a", "b", "c"], id="an iterator"),
        pytest.param(list, [], id="nothing"),
    ],
)
def test_j1_an_input_may_return_its_ids_at_once(transaction, given, handled):
    calls = []

    def due() -> Iterable[JobId]:
        calls.append(1)
        return given()

    world = World(write, due, rule(transaction))
    assert world.run().status is RunStatus.SUCCEEDED
    assert world.rows == handled
    assert len(calls) == 1


def test_j1_named_ids_are_looked_up_in_an_input_that_returns_all_its_ids_at_once():
    def due() -> Iterable[str]:
        yield from "dcba"

    world = World(write, due, rule())
    world.run("b", "x", "d")
    assert world.rows == ["b", "d"]


def test_j1_without_an_input_the_named_ids_are_handled_unchanged():
    for ids, handled in {("b", "a", "c"): ["b", "a", "c"], (): ["all"]}.items():
        world = World(write, None, rule())
        assert world.run(*ids).position.items == len(ids)
        assert world.rows == handled


def test_j1_a_run_for_no_ids_does_nothing():
    world = World(write, numbers(5), rule())
    run = replace(world.begun(), ids=())
    assert world.execution(run).execute().position.done
    assert world.rows == []


@pytest.mark.parametrize(
    ("transaction", "commits"), [(RUN, 1), (PAGE, 3), (ITEM, 5)], ids=["J2: run", "J2: page", "J2: item"]
)
def test_j2_each_run_page_or_item_has_its_own_transaction(transaction, commits):
    world = World(write, None, rule(transaction, limit=2))
    caller = world.database.begin()
    caller.__enter__().connection.append("of the caller")
    world.run(1, 2, 3, 4, 5)
    with suppress(ZeroDivisionError):
        caller.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert world.rows == [1, 2, 3, 4, 5]
    assert world.database.commits == commits


def test_j3_a_job_can_be_called_as_a_plain_function():
    connection: list[Any] = []
    write(JobContext("job", "run", ids=(1, 2)), connection)
    assert connection == [1, 2]


@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_j9_a_second_run_with_unchanged_input_does_nothing(transaction):
    paid: set[JobId] = set()

    def unpaid() -> list[JobId]:
        return [each for each in range(5) if each not in paid]

    def pay(context: JobContext) -> None:
        assert paid.isdisjoint(context.ids)
        paid.update(context.ids)

    world = World(pay, unpaid, rule(transaction))
    assert world.run().position.items == 5
    again = World(pay, unpaid, rule(transaction))
    assert again.run().position.items == 0
    assert paid == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_j13_a_job_runs_on_the_thread_of_its_caller(transaction):
    threads = set()

    def call(context: JobContext, connection: Connection) -> None:
        threads.add(threading.get_ident())

    World(call, numbers(5), rule(transaction)).run()
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_j16_2500_items_with_a_limit_of_1000_take_three_queries(transaction):
    world = World(write, numbers(2_500), rule(transaction, limit=1_000))
    assert world.run().position.items == 2_500
    assert [(page.limit, page.after) for page in world.queries.pages] == [(1_000, None), (1_000, 999), (1_000, 1_999)]
    assert world.rows == list(range(2_500))


@pytest.mark.parametrize("transaction", list(JobTransaction))
@pytest.mark.parametrize(("limit", "queries"), [(400, [400, 400, 200]), (1_000, [1_000])])
def test_j16_with_at_most_1000_items_the_rest_is_for_the_next_run(transaction, limit, queries):
    world = World(write, numbers(2_500), rule(transaction, limit=limit, most_items=1_000))
    ended = world.run()
    assert (ended.status, ended.position.items) == (RunStatus.SUCCEEDED, 1_000)
    assert ended.reason == "it has handled 1000 items, its maximum; the rest is for the next run"
    assert [page.limit for page in world.queries.pages] == queries
    assert len(world.rows) == 1_000


@pytest.mark.parametrize(
    ("transaction", "handled"), [(RUN, 4), (PAGE, 4), (ITEM, 3)], ids=["J16: run", "J16: page", "J16: item"]
)
def test_j16_a_run_whose_time_budget_is_used_up_begins_no_further_page(transaction, handled):
    world: World

    def slow(context: JobContext, connection: Connection) -> None:
        assert context.deadline == FakeClock().now() + timedelta(seconds=10)
        world.clock.advance(4 * len(context.ids))
        connection += list(context.ids)  # type: ignore[operator, assignment]

    world = World(slow, numbers(9), rule(transaction, budget=10))
    ended = world.run()
    assert ended.status is RunStatus.SUCCEEDED
    assert ended.reason == "its time budget of 10 s is used up; the rest is for the next run"
    assert len(world.rows) == handled


@pytest.mark.parametrize("transaction", list(JobTransaction))
@pytest.mark.parametrize("trigger", [Trigger.EVENT, Trigger.MANUAL])
def test_j6_named_ids_are_handled_regardless_of_limits(transaction, trigger):
    world: World

    def slow(context: JobContext, connection: Connection) -> None:
        world.clock.advance(100)
        write(context, connection)

    world = World(slow, numbers(9), rule(transaction, budget=1, most_items=1))
    ended = world.run(1, 2, 3, 4, 5, trigger=trigger)
    assert (ended.status, ended.reason) == (RunStatus.SUCCEEDED, "")
    assert world.rows == [1, 2, 3, 4, 5]


# --------------------------------------------------------------------------------------------------- failures, J12, J19


@pytest.mark.parametrize(
    ("transaction", "kept"), [(RUN, []), (PAGE, [0, 1]), (ITEM, [0, 1, 2, 4])], ids=["run", "page", "item"]
)
def test_j19_work_committed_before_a_failure_is_kept_and_not_repeated(transaction, kept):
    world = World(failing(3), numbers(5), rule(transaction))
    ended = world.run()
    assert ended.status is RunStatus.RETRYING
    assert "ValueError: not 3" in ended.error
    assert "test_execution.py" in ended.error
    assert world.rows == kept
    world.bound = bound(write, numbers(5), world.rule)
    assert world.run().status is RunStatus.SUCCEEDED
    assert sorted(world.rows) == [0, 1, 2, 3, 4]


def test_only_failed_items_are_retried():
    world = World(failing(1, 3), numbers(5), rule(ITEM))
    ended = world.run()
    assert ended.error.startswith("2 of 5 items have failed, the first one 1: ValueError: not 1")
    assert ended.position.only == (1, 3)
    world.bound = bound(failing(3), numbers(5), world.rule)
    ended = world.run()
    assert ended.error.startswith("1 of 5 items have failed, the first one 3: ValueError: not 3")
    world.bound = bound(write, numbers(5), world.rule)
    ended = world.run()
    assert (ended.status, ended.error, ended.position.items) == (RunStatus.SUCCEEDED, "", 5)
    assert world.rows == [0, 2, 4, 1, 3]


def six_with_an_error() -> Callable[[JobPage], list[int]]:
    """Return an input of six ids that fails once, after the fourth."""
    broken = [True]

    def due(page: JobPage) -> list[int]:
        if page.after == 3 and broken:
            broken.clear()
            raise ValueError("the input")
        those = range(6) if page.ids is None else page.ids
        return [int(each) for each in those if page.after is None or int(each) > int(page.after)][: page.limit]

    return due


def test_items_that_failed_before_the_setting_changed_to_one_transaction_per_run_are_retried():
    due = six_with_an_error()
    world = World(failing(1), due, rule(ITEM))
    assert world.run().position.failed == (1,)
    world.bound = bound(write, due, replace(world.rule, transaction=RUN))
    ended = world.run()
    assert ended.error.startswith("1 of 6 items have failed, the first one 1: ")
    assert (ended.status, ended.position.only) == (RunStatus.RETRYING, (1,))
    assert world.run().status is RunStatus.SUCCEEDED
    assert sorted(world.rows) == list(range(6))


def test_failed_items_do_not_block_the_rest_after_the_input_failed():
    due = six_with_an_error()
    world = World(failing(1), due, rule(ITEM))
    ended = world.run()
    assert "the input" in ended.error
    assert (ended.position.after, ended.position.failed, ended.position.only) == (3, (1,), None)
    ended = world.run()
    assert ended.error.startswith("1 of 6 items have failed, the first one 1: ")
    assert world.rows == [0, 2, 3, 4, 5]


@pytest.mark.parametrize(("error", "status"), [(NonTransientError, RunStatus.FAILED), (ValueError, RunStatus.RETRYING)])
@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_a_permanent_failure_is_not_retried(transaction, error, status):
    assert World(failing(1, 4, error=error), numbers(5), rule(transaction)).run().status is status


def test_items_are_retried_if_one_of_their_failures_is_transient():
    def call(context: JobContext, connection: Connection) -> None:
        raise NonTransientError("no") if context.id == 1 else ValueError("perhaps")

    assert World(call, numbers(2), rule(ITEM)).run().position.only == (0, 1)


def test_an_attempt_ends_after_too_many_failed_items_and_the_next_continues_after_them(monkeypatch):
    monkeypatch.setattr(execution, "MOST_FAILED", 3)
    world = World(failing(*range(5)), numbers(9), rule(ITEM))
    ended = world.run()
    assert ended.error.startswith("3 of 3 items have failed, and the rest was not tried, the first one 0")
    ended = world.run()
    assert ended.error.startswith("5 of 9 items have failed, the first one 0")
    assert ended.position.only == (0, 1, 2, 3, 4)
    assert world.rows == [5, 6, 7, 8]


@pytest.mark.parametrize("named", [(), tuple(range(9))], ids=["all", "named"])
def test_no_item_is_lost_when_very_many_fail(monkeypatch, named):
    monkeypatch.setattr(execution, "MOST_FAILED", 2)
    world = World(failing(*range(9)), numbers(9), rule(ITEM))
    for _ in range(3):
        assert world.run(*named).status is RunStatus.RETRYING
    world.bound = bound(write, numbers(9), world.rule)
    while world.store.look().runs:
        ended = world.run(*named)
    assert ended.status is RunStatus.SUCCEEDED
    assert sorted(world.rows) == list(range(9))


def test_items_that_failed_before_a_limit_was_reached_are_retried():
    world = World(failing(0), numbers(9), rule(ITEM, most_items=4))
    ended = world.run()
    assert ended.position.only == (0,)
    world.bound = bound(write, numbers(9), world.rule)
    ended = world.run()
    assert (ended.status, ended.position.items) == (RunStatus.SUCCEEDED, 4)
    assert sorted(world.rows) == [0, 1, 2, 3]


def test_a_retry_of_failed_items_reports_that_a_limit_ended_the_previous_attempt():
    world = World(failing(0, 1), numbers(9), rule(ITEM, most_items=4))
    assert world.run().position.only == (0, 1)
    world.bound = bound(failing(1), numbers(9), world.rule)
    assert world.run().position.only == (1,)
    world.bound = bound(write, numbers(9), world.rule)
    assert world.execution(world.begun()).execute().position.done
    ended = world.run_again()
    assert (ended.status, ended.position.items) == (RunStatus.SUCCEEDED, 4)
    assert ended.reason == "it has handled 4 items, its maximum; the rest is for the next run"


def test_each_attempt_has_a_time_budget_and_makes_progress():
    world: World

    def slow(context: JobContext, connection: Connection) -> None:
        world.clock.advance(60)
        if context.id in broken:
            raise ValueError(context.id)
        write(context, connection)

    broken = {0}
    world = World(slow, numbers(9), rule(ITEM, budget=10))
    assert world.run().position.only == (0,)
    broken.clear()
    assert world.run().status is RunStatus.SUCCEEDED
    assert world.rows == [0]


@pytest.mark.parametrize(
    ("transaction", "kept"), [(RUN, []), (PAGE, [0, 1, 2, 3]), (ITEM, [0, 1, 2])], ids=["run", "page", "item"]
)
@pytest.mark.parametrize("released", [False, True])
def test_j12_a_cancelled_job_ends_after_its_current_work(transaction, kept, released):
    world: World

    def call(context: JobContext, connection: Connection) -> None:
        write(context, connection)
        if 2 in context.ids:
            assert not context.cancelled
            world.signals.cancelled = "not needed"
            assert context.cancelled

    world = World(call, numbers(9), rule(transaction))
    world.released = released
    ended = world.run()
    assert ended.status is (RunStatus.RETRYING if released else RunStatus.CANCELLED)
    assert ended.reason == "not needed"
    assert world.rows == kept
    if released:
        world.bound = bound(write, numbers(9), world.rule)
        assert world.run().attempt == 1
        assert world.rows == list(range(9))


@pytest.mark.parametrize(
    ("transaction", "kept"), [(RUN, []), (PAGE, [0, 1]), (ITEM, [0, 1, 2])], ids=["run", "page", "item"]
)
def test_j12_a_cancelled_job_may_roll_back_its_current_work(transaction, kept):
    world: World

    def call(context: JobContext, connection: Connection) -> None:
        write(context, connection)
        context.raise_if_cancelled()
        if 3 in context.ids:
            world.signals.cancelled = "not needed"
            context.raise_if_cancelled()

    world = World(call, numbers(9), rule(transaction))
    ended = world.run()
    assert (ended.status, ended.position.failed) == (RunStatus.CANCELLED, ())
    assert world.rows == kept


def test_j12_a_cancellation_error_without_a_cancel_request_is_a_failure():
    ended = World(failing(1, error=JobCancelledError), numbers(3), rule()).run()
    assert ended.status is RunStatus.RETRYING
    assert "JobCancelledError" in ended.error


def test_a_job_without_a_transaction_records_each_page():
    rows: list[Any] = []

    def call(context: JobContext) -> None:
        rows.extend(context.ids)
        if context.ids == (2, 3) and context.attempt == 1:
            raise ValueError("no")

    world = World(call, numbers(5), rule(RUN))
    assert world.run().position.after == 1
    assert world.run().status is RunStatus.SUCCEEDED
    assert rows == [0, 1, 2, 3, 2, 3, 4]


def test_a_job_runs_without_a_database():
    rows: list[Any] = []

    def call(context: JobContext) -> None:
        rows.extend(context.ids)

    for transaction in JobTransaction:
        world = World(call, numbers(3), rule(transaction), database=None)
        assert world.run().status is RunStatus.SUCCEEDED
    assert rows == [0, 1, 2] * 3
    world = World(failing_without(), None, JobRule("job"), database=None)
    assert world.run().error.startswith("ValueError: no")


def failing_without() -> Callable[..., None]:
    def call() -> None:
        raise ValueError("no")

    return call


def test_an_item_mode_run_for_no_items_is_one_transaction():
    world = World(write, None, rule(ITEM))
    world.database.cuts = ["after"]
    assert world.run().status is RunStatus.SUCCEEDED
    assert world.rows == ["all"]
    broken = World(divide, None, rule(ITEM))
    assert "ZeroDivisionError" in broken.run().error


def divide(context: JobContext, connection: Connection) -> None:
    del context, connection
    _ = 1 / 0


# -------------------------------------------------------------------------------------------------- crashes and outages


@pytest.mark.parametrize("transaction", list(JobTransaction))
@pytest.mark.parametrize("crash_at", range(5))
def test_a_crash_in_the_middle_repeats_no_committed_work(transaction, crash_at):
    crashed = []

    def call(context: JobContext, connection: Connection) -> None:
        write(context, connection)
        if crash_at in context.ids and not crashed:
            crashed.append(1)
            raise CrashError

    world = World(call, numbers(5), rule(transaction))
    run = world.begun()
    with pytest.raises(CrashError):
        world.execution(run).execute()
    again = world.taken()
    assert (again.attempt, again.deaths) == (2, 1)
    ending = world.execution(again).execute()
    assert world.desk.finish(again, ending).status is RunStatus.SUCCEEDED
    assert world.rows == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_a_crash_before_the_end_is_recorded_repeats_nothing(transaction):
    world = World(write, numbers(5), rule(transaction))
    assert world.execution(world.begun()).execute().position.done
    again = world.taken()
    assert world.execution(again).execute() == Ending(again.position)
    assert world.rows == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("cut", ["", "after"], ids=["its process ends", "the confirmation is lost"])
@pytest.mark.parametrize(
    ("transaction", "limits", "reason"),
    [
        *((each, {"most_items": 2}, "it has handled 2 items, its maximum") for each in JobTransaction),
        (RUN, {"budget": 1}, "its time budget of 1 s is used up"),  # pages and items are continued with a new budget
    ],
)
def test_a_limit_that_ended_a_run_stays_its_reason_if_the_end_is_recorded_later(transaction, limits, reason, cut):
    world: World

    def slow(context: JobContext, connection: Connection) -> None:
        world.clock.advance(1)
        write(context, connection)

    world = World(slow, numbers(5), rule(transaction, **limits))
    world.database.cuts = [cut]
    ending = world.execution(world.begun()).execute()
    ended = world.run_again()
    assert (ended.status, ended.reason) == (RunStatus.SUCCEEDED, f"{reason}; the rest is for the next run")
    assert ending.reason == ended.reason
    assert world.rows == [0, 1]


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("interrupted", [False, True], ids=["its process ends", "interrupted"])
@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_ids_missing_from_the_input_are_counted_once_if_another_process_continues(transaction, interrupted, at, limit):
    world: World
    ended_once = []

    def call(context: JobContext, connection: Connection) -> None:
        write(context, connection)
        if at in context.ids and not ended_once:
            ended_once.append(1)
            if not interrupted:
                raise CrashError
            world.signals.cancelled = "its process is ending"

    world = World(call, numbers(3), rule(transaction, limit=limit))
    world.released = interrupted
    run = world.begun(8, 0, 9, 1, 7, 6, 2, 5, trigger=Trigger.EVENT)
    if interrupted:
        world.desk.finish(run, world.execution(run).execute())
    else:
        with pytest.raises(CrashError):
            world.execution(run).execute()
    known = world.store.find("run")
    ended = known if known.status is RunStatus.SUCCEEDED else world.run_again()
    assert (ended.status, ended.reason) == (RunStatus.SUCCEEDED, "the input did not return 5 ids of its events")
    assert world.rows == [0, 1, 2]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("commit", range(6))
@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_ids_missing_from_the_input_are_counted_once_if_a_confirmation_is_lost(transaction, commit, when):
    world = World(write, numbers(3), rule(transaction))
    world.database.cuts = [*[""] * commit, when]
    run = world.run(8, 0, 9, 1, 7, 6, 2, 5, trigger=Trigger.EVENT)
    assert (run.status, run.reason) == (RunStatus.SUCCEEDED, "the input did not return 5 ids of its events")
    assert world.rows == [0, 1, 2]


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_failed_items_that_no_longer_apply_are_counted_over_all_attempts(limit):
    crashed = []

    def even(page: JobPage) -> list[int]:
        return [int(each) for each in page.ids or () if int(each) % 2 == 0]

    def call(context: JobContext, connection: Connection) -> None:
        if context.id == 4:
            raise ValueError("not yet")
        if context.id == 2 and not crashed:
            crashed.append(1)
            raise CrashError
        write(context, connection)

    world = World(failing(*range(6)), numbers(6), rule(ITEM, limit=limit))
    assert world.run().position.only == (0, 1, 2, 3, 4, 5)
    world.bound = bound(call, even, world.rule)
    with pytest.raises(CrashError):
        world.execution(world.begun()).execute()
    again = world.run_again()
    assert (again.status, again.position.only) == (RunStatus.RETRYING, (4,))
    world.bound = bound(write, even, world.rule)
    (last,) = world.desk.attend(Worker("b", "b", frozenset("b"), 4, frozenset(), lambda: "b"))
    ended = world.desk.finish(last, world.execution(last).execute())
    assert (ended.status, ended.reason) == (
        RunStatus.SUCCEEDED,
        "3 items that had failed did not apply any more",
    )
    assert world.rows == [0, 2, 4]


@pytest.mark.parametrize("looks", [0, 1, 3], ids=lambda looks: f"{looks} lookups fail, too")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("commit", range(6))
@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_a_commit_whose_confirmation_is_lost_is_looked_up_and_not_repeated(transaction, commit, when, looks):
    world = World(write, numbers(5), rule(transaction))
    run = world.begun()
    world.database.cuts = [*[""] * commit, when]
    world.store.cuts = 0
    execution_ = world.execution(run)
    pause = world._pause

    def cut_looks(seconds: float, signals: RunSignals) -> None:
        if not world.pauses:
            world.store.cuts = looks
        pause(seconds, signals)

    world._pause = cut_looks
    execution_ = world.execution(run)
    ending = execution_.execute()
    assert ending is not None
    assert ending.error == ""
    assert world.rows == [0, 1, 2, 3, 4]
    assert world.pauses in ([], [0.5, 1, 2, 4][: looks + 1])


def test_an_outage_in_a_job_uses_no_attempt():
    cuts = [UnavailableError("OCQ-420", "spark"), ConnectionError("database")]

    def call(context: JobContext, connection: Connection) -> None:
        write(context, connection)
        if cuts:
            raise cuts.pop()

    world = World(call, numbers(3), rule(ITEM, back_off=FixedBackOff(0, 0)))
    assert world.run().status is RunStatus.SUCCEEDED
    assert world.rows == [0, 1, 2]
    assert world.pauses == [0.5, 1]


@pytest.mark.parametrize(
    ("transaction", "cuts", "pauses"),
    [
        pytest.param(ITEM, ["", "", "before"] * 3, [0.5, 0.5, 0.5], id="items"),
        pytest.param(PAGE, ["before", "", "before", "before", "", "before"], [0.5, 0.5, 1, 0.5], id="pages"),
        pytest.param(PAGE, ["after", "after", "after"], [0.5, 0.5, 0.5], id="commits without an answer"),
        pytest.param(RUN, ["before", "before", "before"], [0.5, 1, 2], id="one transaction"),
    ],
)
def test_the_waits_of_an_outage_begin_again_after_progress_of_the_run(transaction, cuts, pauses):
    world = World(write, numbers(8), rule(transaction))
    world.database.cuts = cuts
    assert world.run().status is RunStatus.SUCCEEDED
    assert world.rows == list(range(8))
    assert world.pauses == pauses


def test_a_cancelled_run_does_not_wait_for_its_database():
    world = World(write, numbers(5), rule())
    world.database.cuts = ["", "after"]
    world._pause = lambda seconds, signals: setattr(signals, "cancelled", "the process is ending")
    world.released = True
    ended = world.run()
    assert (ended.status, ended.position.after, world.rows) == (RunStatus.RETRYING, 3, [0, 1, 2, 3])


@pytest.mark.parametrize("transaction", list(JobTransaction))
@pytest.mark.parametrize("transactional", [False, True])
def test_a_zombie_commits_nothing(transaction, transactional):
    seen = []

    def call(context: JobContext, connection: Connection) -> None:
        take(context)
        write(context, connection)

    def take(context: JobContext) -> None:
        if 2 in context.ids or (transaction is RUN and transactional):
            seen.append(1)
            JobDesk(world.store, {"job": world.rule}).attend(
                Worker("b", "b", frozenset("b"), 4, frozenset(), lambda: "b")
            )

    world = World(call if transactional else take, numbers(5), rule(transaction))
    run = world.begun()
    assert world.execution(run).execute() is None
    assert seen
    kept = {RUN: [], PAGE: [0, 1], ITEM: [0, 1]}[transaction]
    assert world.rows == (kept if transactional else [])
    assert world.store.find("run").owner == "b"


def away(*errors: BaseException) -> Callable[..., None]:
    """Return a job that raises errors of a database, one in each attempt."""
    left = list(errors)

    def call(context: JobContext, connection: Connection) -> None:
        if left:
            raise left.pop(0)
        write(context, connection)

    return call


def test_a_run_that_waits_for_a_database_shows_the_error_and_its_next_attempt():
    world = World(away(ConnectionError("the archive"), UnavailableError("OCQ-420", "a lock")), numbers(3), rule())
    world.store.request(JobRun("run", "job", Trigger.MANUAL, world.clock.now()))
    shown = []

    def look(seconds: float, signals: RunSignals) -> None:
        known, now = world.store.find("run"), world.clock.now()
        shown.append(
            (known.error.partition("\n")[0], (known.waits_until - now).total_seconds(), known.awaits_database(now))
        )
        world.clock.advance(seconds)
        assert not known.awaits_database(world.clock.now())

    world._pause = look
    ended = world.run()
    assert shown == [("ConnectionError: the archive", 0.5, True), ("UnavailableError: a lock", 1.0, True)]
    assert (ended.status, ended.error, ended.attempt) == (RunStatus.SUCCEEDED, "", 1)


@pytest.mark.parametrize(("released", "status"), [(False, RunStatus.CANCELLED), (True, RunStatus.RETRYING)])
@pytest.mark.parametrize("is_noted", [True, False])
def test_a_run_that_ends_while_it_waits_for_a_database_keeps_the_error(released, status, is_noted, monkeypatch):
    world = World(away(ConnectionError("the archive")), numbers(3), rule())
    world.released = released
    world._pause = lambda seconds, signals: setattr(signals, "cancelled", "run 2 is to take its place")
    if not is_noted:
        monkeypatch.setattr(world.store, "report_wait", raising(ConnectionError("its own database")))
    ended = world.run()
    assert (ended.status, ended.reason) == (status, "run 2 is to take its place")
    assert ended.error.startswith("ConnectionError: the archive")


def test_a_child_that_is_cancelled_while_it_waits_for_a_database_does_not_fail_its_run():
    world = World(away(ConnectionError("the archive")), numbers(3), rule())
    world._pause = lambda seconds, signals: setattr(signals, "cancelled", "enough")
    run = world.begun()
    ending = world.execution(replace(run, parent="its run")).execute()
    assert (ending.cancelled, ending.error) == (True, "")
    assert world.store.find("run") == run


def test_a_wait_is_not_recorded_once_the_run_is_asked_to_end(monkeypatch):
    """A stop while its own database is unavailable, too, would wait for one more attempt to connect."""
    world, recorded = World(write, numbers(3), rule()), []

    def call(context: JobContext, connection: Connection) -> None:
        world.signals.cancelled = "its process is ending"
        raise ConnectionError("the archive")

    world.bound = bound(call, world.input, world.rule)
    monkeypatch.setattr(world.store, "report_wait", lambda *args: recorded.append(args))
    assert world.run().status is RunStatus.CANCELLED
    assert recorded == []


@pytest.mark.parametrize(
    ("error", "is_logged"), [(ConnectionError("its own database"), False), (ValueError("a defect"), True)]
)
def test_a_run_waits_as_long_if_that_cannot_be_recorded(error, is_logged, monkeypatch, caplog):
    world = World(away(ConnectionError("the archive")), numbers(3), rule())

    def record(*_: object) -> None:
        world.clock.advance(0.3)
        raise error

    monkeypatch.setattr(world.store, "report_wait", record)
    assert world.run().status is RunStatus.SUCCEEDED
    assert world.pauses == [pytest.approx(0.2)]
    assert ("[job job] that run run waits cannot be recorded: " in caplog.text) is is_logged


def test_the_next_attempt_does_not_wait_although_the_clock_was_set_back():
    world = World(away(ConnectionError("the archive"), ValueError("no")), numbers(3), rule(back_off=FixedBackOff(0, 1)))
    before = world.clock.now()
    assert world.run().status is RunStatus.RETRYING
    run = world.begun()
    assert run.attempt == 2
    assert not run.awaits_database(before)


def raising(error: BaseException) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


def test_a_run_that_was_taken_over_during_an_outage_is_left_alone():
    world = World(write, numbers(5), rule())
    world.database.cuts = ["", "before"]
    run = world.begun()

    def taken(seconds: float, signals: RunSignals) -> None:
        world.taken()

    world._pause = taken
    assert world.execution(run).execute() is None
    assert world.rows == [0, 1]


def test_an_interrupt_ends_the_run_at_once():
    world = World(failing(1, error=KeyboardInterrupt), numbers(3), rule(ITEM))
    with pytest.raises(KeyboardInterrupt):
        world.execution(world.begun()).execute()


def test_a_job_that_ends_its_own_transaction_fails_with_an_explanation():
    world = World(failing(0), numbers(3), rule())
    world.database.ended = "it has ended the transaction"
    assert world.run().error.startswith("RuntimeError: it has ended the transaction")


def test_after_commit_calls_run_after_the_commit_and_their_errors_are_logged(caplog):
    made: list[Any] = []

    def call(context: JobContext, connection: Connection, after_commit: AfterCommit) -> None:
        write(context, connection)
        after_commit(lambda: made.append((context.ids, list(world.rows))))
        after_commit(lambda: 1 / 0)

    world = World(call, numbers(3), rule())
    assert world.run().status is RunStatus.SUCCEEDED
    assert made == [((0, 1), [0, 1]), ((2,), [0, 1, 2])]
    assert "[job job] a call after the commit failed: ZeroDivisionError" in caplog.text


def test_a_run_records_the_progress_that_its_job_reports():
    def call(context: JobContext, connection: Connection) -> None:
        context.progress(len(world.rows), 5)

    world = World(call, numbers(5), rule())
    ended = world.run()
    assert (ended.done, ended.total) == (0, 5)


# -------------------------------------------------------------------------------------------------- inputs and bindings


@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_an_input_that_returns_pages_is_called_for_the_next_page(transaction):
    asked: list[JobPage] = []

    def due(page: JobPage) -> list[int]:
        asked.append(page)
        return [each for each in range(5) if page.after is None or each > int(page.after)]

    world = World(write, due, rule(transaction))
    assert world.run().status is RunStatus.SUCCEEDED
    assert world.rows == [0, 1, 2, 3, 4]
    assert [page.after for page in asked] == [None, 1, 3, 4]
    world = World(write, named_only, rule())
    world.run(4, 9)
    assert world.rows == [4]


@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_a_partial_page_does_not_end_the_run(transaction):
    def odd(page: JobPage) -> list[int]:
        after = -1 if page.after is None else int(page.after)
        return [each for each in range(after + 1, min(after + 3, 9)) if each % 2]

    world = World(write, odd, rule(transaction))
    assert world.run().status is RunStatus.SUCCEEDED
    assert world.rows == [1, 3, 5, 7]


@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_an_input_that_returns_ids_it_was_not_asked_about_is_refused(transaction):
    world = World(write, first_page, rule(transaction))
    run = world.run(3)
    assert run.status is not RunStatus.SUCCEEDED
    assert "[OCQ-666] the input of the job was asked about 1 ids, and returned 0, which is none of them" in run.error
    assert world.rows == []


def first_page(page: JobPage) -> list[int]:
    return [0, 1]


@pytest.mark.parametrize("transaction", list(JobTransaction))
@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_a_job_that_swallows_the_error_of_raise_if_cancelled_keeps_nothing_of_the_call(transaction, ends):
    world = World(write, numbers(4), rule(transaction))

    def job(context: JobContext, connection: Connection) -> None:
        world.signals.cancelled = "its process is ending"
        try:
            context.raise_if_cancelled()
            write(context, connection)
        except Exception as error:  # as ordinary code catches everything that an item may raise
            if ends == "raises":
                raise ValueError from error

    world.bound, world.released = bound(job, numbers(4), world.rule), True
    run = world.run()
    assert (run.status, run.position.items, run.error) == (RunStatus.RETRYING, 0, "")
    world.bound, world.released = bound(write, numbers(4), world.rule), False
    assert world.run().status is RunStatus.SUCCEEDED
    assert world.rows == [0, 1, 2, 3]


@pytest.mark.parametrize("transaction", list(JobTransaction))
@pytest.mark.parametrize(
    ("trigger", "ids", "reason"),
    [
        (Trigger.EVENT, (1, 8, 9), "the input did not return 2 ids of its events"),
        (Trigger.EVENT, (8,), "the input did not return 1 id of its events"),
        (Trigger.EVENT, (1, 3), ""),
        (Trigger.MANUAL, (1, 8, 9), ""),
    ],
)
def test_a_run_reports_how_many_ids_of_its_events_the_input_did_not_return(transaction, trigger, ids, reason):
    run = World(write, numbers(4), rule(transaction)).run(*ids, trigger=trigger)
    assert (run.status, run.reason) == (RunStatus.SUCCEEDED, reason)


def test_a_retry_reports_how_many_failed_items_no_longer_apply():
    world = World(failing(1, 2), numbers(4), rule(JobTransaction.ITEM))
    assert world.run().status is RunStatus.RETRYING
    world.bound = bound(write, numbers(2), world.rule)
    run = world.run()
    assert (run.status, run.reason) == (RunStatus.SUCCEEDED, "1 item that had failed did not apply any more")
    assert world.rows == [0, 3, 1]


@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_named_ids_that_the_input_spells_differently_are_handled(transaction):
    known = {"A-1": "a1", "b2": "b2", "C-3": "c3"}

    class Spelled(Queries):
        def ids(self, statement: object, page: JobPage, unit: Any) -> Sequence[JobId]:
            return [known[str(each)] for each in page.ids or () if each in known]

    world = World(write, numbers(0), rule(transaction))
    world.queries = Spelled()
    run = world.run("A-1", "b2", "gone", "C-3")
    assert (run.status, run.position.items) == (RunStatus.SUCCEEDED, 3)
    assert world.rows == ["a1", "b2", "c3"]


def test_a_statement_with_a_limit_is_executed_once():
    class Limited(Queries):
        read = 0

        def limited(self, statement: object, unit: object) -> Sequence[JobId]:  # type: ignore[override]
            self.read += 1
            return [7, 5, 3]

    world = World(write, numbers(0), rule())
    world.queries = Limited()
    assert world.run().status is RunStatus.SUCCEEDED
    assert (world.rows, world.queries.read, world.queries.pages) == ([3, 5, 7], 1, [])


def named_only(page: JobPage) -> list[int]:
    return [each for each in (page.ids or ()) if isinstance(each, int) and each < 5]


@pytest.mark.parametrize(
    ("given", "code", "part"),
    [
        pytest.param(lambda page: [2, 1], "OCQ-666", "returned 1 after 2", id="descending"),
        pytest.param(lambda page: [1, 1], "OCQ-666", "returned 1 after 1", id="twice"),
        pytest.param(lambda page: [0, 1], "OCQ-666", "returned 0 after 1", id="the same page again"),
        pytest.param(lambda page: [1, "2"], "OCQ-665", "both whole numbers and texts", id="two types"),
        pytest.param(
            lambda page: [0, 1] if page.after is None else ["2"], "OCQ-666", "returned '2' after 1", id="another type"
        ),
        pytest.param(lambda page: "abc", "OCQ-665", "returned a str, not ids", id="a text"),
        pytest.param(lambda page: None, "OCQ-665", "returned a NoneType, not ids", id="nothing"),
        pytest.param(lambda page: [1.5], "OCQ-665", "yields a float", id="a fraction"),
        pytest.param(lambda page: [True], "OCQ-665", "yields a bool", id="a boolean"),
    ],
)
@pytest.mark.parametrize("transaction", list(JobTransaction))
def test_an_input_that_breaks_its_contract_ends_the_run(given, code, part, transaction):
    def due(page: JobPage) -> Any:
        return given(page)

    world = World(write, due, rule(transaction))
    ended = world.run()
    assert ended.status is RunStatus.FAILED
    assert ended.error.startswith(f"[{code}] ")
    assert part in ended.error
    assert "  fix: " in ended.error


def test_ids_that_change_their_type_between_attempts_raise_an_error():
    def due() -> list[JobId]:
        return kinds[0]

    kinds: list[list[JobId]] = [[1, 2, 3]]
    world = World(failing(3), due, rule())
    world.run()
    kinds[0] = ["1", "2", "3"]
    assert "TypeError" in world.run().error


@pytest.mark.parametrize("transaction", [PAGE, ITEM])
def test_pages_without_items_are_refused(transaction):
    def call(connection: Connection) -> None:
        pass

    with pytest.raises(JobError, match="OCQ-660") as caught:
        bound(call, None, rule(transaction))
    assert f"is to run by {transaction.value}" in str(caught.value)


def test_a_job_cannot_take_parts_of_an_event():
    def call(context: JobContext, page: JobPage) -> None:
        pass

    with pytest.raises(HandlerSignatureError):
        bound(call, None, JobRule("job"))


def test_a_job_may_be_async_and_take_no_arguments():
    rows = []

    async def call() -> None:
        rows.append(1)

    assert World(call).run().status is RunStatus.SUCCEEDED
    assert rows == [1]


def test_no_transaction_raises_when_a_connection_or_session_is_requested():
    with pytest.raises(LookupError, match="there is no transaction"):
        _ = NoTransaction().connection
    with pytest.raises(LookupError, match="there is no transaction"):
        _ = NoTransaction().session


def test_an_input_is_read_in_a_transaction_if_it_needs_one_or_may_return_a_statement():
    def asks(page: JobPage, connection: Connection) -> list[int]:
        return []

    def pages(page: JobPage) -> list[int]:
        return []

    def returns() -> Select:
        return Select(1)

    assert [bound(write, given, rule()).input.reads for given in (asks, pages, returns)] == [True, False, True]

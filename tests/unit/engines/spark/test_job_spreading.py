"""Runs of jobs on a fake Spark, whose tasks run in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Event as Signal
from types import SimpleNamespace
from typing import Any

import pytest
from support.spark import SECONDS, Context, Sessions

from opencqrs_py.adapters.memory import InMemoryJobStore
from opencqrs_py.engines.spark import job_spreading, job_tasks, tasks
from opencqrs_py.engines.spark.job_spreading import MOST_LOST, STILL_SECONDS, SparkForJobs
from opencqrs_py.engines.spark.job_tasks import (
    JobOnExecutor,
    JobTask,
    JobTaskRunner,
    TaskSignals,
    pause,
    read_ending,
    write_job_task,
)
from opencqrs_py.engines.spark.tasks import Permit
from opencqrs_py.errors import AssemblyError, CodeChangedError, FencedError, NonTransientError
from opencqrs_py.jobs.binding import BoundJob, JobInput
from opencqrs_py.jobs.desk import Ending, JobDesk
from opencqrs_py.jobs.execution import JobExecution, Surroundings
from opencqrs_py.jobs.rules import JobRule
from opencqrs_py.jobs.runs import JobRun, RunPosition, RunStatus
from opencqrs_py.model.choices import JobTransaction
from opencqrs_py.model.job import Job, JobContext, JobId, JobMark, JobPage, RunSignals, Trigger
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.testing import FakeClock

IDS = tuple(range(1, 11))
LOST = OSError("Python worker exited unexpectedly (crashed)\n\tat org.apache.spark.api.python.BasePythonRunner")


class NoSelector:
    def limited(self, statement: object, unit: object) -> None:
        return None

    def ids(self, statement: object, page: JobPage, unit: object) -> list[JobId] | None:
        return None


class WithoutCase(NoSelector):
    """A selector of a database that compares ids case-insensitively."""

    def ids(self, statement: object, page: JobPage, unit: object) -> list[JobId]:
        return [id_ for id_ in ("A1", "b2") if id_.lower() in map(str, page.ids or ())]


@dataclass
class World:
    """A job, its runs, and a Spark."""

    transaction: JobTransaction = JobTransaction.PAGE
    limit: int = 10
    most_tasks: int | None = None
    has_input: bool = True
    budget: float = float("inf")
    fails: Callable[[JobId], BaseException | None] = lambda _: None
    called: list[JobContext] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.store = InMemoryJobStore(self.clock)
        self.context = Context()
        self.context.executors = 2
        self.sessions = Sessions(self.context)
        self.signals = RunSignals()
        self.released = False
        rule = JobRule("remind", transaction=self.transaction, limit=self.limit, back_off=FixedBackOff(1, 9))
        rule = replace(rule, budget=self.budget)
        input_ = JobInput(self.ids_of, transactional=False, paged=True, place="x.py:1 (due)")
        mark = JobMark("remind")
        self.job = BoundJob(Job(mark, self.call, "x.py:2 (remind)"), rule, self.call, False, input_)  # noqa: FBT003
        if not self.has_input:
            self.job = replace(self.job, input=None)
        self.around = Surroundings(self.store, None, NoSelector(), self.clock, lambda _seconds, _signals: None)
        self.desk = JobDesk(self.store, {"remind": rule})
        self.spark = SparkForJobs(self.sessions, {"remind": self.recipe}, self.most_tasks)
        self.run = JobRun("run", "remind", Trigger.MANUAL, self.clock.now())

    def recipe(self) -> JobOnExecutor:
        return JobOnExecutor(replace(self.job, input=None), self.around)

    def ids_of(self, page: JobPage, _work: object) -> Sequence[JobId]:
        if page.ids is not None:
            return [id_ for id_ in IDS if str(id_) in map(str, page.ids)]
        return [id_ for id_ in IDS if page.after is None or id_ > page.after][: page.limit]

    def call(self, context: JobContext, _work: object) -> None:
        for id_ in context.ids:
            error = self.fails(id_)
            if error is not None:
                raise error
        self.called.append(context)

    @property
    def handled(self) -> list[JobId]:
        return [id_ for context in self.called for id_ in context.ids]

    def begin(self) -> JobRun:
        """Begin the next attempt, as the desk does."""
        known = self.store.find(self.run.id) or self.run
        now = self.clock.now()
        begun = replace(known, status=RunStatus.RUNNING, attempt=known.attempt + 1, token=known.token + 1)
        self.run = replace(begun, owner="node", started_at=now)
        with self.store.open(["remind"]) as book:
            book.put(self.run)
        return self.run

    def attempt(self) -> Ending | None:
        """Execute the next attempt, and record its ending."""
        self.begin()
        execution = self.spark.attempt(self.job, self.run, self.around, self.signals, lambda: self.released)
        ending = execution.execute()
        if ending is not None:
            self.desk.finish(self.run, ending)
        return ending

    def children(self) -> list[JobRun]:
        return [run for run in self.store._runs.values() if run.parent]


def test_a_page_is_one_spark_job_with_as_many_tasks_as_slots():
    world = World(limit=4)
    ending = world.attempt()
    assert ending is not None
    assert (ending.error, ending.position) == ("", RunPosition(after=10, done=True, items=10))
    assert [context.ids for context in world.called] == [(1, 2), (3, 4), (5, 6), (7, 8), (9,), (10,)]
    assert world.context.groups == world.context.pools == ["job:remind"] * 3
    assert world.context.descriptions == [
        "run run, 4 items",
        "run run, 4 items after 4",
        "run run, 2 items after 8",
    ]
    assert {(context.run, context.attempt) for context in world.called} == {("run", 1)}
    assert world.children() == []
    found = world.store.find("run")
    assert found is not None
    assert (found.status, found.done) == (RunStatus.SUCCEEDED, 10)


def test_a_job_gets_at_most_the_allowed_number_of_tasks():
    world = World(most_tasks=1)
    world.attempt()
    assert [context.ids for context in world.called] == [IDS]


class StartingContext(Context):
    """A cluster whose executors, of one slot each, register while they are looked for."""

    def __init__(self, executors: int, looks: int) -> None:
        super().__init__()
        self._looks, self._most = looks, executors

    @property
    def executors(self) -> int:
        self._looks -= 1
        return self._most if self._looks < 0 else 0

    @executors.setter
    def executors(self, _count: int) -> None: ...

    @property
    def slots(self) -> int:
        return self._most if self._looks < 0 else 0


@pytest.mark.parametrize(
    ("looks", "conf", "master", "tasks"),
    [
        (0, {}, "spark://nobody:7077", 3),
        (4, {}, "spark://nobody:7077", 3),
        (1_000_000, {}, "spark://nobody:7077", 1),  # none comes in time
        (4, {"spark.dynamicAllocation.enabled": "true"}, "spark://nobody:7077", 1),
        (4, {}, "local[3]", 1),  # which has no executors
    ],
)
def test_the_first_page_is_divided_when_the_first_executors_have_started(monkeypatch, looks, conf, master, tasks):
    monkeypatch.setattr(job_spreading, "EXECUTORS_SECONDS", 0.5 if looks > 4 else SECONDS)
    monkeypatch.setattr(job_spreading, "REST_SECONDS", 0)
    world = World(limit=10)
    world.context = StartingContext(3, looks)
    world.context.conf, world.context.master = conf, master
    world.sessions.context = world.context
    world.attempt()
    assert len(world.called) == tasks


def test_later_pages_wait_for_no_executor(monkeypatch):
    monkeypatch.setattr(job_spreading, "REST_SECONDS", 0)
    waits: list[object] = []
    monkeypatch.setattr(job_spreading, "_await_executors", lambda *_: waits.append(1))
    World(limit=4).attempt()
    assert len(waits) == 1


def test_a_cancelled_run_does_not_use_up_the_wait_for_executors(monkeypatch):
    waits: list[RunSignals] = []
    monkeypatch.setattr(job_spreading, "_await_executors", lambda _context, signals: waits.append(signals))
    spark, cancelled, next_one = World().spark, RunSignals(), RunSignals()
    cancelled.cancelled = "too late"
    for signals in (cancelled, next_one, RunSignals()):
        spark.slots(signals, 10)
    assert waits == [cancelled, next_one]


@pytest.mark.parametrize(("most_tasks", "wanted"), [(1, 10), (None, 1), (None, 0)])
def test_what_is_for_one_task_anyway_opens_the_session_and_waits_for_no_executor(monkeypatch, most_tasks, wanted):
    waits: list[object] = []
    monkeypatch.setattr(job_spreading, "_await_executors", lambda *_: waits.append(1))
    world, opened = World(most_tasks=most_tasks), []
    world.sessions.open = lambda: opened.append(1) or SimpleNamespace(sparkContext=world.context)
    assert world.spark.slots(world.signals, wanted) == 1
    assert (opened, waits) == ([1], [])


def test_a_page_of_one_id_does_not_use_up_the_wait_for_executors(monkeypatch):
    waits: list[object] = []
    monkeypatch.setattr(job_spreading, "_await_executors", lambda *_: waits.append(1))
    spark = World().spark
    assert (spark.slots(RunSignals(), 1), len(waits)) == (1, 0)
    assert (spark.slots(RunSignals(), 10), len(waits)) == (2, 1)


def test_a_run_for_named_ids_handles_those_that_apply_page_by_page():
    world = World(limit=2)
    world.run = replace(world.run, ids=("3", "99", "5", "7"))
    ending = world.attempt()
    assert ending is not None
    assert ending.position == RunPosition(after="7", done=True, items=3)
    assert sorted(world.handled) == [3, 5, 7]  # numbers, as the input yields them
    assert len(world.context.groups) == 2


def test_the_next_attempt_of_a_run_for_named_ids_continues_after_the_page_of_the_killed_one():
    world = World(limit=2)
    world.run = replace(world.run, ids=("3", "5", "7"))
    first = world.begin()
    child = replace(first, id="run/0", parent="run", ids=(3, 5), owner="tag")
    assert world.store.spread(first, [child])
    assert world.store.advance(child, RunPosition(after=3, items=1))
    ending = world.attempt()
    assert ending is not None
    assert (world.handled, ending.position.items, ending.position.done) == ([5, 7], 3, True)


UNMET = "the input did not return 4 ids of its events"


def world_of_events(limit: int, **others: Any) -> World:
    """Return a job started by events; of their ids, its input returns 3, 5 and 7."""
    world = World(limit=limit, **others)
    world.run = replace(world.run, trigger=Trigger.EVENT, ids=("99", "3", "98", "5", "97", "7", "96"))
    return world


@pytest.mark.parametrize("limit", [1, 2, 4, 10])
def test_a_retry_counts_ids_that_the_input_did_not_return_in_the_previous_attempt(limit):
    failing = {7}
    world = world_of_events(limit, fails=lambda id_: ValueError("no") if id_ in failing else None)
    ending = world.attempt()
    assert ending is not None
    assert ending.error.startswith("ValueError: no")
    failing.clear()
    ending = world.attempt()
    assert ending is not None
    assert (ending.error, ending.reason, sorted(world.handled)) == ("", UNMET, [3, 5, 7])


@pytest.mark.parametrize("on_spark", [True, False], ids=["on Spark", "on threads"])
@pytest.mark.parametrize("page", [(3,), (3, 5), (3, 5, 7)], ids=str)
@pytest.mark.parametrize("done", [0, 1])
def test_ids_that_the_input_did_not_return_are_counted_even_if_the_driver_is_killed_during_a_page(done, page, on_spark):
    world = world_of_events(limit=4)
    first = world.begin()
    child = replace(first, id="run/0", parent="run", ids=page, owner="tag")
    assert world.store.spread(first, [child])
    if done:
        assert world.store.advance(child, RunPosition(after=3, done=len(page) == 1, items=1))
    if on_spark:
        ending = world.attempt()
    else:
        ending = JobExecution(world.job, world.begin(), world.around, world.signals).execute()
    assert ending is not None
    assert (ending.error, ending.reason, ending.position.items) == ("", UNMET, 3)


def test_failed_items_that_no_longer_apply_are_counted_even_if_the_driver_is_killed():
    world = World(JobTransaction.ITEM, fails=lambda id_: ValueError("no") if id_ % 2 else None)
    assert world.attempt()
    world.fails = lambda _: None
    due = JobInput(lambda page, _: [5, 9], transactional=False, paged=True, place="x.py:1 (due)")
    world.job = replace(world.job, input=due)
    first = world.begin()
    assert first.position.only == (1, 3, 5, 7, 9)
    child = replace(first, id="run/0", parent="run", ids=(5, 9), owner="tag", position=RunPosition())
    assert world.store.spread(first, [child])
    ending = world.attempt()
    assert ending is not None
    assert (ending.error, ending.reason) == ("", "3 items that had failed did not apply any more")
    assert sorted(world.handled) == [2, 4, 5, 6, 8, 9, 10]


def test_an_id_named_in_another_spelling_is_handled_as_named():
    world = World()
    world.around = replace(world.around, select=WithoutCase())
    world.run = replace(world.run, ids=("a1", "b2"))
    ending = world.attempt()
    assert ending is not None
    assert (sorted(world.handled), ending.position) == (["a1", "b2"], RunPosition(after="b2", done=True, items=2))


def test_a_job_without_input_is_called_once_in_a_run_for_all():
    world = World(has_input=False)
    ending = world.attempt()
    assert ending is not None
    assert (ending.error, ending.position.done) == ("", True)
    assert [context.ids for context in world.called] == [()]


def test_the_next_attempt_handles_only_the_items_that_failed():
    failing = {3, 8}
    world = World(JobTransaction.ITEM, fails=lambda id_: ValueError(f"no {id_}") if id_ in failing else None)
    ending = world.attempt()
    assert ending is not None
    assert ending.error.startswith("2 of 10 items have failed, the first one 3: ValueError: no 3")
    assert not ending.permanent
    assert sorted(world.handled) == [1, 2, 4, 5, 6, 7, 9, 10]
    assert (world.children(), len(world.context.groups)) == ([], 1)
    failing.clear()
    ending = world.attempt()
    assert ending is not None
    assert ending.error == ""
    assert sorted(world.handled) == list(IDS)
    assert ending.position.items == 10


def test_the_next_attempt_repeats_only_the_part_that_failed():
    failing = {7}
    world = World(fails=lambda id_: ValueError("no") if id_ in failing else None)
    ending = world.attempt()
    assert ending is not None
    assert ending.error.startswith("ValueError: no")
    assert (ending.position.items, ending.position.after, ending.permanent) == (5, None, False)
    assert world.handled == [1, 2, 3, 4, 5]
    failing.clear()
    ending = world.attempt()
    assert ending is not None
    assert ending.position == RunPosition(after=10, done=True, items=10)
    assert world.handled == list(IDS)
    assert [context.attempt for context in world.called] == [1, 2]
    assert world.children() == []


def test_a_non_transient_error_ends_the_run_and_its_children():
    world = World(fails=lambda id_: NonTransientError("never") if id_ == 7 else None)
    ending = world.attempt()
    assert ending is not None
    assert ending.permanent
    found = world.store.find("run")
    assert found is not None
    assert (found.status, found.position.items, world.children()) == (RunStatus.FAILED, 5, [])


def raising(error: BaseException) -> Callable[[], None]:
    def go() -> None:
        raise error

    return go


def test_a_lost_spark_job_is_submitted_again_for_the_remaining_items():
    world = World()
    world.context.before = [raising(LOST)]
    ending = world.attempt()
    assert ending is not None
    assert (ending.error, sorted(world.handled), len(world.context.groups)) == ("", list(IDS), 2)


def test_work_done_before_a_spark_job_was_lost_is_not_repeated():
    world = World()
    world.context.after = [raising(LOST)]
    ending = world.attempt()
    assert ending is not None
    assert ending.position == RunPosition(after=10, done=True, items=10)
    assert (sorted(world.handled), len(world.context.groups)) == (list(IDS), 1)


def bounded_attempt(world: World) -> Ending | None:
    """Return the ending of an attempt that is cancelled if it submits too many Spark jobs."""
    results, sent = world.spark.results, count(1)

    def limited_results(*given):
        if next(sent) > 2 * MOST_LOST:
            world.signals.cancelled = "it has not ended"
        return results(*given)

    world.spark.results = limited_results
    return world.attempt()


def test_a_fenced_error_that_a_job_raises_is_an_error_of_its_run():
    world = World(fails=lambda _: FencedError("the partition was taken over"))
    ending = bounded_attempt(world)
    assert ending is not None
    assert ending.error.startswith("FencedError: the partition was taken over")
    assert len(world.context.groups) == 1


def test_tasks_that_repeatedly_lose_their_children_end_the_run(monkeypatch):
    world = World()
    monkeypatch.setattr(JobTaskRunner, "_ending_of", lambda _self, _task: None)
    ending = bounded_attempt(world)
    assert ending is not None
    said = f"other tasks took over the items of this run {MOST_LOST} times in a row"
    assert (ending.error, ending.permanent, len(world.context.groups)) == (said, True, MOST_LOST)


def test_a_copy_of_a_task_that_hits_an_outage_does_not_fail_the_run_permanently(monkeypatch):
    def cut_off(_child):
        raise ConnectionError("no answer")

    world = World()
    task = write_job_task(JobTask(child_of(world)))
    monkeypatch.setattr(tasks, "TaskContext", SimpleNamespace(get=lambda: SimpleNamespace(attemptNumber=lambda: 1)))
    monkeypatch.setattr(world.store, "take_over", cut_off)
    for is_outage in (True, False):
        monkeypatch.setattr(world.store, "is_outage", lambda _error, is_outage=is_outage: is_outage)
        ending = read_ending(JobTaskRunner(world.recipe)(task))
        assert ending is not None
        assert (ending.error.splitlines()[0], ending.permanent) == ("ConnectionError: no answer", not is_outage)


def test_a_run_whose_spark_jobs_are_lost_repeatedly_fails_with_one_line():
    world = World()
    world.context.before = [raising(LOST)] * MOST_LOST
    ending = world.attempt()
    assert ending is not None
    expected = "[OCQ-405] Spark could not finish a task: Python worker exited unexpectedly (crashed) (3 times in a row)"
    assert (ending.error, ending.permanent) == (expected, True)
    assert (world.called, len(world.context.groups)) == ([], MOST_LOST)


def test_a_run_taken_over_by_another_process_ends_here_silently():
    world = World()

    def take_over() -> None:
        world.begin()

    world.context.before = [take_over]
    before = world.begin()
    spark = world.spark.attempt(world.job, before, world.around, world.signals, lambda: False)
    assert spark.execute() is None
    assert world.store.find("run") == replace(before, attempt=2, token=2)


def test_an_attempt_takes_over_the_children_of_an_attempt_whose_process_was_killed():
    world = World()
    first = world.begin()
    halves = [
        replace(first, id=f"run/{n}", parent="run", ids=ids, owner="tag") for n, ids in enumerate((IDS[:5], IDS[5:]))
    ]
    assert world.store.spread(first, halves)
    assert world.store.advance(halves[0], RunPosition(after=5, done=True, items=5))
    assert world.store.advance(halves[1], RunPosition(after=7, items=2))
    ending = world.attempt()
    assert ending is not None
    assert world.handled == [8, 9, 10]
    assert ending.position == RunPosition(after=10, done=True, items=10)
    assert not any(world.store.advance(child, RunPosition(after=9)) for child in halves)
    assert world.context.descriptions == ["run run, 5 items"]


@pytest.mark.parametrize("transaction", [JobTransaction.PAGE, JobTransaction.ITEM])
def test_an_attempt_on_threads_takes_over_the_children_of_an_attempt_on_spark(transaction):
    world = World(transaction, limit=6)
    first = world.begin()
    halves = [
        replace(first, id=f"run/{n}", parent="run", ids=ids, owner="tag") for n, ids in enumerate((IDS[:3], IDS[3:6]))
    ]
    assert world.store.spread(first, halves)
    assert world.store.advance(halves[0], RunPosition(after=3, done=True, items=3))
    assert world.store.advance(halves[1], RunPosition(after=4, items=1))
    second = world.begin()
    ending = JobExecution(world.job, second, world.around, world.signals).execute()
    assert ending is not None
    assert (ending.error, ending.position) == ("", RunPosition(after=10, done=True, items=10))
    assert world.handled == [5, 6, 7, 8, 9, 10]
    assert {(context.run, context.attempt) for context in world.called} == {("run", 2)}
    assert not any(world.store.advance(child, RunPosition(after=9)) for child in halves)


def test_the_next_attempt_repeats_children_that_failed_on_threads():
    failing = {5}
    world = World(limit=6, fails=lambda id_: ValueError("no") if id_ in failing else None)
    first = world.begin()
    assert world.store.spread(first, [replace(first, id="run/0", parent="run", ids=IDS[:6], owner="tag")])
    ending = JobExecution(world.job, world.begin(), world.around, world.signals).execute()
    assert ending is not None
    assert (ending.error.splitlines()[0], ending.position.items) == ("ValueError: no", 0)
    failing.clear()
    ending = JobExecution(world.job, world.begin(), world.around, world.signals).execute()
    assert ending is not None
    assert (ending.error, ending.position.items, world.handled) == ("", 10, list(IDS))


def test_cancelling_a_run_cancels_its_spark_job():
    world = World()
    gone = Signal()
    world.context.on_cancel = gone.set

    def wait() -> None:
        world.signals.cancelled = "too late"
        assert gone.wait(SECONDS)
        raise LOST

    world.context.before = [wait]
    ending = world.attempt()
    assert ending == Ending(RunPosition(), reason="too late", cancelled=True)
    assert world.context.cancelled == world.context.tags
    assert (world.called, world.children()) == ([], [])


def test_a_run_whose_process_ends_continues_elsewhere_after_the_finished_items():
    world = World()
    world.released = True
    gone = Signal()
    world.context.on_cancel = gone.set

    def wait() -> None:
        world.signals.cancelled = "its process is ending"
        assert gone.wait(SECONDS)
        raise LOST

    world.context.after = [wait]
    ending = world.attempt()
    assert ending is not None
    assert (ending.released, ending.cancelled, ending.position.items) == (True, False, 10)
    world.signals, world.released = RunSignals(), False
    ending = world.attempt()
    assert ending is not None
    assert ending.position == RunPosition(after=10, done=True, items=10)
    assert (world.handled, len(world.context.groups)) == (list(IDS), 1)


def test_tasks_that_no_executor_starts_are_abandoned():
    world = World()

    def wait() -> None:
        gone = Signal()
        world.context.on_cancel = gone.set
        while not gone.wait(0.02):
            world.clock.advance(STILL_SECONDS / 4)
        raise LOST

    world.context.before = [wait] * MOST_LOST
    ending = world.attempt()
    assert ending is not None
    why = "none was running for 60 s: there is no executor for them (3 times in a row)"
    assert ending.error == f"[OCQ-406] tasks on Spark were abandoned: {why}"
    assert world.called == []


def test_a_dead_jvm_fails_the_attempt_and_the_next_one_succeeds():
    world = World()

    def lose() -> None:
        world.sessions.gone = True
        raise LOST

    world.context.before = [lose]
    ending = world.attempt()
    assert ending is not None
    assert ending.error.startswith("EngineLostError: Spark's JVM is gone (Py4JNetworkError)")
    assert not ending.permanent
    world.sessions.gone = False
    world.attempt()
    assert sorted(world.handled) == list(IDS)


def test_all_calls_of_a_run_share_one_deadline():
    world = World(budget=100, limit=5)

    def pass_time() -> None:
        world.clock.advance(60)

    world.context.after = [pass_time]
    ending = world.attempt()
    assert ending is not None
    assert ending.error == ""
    deadlines = {context.deadline for context in world.called}
    assert len(deadlines) == 1
    assert len(world.context.groups) == 2


def test_a_run_begins_no_page_after_its_time_budget():
    world = World(budget=50, limit=5)

    def pass_time() -> None:
        world.clock.advance(60)

    world.context.after = [pass_time]
    ending = world.attempt()
    assert ending is not None
    assert ending.reason.startswith("its time budget of 50 s is used up")
    assert world.handled == [1, 2, 3, 4, 5]


# On executors


def child_of(world: World) -> JobRun:
    run = world.begin()
    child = replace(run, id="run/0", parent="run", ids=IDS, owner="tag")
    assert world.store.spread(run, [child])
    return child


def test_only_the_later_of_two_copies_of_a_task_commits(monkeypatch):
    world = World(JobTransaction.ITEM)
    child = child_of(world)
    task, runner = write_job_task(JobTask(child)), JobTaskRunner(world.recipe)
    seen: list[str] = []

    def fails(id_: JobId) -> None:
        if id_ == 3 and not seen:
            copy = SimpleNamespace(attemptNumber=lambda: 1)
            monkeypatch.setattr(tasks, "TaskContext", SimpleNamespace(get=lambda: copy))
            seen.append("")
            seen[0] = runner(task)

    world.fails = fails
    assert read_ending(runner(task)) is None
    of_copy = read_ending(seen[0])
    assert of_copy is not None
    assert (of_copy.position.items, of_copy.position.done) == (10, True)
    assert world.store.find(child.id).position == of_copy.position


def test_a_copy_of_a_task_whose_job_was_abandoned_does_nothing(monkeypatch):
    world = World()
    child = child_of(world)
    assert world.store.take_children(world.run, "another job of Spark")
    copy = SimpleNamespace(attemptNumber=lambda: 1)
    monkeypatch.setattr(tasks, "TaskContext", SimpleNamespace(get=lambda: copy))
    assert read_ending(JobTaskRunner(world.recipe)(write_job_task(JobTask(child)))) is None
    assert world.called == []


def test_a_task_waits_for_the_copy_that_holds_its_child(monkeypatch):
    world = World()
    child = child_of(world)
    assert world.store.take_over(child)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            assert world.store.take_children(world.run, "another job of Spark")

    monkeypatch.setattr(tasks, "time", SimpleNamespace(sleep=wait, monotonic=time.monotonic))
    assert read_ending(JobTaskRunner(world.recipe, copies=True)(write_job_task(JobTask(child)))) is None
    assert len(waited) == 3


def test_a_worker_that_cannot_build_the_job_reports_a_permanent_error():
    world = World()
    child = child_of(world)

    def broken() -> JobOnExecutor:
        raise NonTransientError("no such module")

    ending = read_ending(JobTaskRunner(broken)(write_job_task(JobTask(child))))
    assert ending is not None
    assert ending.error.startswith("NonTransientError: no such module")
    assert ending.permanent


CHANGED = CodeChangedError("OCQ-545", "files of the project changed: x.py", "/p/x.py", "restart the process")
CHANGED_LINE = "[OCQ-545] files of the project changed: x.py (restart the process)"


class Worker:
    """Builds the job of a world, after refusing a number of times, since files have changed."""

    def __init__(self, world: World, refusals: int, error: Exception = CHANGED) -> None:
        self.refusals = refusals
        self._error = error
        self._world = world

    def __call__(self) -> JobOnExecutor:
        if self.refusals:
            self.refusals -= 1
            raise self._error
        return JobOnExecutor(replace(self._world.job, input=None), self._world.around)


@pytest.mark.parametrize("refusals", [1, 2, 2 * MOST_LOST + 1])
def test_a_run_waits_while_workers_load_changed_files_and_uses_no_attempt(refusals, caplog):
    world, waits = World(most_tasks=2), []
    world.around = replace(world.around, pause=lambda seconds, _signals: waits.append(seconds))
    world.spark = SparkForJobs(world.sessions, {"remind": Worker(world, refusals)}, 2)
    ending = world.attempt()
    assert ending is not None
    assert ending.position == RunPosition(after=10, done=True, items=10)
    assert (sorted(world.handled), world.run.attempt) == (list(IDS), 1)
    assert caplog.messages == [f"[job remind] {CHANGED_LINE}; next try in {wait:.1f} s" for wait in waits]
    assert waits


def test_the_end_of_a_process_releases_a_run_that_waits_since_files_have_changed():
    world = World()

    def end(_seconds: float, signals: RunSignals) -> None:
        signals.cancelled = "its process is ending"
        world.released = True

    world.around = replace(world.around, pause=end)
    world.spark = SparkForJobs(world.sessions, {"remind": Worker(world, 1)})
    ending = world.attempt()
    assert ending is not None
    assert (ending.released, ending.error) == (True, "")
    known = world.store.find("run")
    assert known is not None
    assert (known.status, known.attempt, known.error) == (RunStatus.RETRYING, 0, "")
    world.signals, world.released = RunSignals(), False
    ending = world.attempt()
    assert ending is not None
    assert ending.position == RunPosition(after=10, done=True, items=10)
    assert sorted(world.handled) == list(IDS)


def test_another_error_of_the_assembly_in_a_worker_fails_the_run():
    world = World()
    error = AssemblyError("OCQ-526", "another assembly")
    world.spark = SparkForJobs(world.sessions, {"remind": Worker(world, 1, error)})
    ending = world.attempt()
    assert ending is not None
    assert (ending.error.splitlines()[0], ending.permanent) == ("AssemblyError: another assembly", True)


def test_a_task_ends_when_its_permit_is_withdrawn(tmp_path):
    permit = Permit.in_folder(str(tmp_path))
    permit.give()
    world = World(JobTransaction.ITEM)
    child = child_of(world)

    def withdraw(id_: JobId) -> None:
        if id_ == 4:
            permit.withdraw()

    world.fails = withdraw
    ending = read_ending(JobTaskRunner(world.recipe, permit)(write_job_task(JobTask(child))))
    assert ending is not None
    assert (ending.cancelled, ending.position.items, world.handled) == (True, 4, [1, 2, 3, 4])
    assert world.called[-1].cancelled


def test_a_pause_ends_when_the_permit_is_withdrawn(tmp_path):
    permit = Permit.in_folder(str(tmp_path))
    pause(SECONDS * 1_000, TaskSignals(permit))  # which was never granted


@pytest.mark.parametrize("ids", [("1", "b"), (1, 2), None])
def test_a_task_keeps_the_types_of_ids(ids):
    world = World()
    run = replace(world.run, ids=ids, position=RunPosition(after=ids and ids[0], failed=ids or (), only=ids))
    line = write_job_task(JobTask(run, 1.5))
    assert job_tasks._TASK.validate_json(line) == JobTask(run, 1.5)

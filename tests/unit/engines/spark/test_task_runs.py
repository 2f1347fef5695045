"""Tasks as run by an executor, without Spark."""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import replace
from math import inf
from types import SimpleNamespace

import pytest
from support.sqlite import rows_of

from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.engines.spark import tasks, turns
from opencqrs_py.engines.spark.tasks import (
    Permit,
    Task,
    TaskRunner,
    await_copy,
    patience_after,
    read_result,
    run_copy,
    run_task,
    write_task,
)
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import Handler, HandlerMark
from opencqrs_py.model.outcome import Origin
from opencqrs_py.model.partition import layout
from opencqrs_py.processing.binding import bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent

handled: list[tuple[str, int]] = []


def handle(event: Event) -> None:
    if event.id == "bad":
        raise ValueError(event.id)
    handled.append((event.subject, event.position))


@pytest.fixture
def processing(tmp_path):
    handled.clear()
    database = Database(f"sqlite:///{tmp_path}/all.db")
    store = SqlEventStore(database)
    dispatcher = Dispatcher([bind(Handler(HandlerMark("g", ("t",)), handle, "here"), ContainerInjector())], ())
    yield GroupProcessing(
        "g",
        store,
        SqlProgressTracker(database),
        dispatcher,
        subject="/",
        recursive=True,
        sequencing=SequencingByEvent(PerSubject()),
        partitions=3,
        batch_size=10,
    )
    database.close()


def add(processing, count, bad=()):
    processing.source.append(
        Event(0, "bad" if n in bad else str(n), f"s{n}", f"/x/{n % 20}", "t", None, "application/json", "{}", None)
        for n in range(count)
    )


def task(processing, seconds=60.0):
    return Task(processing.tracker.claim("g", layout(3), 0, "me"), seconds)


def test_a_task_handles_all_its_partitions_up_to_the_head(processing):
    add(processing, 500)
    result = run_task(processing, task(processing))
    assert [outcome.cursor.position for outcome in result.outcomes] == [500] * 3
    assert all(outcome.idle and outcome.failure is None for outcome in result.outcomes)
    assert sum(outcome.handled for outcome in result.outcomes) == 500
    assert sorted(position for _, position in handled) == list(range(1, 501))
    assert [status.position for status in processing.tracker.statuses()] == [500] * 3


def test_running_the_same_task_twice_changes_nothing_the_second_time(processing):
    add(processing, 100)
    twice = task(processing)
    run_task(processing, twice)
    result = run_task(processing, twice)
    assert [(o.failure, o.handled, o.cursor.stored) for o in result.outcomes] == [(None, 0, 100)] * 3
    assert len(handled) == 100


def test_a_partition_claimed_by_another_process_is_left_alone(processing):
    add(processing, 100)
    old = task(processing)
    task(processing)
    result = run_task(processing, old)
    assert [outcome.failure.origin for outcome in result.outcomes] == [Origin.FENCED] * 3
    assert handled == []


def test_a_failing_partition_does_not_delay_the_others(processing):
    add(processing, 300, bad={5})
    result = run_task(processing, task(processing))
    failing = [outcome for outcome in result.outcomes if outcome.failure]
    assert len(failing) == 1
    assert (failing[0].failure.position, failing[0].cursor.position <= 5) == (6, True)
    assert [o.cursor.position for o in result.outcomes if not o.failure] == [300, 300]


def test_without_time_each_partition_makes_one_step_and_stores_it(processing):
    add(processing, 5_000)
    result = run_task(processing, task(processing, seconds=0))
    assert all(0 < outcome.cursor.position < 5_000 and not outcome.idle for outcome in result.outcomes)
    assert not any(outcome.without_log for outcome in result.outcomes)
    assert [s.position for s in processing.tracker.statuses()] == [o.cursor.stored for o in result.outcomes]
    assert all(outcome.cursor.stored == outcome.cursor.position for outcome in result.outcomes)


@pytest.mark.parametrize("seconds", [pytest.param(inf, id="until-they-are-level"), pytest.param(0.0, id="a-step-each")])
def test_partitions_advance_together_so_each_event_is_read_once(seconds, processing, monkeypatch):
    """Also if a partition has more events in a page than the others, or smaller steps, as after a failure."""
    monkeypatch.setattr(turns, "TURN_SECONDS", seconds)
    monkeypatch.setattr(turns, "CATCH_UP_SECONDS", inf)
    add(processing, 5_000)
    reads, read = [], processing.source.read
    monkeypatch.setattr(processing.source, "read", lambda *request: reads.append(read(*request)) or reads[-1])
    claimed = processing.tracker.claim("g", layout(3)[:2], 0, "me")
    narrow = processing.narrowed([cursor.partition for cursor in claimed], most=100)
    result = run_task(narrow, Task(claimed, 60.0))
    assert [outcome.cursor.stored for outcome in result.outcomes] == [5_000] * 2
    assert sum(len(part.events) for part in reads) == len(handled)


def test_without_a_permit_no_partition_makes_a_step(processing, tmp_path):
    add(processing, 5_000)
    permit = Permit.in_folder(str(tmp_path))
    permit.give()
    permit.withdraw()
    for run in (run_task, run_copy):
        result = run(processing, task(processing), permit)
        assert all(outcome.cursor.position == 0 and not outcome.idle for outcome in result.outcomes)
        assert all(outcome.without_log for outcome in result.outcomes)


def test_a_given_permit_lets_partitions_reach_the_head(processing, tmp_path):
    add(processing, 500)
    permit = Permit.in_folder(str(tmp_path))
    for _ in range(2):
        permit.give()
    result = run_task(processing, task(processing), permit)
    assert all(outcome.idle and not outcome.without_log for outcome in result.outcomes)
    for _ in range(2):
        permit.withdraw()
    assert not permit.holds
    assert Permit().holds


class Between:
    """A permit that calls a function once, before a chunk."""

    def __init__(self, happen) -> None:
        self._happens = iter((happen,))

    @property
    def holds(self) -> bool:
        for happen in self._happens:
            happen()
        return True


class TestASecondRun:
    def test_it_continues_under_its_own_epoch_without_repeating_a_call(self, processing):
        add(processing, 500)
        of_both, copies = task(processing), []
        permit = Between(lambda: copies.append(run_copy(processing, of_both)))
        first = run_task(processing, of_both, permit)
        assert [outcome.failure.origin for outcome in first.outcomes] == [Origin.FENCED] * 3
        (second,) = copies
        assert [(o.failure, o.cursor.stored, o.cursor.epoch) for o in second.outcomes] == [(None, 500, 2)] * 3
        assert sorted(position for _, position in handled) == list(range(1, 501))

    def test_it_handles_nothing_if_the_partitions_were_claimed_again(self, processing):
        add(processing, 100)
        old = task(processing)
        task(processing)
        result = run_copy(processing, old)
        assert [outcome.failure.origin for outcome in result.outcomes] == [Origin.FENCED] * 3
        assert handled == []

    def test_it_continues_after_the_first_run_if_the_tracker_cannot_fence(self, processing):
        add(processing, 100)
        both, tracker = task(processing), processing.tracker
        known = {name: getattr(tracker, name) for name in ("claim", "unit", "renewed", "report", "is_outage")}
        processing.tracker = SimpleNamespace(**known)
        run_task(processing, both)
        result = run_copy(processing, both)
        assert [(o.failure, o.handled, o.cursor.stored) for o in result.outcomes] == [(None, 0, 100)] * 3
        assert len(handled) == 100

    @pytest.mark.parametrize("attempt", [0, 1, 2])
    def test_the_attempt_number_of_spark_tells_first_and_second_runs_apart(self, processing, attempt, monkeypatch):
        add(processing, 100)
        monkeypatch.setattr(tasks.TaskContext, "get", lambda: SimpleNamespace(attemptNumber=lambda: attempt))
        result = read_result(TaskRunner(lambda: processing)(write_task(task(processing))))
        assert [o.cursor.epoch for o in result.outcomes] == [1 if attempt == 0 else 2] * 3


class TestAFirstRunThatIsFenced:
    @pytest.fixture
    def looks(self, monkeypatch):
        """Return a list with an item per check; the third check calls ``self.third``."""
        made = []
        self.third = lambda: None

        def look(_seconds):
            made.append(1)
            if len(made) == 3:
                self.third()

        # Patch only this module: threads of other tests may sleep, too.
        monkeypatch.setattr(tasks, "time", SimpleNamespace(sleep=look, monotonic=time.monotonic))
        return made

    @pytest.fixture
    def fenced(self, processing):
        add(processing, 100)
        self.task = task(processing)
        run_copy(processing, replace(self.task, seconds=0))
        return run_task(processing, self.task)

    def test_it_waits_until_it_is_asked_to_end(self, processing, fenced, looks, tmp_path):
        permit = Permit.in_folder(str(tmp_path))
        permit.give()
        self.third = permit.withdraw
        await_copy(processing, fenced, inf, permit)
        assert len(looks) == 3

    def test_it_waits_until_the_second_run_is_fenced(self, processing, fenced, looks):
        self.third = lambda: task(processing)
        await_copy(processing, fenced, inf)
        assert len(looks) == 3

    def test_it_waits_only_for_a_limited_time(self, processing, fenced, looks):
        await_copy(processing, fenced, 0)
        assert not looks

    @pytest.mark.parametrize(
        ("lasted", "idle", "seconds"),
        [(0, 0, 10), (1, 0, 10), (5, 0, 10), (30, 0, 60), (1, 30, 40), (30, 30, 60)],
    )
    def test_it_waits_as_long_as_its_own_run_took_twice_but_at_least_ten_seconds(
        self, monkeypatch, lasted, idle, seconds
    ):
        monkeypatch.setattr(tasks, "time", SimpleNamespace(monotonic=lambda: 100.0))
        assert patience_after(100.0 - lasted, idle) == 100.0 + seconds

    def test_it_does_not_wait_if_nothing_was_fenced(self, processing, looks):
        add(processing, 100)
        await_copy(processing, run_task(processing, task(processing)), inf)
        assert not looks


class Broken:
    """A recipe that cannot be built on this machine."""

    def __call__(self):
        msg = "No module named 'helper'"
        raise ModuleNotFoundError(msg)


def test_a_failing_recipe_is_reported_for_each_partition_of_the_task(processing):
    result = read_result(TaskRunner(Broken())(write_task(task(processing))))
    assert [o.failure.origin for o in result.outcomes] == [Origin.FRAMEWORK] * 3
    assert {str(o.failure) for o in result.outcomes} == {"ModuleNotFoundError: No module named 'helper'"}


def test_a_recipe_is_built_once_for_all_later_tasks(processing):
    class Counting:
        calls = 0

        def __call__(self):
            Counting.calls += 1
            return processing

    handler = TaskRunner(Counting())
    add(processing, 10)
    for _ in range(3):
        assert len(read_result(handler(write_task(task(processing)))).outcomes) == 3
    assert Counting.calls == 1


@pytest.mark.parametrize("why", ["another claim", "an outage in another worker"])
def test_a_task_of_a_later_claim_or_after_an_outage_reads_the_log_again(processing, monkeypatch, why):
    add(processing, 8)
    add(processing, 1, bad=[0])
    runner, first = TaskRunner(lambda: processing), task(processing)
    read = []
    monkeypatch.setattr(
        processing.source, "read", lambda *given, **named: read.append(given) or reading(*given, **named)
    )
    reading = type(processing.source).read.__get__(processing.source)
    outcomes = read_result(runner(write_task(first))).outcomes
    assert [o.failure is not None for o in outcomes].count(True) == 1
    del read[:]
    same = replace(first, cursors=tuple(o.cursor for o in outcomes))
    runner(write_task(same))
    assert not [given for given in read if given[0] < 8]  # it is cached under the same claim
    if why == "another claim":
        later = task(processing)
    else:
        claim = processing.processor(same.cursors[0].partition).claim
        later = replace(same, cursors=(claim.confirmed(same.cursors[0]), *same.cursors[1:]))
    runner(write_task(later))
    assert [given for given in read if given[0] < 8]


def test_the_log_is_read_once_for_all_partitions_of_a_task(processing, tmp_path):
    add(processing, 900)
    reads = []
    read = processing.source.read
    processing.source.read = lambda *arguments: reads.append(arguments) or read(*arguments)
    run_task(processing, task(processing))
    assert rows_of(tmp_path / "all.db", "SELECT count(*) FROM opencqrs_events") == [(900,)]
    assert len([arguments for arguments in reads if arguments[0] < 900]) == 1


def test_a_task_handles_nothing_after_its_last_position(processing):
    add(processing, 300)
    runner = TaskRunner(lambda: processing)
    bounded = replace(task(processing), upto=120)
    first = read_result(runner(write_task(bounded)))
    assert [(o.cursor.position, o.idle, o.failure) for o in first.outcomes] == [(120, True, None)] * 3
    further = replace(bounded, cursors=tuple(o.cursor for o in first.outcomes))
    assert [o.cursor.position for o in read_result(runner(write_task(further))).outcomes] == [120] * 3
    rest = replace(further, upto=None)
    assert [o.cursor.position for o in read_result(runner(write_task(rest))).outcomes] == [300] * 3
    assert sorted(position for _, position in handled) == list(range(1, 301))


def test_what_earlier_tasks_have_left_is_collected_before_parts_are_built():
    """It would stay as long as the worker: objects that are alive then are no longer scanned."""

    class Left:
        """An object that only the collector removes."""

        def __init__(self) -> None:
            self.itself = self

    left = weakref.ref(Left())
    gc.disable()
    try:
        assert tasks.parts_of(object) is not None  # hashable, and builds something when it is called
        assert left() is None
    finally:
        gc.unfreeze()
        gc.enable()
        tasks._built.pop(object)

"""The executor's part, without Spark."""

from __future__ import annotations

import pytest
from support.sqlite import rows_of

from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.engines.spark.tasks import Permit, Task, TaskRunner, read_result, run_task, write_task
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import Handler, HandlerMark
from opencqrs_py.model.outcome import Origin
from opencqrs_py.model.partition import layout
from opencqrs_py.processing.binding import bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.processor import GroupProcessing
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


def test_an_order_is_collected_to_the_head_of_the_log_for_all_its_partitions(processing):
    add(processing, 500)
    result = run_task(processing, task(processing))
    assert [outcome.cursor.position for outcome in result.outcomes] == [500] * 3
    assert all(outcome.idle and outcome.failure is None for outcome in result.outcomes)
    assert sum(outcome.handled for outcome in result.outcomes) == 500
    assert sorted(position for _, position in handled) == list(range(1, 501))
    assert [status.position for status in processing.tracker.statuses()] == [500] * 3


def test_the_same_order_collected_twice_changes_nothing_the_second_time(processing):
    add(processing, 100)
    twice = task(processing)
    run_task(processing, twice)
    result = run_task(processing, twice)
    assert [(o.failure, o.handled, o.cursor.stored) for o in result.outcomes] == [(None, 0, 100)] * 3
    assert len(handled) == 100


def test_a_partition_that_another_process_claimed_is_left_alone(processing):
    add(processing, 100)
    old = task(processing)
    task(processing)
    result = run_task(processing, old)
    assert [outcome.failure.origin for outcome in result.outcomes] == [Origin.FENCED] * 3
    assert handled == []


def test_a_partition_that_fails_does_not_hold_up_the_others(processing):
    add(processing, 300, bad={5})
    result = run_task(processing, task(processing))
    failing = [outcome for outcome in result.outcomes if outcome.failure]
    assert len(failing) == 1
    assert (failing[0].failure.position, failing[0].cursor.position <= 5) == (6, True)
    assert [o.cursor.position for o in result.outcomes if not o.failure] == [300, 300]


def test_when_the_time_is_over_each_partition_has_made_one_step_and_stored_it(processing):
    add(processing, 5_000)
    result = run_task(processing, task(processing, seconds=0))
    assert all(0 < outcome.cursor.position < 5_000 and not outcome.idle for outcome in result.outcomes)
    assert [s.position for s in processing.tracker.statuses()] == [o.cursor.stored for o in result.outcomes]
    assert all(outcome.cursor.stored == outcome.cursor.position for outcome in result.outcomes)


def test_without_a_permit_each_partition_makes_one_step_and_stores_it(processing, tmp_path):
    add(processing, 5_000)
    permit = Permit.in_folder(str(tmp_path))
    permit.give()
    permit.withdraw()
    result = run_task(processing, task(processing), permit)
    assert all(0 < outcome.cursor.position < 5_000 and not outcome.idle for outcome in result.outcomes)
    assert [s.position for s in processing.tracker.statuses()] == [o.cursor.stored for o in result.outcomes]


def test_a_permit_that_is_given_holds_until_the_head_of_the_log(processing, tmp_path):
    add(processing, 500)
    permit = Permit.in_folder(str(tmp_path))
    for _ in range(2):
        permit.give()
    result = run_task(processing, task(processing), permit)
    assert all(outcome.idle for outcome in result.outcomes)
    for _ in range(2):
        permit.withdraw()
    assert not permit.holds
    assert Permit().holds


class Broken:
    """A recipe that cannot be followed on this machine."""

    def __call__(self):
        msg = "No module named 'helper'"
        raise ModuleNotFoundError(msg)


def test_a_recipe_that_fails_is_reported_for_each_partition_of_the_order(processing):
    result = read_result(TaskRunner(Broken())(write_task(task(processing))))
    assert [o.failure.origin for o in result.outcomes] == [Origin.FRAMEWORK] * 3
    assert {str(o.failure) for o in result.outcomes} == {"ModuleNotFoundError: No module named 'helper'"}


def test_what_a_recipe_builds_serves_all_later_orders(processing):
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


def test_the_log_is_read_once_for_all_partitions_of_an_order(processing, tmp_path):
    add(processing, 900)
    reads = []
    read = processing.source.read
    processing.source.read = lambda *arguments: reads.append(arguments) or read(*arguments)
    run_task(processing, task(processing))
    assert rows_of(tmp_path / "all.db", "SELECT count(*) FROM opencqrs_events") == [(900,)]
    assert len([arguments for arguments in reads if arguments[0] < 900]) == 1

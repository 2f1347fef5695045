"""The contract of engines, on SQLite: partitions, back-off, stops, assignment, and two engines that want one group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, insert, select
from support.observers import Watching
from support.spark import Context, Sessions

from opencqrs_py import Event as StoredEvent
from opencqrs_py import NonTransientError, ProcessingContext, Reset
from opencqrs_py.adapters.sql import Database, DatabaseTransactions, SqlEventStore, SqlProgressTracker
from opencqrs_py.control.layouts import Log, carried_over
from opencqrs_py.engines.runs import Engine, GroupRun
from opencqrs_py.engines.spark.engine import SparkEngine
from opencqrs_py.engines.thread import ThreadEngine
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.model import (
    Handler,
    HandlerMark,
    Origin,
    Partition,
    PartitionStatus,
    ProcessorState,
    layout,
)
from opencqrs_py.model.choices import BatchMode, OnExhausted
from opencqrs_py.processing.batches import OrderingKey, ScheduleRule
from opencqrs_py.processing.binding import NothingProvided, Work, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.group_records import GroupCode, RecordRule
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.parked_entries import ParkingRule
from opencqrs_py.processing.ports import BackOff, RepartitioningTracker
from opencqrs_py.processing.recovery import Action, FixedBackOff, NoRetry
from opencqrs_py.processing.replays import ReplayRule
from opencqrs_py.processing.schedules import FixedDelay
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.testing import FakeClock

SECONDS = 60  # longest wait for another thread
HOUR = 3_600.0

FIRST, SECOND = "/order/1", "/order/4"  # of two partitions, 0 and 1

metadata = MetaData()
handled = Table(
    "handled",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("group_name", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("subject", Text, nullable=False),
)


class World:
    """A project in one SQLite file, and the engines of one kind that were made for it.

    Spark's runs its jobs in this process.
    """

    def __init__(self, url: str, kind: str) -> None:
        self.url = url
        self.kind = kind
        self.context = Context()
        self.database = Database(url)
        self.store = SqlEventStore(self.database)
        self.engines: list[tuple[Engine, Watching]] = []
        self.before: dict[str, Callable[[ProcessingContext], None]] = {}
        with self.database.writing() as connection:
            metadata.create_all(connection)

    def append(self, *subjects: str) -> None:
        first = self.store.count()
        self.store.append(
            StoredEvent(0, str(n), "s", subject, "t", None, "application/json", "{}", None)
            for n, subject in enumerate(subjects, first)
        )

    def run(
        self,
        group: str = "orders",
        partitions: int = 2,
        back_off: BackOff | None = None,
        on_exhausted: OnExhausted = OnExhausted.SKIP,
        batch_size: int | None = None,
        prepare: Callable[[], None] = lambda: None,
        parking: ParkingRule | None = None,
        schedule: ScheduleRule | None = None,
        replays: ReplayRule | None = None,
    ) -> GroupRun:
        """Return a group that writes each event into the table, after what ``before`` says for it."""

        def handle(raw: StoredEvent, connection: Connection, context: ProcessingContext) -> None:
            self.before.get(raw.id, lambda _: None)(context)
            row = {"group_name": context.group, "event_id": raw.id, "subject": raw.subject}
            connection.execute(insert(handled).values(row))

        processing = GroupProcessing(
            group,
            self.store,
            SqlProgressTracker(self.database),
            Dispatcher([bind(Handler(HandlerMark(group), handle, "here"), NothingProvided())], []),
            subject="/",
            recursive=True,
            sequencing=SequencingByEvent(PerSubject()),
            partitions=partitions,
            batch_size=batch_size,
            parking=parking,
            schedule=schedule,
            replays=replays,
        )
        back_off = back_off or FixedBackOff(0.001)
        return GroupRun(
            processing, layout(partitions), lambda: 0, back_off, on_exhausted, prepare, recipe=lambda: processing
        )

    def dispatcher(self, group: str) -> Dispatcher:
        """Return what calls the handler of a group in replays."""
        return self.run(group).processing.processor(layout(1)[0]).calls.dispatcher

    def engine(self, *runs: GroupRun, owner: str = "me") -> tuple[Engine, Watching]:
        watching, sessions = Watching(), Sessions(self.context)
        on_threads = self.kind == "thread"
        engine: Engine = (
            ThreadEngine(runs, owner, watching) if on_threads else SparkEngine(runs, owner, sessions, watching)
        )
        self.engines.append((engine, watching))
        return self.engines[-1]

    def started(self, *runs: GroupRun, owner: str = "me") -> tuple[Engine, Watching]:
        engine, watching = self.engine(*runs, owner=owner)
        for run in runs:
            engine.assign(run.group, run.partitions)
        engine.start()
        return engine, watching

    def rows(self, group: str = "orders", subject: str | None = None) -> list[int]:
        """Return the numbers of the events handled, in the order in which they were."""
        chosen = select(handled.c.event_id).where(handled.c.group_name == group).order_by(handled.c.number)
        if subject is not None:
            chosen = chosen.where(handled.c.subject == subject)
        with self.database.reading() as connection:
            return [int(event_id) for event_id in connection.execute(chosen).scalars()]

    def statuses(self) -> list[PartitionStatus]:
        return SqlProgressTracker(self.database).statuses()

    def states(self) -> list[ProcessorState]:
        return [status.state for status in self.statuses()]

    def when_done(self, engine: Engine, watching: Watching) -> None:
        """Wait until everything in the store is handled."""
        head = self.store.head()
        watching.wait_for(lambda: all(partition.done(head) for partition in engine.partitions()))


@pytest.fixture(params=["thread", "spark"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(f"sqlite:///{tmp_path / 'orders.db'}", request.param)
    yield world
    for engine, _ in world.engines:
        engine.stop(SECONDS)
    world.database.close()


def subjects(count: int, kinds: int = 7) -> list[str]:
    return [f"/order/{n % kinds}" for n in range(count)]


def numbers(given: Sequence[str], subject: str) -> list[int]:
    return [number for number, other in enumerate(given) if other == subject]


@pytest.mark.parametrize("partitions", [1, 2, 8])
def test_every_event_is_handled_once_and_in_the_order_of_its_sequence(world: World, partitions: int) -> None:
    given = subjects(500)
    world.append(*given)
    engine, watching = world.started(world.run(partitions=partitions, batch_size=50))
    world.when_done(engine, watching)
    engine.stop(SECONDS)
    assert sorted(world.rows()) == list(range(500))
    for subject in set(given):
        assert world.rows(subject=subject) == numbers(given, subject)
    assert {status.position for status in world.statuses()} == {500}
    assert {status.state for status in world.statuses()} == {ProcessorState.STOPPED}


def test_events_that_arrive_later_are_handled_too(world: World) -> None:
    engine, watching = world.started(world.run())
    world.when_done(engine, watching)
    for _ in range(3):
        world.append(FIRST, SECOND)
        world.when_done(engine, watching)
    assert sorted(world.rows()) == list(range(6))


def test_groups_advance_independently_in_one_engine(world: World) -> None:
    def fail(context: ProcessingContext) -> None:
        if context.group == "stuck":
            raise NonTransientError

    world.append(*subjects(20))
    world.before["3"] = fail
    engine, watching = world.started(world.run("orders"), world.run("stuck", partitions=1))
    orders = [partition for partition in engine.partitions() if partition.group == "orders"]
    (stuck,) = (partition for partition in engine.partitions() if partition.group == "stuck")
    watching.wait_for(lambda: all(p.done(20) for p in orders) and stuck.state is ProcessorState.FAILED)
    engine.stop(SECONDS)
    assert sorted(world.rows("orders")) == list(range(20))
    assert world.rows("stuck") == [0, 1, 2]
    states = {status.group: status.state for status in world.statuses()}
    assert states == {"orders": ProcessorState.STOPPED, "stuck": ProcessorState.FAILED}


def test_an_event_that_backs_off_holds_back_its_own_partition_only(world: World) -> None:
    def fail(context: ProcessingContext) -> None:
        msg = "not now"
        raise ValueError(msg)

    given = [FIRST, FIRST, FIRST, SECOND, SECOND, FIRST, SECOND]
    world.append(*given)
    world.before["1"] = fail
    engine, watching = world.started(world.run(back_off=FixedBackOff(HOUR)))
    first, second = engine.partitions()
    watching.wait_for(lambda: second.done(7) and first.state is ProcessorState.BACKING_OFF)
    world.append(SECOND)
    watching.wait_for(lambda: second.done(8) and world.statuses()[0].state is ProcessorState.BACKING_OFF)
    assert world.rows(subject=FIRST) == [0]
    assert world.rows(subject=SECOND) == [3, 4, 6, 7]
    status = world.statuses()[0]
    assert (status.position, status.state, status.attempt) == (1, ProcessorState.BACKING_OFF, 1)
    assert status.error.startswith("ValueError: not now")
    assert status.next_attempt_at is not None
    engine.stop(SECONDS)  # does not wait for the hour to pass
    assert world.statuses()[0].state is ProcessorState.STOPPED


def test_a_failing_event_is_tried_again_until_it_succeeds(world: World) -> None:
    attempts: list[int] = []

    def fail_twice(context: ProcessingContext) -> None:
        attempts.append(context.attempt)
        if context.attempt < 3:
            raise ValueError

    world.append(*[FIRST] * 5)
    world.before["2"] = fail_twice
    engine, watching = world.started(world.run(partitions=1))
    world.when_done(engine, watching)
    assert attempts == [1, 2, 3]
    assert world.rows() == [0, 1, 2, 3, 4]
    assert [notice.action for notice in watching.notices] == [Action.RETRY, Action.RETRY, None]


@pytest.mark.parametrize("on_exhausted", list(OnExhausted))
def test_an_event_whose_attempts_are_used_up_is_skipped_or_parked_or_stops_its_partition(
    world: World, on_exhausted: OnExhausted
) -> None:
    def fail(context: ProcessingContext) -> None:
        raise ValueError

    world.append(FIRST, FIRST, FIRST, "/order/2")
    world.before["1"] = fail
    run = world.run(partitions=1, back_off=NoRetry(), on_exhausted=on_exhausted)
    engine, watching = world.started(run)
    (partition,) = engine.partitions()
    stops = on_exhausted is OnExhausted.STOP
    watching.wait_for(lambda: partition.state is ProcessorState.FAILED if stops else partition.done(4))
    engine.stop(SECONDS)
    rows = {OnExhausted.SKIP: [0, 2, 3], OnExhausted.PARK: [0, 3], OnExhausted.STOP: [0]}
    assert world.rows() == rows[on_exhausted]
    assert world.statuses()[0].position == (1 if stops else 4)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_parked_event_holds_up_its_sequence_only_and_is_handled_in_order_when_it_can_be(
    world: World, *, at_once: bool
) -> None:
    fixed = Event()

    def fail(context: ProcessingContext) -> None:
        if not fixed.is_set():
            raise ValueError

    subjects = [f"/s{number}" for number in range(5)]
    world.append(*subjects * 6)
    world.before["1"] = fail
    rule = ParkingRule(FixedBackOff(0.05), on_exhausted=OnExhausted.PARK)
    rule = replace(rule, retry=NoRetry()) if at_once else rule  # parked within the step, on Spark by the task
    run = world.run(back_off=NoRetry(), on_exhausted=OnExhausted.PARK, parking=rule)
    engine, watching = world.started(run)
    others = [number for number in range(30) if number % 5 != 1]
    watching.wait_for(lambda: sorted(world.rows()) == others)
    world.append(*subjects)
    watching.wait_for(lambda: len(world.rows()) == len(others) + 4)
    assert world.rows(subject="/s1") == []
    assert sum(count for status in world.statuses() for _, count in status.parked) == 7
    fixed.set()
    watching.wait_for(lambda: len(world.rows()) == 35)
    engine.stop(SECONDS)
    assert world.rows(subject="/s1") == [number for number in range(35) if number % 5 == 1]
    assert [status.parked for status in world.statuses()] == [(), ()]


SOON = ScheduleRule(FixedDelay(0.01, 0.02), back_off=FixedBackOff(0.01))
"""Ticks come at once, and so do further attempts."""


@pytest.mark.parametrize("mode", BatchMode)
def test_a_scheduled_group_handles_what_waits_at_its_ticks(world: World, mode: BatchMode) -> None:
    fixed = Event()

    def fail(context: ProcessingContext) -> None:
        if not fixed.is_set():
            raise ValueError

    subjects = [f"/s{number}" for number in range(5)]
    world.append(*subjects * 6)
    world.before["1"] = fail
    engine, watching = world.started(world.run(schedule=replace(SOON, mode=mode)))
    first = [number for number in range(30) if number % 5 != 1 or (mode is BatchMode.ALL and number != 1)]
    watching.wait_for(lambda: sorted(world.rows()) == first)
    world.append(*subjects)
    watching.wait_for(lambda: len(world.rows()) == len(first) + 4 + (mode is BatchMode.ALL))
    waits = {1} if mode is BatchMode.ALL else set(range(1, 35, 5))
    assert sum(count for status in world.statuses() for _, count in status.parked) == len(waits)
    fixed.set()
    watching.wait_for(lambda: len(world.rows()) == 35)
    watching.wait_for(lambda: not any(status.parked for status in world.statuses()))
    engine.stop(SECONDS)
    assert sorted(world.rows()) == list(range(35))
    if mode is BatchMode.FAIL_FIRST:
        assert world.rows(subject="/s1") == list(range(1, 35, 5))
    assert [status.position for status in world.statuses()] == [35, 35]


def test_a_failure_in_the_grace_period_of_an_event_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "opencqrs.processing")
    tried: list[int] = []
    fixed = Event()

    def fail(context: ProcessingContext) -> None:
        tried.append(context.position)
        if not fixed.is_set():
            raise ValueError("too early")

    world.append(FIRST, SECOND)
    world.before["1"] = fail
    engine, watching = world.started(world.run(schedule=replace(SOON, grace_seconds=SECONDS)))
    watching.wait_for(lambda: len(tried) > 2)
    fixed.set()
    watching.wait_for(lambda: len(world.rows()) == 2)
    engine.stop(SECONDS)
    said = [record.getMessage() for record in caplog.records if "failures count from" in record.getMessage()]
    assert len(said) == 1
    assert "failed (ValueError: too early)" in said[0]


def test_an_event_that_the_function_of_the_order_fails_for_holds_up_its_batch_only(world: World) -> None:
    fixed = Event()

    def due(raw: StoredEvent) -> int:
        if raw.id == "1" and not fixed.is_set():
            raise KeyError("due")
        return -raw.position

    world.append(*[FIRST, SECOND] * 3)
    engine, watching = world.started(world.run(schedule=replace(SOON, key=OrderingKey(due))))
    watching.wait_for(lambda: sorted(world.rows()) == [0, 2, 4])
    watching.wait_for(lambda: sum(count for status in world.statuses() for _, count in status.parked) == 3)
    fixed.set()
    watching.wait_for(lambda: len(world.rows()) == 6)
    engine.stop(SECONDS)
    assert (world.rows(subject=FIRST), world.rows(subject=SECOND)) == ([4, 2, 0], [5, 3, 1])


def test_a_scheduled_group_that_is_taken_over_during_a_tick_loses_and_doubles_nothing(world: World) -> None:
    world.append(*[FIRST, SECOND] * 20)
    gate = world.before["7"] = Gate(world)
    run = world.run(schedule=SOON, batch_size=4)
    first, _ = world.started(run)
    assert gate.reached.wait(SECONDS)
    second, watching = world.engine(run, owner="heir")
    with ThreadPoolExecutor(1) as threads:
        taking = threads.submit(second.assign, run.group, run.partitions)
        gate.opened.set()
        taking.result(SECONDS)
    second.start()
    watching.wait_for(lambda: len(world.rows()) == 40)
    first.stop(SECONDS)
    second.stop(SECONDS)
    for subject in (FIRST, SECOND):
        assert world.rows(subject=subject) == [n for n in range(40) if (n % 2 == 0) is (subject == FIRST)]
    assert not any(status.parked for status in world.statuses())


class KilledError(BaseException):
    """What a task meets that Spark kills."""


class Gate:
    """Holds a handler until the test opens it, or Spark kills the task."""

    def __init__(self, world: World) -> None:
        self.reached = Event()
        self.opened = Event()
        self.killed = False
        world.context.on_cancel = self._kill

    def __call__(self, context: ProcessingContext) -> None:
        self.reached.set()
        assert self.opened.wait(SECONDS)
        if self.killed:
            self.killed = False  # the next task lives
            raise KilledError

    def _kill(self) -> None:
        self.killed = True
        self.opened.set()


def test_a_stop_waits_for_the_chunk_in_hand_and_the_next_start_continues_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Event()
    monkeypatch.setattr(HeadWatcher, "stop", lambda _watcher: begun.set())
    world.append(*[FIRST] * 10)
    gate = world.before["3"] = Gate(world)
    engine, _ = world.started(world.run(partitions=1, batch_size=2))
    assert gate.reached.wait(SECONDS)
    with ThreadPoolExecutor(1) as threads:
        stopping = threads.submit(engine.stop, SECONDS)
        assert begun.wait(SECONDS)
        gate.opened.set()
        stopping.result(SECONDS)
    monkeypatch.undo()
    done = 4 if world.kind == "thread" else 10  # a round on Spark finishes what it has begun, within two seconds
    assert world.rows() == list(range(done))
    assert [(status.position, status.state) for status in world.statuses()] == [(done, ProcessorState.STOPPED)]
    engine.stop(SECONDS)

    again, watching = world.started(world.run(partitions=1, batch_size=2))
    world.when_done(again, watching)
    assert world.rows() == list(range(10))


def test_a_stop_waits_no_longer_than_its_patience(world: World) -> None:
    world.append(FIRST)
    gate = world.before["0"] = Gate(world)
    engine, _ = world.started(world.run(partitions=1))
    assert gate.reached.wait(SECONDS)
    engine.stop(0.01)
    assert world.rows() == []
    gate.opened.set()
    engine.stop(SECONDS)
    after, watching = world.started(world.run(partitions=1), owner="another")
    world.when_done(after, watching)
    assert world.rows() == [0]


def test_an_error_that_ends_an_engine_is_raised_by_the_next_check(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Event()

    def broken(_observer: Watching, *_step: Any) -> None:
        seen.set()
        msg = "an observer's error"
        raise LookupError(msg)

    world.append(FIRST)
    monkeypatch.setattr(Watching, "advanced", broken)
    engine, _ = world.started(world.run(partitions=1))
    assert seen.wait(SECONDS)
    engine.stop(SECONDS)
    with pytest.raises(LookupError, match="an observer's error"):
        engine.check()
    assert world.rows() == [0]


def test_a_second_engine_takes_over_and_the_first_writes_nothing_more(world: World) -> None:
    world.append(FIRST, SECOND)
    old, old_watching = world.started(world.run())
    world.when_done(old, old_watching)
    new, new_watching = world.started(world.run(), owner="another")
    world.append(*[FIRST, SECOND] * 10)
    world.when_done(new, new_watching)
    old_watching.wait_for(lambda: all(partition.over for partition in old.partitions()))
    assert sorted(world.rows()) == list(range(22))
    failures = [partition.failure for partition in old.partitions()]
    assert {failure.origin for failure in failures if failure} == {Origin.FENCED}
    assert [partition.handled for partition in old.partitions()] == [1, 1]
    old.stop(SECONDS)  # what it says of itself is not taken for the state of the new one
    new_watching.wait_for(lambda: {status.state for status in world.statuses()} == {ProcessorState.RUNNING})


def test_a_take_over_in_mid_chunk_waits_for_it_and_loses_nothing(world: World) -> None:
    world.append(*[FIRST] * 6)
    gate = world.before["2"] = Gate(world)
    old, old_watching = world.started(world.run(partitions=1, batch_size=3))
    assert gate.reached.wait(SECONDS)
    del world.before["2"]
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(world.started, world.run(partitions=1, batch_size=3), owner="another")
        gate.opened.set()
        new, new_watching = starting.result(SECONDS)
    world.when_done(new, new_watching)
    world.append(FIRST)
    world.when_done(new, new_watching)
    old_watching.wait_for(lambda: all(partition.over for partition in old.partitions()))
    assert world.rows() == list(range(7))


def test_what_must_be_prepared_is_prepared_before_the_first_event(world: World) -> None:
    order: list[str] = []
    world.append(FIRST)
    world.before["0"] = lambda context: order.append("handled")

    def prepare() -> None:
        with DatabaseTransactions(world.database).begin():
            order.append("prepared")

    engine, watching = world.started(world.run(partitions=1, prepare=prepare))
    world.when_done(engine, watching)
    engine.check()
    assert order == ["prepared", "handled"]


def test_nothing_is_handled_before_the_start(world: World) -> None:
    world.append(FIRST)
    engine, _ = world.engine(world.run(partitions=1))
    engine.assign("orders", layout(1))
    engine.stop(SECONDS)
    assert world.rows() == []
    assert [status.state for status in world.statuses()] == [ProcessorState.STOPPED]


def test_partitions_are_assigned_and_released_while_others_continue(world: World) -> None:
    world.append(FIRST, SECOND)
    run = world.run()
    first, second = run.partitions
    engine, watching = world.engine(run)
    engine.assign("orders", [first])
    engine.start()
    watching.wait_for(lambda: world.rows() == [0])
    watching.wait_for(lambda: world.states() == [ProcessorState.RUNNING, ProcessorState.STOPPED])

    engine.assign("orders", [first, second])
    watching.wait_for(lambda: world.rows(subject=SECOND) == [1])
    engine.release("orders", [first], SECONDS)
    world.append(FIRST, SECOND)
    watching.wait_for(lambda: world.rows(subject=SECOND) == [1, 3])
    assert world.rows(subject=FIRST) == [0]
    watching.wait_for(lambda: world.states() == [ProcessorState.STOPPED, ProcessorState.RUNNING])

    engine.assign("orders", [first])
    world.when_done(engine, watching)
    assert world.rows(subject=FIRST) == [0, 2]
    engine.release("orders", run.partitions, SECONDS)
    assert {status.state for status in world.statuses()} == {ProcessorState.STOPPED}
    engine.check()


def test_a_released_partition_finishes_the_events_in_hand_and_another_engine_continues_after_them(world: World) -> None:
    world.append(*[FIRST] * 4)
    gate = world.before["1"] = Gate(world)
    old, _ = world.started(world.run(partitions=1, batch_size=2))
    assert gate.reached.wait(SECONDS)
    with ThreadPoolExecutor(1) as threads:
        releasing = threads.submit(old.release, "orders", layout(1), SECONDS)
        gate.opened.set()
        releasing.result(SECONDS)
    handled_here = world.rows()
    assert handled_here in ([0, 1], [0, 1, 2, 3])
    new, watching = world.started(world.run(partitions=1), owner="another")
    world.when_done(new, watching)
    assert world.rows() == [0, 1, 2, 3]
    assert [partition.failure for partition in old.partitions()] == [None]


def test_a_release_whose_patience_ends_loses_and_doubles_nothing(world: World) -> None:
    world.append(FIRST, SECOND, SECOND)
    gate = world.before["0"] = Gate(world)
    run = world.run()
    engine, watching = world.started(run)
    assert gate.reached.wait(SECONDS)
    engine.release("orders", run.partitions[:1], 0.01)
    gate.opened.set()
    watching.wait_for(lambda: world.rows(subject=SECOND) == [1, 2])
    engine.stop(SECONDS)
    after, watching = world.started(world.run(), owner="another")
    world.when_done(after, watching)
    assert sorted(world.rows()) == [0, 1, 2]


def test_an_engine_refuses_what_it_does_not_run(world: World) -> None:
    engine, _ = world.engine(world.run())
    with pytest.raises(ValueError, match="this engine does not run group 'boks'"):
        engine.assign("boks", layout(2))
    with pytest.raises(ValueError, match="this engine does not run group 'boks'"):
        engine.release("boks", layout(2), 0)


@pytest.mark.parametrize("together", [1, None], ids=["one by one", "in chunks"])
def test_after_other_partitions_were_given_every_event_is_handled_once_and_in_order(
    world: World, together: int | None
) -> None:
    """One partition is ahead of the other; merged, split, and in three, each while events come in."""
    world.append(*[FIRST, SECOND] * 10)
    record = RecordRule("orders", "tail", GroupCode, FakeClock().now, partitions=2)
    run = replace(world.run(batch_size=together), record=record)
    tracker, log = run.processing.tracker, Log(run.processing.hashes_at, run.processing.positions_of)
    assert isinstance(tracker, RepartitioningTracker)
    engine, watching = world.engine(run)
    engine.assign("orders", run.partitions[:1])  # so the other one stays behind
    engine.start()
    watching.wait_for(lambda: status_at(tracker, run.partitions[0]) == 20)
    engine.release("orders", run.partitions[:1], SECONDS)
    for partitions in (layout(1), (*Partition(2, 0).split(), Partition(2, 1)), layout(3)):
        carried = tracker.repartition(
            "orders", partitions, lambda known, to=tuple(partitions): carried_over(known, to, log)
        )
        assert any(cursor.ahead for cursor in carried.values()) is (partitions == layout(1))
        world.append(*[FIRST, SECOND, "/order/2"] * 5)
        engine.assign("orders", partitions)
        world.append(*[SECOND, FIRST] * 5)
        head = world.store.head()
        watching.wait_for(lambda to=partitions, until=head: all(status_at(tracker, each) >= until for each in to))
        engine.release("orders", partitions, SECONDS)
    assert sorted(world.rows()) == list(range(world.store.count()))
    for subject in (FIRST, SECOND, "/order/2"):
        own = world.rows(subject=subject)
        assert own == sorted(own)


def status_at(tracker: RepartitioningTracker, partition: Partition) -> int:
    return next(status.position for status in tracker.statuses() if status.partition == partition)


def test_what_is_assigned_while_the_engine_stops_is_released(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.append(FIRST)
    run = world.run(partitions=1)
    engine, _ = world.started(run)
    engine.release("orders", run.partitions, SECONDS)
    claimed = type(run.processing.tracker).claim

    def stopped_meanwhile(*arguments: Any, **more: Any) -> Any:
        cursors = claimed(*arguments, **more)
        engine.stop(SECONDS)
        return cursors

    monkeypatch.setattr(type(run.processing.tracker), "claim", stopped_meanwhile)
    engine.assign("orders", run.partitions)
    assert world.states() == [ProcessorState.STOPPED]
    engine.check()


def test_a_stopped_engine_takes_no_partition_from_its_next_owner(world: World) -> None:
    world.append(FIRST)
    old, _ = world.started(world.run(partitions=1))
    old.stop(SECONDS)
    new, watching = world.started(world.run(partitions=1), owner="another")
    old.assign("orders", layout(1))
    world.append(FIRST)
    world.when_done(new, watching)
    assert world.rows() == [0, 1]
    assert [each.partition for each in new.partitions() if not each.over] == [*layout(1)]


def test_a_partition_that_another_process_took_over_can_be_assigned_again(world: World) -> None:
    world.append(FIRST)
    old, old_watching = world.started(world.run(partitions=1))
    world.when_done(old, old_watching)
    new, _ = world.started(world.run(partitions=1), owner="another")
    world.append(FIRST)
    old_watching.wait_for(lambda: all(partition.over for partition in old.partitions()))
    new.stop(SECONDS)
    old.assign("orders", layout(1))
    world.append(FIRST)
    world.when_done(old, old_watching)
    assert world.rows() == [0, 1, 2]


def test_after_a_reset_events_are_handled_again_and_the_end_is_reported_once(world: World) -> None:
    given, told, finished = subjects(40), dict[int, bool](), list[Reset]()

    def note(context: ProcessingContext) -> None:
        told[context.position] = context.replaying

    def end(reset: Reset, work: Work) -> None:
        finished.append(reset)
        row = {"group_name": "orders", "event_id": "-1", "subject": "finished"}
        work.connection.execute(insert(handled).values(row))

    world.append(*given)
    world.before = {str(number): note for number in range(60)}
    run = world.run(partitions=3, batch_size=7, replays=ReplayRule(world.dispatcher("orders"), [end]))
    engine, watching = world.started(run)
    world.when_done(engine, watching)
    engine.stop(SECONDS)
    world.append(*given[:20])
    reset = Reset("orders", 10, {"why": "a new column"}, "a test", "2026-01-01T00:00:00+00:00")
    with run.processing.tracker.resetting(reset, run.partitions) as opened:
        opened.unit.connection.execute(handled.delete().where(handled.c.event_id.not_in(map(str, range(10)))))
    again, watching = world.started(run, owner="next")
    world.when_done(again, watching)
    again.stop(SECONDS)
    rows = world.rows()
    assert sorted(rows) == [-1, *range(60)]
    assert finished == [reset]
    assert {position: told[position] for position in range(11, 61)} == {
        position: position <= 40 for position in range(11, 61)
    }
    assert [status.replay for status in world.statuses()] == [None] * 3


def test_a_replay_whose_end_fails_is_reported_and_ends_later(world: World) -> None:
    fails = [ValueError("no printer")]

    def end(reset: Reset, work: Work) -> None:
        if fails:
            raise fails[0]

    world.append(*subjects(5))
    run = world.run(partitions=1, replays=ReplayRule(world.dispatcher("orders"), [end]))
    engine, watching = world.started(run)
    world.when_done(engine, watching)
    engine.stop(SECONDS)
    with run.processing.tracker.resetting(Reset("orders", 0), run.partitions):
        pass
    again, watching = world.started(run, owner="next")
    watching.wait_for(lambda: world.states() == [ProcessorState.FAILED])
    assert "no printer" in world.statuses()[0].error
    again.stop(SECONDS)
    fails.clear()
    last, watching = world.started(run, owner="last")
    world.when_done(last, watching)
    assert world.statuses()[0].replay is None

"""Participants on both engines, on SQLite; Spark's jobs run in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event as Signal
from typing import Any

import pytest
from support.observers import Watching
from support.participants import FIRST, GROUP, SECOND, Board, World, counting, raising
from support.spark import Context, Sessions

from opencqrs_py.adapters.memory import InMemoryControlStore, InMemoryProgressTracker
from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.control.records import GroupPartition, Node, ProcessIdentity, Runnable
from opencqrs_py.engines.coordination import Coordinator, LeaseTiming
from opencqrs_py.engines.runs import Engine, GroupRun
from opencqrs_py.engines.spark import holds
from opencqrs_py.engines.spark.engine import SparkEngine
from opencqrs_py.engines.spark.holds import Hold
from opencqrs_py.engines.spark.tasks import Permit, Task, TaskRunner, run_hold
from opencqrs_py.engines.spark.turns import turns_within
from opencqrs_py.engines.thread import ThreadEngine
from opencqrs_py.model import Partition, ProcessorState, layout
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.outcome import Origin, Outcome
from opencqrs_py.processing import supervision
from opencqrs_py.processing.checkpoints import checkpointed
from opencqrs_py.processing.ports import SystemClock
from opencqrs_py.processing.recovery import Action, ExponentialBackOff, FixedBackOff, NoRetry

SECONDS = 60  # longest wait for another thread
FIRST_HALF, SECOND_HALF = layout(2)


class Engines:
    """Engines of one kind, for a group that is made of boards."""

    def __init__(self, kind: str, tracker: Any) -> None:
        self.kind = kind
        self.tracker = counting(tracker)
        self.watching = Watching()
        self.context = Context()
        self.made: list[Engine] = []

    def world(self, *boards: Board, partitions: int = 2, **rest: Any) -> World:
        return World(self.tracker, *(board.handle for board in boards), partitions=partitions, **rest)

    def run(self, world: World, hold: float = 30.0) -> GroupRun:
        return replace(world.run, recipe=lambda: world.processing, hold=hold)

    def started(self, world: World, most_tasks: int | None = None, hold: float = 30.0) -> Engine:
        run = self.run(world, hold)
        engine: Engine = ThreadEngine([run], "me", self.watching)
        if self.kind == "spark":
            engine = SparkEngine([run], "me", Sessions(self.context), self.watching, SystemClock(), most_tasks)
        self.made.append(engine)
        engine.assign(GROUP, run.partitions)
        engine.start()
        return engine

    def when(self, condition: Callable[[], object]) -> None:
        self.watching.wait_for(condition)


@pytest.fixture(params=["thread", "spark"])
def engines(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engines]:
    monkeypatch.setattr(holds, "IDLE_SECONDS", 0.1)
    database = Database(f"sqlite:///{tmp_path / 'all.db'}")
    made = Engines(request.param, SqlProgressTracker(database))
    yield made
    for engine in made.made:
        engine.stop(SECONDS)
    database.close()


def append(world: World, count: int) -> None:
    world.append(*[FIRST, SECOND] * (count // 2))


def test_participants_handle_each_event_once_and_a_stop_stores_the_confirmed_progress(engines: Engines) -> None:
    board = Board()
    world = engines.world(board)
    append(world, 500)
    engine = engines.started(world)
    engines.when(lambda: len(board.seen) == 500)
    engine.stop(SECONDS)
    assert sorted(board.positions) == [*range(1, 501)]
    for partition, residue in ((FIRST_HALF, 1), (SECOND_HALF, 0)):
        own = [position for name, position in board.seen if name == str(partition)]
        assert own == [position for position in range(1, 501) if position % 2 == residue]
    assert world.stored_of_all() == {"0/2": 500, "1/2": 500}
    assert {status.state for status in engines.tracker.statuses()} == {ProcessorState.STOPPED}
    assert all(status.checkpoint.mode == "deferred" for status in engines.tracker.statuses())
    assert {call[0] for call in board.calls if call[0] != "checkpoint"} == {"claimed", "released", "closed"}


def test_a_caught_up_partition_is_done_although_its_progress_waits(engines: Engines) -> None:
    board = Board()
    world = engines.world(board)
    append(world, 20)
    engine = engines.started(world)
    engines.when(lambda: all(partition.done(20) for partition in engine.partitions()))
    assert len(board.seen) == 20


def test_a_partition_whose_participant_fails_delays_no_other(engines: Engines) -> None:
    def rejects(partition: Partition, resume_at: int) -> int:
        if partition == SECOND_HALF:
            raise OSError("no room")
        return resume_at

    board = Board(claimed=rejects)
    world = engines.world(board)
    append(world, 100)
    engine = engines.started(world)
    engines.when(lambda: len(board.seen) == 50 and engines.watching.notices)
    states = {each.partition: each.state for each in engine.partitions()}
    assert states[SECOND_HALF] is ProcessorState.BACKING_OFF
    engine.stop(SECONDS)
    assert world.stored_of_all() == {"0/2": 100, "1/2": 0}


def test_a_failing_event_is_retried_and_those_before_it_are_kept(engines: Engines) -> None:
    board = Board()
    world = engines.world(board, partitions=1, clock=None)
    failed = Signal()

    def once() -> None:
        if not failed.is_set():
            failed.set()
            raise OSError("not now")

    board.before[5] = once
    world.given(9)
    engine = engines.started(world)
    engines.when(lambda: board.positions[-1:] == [9])
    engine.stop(SECONDS)
    assert board.positions == [*range(1, 10)]
    assert world.stored() == 9


def test_a_checkpoint_request_is_met_while_events_arrive(engines: Engines) -> None:
    board = Board()
    board.before[7] = lambda: board.trigger.request()  # noqa: PLW0108 there is none yet
    world = engines.world(board, partitions=1, batch_size=1).given(20)
    engines.started(world)
    engines.when(lambda: 7 in engines.tracker.stores)
    engines.when(lambda: len(board.seen) == 20)
    assert board.asked()[:1] == [7]


def test_a_parked_event_is_retried_and_its_sequence_after_it(engines: Engines) -> None:
    board, mended = Board(), Signal()

    def fails() -> None:
        if not mended.is_set():
            raise OSError("not now")

    board.before[3] = fails
    rest = {"back_off": NoRetry(), "on_exhausted": OnExhausted.PARK, "park_seconds": 0.05}
    world = engines.world(board, clock=SystemClock(), **rest)
    append(world, 10)
    engine = engines.started(world, hold=2.0)
    engines.when(lambda: len(board.seen) >= 5 and world.stored_of_all()["0/2"] == 10)  # of the other one, or 5 or 7
    assert set(world.waiting()) == {3, 5, 7, 9}
    mended.set()
    engines.when(lambda: not world.waiting())
    engine.stop(SECONDS)
    assert [position for name, position in board.seen if name == str(FIRST_HALF)] == [1, 3, 5, 7, 9]
    assert board.out_of_inbox == [3, 5, 7, 9]
    assert sorted(position for positions in board.parked() for position in positions) == [3, 5, 7, 9]
    assert world.stored_of_all() == {"0/2": 10, "1/2": 10}


def test_a_flush_that_fails_at_the_end_is_reported_by_the_stopped_partition(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "CHECKPOINT_BACK_OFF", FixedBackOff(3_600.0))
    board = Board(released=raising(OSError("disk full")))
    world = engines.world(board, partitions=1).given(9)
    engine = engines.started(world)
    engines.when(lambda: len(board.seen) >= 9)
    engine.stop(SECONDS)
    (status,) = engines.tracker.statuses()
    assert (status.state, status.position, status.next_attempt_at) == (ProcessorState.STOPPED, 0, None)
    assert status.error == "[OCQ-646] CheckpointError: Board has not confirmed position 9: OSError: disk full"
    assert engines.watching.notices[-1].action is Action.CLAIM
    (at_end,) = [partition.failed_at_end() for partition in engine.partitions()]
    assert at_end is not None
    assert at_end.error == status.error


# ------------------------------------------------------------------------------------------------------- threads


@pytest.fixture
def threads() -> Iterator[Engines]:
    made = Engines("thread", InMemoryProgressTracker())
    yield made
    for engine in made.made:
        engine.stop(SECONDS)


def test_idle_request_wakes_worker(threads: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    from opencqrs_py.engines import following  # noqa: PLC0415

    monkeypatch.setattr(following, "_IDLE_SECONDS", 3_600.0)
    board = Board()
    world = threads.world(board, partitions=1).given(5)
    threads.started(world)
    threads.when(lambda: any(outcome.idle for _, _, outcome in threads.watching.steps))
    board.trigger.request(4)
    threads.when(lambda: threads.tracker.stores == [4])
    board.trigger.request()
    threads.when(lambda: threads.tracker.stores == [4, 5])


def test_a_checkpoint_request_is_met_while_an_event_backs_off(threads: Engines) -> None:
    board = Board()
    board.before[5] = raising(OSError("not now"))
    world = threads.world(board, partitions=1, back_off=FixedBackOff(3_600.0)).given(9)
    threads.started(world)
    threads.when(lambda: threads.watching.notices)
    board.trigger.request()
    threads.when(lambda: threads.tracker.stores == [4])
    assert board.positions == [1, 2, 3, 4]


def test_leases_are_extended_while_a_participant_is_busy(threads: Engines) -> None:  # H2
    """The heartbeat waits neither for handlers nor for participants; the other node finds nothing to take."""
    go_on = Signal()
    board = Board(checkpoint=lambda _, asked: (go_on.wait(SECONDS), asked)[1])
    board.before[2] = lambda: go_on.wait(SECONDS)
    world = threads.world(board, partitions=1).given(2)

    class Beating(InMemoryControlStore):
        beats = 0

        def beat(self, node: str, seconds: float) -> Any:
            self.beats += node == "a"
            return super().beat(node, seconds)

    store = Beating()
    key = GroupPartition(GROUP, Partition(1, 0))

    def node(name: str, engine: Engine) -> Coordinator:
        process = ProcessIdentity("boot", "pids", ord(name), "1")
        groups = {GROUP: Runnable(1)}
        timing = LeaseTiming(60.0, 0.05)  # a busy machine may hold up a heartbeat for long
        known = (time.monotonic, lambda _: False, lambda: "again")
        return Coordinator(store, Node(name, name, process, groups), {GROUP: engine}, timing, *known)

    engine = ThreadEngine([threads.run(world)], "a", threads.watching)
    threads.made.append(engine)
    other = ThreadEngine([threads.run(threads.world(Board(), partitions=1))], "b")
    first, second = node("a", engine), node("b", other)
    first.join()
    first.start()
    engine.start()
    second.join()
    second.start()
    try:
        began = store.beats
        threads.when(lambda: store.beats - began >= 10)  # while one call of a handler is in hand
        (lease,) = store.view().leases
        assert (lease.node, lease.term) == ("a", 1)
        assert key in engine.assigned()
        assert not other.assigned()
    finally:
        go_on.set()
        for each in (first, second):
            each.end()
        engine.stop(SECONDS)
        for each in (first, second):
            each.leave()
    assert world.stored() == 2


# --------------------------------------------------------------------------------------------------------- Spark


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[Engines]:
    database = Database(f"sqlite:///{tmp_path / 'all.db'}")
    made = Engines("spark", SqlProgressTracker(database))
    yield made
    for engine in made.made:
        engine.stop(SECONDS)
    database.close()


def test_a_task_has_one_partition_and_claims_and_releases_it(spark: Engines) -> None:
    board = Board()
    world = spark.world(board)
    append(world, 40)
    spark.started(world, hold=0.2)
    spark.when(lambda: world.stored_of_all() == {"0/2": 40, "1/2": 40})
    assert all(" and " not in text and "," not in text for text in spark.context.descriptions)
    claims = [call for call in board.calls if call[0] == "claimed"]
    assert len(claims) == len([call for call in board.calls if call[0] == "released"])
    assert sorted(board.positions) == [*range(1, 41)]


@pytest.mark.parametrize("noticed_by", ["a step", "the release"])
def test_a_task_whose_partition_was_taken_over_closes_it_and_does_not_flush(
    spark: Engines, monkeypatch: pytest.MonkeyPatch, noticed_by: str
) -> None:
    monkeypatch.setattr(checkpointed, "_BEAT_SECONDS", 0 if noticed_by == "a step" else SECONDS)
    monkeypatch.setattr(holds, "IDLE_SECONDS", 0)
    board = Board()
    world = spark.world(board, partitions=1).given(9)
    (cursor,) = spark.tracker.claim(GROUP, layout(1), 0, "owner")
    board.before[3] = lambda: spark.tracker.claim(GROUP, layout(1), 0, "another")
    hold = Hold(world.processing, turns_within(world.processing.limits), SECONDS, lambda: True)
    done = hold.run(Outcome(cursor))
    assert done.failure is not None
    assert done.failure.origin is Origin.FENCED
    assert board.calls == [("claimed", "0/1", 0), ("closed", "0/1")]


def test_tasks_of_participants_respect_the_task_limit_of_a_group_and_alternate(spark: Engines) -> None:
    board = Board()
    world = spark.world(board, partitions=2)
    append(world, 10)
    spark.started(world, most_tasks=1, hold=0.1)
    spark.when(lambda: len(board.seen) == 10)
    held: list[str] = []
    for name, partition, *_ in board.calls:
        if name == "claimed":
            held.append(partition)
            assert len(held) == 1, "two partitions at once"
        elif name == "closed":
            held.remove(partition)
    assert {call[1] for call in board.calls} == {"0/2", "1/2"}


def test_repeated_failed_flushes_at_the_end_of_tasks_increase_the_back_off(
    spark: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "CHECKPOINT_BACK_OFF", ExponentialBackOff(0.01, multiplier=2, maximum=60))
    monkeypatch.setattr(holds, "IDLE_SECONDS", 0.1)
    board = Board(released=raising(OSError("disk full")))
    engine = spark.started(spark.world(board, partitions=1).given(9))
    (partition,) = engine.partitions()
    spark.when(lambda: partition.state is ProcessorState.FAILED)
    spark.when(lambda: sum(notice.failure is not None for notice in spark.watching.notices) >= 5)
    failed = [notice for notice in spark.watching.notices if notice.failure is not None]
    assert [notice.wait for notice in failed][:5] == [0.01, 0.02, 0.04, 0.08, 0.16]


def test_tasks_whose_participants_confirm_nothing_increase_the_back_off(
    spark: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each task would handle the same events, unnoticed."""
    monkeypatch.setattr(supervision, "CHECKPOINT_BACK_OFF", ExponentialBackOff(0.01, multiplier=2, maximum=60))
    monkeypatch.setattr(holds, "IDLE_SECONDS", 0)
    board = Board(released=lambda _, up_to: min(up_to, 6))  # as if it wrote files of six events
    engine = spark.started(spark.world(board, partitions=1).given(9))
    (partition,) = engine.partitions()
    spark.when(lambda: partition.state is ProcessorState.FAILED)
    failed = [notice for notice in spark.watching.notices if notice.failure is not None]
    assert [notice.wait for notice in failed][:3] == [0.01, 0.02, 0.04]
    status = partition.status()
    assert status.position == 6
    assert status.error == (
        "[OCQ-646] CheckpointError: the participants confirmed no position after 6 on release, of 9 handled"
    )


@pytest.mark.parametrize("ends", ["by itself", "by a stop"])
def test_a_task_that_ends_can_leave_all_its_events_to_the_next_one(
    spark: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(holds, "IDLE_SECONDS", 0)
    board = Board(released=lambda _, _up_to: 0)
    world = spark.world(board, partitions=1).given(9)
    permit = Permit.in_folder(str(tmp_path))
    permit.give()
    if ends == "by a stop":
        board.before[9] = permit.withdraw
    task = Task(spark.tracker.claim(GROUP, layout(1), 0, "me"), SECONDS)
    (outcome,) = run_hold(world.processing, task, permit).outcomes
    assert (outcome.handled, outcome.cursor.stored) == (9, 0)
    assert (outcome.failure is None) is (ends == "by a stop")


def test_a_second_run_of_a_task_resumes_at_the_stored_position_and_the_first_run_stores_nothing(
    spark: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace  # noqa: PLC0415

    from opencqrs_py.engines.spark import tasks  # noqa: PLC0415
    from opencqrs_py.engines.spark.tasks import Task, write_task  # noqa: PLC0415
    from opencqrs_py.model.outcome import Origin  # noqa: PLC0415

    board = Board(released=lambda _, _up_to: 3)
    world = spark.world(board, partitions=1).given(9)
    (cursor,) = spark.tracker.claim(GROUP, layout(1), 0, "me")
    monkeypatch.setattr(holds, "IDLE_SECONDS", 0.05)
    first = world.processing.processor(Partition(1, 0))
    first.step(cursor)
    board.trigger.request(2)
    kept = first.step(cursor.moved_to(9, stored=False)).cursor
    assert kept.stored == 2
    monkeypatch.setattr(tasks, "TaskContext", SimpleNamespace(get=lambda: SimpleNamespace(attemptNumber=lambda: 1)))
    runner = TaskRunner(lambda: world.processing)
    (outcome,) = tasks.read_result(runner(write_task(Task((cursor,), 30.0)))).outcomes
    assert (outcome.cursor.stored, outcome.cursor.position, outcome.failure) == (3, 3, None)
    assert board.asked("claimed") == [0, 2]
    late = first.step(kept)
    assert late.failure is not None
    assert late.failure.origin is Origin.FENCED


@pytest.mark.parametrize(("ends_at_once", "handled"), [(True, 0), (False, 9)])
@pytest.mark.parametrize("again", [False, True])
def test_a_task_stopped_before_its_first_event_reports_that_none_was_tried(
    spark: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handled: int, *, ends_at_once: bool, again: bool
) -> None:
    monkeypatch.setattr(holds, "IDLE_SECONDS", 0)
    world = spark.world(Board(), partitions=1).given(9)
    task = Task(spark.tracker.claim(GROUP, layout(1), 0, "me"), SECONDS)
    permit = Permit.in_folder(str(tmp_path))
    if not ends_at_once:
        permit.give()
    (outcome,) = run_hold(world.processing, task, permit, again=again).outcomes
    assert (outcome.handled, outcome.without_log, outcome.failure) == (handled, ends_at_once, None)


@pytest.mark.parametrize("copies", [True, pytest.param(False, marks=pytest.mark.release)])
def test_a_fenced_first_run_waits_until_the_second_one_has_finished(
    spark: Engines, monkeypatch: pytest.MonkeyPatch, *, copies: bool
) -> None:
    """Spark takes the result that comes first, and ends the run that does the work if that is the other one."""
    from opencqrs_py.engines.spark import tasks  # noqa: PLC0415
    from opencqrs_py.engines.spark.tasks import Task, write_task  # noqa: PLC0415

    world = spark.world(Board(), partitions=1).given(9)
    (cursor,) = spark.tracker.claim(GROUP, layout(1), 0, "me")
    world.processing.processor(Partition(1, 0)).succeed(cursor)
    waits: list[float] = []
    monkeypatch.setattr(tasks, "await_copy", lambda _processing, _result, until, _permit: waits.append(until))
    began = time.monotonic()
    runner = TaskRunner(lambda: world.processing, copies=copies)
    (outcome,) = tasks.read_result(runner(write_task(Task((cursor,), 30.0)))).outcomes
    assert outcome.failure is not None
    assert [until >= began + 30 for until in waits] == [True] * copies


def test_the_driver_never_handles_events_of_participants_itself(spark: Engines) -> None:
    from opencqrs_py.engines.spark.engine import Meanwhile  # noqa: PLC0415

    board = Board()
    world = spark.world(board, partitions=1).given(3)
    sessions = Sessions(spark.context)
    sessions.will_start = "local[2]"
    run = spark.run(world)
    engine = SparkEngine([run], "me", sessions, spark.watching, meanwhile=Meanwhile(2))
    spark.made.append(engine)
    engine.assign(GROUP, run.partitions)
    engine.start()
    assert sessions.begun.wait(SECONDS)
    assert not board.calls
    sessions.finish(sessions.open())
    spark.when(lambda: len(board.seen) == 3)
    assert engine.task_load().handled_by_driver == 0

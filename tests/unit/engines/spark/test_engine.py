"""The engine's coordinator with a fake Spark, whose jobs run in this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from logging.handlers import QueueHandler
from math import inf
from queue import Queue
from threading import Condition, Thread
from threading import Event as Signal
from threading import enumerate as enumerate_threads
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from sqlalchemy import exc
from support.spark import Context, Sessions

from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.control.layouts import carried_over
from opencqrs_py.control.records import TaskLoad
from opencqrs_py.engines.driver import PartitionDriver
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.spark import engine as spark_engine
from opencqrs_py.engines.spark import groups, slots, tasks
from opencqrs_py.engines.spark.engine import Meanwhile, SparkEngine
from opencqrs_py.engines.spark.groups import read_at_once
from opencqrs_py.engines.spark.slots import HELD_SECONDS, NOTICED_SECONDS, STILL_SECONDS, ActiveJob
from opencqrs_py.engines.spark.tasks import DriverPermit, Permit
from opencqrs_py.engines.spark.turns import TaskTimedOutError, TimedOut
from opencqrs_py.errors import AssemblyError, EngineError, EngineLostError
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import Handler, HandlerMark
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.binding import bind
from opencqrs_py.processing.calls import NO_LIMITS, CallLimits
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.notices import Observer
from opencqrs_py.processing.recovery import ExponentialBackOff
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.testing import FakeClock

EVENTS = 60
PARTITIONS = 3
SECONDS = 30  # longest wait; nothing here takes long


class Seen(Observer):
    """An observer that records events; ``done`` is set when all partitions are at the head."""

    def __init__(self) -> None:
        self.notices: Queue = Queue()
        self.positions: dict[object, int] = {}
        self.done = Signal()
        self.changed = Condition()

    def noticed(self, notice) -> None:
        self.notices.put(notice)

    def reasons(self, count: int) -> dict[str, str]:
        """Wait for this many notices; return the error by partition."""
        found = [self.notices.get(timeout=SECONDS) for _ in range(count)]
        return {str(notice.partition): str(notice.failure) for notice in found}

    def advanced(self, _group, partition, outcome) -> None:
        if outcome.failure is None:
            self.positions[partition] = outcome.cursor.position
        if sorted(self.positions.values()) == [EVENTS] * PARTITIONS:
            self.done.set()
        with self.changed:
            self.changed.notify_all()

    def wait_for(self, positions: dict[object, int]) -> None:
        """Wait until partitions are at these positions."""
        with self.changed:
            assert self.changed.wait_for(lambda: positions.items() <= self.positions.items(), SECONDS)


class Engine:
    """An engine with one group and all its dependencies."""

    def __init__(self, folder) -> None:
        self.handled: list[int] = []
        self.before_return: Callable[[], object] = lambda: None
        self.database = Database(f"sqlite:///{folder}/all.db")
        self.store = SqlEventStore(self.database)
        self.added = 0
        self.add(EVENTS)
        self.tracker = SqlProgressTracker(self.database)
        self.context = Context()
        self.sessions = Sessions(self.context)
        self.clock = FakeClock()
        self.seen = Seen()
        self.make()

    def make(
        self, *, handles_while_starting: bool = False, limits: CallLimits = NO_LIMITS, most_at_once: int | None = None
    ) -> None:
        """Replace the engine, which must not have been started yet."""

        def handle(event: Event) -> None:
            self.handled.append(event.position)
            self.before_return()

        dispatcher = Dispatcher([bind(Handler(HandlerMark("g", ("t",)), handle, "here"), ContainerInjector())], ())
        processing = GroupProcessing(
            "g",
            self.store,
            self.tracker,
            dispatcher,
            subject="/",
            recursive=True,
            sequencing=SequencingByEvent(PerSubject()),
            partitions=PARTITIONS,
            batch_size=10,
            limits=limits,
        )
        self.processing = processing
        run = GroupRun(
            processing,
            layout(PARTITIONS),
            lambda: 0,
            ExponentialBackOff(),
            OnExhausted.SKIP,
            recipe=lambda: processing,
            most_at_once=most_at_once,
        )
        self.handed_over = 0
        self.sessions.will_start = "local[2]" if handles_while_starting else ""
        meanwhile = Meanwhile(2, self.hand_over) if handles_while_starting else Meanwhile()
        self.engine = SparkEngine([run], "me", self.sessions, self.seen, self.clock, meanwhile=meanwhile)

    def hand_over(self) -> None:
        self.handed_over += 1

    def add(self, events: int) -> None:
        """Add events of twenty subjects."""
        numbers = range(self.added, self.added + events)
        self.added += events
        self.store.append(
            Event(0, str(n), "s", f"/x/{n % 20}", "t", None, "application/json", "{}", None) for n in numbers
        )

    def partitions_of(self, job: int) -> set[Partition]:
        """Return the partitions of a started job."""
        named = self.context.descriptions_when(job + 1)[job].split(", ")
        return {Partition(PARTITIONS, int(line.split("/")[0])) for line in named}

    def start(self) -> None:
        self.engine.assign("g", layout(PARTITIONS))
        self.engine.start()

    def states(self) -> list[tuple[str, int]]:
        return [(p.status().state.value, p.status().position) for p in self.engine.partitions()]


def wait_for_tasks(engine: Engine) -> None:
    """Wait until all tasks have ended and no partition is shown as running."""
    until = time.monotonic() + SECONDS
    while engine.engine._running or any(state == "running" for state, _ in engine.states()):
        assert time.monotonic() < until
        time.sleep(0.01)


def wait_for_threads() -> None:
    """Wait until no thread of an engine works, which would open the database again after it was closed."""
    until = time.monotonic() + SECONDS
    while {each.name for each in enumerate_threads()} & {"opencqrs-g", "opencqrs-coordinator"}:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """An engine of which no run of a task waits long for another run, which does not exist here, and that looks often.

    It waits in real time, and the clock is a fake.
    """
    monkeypatch.setattr(tasks, "_LEAST_WAIT_SECONDS", 0)
    monkeypatch.setattr(groups, "_IDLE_SECONDS", 0.05)
    made = Engine(tmp_path)
    yield made
    made.engine.stop(patience=0)
    wait_for_threads()
    made.database.close()


def test_each_task_is_a_spark_job_in_the_job_group_and_pool_named_after_its_group(engine):
    engine.start()
    assert engine.seen.done.wait(SECONDS)
    assert sorted(engine.handled) == list(range(1, EVENTS + 1))
    assert {*engine.context.groups, *engine.context.pools} == {"g"}
    assert sorted(engine.context.descriptions[:2]) == ["0/3 after 0, 2/3 after 0", "1/3 after 0"]
    assert len(set(engine.context.tags)) == len(engine.context.tags)
    assert engine.context.cancelled == []


def test_a_group_has_at_most_the_allowed_number_of_tasks_at_once(engine):
    engine.make(most_at_once=1)
    engine.start()
    assert engine.seen.done.wait(SECONDS)
    assert sorted(engine.handled) == list(range(1, EVENTS + 1))
    assert engine.context.descriptions[0] == "0/3 after 0, 1/3 after 0, 2/3 after 0"


def test_partitions_without_new_events_run_without_a_task(engine):
    engine.start()
    assert engine.seen.done.wait(SECONDS)
    engine.engine.stop(patience=SECONDS)
    jobs = len(engine.context.tags)
    engine.seen.positions.clear()
    engine.make()
    engine.start()
    engine.seen.wait_for({Partition(PARTITIONS, n): EVENTS for n in range(PARTITIONS)})
    assert engine.states() == [("running", EVENTS)] * PARTITIONS
    assert len(engine.context.tags) == jobs


def fail() -> None:
    msg = "executor lost"
    raise RuntimeError(msg)


def test_a_lost_task_pauses_only_its_own_partitions_even_if_it_had_handled_everything(engine):
    engine.context.after.append(fail)
    engine.start()
    reason = "[OCQ-405] Spark could not finish a task: executor lost"
    lost = engine.seen.reasons(1)
    if "1/3" not in lost:  # which has its own task, but the other task may end first
        lost |= engine.seen.reasons(1)
        assert lost.keys() == {"0/3", "2/3"}
    assert set(lost.values()) == {reason}
    engine.clock.advance(5)
    assert engine.seen.done.wait(SECONDS)
    assert engine.seen.reasons(len(lost)) == dict.fromkeys(lost, "None")  # they recover, and no other partition had to
    assert engine.seen.notices.empty()
    assert sorted(engine.handled) == list(range(1, EVENTS + 1))
    engine.engine.stop(patience=SECONDS)
    assert [position for _, position in engine.states()] == [EVENTS] * PARTITIONS
    assert all(status.failure is None for status in engine.engine.partitions())


@pytest.mark.parametrize("speculation", ["true", "false"])
def test_a_task_fenced_by_another_run_of_itself_continues_whichever_run_ended(engine, speculation):
    def take_over() -> None:
        for partition in layout(PARTITIONS):
            engine.tracker.succeed("g", Cursor(partition, 1, 0, 0))

    engine.context.conf["spark.speculation"] = speculation
    engine.context.before.append(take_over)
    engine.start()
    assert engine.seen.done.wait(SECONDS)
    assert sorted(engine.handled) == list(range(1, EVENTS + 1))
    assert engine.seen.notices.empty()
    assert engine.states() == [("running", EVENTS)] * PARTITIONS


@pytest.mark.parametrize("speculation", ["true", "false"])
def test_events_of_a_task_that_spark_lost_and_repeated_are_handled_one_by_one(engine, speculation):
    marked: list[int] = []
    taken_over = Signal()
    report = engine.tracker.report

    def note(status, epoch) -> None:
        if status.failure is not None and status.failure.in_hand:
            marked.append(status.failure.position)
        report(status, epoch)

    def lose_the_first_two_runs() -> None:
        for partition in layout(PARTITIONS):
            engine.tracker.succeed("g", Cursor(partition, 1, 0, 0))
        taken_over.set()

    engine.tracker.report = note
    engine.context.conf["spark.speculation"] = speculation
    engine.context.before += [lose_the_first_two_runs, lambda: taken_over.wait(SECONDS)]  # there may be two jobs
    engine.start()
    assert engine.seen.done.wait(SECONDS)
    assert bool(marked) is (speculation == "false")  # otherwise the first run is slow, and not lost


@pytest.mark.parametrize("speculation", ["true", "false"])
def test_a_call_that_timed_out_in_another_run_of_its_task_counts_as_an_error_of_its_event(engine, speculation):
    failure = Failure(Origin.HANDLER, permanent=False, error="TimeoutError", message="too slow", position=1)
    line = TaskTimedOutError.of(TimedOut(Partition(PARTITIONS, 0), failure, 0))
    taken_over = Signal()

    def time_out_twice() -> None:
        for partition in layout(PARTITIONS):
            engine.tracker.succeed("g", Cursor(partition, 1, 0, 0))
        taken_over.set()

    engine.context.conf["spark.speculation"] = speculation
    engine.context.errors_of_runs = [
        "executor lost",
        f"x.PythonException: Traceback (most recent call last):\n  File\nx.TaskTimedOutError: {line}\n\tat x",
    ]
    engine.context.before += [time_out_twice, lambda: taken_over.wait(SECONDS)]  # there may be two jobs
    engine.start()
    assert engine.seen.reasons(1) == {"0/3": "TimeoutError: too slow"}
    engine.clock.advance(5)
    assert engine.seen.done.wait(SECONDS)
    assert engine.seen.reasons(1) == {"0/3": "None"}
    assert sorted(engine.handled) == list(range(1, EVENTS + 1))


@pytest.mark.parametrize("speculation", ["true", "false"])
def test_a_task_fenced_by_another_process_stops_here(engine, speculation):
    engine.context.conf["spark.speculation"] = speculation
    taken = Signal()

    def take() -> None:
        engine.tracker.claim("g", layout(PARTITIONS), 0, "another")
        taken.set()

    engine.context.before += [take, lambda: taken.wait(SECONDS)]  # the partitions may be divided between two jobs
    engine.start()
    engine.seen.reasons(PARTITIONS)
    assert [state for state, _ in engine.states()] == ["stopped"] * PARTITIONS
    assert engine.handled == []


def test_a_task_lost_while_its_group_is_repartitioned_gives_up_its_partitions(engine):
    def change_partitions() -> None:
        log = engine.processing
        engine.tracker.repartition("g", layout(6), lambda known: carried_over(known, layout(6), log))
        fail()

    engine.context.before.append(change_partitions)
    engine.start()
    lost, left = set(), set()
    while not lost or not lost <= left:
        notice = engine.seen.notices.get(timeout=SECONDS)
        (lost if "executor lost" in str(notice.failure) else left).add(notice.partition)
        engine.clock.advance(5)
    assert {p.partition for p in engine.engine.partitions() if p.over} >= lost
    engine.engine.check()  # other groups continue


def test_a_long_task_does_not_delay_partitions_of_other_tasks(engine):
    begun, go = Signal(), Signal()

    def take_long() -> None:
        begun.set()
        assert go.wait(SECONDS)

    engine.context.active = 1
    engine.context.before.append(take_long)
    engine.start()
    assert begun.wait(SECONDS)
    others = {Partition(PARTITIONS, n) for n in range(PARTITIONS)} - engine.partitions_of(0)
    engine.seen.wait_for(dict.fromkeys(others, EVENTS))
    engine.add(1)
    engine.seen.wait_for(dict.fromkeys(others, EVENTS + 1))
    assert not engine.partitions_of(0) & engine.seen.positions.keys()
    go.set()
    engine.seen.wait_for({Partition(PARTITIONS, n): EVENTS + 1 for n in range(PARTITIONS)})
    assert engine.seen.notices.empty()


def test_tasks_that_spark_never_starts_are_cancelled_reported_and_submitted_again(engine, caplog):
    begun, go = [Signal(), Signal()], Signal()

    def hang(number: int) -> None:
        begun[number].set()
        assert go.wait(SECONDS)

    engine.context.before += [lambda: hang(0), lambda: hang(1)]
    engine.start()
    assert all(each.wait(SECONDS) for each in begun)
    engine.clock.advance(NOTICED_SECONDS + 1)
    assert engine.context.looked.wait(SECONDS)
    engine.clock.advance(STILL_SECONDS)
    assert all("no task was running on Spark for 60 s" in reason for reason in engine.seen.reasons(3).values())
    assert sorted(engine.context.cancelled) == sorted(engine.context.tags[:2])
    engine.clock.advance(5)
    assert engine.seen.done.wait(SECONDS)
    go.set()  # the abandoned tasks return: their claims are outdated, so they handle nothing
    engine.engine.stop(patience=SECONDS)
    assert sorted(engine.handled) == list(range(1, EVENTS + 1))
    assert [r.getMessage() for r in caplog.records if "while 2 tasks wait" in r.getMessage()] == [
        "no task has run on Spark for 11 s while 2 tasks wait: master spark://nobody:7077 gives it no executor"
    ]


def test_no_task_is_abandoned_while_one_runs_even_for_hours(engine):
    begun, go = Signal(), Signal()

    def take_long() -> None:
        begun.set()
        assert go.wait(SECONDS)

    engine.context.active = 1
    engine.context.before.append(take_long)
    engine.start()
    assert begun.wait(SECONDS)
    for _ in range(3):
        engine.context.looked.clear()
        engine.clock.advance(100 * STILL_SECONDS)
        assert engine.context.looked.wait(SECONDS)
    go.set()
    assert engine.seen.done.wait(SECONDS)
    assert engine.context.cancelled == []
    assert engine.seen.notices.empty()


@pytest.fixture
def lines():
    """Return what the engine logs, as a queue."""
    queue: Queue = Queue()
    handler, logger = QueueHandler(queue), logging.getLogger("opencqrs.processing")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield queue
    logger.removeHandler(handler)
    logger.setLevel(level)


class Sent:
    """Two tasks of the engine that were sent to Spark ten seconds ago, on one partition each, and have not ended."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.go = engine, Signal()
        self.jobs: list[ActiveJob] = []
        begun = [Signal(), Signal()]

        def take_long(number: int) -> None:
            begun[number].set()
            assert self.go.wait(SECONDS)

        def look(_context: object, _now: object) -> list[ActiveJob]:
            engine.context.looked.set()
            return self.jobs

        monkeypatch.setattr(slots, "active_jobs", look)
        engine.context.active = 2
        engine.context.before += [lambda: take_long(0), lambda: take_long(1)]
        engine.engine.assign("g", layout(PARTITIONS)[:2])
        engine.engine.start()
        assert all(each.wait(SECONDS) for each in begun)

    def wait_for_look(self) -> None:
        for _ in range(2):  # the second one begins after the first one has been processed
            self.engine.context.looked.clear()
            self.engine.clock.advance(1)
            assert self.engine.context.looked.wait(SECONDS)


def test_slow_events_occupying_all_slots_while_a_partition_waits_are_reported_at_start_and_end(
    engine, lines, monkeypatch
):
    sent = Sent(engine, monkeypatch)
    engine.engine.assign("g", layout(PARTITIONS)[2:])
    sent.jobs = [ActiveJob("g", 1, HELD_SECONDS)] * 2
    engine.clock.advance(HELD_SECONDS)
    said = lines.get(timeout=SECONDS)
    assert said.levelname == "WARNING"
    assert "all 2 Spark slots are held by long tasks (g 2 for 10 s), while partitions wait (g 1)" in said.getMessage()
    sent.wait_for_look()
    sent.go.set()
    over = lines.get(timeout=SECONDS)
    assert (over.levelname, over.getMessage()) == ("INFO", "long tasks no longer hold all Spark slots")
    assert engine.seen.done.wait(SECONDS)


def test_tasks_that_wait_in_spark_for_a_job_are_reported_as_waiting(engine, lines, monkeypatch):
    sent = Sent(engine, monkeypatch)
    sent.jobs = [ActiveJob("job:nightly", 2, 30), ActiveJob("g", 0, 0), ActiveJob("g", 0, 0)]
    engine.clock.advance(HELD_SECONDS)
    said = lines.get(timeout=SECONDS).getMessage()
    sent.go.set()
    assert "held by long tasks (job:nightly 2 for 30 s), while partitions wait (g 2)" in said


def test_tasks_that_wait_for_executors_to_start_are_not_reported(engine, lines, monkeypatch):
    sent = Sent(engine, monkeypatch)
    sent.jobs = [ActiveJob("g", 0, 0)] * 2
    engine.clock.advance(HELD_SECONDS)
    sent.wait_for_look()
    sent.go.set()
    assert lines.empty()


def test_the_task_load_has_the_running_tasks_and_the_slots(engine):
    begun, go = Signal(), Signal()

    def take_long() -> None:
        begun.set()
        assert go.wait(SECONDS)

    assert engine.engine.task_load() == TaskLoad({"g": 0})
    engine.context.executors = 1
    engine.context.before.append(take_long)
    engine.start()
    assert begun.wait(SECONDS)
    others = {Partition(PARTITIONS, n) for n in range(PARTITIONS)} - engine.partitions_of(0)
    engine.seen.wait_for(dict.fromkeys(others, EVENTS))
    assert engine.engine.task_load() in (
        TaskLoad({"g": 1}, 2, 1),
        TaskLoad({"g": 2}, 2, 1),
    )  # the other task is just ending
    go.set()
    assert engine.seen.done.wait(SECONDS)
    engine.engine.stop(patience=SECONDS)
    assert engine.engine.task_load() == TaskLoad({"g": 0}, 2, 1)


class TestWhileSparkIsStarting:
    def test_the_driver_handles_existing_events_and_spark_later_ones(self, engine, caplog):
        caplog.set_level("INFO", "opencqrs.processing")
        engine.make(handles_while_starting=True)
        engine.start()
        assert engine.seen.done.wait(SECONDS)
        assert engine.context.tags == []
        engine.sessions.finish(SimpleNamespace(sparkContext=engine.context))
        engine.add(PARTITIONS * 20)
        engine.seen.wait_for({Partition(PARTITIONS, n): EVENTS + PARTITIONS * 20 for n in range(PARTITIONS)})
        assert engine.context.tags
        assert sorted(engine.handled) == list(range(1, EVENTS + PARTITIONS * 20 + 1))
        assert f"the driver handled {EVENTS} events itself before Spark took over" in caplog.text
        assert engine.handed_over == 1
        assert engine.engine.task_load().handled_by_driver == EVENTS

    def test_events_that_the_driver_handles_after_spark_is_ready_are_reported_with_the_others(self, engine, lines):
        called, free = Signal(), Signal()
        engine.before_return = lambda: (called.set(), free.wait(SECONDS))
        engine.make(handles_while_starting=True)
        engine.engine.assign("g", layout(PARTITIONS)[:1])
        engine.engine.start()
        assert called.wait(SECONDS)
        engine.sessions.finish(SimpleNamespace(sparkContext=engine.context))
        assert lines.get(timeout=SECONDS).getMessage() == "Spark is ready"
        assert lines.empty()
        free.set()
        handled = lines.get(timeout=SECONDS).getMessage()
        count = engine.engine.task_load().handled_by_driver
        assert count > 0
        assert handled == f"the driver handled {count} events itself before Spark took over"

    def test_a_session_that_exists_already_is_used_at_once(self, engine, lines):
        engine.make(handles_while_starting=True)
        engine.sessions.will_start = ""
        engine.start()
        assert engine.seen.done.wait(SECONDS)
        assert not engine.sessions.begun.is_set()
        assert engine.engine.task_load().handled_by_driver == 0
        assert (engine.handed_over, len(engine.context.tags) > 0) == (1, True)
        assert lines.empty()

    def test_a_call_with_a_timeout_waits_for_spark(self, engine):
        engine.make(handles_while_starting=True, limits=CallLimits(inf, 60))
        engine.start()
        assert engine.sessions.begun.wait(SECONDS)
        assert engine.handled == []
        engine.sessions.finish(SimpleNamespace(sparkContext=engine.context))
        assert engine.seen.done.wait(SECONDS)
        assert sorted(engine.handled) == list(range(1, EVENTS + 1))

    def test_a_call_already_running_on_the_driver_is_not_abandoned_while_spark_is_idle(self, engine):
        called, free = Signal(), Signal()
        engine.before_return = lambda: (called.set(), free.wait(SECONDS))
        engine.make(handles_while_starting=True)
        engine.engine.assign("g", layout(PARTITIONS)[:1])
        engine.engine.start()
        assert called.wait(SECONDS)
        engine.sessions.finish(SimpleNamespace(sparkContext=engine.context))
        for _ in range(3):
            engine.context.counted.clear()
            engine.clock.advance(STILL_SECONDS)
            assert engine.context.counted.wait(SECONDS)
        free.set()
        engine.seen.wait_for({Partition(PARTITIONS, 0): EVENTS})
        assert engine.seen.notices.empty()
        assert len(engine.handled) == len(set(engine.handled))

    @pytest.mark.parametrize("others", ["are under way", "have not begun"])
    def test_a_stop_does_not_wait_for_a_handler_that_hangs_on_the_driver(self, engine, monkeypatch, others):
        """Its transaction holds the write lock of the file and the progress row, so a release would block."""
        called, free = Signal(), Signal()
        engine.before_return = lambda: (called.set(), free.wait(SECONDS))
        engine.make(handles_while_starting=True)
        if others == "have not begun":  # the thread that starts tasks blocks after the first one
            start = engine.engine._start
            monkeypatch.setattr(engine.engine, "_start", lambda task: (start(task), free.wait(SECONDS)))
        engine.start()
        assert called.wait(SECONDS)
        released: list[object] = []
        stopping = Thread(target=lambda: (engine.engine.stop(patience=0), released.append(free.is_set())))
        stopping.start()
        stopping.join(SECONDS / 2)
        free.set()
        stopping.join(SECONDS)
        assert released == [False]
        assert {state for state, _ in engine.states()} & {"starting", "running"}
        with engine.engine._changed:  # a handler that returns only now still needs its database
            assert engine.engine._changed.wait_for(lambda: not engine.engine._running, SECONDS)

    def test_a_session_that_cannot_be_opened_ends_the_engine_and_keeps_the_progress(self, engine):
        engine.make(handles_while_starting=True)
        engine.start()
        assert engine.seen.done.wait(SECONDS)
        engine.sessions.finish(EngineError("OCQ-402", "Spark did not start"))
        with pytest.raises(EngineError, match="OCQ-402"):
            engine.engine.check()
        assert engine.engine.has_ended()
        wait_for_tasks(engine)
        engine.engine.stop(patience=SECONDS)
        assert engine.states() == [("failed", EVENTS)] * PARTITIONS
        assert all("OCQ-402" in partition.status().error for partition in engine.engine.partitions())

    def test_a_partition_being_handled_when_the_session_fails_to_open_ends_as_failed(self, engine):
        """Its task succeeds, and must not clear the failure."""
        begun, free = Signal(), Signal()

        def hold() -> None:
            begun.set()
            assert free.wait(SECONDS)

        engine.make(handles_while_starting=True)
        engine.before_return = hold
        engine.start()
        assert begun.wait(SECONDS)
        engine.sessions.finish(EngineError("OCQ-402", "Spark did not start"))
        free.set()
        wait_for_tasks(engine)
        engine.engine.stop(patience=SECONDS)
        assert {state for state, _ in engine.states()} == {"failed"}

    def test_no_partition_can_be_released_while_it_is_marked_as_failed(self, engine, monkeypatch):
        """Otherwise it would be published as stopped: neither one with a task, nor one without."""
        begun, free = Signal(), Signal()
        taken: dict[Partition, bool] = {}

        def take(partition: Partition) -> None:
            if got := changed.acquire(blocking=False):
                changed.release()
            taken[partition] = got

        def take_lock_and_fail(driver: PartitionDriver, error: BaseException) -> None:
            another = Thread(target=take, args=(driver.partition,))
            another.start()
            another.join()
            fail(driver, error)

        fail = PartitionDriver.fail
        engine.make(handles_while_starting=True)
        engine.before_return = lambda: (begun.set(), free.wait(SECONDS))
        engine.engine.assign("g", layout(PARTITIONS)[:1])
        engine.engine.start()
        assert begun.wait(SECONDS)
        changed = engine.engine._changed
        monkeypatch.setattr(PartitionDriver, "fail", take_lock_and_fail)
        engine.sessions.finish(EngineError("OCQ-402", "Spark did not start"))
        free.set()
        wait_for_tasks(engine)
        engine.engine.stop(SECONDS)
        assert taken == {Partition(PARTITIONS, 0): False}
        assert engine.tracker.statuses()[0].state.value == "failed"


@pytest.mark.parametrize(
    "error", [Py4JNetworkError(), AttributeError("'NoneType' object has no attribute 'statusTracker'")]
)
def test_a_dead_jvm_or_a_stopped_session_ends_the_engine(engine, error):
    def die() -> None:
        engine.sessions.gone = True
        raise error

    def check_until_it_raises() -> None:
        for _ in range(100 * SECONDS):  # the thread of the task reports it asynchronously
            engine.engine.check()
            never.wait(0.01)

    never = Signal()
    engine.context.before.append(die)
    engine.start()
    with pytest.raises(EngineLostError, match="OCQ-403"):
        check_until_it_raises()


def test_a_stop_waits_for_the_coordinator_which_may_be_reading_from_a_database(engine, monkeypatch):
    looking, free, closed = Signal(), Signal(), Signal()
    order: list[bool] = []
    monkeypatch.setattr(engine.engine, "_look_at_inboxes", lambda: (looking.set(), free.wait(SECONDS)))
    monkeypatch.setattr(engine.sessions, "close", lambda _patience: (order.append(free.is_set()), closed.set()))
    engine.start()
    assert looking.wait(SECONDS)
    stopping = Thread(target=engine.engine.stop, args=(SECONDS,))
    stopping.start()
    assert not closed.wait(0.2)
    free.set()
    stopping.join(SECONDS)
    assert order == [True]


@pytest.mark.parametrize("end", ["stop", "release"])
def test_tasks_asked_to_end_before_their_first_chunk_handle_nothing(engine, tmp_path, monkeypatch, end):
    permits, begun, go = [], [Signal(), Signal()], Signal()

    def permit() -> Permit:
        permits.append(Permit.in_folder(str(tmp_path)))
        return permits[-1]

    def hold(number: int) -> None:
        begun[number].set()
        assert go.wait(SECONDS)

    def withdraw(self: Permit) -> None:
        withdrawn(self)
        if not any(each.holds for each in permits):
            go.set()

    withdrawn = Permit.withdraw
    monkeypatch.setattr(Permit, "withdraw", withdraw)
    engine.sessions.permit = permit
    engine.context.before += [lambda: hold(0), lambda: hold(1)]
    engine.start()
    assert all(each.wait(SECONDS) for each in begun)
    assert [each.holds for each in permits] == [True, True]
    if end == "stop":
        engine.engine.stop(patience=SECONDS)
    else:
        engine.engine.release("g", layout(PARTITIONS), patience=SECONDS)
    assert engine.context.cancelled == []
    assert engine.handled == []


@pytest.mark.parametrize("permanent", [False, True], ids=["waiting", "failed"])
def test_a_partition_stopped_before_its_next_attempt_is_not_reported_as_recovered(engine, tmp_path, permanent):
    """Otherwise other processes and the exit code would show it as healthy."""
    begun, go = Signal(), Signal()

    def hold() -> None:
        begun.set()
        assert go.wait(SECONDS)

    def refuse() -> None:
        raise AssemblyError("OCQ-508", "mine", "here") if permanent else exc.TimeoutError("mine")

    engine.sessions.permit = lambda: Permit.in_folder(str(tmp_path))
    engine.before_return = refuse
    engine.start()
    failed = engine.seen.reasons(PARTITIONS)
    engine.context.before += [hold, hold]
    engine.clock.advance(30)
    assert begun.wait(SECONDS)
    engine.engine.begin_stop()
    go.set()
    engine.engine.stop(patience=SECONDS)
    assert engine.seen.notices.empty()
    state = "failed" if permanent else "stopped"
    assert engine.states() == [(state, 0)] * PARTITIONS
    published = engine.tracker.statuses()
    assert {str(one.partition): one.error.partition(" - ")[0] for one in published} == failed
    assert {one.state.value for one in published} == {state}
    assert all(each.failed_at_end() is not None for each in engine.engine.partitions())


def test_a_task_fenced_at_once_by_another_run_of_itself_does_not_change_the_failure(engine):
    def refuse() -> None:
        raise AssemblyError("OCQ-508", "mine", "here")

    def take_over() -> None:
        engine.engine.begin_stop()
        for partition in layout(PARTITIONS):
            engine.tracker.succeed("g", Cursor(partition, 1, 0, 0))

    engine.before_return = refuse
    engine.start()
    engine.seen.reasons(PARTITIONS)
    engine.context.before.append(take_over)
    engine.clock.advance(30)
    engine.engine._thread.join(SECONDS)
    engine.engine.stop(patience=SECONDS)
    assert engine.states() == [("failed", 0)] * PARTITIONS
    assert all(each.failed_at_end() is not None for each in engine.engine.partitions())


@pytest.mark.parametrize("where", ["on Spark", "on the driver"])
def test_a_task_chosen_but_not_started_before_a_stop_handles_nothing(engine, where, tmp_path, monkeypatch):
    def with_a_stop_request(permit):
        engine.engine.begin_stop()
        return permit

    engine.make(handles_while_starting=where == "on the driver")
    engine.sessions.permit = lambda: with_a_stop_request(Permit.in_folder(str(tmp_path)))
    monkeypatch.setattr(spark_engine, "DriverPermit", lambda: with_a_stop_request(DriverPermit()))
    engine.start()
    engine.engine._thread.join(SECONDS)
    engine.engine.stop(patience=SECONDS)
    assert engine.handled == []
    assert engine.context.cancelled == []


@pytest.mark.parametrize(
    ("rate", "partitions", "expected"),
    [
        (None, 4, None),
        (1.0, 1, 16),  # few, so that a task with slow handlers leaves little unhandled
        (1.0, 4, 64),
        (1_000.0, 1, 256),
        (20_000.0, 4, 4_096),
        (100_000.0, 4, None),
    ],
)
def test_the_read_size_of_a_task_follows_the_rate_of_its_handlers(rate, partitions, expected):
    assert read_at_once(rate, partitions) == expected

"""Groups with data frame handlers, run by the coordinator with a fake Spark."""

from __future__ import annotations

from math import inf
from threading import Condition
from threading import Event as Signal
from types import SimpleNamespace

import pytest
from support.spark import Context, Sessions

from opencqrs_py import EventFrames, InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.engines.parts import group_processing
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.spark import engine as engine_module
from opencqrs_py.engines.spark import groups
from opencqrs_py.engines.spark.engine import Meanwhile, SparkEngine
from opencqrs_py.engines.spark.slots import NOTICED_SECONDS, STILL_SECONDS
from opencqrs_py.errors import EngineLostError, UnavailableError
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import Handler, HandlerMark
from opencqrs_py.model.partition import layout
from opencqrs_py.processing.binding import bind
from opencqrs_py.processing.calls import CallLimits
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.frames import EventOfRangeError, FrameDispatcher, OpenedFrames
from opencqrs_py.processing.notices import Observer
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.recovery import ExponentialBackOff
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.testing import FakeClock

SECONDS = 30
EVENTS = 25


class Frames(OpenedFrames):
    handled = 1
    closed = 0

    def close(self) -> None:
        Frames.closed += 1

    def of(self, event_class: type) -> object: ...

    def as_stored(self) -> object: ...


class Maker:
    """A factory of empty data frames that returns every error unchanged."""

    def __init__(self, _spark: object, _recipe: object, _processing: object) -> None: ...

    def frames(self, events, first) -> Frames:
        return Frames(first.position, events.upto)

    def explained(self, error: BaseException) -> BaseException:
        return error


class Seen(Observer):
    def __init__(self) -> None:
        self.position = 0
        self.failures: list[str] = []
        self.changed = Condition()

    def advanced(self, _group, _partition, outcome) -> None:
        with self.changed:
            self.position = outcome.cursor.position
            if outcome.failure is not None:
                self.failures.append(str(outcome.failure))
            self.changed.notify_all()

    def wait_for(self, position: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.position >= position, SECONDS)

    def wait_for_failure(self) -> str:
        with self.changed:
            assert self.changed.wait_for(lambda: self.failures, SECONDS)
            return self.failures[0]


class Engine:
    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.during = lambda: None
        self.context, self.clock, self.seen = Context(), FakeClock(), Seen()
        self.context.defaultParallelism = 2
        self.sessions = Sessions(self.context)
        self.sessions.will_start = "local[2]"
        self.store = InMemoryEventStore()
        self.store.append(Event(0, str(n), "s", "/x", "t", None, "application/json", "{}", None) for n in range(EVENTS))

        def handle(events: EventFrames) -> None:
            self.ranges.append((events.first, events.last))
            self.during()

        bound = bind(Handler(HandlerMark("g", ("t",), in_frames=True), handle, "here"), ContainerInjector())
        processing = group_processing(
            "g",
            self.store,
            InMemoryProgressTracker(),
            FrameDispatcher(bound, EventTypes(), Reading()),
            subject="/",
            recursive=True,
            sequencing=SequencingByEvent(PerSubject()),
            partitions=1,
            batch_size=10,
            limits=CallLimits(inf, inf),
        )
        back_off = ExponentialBackOff()
        run = GroupRun(processing, layout(1), lambda: 0, back_off, OnExhausted.SKIP, recipe=lambda: processing)
        self.engine = SparkEngine([run], "me", self.sessions, self.seen, self.clock, meanwhile=Meanwhile(2))

    def start(self) -> None:
        self.engine.assign("g", layout(1))
        self.engine.start()

    def wait_for_check(self) -> None:
        """Wait until the coordinator has checked its tasks again."""
        for _ in range(2):  # the second check begins after the first one has ended
            self.context.looked.clear()
            assert self.context.looked.wait(SECONDS)

    def open(self) -> None:
        self.sessions.finish(SimpleNamespace(sparkContext=self.context))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_module, "SparkFrames", Maker)
    monkeypatch.setattr(groups, "_IDLE_SECONDS", 0.05)  # it looks in real time, and the clock is a fake
    made = Engine()
    yield made
    made.engine.stop(patience=0)


def test_the_driver_waits_for_spark_and_then_handles_one_range_after_another(engine: Engine) -> None:
    engine.start()
    assert engine.sessions.begun.wait(SECONDS)
    assert engine.ranges == []
    engine.open()
    engine.seen.wait_for(EVENTS)
    assert engine.ranges == [(1, 10), (11, 20), (21, 25)]


@pytest.mark.parametrize("fails", [False, True])
def test_the_frames_of_each_range_are_closed_after_its_handler_returns_or_raises(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    monkeypatch.setattr(Frames, "closed", 0)

    def fail_once() -> None:
        engine.during = lambda: None
        if fails:
            raise ValueError("wrong")

    engine.during = fail_once
    engine.start()
    engine.open()
    engine.seen.wait_for(EVENTS)
    assert Frames.closed == len(engine.ranges)


def test_an_error_in_an_event_of_an_earlier_range_counts_as_an_error_of_the_handler(engine: Engine) -> None:
    def read_an_earlier_range() -> None:
        first, _ = engine.ranges[-1]
        if first > 10:
            raise EventOfRangeError(3, ValueError("isbn: not a text"))

    engine.during = read_an_earlier_range
    engine.start()
    engine.open()
    failure = engine.seen.wait_for_failure()
    assert "isbn: not a text" in failure
    assert engine.ranges == [(1, 10), (11, 20), (11, 15), (11, 12), (11, 11)]


def test_spark_jobs_of_the_handler_have_the_name_of_the_group_and_a_tag(engine: Engine) -> None:
    engine.start()
    engine.open()
    engine.seen.wait_for(EVENTS)
    assert {*engine.context.groups, *engine.context.pools} == {"g"}
    assert engine.context.descriptions[0] == "0/1 after 0"
    assert all(tag.startswith("opencqrs-") for tag in engine.context.tags)


def test_a_dead_jvm_uses_no_attempt_and_ends_the_engine(engine: Engine) -> None:
    def gone() -> None:
        engine.sessions.gone = True
        raise UnavailableError("OCQ-420", "Spark's JVM has gone")

    engine.during = gone
    engine.start()
    engine.open()
    assert "OCQ-420" in engine.seen.wait_for_failure()
    engine.engine.stop(patience=SECONDS)
    with pytest.raises(EngineLostError, match="OCQ-403"):
        engine.engine.check()
    assert engine.ranges == [(1, 10)]  # which was not halved


def test_a_handler_that_works_long_without_a_spark_job_is_not_cancelled(engine: Engine) -> None:
    begun, go = Signal(), Signal()

    def take_long() -> None:
        begun.set()
        assert go.wait(SECONDS)

    engine.during = take_long
    engine.start()
    engine.open()
    assert begun.wait(SECONDS)
    for _ in range(3):
        engine.context.looked.clear()
        engine.clock.advance(NOTICED_SECONDS + STILL_SECONDS)
        assert engine.context.looked.wait(SECONDS)
    go.set()
    engine.seen.wait_for(EVENTS)
    assert engine.context.cancelled == []


def test_a_spark_job_after_long_work_on_the_driver_gets_the_full_time_to_start(engine: Engine) -> None:
    begun, go, submitted, done = Signal(), Signal(), Signal(), Signal()

    def take_long() -> None:
        engine.during = lambda: None
        begun.set()
        assert go.wait(SECONDS)
        engine.context.jobs.append(1)
        submitted.set()
        assert done.wait(SECONDS)
        engine.context.jobs.clear()

    engine.during = take_long
    engine.start()
    engine.open()
    assert begun.wait(SECONDS)
    engine.wait_for_check()
    engine.clock.advance(2 * STILL_SECONDS)
    go.set()
    assert submitted.wait(SECONDS)
    engine.wait_for_check()  # no task of the job runs yet
    engine.clock.advance(STILL_SECONDS / 2)
    engine.wait_for_check()
    assert engine.context.cancelled == engine.seen.failures == []
    done.set()
    engine.seen.wait_for(EVENTS)


def test_a_spark_job_that_never_starts_is_cancelled_and_uses_no_attempt(engine: Engine) -> None:
    begun, go = Signal(), Signal()

    def wait_for_an_executor() -> None:
        engine.during = lambda: None
        engine.context.jobs.append(1)
        begun.set()
        assert go.wait(SECONDS)
        raise UnavailableError("OCQ-420", "a Spark job was cancelled")

    def cancel() -> None:
        engine.context.jobs.clear()
        go.set()

    engine.during, engine.context.on_cancel = wait_for_an_executor, cancel
    engine.start()
    engine.open()
    assert begun.wait(SECONDS)
    engine.wait_for_check()
    engine.clock.advance(STILL_SECONDS + 1)
    assert "no task was running on Spark" in engine.seen.wait_for_failure()
    engine.clock.advance(5)
    engine.seen.wait_for(EVENTS)
    assert engine.ranges == [(1, 10), (1, 10), (11, 20), (21, 25)]


def test_a_stop_cancels_the_spark_jobs_of_a_handler_that_does_not_return(engine: Engine) -> None:
    begun, go = Signal(), Signal()

    def take_long() -> None:
        begun.set()
        assert go.wait(SECONDS)
        raise UnavailableError("OCQ-420", "a Spark job was cancelled")

    engine.during = take_long
    engine.context.on_cancel = go.set
    engine.start()
    engine.open()
    assert begun.wait(SECONDS)
    engine.engine.stop(patience=0)
    assert engine.context.cancelled == engine.context.tags[:1]
    assert [each.status().position for each in engine.engine.partitions()] == [0]

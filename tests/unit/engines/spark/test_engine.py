"""The engine's coordinator, with a Spark that is not there: its jobs run in this process."""

from __future__ import annotations

from queue import Queue
from threading import Event as Signal

import pytest
from py4j.protocol import Py4JNetworkError
from support.spark import Context, Sessions

from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.spark.engine import STILL_SECONDS, SparkEngine
from opencqrs_py.engines.spark.tasks import Permit
from opencqrs_py.errors import EngineLostError
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import Handler, HandlerMark
from opencqrs_py.model.partition import layout
from opencqrs_py.processing.binding import bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.processor import GroupProcessing
from opencqrs_py.processing.recovery import ExponentialBackOff, OnExhausted
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.processing.supervision import Observer
from opencqrs_py.testing import FakeClock

EVENTS = 60
PARTITIONS = 3
SECONDS = 30  # to wait at most; nothing here takes long


class Seen(Observer):
    """Notes what happens; ``done`` is set when the last partition is at the head."""

    def __init__(self) -> None:
        self.notices: Queue = Queue()
        self.positions: dict[object, int] = {}
        self.done = Signal()

    def noticed(self, notice) -> None:
        self.notices.put(notice)

    def reasons(self) -> list[str]:
        """Wait until each partition has a notice; return its error."""
        return [str(self.notices.get(timeout=SECONDS).failure) for _ in range(PARTITIONS)]

    def advanced(self, _group, partition, outcome) -> None:
        if outcome.failure is None:
            self.positions[partition] = outcome.cursor.position
        if sorted(self.positions.values()) == [EVENTS] * PARTITIONS:
            self.done.set()


class Engine:
    """An engine with one group, and all that is around it."""

    def __init__(self, folder) -> None:
        self.handled: list[int] = []
        self.database = Database(f"sqlite:///{folder}/all.db")
        store = SqlEventStore(self.database)
        store.append(
            Event(0, str(n), "s", f"/x/{n % 20}", "t", None, "application/json", "{}", None) for n in range(EVENTS)
        )

        def handle(event: Event) -> None:
            self.handled.append(event.position)

        dispatcher = Dispatcher([bind(Handler(HandlerMark("g", ("t",)), handle, "here"), ContainerInjector())], ())
        self.tracker = SqlProgressTracker(self.database)
        processing = GroupProcessing(
            "g",
            store,
            self.tracker,
            dispatcher,
            subject="/",
            recursive=True,
            sequencing=SequencingByEvent(PerSubject()),
            partitions=PARTITIONS,
            batch_size=10,
        )
        run = GroupRun(
            processing,
            layout(PARTITIONS),
            lambda: 0,
            ExponentialBackOff(),
            OnExhausted.SKIP,
            recipe=lambda: processing,
        )
        self.context = Context()
        self.sessions = Sessions(self.context)
        self.clock = FakeClock()
        self.seen = Seen()
        self.engine = SparkEngine([run], "me", self.sessions, self.seen, self.clock)

    def start(self) -> None:
        self.engine.assign("g", layout(PARTITIONS))
        self.engine.start()

    def states(self) -> list[tuple[str, int]]:
        return [(p.status().state.value, p.status().position) for p in self.engine.partitions()]


@pytest.fixture
def engine(tmp_path):
    made = Engine(tmp_path)
    yield made
    made.engine.stop(patience=0)
    made.database.close()


def test_each_round_is_a_job_in_the_group_of_the_groups_name(engine):
    engine.start()
    assert engine.seen.done.wait(SECONDS)
    assert sorted(engine.handled) == list(range(1, EVENTS + 1))
    assert set(engine.context.groups) == {"g"}
    assert len(set(engine.context.tags)) == len(engine.context.tags)
    assert engine.context.cancelled == []


def fail() -> None:
    msg = "executor lost"
    raise RuntimeError(msg)


def test_partitions_whose_tasks_had_handled_everything_when_their_round_was_lost_recover(engine):
    engine.context.after.append(fail)
    engine.start()
    assert engine.seen.reasons() == ["[OCQ-405] Spark could not finish a round: executor lost"] * PARTITIONS
    engine.clock.advance(5)
    assert engine.seen.done.wait(SECONDS)
    assert sorted(engine.handled) == list(range(1, EVENTS + 1))
    engine.engine.stop(patience=SECONDS)
    assert [position for _, position in engine.states()] == [EVENTS] * PARTITIONS
    assert all(status.failure is None for status in engine.engine.partitions())


def test_a_round_for_which_no_task_starts_is_cancelled_reported_and_given_again(engine):
    begun, go = Signal(), Signal()

    def hang() -> None:
        begun.set()
        assert go.wait(SECONDS)

    engine.context.before.append(hang)
    engine.start()
    assert begun.wait(SECONDS)
    engine.clock.advance(STILL_SECONDS + 1)
    assert all("no task was running on Spark for 60 s" in reason for reason in engine.seen.reasons())
    assert engine.context.cancelled == engine.context.tags[:1]
    engine.clock.advance(5)
    assert engine.seen.done.wait(SECONDS)
    go.set()  # the abandoned round comes back: its claims are old, so it handles nothing
    engine.engine.stop(patience=SECONDS)
    assert sorted(engine.handled) == list(range(1, EVENTS + 1))


def test_a_round_of_which_a_task_runs_is_left_alone_for_hours(engine):
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


def test_a_jvm_that_has_gone_ends_the_engine(engine):
    def die() -> None:
        engine.sessions.gone = True
        raise Py4JNetworkError

    ended = Signal()
    engine.context.before.append(lambda: (ended.set(), die()))
    engine.start()
    assert ended.wait(SECONDS)
    engine.engine.stop(patience=SECONDS)  # which waits until the round is over
    with pytest.raises(EngineLostError, match="OCQ-403"):
        engine.engine.check()


@pytest.mark.parametrize("end", ["stop", "release"])
def test_tasks_are_asked_to_end_after_the_chunk_in_hand(engine, tmp_path, end):
    permit = Permit.in_folder(str(tmp_path))
    engine.sessions.permit = lambda: permit
    begun, go = Signal(), Signal()

    def hold() -> None:
        assert permit.holds
        begun.set()
        assert go.wait(SECONDS)

    engine.context.before.append(hold)
    engine.start()
    assert begun.wait(SECONDS)
    withdraw = Permit.withdraw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Permit, "withdraw", lambda self: (withdraw(self), go.set()))
        if end == "stop":
            engine.engine.stop(patience=SECONDS)
        else:
            engine.engine.release("g", layout(PARTITIONS), patience=SECONDS)
    assert not permit.holds
    assert engine.context.cancelled == []
    assert 0 < len(engine.handled) < EVENTS

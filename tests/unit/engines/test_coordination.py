"""How nodes divide the partitions of their groups, take them over and release them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from queue import Empty, SimpleQueue
from threading import RLock, Semaphore
from threading import enumerate as threads
from unittest.mock import Mock

import pytest

from opencqrs_py.adapters.memory import InMemoryControlStore
from opencqrs_py.control.ports import ControlStore
from opencqrs_py.control.records import GroupPartition, Node, ProcessIdentity, Runnable, TaskLoad, Wanted
from opencqrs_py.engines.coordination import Coordinator, LeaseTiming
from opencqrs_py.engines.leading import LostPartitions
from opencqrs_py.errors import DatabaseFileError
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.processing.notices import Notice
from opencqrs_py.processing.ports import Clock
from opencqrs_py.processing.recovery import Action
from opencqrs_py.testing import FakeClock

BOOKS = [GroupPartition("books", partition) for partition in layout(4)]
LENT = [GroupPartition("lent", partition) for partition in layout(1)]


class Engine:
    """An engine that records its assignments, and does not release stuck partitions."""

    def __init__(self) -> None:
        self.has: set[GroupPartition] = set()
        self.stuck: set[GroupPartition] = set()
        self.error: BaseException | None = None
        self.calls: list[tuple[str, str, list[int], float]] = []

    def assign(self, group: str, partitions: Sequence[Partition]) -> None:
        self.calls.append(("assign", group, [each.residue for each in partitions], 0))
        self.has |= {GroupPartition(group, each) for each in partitions}

    def release(self, group: str, partitions: Sequence[Partition], patience: float) -> None:
        self.calls.append(("release", group, [each.residue for each in partitions], patience))
        self.has -= {GroupPartition(group, each) for each in partitions} - self.stuck

    def assigned(self) -> set[GroupPartition]:
        return set(self.has)

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class FragileEngine(Engine):
    """An engine that an error ends."""

    def has_ended(self) -> bool:
        return self.error is not None


class OutageError(Exception):
    """The store does not answer."""


class Store(InMemoryControlStore):
    """A store that can be unavailable, or lose its file."""

    error: Exception | None = None
    known: datetime | None = None  # the time by its clock
    answer: Callable[[], object] = staticmethod(lambda: None)  # what happens meanwhile
    closed = 0
    recorded = 0

    def beat_as(self, node, seconds):
        self.recorded += 1
        return super().beat_as(node, seconds)

    def beat(self, node, seconds):
        if self.error is not None:
            raise self.error
        self.answer()
        view = super().beat(node, seconds)
        return None if view is None else replace(view, now=self.known)

    def is_outage(self, error):
        return isinstance(error, OutageError)

    def close(self):
        self.closed += 1


class BrokenClock(FakeClock):
    """A clock of a project, which fails."""

    def now(self) -> datetime:
        raise OSError("no line")


class ZonelessClock(FakeClock):
    """A clock of a project whose times have no zone."""

    def now(self) -> datetime:
        return datetime.now()  # noqa: DTZ005 which a project may do


class ShiftedClock(FakeClock):
    """The clock of the database: it follows another clock, and can be set."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self._shift = 0.0

    def monotonic(self) -> float:
        return self._clock.monotonic() + self._shift

    def advance(self, seconds: float) -> None:
        self._shift += seconds


class World:
    """Nodes a, b, … that share one store and one clock."""

    def __init__(self, clock: FakeClock | None = None, timing: LeaseTiming | None = None) -> None:
        self.clock = clock or FakeClock()
        self.timing = timing or LeaseTiming(10, 3)
        self.lease_clock = ShiftedClock(self.clock)
        self.store = Store(self.lease_clock)
        self.ended: set[int] = set()
        self.engines: dict[str, Engine] = {}
        self.ids = count()

    def node(
        self,
        name: str,
        *,
        most: int | None = None,
        engine: Engine | None = None,
        clock: Clock | None = None,
        **groups: Runnable,
    ) -> Coordinator:
        groups = groups or {"books": Runnable(4)}
        process = ProcessIdentity("boot", "pids", ord(name), "1")
        engine = self.engines[name] = engine or Engine()
        return Coordinator(
            self.store,
            Node(f"{name}-0", name, process, groups, most),
            dict.fromkeys(groups, engine),
            self.timing,
            self.clock.monotonic,
            lambda process: process.pid in self.ended,
            lambda: f"{name}-{next(self.ids) + 1}",
            clock=clock,
        )

    def loads(self) -> list[TaskLoad | None]:
        return [record.node.load for record in self.store.view().nodes]

    def has(self, name: str) -> list[int]:
        return sorted(key.partition.residue for key in self.engines[name].has)


@pytest.fixture
def world() -> World:
    return World()


def heartbeat(*nodes: Coordinator) -> None:
    for node in nodes:
        node.beat()
        node.reconcile()


SLOW, FAST = timedelta(seconds=-3600), timedelta(seconds=20)


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (timedelta(), []),
        (timedelta(seconds=10), []),
        (timedelta(seconds=-10), []),
        (FAST, ["20 s ahead of"]),
        (SLOW, ["1 h 0 min behind"]),
    ],
)
def test_a_node_whose_clock_differs_from_the_database_s_warns_once(world, caplog, ahead, said):
    clock = FakeClock()
    world.store.known = clock.now() - ahead
    node = world.node("a", clock=clock)
    node.join()
    heartbeat(node, node)
    depends = "due times, schedule.expires-after and schedule.error-grace-period of events in the inbox go by the clock"
    assert [each.partition(" that of the database: ")[0] for each in warnings(caplog)] == [
        f"the clock of node a is {each}" for each in said
    ]
    assert all(depends in each and each.endswith("; synchronize the clocks") for each in warnings(caplog))


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        pytest.param(
            (15, 9, 15, 24, 60, 55, 0, 5, 30), ["15 s ahead of", "1 min 0 s ahead of", "30 s ahead of"], id="set"
        ),
        pytest.param((60, 30, 60, 120, 121), ["1 min 0 s ahead of", "2 min 1 s ahead of"], id="doubled"),
        pytest.param((60, -11, 60), ["1 min 0 s ahead of", "11 s behind", "1 min 0 s ahead of"], id="other direction"),
        pytest.param(
            range(0, -400, -3),
            [f"{each} behind" for each in ("12 s", "27 s", "57 s", "1 min 57 s", "3 min 57 s")],
            id="a clock that has stopped",
        ),
    ],
)
def test_a_node_warns_of_its_clock_again_when_the_difference_has_changed_enough(world, caplog, differences, said):
    clock = FakeClock()
    node = world.node("a", clock=clock)
    node.join()
    for seconds in differences:
        world.store.known = clock.now() - timedelta(seconds=seconds)
        node.beat()
    texts = [each.removeprefix("the clock of node a is ").partition(" that of")[0] for each in warnings(caplog)]
    assert texts == said


@pytest.mark.parametrize("clock", [None, BrokenClock(), ZonelessClock()], ids=["none", "broken", "without a zone"])
def test_a_clock_that_cannot_be_compared_does_not_end_the_heartbeats(world, caplog, clock):
    node = world.node("a", clock=clock)
    world.store.known = datetime.now().astimezone()
    node.join()
    assert node.beat()
    assert warnings(caplog) == []


def test_a_slow_answer_is_no_difference_of_clocks(world, caplog):
    clock = FakeClock()
    world.store.known, world.store.answer = clock.now() + timedelta(seconds=20), lambda: clock.advance(40)
    world.node("a", clock=clock).join()
    assert warnings(caplog) == []


def test_a_slow_answer_is_no_change_of_a_difference(world, caplog):
    clock = FakeClock()
    node = world.node("a", clock=clock)
    node.join()
    for took in (0, 12, 0):
        world.store.known = clock.now() + timedelta(seconds=took - 15)
        world.store.answer = lambda took=took: clock.advance(took)
        node.beat()
    assert len(warnings(caplog)) == 1


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_a_heartbeat_enables_loggers_that_the_program_has_disabled(world, monkeypatch):
    node, logger = world.node("a"), logging.getLogger("opencqrs.control")
    node.join()
    monkeypatch.setattr(logger, "disabled", True)
    node.beat()
    assert not logger.disabled


def test_the_only_node_is_assigned_everything_when_it_joins(world):
    world.node("a").join()
    assert world.has("a") == [0, 1, 2, 3]
    assert world.engines["a"].calls == [("assign", "books", [0, 1, 2, 3], 0)]


class BusyEngine(Engine):
    """An engine that reports a load."""

    in_hand = TaskLoad({"books": 0}, 4, 2)

    def task_load(self) -> TaskLoad:
        return self.in_hand


def test_other_nodes_see_the_load_of_a_node_at_its_next_heartbeat(world):
    engine = BusyEngine()
    a = world.node("a", engine=engine)
    a.join()
    assert world.loads() == [TaskLoad({"books": 0}, 4, 2)]
    engine.in_hand = TaskLoad({"books": 3}, 4, 1, 60)
    assert world.loads() == [TaskLoad({"books": 0}, 4, 2)]
    heartbeat(a)
    assert world.loads() == [engine.in_hand]


def test_a_heartbeat_records_the_load_of_a_node_only_when_it_has_changed(world):
    a = world.node("a", engine=BusyEngine())
    a.join()
    world.store.recorded = 0
    heartbeat(a)
    assert world.store.recorded == 0


def test_a_node_that_rejoins_after_its_leases_ended_records_its_load(world):
    a = world.node("a", engine=BusyEngine())
    a.join()
    world.clock.advance(11)
    assert not a.beat()
    assert world.loads() == [BusyEngine.in_hand]


def test_a_store_that_records_nodes_only_at_join_extends_the_leases_of_a_busy_node(world):
    class Plain(Store):
        beat_as = ControlStore.beat_as

    world.store = Plain(world.lease_clock)
    a = world.node("a", engine=BusyEngine())
    a.join()
    world.clock.advance(9)
    assert a.beat()
    world.clock.advance(9)
    assert a.beat()
    assert world.loads() == [None]


def test_a_second_node_gets_its_partitions_once_the_first_has_released_them(world):
    a, b = world.node("a"), world.node("b")
    a.join()
    b.join()
    assert world.has("b") == []
    heartbeat(b)
    assert world.has("b") == []  # partitions that the other node still runs are not taken from it
    heartbeat(a)
    assert world.has("a") == [0, 1]
    assert world.engines["a"].calls[-1] == ("release", "books", [2, 3], 3.0)
    heartbeat(b)
    assert (world.has("a"), world.has("b")) == ([0, 1], [2, 3])
    calls = len(world.engines["a"].calls)
    heartbeat(a, b, a, b)
    assert len(world.engines["a"].calls) == calls


def test_the_lease_of_a_partition_is_kept_until_the_partition_is_released(world):
    a, b = world.node("a"), world.node("b")
    a.join()
    world.engines["a"].stuck = {BOOKS[2]}
    b.join()
    heartbeat(a, b)
    assert (world.has("a"), world.has("b")) == ([0, 1, 2], [3])
    world.engines["a"].stuck = set()
    heartbeat(a, b)
    assert (world.has("a"), world.has("b")) == ([0, 1], [2, 3])


def test_the_partitions_of_a_node_that_leaves_go_to_the_others(world):
    a, b = world.node("a"), world.node("b")
    a.join()
    b.join()
    heartbeat(a, b)
    a.end()
    world.engines["a"].has.clear()
    a.leave()
    heartbeat(b)
    assert world.has("b") == [0, 1, 2, 3]
    assert world.store.closed == 1


def test_a_silent_node_loses_its_partitions_after_the_lease_duration(world):
    a, b = world.node("a"), world.node("b")
    a.join()
    b.join()
    heartbeat(a, b)
    for _ in range(3):
        world.clock.advance(3)
        heartbeat(b)
        assert world.has("b") == [2, 3]
    world.clock.advance(3)
    heartbeat(b)
    assert world.has("b") == [0, 1, 2, 3]


def test_a_silent_node_loses_its_partitions_even_if_the_lease_clock_was_set_back(world):
    a, b = world.node("a"), world.node("b")
    a.join()
    b.join()
    heartbeat(a, b)
    world.lease_clock.advance(-3_600)
    for _ in range(3):
        world.clock.advance(3)
        heartbeat(b)
        assert world.has("b") == [2, 3]
    world.clock.advance(3)
    heartbeat(b)
    assert world.has("b") == [0, 1, 2, 3]
    assert not a.beat()


def test_a_live_node_keeps_its_partitions_when_the_lease_clock_is_set(world):
    a, b = world.node("a"), world.node("b")
    a.join()
    b.join()
    heartbeat(a, b)
    for seconds in (-3_600, -0.7, 0.0, -90):
        world.lease_clock.advance(seconds)
        for _ in range(6):
            heartbeat(a, b)
            world.clock.advance(3)
    assert (world.has("a"), world.has("b")) == ([0, 1], [2, 3])


@pytest.mark.parametrize(("duration", "heartbeat_seconds"), [(1, 0.1), (1, 0.3), (1, 0.5), (2, 1), (10, 3), (10, 5)])
def test_a_node_with_timely_heartbeats_keeps_its_partitions_however_short_its_leases(duration, heartbeat_seconds):
    world = World(timing=LeaseTiming(duration, heartbeat_seconds))
    a, b = world.node("a"), world.node("b")
    a.join()
    b.join()
    heartbeat(a, b)
    next_beat = next_look = world.clock.monotonic()
    ends = next_beat + 10 * duration
    while (now := min(next_beat, next_look)) < ends:
        world.clock.advance(now - world.clock.monotonic())
        if now == next_look:
            heartbeat(b)
            next_look = now + b._pause()
        if now == next_beat:
            assert a.beat()
            a.reconcile()
            next_beat = now + heartbeat_seconds
        assert (world.has("a"), world.has("b")) == ([0, 1], [2, 3])


def test_an_ended_process_of_this_machine_loses_its_partitions_at_once(world):
    a, b = world.node("a"), world.node("b")
    a.join()
    b.join()
    heartbeat(a, b)
    world.ended.add(ord("a"))
    heartbeat(b)
    assert world.has("b") == [0, 1, 2, 3]
    assert not a.beat()


def test_a_node_whose_leases_have_ended_releases_everything_without_patience(world):
    a = world.node("a")
    a.join()
    world.clock.advance(11)
    assert not a.beat()
    a.reconcile()
    assert world.has("a") == []
    assert world.engines["a"].calls[-1] == ("release", "books", [0, 1, 2, 3], 0.0)


def test_a_node_releases_its_partitions_when_an_outage_outlasts_its_leases(world):
    a = world.node("a")
    a.join()
    world.store.error = OutageError()
    world.clock.advance(9.9)
    a.reconcile()
    assert world.has("a") == [0, 1, 2, 3]
    world.clock.advance(0.2)
    a.reconcile()
    assert world.has("a") == []
    assert a.view is None


def test_the_lease_duration_starts_before_the_heartbeat_is_sent(world):
    a = world.node("a")
    a.join()
    beat = world.store.beat

    def slow(node, seconds):
        view = beat(node, seconds)
        world.clock.advance(4)
        return view

    world.store.beat = slow
    a.beat()
    world.clock.advance(5.9)
    assert a.view is not None
    world.clock.advance(0.2)
    assert a.view is None


def test_a_group_is_released_on_stop_and_assigned_again_on_start(world):
    a = world.node("a", books=Runnable(4), lent=Runnable(1))
    a.join()
    world.store.want("books", Wanted.STOPPED)
    heartbeat(a)
    assert world.engines["a"].has == set(LENT)
    world.store.want("books", Wanted.STARTED)
    heartbeat(a)
    assert world.engines["a"].has == {*BOOKS, *LENT}


def test_a_group_without_auto_start_waits_until_it_is_started(world):
    a = world.node("a", books=Runnable(4, starts=False))
    a.join()
    assert world.has("a") == []
    world.store.want("books", Wanted.STARTED, BOOKS[1:2])
    heartbeat(a)
    assert world.has("a") == [1]


def test_a_partition_lost_to_a_process_without_leases_is_claimed_again_after_growing_waits(world, caplog):
    a = world.node("a")
    a.join()
    claims = []
    for second in range(40):
        world.engines["a"].has.discard(BOOKS[1])  # fenced out
        before = len(world.engines["a"].calls)
        heartbeat(a)
        if len(world.engines["a"].calls) > before:
            claims.append(second)
        world.clock.advance(1)
    assert claims == [0, 3, 9, 21]
    assert "[books 1/4] is claimed again: it was taken over without its lease" in caplog.text


def test_a_claim_that_failed_in_an_outage_is_not_reported_as_lost(world, caplog, monkeypatch):
    a = world.node("a")
    engine, errors = world.engines["a"], [OutageError()]
    assign = engine.assign

    def unavailable_at_first(group, partitions):
        if errors:
            raise errors.pop()
        assign(group, partitions)

    monkeypatch.setattr(engine, "assign", unavailable_at_first)
    with pytest.raises(OutageError):
        a.join()
    heartbeat(a)
    assert world.has("a") == [0, 1, 2, 3]
    assert caplog.records == []


def test_an_exclusive_group_is_taken_as_a_whole_or_not_at_all(world):
    alone = {"books": Runnable(4, exclusive=True)}
    a, b = world.node("a", **alone), world.node("b", **alone)
    a.join()
    assert world.has("a") == [0, 1, 2, 3]
    b.join()
    heartbeat(a, b)
    assert (world.has("a"), world.has("b")) == ([0, 1, 2, 3], [])
    world.ended.add(ord("a"))
    heartbeat(b)
    assert world.has("b") == [0, 1, 2, 3]


def test_an_exclusive_group_is_not_taken_while_others_have_a_part_of_it(world):
    a, b = world.node("a"), world.node("b", books=Runnable(4, exclusive=True))
    a.join()
    b.join()
    heartbeat(b)
    assert world.has("b") == []


def test_a_change_of_the_assigned_partitions_is_logged_once(world, caplog):
    caplog.set_level(logging.INFO, "opencqrs.control")
    a = world.node("a")
    b = world.node("b", books=Runnable(4), lent=Runnable(1))
    a.join()
    assert caplog.text == ""  # alone: nothing to log
    b.join()
    heartbeat(a, b, a, b)
    world.ended.add(ord("b"))
    heartbeat(a, a)
    assert [record.getMessage() for record in caplog.records] == [
        "node b has partitions: books 0 of 4, lent 1 of 1; others are with a",
        "node b has partitions: books 2 of 4, lent 1 of 1; others are with a",
        "node a has partitions: books 2 of 4; others are with b",
        "node a has partitions: books 4 of 4",
    ]


def test_a_node_without_partitions_logs_which_node_has_them(world, caplog):
    caplog.set_level(logging.INFO, "opencqrs.control")
    for name in "ab":
        world.node(name, lent=Runnable(1)).join()
    assert [record.getMessage() for record in caplog.records] == ["node b stands by: all partitions are with a"]


def pass_lease_duration(world: World, *nodes: Coordinator) -> None:
    for _ in range(5):
        world.clock.advance(3)
        heartbeat(*nodes)


WAITS = "no node has room for {}, whose events wait: on node a {}; increase the limit, or start another process"


@pytest.mark.parametrize(
    ("most", "runnable", "expected"),
    [
        (
            None,
            Runnable(4, most=1),
            ["books 1/4, books 2/4, books 3/4", "life-cycle.max-partitions-per-node is 1 for books"],
        ),
        (2, Runnable(4), ["books 2/4, books 3/4", "node.max-partitions is 2"]),
        (4, Runnable(4, most=4), None),
    ],
    ids=["of a group", "of a node", "enough"],
)
def test_partitions_left_over_by_the_limits_of_all_nodes_cause_one_warning(world, caplog, most, runnable, expected):
    a = world.node("a", most=most, books=runnable)
    a.join()
    heartbeat(a)
    assert caplog.text == ""  # other nodes may be about to start
    for _ in range(3):
        pass_lease_duration(world, a)
    assert [record.getMessage() for record in caplog.records] == ([WAITS.format(*expected)] if expected else [])


def test_a_change_of_the_partitions_left_over_by_the_limits_causes_another_warning(world, caplog):
    limit = "life-cycle.max-partitions-per-node is 1 for books"
    a, *others = (world.node(name, books=Runnable(4, most=1)) for name in "abcd")
    a.join()
    pass_lease_duration(world, a)
    for node in others:
        node.join()
    pass_lease_duration(world, a, *others)
    world.ended.add(ord("d"))
    pass_lease_duration(world, a, *others[:2])
    assert [record.getMessage() for record in caplog.records if "node a" in record.getMessage()] == [
        WAITS.format("books 1/4, books 2/4, books 3/4", limit),
        WAITS.format("books 3/4", limit),
    ]


def test_partitions_without_a_node_during_a_rolling_restart_cause_no_warning(world, caplog):
    a, b, c = (world.node(name, books=Runnable(4, most=2)) for name in "abc")
    for node in (a, b):
        node.join()
    pass_lease_duration(world, a, b)
    world.ended.add(ord("a"))
    for _ in range(3):  # until the next one has started
        world.clock.advance(3)
        heartbeat(b)
    c.join()
    pass_lease_duration(world, b, c)
    assert caplog.text == ""


# On its threads


def wait_until(coordinator: Coordinator, condition) -> None:
    """Wait for what the threads do, which they do not always announce."""
    until = time.monotonic() + 30
    with coordinator._changed:
        while not condition():
            assert time.monotonic() < until
            coordinator._changed.wait(0.02)


class RunningClock(FakeClock):
    """A clock that runs, and can also be advanced."""

    def monotonic(self) -> float:
        return super().monotonic() + time.monotonic()


@pytest.fixture
def running() -> World:
    return World(RunningClock(), LeaseTiming(10, 0.5))  # a short heartbeat, since threads wait for it


def pass_time(world: World, coordinator: Coordinator, seconds: float) -> None:
    world.clock.advance(seconds)
    with coordinator._changed:
        coordinator._changed.notify_all()


def test_on_its_threads_a_node_joins_again_after_its_leases_have_ended(running):
    a = running.node("a")
    a.join()
    a.start()
    pass_time(running, a, 11)
    wait_until(a, lambda: a.node.id != "a-0" and running.has("a") == [0, 1, 2, 3])
    a.end()
    a.check()
    assert [(record.node.id, record.alive) for record in running.store.view().nodes] == [(a.node.id, True)]


@pytest.mark.parametrize("step", ["leave", "join"])
def test_a_node_that_rejoins_is_recorded_once_even_after_an_outage(world, monkeypatch, step):
    a, b = world.node("a"), world.node("b")
    a.join()
    world.clock.advance(11)
    b.join()
    assert not a.beat()
    with monkeypatch.context() as outage, a._through_outages():
        outage.setattr(world.store, step, Mock(side_effect=OutageError()))
        a._join_again()
    assert not a.beat()
    a._join_again()
    assert {record.node.id: record.alive for record in world.store.view().nodes} == {b.node.id: True, a.node.id: True}
    assert {lease.node for lease in world.store.view().leases} == {b.node.id}


def test_on_its_threads_a_node_continues_after_an_outage_of_the_store(running, caplog):
    a = running.node("a")
    a.join()
    running.store.error = OutageError("no answer")
    a.start()
    pass_time(running, a, 4)
    wait_until(a, lambda: a._away)
    running.store.error = None
    pass_time(running, a, 4)
    wait_until(a, lambda: not a._away and running.has("a") == [0, 1, 2, 3])
    a.end()
    a.check()
    assert caplog.text.count("node a cannot reach its leases: OutageError: no answer") == 1


def test_the_store_is_reopened_when_its_file_was_replaced(running):
    a = running.node("a")
    a.join()
    running.store.error = DatabaseFileError("OCQ-326", "gone", "control.db", "…")
    with a._through_outages():
        a.beat()
    assert running.store.closed == 1


class SentNotices:
    """Change notices sent by tests."""

    def __init__(self) -> None:
        self.news: SimpleQueue[bool] = SimpleQueue()
        self.waited_for: set[str] = set()

    def wait(self, seconds: float) -> bool:
        try:
            return self.news.get(timeout=seconds)
        except Empty:
            return False

    def awaited(self) -> frozenset[str]:
        heard, self.waited_for = frozenset(self.waited_for), set()
        return heard

    def wake(self) -> None:
        self.news.put(item=False)


class PatientNotices(SentNotices):
    """Notices whose wait ends only by a notice or a wake."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = Semaphore(0)

    def wait(self, seconds: float) -> bool:
        self.waiting.release()
        return super().wait(600)


def test_the_end_of_a_node_does_not_wait_for_its_change_notices(world, monkeypatch):
    a, patient = world.node("a"), PatientNotices()
    monkeypatch.setattr(world.store, "notices", lambda: nullcontext(patient))
    monkeypatch.setattr("opencqrs_py.engines.coordination.END_PATIENCE", 60.0)
    a.join()
    a.start()
    assert patient.waiting.acquire(timeout=60)
    a.end()
    assert not any(thread.is_alive() for thread in a._threads)
    a.leave()


def started_between_heartbeats(world: World, node: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Semaphore:
    """Start a node whose clock is stopped, so no heartbeat is due; return a semaphore that counts heartbeats."""
    beats, beat = Semaphore(0), world.store.beat

    def counted(node, seconds):
        beats.release()
        return beat(node, seconds)

    node.join()
    heartbeat(node)
    monkeypatch.setattr(world.store, "beat", counted)
    node.start()
    return beats


def test_a_change_notice_triggers_a_check_before_the_next_heartbeat(world, monkeypatch):
    a, notices = world.node("a"), SentNotices()
    monkeypatch.setattr(world.store, "notices", lambda: nullcontext(notices))
    beats = started_between_heartbeats(world, a, monkeypatch)
    notices.news.put(item=True)
    assert beats.acquire(timeout=60)
    a.end()
    a.leave()


def test_the_loss_of_a_partition_triggers_a_check_before_the_next_heartbeat(world, monkeypatch):
    a, lost = world.node("a"), LostPartitions()
    beats = started_between_heartbeats(world, a, monkeypatch)
    lost.then = a.hasten
    lost.noticed(Notice("books", BOOKS[1].partition, Action.RETRY))
    assert not a._notified
    lost.noticed(Notice("books", BOOKS[1].partition, Action.LEAVE))
    assert beats.acquire(timeout=60)
    a.end()
    a.leave()


class HastenedEngine(Engine):
    """An engine that records the groups it must hasten."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: SimpleQueue[str] = SimpleQueue()

    def hasten(self, group: str) -> None:
        self.groups.put(group)


def test_an_engine_is_notified_of_a_waiting_caller_without_an_extra_heartbeat(world, monkeypatch):
    engine, notices = HastenedEngine(), SentNotices()
    a = world.node("a", engine=engine, books=Runnable(4), lent=Runnable(1))
    monkeypatch.setattr(world.store, "notices", lambda: nullcontext(notices))
    a.join()
    heartbeat(a)
    a.start()
    notices.waited_for = {"lent", "of another project"}
    notices.news.put(item=False)
    assert engine.groups.get(timeout=60) == "lent"
    assert engine.groups.empty()
    assert not a._notified
    a.end()
    a.leave()


@pytest.mark.parametrize("error", [PermissionError("no"), OutageError()], ids=["refused", "outage"])
def test_a_node_that_cannot_receive_change_notices_warns_except_in_an_outage(world, monkeypatch, caplog, error):
    a, asked = world.node("a"), Semaphore(0)

    @contextmanager
    def failing():
        asked.release()
        raise error
        yield

    monkeypatch.setattr(world.store, "notices", failing)
    a.join()
    a.start()
    assert asked.acquire(timeout=60)
    refused = isinstance(error, PermissionError)
    for thread in threads() if refused else ():
        if thread.name == "opencqrs-notices":
            thread.join(60)
    a.end()
    a.check()
    said = [record.getMessage() for record in caplog.records]
    assert said == (["node a hears of changes only at its heartbeats: PermissionError: no"] if refused else [])
    a.leave()


def test_another_error_ends_the_coordination_and_is_raised_by_check(running):
    a = running.node("a")
    a.join()
    running.store.error = ValueError("no")
    a.start()
    pass_time(running, a, 4)
    for thread in a._threads[:1]:
        thread.join(30)
    with pytest.raises(ValueError, match="no"):
        a.check()
    a.end()


def test_the_partitions_of_an_engine_that_has_ended_go_to_others(world):
    a, b = world.node("a", engine=FragileEngine()), world.node("b")
    a.join()
    world.engines["a"].error = ValueError("Spark is gone")
    b.join()
    for _ in range(4):
        heartbeat(a, b)
    assert (world.has("a"), world.has("b")) == ([], [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("engine", "then", "left"),
    [
        (FragileEngine, " no longer handles their events, stop the application and start it again", []),
        (Engine, "", [0, 1, 2, 3]),  # one of its threads has ended
    ],
)
def test_the_end_of_an_engine_or_its_thread_is_logged_once_without_a_call_of_check(running, caplog, engine, then, left):
    a = running.node("a", engine=engine())
    a.join()
    running.engines["a"].error = ValueError("no Spark")
    a.start()
    for _ in range(3):
        pass_time(running, a, 4)
        wait_until(a, lambda: errors_in(caplog))
    wait_until(a, lambda: running.has("a") == left)
    a.end()
    assert errors_in(caplog) == [f"[books] node a{then}: ValueError: no Spark"]


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_the_end_of_the_coordination_is_logged(running, caplog):
    a = running.node("a")
    a.join()
    running.store.error = ValueError("no")
    a.start()
    pass_time(running, a, 4)
    for thread in a._threads[:1]:
        thread.join(30)
    a.end()
    assert errors_in(caplog) == [
        "node a no longer extends its leases, stop the application and start it again: ValueError: no"
    ]


def test_the_leases_of_a_node_end_after_its_coordination_has_failed(running, monkeypatch):
    """Even if ``check`` is never called, as in a program that embeds the application."""
    a, b = running.node("a"), running.node("b")
    a.join()
    monkeypatch.setattr(a, "reconcile", Mock(side_effect=ValueError("no")))
    a.start()
    heartbeats, coordination, _ = a._threads
    for thread in (coordination, heartbeats):
        for _ in range(30):
            pass_time(running, a, 4)
            thread.join(1)
        assert not thread.is_alive()
    running.clock.advance(11)
    b.join()
    assert running.has("b") == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="no"):
        a.check()
    a.end()


class StoppingEngine(Engine):
    """An engine whose observer stops the application on the thread that assigns a partition."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = lambda: None

    def assign(self, group: str, partitions: Sequence[Partition]) -> None:
        super().assign(group, partitions)
        self.stop()


def test_a_node_can_be_stopped_on_the_thread_that_assigns_its_partitions(running):
    engine = StoppingEngine()
    a = running.node("a", engine=engine)

    def stop() -> None:
        a.end()
        a.leave()

    a.join()
    engine.has.clear()
    engine.stop = stop
    a.start()
    for thread in a._threads:
        thread.join(30)
    a.check()
    assert running.store.view().nodes == ()


def test_a_node_that_was_never_started_can_be_ended(running):
    a = running.node("a")
    a.join()
    a.end()
    a.leave()
    assert running.store.view().nodes == ()


def test_a_node_leaves_even_if_python_can_no_longer_start_a_thread(world, monkeypatch):
    a = world.node("a")
    a.join()

    def refuse() -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(a._leaving, "start", refuse)
    a.leave()
    assert world.store.view().nodes == ()


class CountingLock:
    """A lock that counts the threads that acquire it."""

    def __init__(self) -> None:
        self.arrived = Semaphore(0)
        self._lock = RLock()

    def __enter__(self) -> None:
        self.arrived.release()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_two_threads_that_stop_a_node_at_the_same_time_leave_once(world, monkeypatch):
    a, once = world.node("a"), CountingLock()
    a.join()
    start, starts, left, leave = a._leaving.start, [], [], world.store.leave

    def start_when_both_are_there() -> None:
        starts.append(1)
        assert once.arrived.acquire(timeout=60)
        assert once.arrived.acquire(timeout=60)
        start()

    monkeypatch.setattr(a, "_once", once)
    monkeypatch.setattr(a._leaving, "start", start_when_both_are_there)
    monkeypatch.setattr(world.store, "leave", lambda node: (left.append(node), leave(node)))
    with ThreadPoolExecutor() as threads:
        for stopping in [threads.submit(a.leave), threads.submit(a.leave)]:
            stopping.result(60)
    a.leave()
    assert (len(starts), left) == (1, [a.node.id])
    assert world.store.view().nodes == ()


def test_a_signal_that_stops_a_node_while_it_leaves_does_not_leave_twice(world, monkeypatch):
    a, left, leave = world.node("a"), [], world.store.leave
    a.join()
    start = a._leaving.start

    def start_after_a_signal() -> None:
        a.leave()
        start()

    monkeypatch.setattr(a._leaving, "start", start_after_a_signal)
    monkeypatch.setattr(world.store, "leave", lambda node: (left.append(node), leave(node)))
    a.leave()
    assert left == [a.node.id]


def test_a_thread_that_outlives_its_node_closes_its_connections(world):
    a = world.node("a")
    a.join()
    a.leave()
    before = world.store.closed
    a._guarded(lambda: None)
    assert world.store.closed == before + 1


@pytest.mark.parametrize("step", ["join", "beat", "take"])
def test_a_node_that_is_stopped_while_it_joins_leaves_nothing_behind(world, monkeypatch, step):
    a, proceed = world.node("a"), getattr(world.store, step)

    def stopped_before(*arguments):
        a.end()
        a.leave()
        return proceed(*arguments)

    monkeypatch.setattr(world.store, step, stopped_before)
    a.join()
    a.start()
    assert world.store.view().nodes == ()
    world.node("b").join()
    assert world.has("b") == [0, 1, 2, 3]

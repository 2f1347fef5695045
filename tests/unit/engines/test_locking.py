"""How a node acquires, renews and releases the locks of partitions, and runs only those it has locked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event as Signal

import pytest
from support.locks import Locks, Registry

from opencqrs_py.control.records import GroupPartition
from opencqrs_py.engines.coordination import LeaseTiming
from opencqrs_py.engines.locking import LockCoordinator, LockedGroup
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.testing import FakeClock

BOOKS = [GroupPartition("books", partition) for partition in layout(4)]
LENT = [GroupPartition("lent", partition) for partition in layout(1)]


class OutageError(Exception):
    """The database does not answer."""


class Engine:
    """An engine that records its assignments, and does not release stuck partitions."""

    def __init__(self) -> None:
        self.has: set[GroupPartition] = set()
        self.stuck: set[GroupPartition] = set()
        self.calls: list[tuple[str, str, list[int]]] = []
        self.error: Exception | None = None
        self.end: Exception | None = None

    def assign(self, group: str, partitions: Sequence[Partition]) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(("assign", group, [each.residue for each in partitions]))
        self.has |= {GroupPartition(group, each) for each in partitions}

    def release(self, group: str, partitions: Sequence[Partition], patience: float) -> None:
        assert patience == 0
        self.calls.append(("release", group, [each.residue for each in partitions]))
        self.has -= {GroupPartition(group, each) for each in partitions} - self.stuck

    def assigned(self) -> set[GroupPartition]:
        return set(self.has)

    def check(self) -> None:
        if self.end is not None:
            raise self.end

    def has_ended(self) -> bool:
        return self.end is not None


class World:
    """Nodes a, b, … that share the locks of one registry and one clock."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.locks = Locks(self.clock.monotonic)
        self.engines: dict[str, Engine] = {}
        self.registries: dict[str, Registry] = {}

    def node(self, name: str, *, in_all: int | None = None, groups: Sequence[str] = ("books",), **limits: object):
        engine = self.engines[name] = Engine()
        registry = self.registries[name] = Registry(self.locks)
        sizes = {"books": 4, "lent": 1}
        made = {group: LockedGroup(layout(sizes[group]), registry, engine, **limits) for group in groups}
        is_outage = lambda error: isinstance(error, OutageError)  # noqa: E731 shorter than a function here
        return LockCoordinator(name, made, LeaseTiming(10, 3), self.clock.monotonic, is_outage, in_all)

    def has(self, name: str) -> list[int]:
        return sorted(key.partition.residue for key in self.engines[name].has)

    def noted(self, name: str) -> list[tuple[str, str]]:
        """Return a list that records the calls of a node's locks from now on."""
        calls: list[tuple[str, str]] = []
        self.registries[name].before = lambda method, lock: calls.append((method, lock))
        return calls

    def fails(self, name: str, *methods: str, when: Callable[[str], bool] = lambda lock: True) -> None:
        def fail(method: str, lock: str) -> None:
            if method in methods and when(lock):
                raise RuntimeError("no route")

        self.registries[name].before = fail


@pytest.fixture
def world() -> World:
    return World()


def heartbeat(world: World, *nodes: LockCoordinator, seconds: float = 3) -> None:
    world.clock.advance(seconds)
    for node in nodes:
        node.round()
        node.reconcile()


def begin(*nodes: LockCoordinator) -> None:
    for node in nodes:
        node.round()
        node.reconcile()


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_round_enables_loggers_that_the_program_has_disabled(world, monkeypatch):
    logger = logging.getLogger("opencqrs.control")
    monkeypatch.setattr(logger, "disabled", True)
    world.node("a").round()
    assert not logger.disabled


def test_lock_keys_have_the_format_of_opencqrs(world):
    begin(world.node("a", groups=["books", "lent"]))
    assert sorted(world.locks.holders) == [
        "[group=books, partition=0]",
        "[group=books, partition=1]",
        "[group=books, partition=2]",
        "[group=books, partition=3]",
        "[group=lent, partition=0]",
    ]


def test_partitions_of_an_ended_engine_go_to_other_nodes_and_its_end_is_logged(world, caplog):
    a, b = world.node("a"), world.node("b")
    begin(a, b)
    world.engines["a"].end = ValueError("Spark is gone")
    for _ in range(3):
        heartbeat(world, a, b)
    assert (world.has("a"), world.has("b")) == ([], [0, 1, 2, 3])
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    then = "no longer handles their events, stop the application and start it again"
    assert said == [f"[books] node a {then}: ValueError: Spark is gone"]


def test_one_node_runs_the_partitions_it_has_locked_while_another_is_on_standby(world):
    a, b = world.node("a"), world.node("b")
    begin(a, b)
    assert (world.has("a"), world.has("b")) == ([0, 1, 2, 3], [])
    for _ in range(5):
        heartbeat(world, a, b)
    assert (world.has("a"), world.has("b")) == ([0, 1, 2, 3], [])
    assert len(world.engines["a"].calls) == 1


def test_nothing_is_assigned_before_the_lock_is_held(world):
    a = world.node("a")
    a.reconcile()
    assert world.engines["a"].calls == []


def test_each_lock_is_called_once_per_heartbeat(world):
    a, b = world.node("a"), world.node("b")
    begin(a, b)
    of_a, of_b = world.noted("a"), world.noted("b")
    begin(a, b)
    assert (of_a, of_b) == ([], [])
    heartbeat(world, a, b)
    assert [method for method, _ in of_a] == ["renew"] * 4
    assert [method for method, _ in of_b] == ["acquire"] * 4


@pytest.mark.parametrize(
    ("limits", "has"), [({"most": 1}, [0]), ({"in_all": 3}, [0, 1, 2]), ({"most": 9}, [0, 1, 2, 3])]
)
def test_a_node_takes_no_more_partitions_than_its_limits_allow(world, limits, has):
    a, b = world.node("a", **limits), world.node("b")
    begin(a)
    heartbeat(world, a)
    begin(b)
    assert world.has("a") == has
    assert world.has("b") == sorted({0, 1, 2, 3} - {*has})


def test_the_limit_of_a_group_applies_to_each_group_separately(world):
    begin(world.node("a", groups=["books", "lent"], most=1))
    assert world.engines["a"].has == {BOOKS[0], LENT[0]}


def test_a_partition_beyond_the_limit_is_taken_once_there_is_room(world):
    a = world.node("a", in_all=1)
    begin(a)
    world.locks.holders["[group=books, partition=0]"] = ("another", 1e9)
    for _ in range(2):
        heartbeat(world, a)
    assert world.has("a") == [1]


def test_a_change_of_the_assigned_partitions_is_logged_once(world, caplog):
    caplog.set_level(logging.INFO, "opencqrs.control")
    a = world.node("a", groups=["books", "lent"], most=2)
    b = world.node("b")
    begin(a, b)
    for _ in range(3):
        heartbeat(world, a, b)
    assert [record.getMessage() for record in caplog.records] == [
        "node a has partitions: books 2 of 4, lent 1 of 1",
        "node b has partitions: books 2 of 4",
    ]


def test_a_node_without_partitions_logs_once_that_it_is_on_standby(world, caplog):
    caplog.set_level(logging.INFO, "opencqrs.control")
    a, b = world.node("a"), world.node("b")
    begin(a, b)
    heartbeat(world, a, b)
    assert [record.getMessage() for record in caplog.records] == [
        "node a has partitions: books 4 of 4",
        "node b stands by: other processes have all locks",
    ]


def test_held_locks_are_renewed_while_other_locks_are_slow_to_acquire(world):
    a = world.node("a", groups=["lent", "books"])
    for number in range(4):
        world.locks.holders[f"[group=books, partition={number}]"] = ("another", 1e9)
    begin(a)
    world.registries["a"].before = lambda method, lock: method == "acquire" and world.clock.advance(4)
    for _ in range(3):
        heartbeat(world, a)
        assert world.engines["a"].has == set(LENT)


# Releasing


def test_losing_a_lock_to_another_process_releases_only_its_partition(world, caplog):
    a = world.node("a")
    begin(a)
    world.locks.holders["[group=books, partition=1]"] = ("another", 1e9)
    heartbeat(world, a)
    assert world.has("a") == [0, 2, 3]
    assert messages(caplog) == [
        "node a has lost the lock of [books 1/4]: its renewal returned that it is no longer held"
    ]


def test_a_renewal_that_raises_loses_the_lock_and_is_logged_once_for_all_locks(world, caplog):
    a = world.node("a")
    begin(a)
    world.fails("a", "renew", "release", "acquire")
    for _ in range(5):
        heartbeat(world, a)
    assert world.has("a") == []
    every = ", ".join(f"[{key}]" for key in BOOKS)
    assert messages(caplog) == [f"node a has lost the lock of {every}: its renewal raised RuntimeError: no route"]
    world.noted("a")
    for _ in range(4):
        heartbeat(world, a)
    assert world.has("a") == [0, 1, 2, 3]


def test_a_renewal_that_succeeds_after_the_lease_has_ended_loses_the_lock(world, caplog):
    world.locks.seconds = 60
    a = world.node("a", groups=["lent"])
    begin(a)
    world.registries["a"].before = lambda method, lock: method == "renew" and world.clock.advance(10)
    heartbeat(world, a)
    assert world.engines["a"].has == set()
    assert messages(caplog) == ["node a has lost the lock of [lent 0/1]: it was not renewed within 10 s"]


def test_the_lease_of_a_lock_starts_before_its_renewal_is_sent(world):
    a = world.node("a", groups=["lent"])
    begin(a)
    world.clock.advance(3)
    world.registries["a"].before = lambda method, lock: world.clock.advance(4)
    a.round()
    world.clock.advance(5.9)
    assert list(a.held()) == LENT
    world.clock.advance(0.2)
    assert a.held() == {}


def test_a_partition_is_released_when_its_lease_ends_even_if_no_call_returns(world, caplog):
    a = world.node("a", groups=["lent"])
    begin(a)
    world.clock.advance(9.9)
    a.reconcile()
    assert world.engines["a"].has == set(LENT)
    world.clock.advance(0.2)
    a.reconcile()
    assert world.engines["a"].has == set()
    assert messages(caplog) == ["node a has lost the lock of [lent 0/1]: it was not renewed within 10 s"]


def test_a_process_frozen_past_its_lease_acquires_the_lock_again_instead_of_renewing_it(world):
    a = world.node("a", groups=["lent"])
    begin(a)
    calls = world.noted("a")
    world.clock.advance(60)
    a.round()
    a.reconcile()
    assert world.engines["a"].has == set()
    heartbeat(world, a)
    assert [method for method, _ in calls] == ["release", "acquire"]
    assert world.engines["a"].has == set(LENT)


def test_the_partition_is_released_before_its_lock(world):
    a = world.node("a", groups=["lent"])
    begin(a)
    world.engines["a"].stuck = {LENT[0]}
    world.fails("a", "renew")
    heartbeat(world, a)
    calls = world.noted("a")
    for _ in range(3):
        heartbeat(world, a)
    assert calls == []  # the handler is still running
    world.engines["a"].stuck = set()
    heartbeat(world, a)
    heartbeat(world, a)
    assert [method for method, _ in calls][:2] == ["release", "acquire"]
    assert world.engines["a"].has == set(LENT)


def test_a_failed_partition_keeps_its_lock(world):
    a, b = world.node("a"), world.node("b")
    begin(a, b)
    for _ in range(100):  # the engine keeps a failed partition and waits
        heartbeat(world, a, b)
    assert (world.has("a"), world.has("b")) == ([0, 1, 2, 3], [])


def test_a_partition_lost_to_a_process_without_locks_is_claimed_again_after_growing_waits(world, caplog):
    a = world.node("a", groups=["lent"])
    begin(a)
    claims = []
    for second in range(40):
        world.engines["a"].has.clear()  # fenced out
        before = len(world.engines["a"].calls)
        begin(a)
        if len(world.engines["a"].calls) > before:
            claims.append(second)
        world.clock.advance(1)
    assert claims == [0, 3, 9, 21]
    assert "[lent 0/1] is claimed again: it was taken over without its lock" in caplog.text


# Errors of registries


@pytest.mark.parametrize("method", ["obtain", "acquire"])
def test_an_error_of_a_registry_is_logged_once_and_retried_at_the_next_heartbeat(world, caplog, method):
    a = world.node("a")
    world.fails("a", method)
    begin(a)
    for _ in range(5):
        heartbeat(world, a)
    every = ", ".join(f"[{key}]" for key in BOOKS)
    said = f"node a cannot use the lock of {every}, and tries again at each heartbeat: RuntimeError: no route"
    assert messages(caplog) == [said]
    world.noted("a")
    heartbeat(world, a)
    assert world.has("a") == [0, 1, 2, 3]
    world.fails("a", "renew")
    heartbeat(world, a)
    assert len(messages(caplog)) == 2  # it is logged again


def test_an_error_of_one_lock_affects_only_its_partition(world):
    a = world.node("a")
    world.fails("a", "acquire", when=lambda lock: lock.endswith("=2]"))
    begin(a)
    assert world.has("a") == [0, 1, 3]


def test_a_lock_whose_reply_was_lost_is_released_before_it_is_acquired_again(world):
    a = world.node("a", groups=["lent"])
    world.fails("a", "acquire")
    begin(a)
    calls = world.noted("a")
    heartbeat(world, a)
    assert [method for method, _ in calls] == ["release", "acquire"]


class InvalidLock:
    """A registry and lock whose methods return invalid values."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def obtain(self, name):
        return self

    def acquire(self, timeout):
        return self.answer

    async def acquire_later(self, seconds):
        return True

    def release(self): ...


def node_with_reply(answer: object, *, later: bool = False) -> LockCoordinator:
    registry = InvalidLock(answer)
    if later:
        registry.acquire = registry.acquire_later
    group = LockedGroup(layout(1), registry, Engine())
    return LockCoordinator("a", {"lent": group}, LeaseTiming(10, 3), FakeClock().monotonic, lambda error: False)


@pytest.mark.parametrize("answer", [None, "yes", object()])
def test_a_reply_that_is_not_a_bool_is_an_error(answer, caplog):
    node = node_with_reply(answer)
    node.round()
    assert node.held() == {}
    assert f"returned {type(answer).__name__}, not whether the lock is held" in caplog.text


def test_an_async_lock_is_an_error(caplog):
    node = node_with_reply(None, later=True)
    node.round()
    assert node.held() == {}
    assert "is async; locks are used without an event loop" in caplog.text


# Exclusive groups


def test_only_one_of_two_exclusive_nodes_gets_any_lock(world):
    a, b = world.node("a", exclusive=True), world.node("b", exclusive=True)
    a.round()
    b.round()
    assert (len(a.held()), len(b.held())) == (4, 0)
    assert (a.missing(), b.missing()) == ([], [(BOOKS[0], "")])


def test_missing_locks_are_known_with_their_reason(world):
    a = world.node("a", exclusive=True)
    world.fails("a", "acquire", when=lambda lock: lock.endswith("=2]"))
    a.round()
    assert a.missing() == [(BOOKS[2], "RuntimeError: no route")]


def test_a_node_that_shares_the_group_reports_no_missing_locks(world):
    begin(world.node("a"))
    b = world.node("b")
    begin(b)
    assert b.missing() == []


def test_the_limit_of_a_group_does_not_apply_to_an_exclusive_node(world):
    a = world.node("a", exclusive=True, most=1)
    begin(a)
    assert world.has("a") == [0, 1, 2, 3]


# On its threads


class RunningClock(FakeClock):
    """A clock that runs, and can also be advanced."""

    def monotonic(self) -> float:
        return super().monotonic() + time.monotonic()


@pytest.fixture
def running() -> World:
    return World(RunningClock())


def wait_until(node: LockCoordinator, condition: Callable[[], bool]) -> None:
    with node._changed:
        assert node._changed.wait_for(condition, 30)


def pass_time(world: World, node: LockCoordinator, seconds: float) -> None:
    world.clock.advance(seconds)
    with node._changed:
        node._changed.notify_all()


def test_a_node_joins_without_assigning_then_drives_renews_and_leaves(running):
    a = running.node("a")
    a.join()
    assert (len(a.held()), running.has("a")) == (4, [])
    a.start()
    assert running.has("a") == [0, 1, 2, 3]
    calls = running.noted("a")
    for _ in range(5):
        pass_time(running, a, 3)
        wait_until(a, lambda: len(calls) >= 4)
        del calls[:]
    assert running.has("a") == [0, 1, 2, 3]
    a.end()
    running.engines["a"].has.clear()
    a.leave()
    a._keeping.join(30)
    assert running.locks.holders == {}
    a.check()


def test_after_the_end_locks_are_renewed_until_the_engine_has_released_its_partitions(running):
    a = running.node("a", groups=["lent"])
    a.join()
    a.start()
    a.end()
    a.leave()  # a handler is still running
    calls = running.noted("a")
    pass_time(running, a, 3)
    wait_until(a, lambda: calls == [("renew", "[group=lent, partition=0]")])
    running.engines["a"].has.clear()
    a._keeping.join(30)
    assert running.locks.holders == {}


def test_a_partition_is_released_while_a_renewal_hangs(running):
    a = running.node("a", groups=["lent"])
    a.join()
    a.start()
    hangs, may_continue = Signal(), Signal()
    running.registries["a"].before = lambda method, lock: method == "renew" and (hangs.set(), may_continue.wait(60))
    pass_time(running, a, 3)
    assert hangs.wait(30)
    pass_time(running, a, 10)
    wait_until(a, lambda: not running.engines["a"].has)
    running.noted("a")
    may_continue.set()
    wait_until(a, lambda: running.engines["a"].has == set(LENT))  # and it starts again
    a.end()


def test_a_stop_does_not_wait_for_a_registry_that_hangs(running):
    a = running.node("a", groups=["lent"])
    a.join()
    a.start()
    hangs, may_continue = Signal(), Signal()
    running.registries["a"].before = lambda method, lock: method == "renew" and (hangs.set(), may_continue.wait(60))
    pass_time(running, a, 3)
    assert hangs.wait(30)
    a.end()
    running.engines["a"].has.clear()
    a.leave()
    assert a.lingering() == [a._keeping]
    may_continue.set()
    a._keeping.join(30)
    assert a.lingering() == []
    assert running.locks.holders == {}


def test_a_stop_ends_a_start_that_waits_for_a_registry(running):
    a = running.node("a", exclusive=True)
    hangs, may_continue = Signal(), Signal()
    running.registries["a"].before = lambda method, lock: method == "acquire" and (hangs.set(), may_continue.wait(60))
    with ThreadPoolExecutor(1) as threads:
        joining = threads.submit(a.join)
        assert hangs.wait(30)
        a.end()
        joining.result(30)
    assert a.missing() == []
    a.start()
    a.leave()
    may_continue.set()
    a._keeping.join(30)
    assert (running.locks.holders, running.has("a")) == ({}, [])


def test_a_lock_that_becomes_free_is_taken_at_the_next_heartbeat(running):
    a = running.node("a", groups=["lent"])
    running.locks.holders["[group=lent, partition=0]"] = ("another", 1e18)
    a.join()
    a.start()
    assert not running.engines["a"].has
    running.locks.holders.clear()
    pass_time(running, a, 3)
    wait_until(a, lambda: running.engines["a"].has == set(LENT))
    a.end()
    a.leave()


def test_an_outage_of_the_database_is_logged_once_and_the_claim_is_made_after_it(running, caplog):
    a = running.node("a", groups=["lent"])
    running.locks.holders["[group=lent, partition=0]"] = ("another", 1e18)
    a.join()
    a.start()
    running.engines["a"].error = OutageError("no answer")
    running.locks.holders.clear()
    pass_time(running, a, 3)
    wait_until(a, lambda: a._away)
    pass_time(running, a, 3)
    running.engines["a"].error = None
    pass_time(running, a, 3)
    wait_until(a, lambda: running.engines["a"].has == set(LENT))
    assert messages(caplog) == ["node a cannot claim partitions: OutageError: no answer"]
    a.end()


def test_another_error_of_the_engine_ends_the_coordination_and_is_raised_by_check(running):
    a = running.node("a", groups=["lent"])
    running.locks.holders["[group=lent, partition=0]"] = ("another", 1e18)
    a.join()
    a.start()
    running.engines["a"].error = ValueError("no")
    running.locks.holders.clear()
    pass_time(running, a, 3)
    wait_until(a, lambda: a._failure is not None)
    with pytest.raises(ValueError, match="no"):
        a.check()
    a.end()
    a.leave()


def test_an_error_of_the_engine_at_the_start_is_raised(running):
    a = running.node("a", groups=["lent"])
    running.engines["a"].error = ValueError("no")
    a.join()
    with pytest.raises(ValueError, match="no"):
        a.start()
    a.end()
    a.leave()
    a._keeping.join(30)
    assert running.locks.holders == {}


@pytest.mark.parametrize("on", ["the thread that assigns", "the thread that locks"])
def test_a_node_can_be_stopped_on_its_own_threads(running, on):
    a = running.node("a", groups=["lent"])
    running.locks.holders["[group=lent, partition=0]"] = ("another", 1e18)
    a.join()
    a.start()

    stops: list[str] = []

    def stop(*_: object) -> None:
        stops.append("begun")
        a.end()
        a.leave()
        stops.append("ended")

    if on == "the thread that assigns":
        running.engines["a"].assign = stop
    else:
        running.registries["a"].before = stop
    running.locks.holders.clear()
    pass_time(running, a, 3)
    for thread in (a._coordinating, a._keeping):
        thread.join(30)
    a.check()
    assert stops[:2] == ["begun", "ended"]
    assert running.locks.holders == {}


def test_a_node_that_never_joined_can_be_ended(running):
    a = running.node("a")
    a.end()
    a.leave()
    assert running.locks.holders == {}


def test_a_lock_that_cannot_be_released_at_the_end_is_left_to_expire(running, caplog):
    a = running.node("a", groups=["lent"])
    a.join()
    running.fails("a", "release")
    a.end()
    a.leave()
    a._keeping.join(30)
    assert messages(caplog) == ["node a leaves the lock of [lent 0/1] to its end: RuntimeError: no route"]

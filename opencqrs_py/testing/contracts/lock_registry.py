"""The contract of lock registries: what a node that uses one relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from threading import Barrier, Thread
from time import monotonic
from typing import Any, cast

import pytest
from typing_extensions import override

from opencqrs_py.processing.ports import Lock, LockRegistry
from opencqrs_py.testing.contracts.calls import settle

SECONDS = 15.0  # longest wait for a call
PROMPT = 1.0  # seconds: the quickest of several calls that must not wait takes less, also on a busy machine

Obtain = Callable[[LockRegistry, str], "_NodeLock"]

NAME, OTHER = "[group=books, partition=0]", "[group=books, partition=1]"
_LONG = "long" * 100
NAMES = [
    NAME,
    OTHER,
    "[group=größe %s :x, partition=0]",
    "[group=grüße %s :x, partition=0]",  # differs in a letter outside of ASCII only
    f"[group={_LONG}, partition=0]",
    f"[group={_LONG}, partition=1]",  # differs after more characters than columns and files usually have
]
ROUNDS = 300  # of two callers of a lock, unless the registry is slow
FEWEST_ROUNDS = 20
ENOUGH = 5.0  # seconds after which only the fewest rounds are made
EXPIRING = 30  # locks that expire together
ONE_HOLDER = "of two callers of acquire at the same time, exactly one must get True"


def rounds() -> Iterator[int]:
    """Yield the numbers of the rounds in which two callers acquire a lock; a slow registry has fewer."""
    until = monotonic() + ENOUGH
    for number in range(ROUNDS):
        if number >= FEWEST_ROUNDS and monotonic() > until:
            return
        yield number


def acquired_at_once(locks: list[_NodeLock]) -> list[bool]:
    """Acquire locks of several nodes at the same moment, and return the results in ascending order."""
    start = Barrier(len(locks))
    return sorted([result() for result in [lock.begin_acquire(start) for lock in locks]])


class LockRegistryContract:
    """What a node relies on.

    Give ``registry``, in which no lock is held; ``another``, which sees the same locks as another process would; and,
    if locks expire, ``let_pass``: it lets a fraction of that time pass, such as half of it (``0.5``) or so much that a
    lock that was not renewed has expired (``1.0``).
    """

    @pytest.fixture
    def registry(self) -> LockRegistry:
        """Return a registry."""
        raise NotImplementedError

    @pytest.fixture
    def another(self) -> LockRegistry:
        """Return another registry of the same locks."""
        raise NotImplementedError

    @pytest.fixture
    def let_pass(self) -> Callable[[float], None]:
        """Return a function that lets a fraction of the time pass after which a lock expires."""
        pytest.skip("locks do not expire")

    @pytest.fixture
    def obtain(self, registry: LockRegistry, another: LockRegistry) -> Iterator[Obtain]:
        """Yield a function that returns a lock of one of the two registries, and releases it at the end."""
        nodes = {id(each): _Node() for each in (registry, another)}
        with ExitStack() as ending:
            for node in nodes.values():
                ending.callback(node.end)
            yield lambda registry, name: _NodeLock(nodes[id(registry)], registry, name)

    @pytest.fixture
    def mine(self, registry: LockRegistry, obtain: Obtain) -> Lock:
        """Return a lock."""
        return obtain(registry, NAME)

    @pytest.fixture
    def theirs(self, another: LockRegistry, obtain: Obtain) -> Lock:
        """Return the same lock in another process."""
        return obtain(another, NAME)

    # Acquire and release

    def test_a_free_lock_is_acquired(self, mine: Lock) -> None:
        assert mine.acquire(0.0) is True

    def test_a_held_lock_is_not_acquired_by_another_process(self, mine: Lock, theirs: Lock) -> None:
        assert mine.acquire(0.0)
        assert theirs.acquire(0.0) is False
        assert theirs.acquire(0.01) is False

    def test_an_attempt_without_a_timeout_to_acquire_a_held_lock_returns_at_once(
        self, mine: Lock, theirs: Lock
    ) -> None:
        assert mine.acquire(0.0)
        taken = []
        for _ in range(3):
            before = monotonic()
            assert theirs.acquire(0.0) is False
            taken.append(monotonic() - before)
        assert min(taken) < PROMPT, "acquire(0.0) waits: a node calls all its locks from one thread"

    def test_a_lock_is_not_held_before_it_is_acquired(self, mine: Lock, theirs: Lock) -> None:
        assert theirs.acquire(0.0)
        assert mine.renew() is False

    def test_a_lock_can_be_acquired_right_after_its_release(self, mine: Lock, theirs: Lock) -> None:
        for _ in range(10):
            assert mine.acquire(0.0)
            mine.release()
            assert theirs.acquire(0.0)
            theirs.release()

    def test_releasing_a_lock_that_is_not_held_changes_nothing(self, mine: Lock, theirs: Lock) -> None:
        mine.release()
        assert theirs.acquire(0.0)
        mine.release()
        assert theirs.renew()
        assert mine.acquire(0.0) is False

    def test_a_lock_can_be_released_twice(self, mine: Lock, theirs: Lock) -> None:
        assert mine.acquire(0.0)
        mine.release()
        mine.release()
        assert theirs.acquire(0.0)

    # Hold

    def test_a_held_lock_can_be_renewed_any_number_of_times(self, mine: Lock, theirs: Lock) -> None:
        assert mine.acquire(0.0)
        for _ in range(10):
            assert mine.renew() is True
            assert theirs.acquire(0.0) is False

    def test_a_released_lock_cannot_be_renewed(self, mine: Lock, theirs: Lock) -> None:
        assert mine.acquire(0.0)
        mine.release()
        assert mine.renew() is False
        assert theirs.acquire(0.0)
        assert mine.renew() is False

    # Names

    def test_locks_with_different_names_are_independent(
        self, registry: LockRegistry, another: LockRegistry, obtain: Obtain
    ) -> None:
        locks = [obtain((registry, another)[number % 2], name) for number, name in enumerate(NAMES)]
        assert all(lock.acquire(0.0) for lock in locks)
        locks[0].release()
        assert all(lock.renew() for lock in locks[1:])

    @pytest.mark.parametrize("name", NAMES)
    def test_the_same_name_is_the_same_lock_in_every_process(
        self, registry: LockRegistry, another: LockRegistry, obtain: Obtain, name: str
    ) -> None:
        assert obtain(registry, name).acquire(0.0)
        assert obtain(another, name).acquire(0.0) is False

    def test_of_two_concurrent_callers_exactly_one_acquires_a_lock(
        self, registry: LockRegistry, another: LockRegistry, obtain: Obtain
    ) -> None:
        for number in rounds():
            locks = [obtain(each, f"[group=books, partition={number}]") for each in (registry, another)]
            assert acquired_at_once(locks) == [False, True], ONE_HOLDER
            for lock in locks:
                lock.release()

    # Time

    def test_a_lock_that_is_not_renewed_expires(
        self, mine: Lock, theirs: Lock, let_pass: Callable[[float], None]
    ) -> None:
        assert mine.acquire(0.0)
        let_pass(1.0)
        assert theirs.acquire(0.0)

    def test_an_expired_lock_is_not_renewed_even_if_it_is_free(
        self, mine: Lock, theirs: Lock, let_pass: Callable[[float], None]
    ) -> None:
        assert mine.acquire(0.0)
        let_pass(1.0)
        assert mine.renew() is False, "renew() acquires a lock that had expired: another process may have held it"
        assert theirs.acquire(0.0)

    def test_of_two_concurrent_callers_exactly_one_acquires_an_expired_lock(
        self, registry: LockRegistry, another: LockRegistry, obtain: Obtain, let_pass: Callable[[float], None]
    ) -> None:
        names = [f"[group=books, partition={number}]" for number in range(EXPIRING)]
        pairs = [[obtain(each, name) for each in (registry, another)] for name in names]
        for mine, _ in pairs:
            assert mine.acquire(0.0)
        let_pass(1.0)
        for mine, theirs in pairs:
            assert mine.renew() is False
            assert acquired_at_once([mine, theirs]) == [False, True], ONE_HOLDER

    def test_a_renewed_lock_does_not_expire(self, mine: Lock, theirs: Lock, let_pass: Callable[[float], None]) -> None:
        assert mine.acquire(0.0)
        for _ in range(4):
            let_pass(0.5)
            assert mine.renew()
            assert theirs.acquire(0.0) is False

    def test_an_expired_lock_that_another_process_holds_is_neither_renewed_nor_released(
        self, mine: Lock, theirs: Lock, let_pass: Callable[[float], None]
    ) -> None:
        assert mine.acquire(0.0)
        let_pass(1.0)
        assert theirs.acquire(0.0)
        assert mine.renew() is False
        mine.release()
        assert theirs.renew()
        assert mine.acquire(0.0) is False


class _Node:
    """The thread that calls a registry and its locks, as in a node; a call that waits fails its test instead of all."""

    def __init__(self) -> None:
        self.unreleased: dict[_NodeLock, None] = {}
        self._calls = SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]()
        self._is_stuck = False
        Thread(target=self._run, daemon=True).start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a function; fail if it does not return in time."""
        name = getattr(function, "__name__", "call")
        return self.result(self.begin(function, *arguments), f"{name}({', '.join(map(repr, arguments))})")

    def end(self) -> None:
        """Release the locks that the test has left, one after another, also if a release fails."""
        with ExitStack() as ending:
            ending.callback(self._calls.put, None)
            for lock in reversed(self.unreleased):
                ending.callback(self._release, lock)

    def _release(self, lock: _NodeLock) -> None:
        """Release a lock. It is not awaited after a call that waits: that may be for a lock of the other node."""
        releasing = self.begin(lock.lock.release)
        if not self._is_stuck:
            self.result(releasing, "release()")

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future = Future[Any]()
        self._calls.put((future, function, arguments))
        return future

    def result(self, future: Future[Any], shown: str) -> Any:
        if not wait([future], SECONDS).done:
            self._is_stuck = True
            pytest.fail(f"{shown} did not return within {SECONDS:g} s: a node calls all its locks from one thread")
        return future.result()

    def _run(self) -> None:
        for future, function, arguments in iter(self._calls.get, None):
            settle(future, function, *arguments)


class _NodeLock(Lock):
    """A lock that a node calls."""

    def __init__(self, node: _Node, registry: LockRegistry, name: str) -> None:
        self._node = node
        self.lock: Lock = node.call(registry.obtain, name)
        node.unreleased[self] = None

    @override
    def acquire(self, timeout: float) -> bool:
        self._node.unreleased[self] = None
        return cast("bool", self._node.call(self.lock.acquire, timeout))

    def begin_acquire(self, start: Barrier) -> Callable[[], bool]:
        """Acquire the lock when the other node is ready, too; return a function that waits for the result."""
        self._node.unreleased[self] = None
        return partial(self._node.result, self._node.begin(self._acquire_with, start), "acquire(0.0)")

    def _acquire_with(self, start: Barrier) -> bool:
        start.wait(SECONDS)
        return self.lock.acquire(0.0)

    @override
    def renew(self) -> bool:
        return cast("bool", self._node.call(self.lock.renew))

    @override
    def release(self) -> None:
        self._node.call(self.lock.release)
        self._node.unreleased.pop(self, None)

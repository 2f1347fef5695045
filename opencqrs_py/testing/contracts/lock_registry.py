"""The contract of lock registries: what a node that uses one relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from opencqrs_py.processing.ports import Lock, LockRegistry

NAME, OTHER = "[group=books, partition=0]", "[group=books, partition=1]"
NAMES = [NAME, OTHER, "[group=größe %s :x, partition=0]", f"[group={'long' * 100}, partition=0]"]


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
    def mine(self, registry: LockRegistry) -> Iterator[Lock]:
        """Yield a lock."""
        lock = registry.obtain(NAME)
        yield lock
        lock.release()

    @pytest.fixture
    def theirs(self, another: LockRegistry) -> Iterator[Lock]:
        """Yield the same lock in another process."""
        lock = another.obtain(NAME)
        yield lock
        lock.release()

    # Acquire and release

    def test_a_free_lock_is_acquired(self, mine: Lock) -> None:
        assert mine.acquire(0.0) is True

    def test_a_held_lock_is_not_acquired_by_another_process(self, mine: Lock, theirs: Lock) -> None:
        assert mine.acquire(0.0)
        assert theirs.acquire(0.0) is False
        assert theirs.acquire(0.01) is False

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

    def test_locks_with_different_names_are_independent(self, registry: LockRegistry, another: LockRegistry) -> None:
        locks = [(registry, another)[number % 2].obtain(name) for number, name in enumerate(NAMES)]
        assert all(lock.acquire(0.0) for lock in locks)
        locks[0].release()
        assert all(lock.renew() for lock in locks[1:])
        for lock in locks:
            lock.release()

    @pytest.mark.parametrize("name", NAMES)
    def test_the_same_name_is_the_same_lock_in_every_process(
        self, registry: LockRegistry, another: LockRegistry, name: str
    ) -> None:
        held = registry.obtain(name)
        assert held.acquire(0.0)
        assert another.obtain(name).acquire(0.0) is False
        held.release()

    def test_of_two_concurrent_callers_exactly_one_acquires_a_lock(
        self, registry: LockRegistry, another: LockRegistry
    ) -> None:
        for number in range(20):
            locks = [each.obtain(f"[group=books, partition={number}]") for each in (registry, another)]
            with ThreadPoolExecutor(2) as threads:
                assert sorted(threads.map(lambda lock: lock.acquire(0.0), locks)) == [False, True]
            for lock in locks:
                lock.release()

    # Time

    def test_a_lock_that_is_not_renewed_expires(
        self, mine: Lock, theirs: Lock, let_pass: Callable[[float], None]
    ) -> None:
        assert mine.acquire(0.0)
        let_pass(1.0)
        assert theirs.acquire(0.0)

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

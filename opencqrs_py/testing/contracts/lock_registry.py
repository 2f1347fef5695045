"""The contract of lock registries: what a node relies on that is led by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from opencqrs_py.processing.ports import Lock, LockRegistry

NAME, OTHER = "[group=books, partition=0]", "[group=books, partition=1]"
NAMES = [NAME, OTHER, "[group=größe %s :x, partition=0]", f"[group={'long' * 100}, partition=0]"]


class LockRegistryContract:
    """What a node relies on.

    Give ``registry``, which knows no lock that is held; ``another``, which sees the same locks as another process
    would; and ``let_pass`` if locks end by time: it has so much of that time go by that a lock has ended which was not
    renewed (``1.0``), or half of it (``0.5``).
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
        """Return what has a part of the time go by after which a lock ends."""
        pytest.skip("locks do not end by time")

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

    def test_a_lock_that_is_free_is_taken(self, mine: Lock) -> None:
        assert mine.acquire(0.0) is True

    def test_a_lock_that_is_held_is_not_taken_by_another(self, mine: Lock, theirs: Lock) -> None:
        assert mine.acquire(0.0)
        assert theirs.acquire(0.0) is False
        assert theirs.acquire(0.01) is False

    def test_a_lock_that_is_not_acquired_yet_is_not_held(self, mine: Lock, theirs: Lock) -> None:
        assert theirs.acquire(0.0)
        assert mine.renew() is False

    def test_a_lock_can_be_taken_right_after_it_was_released(self, mine: Lock, theirs: Lock) -> None:
        for _ in range(10):
            assert mine.acquire(0.0)
            mine.release()
            assert theirs.acquire(0.0)
            theirs.release()

    def test_to_release_a_lock_that_is_not_held_changes_nothing(self, mine: Lock, theirs: Lock) -> None:
        mine.release()
        assert theirs.acquire(0.0)
        mine.release()
        assert theirs.renew()
        assert mine.acquire(0.0) is False

    def test_a_lock_may_be_released_twice(self, mine: Lock, theirs: Lock) -> None:
        assert mine.acquire(0.0)
        mine.release()
        mine.release()
        assert theirs.acquire(0.0)

    # Hold

    def test_a_lock_is_held_as_often_as_it_is_renewed(self, mine: Lock, theirs: Lock) -> None:
        assert mine.acquire(0.0)
        for _ in range(10):
            assert mine.renew() is True
            assert theirs.acquire(0.0) is False

    def test_a_lock_that_was_released_cannot_be_renewed(self, mine: Lock, theirs: Lock) -> None:
        assert mine.acquire(0.0)
        mine.release()
        assert mine.renew() is False
        assert theirs.acquire(0.0)
        assert mine.renew() is False

    # Names

    def test_locks_of_different_names_have_nothing_to_do_with_each_other(
        self, registry: LockRegistry, another: LockRegistry
    ) -> None:
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

    def test_of_two_that_take_a_lock_at_once_exactly_one_gets_it(
        self, registry: LockRegistry, another: LockRegistry
    ) -> None:
        for number in range(20):
            locks = [each.obtain(f"[group=books, partition={number}]") for each in (registry, another)]
            with ThreadPoolExecutor(2) as threads:
                assert sorted(threads.map(lambda lock: lock.acquire(0.0), locks)) == [False, True]
            for lock in locks:
                lock.release()

    # Time

    def test_a_lock_that_is_not_renewed_ends(self, mine: Lock, theirs: Lock, let_pass: Callable[[float], None]) -> None:
        assert mine.acquire(0.0)
        let_pass(1.0)
        assert theirs.acquire(0.0)

    def test_a_lock_that_is_renewed_lasts_on(self, mine: Lock, theirs: Lock, let_pass: Callable[[float], None]) -> None:
        assert mine.acquire(0.0)
        for _ in range(4):
            let_pass(0.5)
            assert mine.renew()
            assert theirs.acquire(0.0) is False

    def test_a_lock_that_has_ended_is_neither_renewed_nor_released_once_another_has_it(
        self, mine: Lock, theirs: Lock, let_pass: Callable[[float], None]
    ) -> None:
        assert mine.acquire(0.0)
        let_pass(1.0)
        assert theirs.acquire(0.0)
        assert mine.renew() is False
        mine.release()
        assert theirs.renew()
        assert mine.acquire(0.0) is False

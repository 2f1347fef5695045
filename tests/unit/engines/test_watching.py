"""Watching the head of the store: one watch serves all waiting threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition
from threading import Event as Signal
from types import SimpleNamespace

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.engines import watching
from opencqrs_py.engines.watching import HeadWatcher, stop_all

SECONDS = 30  # longest wait for another thread


class Source(InMemoryEventStore):
    """A source whose head is set by the test, and which can be unavailable."""

    def __init__(self) -> None:
        super().__init__()
        self.position = 0
        self.error: BaseException | None = None
        self.opened = self.closed = self.waited = self.woken = 0
        self.moved = Condition()

    def head(self) -> int:
        if self.error is not None:
            raise self.error
        return self.position

    def set(self, position: int, error: BaseException | None = None) -> None:
        with self.moved:
            self.position, self.error = position, error
            self.moved.notify_all()

    @contextmanager
    def watched(self) -> Iterator[Source]:
        self.head()
        self.opened += 1
        try:
            yield self
        finally:
            self.closed += 1

    def wait(self, after: int, seconds: float) -> int:
        with self.moved:
            self.waited += 1
            self.moved.notify_all()
            woken = self.woken
            self.moved.wait_for(lambda: self.position > after or self.error or self.woken > woken, seconds)
            return self.head()

    def wake(self) -> None:
        with self.moved:
            self.woken += 1
            self.moved.notify_all()

    def wait_until_waited_for(self) -> None:
        with self.moved:
            before = self.waited
            assert self.moved.wait_for(lambda: self.waited > before, SECONDS)


class Checks:
    """Something that may end a pause, and counts the checks for it."""

    def __init__(self) -> None:
        self.over, self.count, self.changed = False, 0, Condition()

    def is_set(self) -> bool:
        with self.changed:
            self.count += 1
            self.changed.notify_all()
            return self.over

    def wait_until_checked(self, times: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.count >= times, SECONDS)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def changes() -> list[int]:
    return []


@pytest.fixture
def watcher(source: Source, changes: list[int]) -> Iterator[HeadWatcher]:
    watcher = HeadWatcher(source, lambda: changes.append(source.position))
    yield watcher
    watcher.stop()


def test_a_check_updates_the_head_and_notifies_the_listener(
    source: Source, watcher: HeadWatcher, changes: list[int]
) -> None:
    watcher.look()
    assert (watcher.head, changes) == (0, [])
    source.set(7)
    watcher.look()
    watcher.look()
    assert (watcher.head, changes) == (7, [7])


def test_a_head_that_seems_to_go_back_is_ignored(source: Source, watcher: HeadWatcher, changes: list[int]) -> None:
    for position in (7, 3, 7, 8):
        source.set(position)
        watcher.look()
    assert (watcher.head, changes) == (8, [7, 8])


def test_a_check_on_the_callers_thread_raises_its_errors(source: Source, watcher: HeadWatcher) -> None:
    source.set(0, ConnectionError("no answer"))
    with pytest.raises(ConnectionError):
        watcher.look()


def test_a_reader_behind_the_head_does_not_wait(source: Source, watcher: HeadWatcher) -> None:
    source.set(7)
    watcher.look()
    watcher.wait_beyond(6, SECONDS)


def test_one_new_event_wakes_all_waiting_threads(source: Source, watcher: HeadWatcher) -> None:
    watcher.start()
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(watcher.wait_beyond, 0, SECONDS) for _ in range(4)]
        source.set(1)
        for waiter in waiting:
            waiter.result(SECONDS)
    assert watcher.head == 1


def test_a_stop_wakes_all_waiting_threads_and_later_waits_return_at_once(source: Source, watcher: HeadWatcher) -> None:
    watcher.start()
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(watcher.wait_beyond, 0, SECONDS) for _ in range(2)]
        watcher.stop()
        for waiter in waiting:
            waiter.result(SECONDS)
    watcher.wait_beyond(0, SECONDS)


@pytest.mark.parametrize("end", ["stop", "wake"])
def test_the_thread_that_watches_the_store_is_woken_at_once(
    source: Source, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(watching, "_WAIT_SECONDS", 2 * SECONDS)
    watcher, stopping = HeadWatcher(source), Signal()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(watcher.wait_beyond, 0, 2 * SECONDS, stopping)
        with source.moved:
            assert source.moved.wait_for(lambda: source.waited, SECONDS)
        stopping.set()
        getattr(watcher, end)()
        waiting.result(SECONDS)
    watcher.stop()


def test_a_wait_ends_after_its_timeout(watcher: HeadWatcher) -> None:
    watcher.wait_beyond(0, 0.001)


class PanicException(BaseException):
    """What a panic of a Rust extension becomes."""


@pytest.mark.parametrize("error", [ConnectionError("cut"), PanicException("out of bounds")])
def test_an_outage_is_followed_by_a_new_watch(
    source: Source, watcher: HeadWatcher, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(watching, "_AFTER_ERROR_SECONDS", 0.001)
    monkeypatch.setattr(watching, "_STOP_SECONDS", SECONDS)
    watcher.start()
    source.wait_until_waited_for()
    source.set(0, error)
    source.set(5)
    watcher.wait_beyond(0, SECONDS)
    assert watcher.head == 5
    watcher.stop()
    assert source.opened == source.closed >= 1


def test_a_store_unavailable_at_first_is_watched_once_it_is_available(
    source: Source, watcher: HeadWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_AFTER_ERROR_SECONDS", 0.001)
    source.set(0, ConnectionError("no answer"))
    watcher.start()
    source.set(5)
    watcher.wait_beyond(0, SECONDS)
    assert watcher.head == 5


def test_a_watcher_without_a_listener_only_wakes_waiting_threads(source: Source) -> None:
    watcher = HeadWatcher(source)
    watcher.start()
    source.set(1)
    watcher.wait_beyond(0, SECONDS)
    watcher.stop()
    assert watcher.head == 1


def test_the_store_is_not_queried_while_no_thread_waits(source: Source) -> None:
    watcher = HeadWatcher(source)
    watcher.start()
    source.set(3)
    watcher.wait_beyond(0, SECONDS)
    watcher.wait_beyond(2, SECONDS)
    assert (source.opened, source.waited) == (1, 1)
    watcher.stop()
    assert source.closed == 1


def test_only_one_of_several_waiting_threads_watches_at_a_time(source: Source) -> None:
    watcher, watching_now, most = HeadWatcher(source), 0, 0
    wait = source.wait

    def counted(after: int, seconds: float) -> int:
        nonlocal watching_now, most
        watching_now += 1
        most = max(most, watching_now)
        try:
            return wait(after, seconds)
        finally:
            watching_now -= 1

    source.wait = counted  # type: ignore[method-assign]
    with ThreadPoolExecutor(5) as threads:
        waiting = [threads.submit(watcher.wait_beyond, position, SECONDS) for position in (0, 0, 1, 1, 2)]
        for position in (1, 2, 3):
            source.wait_until_waited_for()
            source.set(position)
        for each in waiting:
            each.result(SECONDS)
    assert (watcher.head, most) == (3, 1)
    watcher.stop()


def test_all_waiting_threads_return_after_their_timeout(source: Source) -> None:
    watcher = HeadWatcher(source)
    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(watcher.wait_beyond, 0, 0.01) for _ in range(2)]:
            each.result(SECONDS)
    assert watcher.head == 0
    watcher.stop()


def test_a_watch_that_cannot_be_closed_is_abandoned(source: Source) -> None:
    @contextmanager
    def broken() -> Iterator[Source]:
        yield source
        raise ConnectionError("gone")

    source.watched = broken  # type: ignore[method-assign]
    source.set(1)
    watcher = HeadWatcher(source)
    watcher.wait_beyond(0, SECONDS)
    watcher.stop()
    assert watcher.head == 1


def test_a_stopped_watcher_has_closed_its_watch(source: Source, changes: list[int]) -> None:
    watcher = HeadWatcher(source, lambda: changes.append(1))
    watcher.start()
    source.wait_until_waited_for()
    watcher.stop()
    watcher._thread.join(SECONDS)
    assert (source.opened, source.closed) == (1, 1)
    watcher.stop()


def hung(source: Source) -> tuple[Signal, Signal]:
    """Make a watch of the source hang; return the signals that it has begun and that it may end."""
    hanging, over = Signal(), Signal()

    def hang(after: int, seconds: float) -> int:
        hanging.set()
        assert over.wait(SECONDS)
        return 0

    source.wait = hang  # type: ignore[method-assign]
    return hanging, over


def test_a_hanging_store_does_not_delay_a_stop(source: Source) -> None:
    hanging, over = hung(source)
    watcher = HeadWatcher(source, lambda: None)
    watcher.start()
    assert hanging.wait(SECONDS)
    watcher.stop()
    assert watcher._thread.is_alive()
    over.set()
    watcher._thread.join(SECONDS)


def test_begin_stop_does_not_wait_for_a_hanging_store(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, over = hung(source)
    monkeypatch.setattr(watching, "_STOP_SECONDS", 2 * SECONDS)
    watcher = HeadWatcher(source, lambda: None)
    watcher.start()
    assert hanging.wait(SECONDS)
    watcher.begin_stop()
    assert watcher._thread.is_alive()
    over.set()
    watcher._thread.join(SECONDS)
    assert source.closed == 1


@pytest.mark.parametrize(("patience", "waited"), [(SECONDS, 0.3), (0.1, 0.1), (0.0, 0.0)])
def test_hanging_stores_are_awaited_once_together_within_the_timeout(
    patience: float, waited: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    now = [0.0]

    class Changed(Condition):
        def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            now[0] += waits[-1]
            return predicate()

    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: now[0]))
    hanging = [HeadWatcher(Source()), HeadWatcher(Source())]
    for watcher in hanging:
        watcher._changed, watcher._is_watched = Changed(watcher._lock), True
    stop_all(hanging, patience)
    assert waits == [waited, 0.0]
    now[0] = 1.0
    stop_all(hanging, patience)
    assert waits == [waited, 0.0, 0.0, 0.0]


def test_a_pause_waits_without_polling_and_is_ended_by_a_wake(watcher: HeadWatcher, source: Source) -> None:
    checks, timeouts = Checks(), list[float | None]()

    class Noting(Condition):
        def wait(self, timeout: float | None = None) -> bool:
            timeouts.append(timeout)
            return super().wait(timeout)

    watcher._woken = Noting(watcher._lock)
    with ThreadPoolExecutor(1) as pool:
        paused = pool.submit(watcher.pause, 3_600.0, checks)
        checks.wait_until_checked(1)
        watcher.wake()
        checks.wait_until_checked(2)
        checks.over = True
        watcher.wake()
        paused.result(SECONDS)
    assert checks.count == 3
    assert all(timeout is not None and timeout > 3_600 - 2 * SECONDS for timeout in timeouts)
    assert source.opened == 0


def test_new_events_do_not_wake_a_pausing_partition(watcher: HeadWatcher, source: Source) -> None:
    checks = Checks()
    with ThreadPoolExecutor(2) as pool:
        paused = pool.submit(watcher.pause, 3_600.0, checks)
        checks.wait_until_checked(1)
        waiting = pool.submit(watcher.wait_beyond, 0, SECONDS)
        source.set(1)
        waiting.result(SECONDS)
        with watcher._changed:  # the lock that a notified partition waits for
            notified = not watcher._woken._waiters  # type: ignore[attr-defined]
        checks.over = True
        watcher.wake()
        paused.result(SECONDS)
    assert not notified
    assert checks.count == 2


def test_a_pause_ends_by_time(watcher: HeadWatcher) -> None:
    watcher.pause(0.001, Checks())

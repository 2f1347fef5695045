"""Watching the head of the store: one look serves all who wait."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Event

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.engines import watching
from opencqrs_py.engines.watching import HeadWatcher

SECONDS = 30  # longest wait for another thread


class Source(InMemoryEventStore):
    """A source whose head is set by hand, and which can be waited for to be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.position = 0
        self.error: Exception | None = None
        self.asked = 0
        self._again = Condition()

    def head(self) -> int:
        with self._again:
            self.asked += 1
            self._again.notify_all()
        if self.error is not None:
            raise self.error
        return self.position

    def wait_until_asked(self, more_times: int = 2) -> None:
        """Wait until a look that began after this call has ended."""
        with self._again:
            until = self.asked + more_times
            assert self._again.wait_for(lambda: self.asked >= until, SECONDS)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def changes() -> list[int]:
    return []


@pytest.fixture
def watcher(source: Source, changes: list[int]) -> Iterator[HeadWatcher]:
    watcher = HeadWatcher(source, lambda: changes.append(source.position), poll=0.001)
    yield watcher
    watcher.stop()


def test_one_look_sees_the_head_and_tells_of_it(source: Source, watcher: HeadWatcher, changes: list[int]) -> None:
    watcher.look()
    assert (watcher.head, changes) == (0, [])
    source.position = 7
    watcher.look()
    watcher.look()
    assert (watcher.head, changes) == (7, [7])


def test_a_head_that_seems_to_go_back_is_no_news(source: Source, watcher: HeadWatcher, changes: list[int]) -> None:
    for position in (7, 3, 7, 8):
        source.position = position
        watcher.look()
    assert (watcher.head, changes) == (8, [7, 8])


def test_a_look_on_the_callers_thread_tells_the_caller_of_errors(source: Source, watcher: HeadWatcher) -> None:
    source.error = ConnectionError("away")
    with pytest.raises(ConnectionError):
        watcher.look()


def test_who_is_behind_does_not_wait(source: Source, watcher: HeadWatcher) -> None:
    source.position = 7
    watcher.look()
    watcher.wait_beyond(6, SECONDS)


def test_all_who_wait_are_woken_by_one_new_event(source: Source, watcher: HeadWatcher) -> None:
    watcher.start()
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(watcher.wait_beyond, 0, SECONDS) for _ in range(4)]
        source.position = 1
        for waiter in waiting:
            waiter.result(SECONDS)
    assert watcher.head == 1


def test_stopping_wakes_all_and_keeps_nobody_waiting(source: Source, watcher: HeadWatcher) -> None:
    watcher.start()
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(watcher.wait_beyond, 0, SECONDS) for _ in range(2)]
        watcher.stop()
        for waiter in waiting:
            waiter.result(SECONDS)
    watcher.wait_beyond(0, SECONDS)


def test_a_wait_ends_with_its_time(watcher: HeadWatcher) -> None:
    watcher.wait_beyond(0, 0.001)


def test_an_outage_does_not_end_the_watch(
    source: Source, watcher: HeadWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_AFTER_ERROR_SECONDS", 0.001)
    source.error = ConnectionError("away")
    watcher.start()
    source.wait_until_asked()
    source.error, source.position = None, 5
    watcher.wait_beyond(0, SECONDS)
    assert watcher.head == 5


def test_a_watch_without_listener_only_wakes_those_who_wait(source: Source) -> None:
    watcher = HeadWatcher(source, poll=0.001)
    watcher.start()
    source.position = 1
    watcher.wait_beyond(0, SECONDS)
    watcher.stop()
    assert watcher.head == 1


def test_a_watch_that_was_stopped_looks_no_more(source: Source) -> None:
    looked = Event()
    watcher = HeadWatcher(source, looked.set, poll=SECONDS)
    watcher.start()
    source.wait_until_asked(0)
    watcher.stop()
    watcher._thread.join(SECONDS)
    assert not watcher._thread.is_alive()
    asked = source.asked
    source.position = 1
    assert source.asked == asked
    assert not looked.is_set()

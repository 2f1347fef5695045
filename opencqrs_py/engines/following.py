"""Following the log with one partition on one thread, until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event as Signal

from opencqrs_py.engines.at_once import AtOnce
from opencqrs_py.engines.driver import PartitionDriver
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.processing.exceptions import raise_interrupt

_QUIET_SECONDS = 0.05  # without a new event until progress over events of others is stored
_UNSTORED_SECONDS = 1.0  # longest delay of that, however many events arrive
_IDLE_SECONDS = 1.0  # longest sleep of an idle partition, should a wake-up be lost
_HASTE_SECONDS = 2.0  # for which progress is stored at once after a caller has waited for it


class Haste:
    """Whether a caller waits for the progress of a group, or did so a moment ago.

    Args:
        now: Returns the seconds of a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until = 0.0

    def begin(self) -> bool:
        """Store progress at once for a moment; return whether that is a change."""
        begins = not self.is_set()
        self._until = self._now() + _HASTE_SECONDS
        return begins

    def is_set(self) -> bool:
        """Return whether it is to be stored at once."""
        return self._until > 0.0 and self._now() < self._until


def follow(
    driver: PartitionDriver,
    watcher: HeadWatcher,
    stopping: Signal,
    haste: Haste | None = None,
    at_once: AtOnce | None = None,
) -> None:
    """Move a partition until ``stopping`` is set or another process has claimed it; then release it.

    With ``at_once`` it steps when that permits. An error outside of a step, such as an observer's, is recorded in
    the partition's status and raised.
    """
    try:
        _step_until_stopped(driver, watcher, stopping, Haste() if haste is None else haste, at_once)
    except BaseException as error:
        raise_interrupt(error)
        driver.fail(error)
        raise
    finally:
        driver.release()


def _step_until_stopped(
    driver: PartitionDriver, watcher: HeadWatcher, stopping: Signal, haste: Haste, at_once: AtOnce | None
) -> None:
    flushing = _Flushing(driver, watcher, stopping, haste)
    interruptions = watcher.interruptions
    rest = driver.processor.resting(stopping, watcher.wake)
    while not (stopping.is_set() or driver.over or driver.abandoned):
        wait = driver.wait()
        if wait > 0:
            watcher.pause(wait, rest)
            continue
        if watcher.interruptions != interruptions:
            interruptions = watcher.interruptions
            driver.supervised.doubt()
        seen = watcher.head
        flushes = flushing.due(seen)
        if at_once is not None and not at_once.begin(driver, stopping):
            return
        try:
            outcome = driver.flush() if flushes else driver.step()
        finally:
            if at_once is not None:
                at_once.end(driver)
        if (outcome.idle or _is_done(driver, watcher.head)) and not driver.supervised.is_due_in_inbox:
            # Also beyond the head seen before the step: it has found nothing there, and would find nothing again.
            quiet = min(_IDLE_SECONDS, driver.supervised.until_tick())
            watcher.wait_beyond(max(driver.cursor.position, seen), quiet, rest)
            if watcher.refusal is not None and not stopping.is_set():
                driver.refuse(watcher.refusal)


def _is_done(driver: PartitionDriver, head: int) -> bool:
    """Return whether the partition is exactly at the newest event seen, so that no read is needed."""
    return driver.cursor.position == head and driver.supervised.done(head)


class _Flushing:
    """When to store progress over events of other partitions: in a quiet moment, but not too late.

    Otherwise each new event would cost every other partition of its group a transaction. While a caller waits for the
    progress, it is stored at once.
    """

    def __init__(self, driver: PartitionDriver, watcher: HeadWatcher, stopping: Signal, haste: Haste) -> None:
        self._driver = driver
        self._watcher = watcher
        self._stopping = stopping
        self._haste = haste
        self._since: float | None = None  # when the unstored progress began

    def due(self, seen: int) -> bool:
        """Wait a moment for new events if there is only progress to store; return whether to store it now."""
        cursor = self._driver.cursor
        waits = self._driver.supervised.failure is not None or self._driver.processor.withholds()
        if cursor.position == cursor.stored or waits:
            self._since = None
            return False
        self._since = self._since or time.monotonic()
        if cursor.position != seen or cursor.doubtful:
            return False
        self._watcher.wait_beyond(seen, _QUIET_SECONDS, self)
        return self._haste.is_set() or self._watcher.head == seen or time.monotonic() - self._since > _UNSTORED_SECONDS

    def is_set(self) -> bool:
        """Return whether not to wait for a quiet moment."""
        return self._haste.is_set() or self._stopping.is_set()

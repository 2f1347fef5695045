"""The part of the contract of progress trackers that is about what is recorded beside the progress."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from time import monotonic
from typing import Any, Protocol, TypeVar

import pytest

from opencqrs_py.errors import FencedError
from opencqrs_py.model import Cursor, FailureRecord, PartitionStatus, ProcessorState, Skip, layout
from opencqrs_py.processing.ports import ProgressTracker, UnitOfWork
from opencqrs_py.testing.contracts.calls import begun

T = TypeVar("T")
SECONDS = 30.0  # longest wait for another thread
PROMPT = 0.3  # seconds that another thread gets at least, if it does not have to wait
ONE = layout(1)
FAILURE = FailureRecord(
    position=7,
    event_id="id 7",
    event_type="lent.v1",
    attempts=4,
    retries=2,
    first_error="ValueError: größe \0 \udcff",
    last_error="KeyError: o'brien %s :x {y} 😀",
    first_failed_at="2026-01-01T00:00:00.000+00:00",
    next_attempt_at="2026-01-01T00:00:30.000+00:00",
)
SKIP = Skip(
    "group", ONE[0], 7, "id 7", "urn:größe", "/books/7", "lent.v1", 4, "ValueError: no", "2026-01-01T00:00:00.000+00:00"
)


class ReadModel(Protocol):
    """What handlers write through a unit of work, for the tests to read."""

    def write(self, unit: UnitOfWork, value: str) -> None:
        """Add a value as a handler does."""
        ...

    def values(self) -> list[str]:
        """Return the committed values in the order in which they were written."""
        ...


class CrashError(BaseException):
    """The end of a process, as far as a tracker can see it."""


def claimed(tracker: ProgressTracker, group: str = "group", initial: int = 0) -> Cursor:
    """Claim the only partition of a group."""
    (cursor,) = tracker.claim(group, ONE, initial, "owner")
    return cursor


def moved(tracker: ProgressTracker, cursor: Cursor, to: int, group: str = "group") -> Cursor:
    """Move a partition in a separate unit of work."""
    with tracker.unit(group, cursor, to):
        pass
    return cursor.moved_to(to, stored=True)


def timed(call: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    """Return the result of a call that waits for nothing, and how many seconds a similar one gets on another thread."""
    before = monotonic()
    result = call(*arguments)
    return result, max(PROMPT, 3 * (monotonic() - before))


def meanwhile(seconds: float, call: Callable[..., T], *arguments: Any) -> Future[T]:
    """Begin a call on another thread, and let it return if it does not wait for a unit of work of this thread."""
    future = begun(call, *arguments)
    wait([future], seconds)
    return future


class ProgressRecordsContract:
    """Failures, skipped events and the fingerprint of the log. Part of ``ProgressTrackerContract``."""

    def test_the_fingerprint_of_the_log_is_stored_with_the_progress(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        (cursor,) = tracker.claim("group", ONE, 3, "owner", fingerprint="at 3")
        assert cursor.fingerprint == "at 3"
        with tracker.unit("group", cursor, 5, fingerprint="at 5"):
            pass
        found = another.renewed("group", cursor)
        assert found is not None
        assert (found.stored, found.fingerprint) == (5, "at 5")
        assert claimed(another, initial=9).fingerprint == "at 5"

    def test_each_partition_has_its_own_fingerprint(self, tracker: ProgressTracker, another: ProgressTracker) -> None:
        first, second = tracker.claim("group", layout(2), 3, "owner", fingerprint="at 3")
        with tracker.unit("group", first, 5, fingerprint="at 5"):
            pass
        moved = another.renewed("group", first), another.renewed("group", second)
        assert [found and (found.stored, found.fingerprint) for found in moved] == [(5, "at 5"), (3, "at 3")]
        claimed_again = another.claim("group", layout(2), 9, "heir", fingerprint="at 9")
        assert [(one.stored, one.fingerprint) for one in claimed_again] == [(5, "at 5"), (3, "at 3")]

    def test_the_fingerprint_of_a_failed_unit_is_discarded(self, tracker: ProgressTracker) -> None:
        cursor = claimed(tracker)
        with pytest.raises(CrashError), tracker.unit("group", cursor, 5, fingerprint="at 5"):
            raise CrashError
        assert claimed(tracker).fingerprint == ""

    def test_a_reported_failure_is_found_by_the_next_claim(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        cursor = claimed(tracker)
        tracker.report(_failed(cursor), cursor.epoch)
        found = claimed(another)
        assert found.failure == FAILURE
        assert (found.failing, found.attempt) == (7, 3)
        assert [status.failure for status in another.statuses()] == [FAILURE]

    @pytest.mark.parametrize(("to", "kept"), [(6, True), (7, False), (9, False)])
    def test_a_failure_is_over_when_the_progress_has_passed_its_event(
        self, tracker: ProgressTracker, to: int, *, kept: bool
    ) -> None:
        cursor = claimed(tracker)
        tracker.report(_failed(cursor), cursor.epoch)
        moved(tracker, claimed(tracker), to)
        assert claimed(tracker).failure == (FAILURE if kept else None)

    def test_a_failure_is_over_when_its_owner_reports_none(self, tracker: ProgressTracker) -> None:
        cursor = claimed(tracker)
        tracker.report(_failed(cursor), cursor.epoch)
        tracker.report(PartitionStatus("group", ONE[0], 0, ProcessorState.RUNNING), cursor.epoch)
        assert claimed(tracker).failure is None

    def test_a_failure_reported_by_a_zombie_is_ignored(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        zombie = claimed(tracker)
        claimed(another)
        tracker.report(_failed(zombie), zombie.epoch)
        assert claimed(another).failure is None

    @pytest.mark.parametrize("state", list(ProcessorState))
    def test_a_claim_shows_whether_the_previous_owner_released_the_partition(
        self, tracker: ProgressTracker, another: ProgressTracker, state: ProcessorState
    ) -> None:
        cursor = claimed(tracker)
        assert not cursor.unreleased
        tracker.report(PartitionStatus("group", ONE[0], 0, state), cursor.epoch)
        assert claimed(another).unreleased is (state is not ProcessorState.STOPPED)

    def test_an_owner_that_never_reported_has_not_released_its_partition(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        claimed(tracker)
        assert claimed(another).unreleased

    def test_a_claim_counts_an_event_still_in_hand_as_a_crash(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        cursor = claimed(tracker)
        marked = replace(FAILURE, attempts=0, crashes=1, in_hand=True)
        tracker.report(replace(_failed(cursor), failure=marked), cursor.epoch)
        for _ in range(2):  # however often it is claimed: the count lasts only once an owner reports it
            assert claimed(another).failure == replace(marked, crashes=2, in_hand=False)
        moved(another, claimed(another), 7)
        assert claimed(tracker).failure is None

    def test_a_skip_is_recorded_with_the_progress_that_passes_it(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        cursor = claimed(tracker)
        with tracker.unit("group", cursor, 7, skip=SKIP):
            pass
        assert tracker.skipped() == [SKIP]
        assert [status.skipped for status in tracker.statuses()] == [1]
        assert claimed(another).stored == 7

    def test_a_skip_whose_progress_is_not_committed_is_not_recorded(self, tracker: ProgressTracker) -> None:
        cursor = claimed(tracker)
        with pytest.raises(CrashError), tracker.unit("group", cursor, 7, skip=SKIP):
            raise CrashError
        claimed(tracker)
        with pytest.raises(FencedError), tracker.unit("group", cursor, 7, skip=SKIP):
            pytest.fail("the unit of a lost claim was opened")
        assert tracker.skipped() == []

    def test_skips_are_listed_by_group_and_position(self, tracker: ProgressTracker) -> None:
        for group, position in (("zoo", 3), ("books", 12), ("books", 4)):
            cursor = claimed(tracker, group)
            skip = replace(SKIP, group=group, position=position)
            with tracker.unit(group, cursor, max(position, cursor.stored), skip=skip):
                pass
        assert [(skip.group, skip.position) for skip in tracker.skipped()] == [("books", 4), ("books", 12), ("zoo", 3)]


def _failed(cursor: Cursor) -> PartitionStatus:
    return PartitionStatus("group", cursor.partition, 0, ProcessorState.BACKING_OFF, 4, "no", failure=FAILURE)

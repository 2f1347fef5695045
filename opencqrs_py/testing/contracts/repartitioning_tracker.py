"""The contract of trackers that can give groups other partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from opencqrs_py.control.layouts import Log, carried_over
from opencqrs_py.errors import FencedError, LayoutChangedError, LayoutError
from opencqrs_py.model import Cursor, Partition, PartitionStatus, ProcessorState, layout
from opencqrs_py.model.ahead import Ahead
from opencqrs_py.model.group_record import FoundGroup, GroupRecord, RecordedLayout
from opencqrs_py.model.replay import Replay, Reset
from opencqrs_py.processing.ports import RepartitioningTracker
from opencqrs_py.testing.contracts.progress_records import FAILURE, SECONDS, SKIP, CrashError

ONE, TWO = layout(1), layout(2)
THREE = Partition(2, 0), Partition(4, 1), Partition(4, 3)
REPLAY = Replay(Reset("group", 2, {"why": "größe"}, "", "2026-01-01T00:00:00.000+00:00"), 90, (4, 5))


def keep(found: FoundGroup) -> GroupRecord:
    """Return the record of a group with the partitions that a claim has found."""
    return found.record or GroupRecord("group", layout=RecordedLayout(tuple(found.partitions), len(found.partitions)))


def begun(tracker: RepartitioningTracker, *positions: int) -> tuple[Cursor, ...]:
    """Claim a group with one partition for each position, and move each there."""
    cursors = tracker.claim("group", layout(len(positions)), 0, "owner", keep=keep)
    return tuple(moved(tracker, cursor, to) for cursor, to in zip(cursors, positions, strict=True))


def moved(tracker: RepartitioningTracker, cursor: Cursor, to: int) -> Cursor:
    """Move a partition in a separate unit of work."""
    with tracker.unit("group", cursor, to, fingerprint=f"at {to}"):
        pass
    return cursor.moved_to(to, stored=True, fingerprint=f"at {to}")


def carry_to(
    partitions: Sequence[Partition], log: Log | None = None
) -> Callable[[Mapping[Partition, Cursor]], Mapping[Partition, Cursor]]:
    """Return the function that carries progress over to a layout."""
    return lambda known: carried_over(known, partitions, log or Log(lambda _: None))


def release(tracker: RepartitioningTracker, *cursors: Cursor) -> None:
    """Report partitions as stopped."""
    for cursor in cursors:
        stopped = PartitionStatus("group", cursor.partition, cursor.stored, ProcessorState.STOPPED)
        tracker.report(stopped, cursor.epoch)


class RepartitioningTrackerContract:
    """What changes of partitions rely on.

    Give ``tracker``, without any progress; and ``another``, which sees the same progress as a second process would.
    """

    @pytest.fixture
    def tracker(self) -> RepartitioningTracker:
        """Return a tracker without progress."""
        raise NotImplementedError

    @pytest.fixture
    def another(self, tracker: RepartitioningTracker) -> RepartitioningTracker:
        """Return another tracker of the same progress."""
        return tracker

    def test_halves_that_are_merged_continue_at_the_position_of_both(
        self, tracker: RepartitioningTracker, another: RepartitioningTracker
    ) -> None:
        release(tracker, *begun(tracker, 10, 20))
        carried = tracker.repartition("group", ONE, carry_to(ONE))
        assert [str(one) for one in carried] == ["0/1"]
        ahead = Ahead(((Partition(2, 1), 20),))
        (cursor,) = another.claim("group", ONE, 0, "next", keep=keep)
        assert (cursor.stored, cursor.fingerprint, cursor.ahead, cursor.unreleased) == (10, "at 10", ahead, False)
        assert [(status.partition, status.position) for status in another.statuses()] == [(ONE[0], 10)]
        cursor = moved(another, cursor, 15)
        renewed = tracker.renewed("group", cursor)
        assert renewed is not None
        assert renewed.ahead == ahead
        moved(another, cursor, 20)
        assert tracker.claim("group", ONE, 0, "owner", keep=keep)[0].ahead is None

    def test_partitions_of_both_layouts_keep_their_owners(
        self, tracker: RepartitioningTracker, another: RepartitioningTracker
    ) -> None:
        even, odd = begun(tracker, 10, 20)
        another.repartition("group", THREE, carry_to(THREE))
        assert moved(tracker, even, 11).stored == 11
        with pytest.raises(FencedError), tracker.unit("group", odd, 21):
            pytest.fail("the unit was opened")
        found = [f"{one.partition} at {one.position}" for one in another.statuses()]
        assert found == ["0/2 at 11", "1/4 at 20", "3/4 at 20"]

    def test_repartitioning_waits_for_the_chunk_in_hand(
        self, tracker: RepartitioningTracker, another: RepartitioningTracker
    ) -> None:
        cursor, _ = begun(tracker, 10, 20)
        if another is tracker:
            pytest.skip("the unit of another thread of the same process is fenced instead")
        with ThreadPoolExecutor(1) as threads:
            with tracker.unit("group", cursor, 12):
                changed = threads.submit(another.repartition, "group", ONE, carry_to(ONE))
            assert changed.result(SECONDS)[ONE[0]].stored == 12

    def test_a_previous_owner_stays_fenced_even_if_its_partition_comes_back(
        self, tracker: RepartitioningTracker, another: RepartitioningTracker
    ) -> None:
        old = begun(tracker, 10, 20)
        another.repartition("group", ONE, carry_to(ONE))
        another.repartition("group", TWO, carry_to(TWO))
        for cursor in old:
            with pytest.raises(FencedError), tracker.unit("group", cursor, 25):
                pytest.fail("the unit was opened")
        assert [status.position for status in another.statuses()] == [10, 20]

    def test_an_unreleased_partition_stays_unreleased(
        self, tracker: RepartitioningTracker, another: RepartitioningTracker
    ) -> None:
        even, _ = begun(tracker, 10, 20)
        release(tracker, even)
        four = layout(4)
        another.repartition("group", four, carry_to(four))
        cursors = another.claim("group", four, 0, "next", keep=keep)
        assert [cursor.unreleased for cursor in cursors] == [False, True, False, True]

    def test_the_failure_of_an_event_moves_to_its_new_partition(
        self, tracker: RepartitioningTracker, another: RepartitioningTracker
    ) -> None:
        _, odd = begun(tracker, 3, 6)
        failed = PartitionStatus("group", odd.partition, 6, ProcessorState.BACKING_OFF, 4, "no", failure=FAILURE)
        tracker.report(failed, odd.epoch)
        another.repartition("group", THREE, carry_to(THREE, Log({7: [3]}.get)))
        cursors = another.claim("group", THREE, 0, "next", keep=keep)
        found = {str(each.partition): each.failure for each in cursors}
        assert found == {"0/2": None, "1/4": None, "3/4": FAILURE}
        assert [each.attempt for each in cursors] == [1, 1, FAILURE.retries + 1]
        assert [status.failure for status in tracker.statuses()] == [None, None, FAILURE]

    def test_a_replay_moves_to_the_new_partitions(
        self, tracker: RepartitioningTracker, another: RepartitioningTracker
    ) -> None:
        release(tracker, *begun(tracker, 10, 20))
        four = layout(4)

        def carry(known: Mapping[Partition, Cursor]) -> Mapping[Partition, Cursor]:
            carried = carried_over(known, four, Log(lambda _: None))
            return {one: replace(each, replay=REPLAY) for one, each in carried.items()}

        tracker.repartition("group", four, carry)
        assert [cursor.replay for cursor in another.claim("group", four, 0, "next", keep=keep)] == [REPLAY] * 4

    def test_skipped_events_stay_with_the_group(
        self, tracker: RepartitioningTracker, another: RepartitioningTracker
    ) -> None:
        cursors = begun(tracker, 6, 6)
        for cursor in cursors:
            skip = replace(SKIP, partition=cursor.partition, position=7 + cursor.partition.residue)
            with tracker.unit("group", cursor, 8, skip=skip):
                pass
        another.repartition("group", ONE, carry_to(ONE))
        assert [(one.position, one.partition) for one in another.skipped()] == [(7, ONE[0]), (8, ONE[0])]
        assert [status.skipped for status in another.statuses()] == [2]
        another.repartition("group", TWO, carry_to(TWO))
        assert sum(status.skipped for status in another.statuses()) == 2

    def test_an_event_skipped_by_two_partitions_is_listed_once_after_a_merge(
        self, tracker: RepartitioningTracker
    ) -> None:
        for cursor in begun(tracker, 6, 6):
            with tracker.unit("group", cursor, 8, skip=replace(SKIP, partition=cursor.partition)):
                pass
        tracker.repartition("group", ONE, carry_to(ONE))
        assert {one.position for one in tracker.skipped()} == {SKIP.position}
        tracker.repartition("group", TWO, carry_to(TWO))
        assert {one.position for one in tracker.skipped()} == {SKIP.position}

    def test_the_new_partitions_and_their_reason_are_recorded(
        self, tracker: RepartitioningTracker, another: RepartitioningTracker
    ) -> None:
        begun(tracker, 10, 20)
        tracker.repartition("group", THREE, carry_to(THREE))
        assert [one.layout for one in another.records()] == [RecordedLayout(THREE, 2)]
        four = layout(4)
        tracker.repartition("group", four, carry_to(four), setting=4)
        assert [one.layout for one in another.records()] == [RecordedLayout(four, 4, (2,))]

    def test_claiming_a_replaced_partition_reports_the_current_ones(
        self, tracker: RepartitioningTracker, another: RepartitioningTracker
    ) -> None:
        begun(tracker, 10, 20)
        tracker.repartition("group", THREE, carry_to(THREE))
        with pytest.raises(LayoutChangedError) as raised:
            another.claim("group", [TWO[1]], 0, "next", TWO, keep=keep)
        assert raised.value.partitions == tuple((one.modulus, one.residue) for one in THREE)
        (cursor,) = another.claim("group", [THREE[2]], 0, "next", TWO, keep=keep)  # whatever else is configured
        assert cursor.stored == 20

    def test_a_failed_change_leaves_the_partitions_as_they_were(
        self, tracker: RepartitioningTracker, another: RepartitioningTracker
    ) -> None:
        begun(tracker, 10, 20)

        def carry(_known: object) -> Mapping[Partition, Cursor]:
            raise CrashError

        with pytest.raises(CrashError):
            tracker.repartition("group", ONE, carry)
        assert [(status.partition, status.position) for status in another.statuses()] == [(TWO[0], 10), (TWO[1], 20)]
        assert [cursor.stored for cursor in another.claim("group", TWO, 0, "next", keep=keep)] == [10, 20]

    def test_partitions_that_change_meanwhile_are_not_changed_again(
        self, tracker: RepartitioningTracker, another: RepartitioningTracker
    ) -> None:
        begun(tracker, 10, 20)
        seen: list[Mapping[Partition, Cursor]] = []

        def carry(known: Mapping[Partition, Cursor]) -> Mapping[Partition, Cursor]:
            seen.append(known)
            return carried_over(known, ONE, Log(lambda _: None))

        tracker.repartition("group", ONE, carry)
        with pytest.raises(LayoutError, match="OCQ-615"):
            another.repartition("group", ONE, carry)
        assert len(seen) == 1

    def test_a_group_without_progress_has_no_partitions_to_change(self, tracker: RepartitioningTracker) -> None:
        with pytest.raises(LayoutError, match="group 'group' has no progress yet"):
            tracker.repartition("group", TWO, carry_to(TWO))
        assert tracker.statuses() == []

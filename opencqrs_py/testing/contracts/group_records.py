"""The contract of trackers that keep a record of each group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import pytest

from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import layout
from opencqrs_py.model.group_record import FoundGroup, GroupRecord, HandlersChange, RecordedSelection
from opencqrs_py.processing.ports import GroupRecords, ProgressTracker, RebuildRecords

TWO = layout(2)
RECORD = GroupRecord("group", "-P7D", 3, "2026-01-01T00:00:00.000+00:00", "1:größe", "1:a")


class TrackerWithRecords(GroupRecords, ProgressTracker, Protocol):
    """A tracker with records."""


class UndoneError(Exception):
    """The reason for which a claim is undone."""


def keeping(record: GroupRecord, seen: list[FoundGroup] | None = None) -> Callable[[FoundGroup], GroupRecord]:
    """Return a function that keeps a record whatever a claim finds, and remembers what it found."""

    def keep(found: FoundGroup) -> GroupRecord:
        if seen is not None:
            seen.append(found)
        return record

    return keep


def refuse(_found: FoundGroup) -> GroupRecord:
    """Refuse a claim."""
    raise UndoneError


class GroupRecordsContract:
    """What claims rely on. Give ``tracker``, without any progress, and ``another``, which sees the same."""

    @pytest.fixture
    def tracker(self) -> TrackerWithRecords:
        """Return a tracker without progress."""
        raise NotImplementedError

    @pytest.fixture
    def another(self, tracker: TrackerWithRecords) -> TrackerWithRecords:
        """Return another tracker of the same progress."""
        return tracker

    def test_the_tracker_keeps_group_records(self, tracker: TrackerWithRecords) -> None:
        assert isinstance(tracker, GroupRecords)
        assert tracker.records() == []

    def test_a_group_that_was_never_rebuilt_is_not_among_those_rebuilt(self, tracker: TrackerWithRecords) -> None:
        if not isinstance(tracker, RebuildRecords):
            pytest.skip("it keeps no records of rebuilds")
        assert tracker.rebuilt(["group"]) == []
        tracker.claim("group", TWO, 3, "owner", keep=keeping(RECORD))
        assert tracker.rebuilt(["group", "unknown"]) == []

    def test_the_first_claim_finds_nothing_and_keeps_a_record(
        self, tracker: TrackerWithRecords, another: TrackerWithRecords
    ) -> None:
        seen: list[FoundGroup] = []
        tracker.claim("group", TWO[:1], 3, "owner", layout=TWO, keep=keeping(RECORD, seen))
        (found,) = seen
        assert (found.record, dict(found.positions), [*found.partitions]) == (None, {}, [*TWO])
        assert found.missing == [*TWO]
        assert another.records() == [RECORD]

    def test_later_claims_find_the_record_and_the_positions(
        self, tracker: TrackerWithRecords, another: TrackerWithRecords
    ) -> None:
        first, _ = tracker.claim("group", TWO, 3, "owner", keep=keeping(RECORD))
        with tracker.unit("group", first, 5):
            pass
        seen: list[FoundGroup] = []
        cursors = another.claim("group", TWO[1:], 99, "heir", layout=TWO, keep=keeping(RECORD, seen))
        assert [cursor.stored for cursor in cursors] == [3]
        (found,) = seen
        assert (found.record, dict(found.positions), found.missing) == (RECORD, {TWO[0]: 5, TWO[1]: 3}, [])
        assert found.claimed is not None
        assert [*found.claimed] == [TWO[1]]

    @pytest.mark.parametrize(
        "record",
        [
            replace(RECORD, changes=(HandlersChange(5, "2026-01-02T00:00:00.000+00:00", "1:b"),)),
            replace(RECORD, changes=(HandlersChange(5, "2026-01-02T00:00:00.000+00:00", "1:b", TWO),)),
            replace(RECORD, selection=RecordedSelection((("fetch.subject", "/bücher"),))),
            replace(RECORD, selection=RecordedSelection((("a", "1"), ("b", "2")), 7, (("a", "0"), ("b", "2")))),
            replace(RECORD, setting="", position=None),
            replace(RECORD, handlers="", sequencing="", began_at=""),
        ],
    )
    def test_a_changed_record_replaces_the_previous_one(
        self, tracker: TrackerWithRecords, another: TrackerWithRecords, record: GroupRecord
    ) -> None:
        tracker.claim("group", TWO, 0, "owner", keep=keeping(RECORD))
        tracker.claim("group", TWO, 0, "owner", keep=keeping(record))
        assert another.records() == [record]

    def test_a_refused_claim_changes_nothing(self, tracker: TrackerWithRecords, another: TrackerWithRecords) -> None:
        with pytest.raises(UndoneError):
            tracker.claim("group", TWO, 0, "owner", keep=refuse)
        assert (another.records(), another.statuses()) == ([], [])
        (cursor, _) = tracker.claim("group", TWO, 3, "owner", keep=keeping(RECORD))
        with pytest.raises(UndoneError):
            another.claim("group", TWO, 0, "heir", keep=refuse)
        assert another.records() == [RECORD]
        with tracker.unit("group", cursor, 5):  # it is not fenced
            pass
        assert [status.position for status in another.statuses()] == [5, 3]

    def test_a_claim_that_keeps_no_record_leaves_the_stored_one(self, tracker: TrackerWithRecords) -> None:
        tracker.claim("group", TWO, 0, "owner", keep=keeping(RECORD))
        tracker.claim("group", TWO, 0, "owner")
        assert tracker.records() == [RECORD]

    def test_each_group_has_its_own_record(self, tracker: TrackerWithRecords) -> None:
        for name in ("größe", "books", "o'brien"):
            tracker.claim(name, TWO, 0, "owner", keep=keeping(replace(RECORD, group=name)))
        assert {record.group for record in tracker.records()} == {"größe", "books", "o'brien"}

    def test_progress_without_a_record_gets_one(self, tracker: TrackerWithRecords) -> None:
        tracker.claim("group", TWO, 7, "owner")
        seen: list[FoundGroup] = []
        tracker.claim("group", TWO, 0, "owner", keep=keeping(RECORD, seen))
        assert (seen[0].record, dict(seen[0].positions)) == (None, dict.fromkeys(TWO, 7))
        assert tracker.records() == [RECORD]

    def test_another_layout_is_refused_before_anything_is_kept(self, tracker: TrackerWithRecords) -> None:
        tracker.claim("group", TWO, 0, "owner", keep=keeping(RECORD))
        for count in (1, 3, 4):
            with pytest.raises(EventStoreError, match="OCQ-310"):
                tracker.claim("group", layout(count), 0, "owner", keep=refuse)

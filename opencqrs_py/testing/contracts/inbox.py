"""The contract of inboxes: where events wait for their next attempt, beside the progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from opencqrs_py.errors import InboxFullError
from opencqrs_py.model import Cursor, Skip, layout
from opencqrs_py.model.inbox import (
    FailedAttempt,
    Fetching,
    InboxChange,
    InboxEntry,
    InboxSelection,
    InboxStatus,
    ParkedSequences,
    Remainder,
)
from opencqrs_py.model.partition import hash_of
from opencqrs_py.processing.ports import ParkingTracker
from opencqrs_py.testing.contracts.inbox_units import (
    EARLIER,
    LATER,
    LATEST,
    NOON,
    ODD,
    WHOLE,
    InboxUnitsContract,
    at,
    brought_in,
    entry,
    parked,
    without_limits,
)

TWO = layout(2)


class InboxContract(InboxUnitsContract):
    """What processors and people rely on.

    Give ``tracker``, without any progress, and ``another`` that sees the same.
    """

    @pytest.fixture
    def tracker(self) -> ParkingTracker:
        """Return a tracker without progress, and with an empty inbox."""
        raise NotImplementedError

    @pytest.fixture
    def another(self, tracker: ParkingTracker) -> ParkingTracker:
        """Return another tracker of the same progress."""
        return tracker

    @pytest.fixture
    def cursor(self, tracker: ParkingTracker) -> Cursor:
        """Return where the only partition of the group begins."""
        (claimed,) = tracker.claim("group", [WHOLE], 0, "owner")
        return claimed

    def due(
        self, tracker: ParkingTracker, until: datetime, most: int = 10, fetching: Fetching = Fetching.FIRST
    ) -> list[list[int]]:
        """Return the positions of the events of each sequence that is due."""
        return [[one.position for one in found] for found in tracker.due("group", WHOLE, until, most, fetching)]

    def test_nothing_waits_at_first(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        assert tracker.parked("group", [WHOLE]) == {WHOLE: ParkedSequences()}
        assert tracker.due("group", cursor.partition, LATER, 10) == []
        assert tracker.next_due("group", [WHOLE]) == {WHOLE: None}
        assert tracker.entries("group") == []
        assert [status.parked for status in tracker.statuses()] == [()]

    def test_an_entry_is_stored_unchanged_together_with_the_progress(
        self, tracker: ParkingTracker, another: ParkingTracker, cursor: Cursor
    ) -> None:
        error = parked(3)
        self.put(tracker, cursor, error)
        assert another.entries("group") == [error]
        assert [status.position for status in another.statuses()] == [3]
        assert another.parked("group", [WHOLE])[WHOLE] == ParkedSequences(frozenset({"books/1"}), at(LATER))

    def test_putting_a_sequence_off_respects_what_a_person_has_just_changed(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        change = without_limits(entry(1), entry(2)._replace(status=InboxStatus.PAUSED))
        with tracker.unit("group", cursor, 2, change=change):
            pass
        cursor = replace(cursor, stored=2, position=2)
        paused, free = entry(2)._replace(status=InboxStatus.PAUSED), entry(2)
        (before,) = [one for one in tracker.entries("group") if one.position == 1]
        off = InboxChange(at(NOON), remainders=(Remainder("books/1", None),))
        assert before.due_at is not None
        assert tracker.change("group", InboxChange(at(NOON), changed=((paused, free),)))
        with tracker.unit("group", cursor, 2, change=off):
            pass
        assert [one.due_at for one in tracker.entries("group")] == [before.due_at, None]
        assert tracker.change("group", InboxChange(at(NOON), changed=((free, paused),)))
        with tracker.unit("group", cursor, 2, change=off):
            pass
        assert [one.due_at for one in tracker.entries("group")] == [None, None]

    @pytest.mark.parametrize("sequence_id", ["", " ", "books/1 ", "BOOKS/1", ODD, "x" * 3_000])
    def test_sequence_ids_are_kept_unchanged(self, tracker: ParkingTracker, cursor: Cursor, sequence_id: str) -> None:
        cursor = self.put(tracker, cursor, parked(1), parked(2, sequence_id))
        known = tracker.parked("group", [WHOLE])[WHOLE]
        assert known.ids == {"books/1", sequence_id}
        self.take(tracker, cursor, parked(2, sequence_id))
        assert [one.sequence_id for one in tracker.entries("group")] == ["books/1"]

    def test_only_the_first_event_of_a_sequence_is_due(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        cursor = self.put(tracker, cursor, parked(1), entry(2))
        self.put(tracker, cursor, entry(3))
        assert self.seen(tracker) == [(1, "retrying", at(LATER)), (2, "pending", None), (3, "pending", None)]

    def test_an_event_of_a_sequence_with_nothing_waiting_is_due_at_once(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        self.put(tracker, cursor, entry(5))
        assert self.seen(tracker) == [(5, "pending", at(NOON))]

    @pytest.mark.parametrize("coming_in", [brought_in, without_limits])
    def test_an_event_waits_after_its_own_sequence_and_not_after_another_with_the_same_hash(
        self, tracker: ParkingTracker, cursor: Cursor, coming_in: Callable[..., InboxChange]
    ) -> None:
        one, other, third = "plumless", "buckeroo", "books/3"
        waiting = (entry(1, one), entry(2, third), entry(3, one))
        with tracker.unit("group", cursor, 3, change=coming_in(*waiting)):
            pass
        moved, later = replace(cursor, stored=3, position=3), (entry(4, other), entry(5, one), entry(6, other))
        with tracker.unit("group", moved, 6, change=coming_in(*later)):
            pass
        moved, last = replace(cursor, stored=6, position=6), (entry(7, other), entry(8, third), entry(9, one))
        with tracker.unit("group", moved, 9, change=coming_in(*last)):
            pass
        due = [position for position, _, due_at in self.seen(tracker) if due_at is not None]
        assert due == [1, 2, 4]
        assert self.due(tracker, NOON, 100) == [[1, 3, 5, 9], [2, 8], [4, 6, 7]]

    @pytest.mark.parametrize("count", [401, 1_100])
    def test_waiting_events_are_found_for_any_number_of_sequences(
        self, tracker: ParkingTracker, cursor: Cursor, count: int
    ) -> None:
        first = tuple(entry(n, f"books/{n}") for n in range(1, count, 2))
        with tracker.unit("group", cursor, count, change=without_limits(*first)):
            pass
        moved = replace(cursor, stored=count, position=count)
        then = tuple(entry(count + n, f"books/{n}") for n in range(1, count))
        with tracker.unit("group", moved, 2 * count, change=without_limits(*then)):
            pass
        due = {position for position, _, due_at in self.seen(tracker) if due_at is not None}
        assert due == {*range(1, count, 2), *range(count + 2, 2 * count, 2)}

    def test_the_next_event_of_a_sequence_is_due_when_the_first_is_done(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        cursor = self.put(tracker, cursor, parked(1), entry(2), entry(3))
        self.take(tracker, cursor, parked(1))
        assert self.seen(tracker) == [(2, "pending", at(NOON)), (3, "pending", None)]
        self.take(tracker, cursor, entry(2), entry(3))
        assert self.seen(tracker) == []
        assert [status.position for status in tracker.statuses()] == [3]

    def test_the_sequence_that_has_been_due_for_longest_comes_first(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        soon = NOON + timedelta(seconds=30)
        late = parked(1, "books/2", LATER)
        self.put(tracker, cursor, late, parked(2, due=soon), entry(3), parked(4, "books/3", LATER))
        assert self.due(tracker, NOON) == []
        assert self.due(tracker, soon) == [[2, 3]]
        assert self.due(tracker, LATER) == [[2, 3], [1], [4]]
        assert tracker.next_due("group", [WHOLE]) == {WHOLE: at(soon)}

    def test_only_a_sequence_longer_than_the_fetch_is_cut(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        soon = NOON + timedelta(seconds=30)
        self.put(tracker, cursor, parked(1, due=soon), entry(2), entry(3), parked(4, "books/2"), entry(5, "books/2"))
        expected = {1: [[1]], 2: [[1, 2]], 3: [[1, 2, 3]], 4: [[1, 2, 3]], 5: [[1, 2, 3], [4, 5]]}
        assert {most: self.due(tracker, LATER, most) for most in expected} == expected
        assert self.due(tracker, LATER, 1, Fetching.WHOLE) == [[1, 2, 3]]

    def test_events_tried_individually_are_due_individually(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        added = (entry(1), entry(2)._replace(due_at=at(LATER)), entry(3, "books/2"), entry(4))
        with tracker.unit("group", cursor, 4, change=replace(brought_in(*added), each=True)):
            pass
        assert self.due(tracker, NOON, 10, Fetching.DUE) == [[1, 4], [3]]
        assert self.due(tracker, LATER, 10, Fetching.DUE) == [[1, 2, 4], [3]]
        put_off = Remainder("books/1", at(LATER), until=at(NOON))
        moved = replace(cursor, stored=4, position=4)
        change = InboxChange(at(NOON), done=(added[3],), remainders=(put_off,), each=True)
        with tracker.unit("group", moved, 4, change=change):
            pass
        assert self.seen(tracker) == [
            (1, "pending", at(LATER)),
            (2, "pending", at(LATER)),
            (3, "pending", at(NOON)),
        ]

    def test_all_due_events_except_the_chosen_ones_are_put_off(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        soon = NOON + timedelta(seconds=30)
        added = (*map(entry, range(1, 5)), entry(5)._replace(due_at=at(LATER)), entry(6, "books/2"))
        cursor = self.put(tracker, cursor, *added, each=True)
        rest = Remainder("books/1", at(soon), until=at(NOON), chosen=(4, 2))
        with tracker.unit("group", cursor, 6, change=InboxChange(at(NOON), remainders=(rest,), each=True)):
            pass
        due = {1: soon, 2: NOON, 3: soon, 4: NOON, 5: LATER, 6: NOON}
        assert self.seen(tracker) == [(one, "pending", at(due[one])) for one in due]

    def test_each_event_has_its_own_due_time_until_the_chosen_events_are_done(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        soon, paused = NOON + timedelta(seconds=30), entry(6).paused()
        added = (*map(entry, range(1, 6)), paused, entry(7, "books/2"))
        cursor = self.put(tracker, cursor, *added)
        rest = Remainder("books/1", at(soon), chosen=(5, 2), chosen_at=at(NOON))
        with tracker.unit("group", cursor, 7, change=InboxChange(at(NOON), done=(added[0],), remainders=(rest,))):
            pass
        due = {2: at(NOON), 3: at(soon), 4: at(soon), 5: at(NOON)}
        chosen = [(one, "pending", due[one]) for one in due]
        assert self.seen(tracker) == [*chosen, (6, "paused", None), (7, "pending", at(NOON))]
        over = InboxChange(at(NOON), done=(added[1], added[4]), remainders=(Remainder("books/1", at(LATER)),))
        with tracker.unit("group", cursor, 7, change=over):
            pass
        assert self.seen(tracker)[:2] == [(3, "pending", at(LATER)), (4, "pending", None)]

    def test_an_event_of_two_sequences_leaves_only_the_one_in_which_it_is_done(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        one, half, other = entry(1, "a"), entry(1, "b"), entry(2, "b")
        cursor = self.put(tracker, cursor, one, half, other)
        with tracker.unit("group", cursor, 2, change=InboxChange(at(NOON), done=(one, other))):
            pass
        assert [(left.position, left.sequence_id) for left in tracker.entries("group")] == [(1, "b")]
        cursor = self.put(tracker, cursor, entry(3, "a"), entry(4, "b"), entry(4, "a"))
        assert tracker.change("group", InboxChange(at(NOON), removed=(entry(3, "a"), entry(4, "b"))))
        left = sorted((left.position, left.sequence_id) for left in tracker.entries("group"))
        assert left == [(1, "b"), (4, "a")]

    def test_events_of_several_sequences_can_be_done_and_the_rest_is_put_off(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        added = (entry(1), entry(2), entry(3, "books/2"), entry(4, "books/2"), entry(5, "books/3"))
        cursor = self.put(tracker, cursor, *added)
        rest = (Remainder("books/1", at(LATER)), Remainder("books/2", None))
        change = InboxChange(at(NOON), done=(added[1], added[2], added[4]), remainders=rest)
        with tracker.unit("group", cursor, cursor.stored, change=change):
            pass
        assert self.seen(tracker) == [(1, "pending", at(LATER)), (4, "pending", None)]
        assert tracker.change("group", InboxChange(at(NOON), changed=((added[3], added[3].with_retries(1)),)))
        assert self.seen(tracker)[1] == (4, "pending", at(NOON))

    def test_only_the_first_remaining_event_gets_a_due_time(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        added = (entry(1), entry(2), entry(3))
        cursor = self.put(tracker, cursor, *added)
        both = tuple((one, one._replace(due_at=at(NOON))) for one in added[1:])
        assert tracker.change("group", InboxChange(at(NOON), changed=both))
        put_off = InboxChange(at(NOON), remainders=(Remainder("books/1", at(LATER)),))
        with tracker.unit("group", cursor, cursor.stored, change=put_off):
            pass
        assert self.seen(tracker) == [(1, "pending", at(LATER)), (2, "pending", None), (3, "pending", None)]

    def test_remaining_events_are_not_due_while_the_first_waits_for_a_person(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        added = (entry(1), parked(2, due=None), entry(3))
        cursor = self.put(tracker, cursor, *added)
        assert not tracker.is_stuck("group", "books/2")
        assert tracker.is_stuck("group", "books/1")
        self.take(tracker, cursor, added[0])
        assert self.seen(tracker) == [(2, "exhausted", None), (3, "pending", None)]

    def test_expired_events_are_counted_as_expired_and_found(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        over, later = entry(2)._replace(expires_at=at(NOON)), parked(3, "books/2", None)._replace(expires_at=at(LATER))
        self.put(tracker, cursor, entry(1), over, later)
        before = NOON - timedelta(milliseconds=1)
        assert [tracker.expired("group", WHOLE, when, 10) for when in (before, NOON)] == [
            (),
            (over._replace(due_at=None),),
        ]
        assert [one.position for one in tracker.expired("group", WHOLE, LATER, 10)] == [2, 3]
        assert [one.position for one in tracker.expired("group", WHOLE, LATER, 1)] == [2]
        (status,) = tracker.statuses()  # by the clock of the machine, which is later
        assert dict(status.parked) == {InboxStatus.PENDING: 1, InboxStatus.EXPIRED: 2}

    def test_without_limits_any_number_of_events_can_wait(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        many = tuple(entry(position, f"books/{position % 1_100}") for position in range(1, 2_300))
        with tracker.unit("group", cursor, 2_299, change=without_limits(*many)):
            pass
        assert len(tracker.entries("group")) == len(many)
        due = tracker.due("group", WHOLE, NOON, 1_000)
        assert [[one.position for one in found] for found in due[:2]] == [[1, 1_101, 2_201], [2, 1_102, 2_202]]
        assert sum(map(len, due)) <= 1_000

    def test_neither_an_event_that_waits_for_a_person_nor_those_after_it_are_due(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        self.put(tracker, cursor, parked(1, due=None), entry(2), parked(3, "books/2"), entry(4, "books/2"))
        assert tracker.parked("group", [WHOLE])[WHOLE].due_at == at(LATER)
        pausing = InboxChange(at(NOON), changed=((entry(4, "books/2"), entry(4, "books/2").paused()),))
        assert tracker.change("group", pausing)
        assert self.due(tracker, LATER) == [[3, 4]]

    def test_a_failed_attempt_is_recorded(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        before = parked(1)
        cursor = self.put(tracker, cursor, before)
        error = FailedAttempt(at(LATER), "OSError: \ud800 \0 not again", "x" * 9_000)
        after = before.failed(error, InboxStatus.RETRYING, LATER)
        with tracker.unit("group", cursor, cursor.stored, change=InboxChange(at(NOON), changed=((before, after),))):
            pass
        (found,) = tracker.entries("group")
        assert (found.attempts, found.retries, found.status, found.due_at) == (2, 2, InboxStatus.RETRYING, at(LATER))
        assert [one.at for one in found.errors] == [at(NOON), at(LATER)]
        assert found.reason.startswith("OSError: ")

    @pytest.mark.parametrize("text", ["x", "\n", "ü", "借", "😀"])
    def test_long_errors_of_many_attempts_are_kept_truncated(
        self, tracker: ParkingTracker, cursor: Cursor, text: str
    ) -> None:
        first = tried = parked(1)
        cursor = self.put(tracker, cursor, first)
        for number in range(15):
            error = FailedAttempt(at(NOON), f"error {number}: {text * 20_000}", f"{text * 20_000} line {number}")
            before, tried = tried, tried.failed(error, InboxStatus.RETRYING, LATER)
            with tracker.unit("group", cursor, cursor.stored, change=InboxChange(at(NOON), changed=((before, tried),))):
                pass
        (found,) = tracker.entries("group")
        known = [first.errors[0].error, *(f"error {number}:" for number in range(6, 15))]
        assert found.attempts == 16
        assert [one.error[: len(start)] for one, start in zip(found.errors, known, strict=True)] == known
        assert [one.lines.split()[-1] for one in found.errors[-5:]] == [str(number) for number in range(10, 15)]

    def test_an_event_whose_attempts_a_person_has_changed_is_not_removed_by_its_old_entry(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        first = parked(1)
        self.put(tracker, cursor, first)
        assert tracker.change("group", InboxChange(at(NOON), changed=((first, first.with_retries(3)),)))
        assert not tracker.change("group", InboxChange(at(NOON), removed=(first,)))
        assert self.seen(tracker) == [(1, "retrying", at(LATER))]

    def test_skipping_an_event_records_the_skip_and_makes_the_next_due(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        self.put(tracker, cursor, parked(1, due=None), entry(2))
        skip = Skip("group", WHOLE, 1, "id 1", "urn:library", "books/1", "lent", 1, "not wanted", at(NOON))
        assert tracker.change("group", InboxChange(at(NOON), removed=(parked(1, due=None),)), [skip])
        assert self.seen(tracker) == [(2, "pending", at(NOON))]
        assert tracker.skipped() == [skip]

    def test_changing_an_event_that_meanwhile_became_the_first_keeps_it_due(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        first, read = parked(1), entry(2)
        cursor = self.put(tracker, cursor, first, read)
        self.take(tracker, cursor, first)
        assert tracker.change("group", InboxChange(at(LATER), changed=((read, read.with_retries(3)),)))
        assert self.seen(tracker) == [(2, "pending", at(LATER))]
        read = read.with_retries(3)
        assert tracker.change("group", InboxChange(at(NOON), changed=((read, read.paused()),)))
        assert self.seen(tracker) == [(2, "paused", None)]
        assert tracker.change("group", InboxChange(at(NOON), changed=((read.paused(), read),)))
        assert self.seen(tracker) == [(2, "pending", at(NOON))]

    def test_any_waiting_event_of_a_sequence_can_be_removed(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        first, *behind = parked(1), entry(2), entry(3), entry(4)
        self.put(tracker, cursor, first, *behind)
        assert tracker.change("group", InboxChange(at(LATER), removed=(behind[0],)))
        assert self.seen(tracker) == [(1, "retrying", at(LATER)), (3, "pending", None), (4, "pending", None)]
        assert tracker.change("group", InboxChange(at(NOON), changed=((first, first.paused()),)))
        assert tracker.change("group", InboxChange(at(NOON), removed=(first.paused(), behind[1])))
        assert self.seen(tracker) == [(4, "pending", at(NOON))]
        assert tracker.change("group", InboxChange(at(NOON), removed=(behind[2],)))
        assert self.seen(tracker) == []

    def test_removing_events_of_many_sequences_makes_the_next_of_each_due(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        over = [entry(1, "books/1"), parked(2, "books/2"), parked(3, "books/3", None), entry(4, "books/4"), entry(5)]
        left = [entry(6), entry(7), entry(8, "books/2"), parked(9, "books/4", None)]
        self.put(tracker, cursor, *over, *left)
        assert tracker.change("group", InboxChange(at(LATER), removed=tuple(over)))
        assert self.seen(tracker) == [
            (6, "pending", at(LATER)),
            (7, "pending", None),
            (8, "pending", at(LATER)),
            (9, "exhausted", None),
        ]

    def test_an_entry_changed_since_it_was_read_prevents_the_whole_removal(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        first, behind = parked(1), entry(2)
        self.put(tracker, cursor, first, behind)
        skip = Skip("group", WHOLE, 2, "id 2", "urn:library", "books/1", "lent", 0, "not wanted", at(NOON))
        for stale in (first.paused(), first._replace(attempts=7), parked(9)):
            assert not tracker.change("group", InboxChange(at(NOON), removed=(behind, stale)), [skip])
        assert self.seen(tracker) == [(1, "retrying", at(LATER)), (2, "pending", None)]
        assert tracker.skipped() == []

    def test_a_skipped_event_can_be_skipped_again(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        known = ("group", WHOLE, 1, "id 1", "urn:library", "books/1", "lent", 1)
        first, again = Skip(*known, "not wanted", at(NOON)), Skip(*known, "nor now", at(LATER))
        with tracker.unit("group", cursor, 1, skip=first):
            pass
        self.put(tracker, replace(cursor, stored=1, position=1), entry(2))
        assert tracker.change("group", InboxChange(at(NOON), removed=(entry(2),)), [again])
        assert tracker.skipped() == [again]

    def test_events_beyond_the_limit_of_a_sequence_are_refused(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        cursor = self.put(tracker, cursor, parked(1), entry(2))
        full = replace(brought_in(entry(3), entry(4)), most_of_sequence=2)
        with pytest.raises(InboxFullError, match=r"OCQ-601.*2 events") as caught:
            tracker.unit("group", cursor, 4, change=full).__enter__()
        assert caught.value.position == 3
        assert [one.position for one in tracker.entries("group")] == [1, 2]

    def test_sequences_beyond_the_limit_are_refused(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        cursor = self.put(tracker, cursor, parked(1), parked(2, "books/2"))
        added = (entry(3), entry(4, "books/3"), entry(5, "books/4"), entry(6, "books/3"))
        full = replace(brought_in(*added), most_sequences=2)
        with pytest.raises(InboxFullError, match=r"OCQ-601.*2 sequences") as caught:
            tracker.unit("group", cursor, 6, change=full).__enter__()
        assert caught.value.position == 4
        self.put(tracker, cursor, *full.added[:1])
        assert [status.position for status in tracker.statuses()] == [3]

    def test_each_partition_sees_its_own_sequences_however_many_partitions_there_are(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        ids = [f"books/{number}" for number in range(10)]
        self.put(tracker, cursor, *(parked(position, id_) for position, id_ in enumerate(ids, 1)))
        for modulus in (1, 2, 3):
            seen = tracker.parked("group", layout(modulus))
            assert sorted(id_ for known in seen.values() for id_ in known.ids) == ids
            assert all(one.owns(id_) for one, known in seen.items() for id_ in known.ids)
            for one in layout(modulus):
                found = tracker.due("group", one, LATER, 10)
                assert all(one.owns(each.sequence_id) for entries in found for each in entries)

    def test_times_and_counts_of_a_partition_are_those_of_its_own_events(self, tracker: ParkingTracker) -> None:
        one, other = (next(filter(each.owns, map(str, range(99)))) for each in TWO)
        first, second = tracker.claim("group", TWO, 0, "owner")
        self.put(tracker, first, parked(1, one), entry(2, one))
        over = entry(4, other)._replace(expires_at=at(NOON))
        self.put(tracker, second, parked(3, other, LATEST), over)
        assert tracker.next_due("group", TWO) == {TWO[0]: at(LATER), TWO[1]: at(NOON)}
        assert tracker.next_due("group", TWO, expiring=False) == {TWO[0]: at(LATER), TWO[1]: at(LATEST)}
        assert tracker.next_due("group", TWO[1:]) == {TWO[1]: at(NOON)}
        assert [tracker.expired("group", each, LATER, 10) for each in TWO] == [(), (over,)]
        assert [known.due_at for known in tracker.parked("group", TWO).values()] == [at(LATER), at(LATEST)]
        assert [dict(status.parked) for status in tracker.statuses()] == [
            {InboxStatus.RETRYING: 1, InboxStatus.PENDING: 1},
            {InboxStatus.RETRYING: 1, InboxStatus.EXPIRED: 1},
        ]
        tracker.arrange("group", TWO[:1], NOON, each=True)
        due = {position: due_at for position, _, due_at in self.seen(tracker)}
        assert due == {1: at(LATER), 2: at(NOON), 3: at(LATEST), 4: None}

    def test_statuses_count_waiting_events(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        self.put(tracker, cursor, parked(1), entry(2), entry(3), parked(4, "books/2", None))
        (status,) = tracker.statuses()
        assert dict(status.parked) == {InboxStatus.RETRYING: 1, InboxStatus.PENDING: 2, InboxStatus.EXHAUSTED: 1}
        assert [one.position for one in tracker.entries("group", position=4)] == [4]
        assert tracker.entries("group", position=5) == []
        assert tracker.entries("group", most=2) == tracker.entries("group")[:2]

    def test_entries_are_selected_by_sequence_event_and_status(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        over = entry(6, ODD)._replace(expires_at=at(NOON))
        self.put(tracker, cursor, parked(1), entry(2), parked(3, "books/2", None), entry(4, "books/2"), over)
        expected = {
            InboxSelection(): [1, 2, 3, 4, 6],
            InboxSelection("books/1"): [1, 2],
            InboxSelection(ODD): [6],
            InboxSelection("books/9"): [],
            InboxSelection(event_id="id 4"): [4],
            InboxSelection(event_id="no \0 such"): [],
            InboxSelection(status=InboxStatus.PENDING): [2, 4, 6],
            InboxSelection(status=InboxStatus.EXHAUSTED): [3],
            InboxSelection(status=InboxStatus.EXPIRED): [6],
            InboxSelection("books/2", "id 4", InboxStatus.PENDING): [4],
            InboxSelection("books/2", "id 2"): [],
            InboxSelection(due_after=at(NOON)): [1],
            InboxSelection(due_after=at(LATER)): [],
        }
        all_of_them = tracker.entries("group")
        for number, one in enumerate(all_of_them, 1):
            after = InboxSelection(after=(hash_of(one.sequence_id), one.position))
            assert tracker.entries("group", selection=after) == all_of_them[number:]
            assert tracker.entries("group", most=2, selection=after) == all_of_them[number : number + 2]
        for selection, positions in expected.items():
            found = tracker.entries("group", selection=selection)
            assert sorted(one.position for one in found) == positions, selection
        assert tracker.entries("group", position=2, selection=InboxSelection("books/2")) == []
        (first,) = tracker.entries("group", most=1, selection=InboxSelection("books/1"))
        assert first.position == 1

    def test_due_events_follow_the_current_mode_of_the_group(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        there = (parked(1), entry(2), entry(3), parked(4, "books/2", None), entry(5, "books/2"))
        self.put(tracker, cursor, *there)
        usual = [(1, at(LATER)), (2, None), (3, None), (4, None), (5, None)]
        assert [(position, due) for position, _, due in self.seen(tracker)] == usual
        tracker.arrange("group", [WHOLE], NOON, each=True)
        own = [(1, at(LATER)), (2, at(NOON)), (3, at(NOON)), (4, None), (5, at(NOON))]
        assert [(position, due) for position, _, due in self.seen(tracker)] == own
        tracker.arrange("other", [WHOLE], NOON, each=False)
        assert [(position, due) for position, _, due in self.seen(tracker)] == own
        tracker.arrange("group", [WHOLE], NOON, each=False)
        assert [(position, due) for position, _, due in self.seen(tracker)] == usual
        self.take(tracker, replace(cursor, stored=5, position=5), parked(1))
        tracker.arrange("group", [WHOLE], LATER, each=False)
        assert [(position, due) for position, _, due in self.seen(tracker)][:2] == [(2, at(NOON)), (3, None)]

    @pytest.mark.parametrize(
        ("entries", "first"),
        [
            pytest.param((parked(1), parked(2, due=LATEST)), LATEST, id="a later one waits longer"),
            pytest.param((parked(1, due=LATEST), parked(2)), LATEST, id="the first one waits longest"),
            pytest.param((entry(1), parked(2), parked(3, due=LATEST)), LATEST, id="the first one is untried"),
            pytest.param((parked(1, due=EARLIER), parked(2, due=NOON)), EARLIER, id="all are due"),
            pytest.param((entry(1), entry(2)._replace(due_at=at(LATER))), NOON, id="none has failed"),
            pytest.param((parked(1, due=None), parked(2)), None, id="a person comes first"),
            pytest.param((parked(1), parked(2, "books/2", LATEST)), LATER, id="another sequence waits longer"),
        ],
    )
    def test_a_sequence_waits_for_all_of_its_failed_events_once_they_are_tried_in_order(
        self, tracker: ParkingTracker, cursor: Cursor, entries: tuple[InboxEntry, ...], first: datetime | None
    ) -> None:
        self.put(tracker, cursor, *entries, each=True)
        for _ in range(2):
            tracker.arrange("group", [WHOLE], NOON, each=False)
            found = [one.due_at for one in tracker.entries("group", selection=InboxSelection("books/1"))]
            assert found == [first and at(first), *[None] * (len(found) - 1)]

    def test_an_expired_event_counts_as_due(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        self.put(tracker, cursor, parked(1, due=None)._replace(expires_at=at(NOON)), parked(2, "books/2"))
        assert tracker.next_due("group", [WHOLE]) == {WHOLE: at(NOON)}
        assert tracker.next_due("group", [WHOLE], expiring=False) == {WHOLE: at(LATER)}

    def test_events_are_tried_again_once_expiry_is_switched_off(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        self.put(tracker, cursor, entry(1)._replace(expires_at=at(NOON)), entry(2)._replace(expires_at=at(LATER)))
        tracker.arrange("group", [WHOLE], NOON, each=False)
        assert len(tracker.expired("group", WHOLE, LATER, 10)) == 2
        tracker.arrange("group", [WHOLE], NOON, each=False, expiring=False)
        assert tracker.expired("group", WHOLE, LATER, 10) == ()
        assert [one.expires_at for one in tracker.entries("group")] == [None, None]
        assert self.due(tracker, NOON) == [[1, 2]]

    def test_groups_do_not_see_each_other(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        self.put(tracker, cursor, parked(1))
        tracker.claim("other", [WHOLE], 0, "owner")
        assert tracker.entries("other") == []
        assert tracker.parked("other", [WHOLE])[WHOLE].ids == frozenset()
        assert tracker.due("other", WHOLE, LATER, 1) == []
        assert tracker.next_due("other", [WHOLE]) == {WHOLE: None}

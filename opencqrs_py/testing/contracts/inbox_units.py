"""The part of the contract of inboxes that is about units of work: what they change, and what comes between."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from opencqrs_py.errors import FencedError, InboxChangedError
from opencqrs_py.model import Cursor, Partition
from opencqrs_py.model.inbox import (
    FailedAttempt,
    InboxChange,
    InboxEntry,
    InboxStatus,
    Remainder,
)
from opencqrs_py.processing.ports import ParkingTracker
from opencqrs_py.testing.contracts.calls import returned
from opencqrs_py.testing.contracts.progress_records import SECONDS, meanwhile, timed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLIER = NOON - timedelta(minutes=1)
LATER = NOON + timedelta(minutes=1)
LATEST = NOON + timedelta(minutes=2)
WHOLE = Partition(1, 0)
ODD = "a sequence \0 with \ud800, 'quotes' and ü".encode(errors="replace").decode()


def at(moment: datetime) -> str:
    """Return a time as entries have it."""
    return moment.isoformat(timespec="milliseconds")


def entry(position: int, sequence_id: str = "books/1", status: InboxStatus = InboxStatus.PENDING) -> InboxEntry:
    """Return an entry of the group, as the core makes it for an event that waits after others."""
    known = (f"id {position}", "urn:library", sequence_id, "lent")
    return InboxEntry("group", sequence_id, position, *known, status, at(NOON))


def parked(position: int, sequence_id: str = "books/1", due: datetime | None = LATER) -> InboxEntry:
    """Return an entry whose attempts have failed."""
    error = FailedAttempt(at(NOON), "ValueError: no", '  File "handlers.py", line 3')
    status = InboxStatus.RETRYING if due is not None else InboxStatus.EXHAUSTED
    return entry(position, sequence_id).failed(error, status, due)


def brought_in(*entries: InboxEntry) -> InboxChange:
    """Return the change that adds entries."""
    return InboxChange(at(NOON), added=entries)


def without_limits(*entries: InboxEntry) -> InboxChange:
    """Return the change that adds entries of a scheduled group."""
    return InboxChange(at(NOON), added=entries, most_sequences=None, most_of_sequence=None)


FIRST, SECOND = parked(1), entry(2)
FAILED = FIRST.failed(FailedAttempt(at(NOON), "ValueError: no"), InboxStatus.RETRYING, LATEST)
PAUSING = InboxChange(at(NOON), changed=((FIRST, FIRST.paused()),))
REMOVALS = [
    pytest.param(InboxChange(at(NOON), done=(FIRST,)), id="done"),
    pytest.param(InboxChange(at(NOON), removed=(FIRST,)), id="removed"),
    pytest.param(InboxChange(at(NOON), changed=((FIRST, FAILED),)), id="changed"),
]
REST = pytest.param(InboxChange(at(NOON), remainders=(Remainder("books/1", at(LATEST)),)), id="remainders")


class InboxUnitsContract:
    """What units of work do to the inbox, all or nothing. Part of ``InboxContract``."""

    def put(self, tracker: ParkingTracker, cursor: Cursor, *entries: InboxEntry, each: bool = False) -> Cursor:
        """Add entries, and move the progress up to the last of them."""
        to = entries[-1].position
        with tracker.unit("group", cursor, to, change=replace(brought_in(*entries), each=each)):
            pass
        return replace(cursor, stored=to, position=to)

    def take(self, tracker: ParkingTracker, cursor: Cursor, *done: InboxEntry) -> None:
        """Have the first entries of a sequence handled."""
        rest = Remainder(done[-1].sequence_id, at(NOON))
        with tracker.unit("group", cursor, cursor.stored, change=InboxChange(at(NOON), done=done, remainders=(rest,))):
            pass

    def seen(self, tracker: ParkingTracker) -> list[tuple[int, str, str | None]]:
        """Return position, status and due time of each waiting event, by position."""
        return sorted((one.position, one.status.value, one.due_at) for one in tracker.entries("group"))

    def test_no_entry_is_added_if_the_unit_fails(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        with pytest.raises(KeyError), tracker.unit("group", cursor, 3, change=brought_in(parked(3))):
            raise KeyError
        assert tracker.entries("group") == []
        assert [status.position for status in tracker.statuses()] == [0]

    def test_no_entry_is_added_under_a_lost_claim(self, tracker: ParkingTracker, cursor: Cursor) -> None:
        tracker.claim("group", [WHOLE], 0, "heir")
        with pytest.raises(FencedError), tracker.unit("group", cursor, 3, change=brought_in(parked(3))):
            pytest.fail("the unit was opened")
        assert tracker.entries("group") == []

    def test_an_entry_changed_since_it_was_read_is_neither_done_nor_changed(
        self, tracker: ParkingTracker, cursor: Cursor
    ) -> None:
        first, behind = parked(1), entry(2)
        cursor = self.put(tracker, cursor, first, behind)
        pausing = InboxChange(at(NOON), changed=((first, first.paused()),))
        assert tracker.change("group", pausing)
        assert not tracker.change("group", pausing)
        stale = [InboxChange(at(NOON), done=(first, behind)), InboxChange(at(NOON), done=(entry(7),)), pausing]
        for change in stale:
            with pytest.raises(InboxChangedError), tracker.unit("group", cursor, cursor.stored, change=change):
                pytest.fail("the unit was opened")
        assert self.seen(tracker) == [(1, "paused", None), (2, "pending", None)]

    @pytest.mark.parametrize("by_person", [lambda one: one.with_retries(3), lambda one: one.due(NOON)])
    def test_a_failed_attempt_does_not_overwrite_what_a_person_changed_meanwhile(
        self, tracker: ParkingTracker, cursor: Cursor, by_person: Callable[[InboxEntry], InboxEntry]
    ) -> None:
        first = parked(1)
        cursor = self.put(tracker, cursor, first, entry(2))
        changed = by_person(first)
        assert tracker.change("group", InboxChange(at(NOON), changed=((first, changed),)))
        failed = first.failed(FailedAttempt(at(NOON), "ValueError: no"), InboxStatus.RETRYING, LATER)
        attempt = InboxChange(at(NOON), changed=((first, failed),))
        with pytest.raises(InboxChangedError), tracker.unit("group", cursor, cursor.stored, change=attempt):
            pytest.fail("the unit was opened")
        assert tracker.entries("group") == [changed, entry(2)]
        self.take(tracker, cursor, first)  # an attempt that succeeds still removes it
        assert self.seen(tracker) == [(2, "pending", at(NOON))]

    @pytest.mark.parametrize("change", [*REMOVALS, REST])
    def test_a_unit_that_fails_leaves_the_inbox_unchanged(
        self, tracker: ParkingTracker, cursor: Cursor, change: InboxChange
    ) -> None:
        cursor = self.put(tracker, cursor, FIRST, SECOND)
        before = tracker.entries("group")
        with pytest.raises(KeyError), tracker.unit("group", cursor, cursor.stored, change=change):
            raise KeyError
        assert tracker.entries("group") == before, "the inbox was changed although the handler failed"
        with tracker.unit("group", cursor, cursor.stored, change=change):
            pass
        assert tracker.entries("group") != before

    @pytest.mark.parametrize("change", [*REMOVALS, REST])
    def test_a_lost_claim_does_not_change_the_inbox(
        self, tracker: ParkingTracker, another: ParkingTracker, cursor: Cursor, change: InboxChange
    ) -> None:
        zombie = self.put(tracker, cursor, FIRST, SECOND)
        before = tracker.entries("group")
        another.claim("group", [WHOLE], 0, "heir")
        with pytest.raises(FencedError), tracker.unit("group", zombie, zombie.stored, change=change):
            pytest.fail("the unit of a lost claim was opened, as its progress stays")
        assert tracker.entries("group") == before

    def test_a_claim_while_a_waiting_event_is_handled_comes_before_or_after_that(
        self, tracker: ParkingTracker, another: ParkingTracker
    ) -> None:
        _, seconds = timed(another.claim, "group", [WHOLE], 0, "heir")
        (cursor,) = tracker.claim("group", [WHOLE], 0, "owner")
        old = self.put(tracker, cursor, FIRST)
        done, finished = InboxChange(at(NOON), done=(FIRST,)), False
        with suppress(FencedError):
            with tracker.unit("group", old, old.stored, change=done):
                claim = meanwhile(seconds, another.claim, "group", [WHOLE], 0, "heir")
                is_lost = claim.done()
            finished = True
        (heir,) = returned(claim, SECONDS, "claim() still waits although the unit has ended")
        assert not (is_lost and finished), "the unit was committed although its claim was lost before its end"
        assert tracker.entries("group") == ([] if finished else [FIRST]), "the event left the inbox, but not handled"
        if not finished:
            self.take(another, heir, FIRST)
        assert tracker.entries("group") == []

    @pytest.mark.parametrize("change", REMOVALS)
    def test_a_change_by_a_person_during_a_unit_comes_before_or_after_it(
        self, tracker: ParkingTracker, another: ParkingTracker, change: InboxChange
    ) -> None:
        _, seconds = timed(another.claim, "group", [WHOLE], 0, "heir")
        (cursor,) = tracker.claim("group", [WHOLE], 0, "owner")
        cursor = self.put(tracker, cursor, FIRST)
        finished = False
        with suppress(InboxChangedError):
            with tracker.unit("group", cursor, cursor.stored, change=change):
                pausing = meanwhile(seconds, another.change, "group", PAUSING)
            finished = True
        paused = returned(pausing, SECONDS, "change() still waits although the unit has ended")
        assert not (paused and finished), "both took place, so that one of them has overwritten the other"
        assert paused or finished, "neither took place, although they only exclude each other"
        after = [FAILED] if change.changed else []
        assert tracker.entries("group") == ([FIRST.paused()] if paused else after)

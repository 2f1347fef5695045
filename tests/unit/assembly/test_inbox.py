"""Listing and changing the inbox, with an in-memory tracker."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from opencqrs_py import InboxFilter
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.assembly.inbox import InboxControl, InboxStep
from opencqrs_py.config import load
from opencqrs_py.errors import AssemblyError, InboxError
from opencqrs_py.model import layout
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.group_record import GroupRecord, RecordedLayout
from opencqrs_py.model.inbox import FailedAttempt, InboxChange, InboxEntry, InboxStatus
from opencqrs_py.model.progress import PartitionStatus, Skip
from opencqrs_py.processing.ports import ProgressTracker
from opencqrs_py.testing import FakeClock

NOON = "2026-01-01T12:00:00.000+00:00"
NOW = "2026-01-01T00:00:00.000+00:00"
ALL = InboxFilter()
LOANS = InboxFilter(("loans",))


def entry(
    position: int, sequence_id: str, status: InboxStatus = InboxStatus.PENDING, attempts: int = 0, group: str = "loans"
) -> InboxEntry:
    """Return a waiting event; with attempts, it has failed that often."""
    errors = tuple(FailedAttempt(NOON, f"ValueError: {number}") for number in range(1, attempts + 1))
    due = NOON if status is InboxStatus.RETRYING else None
    known = (f"id-{position}", "urn:library", f"/{sequence_id}", "lent")
    return InboxEntry(group, sequence_id, position, *known, status, NOON, attempts, attempts, due, errors)


FAILING = entry(1, "b", InboxStatus.RETRYING, 2)
BEHIND = entry(2, "b")
STUCK = entry(3, "a", InboxStatus.EXHAUSTED, 5)
FINES = entry(4, "a", InboxStatus.UNDECODABLE, 1, "late-fines")


@pytest.mark.parametrize("groups", ["loans", ["loans"], ("loans",)])
def test_a_filter_accepts_one_or_several_names(groups: Any) -> None:
    assert InboxFilter(groups) == LOANS
    assert str(InboxFilter(groups)) == "group loans"


@pytest.mark.parametrize("status", ["Retrying", " RETRYING ", "retry-ing", InboxStatus.RETRYING])
def test_a_filter_accepts_every_spelling_of_a_status(inbox: InboxControl, status: Any) -> None:
    which = InboxFilter(status=status)
    assert [one.position for one in inbox.entries(which)] == [1]
    assert (which, str(which)) == (InboxFilter(status="retrying"), "status retrying")


STATUSES = "status must be pending, retrying, paused, exhausted, expired or undecodable"


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ({"status": "exausted"}, f"{STATUSES}, got 'exausted'"),
        ({"status": ""}, f"{STATUSES}, got ''"),
        ({"status": 3}, f"{STATUSES}, got 3"),
        ({"status": "Skipped"}, f"{STATUSES}, got 'Skipped'; inbox.skips() returns events that have left unhandled"),
        ({"position": "1"}, "position must be an int, got '1'"),
        ({"position": 1.0}, "position must be an int, got 1.0"),
        ({"position": True}, "position must be an int, got True"),
        ({"event": 2}, "event must be a str, got 2"),
        ({"sequence": 2}, "sequence must be a str, got 2"),
    ],
)
def test_a_condition_that_no_event_can_meet_is_refused(condition: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        InboxFilter(**condition)


class OtherTracker:
    """A user-provided tracker without an inbox."""

    def skipped(self) -> list[Any]:
        return []

    def statuses(self) -> list[Any]:
        return []


class Busy(InMemoryProgressTracker):
    """An inbox whose first changes fail because a processor has changed the event meanwhile."""

    def __init__(self, times: int, meanwhile: Callable[[InMemoryProgressTracker], object] = lambda _: None) -> None:
        super().__init__()
        self._times = times
        self._meanwhile = meanwhile

    def change(self, *arguments: Any) -> bool:
        if not self._times:
            return super().change(*arguments)
        self._times -= 1
        self._meanwhile(super())
        return False


def filled(tracker: InMemoryProgressTracker, *entries: InboxEntry) -> InMemoryProgressTracker:
    for group in dict.fromkeys(one.group for one in entries):
        own = tuple(one for one in entries if one.group == group)
        for cursor in tracker.claim(group, layout(2), 0, "owner"):
            mine = tuple(one for one in own if cursor.partition.owns(one.sequence_id))
            with tracker.unit(group, cursor, 9, change=InboxChange(NOON, added=mine)):
                pass
    return tracker


@pytest.fixture
def tracker() -> InMemoryProgressTracker:
    return filled(InMemoryProgressTracker(), FAILING, BEHIND, STUCK, FINES)


@pytest.fixture
def inbox_of(tmp_path) -> Callable[[ProgressTracker], InboxControl]:
    groups = {name: load(tmp_path, environ={}).group(name) for name in ("loans", "late-fines")}
    store = InMemoryEventStore()
    event = {"id": "id-1", "source": "urn:library", "subject": "/b", "type": "lent"}
    store.append([parse_event(json.dumps(event))])

    def make(tracker: ProgressTracker) -> InboxControl:
        return InboxControl(groups, lambda _: tracker, lambda: store, FakeClock)

    return make


@pytest.fixture
def inbox(tracker, inbox_of) -> InboxControl:
    return inbox_of(tracker)


def seen(tracker: InMemoryProgressTracker, group: str = "loans") -> dict[int, tuple[str, str | None]]:
    """Return status and due time of waiting events, by position."""
    return {one.position: (one.status.value, one.due_at) for one in tracker.entries(group)}


def done(steps: list[InboxStep]) -> list[tuple[int, str, int | None]]:
    return [
        (step.before.position, step.after.status.value if step.after else "skipped", step.meant and step.meant.position)
        for step in steps
    ]


def test_events_of_a_removed_or_renamed_group_are_counted(tmp_path, tracker):
    groups = {name: load(tmp_path, environ={}).group(name) for name in ("loans", "returns")}
    trackers = {"loans": tracker, "returns": filled(InMemoryProgressTracker(), FAILING, FINES)}  # of one database
    inbox = InboxControl(groups, trackers.__getitem__, InMemoryEventStore, FakeClock)
    assert {one.group for one in inbox.entries(ALL)} == {"loans"}
    assert inbox.without_handlers() == {"late-fines": 1}


@pytest.mark.parametrize(
    ("which", "command", "lines"),
    [
        (
            ALL,
            "pause",
            [
                "[OCQ-605] nothing else waits in the inbox",
                "  where: not searched: group returns, whose progress is in the memory of its own process; group "
                "late-fines, which has no handler here (1 event waits)",
            ],
        ),
        (
            InboxFilter(event="id-4"),
            "show",
            [
                "[OCQ-605] nothing in the inbox matches event id-4",
                "  where: not searched: group returns, whose progress is in the memory of its own process; group "
                "late-fines, which has no handler here (1 event waits)",
                "  fix:   look at opencqrs inbox list",
            ],
        ),
        (
            InboxFilter(("loans",), event="id-4"),
            "retry",
            ["[OCQ-605] nothing in the inbox matches group loans, event id-4", "  fix:   look at opencqrs inbox list"],
        ),
    ],
    ids=["all", "event", "group"],
)
def test_a_call_that_matches_no_event_names_the_groups_it_cannot_see(tmp_path, which, command, lines):
    groups = {name: load(tmp_path, environ={}).group(name) for name in ("loans", "returns")}
    trackers = {"loans": filled(InMemoryProgressTracker(), FINES), "returns": InMemoryProgressTracker()}
    with trackers["loans"].unit("loans", trackers["loans"].claim("loans", layout(1), 0, "owner")[0], 1):
        pass
    inbox = InboxControl(groups, trackers.__getitem__, InMemoryEventStore, FakeClock)
    with pytest.raises(InboxError) as caught:
        getattr(inbox, command)(which)
    assert str(caught.value).splitlines() == lines


def test_groups_with_handlers_are_not_counted_as_removed(inbox):
    assert inbox.without_handlers() == {}


@pytest.mark.parametrize("mode", ["streaming", "scheduled"])
@pytest.mark.parametrize(("command", "position"), [("retry", 1), ("resume", 1), ("skip", 2)])
def test_an_event_freed_by_a_command_is_due_even_on_nodes_whose_clocks_are_behind(tmp_path, mode, command, position):
    """The node parked the events by a clock that is days behind, so it would have tried them days later."""
    overrides = [f"event-handling.groups.loans.processing.mode={mode}"]
    groups = {"loans": load(tmp_path, overrides=overrides, environ={}).group("loans")}
    tracker, clock = filled(InMemoryProgressTracker(), FAILING, BEHIND), FakeClock()
    clock.advance(3 * 86_400)
    inbox = InboxControl(groups, lambda _: tracker, InMemoryEventStore, lambda: clock)
    if command == "resume":
        inbox.pause(LOANS)
    which = InboxFilter(("loans",), position=1)
    getattr(inbox, command)(which, *(["entered twice"] if command == "skip" else []))
    assert seen(tracker)[position][1] == NOON


@pytest.mark.parametrize(
    ("settings", "command", "held_up_by"),
    [
        (["processing.mode=scheduled"], "retry", {1: 2, 3: 2}),
        (["processing.mode=scheduled"], "resume", {1: 2, 3: 2}),
        (["processing.mode=scheduled", "batch.mode=all"], "retry", {1: None, 3: None}),
        ([], "resume", {1: None, 3: 2}),
    ],
    ids=["batch", "resumed-batch", "each", "sequence"],
)
def test_a_retry_or_resume_names_the_earlier_event_that_still_blocks_its_event(tmp_path, settings, command, held_up_by):
    overrides = [f"event-handling.groups.loans.{each}" for each in settings]
    groups = {"loans": load(tmp_path, overrides=overrides, environ={}).group("loans")}
    last = BEHIND._replace(position=3, event_id="id-3")
    tracker = filled(InMemoryProgressTracker(), FAILING, BEHIND, last)
    inbox = InboxControl(groups, lambda _: tracker, InMemoryEventStore, FakeClock)
    inbox.pause(LOANS)
    steps = [*getattr(inbox, command)(InboxFilter(event="id-1")), *getattr(inbox, command)(InboxFilter(event="id-3"))]
    found = {step.before.position: step.held_up_by and step.held_up_by.position for step in steps}
    assert found == held_up_by
    assert [step.held_up_by for step in inbox.resume(InboxFilter(event="id-2"))] == [None]


class Counting(InMemoryProgressTracker):
    """A tracker that counts the events read from its inbox."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def entries(self, *arguments: Any, **others: Any) -> list[InboxEntry]:
        found = super().entries(*arguments, **others)
        self.read += len(found)
        return found


@pytest.mark.parametrize(
    ("which", "most"),
    [
        (InboxFilter(sequence="b"), 2),
        (InboxFilter(event="id-1"), 3),
        (InboxFilter(position=1), 3),
        (InboxFilter(status="retrying"), 3),
        (InboxFilter(status="retrying", sequence="b"), 2),
    ],
)
@pytest.mark.parametrize("command", ["entries", "show", "retry", "pause"])
def test_only_the_matching_sequences_are_read(inbox_of, which, most, command):
    others = [STUCK._replace(sequence_id=f"s{n}", position=n, event_id=f"id-{n}") for n in range(100, 200)]
    tracker = filled(Counting(), FAILING, BEHIND, *others)
    inbox = inbox_of(tracker)
    if command == "show":
        shown = inbox.show(replace(which, position=1))
        assert (shown.entry.position, shown.first.position) == (1, 1)
        most += 1  # it is read again, among the events with its id
    else:
        assert getattr(inbox, command)(which)
    assert tracker.read <= most
    tracker.read = 0
    assert len(inbox.entries(InboxFilter(status=STUCK.status.value))) == 100
    assert tracker.read == 100


def test_many_sequences_are_read_at_once(inbox_of, monkeypatch):
    monkeypatch.setattr("opencqrs_py.assembly.inbox._FEW", 2)
    others = [FAILING._replace(sequence_id=f"s{n}", position=n, event_id=f"id-{n}") for n in range(100, 103)]
    tracker = filled(Counting(), *others, STUCK)
    assert len(inbox_of(tracker).pause(InboxFilter(status="retrying"))) == 3
    assert tracker.read == 3 + 4


@pytest.mark.parametrize(
    ("which", "positions"),
    [
        (ALL, [4, 3, 1, 2]),
        (LOANS, [3, 1, 2]),
        (InboxFilter(("LATE_FINES", "loans"), sequence="a"), [4, 3]),
        (InboxFilter(status="pending"), [2]),
        (InboxFilter(sequence="b", event="id-1"), [1]),
        (InboxFilter(event="id-9"), []),
        (InboxFilter(position=3), [3]),
    ],
)
def test_waiting_events_are_listed_by_group_sequence_and_position(inbox, which, positions):
    assert [one.position for one in inbox.entries(which)] == positions


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (InboxFilter(event="id-1"), [(1, "retrying", None)]),
        (InboxFilter(event="id-2"), [(1, "retrying", 2)]),
        (InboxFilter(sequence="a", groups=("loans",)), [(3, "retrying", None)]),
        (ALL, [(4, "retrying", None), (3, "retrying", None), (1, "retrying", None)]),
    ],
)
def test_retry_makes_the_first_event_of_each_sequence_due_whatever_its_status(inbox, tracker, which, expected):
    assert done(inbox.retry(which)) == expected
    due = [
        position for group in ("late-fines", "loans") for position, (_, at) in seen(tracker, group).items() if at == NOW
    ]
    assert sorted(due) == sorted(position for position, _, _ in expected)


def test_a_paused_event_waits_until_it_is_resumed(inbox, tracker):
    assert done(inbox.pause(InboxFilter(event="id-1"))) == [(1, "paused", None)]
    assert seen(tracker)[1] == ("paused", None)
    assert done(inbox.resume(LOANS)) == [(1, "retrying", None)]
    assert seen(tracker)[1] == ("retrying", NOW)


def test_pause_skips_events_that_already_wait_for_a_person(inbox):
    assert done(inbox.pause(ALL)) == [(1, "paused", None), (2, "paused", None)]


def test_an_event_after_another_one_is_resumed_without_being_due(inbox, tracker):
    inbox.pause(InboxFilter(event="id-2"))
    inbox.resume(InboxFilter(event="id-2"))
    assert seen(tracker)[2] == ("pending", None)


def test_a_skip_is_recorded_with_its_reason_the_person_and_the_last_error(inbox, tracker, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    monkeypatch.setattr("socket.gethostname", lambda: "desk")
    assert done(inbox.skip(InboxFilter(event="id-1"), "a test")) == [(1, "skipped", None)]
    assert seen(tracker)[2] == ("pending", NOW)
    (skip,) = tracker.skipped()
    assert (skip.position, skip.attempts, skip.skipped_at, skip.partition.modulus) == (1, 2, NOW, 2)
    assert skip.partition.owns("b")
    assert skip.reason == "a test (skipped by ada@desk; last error: ValueError: 2)"
    inbox.skip(InboxFilter(event="id-2"), "a test")
    assert inbox.skips(InboxFilter(("loans",), event="id-2"))[0].reason == "a test (skipped by ada@desk)"


class LostRow(InMemoryProgressTracker):
    """A tracker that has lost a row of progress, and keeps the skips that it is given."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost, self.given = lost, list[Skip]()

    def statuses(self) -> list[PartitionStatus]:
        return [each for each in super().statuses() if each.partition.residue != self.lost]

    def change(self, group: str, change: InboxChange, skips: Sequence[Skip] = ()) -> bool:
        self.given += skips
        return super().change(group, change)


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("recorded", [True, False])
def test_an_event_can_be_skipped_although_the_progress_of_its_partition_is_lost(inbox_of, lost, recorded):
    tracker = LostRow(lost)
    record = GroupRecord("loans", layout=RecordedLayout(layout(2), 1) if recorded else None)
    tracker.claim("loans", layout(2), 0, "owner", keep=lambda _: record)
    inbox = inbox_of(filled(tracker, *(entry(number, f"sequence {number}") for number in range(1, 9))))
    inbox.skip(LOANS, "a test")
    assert sorted(skip.position for skip in tracker.given) == list(range(1, 9))
    assert all(skip.partition.owns(f"sequence {skip.position}") for skip in tracker.given)
    assert {skip.partition for skip in tracker.given} >= ({*layout(2)} if recorded else {layout(2)[1 - lost]})


def test_a_skip_of_many_sequences_reads_the_partitions_of_their_group_once(inbox_of):
    def calls(sequences: int) -> int:
        tracker = filled(InMemoryProgressTracker(), *(entry(n, f"sequence {n}") for n in range(1, sequences + 1)))
        with patch.object(tracker, "statuses", wraps=tracker.statuses) as statuses:
            inbox_of(tracker).skip(LOANS, "a test")
        return statuses.call_count

    assert calls(8) == calls(1)


def test_a_user_without_a_name_is_recorded_by_uid(inbox, monkeypatch):
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("os.getuid", lambda: 1234)
    inbox.skip(InboxFilter(event="id-1"), "a test")
    assert "(skipped by 1234@" in inbox.skips(ALL)[0].reason


def test_an_event_after_another_one_can_be_skipped(inbox, tracker):
    inbox.skip(InboxFilter(event="id-2"), "a test")
    assert 2 not in seen(tracker)
    assert seen(tracker)[1] == ("retrying", NOON)


def test_the_number_of_used_attempts_can_be_set(inbox, tracker):
    inbox.set_attempts(InboxFilter(event="id-3"), 0)
    (stuck,) = (one for one in tracker.entries("loans") if one.position == 3)
    assert (stuck.retries, stuck.attempts, stuck.status) == (0, 5, InboxStatus.EXHAUSTED)


@pytest.mark.parametrize(
    "change",
    [
        lambda inbox: inbox.retry(ALL, dry_run=True),
        lambda inbox: inbox.pause(ALL, dry_run=True),
        lambda inbox: inbox.skip(ALL, "a test", dry_run=True),
        lambda inbox: inbox.set_attempts(ALL, 0, dry_run=True),
    ],
    ids=["retry", "pause", "skip", "set-attempts"],
)
def test_a_dry_run_returns_the_changes_without_making_them(inbox, change, caplog):
    before = inbox.entries(ALL)
    caplog.set_level(logging.INFO, "opencqrs.inbox")
    assert change(inbox)
    assert inbox.entries(ALL) == before
    assert inbox.skips(ALL) == []
    assert caplog.messages == []


def test_each_change_is_logged_with_who_made_it(inbox, monkeypatch, caplog):
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    monkeypatch.setattr("socket.gethostname", lambda: "desk")
    caplog.set_level(logging.INFO, "opencqrs.inbox")
    inbox.pause(InboxFilter(event="id-1"))
    inbox.skip(InboxFilter(event="id-3"), "a test")
    assert caplog.messages == [
        "event id-1 at position 1, sequence 'b', group loans, was retrying: paused by ada@desk",
        "event id-3 at position 3, sequence 'a', group loans, was exhausted: skipped (a test) by ada@desk",
    ]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("change", "status", "logged"),
    [
        (InboxControl.purge, None, "removed, as it had expired"),
        (partial(InboxControl.skip, reason="a test"), None, "skipped (a test)"),
        (partial(InboxControl.set_attempts, attempts=2), InboxStatus.EXPIRED, "set to 2 attempts used up"),
    ],
    ids=["purge", "skip", "set-attempts"],
)
@pytest.mark.parametrize("stored", [FAILING, FAILING.paused()], ids=["retrying", "paused"])
def test_a_change_of_an_expired_event_reports_that_it_had_expired(
    inbox_of, stored, change, status, logged, dry_run, caplog
):
    inbox = inbox_of(filled(InMemoryProgressTracker(), stored._replace(expires_at=NOW)))
    caplog.set_level(logging.INFO, "opencqrs.inbox")
    (step,) = change(inbox, which=ALL, dry_run=dry_run)
    assert step.before.status is InboxStatus.EXPIRED
    assert step.after is None if status is None else step.after.status is status
    was = f"event id-1 at position 1, sequence 'b', group loans, was expired: {logged} by "
    assert [message.partition(" by ")[0] + " by " for message in caplog.messages] == [was] * (not dry_run)


def test_a_change_applies_to_the_event_as_a_processor_left_it(inbox_of):
    def fails(tracker: Any) -> None:
        (first,) = (one for one in tracker.entries("loans") if one.position == 1)
        failed = first.failed(FailedAttempt(NOON, "ValueError: again"), InboxStatus.EXHAUSTED, None)
        tracker.change("loans", InboxChange(NOON, changed=((first, failed),)))

    tracker = filled(Busy(1, fails), FAILING, BEHIND)
    (step,) = inbox_of(tracker).retry(LOANS)
    assert (step.before.status, step.before.attempts) == (InboxStatus.EXHAUSTED, 3)
    assert seen(tracker)[1] == ("retrying", NOW)


def test_a_sequence_handled_meanwhile_is_left_alone(inbox_of):
    def succeeds(tracker: Any) -> None:
        tracker.change("loans", InboxChange(NOON, removed=(BEHIND, FAILING)))

    tracker = filled(Busy(1, succeeds), FAILING, BEHIND)
    with pytest.raises(InboxError, match=r"\[OCQ-605\] nothing in the inbox matches group loans"):
        inbox_of(tracker).retry(LOANS)


def test_an_event_changed_meanwhile_is_refused_with_its_new_status(inbox_of):
    def pauses(tracker: Any) -> None:
        tracker.change("loans", InboxChange(NOON, changed=((FAILING, FAILING.paused()),)))

    with pytest.raises(InboxError) as caught:
        inbox_of(filled(Busy(1, pauses), FAILING)).pause(InboxFilter(event="id-1"))
    assert caught.value.what == "none of the events that match event id-1 is pending or retrying: 1 paused"


def test_an_event_that_keeps_changing_is_left_alone(inbox_of):
    tracker = filled(Busy(99), FAILING)
    with pytest.raises(InboxError) as caught:
        inbox_of(tracker).pause(ALL)
    assert str(caught.value).splitlines() == [
        "[OCQ-607] processors have changed the events of sequence 'b' 5 times meanwhile, so they were not changed",
        "  where: group loans; events changed before: 0",
        "  fix:   run the command again",
    ]


def test_an_event_is_shown_as_the_store_has_it_with_the_first_of_its_sequence(inbox):
    shown = inbox.show(InboxFilter(event="id-1"))
    assert shown.event is not None
    assert (shown.entry.position, shown.first, shown.event.id) == (1, shown.entry, "id-1")


def test_an_event_missing_from_the_store_is_shown_without_its_data(inbox):
    shown = inbox.show(InboxFilter(("loans",), position=2))
    assert (shown.entry.position, shown.first.position, shown.event) == (2, 1, None)


def test_only_one_event_can_be_shown_at_a_time(inbox):
    with pytest.raises(InboxError) as caught:
        inbox.show(InboxFilter(sequence="b"))
    assert str(caught.value).splitlines() == [
        "[OCQ-608] 2 events match sequence b",
        "  where: position 1 of group loans, position 2 of group loans",
        "  fix:   name one of them: opencqrs inbox show POSITION --group NAME",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda inbox: inbox.show(InboxFilter(event="x")), "[OCQ-605] nothing in the inbox matches event x"),
        (
            lambda inbox: inbox.retry(InboxFilter(status="paused")),
            "[OCQ-605] nothing in the inbox matches status paused",
        ),
        (
            lambda inbox: inbox.resume(LOANS),
            "[OCQ-605] none of the events that match group loans is paused: 1 exhausted, 1 pending, 1 retrying",
        ),
        (
            lambda inbox: inbox.pause(InboxFilter(event="id-3")),
            "[OCQ-605] none of the events that match event id-3 is pending or retrying: 1 exhausted",
        ),
    ],
)
def test_a_call_that_matches_no_event_reports_why(inbox, change, message):
    with pytest.raises(InboxError) as caught:
        change(inbox)
    assert str(caught.value).splitlines()[0] == message


def test_an_unknown_group_is_refused(inbox):
    with pytest.raises(AssemblyError, match=r"\[OCQ-509\] no handler belongs to a group 'loan'"):
        inbox.retry(InboxFilter(("loan",)))


@pytest.mark.parametrize(
    ("tracker", "message", "unseen"),
    [
        (OtherTracker(), "group 'loans' has no inbox: its progress tracker keeps none", []),
        (
            InMemoryProgressTracker(),
            "the inbox of group 'loans' is in the memory of the process that runs it, and not visible here",
            ["loans", "late-fines"],
        ),
    ],
    ids=["no inbox", "in memory"],
)
def test_a_group_without_an_inbox_is_refused_if_it_is_named(inbox_of, tracker, message, unseen):
    inbox = inbox_of(tracker)
    assert inbox.entries(ALL) == []
    assert inbox.unseen() == unseen
    with pytest.raises(InboxError) as caught:
        inbox.entries(LOANS)
    assert str(caught.value).splitlines() == [
        f"[OCQ-606] {message}",
        "  fix:   set event-handling.groups[loans].progress.tracking: sql",
    ]


def test_a_skip_without_a_reason_is_refused(inbox):
    with pytest.raises(ValueError, match="a reason is required"):
        inbox.skip(ALL, " ")


@pytest.mark.parametrize("attempts", [-1, 100_001])
def test_a_number_of_attempts_out_of_range_is_refused(inbox, attempts):
    with pytest.raises(ValueError, match=rf"attempts must be 0 to 100,000, got {attempts}"):
        inbox.set_attempts(ALL, attempts)


def test_a_change_keeps_all_other_fields_of_an_event(inbox):
    (step,) = inbox.set_attempts(InboxFilter(event="id-1"), 4)
    assert step.after == step.before._replace(retries=4)


@pytest.mark.parametrize(
    ("settings", "statuses", "holders"),
    [
        (["processing.mode=scheduled"], {2: InboxStatus.PAUSED}, {1: 2, 3: 2}),
        (["processing.mode=scheduled"], {3: InboxStatus.EXHAUSTED}, {1: 3, 2: 3}),
        (["processing.mode=scheduled"], {1: InboxStatus.EXPIRED, 3: InboxStatus.UNDECODABLE}, {2: 3}),
        (["processing.mode=scheduled"], {3: InboxStatus.EXPIRED}, {2: 3}),  # until a tick removes it
        (["processing.mode=scheduled"], {}, {}),
        (["processing.mode=scheduled", "batch.mode=all"], {2: InboxStatus.PAUSED}, {}),
        ([], {2: InboxStatus.PAUSED}, {3: 2}),
        ([], {1: InboxStatus.EXHAUSTED}, {2: 1, 3: 1}),
    ],
)
def test_an_event_is_held_up_by_any_of_its_batch_and_by_earlier_ones_of_its_sequence(
    tmp_path, settings, statuses, holders
):
    overrides = [f"event-handling.groups.loans.{each}" for each in settings]
    groups = {"loans": load(tmp_path, overrides=overrides, environ={}).group("loans")}
    waiting = [FAILING, BEHIND, BEHIND._replace(position=3, event_id="id-3")]
    for position, status in statuses.items():
        change = {"status": status, "due_at": None}
        if status is InboxStatus.EXPIRED:
            change = {"status": InboxStatus.PAUSED, "due_at": None, "expires_at": NOW}
        waiting[position - 1] = waiting[position - 1]._replace(**change)
    other = entry(9, "elsewhere", InboxStatus.PAUSED)
    tracker = filled(InMemoryProgressTracker(), *waiting, other)
    inbox = InboxControl(groups, lambda _: tracker, InMemoryEventStore, FakeClock)
    found = inbox.holders(inbox.entries(InboxFilter(sequence="b")))
    assert {one.position: holder.position for one, holder in found.items()} == holders

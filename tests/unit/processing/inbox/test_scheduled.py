"""Scheduled groups: all events wait in the inbox, and are handled in batches when a tick comes."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import nan
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py import Event, NonTransientError
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.engines.driver import PartitionDriver, claim
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.errors import EventFormatError, InboxError, UnavailableError
from opencqrs_py.model import Handler, HandlerMark, ProcessingContext, ProcessorState, layout
from opencqrs_py.model.choices import BatchMode, BatchOrder, OnBatchExhausted, OnExhausted
from opencqrs_py.model.inbox import FailedAttempt, InboxChange, InboxEntry, InboxStatus
from opencqrs_py.model.outcome import Origin
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.binding import NothingProvided, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.exceptions import failure_of
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.inbox.batches import OrderingKey, ScheduleRule, eligible
from opencqrs_py.processing.inbox.schedules import CronSchedule, FixedDelay
from opencqrs_py.processing.recovery import Action, ExponentialBackOff, NoRetry
from opencqrs_py.processing.sequence_resolvers import PerSubject, PerSubjectLevel
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.testing import FakeClock
from tests.support.partitions import CrashError, ForTwo, Outage, Rows, Seen

if TYPE_CHECKING:
    from sqlalchemy import Connection

STEPS = 1_000  # more than any test needs
RULE = ScheduleRule(FixedDelay(10, 6), back_off=ExponentialBackOff(60, 2, 600, max_attempts=4))
ALL = replace(RULE, mode=BatchMode.ALL)
NO = ValueError("no")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class World:
    """A scheduled group whose handler writes positions, and raises ``errors`` by position."""

    def __init__(
        self,
        subjects: Iterable[str] = (),
        *,
        rule: ScheduleRule = RULE,
        partitions: int = 1,
        batch_size: int = 1_000,
        events: Iterable[Event] = (),
    ) -> None:
        self.database = Rows()
        self.tracker = InMemoryProgressTracker(self.database)
        self.clock = FakeClock()
        self.seen = Seen()
        self.errors: dict[int, BaseException] = {}
        self.calls: list[ProcessingContext] = []
        self.store = InMemoryEventStore(events)
        self.append(subjects)

        def handle(raw: Event, connection: Connection, context: ProcessingContext) -> None:
            self.calls.append(context)
            if (error := self.errors.get(raw.position)) is not None:
                raise error
            connection.append((raw.subject, raw.position))  # type: ignore[attr-defined]

        bound = bind(Handler(HandlerMark("group"), handle, "handlers.py:7"), NothingProvided())
        processing = GroupProcessing(
            "group",
            self.store,
            self.tracker,
            Dispatcher([bound], []),
            subject="/",
            recursive=True,
            sequencing=SequencingByEvent(PerSubject()),
            partitions=partitions,
            batch_size=batch_size,
            clock=self.clock,
            schedule=rule,
        )
        self.run = GroupRun(processing, layout(partitions), lambda: 0, NoRetry(), OnExhausted.STOP)
        self.drivers: list[PartitionDriver] = []

    def append(self, subjects: Iterable[str]) -> None:
        first = self.store.head() + 1
        self.store.append(event(n, subject) for n, subject in enumerate(subjects, first))

    def claim(self) -> None:
        """Start like a new process after the previous one has crashed."""
        self.drivers = claim(self.run, self.run.partitions, "owner", self.clock, self.seen)

    def drain(self) -> None:
        """Step until there is nothing to do for now."""
        if not self.drivers:
            self.claim()
        for driver in self.drivers:
            for _ in range(STEPS):
                if driver.wait() > 0:
                    break
                if driver.step().idle and not driver.supervised.is_due_in_inbox:
                    break
            else:
                pytest.fail("the partition does not come to rest")

    def pass_time(self, seconds: float) -> None:
        """Let time pass in small steps, so that ticks run on time."""
        until = self.clock.now() + timedelta(seconds=seconds)
        while (left := (until - self.clock.now()).total_seconds()) > 0:
            waits = [driver.supervised.until_tick() for driver in self.drivers]
            self.clock.advance(min([left, *(wait for wait in waits if wait > 0)]))
            self.drain()

    @property
    def positions(self) -> list[int]:
        return [position for _, position in self.database.rows]

    @property
    def waiting(self) -> dict[int, str]:
        return {one.position: one.status_at(self.clock.now()).value for one in self.tracker.entries("group")}

    def entry(self, position: int) -> InboxEntry:
        (found,) = (one for one in self.tracker.entries("group") if one.position == position)
        return found

    def retry(self, position: int) -> None:
        """Request an attempt at the next tick, as a person does."""
        self.change(position, lambda entry: entry.due(self.clock.now()))

    def change(self, position: int, how: Callable[[InboxEntry], InboxEntry]) -> None:
        """Change an entry as a person does."""
        entry = self.entry(position)
        now = self.clock.now().isoformat(timespec="milliseconds")
        each = self.run.processing.schedule is not None and self.run.processing.schedule.each
        assert self.tracker.change("group", InboxChange(now, changed=((entry, how(entry)),), each=each))


def event(number: int, subject: str, time: str | None = None, id_: str | None = None) -> Event:
    return Event(0, id_ or f"id {number}", "s", subject, "lent", time, "application/json", "{}", None)


# ------------------------------------------------------------------------------------------------------ eligibility


def waiting(position: int, state: str) -> InboxEntry:
    """Return an event that is fresh, has failed and is due or not, or waits for a person."""
    known = (f"id {position}", "s", "/a", "lent")
    fresh = InboxEntry("group", "/a", position, *known, InboxStatus.PENDING, NOON.isoformat())
    error = FailedAttempt(NOON.isoformat(), "no")
    match state:
        case "fresh":
            return fresh
        case "due":
            return fresh.failed(error, InboxStatus.RETRYING, NOON)
        case "not due":
            return fresh.failed(error, InboxStatus.RETRYING, NOON + timedelta(milliseconds=1))
        case "paused":
            return fresh.paused()
        case _:
            return fresh.failed(error, InboxStatus(state), None)


@pytest.mark.parametrize(
    ("batch", "fail_first", "each"),
    [
        (["fresh", "fresh", "fresh"], [1, 2, 3], [1, 2, 3]),
        (["due", "fresh", "fresh"], [1, 2, 3], [1, 2, 3]),
        (["fresh", "due"], [1, 2], [1, 2]),
        (["not due", "fresh", "fresh"], [], [2, 3]),
        (["fresh", "not due"], [], [1]),
        (["due", "not due"], [], [1]),
        (["exhausted", "fresh"], [], [2]),
        (["undecodable", "fresh"], [], [2]),
        (["fresh", "paused"], [], [1]),
        (["paused", "fresh", "due"], [], [2, 3]),
        (["paused"], [], []),
        ([], [], []),
    ],
)
def test_the_mode_of_a_batch_decides_which_of_its_events_are_tried(
    batch: list[str], fail_first: list[int], each: list[int]
) -> None:
    entries = [waiting(position, state) for position, state in enumerate(batch, 1)]
    for mode, expected in ((BatchMode.FAIL_FIRST, fail_first), (BatchMode.ALL, each)):
        assert [one.position for one in eligible(entries, NOON, mode)] == expected


# -------------------------------------------------------------------------------------------------------------- ticks


def test_events_wait_in_the_inbox_until_the_first_tick() -> None:
    world = World(["/a", "/b", "/a"])
    world.drain()
    assert world.waiting == {1: "pending", 2: "pending", 3: "pending"}
    assert [status.position for status in world.tracker.statuses()] == [3]
    world.pass_time(9)
    assert world.calls == []
    world.pass_time(1)
    assert world.positions == [1, 3, 2]
    assert world.waiting == {}


def test_later_events_wait_for_the_next_tick() -> None:
    world = World(["/a"])
    world.drain()
    world.pass_time(10)
    world.append(["/a", "/b"])
    world.drain()
    world.pass_time(5)
    assert world.positions == [1]
    world.pass_time(1)
    assert world.positions == [1, 2, 3]


def test_handling_events_at_a_tick_does_not_end_a_failure_to_read_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(["/a", "/a", "/b"], rule=replace(RULE, fetch_size=1))
    world.drain()
    world.append(["/c"])
    read = world.store.read

    def unreadable(after: int, *arguments: Any, **named: Any) -> Any:
        if after >= 3:
            raise ValueError("it cannot be read")
        return read(after, *arguments, **named)

    monkeypatch.setattr(world.store, "read", unreadable)
    world.drain()
    assert world.seen.notices[-1].action is Action.STOP
    world.pass_time(31)
    assert sorted(world.positions) == [1, 2, 3]
    assert {notice.action for notice in world.seen.notices} == {Action.STOP}
    (status,) = world.tracker.statuses()
    assert (status.state, status.error) == (ProcessorState.FAILED, "ValueError: it cannot be read")


def test_a_requested_tick_begins_as_soon_as_the_log_is_read() -> None:
    world = World(["/a", "/b"])
    world.claim()
    (driver,) = world.drivers
    driver.supervised.handle_at_once(2)
    assert not driver.supervised.done(2)
    world.drain()
    assert world.positions == [1, 2]
    assert driver.supervised.done(2)
    world.append(["/a"])
    world.drain()
    assert world.positions == [1, 2]
    assert driver.supervised.done(2)


def test_an_empty_log_is_done_after_its_first_tick() -> None:
    world = World()
    world.claim()
    (driver,) = world.drivers
    driver.supervised.handle_at_once(0)
    world.drain()
    assert driver.supervised.done(0)


def test_the_inbox_is_not_queried_between_two_ticks() -> None:
    world = World(["/a"])
    world.drain()
    world.pass_time(10)
    looks = 0
    due = world.tracker.due

    def counting(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return due(*arguments)

    world.tracker.due = counting  # type: ignore[method-assign]
    world.drain()
    world.drain()
    assert looks == 0
    world.pass_time(6)
    assert looks == 1


# ---------------------------------------------------------------------------------------------------------- failures


def test_in_fail_first_mode_only_the_batch_of_the_failed_event_waits() -> None:
    world = World(["/a", "/a", "/a", "/b"])
    world.errors = {2: NO}
    world.drain()
    world.pass_time(10)
    assert world.positions == [1, 4]
    assert world.waiting == {2: "retrying", 3: "pending"}
    world.errors = {}
    world.pass_time(59)
    assert world.positions == [1, 4]
    world.pass_time(6)
    assert world.positions == [1, 4, 2, 3]


def test_in_all_mode_the_other_events_of_the_batch_are_handled_immediately() -> None:
    world = World(["/a", "/a", "/a"], rule=ALL)
    world.errors = {1: NO}
    world.drain()
    world.pass_time(10)
    assert world.positions == [2, 3]
    assert world.waiting == {1: "retrying"}
    world.errors = {}
    world.pass_time(66)
    assert world.positions == [2, 3, 1]


@pytest.mark.parametrize("rule", [RULE, ALL])
def test_the_waits_double_until_the_event_waits_for_a_person(rule: ScheduleRule) -> None:
    world = World(["/a"], rule=replace(rule, schedule=FixedDelay(12, 6)))
    started = world.clock.now()
    world.errors = {1: NO}
    world.drain()
    tried: list[float] = []
    for _ in range(1_200):
        before = len(world.calls)
        world.pass_time(1)
        tried += [(world.clock.now() - started).total_seconds()] * (len(world.calls) - before)
    assert tried == [12, 72, 192, 432, 912]
    assert world.waiting == {1: "exhausted"}
    assert [call.attempt for call in world.calls] == [1, 2, 3, 4, 5]
    actions = [(notice.action, notice.wait) for notice in world.seen.notices]
    assert actions == [(Action.RETRY, wait) for wait in (60.0, 120.0, 240.0, 480.0)] + [(Action.PARK, 0.0)]


@pytest.mark.parametrize("rule", [RULE, ALL], ids=["fail-first", "all"])
@pytest.mark.parametrize(
    ("command", "retries", "status"), [("retry", 2, "retrying"), ("set-attempts", 99, "exhausted")]
)
def test_a_persons_command_survives_a_concurrent_failed_attempt(
    rule: ScheduleRule, command: str, retries: int, status: str
) -> None:
    world = World(["/a"], rule=rule)
    world.errors = {1: NO}
    world.drain()
    world.pass_time(16)
    tries: list[int] = []

    class Commanding(dict[int, BaseException]):
        def get(self, position: int, _: Any = None) -> BaseException | None:
            tries.append(position)
            if len(tries) == 1 and command == "retry":
                world.clock.advance(0.5)
                world.retry(position)
            elif len(tries) == 1:
                world.change(position, lambda entry: entry.with_retries(retries))
            return NO

    world.errors = Commanding()
    world.pass_time(66)
    found = world.entry(1)
    assert (len(tries), found.attempts, found.retries, found.status) == (2, 2, retries, status)


@pytest.mark.parametrize(("rule", "done"), [(RULE, [1]), (ALL, [1, 3])])
def test_a_permanently_failed_event_blocks_its_sequence_or_waits_alone(rule: ScheduleRule, done: list[int]) -> None:
    for error, status in ((NonTransientError("never"), "exhausted"), (EventFormatError("OCQ-210", "x"), "undecodable")):
        world = World(["/a", "/a", "/a"], rule=rule)
        world.errors = {2: error}
        world.drain()
        world.pass_time(10_000)
        assert world.positions == done
        assert world.waiting[2] == status
        world.errors = {}
        world.retry(2)
        world.pass_time(12)
        assert sorted(world.positions) == [1, 2, 3]


@pytest.mark.parametrize("rule", [RULE, ALL])
def test_an_event_whose_attempts_are_exhausted_can_be_skipped(rule: ScheduleRule) -> None:
    world = World(["/a", "/a"], rule=replace(rule, on_exhausted=OnBatchExhausted.SKIP, back_off=NoRetry()))
    world.errors = {1: NO}
    world.drain()
    world.pass_time(17)
    assert world.positions == [2]
    assert world.waiting == {}
    (skip,) = world.tracker.skipped()
    assert (skip.position, skip.attempts, skip.reason) == (1, 1, "ValueError: no")
    assert [notice.action for notice in world.seen.notices] == [Action.SKIP]


@pytest.mark.parametrize("rule", [RULE, ALL])
def test_failures_within_the_grace_period_do_not_count(rule: ScheduleRule) -> None:
    world = World(["/a", "/a"], rule=replace(rule, grace_seconds=22))
    world.errors = {1: NO}
    world.drain()
    world.pass_time(21)  # ticks at 10 and 16
    assert [call.attempt for call in world.calls if call.position == 1] == [1, 1]
    assert (world.entry(1).attempts, world.entry(1).errors, world.seen.notices) == (0, (), [])
    world.pass_time(2)  # the tick at 22, when the period is over
    assert (world.entry(1).attempts, world.waiting[1]) == (1, "retrying")


@pytest.mark.parametrize("rule", [RULE, ALL])
def test_the_first_failure_of_an_event_in_its_grace_period_is_logged(
    rule: ScheduleRule, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "opencqrs.processing")
    world = World(["/a", "/b", "/c"], rule=replace(rule, grace_seconds=22))
    world.errors = {1: NO, 3: NO}
    begun = world.clock.now().isoformat(timespec="milliseconds")
    world.drain()
    world.pass_time(21)  # ticks at 10 and 16
    until = (datetime.fromisoformat(begun) + timedelta(seconds=22)).isoformat(timespec="milliseconds")
    message = f"failed (ValueError: no); failures count from {until} on; next attempt at the next tick"
    texts = [
        f"[group 0/1] event id {position} at position {position} (lent, {subject}) {message}"
        for position, subject in ((1, "/a"), (3, "/c"))
    ]
    logged = [
        (record.levelname, record.getMessage()) for record in caplog.records if "count from" in record.getMessage()
    ]
    assert logged == [(level, text) for level in ("INFO", "DEBUG") for text in texts]


def test_logged_failures_in_the_grace_period_are_remembered_for_a_bounded_number_of_events(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencqrs_py.engines.driver._MOST_SEEN", 2)
    caplog.set_level(logging.INFO, "opencqrs.processing")
    world = World(["/a", "/b", "/c"], rule=replace(RULE, grace_seconds=60))
    world.errors = dict.fromkeys((1, 2, 3), NO)
    world.drain()
    world.pass_time(16)
    assert len([record for record in caplog.records if "count from" in record.getMessage()]) == 6


@pytest.mark.parametrize("rule", [RULE, ALL])
def test_an_expired_event_is_removed_without_being_tried(rule: ScheduleRule) -> None:
    world = World(["/a", "/a", "/b"], rule=replace(rule, expires_seconds=60))
    world.errors = {1: NO, 3: NonTransientError("never")}
    world.drain()
    world.pass_time(40)
    world.append(["/a"])
    world.drain()
    world.pass_time(19)
    tried = len(world.calls)
    world.errors = {}
    assert world.waiting[1] == "retrying"
    world.pass_time(1)
    expired = {1: "expired", 3: "expired"} | ({2: "expired"} if rule is RULE else {})
    assert {position: status for position, status in world.waiting.items() if position < 4} in (expired, {})
    world.pass_time(20)
    assert world.waiting == {}
    assert 1 not in world.positions
    assert 4 in world.positions
    assert len(world.calls) == tried + (rule is RULE)
    assert sum(outcome.expired for outcome in world.seen.outcomes) == len(expired)


@pytest.mark.parametrize("rule", [RULE, ALL])
def test_expired_events_are_queried_once_per_tick_however_many_wait(rule: ScheduleRule) -> None:
    world = World([f"/{n}" for n in range(20)], rule=replace(rule, expires_seconds=60, fetch_size=1))
    looks, expired = [], world.tracker.expired
    world.tracker.expired = lambda *given: (looks.append(given), expired(*given))[1]  # type: ignore[method-assign]
    world.drain()
    world.pass_time(11)
    assert world.positions == list(range(1, 21))
    assert len(looks) == 1


@pytest.mark.parametrize("rule", [RULE, ALL])
@pytest.mark.parametrize("fetch_size", [1, 2, 1_000])
def test_an_event_that_expires_during_a_tick_is_removed_in_that_tick_without_being_tried(
    rule: ScheduleRule, fetch_size: int
) -> None:
    world = World(["/a", "/b", "/b", "/c"], rule=replace(rule, expires_seconds=60, fetch_size=fetch_size), batch_size=1)

    class Slow(dict[int, BaseException]):
        def get(self, position: int, _: Any = None) -> None:
            world.clock.advance(30 if position < 3 else 0)

    world.errors = Slow()
    world.drain()
    world.pass_time(11)
    assert (world.positions, world.waiting) == ([1, 2], {})
    assert sum(outcome.expired for outcome in world.seen.outcomes) == 2


NIGHTLY = replace(RULE, schedule=CronSchedule("0 3 * * *"))


def missed_ticks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "the tick of" in record.getMessage()]


@pytest.mark.parametrize(
    ("rule", "hours", "tick", "following"),
    [
        (NIGHTLY, 2.9, None, None),
        (NIGHTLY, 3, "2026-01-01T03", "2026-01-02T03"),
        (NIGHTLY, 50.5, "2026-01-02T03", "2026-01-03T03"),
        (replace(NIGHTLY, schedule=CronSchedule("* * * * *")), 50, None, None),  # the next one comes soon
        (RULE, 50, None, None),
    ],
    ids=["before", "at", "after-two", "minutely", "interval"],
)
def test_a_claim_reports_a_missed_tick_and_the_time_of_the_next(
    rule: ScheduleRule, hours: float, tick: str | None, following: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(["/a", "/b"], rule=rule)
    world.drain()
    assert missed_ticks(caplog) == []
    world.clock.advance(hours * 3_600)
    world.claim()
    if tick is None:
        assert missed_ticks(caplog) == []
        return
    assert missed_ticks(caplog) == [
        f"[group] the tick of {tick}:00:00.000+00:00 was missed or not finished by 1 partition (0/1): events in the "
        f"inbox have been due since 2026-01-01T00:00:00.000+00:00; the next tick is at {following}:00:00.000+00:00; to "
        "handle them now, stop the processes that run the group and type: opencqrs run --group group --until-caught-up"
    ]
    assert caplog.records[-1].levelno == logging.WARNING
    world.drain()
    assert world.positions == []  # that is left to the schedule


def test_partitions_that_missed_a_tick_are_named_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    world = World([f"/{number}" for number in range(10)], rule=NIGHTLY, partitions=3)
    world.drain()
    world.clock.advance(4 * 3_600)
    world.claim()
    (line,) = missed_ticks(caplog)
    assert "by 3 partitions (0/3, 1/3, 2/3)" in line


def test_a_run_that_tries_all_events_immediately_has_missed_no_tick(caplog: pytest.LogCaptureFixture) -> None:
    world = World(["/a"], rule=NIGHTLY)
    world.drain()
    world.clock.advance(4 * 3_600)
    world.run = replace(world.run, ticks_at_once=True)
    world.claim()
    assert missed_ticks(caplog) == []


def test_events_left_by_a_finished_tick_have_not_missed_it(caplog: pytest.LogCaptureFixture) -> None:
    world = World(["/a", "/b", "/c"], rule=NIGHTLY)
    world.errors = {1: NO, 2: NonTransientError("never")}
    world.drain()
    world.change(3, InboxEntry.paused)
    world.pass_time(3 * 3_600)
    assert world.waiting == {1: "retrying", 2: "exhausted", 3: "paused"}
    world.append(["/d"])
    world.drain()
    world.clock.advance(3_600)
    world.claim()
    assert missed_ticks(caplog) == []


def test_an_event_that_is_no_longer_in_the_log_waits_for_a_person(caplog: pytest.LogCaptureFixture) -> None:
    world = World(["/a", "/b"])
    world.drain()
    world.store.pick = lambda positions: [  # type: ignore[method-assign]
        one for one in InMemoryEventStore.pick(world.store, positions) if one.position != 1
    ]
    world.pass_time(10)
    assert world.waiting == {1: "undecodable"}
    assert world.entry(1).reason == "the log no longer has event id 1 of s at position 1"
    assert "event id 1 of sequence '/a' waits for a person: the log no longer has event id 1 of s" in caplog.text
    assert world.positions == [2]


@pytest.mark.parametrize("count", [10, 11, 250])
def test_events_that_are_no_longer_in_the_log_are_set_aside_together_and_the_first_ones_of_a_tick_named(
    caplog: pytest.LogCaptureFixture, count: int
) -> None:
    world = World([f"/{number}" for number in range(count)])
    world.drain()
    world.store.pick = lambda positions: []  # type: ignore[method-assign]
    changes: list[int] = []
    apply = world.tracker.unit
    world.tracker.unit = lambda *args, **named: (  # type: ignore[method-assign]
        changes.append(len(named["change"].changed) if named.get("change") else 0),
        apply(*args, **named),
    )[1]
    world.pass_time(10)
    assert set(world.waiting.values()) == {"undecodable"}
    assert [size for size in changes if size] == [100] * (count // 100) + [count % 100]
    lines = [record.getMessage() for record in caplog.records if "for a person" in record.getMessage()]
    more = ["[group 0/1] more events wait for a person: opencqrs inbox list --group group --status undecodable"]
    assert [line.split(" waits")[0] for line in lines[:10]] == [
        f"[group 0/1] event id {number + 1} of sequence '/{number}'" for number in range(10)
    ]
    assert lines[10:] == (more if count > 10 else [])


@pytest.mark.parametrize("rule", [RULE, ALL])
@pytest.mark.parametrize("other", [{"id": "id 9"}, {"source": "t"}])
def test_another_event_at_the_position_of_a_waiting_one_is_not_handled_instead(
    rule: ScheduleRule, other: dict[str, Any]
) -> None:
    world = World(["/a", "/a", "/b"], rule=rule)
    world.drain()
    world.store._events[1] = world.store._events[1]._replace(**other)
    world.pass_time(10)
    assert world.waiting == {2: "undecodable"} if rule.each else {1: "pending", 2: "undecodable"}
    assert world.positions == ([1, 3] if rule.each else [3])


def test_an_event_of_two_sequences_stops_the_partition_before_it_and_is_named() -> None:
    world = World(["/a", "/b", "/both", "/a"])
    world.run.processing._sequencing = world.run.processing.feed._sequencing = ForTwo()
    world.drain()
    assert world.waiting == {1: "pending", 2: "pending"}
    (status,) = world.tracker.statuses()
    assert (status.state.value, status.position) == ("failed", 2)
    assert status.error.startswith("[OCQ-602] InboxError: the event belongs to 2 sequences")
    assert status.failure is not None
    assert (status.failure.event_id, status.failure.position) == ("id 3", 3)


# ------------------------------------------------------------------------------------------------- size and ordering


@pytest.mark.parametrize("rule", [RULE, ALL])
def test_a_tick_handles_at_most_the_configured_number_of_events_per_sequence(rule: ScheduleRule) -> None:
    world = World(["/a"] * 5 + ["/b"], rule=replace(rule, size=2))
    world.drain()
    world.pass_time(10)
    assert world.positions == [1, 2, 6]
    world.pass_time(6)
    assert world.positions == [1, 2, 6, 3, 4]
    world.pass_time(6)
    assert world.positions == [1, 2, 6, 3, 4, 5]


@pytest.mark.parametrize("grace_seconds", [0, 1_000])
def test_in_all_mode_a_failure_restarts_counting_towards_the_size(grace_seconds: int) -> None:
    world = World(["/a"] * 6, rule=replace(ALL, size=2, grace_seconds=grace_seconds))
    world.errors = {1: NO}
    world.drain()
    world.pass_time(10)
    assert world.positions == [2, 3]  # with the failure, one more than the size was tried
    world.pass_time(6)
    assert world.positions == [2, 3, 4, 5], "an event that fails at each tick blocks no other"


@pytest.mark.parametrize("rule", [RULE, ALL])
@pytest.mark.parametrize("batch_size", [1, 3, 1_000])
@pytest.mark.parametrize("fetch_size", [1, 4, 1_000])
@pytest.mark.parametrize("size", [None, 3])
def test_chunk_and_fetch_sizes_do_not_change_the_result(
    rule: ScheduleRule, batch_size: int, fetch_size: int, size: int | None
) -> None:
    subjects = ["/a", "/b", "/a", "/c", "/a", "/a", "/b", "/a"]
    world = World(subjects, rule=replace(rule, fetch_size=fetch_size, size=size), batch_size=batch_size)
    world.drain()
    world.pass_time(10)
    assert sorted(world.positions) == ([1, 2, 3, 4, 5, 7] if size else [1, 2, 3, 4, 5, 6, 7, 8])
    of_a = [position for position in world.positions if subjects[position - 1] == "/a"]
    assert of_a == sorted(of_a)
    world.pass_time(6)
    assert len(world.positions) == 8


ORDERS = {
    "log": (RULE, [1, 2, 3, 4]),
    "time": (replace(RULE, order=BatchOrder.EVENT_TIME), [3, 1, 4, 2]),
    "id": (replace(RULE, order=BatchOrder.EVENT_ID), [2, 4, 1, 3]),
    "key": (replace(RULE, key=OrderingKey(lambda one: one.position % 2)), [2, 4, 1, 3]),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fetch_size", [1, 1_000])
def test_the_events_of_a_batch_are_handled_in_the_configured_order(order: str, fetch_size: int) -> None:
    rule, expected = ORDERS[order]
    times = ["2026-01-02T00:00:00Z", None, "2026-01-01T23:00:00-02:00", "2026-01-02 03:00:00"]
    times[2] = "2026-01-01T00:00:00Z"
    ids = ["m", "b", "z", "c"]
    events = [event(n, "/a", time, id_) for n, (time, id_) in enumerate(zip(times, ids, strict=True), 1)]
    world = World(events=events, rule=replace(rule, fetch_size=fetch_size))
    world.drain()
    world.pass_time(10)
    assert world.positions == expected


def test_in_a_custom_order_a_failure_blocks_the_rest_but_not_new_events_that_sort_before_it() -> None:
    rule = replace(RULE, key=OrderingKey(lambda one: -one.position))
    world = World(["/a", "/a", "/a"], rule=rule)
    world.errors = {2: NO}
    world.drain()
    world.pass_time(10)
    assert world.positions == [3]
    world.append(["/a"])
    world.pass_time(54)
    assert world.positions == [3]
    world.errors = {}
    world.pass_time(10)
    assert world.positions == [3, 4, 2, 1]


KEYED = {1: 3, 2: 1, 3: 2}


def keyed_rule(rule: ScheduleRule, keys: dict[int, Any]) -> ScheduleRule:
    """Return a rule by which the events are ordered by a value for each position; an exception is raised."""

    def due(raw: Event) -> Any:
        found = keys[raw.position]
        if isinstance(found, BaseException):
            raise found
        return found

    return replace(rule, key=OrderingKey(due, "batch.ordering-ref 'due'", "parts.py:3 (due)"))


@pytest.mark.parametrize(
    ("odd", "status", "message"),
    [
        (KeyError("due"), "retrying", "batch.ordering-ref 'due' raised KeyError: 'due'"),
        (NonTransientError("never"), "exhausted", "batch.ordering-ref 'due' raised NonTransientError: never"),
        (
            None,
            "retrying",
            "batch.ordering-ref 'due' returned values that cannot be compared: NoneType for this event, "
            "int for another of its batch",
        ),
        *(
            (
                key,
                "retrying",
                "batch.ordering-ref 'due' returned NaN, which is neither less nor greater than any number",
            )
            for key in (nan, (nan, 1))
        ),
    ],
)
@pytest.mark.parametrize(("rule", "done"), [(RULE, []), (replace(RULE, fetch_size=1), []), (ALL, [3, 1])])
def test_an_error_of_the_ordering_function_is_a_failure_of_its_event(
    rule: ScheduleRule, done: list[int], odd: Any, status: str, message: str
) -> None:
    keys = {**KEYED, 2: odd, 4: 0, 5: 0}
    world = World(["/a", "/a", "/a", "/b", "/c"], rule=keyed_rule(rule, keys))
    world.drain()
    world.pass_time(10)
    assert [one for one in world.positions if one <= 3] == done
    assert {4, 5} <= set(world.positions), "other batches are handled at the tick"
    assert (world.waiting[2], world.entry(2).attempts) == (status, 1)
    assert world.entry(2).reason == f"[OCQ-611] OrderingError: {message}"
    (notice,) = world.seen.notices
    assert notice.action is (Action.PARK if status == "exhausted" else Action.RETRY)
    assert "where: parts.py:3 (due)" in notice.failure.advice
    keys.update(KEYED)
    if status == "exhausted":
        world.retry(2)
    world.pass_time(72)
    assert [one for one in world.positions if one <= 3] == ([3, 1, 2] if done else [2, 3, 1])


@pytest.mark.parametrize("time", ["05.01.2026 10:00", b"2026"])
def test_an_invalid_time_is_a_failure_of_its_event_if_events_are_ordered_by_time(time: Any) -> None:
    events = [event(n, subject) for n, subject in enumerate(["/a", "/b", "/b", "/c"], 1)]
    events[1] = events[1]._replace(time=time)
    world = World(events=events, rule=replace(RULE, order=BatchOrder.EVENT_TIME))
    world.drain()
    world.pass_time(10)
    assert world.positions == [1, 4], "other batches are handled at the tick"
    assert (world.waiting, world.entry(2).attempts) == ({2: "retrying", 3: "pending"}, 1)
    assert world.entry(2).reason.startswith("[OCQ-611] OrderingError: batch.ordering is event-time, and the event's ")
    assert repr(time) in world.entry(2).reason
    (notice,) = world.seen.notices
    assert "where: event id 2 at position 2 (lent, /b)" in notice.failure.advice


def test_an_event_for_which_the_ordering_function_fails_has_its_attempts_and_grace_period() -> None:
    keys = {**KEYED, 2: NO}
    rule = replace(keyed_rule(RULE, keys), grace_seconds=15, back_off=NoRetry(), on_exhausted=OnBatchExhausted.SKIP)
    world = World(["/a", "/a", "/a"], rule=rule)
    world.drain()
    world.pass_time(10)
    assert (world.positions, world.entry(2).attempts) == ([], 0)
    world.pass_time(6)
    assert world.positions == [3, 1]
    assert world.waiting == {}


def test_an_outage_in_the_ordering_function_uses_no_attempt() -> None:
    keys = {**KEYED, 2: UnavailableError("OCQ-420", "unavailable")}
    world = World(["/a", "/a", "/a"], rule=keyed_rule(RULE, keys))
    world.drain()
    world.pass_time(10)
    assert (world.positions, world.entry(2).attempts) == ([], 0)
    assert world.seen.notices[-1].action is Action.WAIT
    keys.update(KEYED)
    world.pass_time(30)
    assert world.positions == [2, 3, 1]


def test_many_events_with_equal_keys_stay_in_log_order() -> None:
    world = World(["/a"] * 100, rule=replace(RULE, order=BatchOrder.EVENT_TIME))
    world.drain()
    world.pass_time(10)
    assert world.positions == list(range(1, 101))


# ------------------------------------------------------------------------------------------------------------ people


@pytest.mark.parametrize(("rule", "done"), [(RULE, []), (ALL, [1, 3])])
def test_a_paused_event_is_never_tried_and_blocks_its_batch_in_fail_first_mode(
    rule: ScheduleRule, done: list[int]
) -> None:
    world = World(["/a", "/a", "/a"], rule=rule)
    world.drain()
    world.change(2, lambda entry: entry.paused())
    world.pass_time(100)
    assert world.positions == done
    world.retry(2)
    world.pass_time(12)
    assert sorted(world.positions) == [1, 2, 3]


def test_a_paused_event_beyond_the_fetch_size_blocks_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(["/a"] * 4, rule=replace(RULE, fetch_size=2))
    world.drain()
    world.change(4, lambda entry: entry.paused())
    asked, is_stuck = list[str](), world.tracker.is_stuck

    def noted(group: str, sequence_id: str) -> bool:
        asked.append(sequence_id)
        return is_stuck(group, sequence_id)

    monkeypatch.setattr(world.tracker, "is_stuck", noted)
    world.pass_time(100)
    assert world.positions == []
    assert asked == ["/a"]  # at the first tick: the sequence then waits for the person


# ----------------------------------------------------------------------------------------------------------- filters


def test_events_that_a_filter_rejects_do_not_enter_the_inbox() -> None:
    world = World(["/a", "/b", "/a"], rule=replace(RULE, filters=(lambda one: one.subject != "/b",)))
    world.drain()
    assert world.waiting == {1: "pending", 3: "pending"}
    assert [status.position for status in world.tracker.statuses()] == [3]


def test_a_filter_that_fails_stops_the_partition_before_its_event() -> None:
    def picky(one: Event) -> bool:
        if one.position == 2:
            raise NO
        return True

    world = World(["/a", "/b", "/c"], rule=replace(RULE, filters=(picky,)))
    world.drain()
    (status,) = world.tracker.statuses()
    assert (status.state.value, status.position, world.waiting) == ("failed", 1, {1: "pending"})
    assert "ValueError: no" in status.error


def test_a_claim_is_refused_if_waiting_events_now_belong_to_another_sequence() -> None:
    world = World(["/a/1", "/b/1"])
    world.drain()
    world.run.processing._sequencing = SequencingByEvent(PerSubjectLevel(1))
    with pytest.raises(InboxError, match=r"OCQ-609.*waits as part of sequence '/./1', but is in '/.' now"):
        world.claim()
    world.run.processing._sequencing = SequencingByEvent(PerSubject())
    world.claim()


@pytest.mark.parametrize("rule", [RULE, ALL])
def test_an_abandoned_call_uses_an_attempt_of_its_event(rule: ScheduleRule) -> None:
    world = World(["/a", "/a"], rule=rule)
    world.drain()
    (driver,) = world.drivers
    given_up = replace(failure_of(NO, Origin.HANDLER), position=1)
    assert driver.processor.failed_in_inbox(driver.cursor, given_up, "/a").failure is None
    assert (world.waiting, world.entry(1).attempts) == ({1: "retrying", 2: "pending"}, 1)
    world.pass_time(59)
    assert world.positions == ([] if rule is RULE else [2])
    world.pass_time(12)
    assert sorted(world.positions) == [1, 2]
    assert driver.processor.failed_in_inbox(driver.cursor, given_up, "/a").failure is None


# ------------------------------------------------------------------------------------------------------------ crashes


@pytest.mark.parametrize("rule", [RULE, ALL])
def test_crashes_use_attempts_until_they_are_exhausted(rule: ScheduleRule) -> None:
    world = World(["/a", "/b"], rule=rule)
    world.errors = {1: CrashError()}
    crashes = 0
    world.claim()
    for _ in range(20):
        try:
            world.pass_time(1_000)
        except CrashError:
            crashes += 1
            world.claim()
    assert world.waiting == {1: "exhausted"}
    assert world.positions == [2]
    assert crashes == 6  # the first crash was not marked


@pytest.mark.parametrize("exhausted", OnBatchExhausted)
@pytest.mark.parametrize("rule", [RULE, ALL])
@pytest.mark.parametrize("attempts", [1, 3])
def test_crashes_within_the_grace_period_use_no_attempt(
    rule: ScheduleRule, exhausted: OnBatchExhausted, attempts: int
) -> None:
    """Otherwise a few restarts would lose an event that is merely slow."""
    back_off = ExponentialBackOff(60, 2, 600, max_attempts=attempts - 1)
    world = World(["/a", "/b"], rule=replace(rule, back_off=back_off, on_exhausted=exhausted, grace_seconds=1_000))
    world.errors = {1: CrashError()}
    crashes = 0
    world.claim()
    while (world.clock.now() - FakeClock().now()).total_seconds() < 900:
        try:
            world.pass_time(100)
        except CrashError:
            crashes += 1
            world.claim()
    assert crashes > 5
    assert (world.waiting, world.tracker.skipped()) == ({1: "retrying"}, [])
    world.clock.advance(200)  # now failures count
    ended = 0
    for _ in range(30):
        try:
            world.pass_time(1_000)
        except CrashError:
            ended += 1
            world.claim()
    skips = exhausted is OnBatchExhausted.SKIP
    assert (world.waiting, len(world.tracker.skipped())) == ({} if skips else {1: "exhausted"}, int(skips))
    assert ended == attempts
    assert world.positions == [2]


def test_an_event_whose_process_crashes_in_the_grace_period_is_handled_by_the_next_process() -> None:
    rule = replace(RULE, back_off=NoRetry(), on_exhausted=OnBatchExhausted.SKIP, grace_seconds=1_000)
    world = World(["/a"], rule=rule)
    world.errors = {1: CrashError()}
    world.claim()
    for _ in range(3):
        with pytest.raises(CrashError):
            world.pass_time(200)
        world.claim()
    world.errors = {}
    world.pass_time(200)
    assert (world.positions, world.waiting, world.tracker.skipped()) == ([1], {}, [])


@pytest.mark.parametrize("exhausted", OnBatchExhausted)
@pytest.mark.parametrize("rule", [RULE, ALL])
def test_an_outage_after_a_crash_does_not_count_as_a_crash(rule: ScheduleRule, exhausted: OnBatchExhausted) -> None:
    """It also keeps the mark of the attempt from being removed then."""
    world = World(["/a"], rule=replace(rule, back_off=NoRetry(), on_exhausted=exhausted))
    world.drain()
    world.claim()
    outage = Outage(world.tracker)
    world.errors = outage.at(1)
    world.pass_time(60)
    assert outage.is_on
    assert world.positions == []
    outage.end()
    world.pass_time(600)
    assert (world.positions, world.waiting, world.tracker.skipped()) == ([1], {}, [])
    assert {call.attempt for call in world.calls} == {1}


# --------------------------------------------------------------------------------------------------------------- laws

SUBJECTS = st.lists(st.sampled_from(["/a", "/b", "/c", "/d"]), min_size=1, max_size=12)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([0.5, 6, 60, 500])),
        st.tuples(st.just("append"), SUBJECTS),
        st.tuples(st.just("break"), st.sets(st.integers(1, 30), max_size=6)),
        st.tuples(st.just("crash"), st.integers(1, 30)),
        st.tuples(st.just("pause"), st.integers(1, 30)),
        st.tuples(st.just("retry"), st.integers(1, 30)),
    ),
    max_size=12,
)


@given(
    subjects=SUBJECTS,
    actions=ACTIONS,
    partitions=st.sampled_from([1, 2, 3]),
    batch_size=st.sampled_from([1, 2, 5]),
    fetch_size=st.sampled_from([1, 3, 1_000]),
    size=st.sampled_from([None, 1, 2]),
    mode=st.sampled_from(BatchMode),
)
def test_each_event_is_handled_once_and_in_fail_first_mode_in_the_order_of_its_sequence(
    subjects: list[str],
    actions: list[tuple[str, Any]],
    partitions: int,
    batch_size: int,
    fetch_size: int,
    size: int | None,
    mode: BatchMode,
) -> None:
    rule = replace(RULE, mode=mode, fetch_size=fetch_size, size=size)
    world = World(subjects, rule=rule, partitions=partitions, batch_size=batch_size)
    for action, value in actions:
        known = world.waiting
        try:
            match action:
                case "pass":
                    world.drain()
                    world.pass_time(value)
                case "append":
                    world.append(value)
                case "break":
                    world.errors = dict.fromkeys(value, NO)
                case "crash":
                    world.errors[value] = CrashError()
                case "pause" if value in known and InboxStatus(known[value]).moves:
                    world.change(value, lambda entry: entry.paused())
                case "retry" if value in known:
                    world.retry(value)
            world.drain()
        except CrashError:
            world.errors = {position: error for position, error in world.errors.items() if error is NO}
            world.claim()
        _check(world, mode, complete=False)
    _finish(world)
    _check(world, mode, complete=True)


def _finish(world: World) -> None:
    """Handle all waiting events."""
    world.errors = {}
    world.claim()
    world.drain()
    for _ in range(STEPS):
        for position in world.waiting:
            world.retry(position)
        world.pass_time(20)
        if not world.waiting:
            return
    pytest.fail(f"still waiting: {world.waiting}")


def _check(world: World, mode: BatchMode, *, complete: bool) -> None:
    expected: dict[str, list[int]] = defaultdict(list)
    for one in world.store.read(0, 1_000, world.run.processing.selection).events:
        expected[one.subject].append(one.position)
    found: dict[str, list[int]] = defaultdict(list)
    for subject, position in world.database.rows:
        found[subject].append(position)
    for subject, positions in expected.items():
        handled = found[subject] if mode is BatchMode.FAIL_FIRST else sorted(found[subject])
        assert len(set(handled)) == len(handled)
        if mode is BatchMode.FAIL_FIRST or complete:
            assert handled == (positions if complete else positions[: len(handled)])


# -------------------------------------------------------------------------------------------------- a clock that is set


class SetClock(FakeClock):
    """A clock that can be set, even back."""

    def set_back(self, **span: float) -> None:
        self._start -= timedelta(**span)


BY_ID = replace(RULE, order=BatchOrder.EVENT_ID)


@pytest.mark.parametrize("claimed_again", [True, False], ids=["at a claim", "while it runs"])
@pytest.mark.parametrize("rule", [RULE, ALL, BY_ID], ids=["fail-first", "all", "by id"])
@pytest.mark.parametrize(
    ("fails", "wait"), [((), 20), ((1,), 70), ((2,), 70)], ids=["untried", "the first fails", "another fails"]
)
def test_waits_set_by_a_clock_that_was_ahead_are_corrected(
    fails: tuple[int, ...], wait: float, rule: ScheduleRule, *, claimed_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(rule=rule, events=[event(1, "/a", id_="3"), event(2, "/a", id_="1"), event(3, "/b", id_="2")])
    world.clock = clock = SetClock()
    world.errors = dict.fromkeys(fails, NO)
    world.claim()
    if fails:
        world.pass_time(12)
    else:
        world.drain()
    left = set(world.waiting)
    clock.set_back(days=400)
    world.errors = {}
    if claimed_again:
        world.claim()
    world.drain()
    world.pass_time(wait)
    assert sorted(world.positions) == [1, 2, 3]
    assert left
    assert sum("from a clock that was ahead" in one.getMessage() for one in caplog.records) == 1


@pytest.mark.parametrize("rule", [RULE, ALL])
@pytest.mark.parametrize("grace", [0.0, 60.0])
def test_failures_of_events_received_by_a_clock_that_was_ahead_are_counted(rule: ScheduleRule, grace: float) -> None:
    world = World(["/a"], rule=replace(rule, grace_seconds=grace))
    world.clock = clock = SetClock()
    world.claim()
    world.drain()
    clock.set_back(days=400)
    world.errors = {1: NO}
    world.pass_time(20)
    assert [(one.attempts, one.status) for one in world.tracker.entries("group")] == [(1, InboxStatus.RETRYING)]


def test_regular_waits_are_unchanged_at_a_claim() -> None:
    world = World(["/a", "/b", "/a"])
    world.errors = {1: NO, 2: NO}
    world.pass_time(12)
    before = [one.due_at for one in world.tracker.entries("group")]
    world.claim()
    world.clock.advance(2)
    world.claim()
    assert [one.due_at for one in world.tracker.entries("group")] == before


def test_a_wait_with_jitter_does_not_count_as_late(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The random wait of an event differs from that drawn without an event."""
    # the wait of an event has its own seed
    monkeypatch.setattr("opencqrs_py.processing.recovery.random.random", lambda: 1.0)
    back_off = ExponentialBackOff(60, 2, 600, max_attempts=4, jitter=1.0)
    world = World(["/a"], rule=replace(RULE, back_off=back_off))
    world.errors = {1: NO}
    world.drain()
    world.pass_time(20)
    (before,) = world.tracker.entries("group")
    assert before.due_at is not None
    assert before.due_at > in_milliseconds(world.clock.now() + timedelta(seconds=1))
    world.claim()
    assert world.tracker.entries("group") == [before]
    assert "earlier next attempt" not in caplog.text

"""Parking: an exhausted event waits in the inbox with its sequence, and all others continue."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py import Event, NonTransientError
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.config.value_types import parse_duration
from opencqrs_py.engines.driver import PartitionDriver, claim
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.errors import EventFormatError, InboxError, TransactionEndedError
from opencqrs_py.model import Handler, HandlerMark, ProcessingContext, ProcessorState, layout
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.inbox import InboxChange, InboxEntry, InboxStatus
from opencqrs_py.model.outcome import Origin
from opencqrs_py.processing.binding import NothingProvided, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.exceptions import failure_of
from opencqrs_py.processing.group_records import GroupCode, RecordRule
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.inbox.parked_entries import ParkingRule
from opencqrs_py.processing.recovery import Action, ExponentialBackOff, FixedBackOff, NoRetry
from opencqrs_py.processing.sequence_resolvers import PerSubject, PerSubjectLevel
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.testing import FakeClock
from tests.support.partitions import CrashError, ForTwo, Outage, Rows, Seen

if TYPE_CHECKING:
    from sqlalchemy import Connection

RULE = ParkingRule(ExponentialBackOff(30.0, 2.0, 3_600.0, max_attempts=5))
STEPS = 1_000  # more than any test needs


class World:
    """A group whose handler writes positions, and raises the remaining ``errors`` by position."""

    def __init__(
        self,
        subjects: Iterable[str],
        *,
        partitions: int = 1,
        batch_size: int = 4,
        rule: ParkingRule = RULE,
        retry: Any = None,
        on_undecodable: OnExhausted = OnExhausted.STOP,
        at_once: bool = True,
        together: bool = False,
    ) -> None:
        self.database = Rows()
        self.tracker = InMemoryProgressTracker(self.database)
        self.clock = FakeClock()
        self.seen = Seen()
        self.errors: dict[int, BaseException] = {}
        self.calls: list[ProcessingContext] = []
        self.store = InMemoryEventStore()
        self.append(subjects)

        def handle(raw: Event, connection: Connection, context: ProcessingContext) -> None:
            self.calls.append(context)
            if (error := self.errors.get(raw.position)) is not None:
                raise error
            connection.append((raw.subject, raw.position))  # type: ignore[attr-defined]

        def handle_all(raws: list[Event], connection: Connection) -> None:
            for raw in raws:
                if (error := self.errors.get(raw.position)) is not None:
                    raise error
                connection.append((raw.subject, raw.position))  # type: ignore[attr-defined]

        back_off = NoRetry() if retry is None else retry
        if at_once:
            rule = replace(rule, retry=back_off, on_exhausted=OnExhausted.PARK, on_undecodable=on_undecodable)
        call: Callable[..., None] = handle_all if together else handle
        bound = bind(Handler(HandlerMark("group"), call, "handlers.py:7"), NothingProvided())
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
            parking=rule,
        )
        self.run = GroupRun(
            processing, layout(partitions), lambda: 0, back_off, OnExhausted.PARK, on_undecodable=on_undecodable
        )
        self.drivers: list[PartitionDriver] = []

    def append(self, subjects: Iterable[str]) -> None:
        first = self.store.head() + 1
        self.store.append(
            Event(0, f"id {n}", "s", subject, "lent", None, "application/json", "{}", None)
            for n, subject in enumerate(subjects, first)
        )

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
        self.clock.advance(seconds)
        self.drain()

    @property
    def positions(self) -> list[int]:
        return [position for _, position in self.database.rows]

    @property
    def waiting(self) -> dict[int, str]:
        return {one.position: one.status.value for one in self.tracker.entries("group")}

    def change(self, position: int, how: Callable[[Any], Any]) -> bool:
        """Change an entry as a person does."""
        (entry,) = (one for one in self.tracker.entries("group") if one.position == position)
        change = InboxChange(self.clock.now().isoformat(timespec="milliseconds"), changed=((entry, how(entry)),))
        return self.tracker.change("group", change)


NO = ValueError("no")


def test_a_parked_event_and_its_sequence_wait_while_all_others_are_handled() -> None:
    world = World(["/a", "/b", "/a", "/c", "/a", "/b"])
    world.errors = {1: NO}
    world.drain()
    assert world.positions == [2, 4, 6]
    assert world.waiting == {1: "retrying", 3: "pending", 5: "pending"}
    assert [status.position for status in world.tracker.statuses()] == [6]


def test_the_configured_retries_come_before_parking() -> None:
    world = World(["/a", "/b"], retry=FixedBackOff(1, 2))
    world.errors = {1: NO}
    world.drain()
    for _ in range(2):
        assert world.waiting == {}
        world.pass_time(1)
    assert world.waiting == {1: "retrying"}
    assert [call.attempt for call in world.calls if call.position == 1] == [1, 2, 3]
    (entry,) = world.tracker.entries("group")
    assert (entry.attempts, entry.retries) == (3, 1)
    assert [one.error for one in entry.errors] == ["ValueError: no"] * 2
    assert "handlers.py:7" in entry.errors[-1].lines


def test_after_a_parked_event_succeeds_its_sequence_follows_in_order_and_resumes() -> None:
    world = World(["/a", "/b", "/a", "/a"])
    world.errors = {1: NO}
    world.drain()
    world.errors = {}
    world.pass_time(29)
    assert world.positions == [2]
    world.pass_time(1)
    assert world.positions == [2, 1, 3, 4]
    assert world.waiting == {}
    world.append(["/a"])
    world.drain()
    assert world.positions == [2, 1, 3, 4, 5]
    assert [(call.position, call.parked) for call in world.calls][-4:] == [(1, True), (3, True), (4, True), (5, False)]
    assert [notice.sequence_id for notice in world.seen.notices] == [None, "/a"]


def test_the_waits_of_a_parked_event_grow_until_it_waits_for_a_person() -> None:
    world = World(["/a", "/a"])
    world.errors = {1: NO}
    world.drain()
    for number, wait in enumerate((30, 60, 120, 240, 480), 2):
        before = len(world.calls)
        world.pass_time(wait - 1)
        assert len(world.calls) == before
        world.pass_time(1)
        assert [call.attempt for call in world.calls[before:]] == [number]
    assert world.waiting == {1: "exhausted", 2: "pending"}
    world.pass_time(1_000_000)
    assert world.waiting == {1: "exhausted", 2: "pending"}
    actions = [(notice.action, notice.wait) for notice in world.seen.notices]
    assert actions == [
        (Action.PARK, 0.0),
        (Action.RETRY, 60.0),
        (Action.RETRY, 120.0),
        (Action.RETRY, 240.0),
        (Action.RETRY, 480.0),
        (Action.PARK, 0.0),
    ]


@pytest.mark.parametrize("alone", [True, False])
def test_repeatedly_failing_attempts_leave_every_other_step_to_the_log(*, alone: bool) -> None:
    world = World(["/a"] if alone else ["/a", "/b", "/c"], rule=ParkingRule(ExponentialBackOff(0.0)))
    # due again at once, as if an attempt had taken long
    world.errors = dict.fromkeys(range(1, world.store.head() + 1), NO)
    world.claim()
    (driver,) = world.drivers
    for _ in range(9):
        driver.step()
    assert len(world.tracker.entries("group")) == world.store.head()
    new = range(world.store.head() + 1, world.store.head() + 9)
    world.append(["/d"] * len(new))
    before = len(world.calls)
    for _ in range(4):
        driver.step()
    assert world.positions == [*new]
    assert [call.parked for call in world.calls[before:]].count(True) == 2


def test_progress_stored_in_a_step_of_the_log_is_kept() -> None:
    world = World(["/a"], partitions=2, rule=ParkingRule(ExponentialBackOff(0.0)))
    world.errors = {1: NO}
    world.claim()
    owner = next(driver for driver in world.drivers if driver.partition.owns("/a"))
    for _ in range(3):
        owner.step()
    world.append([name for name in map("/{}".format, range(99)) if not owner.partition.owns(name)])
    for _ in range(6):
        assert owner.step().failure is None
    assert (owner.cursor.stored, owner.over) == (world.store.head(), False)


def test_the_longest_configurable_wait_has_a_valid_end() -> None:
    longest = parse_duration("365000d")
    world = World(["/a"], rule=ParkingRule(FixedBackOff(longest)), retry=FixedBackOff(longest, max_attempts=1))
    world.errors = {1: NO}
    world.drain()
    world.pass_time(longest)
    (entry,) = world.tracker.entries("group")
    assert entry.due_at == (world.clock.now() + timedelta(seconds=longest)).isoformat(timespec="milliseconds")


def test_a_later_event_that_fails_waits_in_place_of_the_one_that_succeeded() -> None:
    world = World(["/a", "/a", "/a"])
    world.errors = {1: NO}
    world.drain()
    world.errors = {2: NO}
    world.pass_time(30)
    assert world.positions == [1]
    assert world.waiting == {2: "retrying", 3: "pending"}
    world.errors = {}
    world.pass_time(29)
    assert world.positions == [1]
    world.pass_time(1)
    assert world.positions == [1, 2, 3]


@pytest.mark.parametrize(
    ("error", "status"), [(NonTransientError("never"), "exhausted"), (NO, "retrying")], ids=["permanent", "transient"]
)
def test_an_event_that_failed_permanently_waits_for_a_person_immediately(error: Exception, status: str) -> None:
    world = World(["/a", "/b"], retry=NoRetry())
    world.errors = {1: error}
    world.drain()
    assert world.waiting == {1: status}
    assert world.positions == [2]


def test_an_event_that_is_no_longer_in_the_log_waits_for_a_person() -> None:
    world = World(["/a", "/a"])
    world.errors = {1: NO}
    world.drain()
    world.store.pick = lambda _: []  # type: ignore[method-assign]
    world.pass_time(30)
    assert world.waiting == {1: "undecodable", 2: "pending"}
    known = "the log no longer has event id 1 of s at position 1"
    assert world.tracker.entries("group")[0].reason == known


@pytest.mark.parametrize("other", [{"id": "id 9"}, {"id": "ID 1"}, {"id": "id 1 "}, {"source": "t"}])
def test_another_event_at_the_position_of_a_waiting_one_is_not_handled_instead(other: dict[str, Any]) -> None:
    world = World(["/a", "/a", "/b"])
    world.errors = {1: NO}
    world.drain()
    world.errors = {}
    replace_in_log(world, 1, **other)
    world.claim()
    world.pass_time(30)
    assert world.positions == [3]
    assert world.waiting == {1: "undecodable", 2: "pending"}
    replace_in_log(world, 1, id="id 1", source="s")
    assert world.change(1, lambda entry: entry.due(world.clock.now()))
    world.pass_time(1)
    assert world.positions == [3, 1, 2]


@pytest.mark.parametrize(("kept", "stored"), [("id ?", "id \0"), ("id ?", "id \ud800"), ("id ü", "id ü")])
def test_a_waiting_event_is_recognized_although_the_database_stores_its_id_differently(kept: str, stored: str) -> None:
    world = World(["/a"])
    world.errors = {1: NO}
    world.drain()
    world.errors = {}
    replace_in_log(world, 1, id=stored)
    assert world.change(1, lambda entry: entry._replace(event_id=kept))
    world.pass_time(30)
    assert world.positions == [1]


def replace_in_log(world: World, position: int, **parts: Any) -> None:
    """Put another event at a position of the log, as if one of its files had been replaced."""
    world.store._events[position - 1] = world.store._events[position - 1]._replace(**parts)


def test_waiting_events_survive_a_restart() -> None:
    world = World(["/a", "/b", "/a"])
    world.errors = {1: NO}
    world.drain()
    world.append(["/a", "/b"])
    world.claim()
    world.drain()
    assert world.positions == [2, 5]
    assert world.waiting == {1: "retrying", 3: "pending", 4: "pending"}


def test_waiting_events_are_not_overtaken_when_parking_is_switched_off() -> None:
    world = World(["/a"])
    world.errors = {1: NO}
    world.drain()
    world.append(["/a", "/b"])
    world.run = replace(world.run, on_exhausted=OnExhausted.SKIP)
    world.claim()
    world.drain()
    assert world.positions == [3]
    assert world.waiting == {1: "retrying", 2: "pending"}


def test_a_full_inbox_stops_the_partition_without_losing_events() -> None:
    world = World(["/a", "/a", "/a", "/b"], rule=replace(RULE, most_of_sequence=2))
    world.errors = {1: NO}
    world.drain()
    (status,) = world.tracker.statuses()
    assert (status.state.value, status.attempt) == ("failed", 0)
    assert status.error.endswith("'/a' has 2 events waiting - event id 3 at position 3 (lent, /a)")
    assert status.failure is not None
    assert (status.failure.position, status.failure.event_id, status.failure.attempts) == (3, "id 3", 0)
    assert "OCQ-601" in status.failure.last_error
    assert world.waiting == {1: "retrying", 2: "pending"}
    world.errors = {}
    world.pass_time(31)
    assert world.positions == [1, 2, 3, 4]


def test_an_event_that_has_ended_three_processes_is_parked_and_the_notice_says_how_it_is_retried() -> None:
    world = World(["/a", "/b", "/a"], at_once=True)
    world.errors = {1: CrashError()}
    for _ in range(4):
        world.claim()
        with pytest.raises(CrashError):
            world.drain()
    world.claim()
    world.drain()
    assert (world.positions, world.waiting) == ([2], {1: "exhausted", 3: "pending"})
    assert "OCQ-236" in next(iter(world.tracker.entries("group"))).reason
    (notice,) = (one for one in world.seen.notices if one.action is Action.PARK)
    assert notice.failure.advice.endswith("fix its handler, then: opencqrs inbox retry --group group --event 'id 1'")


def test_crashes_in_the_inbox_use_attempts_until_they_are_exhausted() -> None:
    world = World(["/a", "/b"])
    world.errors = {1: NO}
    world.drain()
    world.errors = {1: CrashError()}
    crashes = 0
    for _ in range(20):
        world.claim()
        try:
            world.pass_time(10_000)
        except CrashError:
            crashes += 1
    assert world.waiting == {1: "exhausted"}
    assert crashes == 5
    assert world.positions == [2]


def test_an_outage_in_the_inbox_after_a_crash_does_not_count_as_a_crash() -> None:
    """It also keeps the mark of the attempt from being removed then."""
    world = World(["/a"])
    world.errors = {1: NO}
    world.drain()
    world.claim()
    outage = Outage(world.tracker)
    world.errors = outage.at(1)
    world.pass_time(100)
    assert outage.is_on
    outage.end()
    world.errors = {1: NO}
    world.pass_time(30)
    (entry,) = world.tracker.entries("group")
    assert (entry.attempts, entry.reason) == (2, "ValueError: no")


def test_without_parked_events_the_inbox_is_only_queried_at_the_claim() -> None:
    world = World(["/a", "/b"] * 50)
    looks = 0
    parked = world.tracker.parked

    def counting(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return parked(*arguments)

    world.tracker.parked = counting  # type: ignore[method-assign]
    world.drain()
    world.append(["/a"] * 50)
    world.pass_time(100)
    assert len(world.positions) == 150
    assert looks == 1


@contextmanager
def counted(world: World, *names: str) -> Iterator[Counter[str]]:
    """Count the calls of methods of the tracker."""
    counts: Counter[str] = Counter()

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return method(*arguments, **named)

        return call

    for name in names:
        setattr(world.tracker, name, counting(name, getattr(world.tracker, name)))
    yield counts


def running(subjects: list[str]) -> World:
    """Return a world that has handled an event and then gets more."""
    world = World(["/first"])
    world.drain()
    world.append(subjects)
    return world


def test_an_exhausted_event_is_parked_in_the_transaction_of_the_events_before_it() -> None:
    world = running(["/a", "/b", "/c", "/d"])
    world.errors = {4: NO}
    with counted(world, "unit", "parked", "report") as counts:
        world.drain()
    assert counts == {"unit": 3}, "the failed chunk, the events before, the events after; no query, no report"
    assert [call.position for call in world.calls] == [1, 2, 3, 4, 2, 3, 5]
    assert world.positions == [1, 2, 3, 5]
    assert world.waiting == {4: "retrying"}
    assert [(notice.action, notice.attempt) for notice in world.seen.notices] == [(Action.PARK, 1)]


def test_the_first_event_of_a_chunk_is_parked_in_one_transaction() -> None:
    world = running(["/a", "/b"])
    world.errors = {2: NO}
    with counted(world, "unit", "parked", "report") as counts:
        world.drain()
    assert counts == {"unit": 3}
    assert [call.position for call in world.calls] == [1, 2, 3]


def test_an_attempt_in_the_inbox_does_not_end_the_failure_of_the_log() -> None:
    world = World(["/a", "/b"], rule=replace(RULE, most_sequences=1))
    world.errors = {1: NO, 2: NO}
    world.drain()
    for seconds in (30, 60):
        world.clock.advance(seconds)
        world.drain()
    log = [notice for notice in world.seen.notices if notice.failure is None or notice.failure.code == "OCQ-601"]
    assert [(notice.action, notice.wait) for notice in log] == [(Action.STOP, wait) for wait in (30.0, 60.0, 120.0)]
    assert [call.position for call in world.calls].count(1) > 2, "the inbox was tried each time"
    (status,) = world.tracker.statuses()
    assert (status.state, "OCQ-601" in status.error) == (ProcessorState.FAILED, True)


@pytest.mark.parametrize("at_once", [True, False])
def test_events_before_one_that_does_not_fit_the_inbox_are_committed(*, at_once: bool) -> None:
    world = World(["/a", "/b", "/c", "/d"], rule=replace(RULE, most_sequences=1), at_once=at_once)
    world.errors = {1: NO, 3: NO}
    world.drain()
    (status,) = world.tracker.statuses()
    assert (status.state.value, status.position) == ("failed", 2)
    assert status.error.endswith("1 sequence waiting - event id 3 at position 3 (lent, /c)")
    assert status.failure is not None
    assert (status.failure.position, status.failure.attempts) == (3, 1)
    assert (status.failure.first_error, "OCQ-601" in status.failure.last_error) == ("ValueError: no", True)
    assert world.positions == [2]
    assert world.waiting == {1: "retrying"}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_events_before_a_waiting_one_that_does_not_fit_the_inbox_are_committed(
    *, at_once: bool, together: bool, batch_size: int
) -> None:
    shape = {"at_once": at_once, "together": together, "batch_size": batch_size}
    world = World(["/a", "/a", "/b", "/a", "/c"], rule=replace(RULE, most_of_sequence=2), **shape)
    world.errors = {1: NO}
    world.drain()
    (status,) = world.tracker.statuses()
    assert (status.state.value, status.position) == ("failed", 3)
    assert status.failure is not None
    assert (status.failure.position, status.failure.attempts) == (4, 0)
    assert world.positions == [3]
    assert world.waiting == {1: "retrying", 2: "pending"}
    world.errors = {}
    for _ in range(3):
        world.pass_time(60)
    assert (sorted(world.positions), world.waiting) == ([1, 2, 3, 4, 5], {})


def test_an_event_that_fails_only_on_the_retry_of_its_chunk_is_parked_before_the_later_one() -> None:
    world = World(["/a", "/b", "/c"])

    class Flaky(dict[int, BaseException]):
        def get(self, position: int, _: Any = None) -> BaseException | None:
            again = sum(call.position == 3 for call in world.calls) == 1
            return NO if position == 3 or (position == 2 and again) else None

    world.errors = Flaky()
    world.drain()
    assert world.positions == [1]
    assert world.waiting == {2: "retrying", 3: "retrying"}


def test_events_after_a_parked_one_in_half_a_chunk_are_not_lost() -> None:
    world = World(["/a", "/b", "/c", "/d", "/e", "/f", "/g", "/h"], batch_size=8)
    commits = 0

    @contextmanager
    def begin() -> Iterator[SimpleNamespace]:
        nonlocal commits
        with Rows.begin(world.database) as unit:
            yield unit
            commits += 1
            if commits == 1:  # the first failure names no event
                world.errors = {2: NO}
                raise ValueError("a constraint that is checked at the end")

    world.database.begin = begin  # type: ignore[method-assign,assignment]
    world.drain()
    assert world.positions == [1, 3, 4, 5, 6, 7, 8]
    assert world.waiting == {2: "retrying"}


@pytest.mark.parametrize("failing", [1, 3])
def test_a_lost_confirmation_of_the_commit_that_parks_an_event_is_an_outage(failing: int) -> None:
    world = World(["/a", "/b", "/c", "/d"])
    world.errors = {failing: NO}
    opened, lost = world.tracker.unit, list[object]()

    @contextmanager
    def unit(*given: Any, **named: Any) -> Iterator[Any]:
        with opened(*given, **named) as made:
            yield made
        if named.get("change") is not None and not lost:
            lost.append(None)
            raise ConnectionError("cut")

    world.tracker.unit = unit  # type: ignore[method-assign,assignment]
    world.drain()
    world.pass_time(10)
    assert lost
    assert sorted(world.positions) == [each for each in (1, 2, 3, 4) if each != failing]
    assert world.waiting == {failing: "retrying"}
    assert not any(notice.failure and notice.failure.origin is Origin.FENCED for notice in world.seen.notices)


@pytest.mark.parametrize("error", [ValueError("a constraint"), TransactionEndedError("it was committed")])
def test_later_events_do_not_overtake_a_parked_one_however_it_was_found(error: Exception) -> None:
    world = World(["/a", "/b", "/b", "/d"], batch_size=4)
    commits = 0

    @contextmanager
    def begin() -> Iterator[SimpleNamespace]:
        nonlocal commits
        with Rows.begin(world.database) as unit:
            yield unit
            commits += 1
            if commits == 1:  # this failure names no event: they are tried in halves, or one by one
                world.errors = {2: NO}
                raise error

    world.database.begin = begin  # type: ignore[method-assign,assignment]
    world.drain()
    world.pass_time(31)  # a partition in which a transaction was ended has failed
    assert world.positions == [1, 4]
    assert world.waiting == {2: "retrying", 3: "pending"}


def test_a_paused_event_is_only_tried_if_a_person_requests_it() -> None:
    world = World(["/a", "/a"])
    world.errors = {1: NO}
    world.drain()
    world.errors = {}
    assert world.change(1, lambda entry: entry.paused())
    world.pass_time(10_000)
    assert world.waiting == {1: "paused", 2: "pending"}
    assert world.change(1, lambda entry: entry.due(world.clock.now()))
    world.pass_time(1)
    assert world.positions == [1, 2]


def test_a_person_may_change_an_event_during_its_attempt() -> None:
    world = World(["/a", "/a", "/b"])
    world.errors = {1: NO}
    world.drain()

    class Pausing(dict[int, BaseException]):
        def get(self, position: int, _: Any = None) -> BaseException | None:
            return NO if position == 2 and world.change(2, lambda entry: entry.paused()) else None

    world.errors = Pausing()
    world.pass_time(30)
    assert world.waiting == {2: "paused"}
    assert [status.state.value for status in world.tracker.statuses()] == ["running"]
    assert [entry.attempts for entry in world.tracker.entries("group")] == [0]
    assert world.positions == [3, 1]


@pytest.mark.parametrize(("command", "retries", "status"), [("retry", 2, "retrying"), ("set-attempts", 9, "exhausted")])
def test_a_persons_command_survives_a_concurrent_failed_attempt(command: str, retries: int, status: str) -> None:
    world = World(["/a"])
    world.errors = {1: NO}
    world.drain()
    world.pass_time(15)
    tries: list[int] = []

    def wanted(entry: InboxEntry) -> InboxEntry:
        return entry.due(world.clock.now()) if command == "retry" else entry.with_retries(9)

    class Commanding(dict[int, BaseException]):
        def get(self, position: int, _: Any = None) -> BaseException | None:
            tries.append(position)
            if len(tries) == 1:
                assert world.change(1, wanted)
            return NO

    world.errors = Commanding()
    world.clock.advance(100)
    world.drain()
    (found,) = world.tracker.entries("group")
    assert (len(tries), found.attempts, found.retries, found.status) == (2, 2, retries, status)


def test_abandoning_an_attempt_of_an_event_that_has_left_the_inbox_changes_nothing() -> None:
    world = World(["/a", "/b"])
    world.errors = {1: NO}
    world.drain()
    (driver,) = world.drivers
    failure = failure_of(NO, Origin.HANDLER)
    outcome = driver.processor.failed_in_inbox(driver.cursor, replace(failure, position=2), "/b")
    assert outcome.failure is None
    assert world.waiting == {1: "retrying"}


def test_a_run_is_done_once_all_events_due_at_its_start_were_tried() -> None:
    world = World(["/a", "/b"])
    world.errors = {1: NO}
    world.drain()
    world.clock.advance(40)
    world.claim()
    (driver,) = world.drivers
    assert not driver.supervised.done(2)
    world.drain()
    assert driver.supervised.done(2)
    assert world.waiting == {1: "retrying"}


def test_undecodable_events_are_parked_if_configured() -> None:
    world = World(["/a", "/b"], on_undecodable=OnExhausted.PARK)
    world.errors = {1: EventFormatError("OCQ-210", "the event has no data", "here")}
    world.drain()
    assert world.waiting == {1: "undecodable"}
    assert world.positions == [2]


def test_a_claim_is_refused_if_waiting_events_now_belong_to_another_sequence() -> None:
    world = World(["/a/1", "/b/1"])
    world.errors = {1: NO}
    world.drain()
    processing = world.run.processing
    processing._sequencing = SequencingByEvent(PerSubjectLevel(1))
    with pytest.raises(InboxError, match=r"OCQ-609.*waits as part of sequence '/a/1', but is in '/a' now"):
        world.claim()
    processing._sequencing = SequencingByEvent(PerSubject())
    world.claim()


class ButOne:
    """The subject, except for one event, which has its own sequence."""

    looks_at = frozenset({"subject"})

    def __init__(self, other: str) -> None:
        self.other = other

    def __call__(self, event: Event) -> str:
        return event.subject if event.subject != self.other else f"{event.subject} again"


@pytest.mark.parametrize("number", range(1, 31, 7))
@pytest.mark.few
def test_a_claim_is_refused_if_one_of_many_waiting_events_now_belongs_to_another_sequence(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencqrs_py.engines.inbox_checks._PAGE", 9)
    world = World([f"/{n}" for n in range(1, 31)])
    world.errors = dict.fromkeys(range(1, 31), NO)
    world.drain()
    assert len(world.waiting) == 30
    before = world.run.processing._sequencing
    world.run.processing._sequencing = SequencingByEvent(ButOne(f"/{number}"))
    with pytest.raises(InboxError, match=rf"OCQ-609.*as part of sequence '/{number}', but is in '/{number} again' now"):
        world.claim()
    world.run.processing._sequencing = before
    world.claim()


def test_only_a_sample_of_waiting_events_is_compared_if_the_recorded_code_is_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World([f"/{n}" for n in range(1, 31)])
    world.errors = dict.fromkeys(range(1, 31), NO)
    codes = ["1:handlers", "1:sequences"]
    record = RecordRule("group", "tail", lambda: GroupCode(*codes), world.clock.now)
    world.run = replace(world.run, record=record)
    world.drain()
    compared: list[int] = []
    processing = world.run.processing
    monkeypatch.setattr(processing, "why_overtaken", lambda entries: compared.append(len(entries)) or "")
    world.claim()
    assert compared == [20]
    codes[1] = "2:sequences"  # of another version, which cannot be compared
    world.claim()
    assert compared == [20, 30, 20]
    world.claim()
    assert compared == [20, 30, 20, 20]
    codes[1] = ""  # unreadable
    world.claim()
    assert compared == [20, 30, 20, 20, 30]


def test_code_of_another_version_is_not_recorded_while_it_would_overtake_events() -> None:
    world = World([f"/{n}" for n in range(1, 31)])
    world.errors = dict.fromkeys(range(1, 31), NO)
    codes = ["1:handlers", "1:sequences"]
    record = RecordRule("group", "tail", lambda: GroupCode(*codes), world.clock.now)
    world.run = replace(world.run, record=record)
    world.drain()
    codes[1] = "2:sequences"
    last = world.tracker.entries("group")[-1]
    world.run.processing._sequencing = SequencingByEvent(ButOne(last.sequence_id))
    for _ in range(2):
        with pytest.raises(InboxError, match="OCQ-609"):
            world.claim()


def test_a_group_that_can_no_longer_park_does_not_overtake_waiting_events() -> None:
    world = World(["/a", "/b"])
    world.errors = {1: NO}
    world.drain()
    world.run.processing._parking = None
    with pytest.raises(InboxError, match=r"OCQ-609.*with its settings, the group cannot park events"):
        world.claim()


class BySubject:
    """A resolver by subject that fails for one subject."""

    looks_at = frozenset({"subject"})

    def __call__(self, event: Event) -> str:
        if event.subject == "/unknown":
            raise ValueError("which sequence?")
        return event.subject


def test_an_event_of_unknown_sequence_blocks_only_later_events() -> None:
    world = World(["/a", "/b", "/a", "/unknown", "/b"])
    world.run.processing._sequencing = world.run.processing.feed._sequencing = SequencingByEvent(BySubject())
    world.errors = {1: NO}
    world.drain()
    assert world.positions == [2]
    assert world.waiting == {1: "retrying", 3: "pending"}
    (status,) = world.tracker.statuses()
    assert (status.state.value, status.position) == ("failed", 3)


def test_an_event_of_two_sequences_one_of_which_is_parked_blocks_only_later_events_and_is_named() -> None:
    world = World(["/a", "/b", "/a", "/both", "/b"])
    world.run.processing._sequencing = world.run.processing.feed._sequencing = ForTwo()
    world.errors = {1: NO}
    world.drain()
    assert world.positions == [2]
    assert world.waiting == {1: "retrying", 3: "pending"}
    (status,) = world.tracker.statuses()
    assert (status.state.value, status.position) == ("failed", 3)
    assert status.error.startswith("[OCQ-602] InboxError: the event belongs to 2 sequences")
    assert status.failure is not None
    assert (status.failure.event_id, status.failure.position) == ("id 4", 4)


def test_an_event_of_two_sequences_that_fails_itself_blocks_its_partition_and_keeps_its_attempts() -> None:
    world = World(["/b", "/both", "/a"])
    world.run.processing._sequencing = world.run.processing.feed._sequencing = ForTwo()
    world.errors = {2: NO}
    world.drain()
    assert (world.positions, world.waiting) == ([1], {})
    (status,) = world.tracker.statuses()
    assert (status.state.value, status.position) == ("failed", 1)
    assert status.error.startswith("[OCQ-602] InboxError: the event belongs to 2 sequences")
    assert status.failure is not None
    assert (status.failure.event_id, status.failure.attempts) == ("id 2", 1)
    world.errors = {}
    world.clock.advance(3_600)
    world.drain()
    assert (world.positions, world.waiting) == ([1, 2, 3], {})


# ------------------------------------------------------------------------------------------------------------ laws

SUBJECTS = st.lists(st.sampled_from(["/a", "/b", "/c", "/d"]), min_size=1, max_size=12)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([0.5, 1, 30, 400, 5_000])),
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
    at_once=st.booleans(),
    together=st.booleans(),
)
def test_each_event_is_handled_once_in_the_order_of_its_sequence(
    *,
    subjects: list[str],
    actions: list[tuple[str, Any]],
    partitions: int,
    batch_size: int,
    at_once: bool,
    together: bool,
) -> None:
    world = World(subjects, partitions=partitions, batch_size=batch_size, at_once=at_once, together=together)
    for action, value in actions:
        waiting = world.waiting
        try:
            match action:
                case "pass":
                    world.pass_time(value)
                case "append":
                    world.append(value)
                case "break":
                    world.errors = dict.fromkeys(value, NO)
                case "crash":
                    world.errors[value] = CrashError()
                case "pause" if value in waiting and InboxStatus(waiting[value]).moves:
                    assert world.change(value, lambda entry: entry.paused())
                case "retry" if value == min(waiting, default=0):
                    assert world.change(value, lambda entry: entry.due(world.clock.now()))
            world.drain()
        except CrashError:
            world.errors = {position: error for position, error in world.errors.items() if error is NO}
            world.claim()
        _check_order(world, complete=False)
    _recover(world)
    _check_order(world, complete=True)


def _recover(world: World) -> None:
    """Handle all waiting events."""
    world.errors = {}
    world.claim()
    for _ in range(STEPS):
        world.pass_time(2_000)
        world.drain()
        if not world.waiting:
            return
        first_ones = {one.sequence_id: one for one in reversed(world.tracker.entries("group"))}
        for entry in first_ones.values():
            world.change(entry.position, lambda one: one.due(world.clock.now()))
    pytest.fail(f"still waiting: {world.waiting}")


def _check_order(world: World, *, complete: bool) -> None:
    expected: dict[str, list[int]] = defaultdict(list)
    for event in world.store.read(0, 1_000, world.run.processing.selection).events:
        expected[event.subject].append(event.position)
    found: dict[str, list[int]] = defaultdict(list)
    for subject, position in world.database.rows:
        found[subject].append(position)
    for subject, positions in expected.items():
        assert found[subject] == (positions if complete else positions[: len(found[subject])])


class SetClock(FakeClock):
    """A clock that can be set, even back."""

    def set_back(self, **span: float) -> None:
        self._start -= timedelta(**span)


@pytest.mark.parametrize("claimed_again", [True, False], ids=["at a claim", "while it runs"])
def test_an_event_parked_by_a_clock_that_was_ahead_is_tried_after_its_wait(
    *, claimed_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(["/a", "/b", "/a"])
    world.clock = clock = SetClock()
    world.errors = {1: NO}
    world.drain()
    assert world.waiting == {1: "retrying", 3: "pending"}
    clock.set_back(days=400)
    world.errors = {}
    if claimed_again:
        world.claim()
    world.drain()
    assert world.positions == [2]
    world.pass_time(32)
    assert world.positions == [2, 1, 3]
    assert sum("from a clock that was ahead" in one.getMessage() for one in caplog.records) == 1

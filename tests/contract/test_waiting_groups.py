"""Events that wait in the inbox are neither stuck nor lost, whatever changes about their group; on each database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg.rows import dict_row
from pymysql.cursors import DictCursor
from sqlalchemy import Connection, delete
from support.participants import TRACKERS
from support.partitions import CrashError
from support.waiting import GROUP, SCHEDULE, OneStepWorld, SparkWorld, WaitingWorld

from opencqrs_py import InboxFilter, NonTransientError, NoRetry
from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.adapters.sql.inbox_statements import InboxStatements
from opencqrs_py.adapters.sql.tables import PROGRESS
from opencqrs_py.engines.recorded_claims import recorded_claim
from opencqrs_py.engines.spark.turns import TaskTimedOutError, TimedOut, Turns, timed_out_of
from opencqrs_py.errors import BeginningNeededError, InboxError
from opencqrs_py.model import Outcome, layout
from opencqrs_py.model.choices import BatchMode, BatchOrder, OnBatchExhausted
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.model.partition import WHOLE, hash_of, residue_of
from opencqrs_py.model.replay import Reset
from opencqrs_py.processing.calls import NO_LIMITS, CallInHand
from opencqrs_py.processing.group_records import GroupCode
from opencqrs_py.processing.inbox.batches import ScheduleRule
from opencqrs_py.processing.inbox.schedules import CronSchedule
from opencqrs_py.processing.recovery import ExponentialBackOff
from opencqrs_py.testing.contracts.repartitioning_tracker import keep

NO = ValueError("no")
FOR_GOOD = NonTransientError("no")
ALL = replace(SCHEDULE, mode=BatchMode.ALL)
SLOW = ExponentialBackOff(3_600, 2, 10_800, max_attempts=9)
FIRST = "/a"
SECOND = next(name for name in ("/b", "/c", "/d") if hash_of(name) % 2 != hash_of(FIRST) % 2)
"""Two sequences of different partitions."""


NOT_IN_SQL = pytest.mark.release(kind=("postgresql", "mariadb"))
"""The statements for the inbox are the same on all databases, and its contract runs on each."""


@pytest.fixture(params=TRACKERS[1:])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


# --------------------------------------------------------------------------------------------- settings that change


@NOT_IN_SQL
def test_events_of_batches_are_tried_individually_when_the_mode_becomes_all(database: Database) -> None:
    world = WaitingWorld(database, ["/a", "/a", "/a"], schedule=SCHEDULE)
    world.drain()
    world.release()
    world.build(schedule=ALL)
    world.drain()
    world.pass_time(100)
    assert (world.written, world.waiting) == ([1, 2, 3], {})


@NOT_IN_SQL
def test_parked_events_are_tried_individually_when_their_group_becomes_scheduled(database: Database) -> None:
    world = WaitingWorld(database, ["/a", "/a", "/b"])
    world.errors = {1: NO}
    world.drain()
    world.release()
    world.errors = {}
    world.build(schedule=ALL)
    world.drain()
    world.pass_time(1_000)
    assert sorted(world.written) == [1, 2, 3]


@NOT_IN_SQL
def test_an_event_that_waits_for_a_person_delays_only_its_sequence_when_its_group_becomes_streaming(
    database: Database,
) -> None:
    world = WaitingWorld(database, ["/a", "/a", "/b"], schedule=ALL)
    world.errors = {1: FOR_GOOD, 2: NO}
    world.drain()
    world.pass_time(30)
    world.release()
    world.errors = {}
    world.build(schedule=None)
    world.append(["/c", "/a"])
    world.drain()
    world.clock.advance(1_000)
    world.drain()
    assert world.written == [3, 4]
    assert world.waiting == {1: "exhausted", 2: "retrying", 5: "pending"}


@NOT_IN_SQL
def test_a_long_sequence_of_individually_tried_events_is_then_tried_as_a_batch(database: Database) -> None:
    world = WaitingWorld(database, ["/a", "/a", "/a"], schedule=replace(ALL, fetch_size=2))
    world.errors = {1: NO, 2: NO, 3: NO}
    world.drain()
    world.pass_time(11)
    world.errors = {}
    world.append(["/a"])
    world.drain()
    world.release()
    world.build(schedule=replace(SCHEDULE, fetch_size=2))
    world.drain()
    world.pass_time(1_000)
    assert world.written == [1, 2, 3, 4]


# ---------------------------------------------------------------------------------------------------------- ticks

WORLDS = pytest.mark.parametrize("world_of", [WaitingWorld, SparkWorld], ids=["thread", "spark"])


@NOT_IN_SQL
@WORLDS
def test_expired_events_are_removed_although_none_is_due(database: Database, world_of: type[WaitingWorld]) -> None:
    world = world_of(database, ["/a", "/b", "/c"], schedule=replace(SCHEDULE, expires_seconds=100, back_off=SLOW))
    world.errors = {1: FOR_GOOD, 2: FOR_GOOD, 3: NO}
    world.drain()
    world.pass_time(20)
    assert set(world.waiting) == {1, 2, 3}
    world.pass_time(1_000)
    assert world.waiting == {}


@NOT_IN_SQL
@WORLDS
def test_events_after_an_expired_one_are_tried(database: Database, world_of: type[WaitingWorld]) -> None:
    world = world_of(database, ["/a"], schedule=replace(SCHEDULE, expires_seconds=1_000))
    world.errors = {1: FOR_GOOD}
    world.drain()
    world.pass_time(500)
    world.append(["/a"])
    world.drain()
    world.pass_time(600)
    assert (world.written, world.waiting) == ([2], {})


@NOT_IN_SQL
def test_events_after_an_expired_one_are_tried_in_the_tick_that_removes_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = WaitingWorld(database, ["/a"], schedule=replace(SCHEDULE, expires_seconds=100))
    world.errors = {1: NO}
    world.drain()
    world.pass_time(60)
    world.append(["/a"])
    world.drain()
    world.release()
    world.clock.advance(50)
    now = world.clock.now
    monkeypatch.setattr(world.clock, "now", lambda: (world.clock.advance(0.001), now())[1])
    world.claim()
    (driver,) = world.drivers
    for _ in range(50):
        driver.supervised.handle_at_once(world.store.head())
        if driver.supervised.done(world.store.head()):
            break
        driver.step()
    assert world.written == [2]


@NOT_IN_SQL
@WORLDS
def test_a_replay_ends_in_partitions_that_have_nothing_to_handle(
    database: Database, world_of: type[WaitingWorld]
) -> None:
    world = world_of(database, ["/a", "/b"], schedule=SCHEDULE, partitions=4)
    world.drain()
    world.pass_time(20)
    world.release()
    with world.tracker.resetting(Reset(GROUP, 0), layout(4)):
        pass
    world.drain()
    world.pass_time(100)
    assert [status.replay for status in world.tracker.statuses()] == [None] * 4


@NOT_IN_SQL
def test_a_call_that_hangs_does_not_end_the_tick_for_other_batches(database: Database) -> None:
    world = WaitingWorld(
        database, ["/a", "/b", "/c"], schedule=replace(SCHEDULE, schedule=CronSchedule("30 2 * * *")), batch_size=1
    )
    world.drain()
    (driver,) = world.drivers
    world.clock.advance(driver.supervised.until_tick())
    driver.supervised.begin()
    world.drivers = [world.hang(driver, 1)]
    world.drain()
    assert world.written == [2, 3]
    assert world.waiting == {1: "retrying"}


# ----------------------------------------------------------------------------------------------- the size of a batch

SIZED = {
    "fail-first": replace(SCHEDULE, size=3),
    "by id": replace(SCHEDULE, size=3, order=BatchOrder.EVENT_ID),
    "all": replace(ALL, size=3),
    "all by id": replace(ALL, size=3, order=BatchOrder.EVENT_ID),
}
IDS = ["f", "e", "d", "c", "b", "a", "z", "y"]
PER_TICK = {
    "fail-first": [{1, 2, 3, 7}, {4, 5, 6, 8}],
    "by id": [{4, 5, 6, 7}, {1, 2, 3, 8}],
    "all": [{1, 2, 3, 7}, {4, 5, 6, 8}],
    "all by id": [{4, 5, 6, 7}, {1, 2, 3, 8}],
}
"""Positions of the six events of a sequence and the two of another that two ticks handle; the other comes later."""


def sized_world(
    database: Database, world_of: type[WaitingWorld], rule: str, batch_size: int = 1, fetch_size: int = 1_000
) -> WaitingWorld:
    world = world_of(database, [], schedule=replace(SIZED[rule], fetch_size=fetch_size), batch_size=batch_size)
    world.append(["/a"] * 6 + ["/b"], *IDS)
    world.drain()
    return world


@pytest.mark.few
@NOT_IN_SQL
@pytest.mark.parametrize(
    "world_of", [WaitingWorld, SparkWorld, OneStepWorld], ids=["thread", "spark", "a task for each step"]
)
@pytest.mark.parametrize("rule", SIZED)
@pytest.mark.parametrize(("batch_size", "fetch_size"), [(1, 1_000), (2, 1)])
def test_a_tick_handles_no_more_of_a_batch_than_its_size_whatever_happens_to_tasks(
    database: Database, world_of: type[WaitingWorld], rule: str, batch_size: int, fetch_size: int
) -> None:
    world = sized_world(database, world_of, rule, batch_size, fetch_size)
    world.pass_time(10)
    is_split = rule == "all by id" and fetch_size == 1  # a batch longer than a fetch
    first, second = PER_TICK["all" if is_split else rule]
    assert set(world.written) == first
    world.append(["/b"], *IDS[7:])
    world.drain()
    world.pass_time(6)
    assert set(world.written[len(first) :]) == second
    assert len(world.written) == 8
    assert world.waiting == {}


@NOT_IN_SQL
@pytest.mark.parametrize("rule", SIZED)
def test_a_tick_handles_no_more_of_a_batch_even_if_a_worker_is_lost(database: Database, rule: str) -> None:
    world = sized_world(database, OneStepWorld, rule)
    assert isinstance(world, OneStepWorld)
    world.clock.advance(world.drivers[0].supervised.until_tick())
    lost = world.run_task(world.drivers)  # its result is never known
    assert len(world.written) == 1
    assert lost.outcomes[0].handled == 1
    for driver, cursor in zip(world.drivers, recorded_claim(world.run, world.run.partitions, "owner"), strict=True):
        driver.supervised.claimed_again(replace(cursor, isolate=2))
    world.drain()
    first, second = PER_TICK[rule]
    assert set(world.written) == first
    world.pass_time(6)
    assert len(world.written) == 7
    assert set(world.written) == (first | second) - {8}


@pytest.mark.few
@NOT_IN_SQL
@pytest.mark.parametrize("world_of", [WaitingWorld, OneStepWorld], ids=["thread", "a task for each step"])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize(("rule", "first"), [("fail-first", {1}), ("all", {1, 3, 4, 5})])
def test_only_in_mode_all_a_failure_restarts_the_count(
    database: Database, world_of: type[WaitingWorld], batch_size: int, rule: str, first: set[int]
) -> None:
    world = sized_world(database, world_of, rule, batch_size)
    world.errors = {2: NO}
    world.pass_time(10)
    assert set(world.written) == {*first, 7}
    assert world.waiting[2] == "retrying"
    world.errors = {}
    world.pass_time(100)
    assert sorted(world.written) == [1, 2, 3, 4, 5, 6, 7]
    if rule == "fail-first":
        assert [one for one in world.written if one < 7] == [1, 2, 3, 4, 5, 6]


@pytest.mark.few
@NOT_IN_SQL
@pytest.mark.parametrize("world_of", [WaitingWorld, OneStepWorld], ids=["thread", "a task for each step"])
@pytest.mark.parametrize("isolate", [0, 9])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_in_mode_fail_first_a_skipped_event_does_not_restart_the_count(
    database: Database, world_of: type[WaitingWorld], isolate: int, batch_size: int
) -> None:
    rule = replace(SIZED["fail-first"], back_off=NoRetry(), on_exhausted=OnBatchExhausted.SKIP)
    world = world_of(database, ["/a"] * 6, schedule=rule, batch_size=batch_size)
    world.errors = {2: NO}
    world.drain()
    world.drivers[0].supervised.isolate(isolate)
    world.pass_time(10)
    assert world.written == [1, 3]
    assert [skip.position for skip in world.tracker.skipped()] == [2]
    world.pass_time(6)
    assert world.written == [1, 3, 4, 5, 6]


# ------------------------------------------------------------------------------------------ attempts that are counted


@NOT_IN_SQL
def test_a_parked_event_that_hangs_belongs_to_the_inbox_even_if_its_position_is_after_the_progress(
    database: Database,
) -> None:
    world = WaitingWorld(database, [FIRST, SECOND, SECOND, SECOND], partitions=2)
    world.errors = {4: NO, 1: NO}
    world.claim()
    ahead = next(driver for driver in world.drivers if driver.partition.owns(SECOND))
    for _ in range(5):
        ahead.step()  # up to 4, which is parked; the other partition has read nothing
    for driver in world.drivers:
        driver.supervised.stop()
    driver = world.merge()
    assert driver.cursor.stored < 4
    world.clock.advance(31)
    begun = world.clock.now().isoformat(timespec="milliseconds")
    driver = world.hang(driver, 4, SECOND)
    (entry,) = (each for each in world.entries if each.position == 4)
    assert entry.attempts == 2
    assert (entry.due_at or "") > begun
    assert driver.cursor.failing is None


@NOT_IN_SQL
@pytest.mark.parametrize("isolate", [0, 1])
@pytest.mark.parametrize("schedule", [None, ALL], ids=["parked", "all"])
def test_a_call_that_hangs_is_one_attempt_even_if_its_event_is_handled_alone_after_a_mark(
    database: Database, schedule: Any, isolate: int
) -> None:
    world = WaitingWorld(database, ["/a"], schedule=schedule)
    world.errors = {} if schedule else {1: NO}
    world.drain()
    world.errors = {1: CrashError()}
    world.clock.advance(31)
    (driver,) = world.drivers
    driver.supervised.isolate(isolate)
    (before,) = world.entries
    with pytest.raises(CrashError):
        driver.step()  # the call is under way; its thread hangs
    world.hang(driver, 1)
    (entry,) = world.entries
    assert (entry.attempts, entry.retries) == (before.attempts + 1, before.retries + 1)


@NOT_IN_SQL
def test_an_outage_during_an_attempt_after_a_crash_uses_no_attempt(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AwayError(ConnectionError): ...

    rule = replace(SCHEDULE, back_off=ExponentialBackOff(60, 2, 600, max_attempts=2))
    world = WaitingWorld(database, ["/a"], schedule=rule)
    world.drain()
    world.errors = {1: CrashError()}
    with pytest.raises(CrashError):
        world.pass_time(10)
    (crashed,) = world.entries
    monkeypatch.setattr(world.tracker, "is_outage", lambda error: isinstance(error, AwayError))
    world.errors = {1: AwayError("away")}
    world.claim()
    world.pass_time(100)
    (entry,) = world.entries
    assert (entry.attempts, entry.errors) == (crashed.attempts, crashed.errors)
    world.errors = {}
    world.pass_time(1_000)
    assert world.written == [1]


@NOT_IN_SQL
def test_crashes_that_exhaust_the_attempts_skip_the_event_if_so_configured(database: Database) -> None:
    rule = replace(SCHEDULE, back_off=ExponentialBackOff(1, 2, 10, max_attempts=1), on_exhausted=OnBatchExhausted.SKIP)
    world = WaitingWorld(database, ["/a", "/a"], schedule=rule)
    world.drain()
    world.errors = {1: CrashError()}
    crashes = 0
    for _ in range(6):
        try:
            world.claim()
            world.pass_time(60)
        except CrashError:
            crashes += 1
    assert crashes == 2
    assert (world.written, world.waiting) == ([2], {})
    assert [skip.position for skip in world.tracker.skipped()] == [1]


# ---------------------------------------------------------------------------- sequences that share an event, or a hash


class Both:
    """Two sequences of an event whose subject names two, as an upcaster that splits it would give."""

    by_subject = False
    attributes = frozenset({"subject"})
    id_of_subject = None
    partition_of = staticmethod(residue_of)

    def share_of(self, _partitions: int) -> None: ...

    def sequence_ids(self, event: Any) -> tuple[str, ...]:
        return tuple("/" + one for one in event.subject.strip("/").split("+"))


TWO = f"{FIRST}+{SECOND[1:]}"
SCHEDULES = pytest.mark.parametrize("schedule", [None, SCHEDULE, ALL], ids=["parked", "fail-first", "all"])


@NOT_IN_SQL
@SCHEDULES
def test_an_event_of_two_sequences_waits_once_in_each_of_two_partitions(database: Database, schedule: Any) -> None:
    world = WaitingWorld(database, [TWO, "/z"], schedule=schedule, partitions=2, sequencing=Both())  # type: ignore[arg-type]
    world.errors = {} if schedule else {1: NO}
    world.drain()
    assert sorted(each.sequence_id for each in world.entries if each.position == 1) == sorted((FIRST, SECOND))
    world.errors = {}
    world.pass_time(1_000)
    assert world.waiting == {}
    assert sorted(world.written) == [1, 1, 2]


@NOT_IN_SQL
@SCHEDULES
@pytest.mark.parametrize("waits", [FIRST, SECOND])
def test_a_hanging_call_for_an_event_of_two_sequences_is_an_attempt_only_in_the_one_tried(
    database: Database, schedule: Any, waits: str
) -> None:
    hangs = SECOND if waits == FIRST else FIRST
    world = WaitingWorld(database, [TWO], schedule=schedule, partitions=2, sequencing=Both())  # type: ignore[arg-type]
    world.errors = {} if schedule else {1: NO}
    world.drain()
    world.release()
    world.control.pause(InboxFilter(sequence=waits))
    driver = world.merge()
    before = {each.sequence_id: each.attempts for each in world.entries}
    calls: list[CallInHand | None] = []

    def hang(_: Connection) -> None:
        calls.append(driver.processor.calls.in_hand())
        raise CrashError

    world.errors, world.meanwhile = {}, hang
    world.clock.advance(31)
    with pytest.raises(CrashError):
        driver.step()
    (call,) = calls
    assert call is not None
    assert call.sequence_id == hangs
    world.hang(driver, 1, hangs)
    assert {each.sequence_id: (each.attempts, each.status.value) for each in world.entries} == {
        hangs: (before[hangs] + 1, "retrying"),
        waits: (before[waits], "paused"),
    }


@NOT_IN_SQL
def test_a_worker_reports_in_one_line_in_which_sequence_a_call_hangs(database: Database) -> None:
    odd = "/b\u00fccher\u2028\u0085\n1"
    world = WaitingWorld(database, ["/z", odd], schedule=SCHEDULE)
    world.drain()
    world.clock.advance(10)
    (driver,) = world.drivers
    processor, turns = driver.processor, Turns(NO_LIMITS)
    failure = Failure(Origin.HANDLER, permanent=False, error="HandlerTimeoutError", message="hangs", position=2)

    def hang(_: Connection) -> None:
        if (call := processor.calls.in_hand()) is not None and call.event.position == 2:
            turns._time_out(processor, call, failure)

    world.meanwhile = hang
    turn = turns.begin(processor, Outcome(driver.supervised.begin()), lambda: True)
    with pytest.raises(TaskTimedOutError) as raised:
        turn.result()
    assert len(str(raised.value).splitlines()) == 1
    found = timed_out_of(f"x.TaskTimedOutError: {raised.value}")
    assert found is not None
    assert replace(found, outcomes=()) == TimedOut(WHOLE, failure, 0, parked=True, sequence_id=odd)


@NOT_IN_SQL
def test_a_person_can_skip_an_event_of_two_sequences_in_one_of_them(database: Database) -> None:
    world = WaitingWorld(database, [TWO], partitions=2, sequencing=Both())  # type: ignore[arg-type]
    world.errors = {1: NO}
    world.drain()
    world.control.skip(InboxFilter(sequence=FIRST), "no use")
    assert [(each.sequence_id, each.position) for each in world.entries] == [(SECOND, 1)]


@NOT_IN_SQL
def test_removing_an_event_from_one_partition_keeps_it_in_another(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = WaitingWorld(database, [TWO, FIRST], partitions=2, sequencing=Both())  # type: ignore[arg-type]
    world.errors = {1: NO}
    world.drain()
    world.errors = {}
    driver = next(each for each in world.drivers if each.partition.owns(FIRST))
    opened, done = world.tracker.unit, list[object]()

    @contextmanager
    def unit(*arguments: Any, **rest: Any) -> Iterator[Any]:
        if not done:
            done.append(world.control.skip(InboxFilter(sequence=FIRST, position=2), "no use"))
        with opened(*arguments, **rest) as opening:
            yield opening

    monkeypatch.setattr(world.tracker, "unit", unit)
    world.clock.advance(31)
    driver.step()
    assert (SECOND, 1) in [(each.sequence_id, each.position) for each in world.entries]


@NOT_IN_SQL
@pytest.mark.parametrize("schedule", [None, replace(SCHEDULE, fetch_size=2)], ids=["parked", "fail-first"])
def test_a_sequence_does_not_wait_for_another_with_the_same_hash(database: Database, schedule: Any) -> None:
    one, other = "/a/plumless", "/a/buckeroo"
    assert hash_of(one) == hash_of(other)
    world = WaitingWorld(database, [one, one, one, other], batch_size=2, schedule=schedule)
    world.errors = {1: FOR_GOOD, 4: NO}
    world.drain()
    world.pass_time(20)
    world.errors = {1: FOR_GOOD}
    world.append(["/c"])
    world.pass_time(1_000)
    assert sorted(world.written) == [4, 5]


# --------------------------------------------------------------------------------------------------- what people do


@NOT_IN_SQL
@pytest.mark.parametrize("command", ["retry", "skip"])
def test_a_command_for_the_event_that_blocks_its_batch_frees_the_batch(database: Database, command: str) -> None:
    world = WaitingWorld(database, [], schedule=replace(SCHEDULE, order=BatchOrder.EVENT_ID, back_off=SLOW))
    world.append(["/a", "/a"], "x", "b")  # the second one comes first
    world.errors = {2: NO}
    world.drain()
    world.pass_time(12)
    world.errors = {}
    which = InboxFilter(event="b")
    world.control.retry(which) if command == "retry" else world.control.skip(which, "no use")
    world.pass_time(60)
    assert world.written == ([2, 1] if command == "retry" else [1])


@NOT_IN_SQL
def test_an_expired_event_cannot_be_retried_or_paused(database: Database) -> None:
    world = WaitingWorld(database, ["/a", "/b"], schedule=replace(SCHEDULE, expires_seconds=100))
    world.errors = {1: NO, 2: NO}
    world.drain()
    world.pass_time(60)
    world.clock.advance(50)
    for command in (world.control.retry, world.control.pause):
        with pytest.raises(InboxError, match=r"OCQ-605.*1 expired"):
            command(InboxFilter(event="id 1"))


@NOT_IN_SQL
def test_an_event_that_a_person_removes_while_events_are_read_is_not_missed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = WaitingWorld(database, ["/a", "/b"], schedule=SCHEDULE)
    world.drain()
    sizes, done = InboxStatements.sizes, list[object]()

    def skipping(self: InboxStatements, *given: Any) -> Any:
        if not done:
            done.append(None)
            world.control.skip(InboxFilter(sequence="/a"), "no use")
        return sizes(self, *given)

    monkeypatch.setattr(InboxStatements, "sizes", skipping)
    world.pass_time(15)
    assert world.written == [2]
    assert [status.error for status in world.tracker.statuses()] == [""]


def test_a_batch_freed_by_a_person_while_it_is_being_put_off_is_tried(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = WaitingWorld(database, ["/a", "/a"], schedule=SCHEDULE)
    world.drain()
    world.control.pause(InboxFilter(event="id 2"))
    due, done = SqlProgressTracker.due, list[object]()

    def freed(self: SqlProgressTracker, *given: Any) -> Any:
        found = due(self, *given)
        if found and not done:
            done.append(None)
            world.control.resume(InboxFilter(event="id 2"))
        return found

    monkeypatch.setattr(SqlProgressTracker, "due", freed)
    world.pass_time(100)
    assert done
    assert world.written == [1, 2]


# ------------------------------------------------------------------------------------------------------ lost progress


@NOT_IN_SQL
@pytest.mark.parametrize("schedule", [None, SCHEDULE], ids=["parked", "scheduled"])
def test_events_waiting_in_a_partition_that_begins_again_are_handled_once(database: Database, schedule: Any) -> None:
    world = WaitingWorld(database, ["/a", "/b", "/c", "/d"], partitions=2, schedule=schedule)
    world.errors = dict.fromkeys(range(1, 5), NO)

    def kept(found: Any, initial: int | None, **_: Any) -> Any:
        if initial is None:
            raise BeginningNeededError(None)
        return SimpleNamespace(record=keep(found), warnings={})

    record: Any = SimpleNamespace(kept=kept, said=set(), code=GroupCode)
    world.run = replace(world.run, record=record)
    world.drain()
    world.release()
    progress = database.table(PROGRESS)
    with database.writing() as connection:
        connection.execute(delete(progress).where(progress.c.residue == 0))
    world.errors = {}
    world.drain()
    world.pass_time(1_000)
    assert sorted(world.written) == [1, 2, 3, 4]


# ------------------------------------------------------------------------------------------ transactions that end early


@pytest.mark.release(kind="mariadb")  # as on PostgreSQL
@pytest.mark.parametrize("world_of", [WaitingWorld, SparkWorld], ids=["threads", "tasks"])
@pytest.mark.parametrize("later", [None, NO], ids=["nothing fails", "a later event fails"])
@pytest.mark.few(kind=("postgresql", "mariadb"))
def test_a_commit_by_a_handler_removes_no_event_from_the_inbox_of_a_scheduled_group(
    database: Database, world_of: type[WaitingWorld], later: BaseException | None
) -> None:
    world = world_of(database, ["/a"] * 4, schedule=SCHEDULE)
    world.commits = {2}
    if later is not None:
        world.errors = {3: later}
    world.drain()
    world.pass_time(100)
    assert world.waiting == {2: "exhausted", 3: "pending", 4: "pending"}
    assert "OCQ-228" in world.entries[0].reason
    world.commits, world.errors = set(), {}
    world.control.retry(InboxFilter())
    world.pass_time(100)
    assert world.waiting == {}
    assert set(world.written) == {1, 2, 3, 4}


def test_a_commit_by_a_handler_removes_no_parked_event_from_the_inbox(database: Database) -> None:
    world = WaitingWorld(database, ["/a"] * 3)
    world.errors = {1: NO}
    world.drain()
    world.errors, world.commits = {}, {1}
    world.clock.advance(30)
    world.drain()
    assert world.waiting == {1: "exhausted", 2: "pending", 3: "pending"}
    world.commits = set()
    world.control.retry(InboxFilter())
    world.clock.advance(60)
    world.drain()
    assert world.waiting == {}
    assert sorted(set(world.written)) == [1, 2, 3]


def test_a_commit_by_a_handler_adds_no_event_to_the_inbox(database: Database) -> None:
    world = WaitingWorld(database, ["/a"])
    world.errors = {1: NO}
    world.drain()
    world.commits = {3}
    world.append(["/a", "/b", "/c"])
    world.drain()
    assert world.waiting == {1: "retrying", 2: "pending", 3: "exhausted"}
    world.commits, world.errors = set(), {}
    world.control.retry(InboxFilter())
    world.clock.advance(60)
    world.drain()
    assert world.waiting == {}
    assert set(world.written) == {1, 2, 3, 4}


@NOT_IN_SQL
@pytest.mark.parametrize("after", [SCHEDULE, None], ids=["no expiry", "streaming"])
def test_expired_events_can_be_retried_once_their_group_has_no_expiry(
    database: Database, after: ScheduleRule | None
) -> None:
    world = WaitingWorld(database, ["/a", "/a"], schedule=replace(SCHEDULE, expires_seconds=100, back_off=SLOW))
    world.errors = {1: FOR_GOOD}
    world.drain()
    world.pass_time(50)
    world.release()
    world.clock.advance(100)
    assert set(world.waiting.values()) == {"expired"}
    world.errors = {}
    world.build(schedule=after)
    world.drain()
    assert world.waiting == {1: "exhausted", 2: "pending"}
    world.control.retry(InboxFilter())
    world.pass_time(100)
    assert (world.waiting, world.written) == ({}, [1, 2])


@pytest.mark.release(schedule=SCHEDULE)
@pytest.mark.parametrize("schedule", [None, SCHEDULE], ids=["parked", "scheduled"])
def test_a_handler_can_change_the_row_type_of_its_driver(database: Database, schedule: ScheduleRule | None) -> None:
    world = WaitingWorld(database, ["/a", "/a", "/b"], schedule=schedule)
    world.errors = {2: NO}
    world.meanwhile = rows_as_dictionaries
    world.drain()
    world.pass_time(100)
    world.release()
    world.errors = {}
    world.drain()
    world.pass_time(10_000)
    assert (world.waiting, sorted(world.written)) == ({}, [1, 2, 3])


def rows_as_dictionaries(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        driver.row_factory = lambda cursor, row: dict(zip((each[0] for each in cursor.description), row, strict=True))
    elif connection.dialect.name == "postgresql":
        driver.row_factory = dict_row
    else:
        driver.cursorclass = DictCursor

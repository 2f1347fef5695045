"""Replays: after a reset, events are handled again, and handlers can see that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py import Event, Reset
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.adapters.sql import SqlProgressTracker
from opencqrs_py.control.layouts import Log, carried_over, merge_of, split_of
from opencqrs_py.engines.driver import PartitionDriver, claim
from opencqrs_py.engines.parts import make_replay_rule
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.model import Handler, HandlerMark, Partition, ProcessingContext, hash_of, layout
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.progress import ProcessorState
from opencqrs_py.model.selection import Selection
from opencqrs_py.processing.binding import NothingProvided, Work, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.inbox.batches import ScheduleRule
from opencqrs_py.processing.inbox.parked_entries import ParkingRule
from opencqrs_py.processing.inbox.schedules import FixedDelay
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.recovery import ExponentialBackOff, NoRetry
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.testing import FakeClock
from tests.support.partitions import CrashError, Rows, Seen, SqlRows, write

if TYPE_CHECKING:
    from sqlalchemy import Connection

STEPS = 1_000  # more than any test needs
PARKING = ParkingRule(
    ExponentialBackOff(30.0, 2.0, 3_600.0, max_attempts=5), retry=NoRetry(), on_exhausted=OnExhausted.PARK
)


class World:
    """A group with a read model, mail that is sent once, and functions called when a replay has finished."""

    def __init__(
        self,
        subjects: Iterable[str] = (),
        *,
        partitions: int = 1,
        batch_size: int = 4,
        parks: bool = False,
        schedule: ScheduleRule | None = None,
        together: bool = False,
        only_mail: bool = False,
        on_sqlite: bool = False,
    ) -> None:
        self.database: Rows | SqlRows
        self.tracker: InMemoryProgressTracker | SqlProgressTracker
        if on_sqlite:
            self.database = SqlRows()
            self.tracker = SqlProgressTracker(self.database.database)
        else:
            self.database = Rows()
            self.tracker = InMemoryProgressTracker(self.database)
        self.clock = FakeClock()
        self.seen = Seen()
        self.errors: dict[int, BaseException] = {}
        self.calls: list[ProcessingContext] = []
        self.finished: list[Reset] = []
        self.end_fails: BaseException | None = None
        self.ends_due = False
        self.ever_skipped: set[int] = set()
        self.left_out: set[int] = set()
        self.ever_left_out: set[int] = set()
        self.store = InMemoryEventStore()
        self.append(subjects)

        def handle(raw: Event, connection: Connection, context: ProcessingContext) -> None:
            self.calls.append(context)
            if (error := self.errors.get(raw.position)) is not None:
                raise error
            write(connection, raw.subject, raw.position)

        def handle_all(raws: list[Event], connection: Connection, context: ProcessingContext) -> None:
            for raw in raws:
                handle(raw, connection, context._replace(position=raw.position))

        def mail(raw: Event, connection: Connection) -> None:
            write(connection, "mail", raw.position)

        def end(reset: Reset, work: Work) -> None:
            if self.end_fails is not None:
                raise self.end_fails
            write(work.connection, "finished", reset.position)
            self.finished.append(reset)

        model: Callable[..., None] = handle_all if together else handle
        marks = [(mail, HandlerMark("group", replay=False))]
        marks += [] if only_mail else [(model, HandlerMark("group"))]
        bound = [bind(Handler(mark, call, "handlers.py:7"), NothingProvided()) for call, mark in marks]
        dispatcher, sequencing = Dispatcher(bound, []), SequencingByEvent(PerSubject())
        rest = (EventTypes(()), Reading(), Interceptors(), sequencing, dispatcher)
        processing = GroupProcessing(
            "group",
            self.store,
            self.tracker,
            dispatcher,
            subject="/",
            recursive=True,
            sequencing=sequencing,
            partitions=partitions,
            batch_size=batch_size,
            clock=self.clock,
            parking=PARKING if parks else None,
            schedule=schedule,
            replays=make_replay_rule(bound, *rest, [end]),
        )
        exhausted = OnExhausted.PARK if parks else OnExhausted.SKIP
        self.run = GroupRun(processing, layout(partitions), lambda: 0, NoRetry(), exhausted)
        self.drivers: list[PartitionDriver] = []

    def append(self, subjects: Iterable[str]) -> None:
        first = self.store.head() + 1
        self.store.append(
            Event(0, f"id {n}", "s", subject, "lent", None, "application/json", "{}", None)
            for n, subject in enumerate(subjects, first)
        )

    def claim(self) -> None:
        """Start like a new process."""
        self.drivers = claim(self.run, self.run.partitions, "owner", self.clock, self.seen)

    def release(self) -> None:
        for driver in self.drivers:
            driver.release()
        self.drivers = []

    def step(self, steps: int) -> None:
        """Take some steps with the partitions in turn."""
        for number in range(steps):
            driver = self.drivers[number % len(self.drivers)]
            if driver.wait() == 0:
                driver.step()

    def drain(self) -> None:
        """Step until there is nothing to do for now."""
        if not self.drivers:
            self.claim()
        for driver in self.drivers:
            for _ in range(STEPS):
                if driver.wait() > 0:
                    break
                if driver.step().idle and not driver.supervised.is_due_in_inbox and not driver.cursor.replayed:
                    break
            else:
                pytest.fail("the partition does not come to rest")

    def reset(self, to: int) -> None:
        """Reset as the command does: nodes release the group, the read model is emptied, and they resume."""
        self.release()
        self.note_skips()
        self._note_left_out(to)
        known = self.run.processing.never_handled
        with self.tracker.resetting(Reset("group", to), self.run.partitions, never_handled=known) as opened:
            write(opened.unit.connection, "reset", to)
            self.ends_due = any(opened.replays.values())
        self.calls.clear()

    def reassign(self, pick: int) -> None:
        """Let another process take over a partition; the old one does not know it yet, and must write nothing."""
        if not self.drivers:
            self.claim()
        old = self.drivers[pick % len(self.drivers)]
        (new,) = claim(self.run, [old.partition], "another", self.clock, self.seen)
        self.drivers = [new if each is old else each for each in self.drivers]
        before = list(self.database.rows)
        old.step()
        assert self.database.rows == before

    def lay_out(self, partitions: Sequence[Partition], *, crash: bool) -> None:
        """Change the partitions as a command does; nodes release those that are removed, or crash."""
        leaving = set(self.run.partitions) - set(partitions)
        if not leaving or not self.tracker.statuses():
            return
        for driver in self.drivers if not crash else ():
            if driver.partition in leaving:
                driver.release()
        log = Log(self.run.processing.hashes_at, self.run.processing.positions_of)
        self.tracker.repartition("group", partitions, lambda known: carried_over(known, partitions, log))
        old, self.drivers = self.drivers, [each for each in self.drivers if each.partition not in leaving]
        for driver in old if crash else ():
            if driver.partition in leaving:
                driver.step()  # a process that does not know it yet
        coming = [each for each in partitions if each not in self.run.partitions]
        self.run = replace(self.run, partitions=tuple(partitions))
        if old:
            self.drivers += claim(self.run, coming, "owner", self.clock, self.seen)

    def note_skips(self) -> None:
        """Record the events that were skipped or left out by a reset forward: later they are not first deliveries."""
        self.ever_skipped |= {skip.position for skip in self.tracker.skipped()}

    def _note_left_out(self, to: int) -> None:
        stored = {status.partition: (status.position, status.ahead) for status in self.tracker.statuses()}
        self.left_out = {position for position in self.left_out if position <= to}
        for event in self.store.read(0, STEPS, Selection("/", recursive=True)).events:
            known = (each for partition, each in stored.items() if partition.owns(event.subject))
            after, ahead = next(known, (0, None))
            is_ahead = ahead is not None and ahead.covers(hash_of(event.subject), event.position)
            if after < event.position <= to and not is_ahead:
                self.left_out.add(event.position)
        self.ever_left_out |= self.left_out

    def replaying(self) -> dict[int, bool]:
        """Return for each handled position whether it was a replay for its handler."""
        assert len(self.calls) == len({one.position for one in self.calls})
        return {one.position: one.replaying for one in self.calls}

    def positions(self, subject: str) -> list[int]:
        return [position for name, position in self.database.rows if name == subject]


NO = ValueError("no")


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 100])
def test_the_event_at_the_old_position_is_a_replay_and_the_next_is_not(batch_size: int, *, together: bool) -> None:
    world = World(["/a"] * 4, batch_size=batch_size, together=together)
    world.drain()
    world.append(["/a"] * 3)
    world.reset(0)
    world.drain()
    assert world.replaying() == {1: True, 2: True, 3: True, 4: True, 5: False, 6: False, 7: False}
    world.append(["/a"])
    world.drain()
    assert world.replaying()[8] is False


def test_resetting_four_events_by_two_gives_six_deliveries() -> None:
    world = World(["/a"] * 4, batch_size=5)
    world.drain()
    world.reset(2)
    world.drain()
    assert world.positions("/a") == [1, 2, 3, 4, 3, 4]
    (driver,) = world.drivers
    assert driver.cursor.replay is None
    assert [status.replay for status in world.tracker.statuses()] == [None]


def test_mail_is_sent_once() -> None:
    world = World(["/a"] * 3)
    world.drain()
    world.append(["/b"] * 2)
    world.reset(0)
    world.drain()
    assert world.positions("mail") == [1, 2, 3, 4, 5]
    assert world.positions("/a") == [1, 2, 3, 1, 2, 3]


def test_a_group_without_handlers_for_replays_continues() -> None:
    world = World(["/a"] * 3, only_mail=True)
    world.drain()
    world.reset(1)
    world.drain()
    assert world.positions("mail") == [1, 2, 3]
    assert [status.position for status in world.tracker.statuses()] == [3]
    assert [one.position for one in world.finished] == [1]


def test_a_replay_ends_with_its_last_event_and_not_with_the_next() -> None:
    world = World(["/a"] * 3)
    world.drain()
    world.reset(0)
    world.claim()
    assert [status.replay and status.replay.until for status in world.tracker.statuses()] == [3]
    world.drain()
    assert [status.replay for status in world.tracker.statuses()] == [None]
    assert world.database.rows[-1] == ("finished", 0)


def test_the_last_partition_reports_the_end_of_the_replay_exactly_once() -> None:
    world = World([f"/{n}" for n in range(20)], partitions=3)
    world.drain()
    world.append(["/new"])
    world.reset(0)
    world.claim()
    for index, driver in enumerate(world.drivers):
        for _ in range(STEPS):
            if driver.step().idle:
                break
        assert len(world.finished) == (index == 2)
    assert [name for name, _ in world.database.rows].count("finished") == 1


def test_a_reset_forward_or_to_the_current_position_replays_nothing() -> None:
    world = World(["/a"] * 3)
    world.drain()
    world.append(["/a"] * 3)
    world.reset(5)
    world.drain()
    assert world.replaying() == {6: False}
    world.reset(6)
    world.drain()
    assert world.finished == []


def test_a_reset_during_a_replay_keeps_the_later_end() -> None:
    world = World(["/a"] * 10, batch_size=1)
    world.drain()
    world.reset(0)
    world.claim()
    world.step(3)
    world.reset(1)
    world.drain()
    assert world.replaying() == dict.fromkeys(range(2, 11), True)
    world.append(["/a"])
    world.drain()
    assert world.replaying()[11] is False


def test_a_group_that_has_never_run_begins_at_the_position_of_the_reset() -> None:
    world = World(["/a"] * 5)
    world.reset(3)
    world.drain()
    assert world.replaying() == {4: False, 5: False}


def test_a_failure_at_the_end_of_a_replay_is_retried_before_any_new_event() -> None:
    world = World(["/a"] * 3)
    world.drain()
    world.append(["/a"])
    world.reset(0)
    world.end_fails = ValueError("no printer")
    world.drain()
    (driver,) = world.drivers
    assert driver.supervised.state is ProcessorState.FAILED
    assert "no printer" in str(driver.supervised.failure)
    assert 4 not in world.replaying()
    world.end_fails = None
    world.clock.advance(60)
    world.drain()
    assert (len(world.finished), world.replaying()[4]) == (1, False)


def test_a_crash_at_the_end_of_a_replay_loses_and_repeats_no_event() -> None:
    world = World(["/a"] * 3)
    world.drain()
    world.reset(0)
    world.end_fails = CrashError()
    world.claim()
    with pytest.raises(CrashError):
        world.step(STEPS)
    world.end_fails = None
    world.claim()
    world.drain()
    assert world.positions("/a") == [1, 2, 3, 1, 2, 3]
    assert len(world.finished) == 1


def test_an_event_parked_before_the_reset_is_not_a_replay() -> None:
    world = World(["/a", "/b", "/a", "/c"], parks=True)
    world.errors = {1: NO}
    world.drain()
    assert world.positions("/b") == [2]
    world.errors = {}
    world.reset(0)
    assert world.tracker.entries("group") == []
    world.drain()
    assert world.replaying() == {1: False, 2: True, 3: False, 4: True}
    assert sorted(world.positions("mail")) == [1, 2, 3, 4]


def test_an_event_parked_during_a_replay_is_still_a_replay_when_retried() -> None:
    world = World(["/a", "/b", "/a"], parks=True)
    world.drain()
    world.append(["/a"])
    world.reset(0)
    world.errors = {1: NO}
    world.drain()
    assert len(world.finished) == 1  # parked events do not delay the end of the replay
    world.errors = {}
    world.calls.clear()
    world.clock.advance(30)
    world.drain()
    assert world.replaying() == {1: True, 3: True, 4: False}
    assert sorted(world.positions("mail")) == [1, 2, 3, 4]


def test_events_parked_at_or_before_the_position_of_the_reset_stay_in_the_inbox() -> None:
    world = World(["/a", "/b", "/a", "/c"], parks=True)
    world.errors = {1: NO}
    world.drain()
    world.reset(2)
    assert [one.position for one in world.tracker.entries("group")] == [1]
    world.errors = {}
    world.drain()
    world.clock.advance(30)
    world.drain()
    assert world.positions("/a") == [1, 3]
    assert sorted(world.positions("mail")) == [1, 2, 3, 4]


EVERY_MINUTE = ScheduleRule(FixedDelay(0.0, 60.0))


def test_a_scheduled_group_is_replaying_until_its_events_are_handled() -> None:
    world = World(["/a", "/b", "/a"], schedule=EVERY_MINUTE)
    world.drain()
    world.clock.advance(60)
    world.drain()
    assert world.positions("mail") == [1, 3, 2]
    world.append(["/a", "/c"])
    world.reset(0)
    world.claim()
    for _ in range(3):
        world.drivers[0].step()
    assert world.finished == []
    world.clock.advance(60)
    world.drain()
    world.clock.advance(60)
    world.drain()
    assert world.replaying() == {1: True, 2: True, 3: True, 4: False, 5: False}
    assert sorted(world.positions("mail")) == [1, 2, 3, 4, 5]
    assert len(world.finished) == 1


def test_without_a_reset_no_statement_is_executed_for_replays() -> None:
    world = World(["/a"] * 20)
    counts: Counter[str] = Counter()
    ending = world.tracker.ending_replay

    def counting(*arguments: Any, **named: Any) -> Any:
        counts["ending"] += 1
        return ending(*arguments, **named)

    world.tracker.ending_replay = counting  # type: ignore[method-assign]
    world.drain()
    assert not counts
    world.reset(0)
    world.drain()
    assert counts == {"ending": 1}


SUBJECTS = ("/a", "/b", "/c")
ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=6)),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("crash"), st.just(0)),
    st.tuples(st.just("reassign"), st.integers(0, 5)),
    st.tuples(st.just("reset"), st.floats(0, 1)),
    st.tuples(st.just("fail"), st.integers(1, 12)),
    st.tuples(st.just("time"), st.sampled_from([30, 3_600])),
)
CHANGES = st.tuples(
    st.just("partitions"), st.tuples(st.sampled_from(["even", "split", "merge"]), st.integers(1, 6), st.booleans())
)


@pytest.mark.parametrize("on_sqlite", [False, True], ids=["memory", "sqlite"])
@given(
    actions=st.lists(ACTIONS | CHANGES, max_size=25),
    partitions=st.integers(1, 3),
    batch_size=st.integers(1, 5),
    parks=st.booleans(),
    together=st.booleans(),
)
def test_each_event_is_handled_in_order_once_per_reset_and_mailed_once(
    actions: Sequence[tuple[str, Any]],
    partitions: int,
    batch_size: int,
    *,
    parks: bool,
    together: bool,
    on_sqlite: bool,
) -> None:
    world = World(partitions=partitions, batch_size=batch_size, parks=parks, together=together, on_sqlite=on_sqlite)
    for name, value in actions:
        _act(world, name, value)
    world.errors = {}
    for _ in range(3):
        world.clock.advance(7_200)
        world.drain()
    _check(world)
    if isinstance(world.database, SqlRows):
        world.database.database.close()


def _act(world: World, name: str, value: Any) -> None:
    match name:
        case "append":
            world.append(value)
        case "step":
            if not world.drivers:
                world.claim()
            world.step(value)
        case "crash":
            world.claim()
        case "reassign":
            world.reassign(value)
        case "reset":
            world.reset(int(value * world.store.head()))
        case "partitions":
            kind, pick, crash = value
            world.lay_out(_other_layout(world.run.partitions, kind, pick), crash=crash)
        case "fail":
            world.errors = {value: NO}
        case "time":
            world.clock.advance(value)


def _other_layout(known: Sequence[Partition], kind: str, pick: int) -> Sequence[Partition]:
    one = known[pick % len(known)]
    if kind == "even":
        return layout(pick)
    if kind == "split":
        return split_of(known, one) if one.modulus < 12 else known
    return merge_of(known, one) if one.sibling() in known and one.modulus > 1 else known


def _check(world: World) -> None:
    """Check the database: since each reset, each event once and in order, and its end; each mail once overall."""
    world.note_skips()
    skipped = {skip.position for skip in world.tracker.skipped()}
    waiting = {one.position for one in world.tracker.entries("group")}
    since: dict[str, list[int]] = defaultdict(list)
    ends = [0]
    for name, position in world.database.rows:
        if name == "finished":
            ends[-1] += 1
        elif name == "reset":
            ends.append(0)
            since = defaultdict(list, {each: [one for one in of if one <= position] for each, of in since.items()})
        else:
            since[name].append(position)
    assert max(ends) <= 1
    assert ends[-1] == world.ends_due
    handled = [position for subject in SUBJECTS for position in since[subject]]
    for subject in SUBJECTS:
        assert since[subject] == sorted(set(since[subject]))
    assert {*handled, *skipped, *waiting} == {*range(1, world.store.head() + 1)} - world.left_out
    assert not set(handled) & waiting
    mails = Counter(world.positions("mail"))
    assert set(mails.values()) <= {1}
    assert set(handled) - world.ever_skipped - world.ever_left_out <= mails.keys()
    assert [status.replay for status in world.tracker.statuses()] == [None] * len(world.run.partitions)

"""The processor of a partition: chunks, and what happens to them when any part fails."""

from __future__ import annotations

from asyncio import CancelledError
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.library import Lent

from opencqrs_py import AfterCommit, Event, NonTransientError, ProcessingContext, TransientError
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.errors import AssemblyError, FencedError, TransactionEndedError, UnavailableError
from opencqrs_py.model import Cursor, Handler, HandlerMark, Origin, Outcome, Partition, Selection, Slice, layout
from opencqrs_py.processing.binding import NothingProvided, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.feed import Feed
from opencqrs_py.processing.ports import UnitOfWork
from opencqrs_py.processing.processor import PartitionProcessor, ProcessorParts
from opencqrs_py.processing.sequence_resolvers import PerDataField, PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent

if TYPE_CHECKING:
    from sqlalchemy import Connection


ONE = Partition(1, 0)


class CrashError(KeyboardInterrupt):
    """The end of the process."""


class Store(InMemoryEventStore):
    """A store that can be unavailable or broken."""

    error: Exception | None = None

    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        if self.error is not None:
            raise self.error
        return super().read(after, limit, selection, upto)

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, EOFError)


class Tracker(InMemoryProgressTracker):
    """A tracker whose units can fail to open."""

    error: Exception | None = None

    def unit(self, group: str, cursor: Cursor, to: int, **recorded: Any) -> AbstractContextManager[UnitOfWork]:
        @contextmanager
        def failing() -> Iterator[UnitOfWork]:
            assert self.error is not None
            raise self.error
            yield

        return failing() if self.error is not None else super().unit(group, cursor, to, **recorded)


class Group:
    """A group with one handler, which writes the ids of events and raises the given ``failures``."""

    def __init__(self, database: Any, injector: Any) -> None:
        self.database = database
        self.store = Store()
        self.tracker = Tracker(database)
        self.contexts: list[ProcessingContext] = []
        self.failures: dict[str, list[BaseException]] = defaultdict(list)
        self.sequence_of: Callable[[Event], str] = PerSubject()
        self._injector = injector

        def handle(raw: Event, connection: Connection, context: ProcessingContext) -> None:
            self.contexts.append(context)
            connection.append(raw.id)  # type: ignore[attr-defined]
            if self.failures[raw.id]:
                raise self.failures[raw.id].pop(0)

        self.handler: Callable[..., None] = handle

    def add(self, *subjects: str, event_type: str = "lent", payload: str | None = "{}") -> None:
        first = self.store.head() + 1
        self.store.append(
            Event(0, str(n), "s", subject, event_type, None, "application/json", payload, None)
            for n, subject in enumerate(subjects, first)
        )

    def processor(
        self, batch_size: int, partition: Partition = ONE, limit: int = 100, root: str = "/"
    ) -> PartitionProcessor:
        handler = bind(Handler(HandlerMark("group"), self.handler, "handlers.py:7"), self._injector)
        feed = Feed(self.store, Selection(root), SequencingByEvent(self.sequence_of), limit)
        return PartitionProcessor(
            partition, ProcessorParts("group", feed, self.tracker, Dispatcher([handler], []), batch_size)
        )

    def claim(self, partitions: int = 1) -> list[Cursor]:
        return list(self.tracker.claim("group", layout(partitions), 0, "owner"))

    @property
    def rows(self) -> list[str]:
        rows: list[str] = self.database.rows
        return rows

    @property
    def stored(self) -> list[int]:
        return [status.position for status in self.tracker.statuses()]

    @property
    def attempts(self) -> list[tuple[int, int]]:
        return [(context.position, context.attempt) for context in self.contexts]


@pytest.fixture
def group(database: Any, injector: Any) -> Group:
    return Group(database, injector)


def steps(processor: PartitionProcessor, cursor: Cursor, count: int) -> Iterator[Outcome]:
    for _ in range(count):
        outcome = processor.step(cursor)
        yield outcome
        cursor = outcome.cursor


def summary(outcome: Outcome) -> tuple[int, int, int, Origin | None, int | None]:
    """Return position, handled, skipped, and origin and position of the failure."""
    failure = outcome.failure
    return (
        outcome.cursor.position,
        outcome.handled,
        outcome.skipped,
        failure.origin if failure else None,
        failure.position if failure else None,
    )


# No failures


@pytest.mark.parametrize(
    ("batch_size", "positions"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (4, [4, 5]), (5, [5]), (100, [5])]
)
def test_events_are_committed_in_chunks_with_their_progress(
    group: Group, batch_size: int, positions: list[int]
) -> None:
    group.add(*["/a"] * 5)
    (cursor,) = group.claim()
    seen = []
    for outcome in steps(group.processor(batch_size), cursor, len(positions)):
        seen.append(outcome.cursor.position)
        assert outcome.cursor.stored == outcome.cursor.position == group.stored[0]
        assert len(group.rows) == outcome.cursor.position
    assert seen == positions
    assert group.rows == ["1", "2", "3", "4", "5"]
    assert group.database.opened == len(positions)


def test_no_transaction_is_opened_at_the_head_of_the_log(group: Group) -> None:
    (cursor,) = group.claim()
    assert group.processor(10).step(cursor) == Outcome(cursor, idle=True)
    assert group.database.opened == 0


def test_handlers_get_the_processing_context(group: Group) -> None:
    group.add("/a")
    (cursor,) = group.claim()
    group.processor(10).step(cursor)
    assert group.contexts == [ProcessingContext("group", Partition(1, 0), position=1, attempt=1, replaying=False)]


def test_a_chunk_moves_progress_past_later_events_of_other_partitions(group: Group) -> None:
    one, other = "/order/1", "/order/4"  # of partitions 0 and 1
    group.add(one, one, other, other)
    first, _ = group.claim(2)
    outcome = group.processor(10, Partition(2, 0)).step(first)
    assert summary(outcome) == (4, 2, 0, None, None)
    assert group.stored == [4, 0]


def test_progress_past_events_of_other_partitions_is_stored_when_idle(group: Group) -> None:
    group.add("/order/4", "/order/4")  # both of partition 1
    first, _ = group.claim(2)
    processor = group.processor(10, Partition(2, 0))
    passed = processor.step(first)
    assert (passed.cursor.position, passed.cursor.stored, passed.idle) == (2, 0, False)
    assert group.database.opened == 0
    flushed = processor.step(passed.cursor)
    assert (flushed.cursor.position, flushed.cursor.stored, flushed.idle) == (2, 2, True)
    assert group.stored == [2, 0]
    assert processor.flush(flushed.cursor) == Outcome(flushed.cursor, idle=True)
    assert group.database.opened == 1


def test_events_that_no_handler_takes_count_as_done_but_not_as_handled(group: Group, injector: Any) -> None:
    group.add("/a", "/a", event_type="other")
    group.add("/a")
    (cursor,) = group.claim()
    handler = bind(Handler(HandlerMark("group", ("lent",)), group.handler, "here"), injector)
    feed = Feed(group.store, Selection(), SequencingByEvent(PerSubject()), 100)
    processor = PartitionProcessor(
        Partition(1, 0), ProcessorParts("group", feed, group.tracker, Dispatcher([handler], []), 10)
    )
    assert summary(processor.step(cursor)) == (3, 1, 0, None, None)
    assert group.rows == ["3"]


def test_events_outside_the_subject_are_passed_over(group: Group) -> None:
    group.add("/cars/1", "/cars/2")
    (cursor,) = group.claim()
    outcome = group.processor(10, root="/books").step(cursor)
    assert summary(outcome) == (2, 0, 0, None, None)
    assert outcome.cursor.stored == 0


# A handler fails


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_if_event_k_fails_the_events_before_it_are_committed_and_k_is_named(group: Group, k: int) -> None:
    group.add(*["/a"] * 5)
    group.failures[str(k)] = [ValueError("mine")]
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (k - 1, k - 1, 0, Origin.HANDLER, k)
    assert group.rows == [str(n) for n in range(1, k)]
    assert group.stored == [k - 1]
    assert outcome.failure is not None
    assert outcome.failure.event == f"event {k} at position {k} (lent, /a)"
    assert (outcome.failure.error, outcome.failure.message, outcome.failure.permanent) == ("ValueError", "mine", False)
    assert "in handle" in outcome.failure.traceback
    assert outcome.failure.traceback.count("  File ") == 1


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_failing_event_is_tried_alone_and_the_others_continue_in_chunks(group: Group, k: int) -> None:
    group.add(*["/a"] * 5)
    group.failures[str(k)] = [ValueError("first"), ValueError("second")]
    (cursor,) = group.claim()
    processor = group.processor(100)
    failed = processor.step(cursor)
    failed_again = processor.step(failed.cursor.retrying(k))
    assert summary(failed_again) == (k - 1, 0, 0, Origin.HANDLER, k)
    recovered = processor.step(failed_again.cursor.retrying(k))
    assert summary(recovered) == (k, 1, 0, None, None)
    assert recovered.cursor.failing is None
    if k < 5:
        assert summary(processor.step(recovered.cursor)) == (5, 5 - k, 0, None, None)
    assert group.rows == ["1", "2", "3", "4", "5"]
    assert [attempt for position, attempt in group.attempts if position == k] == [1, 2, 3]
    assert {attempt for position, attempt in group.attempts if position != k} <= {1}


def test_an_event_before_k_may_fail_when_it_is_handled_again(group: Group) -> None:
    group.add(*["/a"] * 5)
    group.failures["5"] = [ValueError("five")]
    steady = group.handler

    def handle(raw: Event, connection: Connection, context: ProcessingContext) -> None:
        steady(raw, connection, context)
        if raw.id == "3" and [position for position, _ in group.attempts].count(3) == 2:
            raise KeyError("three, the second time")

    group.handler = handle
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (2, 2, 0, Origin.HANDLER, 3)
    assert group.rows == ["1", "2"]


@pytest.mark.parametrize("following", [0, 1])
def test_an_abandoned_event_is_not_handled_and_progress_moves_past_it(group: Group, following: int) -> None:
    group.add("/a", *["/a"] * following)
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor.retrying(1, skip=True))
    assert summary(outcome) == (1, 0, 1, None, None)
    assert outcome.cursor == Cursor(Partition(1, 0), cursor.epoch, 1, 1)
    assert group.attempts == []
    assert group.stored == [1]


def test_only_the_failing_event_is_abandoned(group: Group) -> None:
    group.add("/order/1", "/order/4", "/order/1")
    _, second = group.claim(2)
    processor = group.processor(100, Partition(2, 1))
    outcome = processor.step(second.retrying(2, skip=True))
    assert summary(outcome) == (3, 0, 1, None, None)
    assert group.rows == []


@pytest.mark.parametrize(
    ("error", "origin", "permanent"),
    [
        (ValueError("mine"), Origin.HANDLER, False),
        (TransientError("later"), Origin.HANDLER, False),
        (MemoryError(), Origin.HANDLER, False),
        (CancelledError("a future of the user's"), Origin.HANDLER, False),
        (RuntimeError("cannot schedule new futures after shutdown"), Origin.HANDLER, False),
        (NonTransientError("never"), Origin.HANDLER, True),
        (SystemExit(3), Origin.HANDLER, True),
        (ConnectionError("database away"), Origin.OUTAGE, False),
        (EOFError("store away"), Origin.OUTAGE, False),
        (AssemblyError("OCQ-503", "2 providers make Mailer"), Origin.FRAMEWORK, False),
    ],
)
def test_every_error_of_a_handler_becomes_an_outcome(
    group: Group, error: BaseException, origin: Origin, *, permanent: bool
) -> None:
    group.add("/a")
    group.failures["1"] = [error]
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert outcome.cursor == cursor
    assert outcome.failure is not None
    assert (outcome.failure.origin, outcome.failure.permanent) == (origin, permanent)
    assert outcome.failure.error == type(error).__name__
    in_hand = origin in (Origin.HANDLER, Origin.FRAMEWORK)
    assert outcome.failure.position == (1 if in_hand else None)
    assert bool(outcome.failure.traceback) == bool(outcome.failure.event)
    assert (outcome.failure.position is not None) == in_hand
    assert group.rows == []


def test_an_explained_error_is_reported_without_place_and_fix(group: Group) -> None:
    group.add("/a")
    group.failures["1"] = [AssemblyError("OCQ-503", "2 providers make Mailer", "here", "do this")]
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert outcome.failure is not None
    assert outcome.failure.message == "2 providers make Mailer"


@pytest.mark.parametrize("crash", [KeyboardInterrupt(), CrashError()])
def test_an_interrupt_propagates_and_leaves_no_changes(group: Group, crash: BaseException) -> None:
    group.add(*["/a"] * 3)
    group.failures["2"] = [crash]
    (cursor,) = group.claim()
    with pytest.raises(type(crash)) as caught:
        group.processor(100).step(cursor)
    assert caught.value is crash
    assert (group.rows, group.stored) == ([], [0])


def test_an_undecodable_event_is_named_after_the_events_before_it_are_committed(group: Group) -> None:
    def handle(event: Lent, raw: Event, connection: Connection) -> None:
        connection.append(raw.id)  # type: ignore[attr-defined]

    group.handler = handle
    group.add("/a", "/a", payload='{"isbn": "1"}')
    group.add("/a", payload='{"number": "1"}')
    group.add("/a", payload='{"isbn": "1"}')
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (2, 2, 0, Origin.EVENT, 3)
    assert group.rows == ["1", "2"]
    assert outcome.failure is not None
    assert outcome.failure.permanent
    assert outcome.failure.traceback == ""
    assert str(outcome.failure) == "[OCQ-211] EventFormatError: the event's data do not fit Lent (isbn: Field required)"


# Outages of store or database (K1, K4)


def test_an_outage_in_a_handler_leaves_the_whole_chunk_for_later(group: Group) -> None:
    group.add(*["/a"] * 3)
    group.failures["3"] = [ConnectionError("away")]
    (cursor,) = group.claim()
    processor = group.processor(100)
    outcome = processor.step(cursor)
    assert summary(outcome) == (0, 0, 0, Origin.OUTAGE, None)
    assert outcome.cursor == cursor
    assert group.database.opened == 1
    assert summary(processor.step(outcome.cursor)) == (3, 3, 0, None, None)
    assert {attempt for _, attempt in group.attempts} == {1}


def test_an_event_store_outage_keeps_the_cursor(group: Group) -> None:
    group.add("/a")
    group.store.error = EOFError("away")
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor.retrying(1))
    assert summary(outcome) == (0, 0, 0, Origin.OUTAGE, None)
    assert outcome.cursor == cursor.retrying(1)


@pytest.mark.parametrize("skip", [True, False])
def test_a_database_outage_keeps_the_attempt_and_the_skip(group: Group, *, skip: bool) -> None:
    group.add("/a")
    (cursor,) = group.claim()
    failing = cursor.retrying(1, skip=skip)
    group.database.away = ConnectionError("away")
    processor = group.processor(100)
    outcome = processor.step(failing)
    assert summary(outcome) == (0, 0, 0, Origin.OUTAGE, None)
    assert outcome.cursor == failing
    group.database.away = None
    assert summary(processor.step(outcome.cursor)) == (1, int(not skip), int(skip), None, None)


def test_an_outage_while_idle_progress_is_stored_keeps_the_cursor(group: Group) -> None:
    (cursor,) = group.claim()
    ahead = cursor.moved_to(5, stored=False)
    group.database.away = ConnectionError("away")
    outcome = group.processor(100).flush(ahead)
    assert outcome.cursor == ahead
    assert not outcome.idle
    assert summary(outcome)[3:] == (Origin.OUTAGE, None)


# The commit fails


def test_an_outage_at_the_commit_leaves_the_chunk_for_later(group: Group) -> None:
    group.add(*["/a"] * 3)
    group.database.fails_on_commit = ConnectionError("away")
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (0, 0, 0, Origin.OUTAGE, None)
    assert group.database.opened == 1


def test_after_a_failed_commit_the_events_are_handled_in_halves(group: Group) -> None:
    group.add(*["/a"] * 3)
    group.database.fails_on_commit = ValueError("a constraint that is checked at the end")
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (3, 3, 0, None, None)
    assert group.rows == ["1", "2", "3"]
    assert group.database.committed == 2


def failing_to_commit(group: Group, *ids: str) -> None:
    """Make each transaction with one of these events fail."""
    begin = group.database.begin

    @contextmanager
    def checked() -> Iterator[Any]:
        with begin() as unit:
            yield unit
            if set(ids) & set(unit.connection):
                msg = "deferred constraint"
                raise ValueError(msg)

    group.database.begin = checked


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_event_that_makes_a_commit_fail_is_found(group: Group, k: int) -> None:
    group.add(*["/a"] * 3)
    failing_to_commit(group, str(k))
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (k - 1, k - 1, 0, Origin.HANDLER, k)
    assert outcome.failure is not None
    assert outcome.failure.message == "deferred constraint"
    assert group.rows == [str(n) for n in range(1, k)]


def test_an_event_that_cannot_be_committed_is_found_before_a_later_failing_event(group: Group) -> None:
    group.add(*["/a"] * 4)
    group.failures["4"] = [ValueError("four")] * 2
    failing_to_commit(group, "2")
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (1, 1, 0, Origin.HANDLER, 2)


def test_a_failing_event_is_named_even_if_the_events_before_it_are_committed_one_by_one(group: Group) -> None:
    group.add(*["/a"] * 4)
    group.failures["4"] = [ValueError("four")]
    group.database.fails_on_commit = ValueError("deferred constraint")
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (3, 3, 0, Origin.HANDLER, 4)
    assert group.rows == ["1", "2", "3"]


@pytest.mark.parametrize(("count", "most"), [(1, 1), (2, 3), (10, 9), (1_000, 21)])
def test_finding_the_failing_event_takes_few_transactions(group: Group, count: int, most: int) -> None:
    group.add(*["/a"] * count)
    failing_to_commit(group, str(count))
    (cursor,) = group.claim()
    outcome = group.processor(1_000, limit=1_000).step(cursor)
    assert summary(outcome) == (count - 1, count - 1, 0, Origin.HANDLER, count)
    assert group.database.opened <= most


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture is a class
@given(
    count=st.integers(1, 40),
    failing=st.sets(st.integers(1, 40)),
    batch_size=st.integers(1, 40),
    at_the_commit=st.booleans(),
)
def test_exactly_the_events_before_the_first_failing_one_are_committed(
    new_database: Callable[[], Any], count: int, failing: set[int], batch_size: int, *, at_the_commit: bool
) -> None:
    group = Group(new_database(), NothingProvided())
    group.add(*["/a"] * count)
    if at_the_commit:
        failing_to_commit(group, *map(str, failing))
    else:
        group.handler = failing_on_lists(set(map(str, failing)))
    (cursor,) = group.claim()
    first = min((n for n in failing if n <= count), default=count + 1)
    processor = group.processor(batch_size)
    for _ in range(count):
        outcome = processor.step(cursor)
        cursor = outcome.cursor
        assert group.rows == [str(n) for n in range(1, cursor.stored + 1)]
        if outcome.failure is not None or outcome.idle:
            break
    expected = (first - 1, Origin.HANDLER, first) if first <= count else (count, None, None)
    assert (summary(outcome)[0], *summary(outcome)[3:]) == expected


def failing_on_lists(failing: set[str]) -> Callable[..., None]:
    def handle(raws: list[Event], connection: Connection) -> None:
        connection.extend(raw.id for raw in raws)  # type: ignore[attr-defined]
        if failing & {raw.id for raw in raws}:
            raise ValueError

    return handle


class EndedByHand(Tracker):
    """A unit whose transaction a handler ends: nothing is stored, and the unit complains."""

    def unit(self, group: str, cursor: Cursor, to: int, **recorded: Any) -> AbstractContextManager[UnitOfWork]:
        @contextmanager
        def ended() -> Iterator[UnitOfWork]:
            with super(EndedByHand, self).unit(group, cursor, to, **recorded) as unit:
                yield unit
                if "2" in unit.connection:
                    msg = "a handler ended the transaction"
                    raise TransactionEndedError(msg)

        return ended()


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_handler_that_ends_the_transaction_stops_the_partition_at_its_event(group: Group, count: int) -> None:
    group.add(*["/a"] * count)
    group.tracker = EndedByHand(group.database)
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (1, 1, 0, Origin.HANDLER, 2)
    assert outcome.failure is not None
    assert outcome.failure.permanent
    assert outcome.failure.message == "a handler ended the transaction"
    assert (group.rows, group.stored) == (["1"], [1])


class EndedOnce(Tracker):
    """A unit whose transaction a handler ends, but only the first time: what it wrote is kept."""

    ended = False
    may_be_kept = True

    def unit(self, group: str, cursor: Cursor, to: int, **recorded: Any) -> AbstractContextManager[UnitOfWork]:
        @contextmanager
        def ended() -> Iterator[UnitOfWork]:
            with super(EndedOnce, self).unit(group, cursor, to, **recorded) as unit:
                yield unit
                if "2" in unit.connection and not self.ended:
                    self.ended = True
                    error = TransactionEndedError("a handler ended the transaction")
                    error.may_be_kept = self.may_be_kept
                    raise error

        return ended()


@pytest.mark.parametrize("in_lists", [False, True])
def test_a_handler_that_ends_the_transaction_once_is_reported_after_its_events(group: Group, *, in_lists: bool) -> None:
    """What it wrote is then stored twice, and no other error would reveal that."""
    group.add("/a", "/a", "/a")
    group.tracker = EndedOnce(group.database)
    if in_lists:
        group.handler = failing_on_lists(set())
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert outcome.failure is not None
    assert summary(outcome)[3:] == (Origin.FRAMEWORK, None)
    assert (outcome.failure.permanent, outcome.failure.code) == (True, "OCQ-228")
    assert outcome.failure.event.startswith("one of 3 events, from event 1 at position 1")
    assert (
        "did not do so again when events were handled alone: what it had written may exist twice"
        in outcome.failure.message
    )
    assert (group.rows, outcome.cursor.stored) == (["1", "2", "3"], 3)


def test_a_refused_end_of_the_transaction_that_does_not_recur_has_no_effect(group: Group) -> None:
    group.add("/a", "/a", "/a")
    tracker = group.tracker = EndedOnce(group.database)
    tracker.may_be_kept = False
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert (outcome.failure, group.rows, outcome.cursor.stored) == (None, ["1", "2", "3"], 3)


def test_an_event_that_fails_during_the_search_does_not_hide_the_ended_transaction(group: Group) -> None:
    group.add("/a", "/a", "/a")
    group.tracker = EndedOnce(group.database)
    (cursor,) = group.claim()

    def handle(raw: Event, connection: Connection) -> None:
        if raw.id == "3" and group.tracker.ended:  # type: ignore[attr-defined]
            raise ValueError("later")
        connection.append(raw.id)  # type: ignore[attr-defined]

    group.handler = handle
    outcome = group.processor(100).step(cursor)
    assert summary(outcome)[3:] == (Origin.FRAMEWORK, None)
    assert (group.rows, outcome.cursor.stored) == (["1", "2"], 2)
    again = group.processor(100).step(outcome.cursor)
    assert summary(again)[3:] == (Origin.HANDLER, 3)


def test_an_error_after_the_transaction_ended_is_reported_and_not_retried(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended_early(unit: Any, error: BaseException) -> TransactionEndedError:
        return TransactionEndedError(f"the handler ended it; then it raised {error}")

    group.add("/a", "/a")
    group.failures["2"] = [ValueError("mine")]
    (cursor,) = group.claim()
    with group.database.begin() as unit:
        monkeypatch.setattr(type(unit), "ended_early", ended_early)
    outcome = group.processor(100).step(cursor)
    assert summary(outcome)[3:] == (Origin.HANDLER, 2)
    assert outcome.failure is not None
    assert outcome.failure.permanent
    assert outcome.failure.message == "the handler ended it; then it raised mine"


# Calls after the commit


class Bell:
    """A handler that rings after the commit; it fails for some events."""

    def __init__(self, group: Group, *broken: str) -> None:
        self.rung: list[str] = []
        self._group = group
        self._broken = broken

    def __call__(self, raw: Event, connection: Connection, after_commit: AfterCommit) -> None:
        connection.append(raw.id)  # type: ignore[attr-defined]
        after_commit(lambda: self.ring(raw.id))
        if self._group.failures[raw.id]:
            raise self._group.failures[raw.id].pop(0)

    def ring(self, event_id: str) -> None:
        assert event_id in self._group.rows, "rung before it was committed"
        if event_id in self._broken:
            raise LookupError(event_id)
        self.rung.append(event_id)


def test_after_commit_calls_run_once_the_chunk_is_committed(group: Group) -> None:
    group.add(*["/a"] * 5)
    group.handler = bell = Bell(group)
    (cursor,) = group.claim()
    outcomes = list(steps(group.processor(2), cursor, 3))
    assert bell.rung == ["1", "2", "3", "4", "5"]
    assert [outcome.missed for outcome in outcomes] == [()] * 3


@pytest.mark.parametrize("k", [1, 3, 5])
def test_after_commit_calls_of_a_rolled_back_transaction_are_discarded(group: Group, k: int) -> None:
    group.add(*["/a"] * 5)
    group.failures[str(k)] = [ValueError("mine")]
    group.handler = bell = Bell(group)
    (cursor,) = group.claim()
    processor = group.processor(100)
    outcome = processor.step(cursor)
    assert bell.rung == [str(n) for n in range(1, k)]
    for _ in steps(processor, outcome.cursor.retrying(k), 2):
        pass
    assert bell.rung == ["1", "2", "3", "4", "5"]


def test_a_failing_after_commit_call_is_reported_and_nothing_is_repeated(group: Group) -> None:
    group.add(*["/a"] * 3)
    group.handler = bell = Bell(group, "2")
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (3, 3, 0, None, None)
    (missed,) = outcome.missed
    assert (missed.error, missed.message, missed.position, missed.event) == ("LookupError", "2", None, "")
    assert "in ring" in missed.traceback
    assert bell.rung == ["1", "3"]
    assert group.rows == ["1", "2", "3"]


def test_failed_after_commit_calls_of_both_halves_are_reported(group: Group) -> None:
    group.add(*["/a"] * 4)
    group.handler = Bell(group, "1", "4")
    group.database.fails_on_commit = ValueError("once")
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (4, 4, 0, None, None)
    assert [missed.message for missed in outcome.missed] == ["1", "4"]


# Unexpected failures of tracker, resolver and store (K3)


@pytest.mark.parametrize("skip", [True, False])
def test_a_tracker_that_cannot_open_a_unit_uses_no_attempt(group: Group, *, skip: bool) -> None:
    group.add("/a", "/a")
    group.tracker.error = LookupError("no such table")
    (cursor,) = group.claim()
    failing = cursor.retrying(1, skip=skip)
    for tried in (cursor, failing):
        outcome = group.processor(100).step(tried)
        assert outcome.cursor == tried
        assert summary(outcome) == (0, 0, 0, Origin.FRAMEWORK, None)
        assert outcome.failure is not None
        assert str(outcome.failure) == "LookupError: no such table"
    assert group.contexts == []


def test_a_tracker_that_cannot_store_idle_progress_is_a_framework_error(group: Group) -> None:
    group.tracker.error = LookupError("no such table")
    (cursor,) = group.claim()
    outcome = group.processor(100).flush(cursor.moved_to(5, stored=False))
    assert summary(outcome)[3:] == (Origin.FRAMEWORK, None)


def test_a_resolver_that_raises_is_a_framework_error_with_its_own_frames(group: Group) -> None:
    def resolve(event: Event) -> str:
        raise LookupError(event.subject)

    group.sequence_of = resolve
    group.add("/a")
    cursor, _ = group.claim(2)
    outcome = group.processor(100, cursor.partition).step(cursor)
    assert summary(outcome) == (0, 0, 0, Origin.FRAMEWORK, 1)
    assert outcome.failure is not None
    assert (outcome.failure.event_id, outcome.failure.event_type, outcome.failure.untried) == ("1", "lent", True)
    assert outcome.failure.event == "event 1 at position 1 (lent, /a)"
    assert "in resolve" in outcome.failure.traceback


def test_events_before_one_without_sequence_are_handled_first(group: Group) -> None:
    def resolve(event: Event) -> str:
        if event.id == "4":
            raise LookupError(event.subject)
        return event.subject

    group.sequence_of = resolve
    group.add("/order/1", "/order/4", "/order/1", "/order/1", "/order/1")
    cursor, other = group.claim(2)
    outcomes = list(steps(group.processor(100, cursor.partition), cursor, 2))
    assert [summary(outcome) for outcome in outcomes] == [
        (3, 2, 0, None, None),
        (3, 0, 0, Origin.FRAMEWORK, 4),
    ]
    assert group.rows == ["1", "3"]
    outcomes = list(steps(group.processor(100, other.partition), other, 2))
    assert [summary(outcome)[0] for outcome in outcomes] == [3, 3]
    assert group.rows == ["1", "3", "2"]


def test_an_event_without_the_field_that_gives_its_sequence_is_named(group: Group) -> None:
    group.sequence_of = PerDataField(("reader",))
    group.add("/a")
    cursor, _ = group.claim(2)
    outcome = group.processor(100, cursor.partition).step(cursor)
    assert summary(outcome) == (0, 0, 0, Origin.EVENT, 1)
    assert outcome.failure is not None
    assert outcome.failure.untried
    assert outcome.failure.summary == (
        "[OCQ-214] EventFormatError: the event has no data field 'reader', which determines its sequence"
        " - event 1 at position 1 (lent, /a)"
    )


def test_an_unknown_error_of_a_store_is_a_framework_error(group: Group) -> None:
    group.store.error = LookupError("never seen")
    (cursor,) = group.claim()
    assert summary(group.processor(100).step(cursor)) == (0, 0, 0, Origin.FRAMEWORK, None)


# Another processor has moved the progress, or taken over the partition (K9)


def test_progress_moved_by_another_task_of_the_same_claim_is_adopted(group: Group) -> None:
    group.add("/a", "/a", "/a")
    cursor = replace(*group.claim(), shared=True)
    group.processor(2).step(cursor)
    processor = group.processor(100)
    (renewed, done) = steps(processor, cursor, 2)
    assert summary(renewed) == (2, 0, 0, None, None)
    assert renewed.cursor == Cursor(ONE, cursor.epoch, 2, 2)
    assert summary(done) == (3, 1, 0, None, None)
    assert group.rows == ["1", "2", "3"]


def test_progress_that_moved_although_the_claim_is_not_shared_fences_off(group: Group) -> None:
    group.add("/a", "/a", "/a")
    (cursor,) = group.claim()
    group.processor(2).step(cursor)
    assert summary(group.processor(100).step(cursor)) == (0, 0, 0, Origin.FENCED, None)


@pytest.mark.parametrize("moved", [0, 2])
def test_after_an_outage_progress_is_read_again_because_a_confirmation_may_be_lost(group: Group, moved: int) -> None:
    group.add("/a", "/a", "/a")
    (cursor,) = group.claim()
    if moved:
        group.processor(moved).step(cursor)
    (first, *_) = steps(group.processor(100), replace(cursor, doubtful=True), 1)
    assert summary(first) == (3, 3 - moved, 0, None, None)
    assert group.rows == ["1", "2", "3"]


def test_after_an_outage_another_log_is_refused_and_stays_refused(group: Group) -> None:
    group.add("/a", "/a")
    (cursor,) = group.claim()
    (done, *_) = steps(group.processor(100), cursor, 1)
    group.store.error = EOFError("away")
    (away,) = steps(group.processor(100), done.cursor, 1)
    assert summary(away)[3] is Origin.OUTAGE
    group.store = Store()
    group.add("/other", "/other", "/other")
    group.store.append([Event(0, "x", "s", "/a", "lent", None, "application/json", "{}", None)])
    another = group.processor(100)
    group.store._events[1] = group.store._events[1]._replace(id="y")
    for outcome in steps(another, away.cursor, 3):
        assert summary(outcome) == (2, 0, 0, Origin.FRAMEWORK, None)
        assert outcome.failure is not None
        assert "is not the one that the progress belongs to" in outcome.failure.message


def restore(store: Store, upto: int) -> None:
    """Restore an earlier backup, and add as many other events."""
    lost = len(store._events) - upto
    del store._events[upto:]
    store.append(
        Event(0, f"new {n}", "s", "/a", "lent", None, "application/json", "{}", None) for n in range(1, lost + 1)
    )


def test_after_an_outage_events_are_read_from_the_log_again(group: Group) -> None:
    group.add("/a", "/a", "/a", "/a")
    group.failures["2"] = [ValueError("not yet")]
    processor, (cursor,) = group.processor(1), group.claim()
    (_, failed) = steps(processor, cursor, 2)
    restore(group.store, 2)
    for _ in steps(processor, replace(failed.cursor, doubtful=True), 3):
        pass
    assert group.rows == ["1", "2", "new 1", "new 2"]


def test_a_processor_waits_until_it_can_read_where_to_continue(group: Group) -> None:
    def away(group_name: str, cursor: Cursor) -> None:
        raise ConnectionError("away")

    group.add("/a", "/a", "/a")
    cursor = replace(*group.claim(), shared=True)
    group.processor(2).step(cursor)
    group.tracker.renewed = away  # type: ignore[method-assign, assignment]
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (0, 0, 0, Origin.OUTAGE, None)
    assert outcome.cursor == cursor


def test_a_handler_that_raises_a_fencing_error_has_failed(group: Group) -> None:
    group.add("/a")
    group.failures["1"] = [FencedError("not true")]
    (cursor,) = group.claim()
    assert summary(group.processor(100).step(cursor)) == (0, 0, 0, Origin.HANDLER, 1)


def test_an_outage_in_a_handler_names_event_and_handler_and_uses_no_attempt(group: Group) -> None:
    group.add("/a")
    group.failures["1"] = [ConnectionError("away")]
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert summary(outcome) == (0, 0, 0, Origin.OUTAGE, None)
    assert outcome.failure is not None
    assert outcome.failure.event == "event 1 at position 1 (lent, /a)"
    assert outcome.failure.traceback == "  in handler handlers.py:7"
    assert "if the handler opens its own connection" in outcome.failure.advice
    assert "idle_in_transaction_session_timeout" in outcome.failure.advice  # which also causes a connection error


def test_a_spark_outage_in_a_handler_is_not_attributed_to_its_connections(group: Group) -> None:
    group.add("/a")
    group.failures["1"] = [UnavailableError("OCQ-420", "a Spark job was cancelled")]
    (cursor,) = group.claim()
    outcome = group.processor(100).step(cursor)
    assert outcome.failure is not None
    assert (outcome.failure.origin, outcome.failure.advice) == (Origin.OUTAGE, "")


def test_a_fenced_processor_writes_nothing(group: Group) -> None:
    group.add("/a")
    (old,) = group.claim()
    group.claim()
    outcome = group.processor(100).step(old)
    assert summary(outcome) == (0, 0, 0, Origin.FENCED, None)
    assert outcome.failure is not None
    assert outcome.failure.message == "progress of group 'group' partition 0/1 was taken over by another processor"
    assert (group.rows, group.stored, group.contexts) == ([], [0], [])


def test_a_processor_fenced_in_mid_chunk_writes_nothing(group: Group) -> None:
    group.add("/a", "/a", "/a")
    steady = group.handler

    def handle(raw: Event, connection: Connection, context: ProcessingContext) -> None:
        steady(raw, connection, context)
        if raw.id == "2":
            group.claim()

    group.handler = handle
    (old,) = group.claim()
    assert summary(group.processor(100).step(old)) == (0, 0, 0, Origin.FENCED, None)
    assert (group.rows, group.stored) == ([], [0])


def test_a_processor_fenced_while_an_event_fails_reports_only_the_fencing(group: Group) -> None:
    group.add("/a", "/a", "/a")

    class TakeOverError(Exception):
        def __init__(self) -> None:
            group.claim()

    steady = group.handler

    def handle(raw: Event, connection: Connection, context: ProcessingContext) -> None:
        steady(raw, connection, context)
        if raw.id == "3":
            raise TakeOverError

    group.handler = handle
    (old,) = group.claim()
    assert summary(group.processor(100).step(old)) == (0, 0, 0, Origin.FENCED, None)
    assert group.rows == []

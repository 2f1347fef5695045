"""Parked events of participants: none is lost or reordered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from support.participants import GROUP, PARK_SECONDS, Board, World, raising

from opencqrs_py import (
    CheckpointParticipant,
    Event,
    InMemoryProgressTracker,
    NonTransientError,
    NoRetry,
    checkpointing,
    event_handling,
    event_type,
)
from opencqrs_py.errors import InboxError
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointMode

BAD, GOOD = "/order/1", "/order/2"
POISON = raising(OSError("poison"))
NEVER = raising(NonTransientError("never"))


def parking(*handlers: Any, **rest: Any) -> World:
    """Return a group that parks an event when it fails."""
    rest = {"back_off": NoRetry(), "on_exhausted": OnExhausted.PARK, "on_undecodable": OnExhausted.PARK, **rest}
    return World(rest.pop("tracker", None) or InMemoryProgressTracker(), *handlers, **rest)


def later(world: World, driver: Any, most: int = 200) -> None:
    """Let waiting events become due, and handle them."""
    world.clock.advance(PARK_SECONDS)
    world.until_idle(driver, most=most)


@event_type("numbered")
@dataclass(frozen=True)
class Numbered:
    """An event with data that are decoded."""

    n: int


def numbered(position: int, subject: str, data: str) -> Event:
    return Event(0, str(position), "s", subject, "numbered", None, "application/json", data, None)


class Several(CheckpointParticipant):
    """Records what its handler of several events gets."""

    def __init__(self, before: Callable[[list[int]], object] = lambda _: None) -> None:
        self.calls: list[list[int]] = []
        self.before = before

    def on_checkpoint(self, partition: Any, requested: int) -> int:
        return requested

    def on_parked_handled(self, partition: Any, positions: Any) -> None: ...

    def take(self, numbers: list[int]) -> None:
        self.before(numbers)
        self.calls.append(numbers)

    @property
    def taken(self) -> list[int]:
        """The events that it got, in order."""
        return [number for call in self.calls for number in call]


@checkpointing(GROUP)
class Listed(Several):
    """Takes lists of stored events."""

    @event_handling(types=["*"])
    def handle(self, events: list[Event]) -> None:
        self.take([event.position for event in events])


@checkpointing(GROUP)
class Decoded(Several):
    """Takes lists of decoded events."""

    @event_handling
    def handle(self, events: list[Numbered]) -> None:
        self.take([event.n for event in events])


@checkpointing(GROUP)
class InColumns(Several):
    """Takes tables."""

    @event_handling(events=Numbered)
    def handle(self, events: pa.Table) -> None:
        self.take(events.column("n").to_pylist())


@pytest.mark.parametrize("cls", [Decoded, InColumns])
def test_events_before_an_undecodable_one_reach_handlers_of_several(cls: type[Any]) -> None:
    several = cls()
    world = parking(several.handle, on_undecodable=OnExhausted.SKIP)
    data = ['{"n": 1}', '{"n": 2}', '{"n": "x"}', '{"n": 4}']
    world.store.append([numbered(n, f"/{n}", each) for n, each in enumerate(data, 1)])
    world.until_idle(driver := world.driver())
    driver.release()
    assert several.taken == [1, 2, 4]
    assert world.stored() == 4


def test_parked_events_before_an_undecodable_one_reach_handlers_of_several() -> None:
    several = Decoded(lambda _: fails and POISON())
    fails = [True]
    world = parking(several.handle)
    world.store.append([numbered(n, BAD, data) for n, data in enumerate(['{"n": 1}', '{"n": 2}', '{"n": "x"}'], 1)])
    world.until_idle(driver := world.driver())
    assert set(world.waiting()) == {1, 2, 3}
    fails.clear()
    later(world, driver)
    later(world, driver)
    assert several.taken == [1, 2]
    assert world.waiting() == {3: "undecodable"}


def test_events_before_a_failing_one_reach_list_handlers_once_and_single_handlers_again() -> None:
    board, listed = Board(), Listed()
    board.before[3] = POISON
    world = parking(board.handle, listed.handle, on_exhausted=OnExhausted.SKIP)
    world.append("/a", "/b", "/c", "/d")
    world.until_idle(driver := world.driver())
    driver.release()
    assert listed.taken == [1, 2, 4]
    assert board.positions == [1, 2, 1, 2, 4]
    closed = board.calls.index(("closed", "0/1"))
    assert board.calls[closed + 1] == ("claimed", "0/1", 0)  # it has discarded them before that
    assert world.stored() == 4


def test_parked_events_before_a_failing_one_reach_list_handlers_once() -> None:
    board, listed = Board(), Listed()
    board.before[1] = POISON
    world = parking(board.handle, listed.handle)
    world.append(BAD, BAD, BAD)
    world.until_idle(driver := world.driver())
    board.before = {3: POISON}
    later(world, driver)
    assert listed.taken == [1, 2]
    assert world.waiting() == {3: "retrying"}
    board.before = {}
    later(world, driver)
    assert (listed.taken, world.waiting()) == ([1, 2, 3], {})


class Keeping(CheckpointParticipant):
    """Keeps events in memory until a checkpoint, by handler."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, int]] = []
        self.durable: list[tuple[str, int]] = []
        self.before: Callable[[list[int]], object] = lambda _: None

    def on_checkpoint(self, partition: Any, requested: int) -> int:
        self.durable += self.kept
        self.kept.clear()
        return requested

    def on_parked_handled(self, partition: Any, positions: Any) -> None:
        self.on_checkpoint(partition, 0)

    def on_partition_closed(self, partition: Any) -> None:
        self.kept.clear()

    def keep(self, handler: str, events: list[Event]) -> None:
        if handler == "list":
            self.before([event.position for event in events])
        self.kept += [(handler, event.position) for event in events]

    def of(self, handler: str) -> list[int]:
        """The durable events of a handler, in order."""
        return [position for name, position in self.durable if name == handler]


@checkpointing(GROUP)
class SinglyAndListed(Keeping):
    """Takes single events, and then lists of them."""

    @event_handling(types=["*"])
    def first(self, event: Event) -> None:
        self.keep("first", [event])

    @event_handling(types=["*"])
    def handle(self, events: list[Event]) -> None:
        self.keep("list", events)


@checkpointing(GROUP)
class TwiceListed(Keeping):
    """Takes lists of events with two handlers."""

    @event_handling(types=["*"], order=1)
    def first(self, events: list[Event]) -> None:
        self.keep("first", events)

    @event_handling(types=["*"], order=2)
    def handle(self, events: list[Event]) -> None:
        self.keep("list", events)


def failing_once_with(error: Exception, position: int) -> Callable[[list[int]], object]:
    """Return a function that raises for the first list of several events with the given position."""
    left = [error]

    def before(positions: list[int]) -> None:
        if position in positions and len(positions) > 1 and left:
            raise left.pop()

    return before


@pytest.mark.parametrize("cls", [SinglyAndListed, TwiceListed])
@pytest.mark.parametrize("error", [OSError("once"), ConnectionError("away")])
def test_a_list_that_fails_once_does_not_reach_other_handlers_of_the_participant_twice(
    cls: type[Any], error: Exception
) -> None:
    keeping = cls()
    world = World(tracker := InMemoryProgressTracker(), keeping.first, keeping.handle, batch_size=4)
    tracker.is_outage = lambda error: isinstance(error, ConnectionError)  # type: ignore[method-assign]
    world.append(*[f"/{n}" for n in range(1, 11)])
    keeping.before = failing_once_with(error, 6)
    world.until_idle(driver := world.driver())
    driver.release()
    assert keeping.of("first") == keeping.of("list") == list(range(1, 11))
    assert world.stored() == 10


@pytest.mark.parametrize("cls", [SinglyAndListed, TwiceListed])
def test_other_events_of_a_failing_list_reach_each_handler_of_the_participant_once(cls: type[Any]) -> None:
    keeping = cls()
    world = parking(keeping.first, keeping.handle, on_exhausted=OnExhausted.SKIP, batch_size=4)
    world.append(*[f"/{n}" for n in range(1, 11)])
    keeping.before = lambda positions: (6 in positions or 3 in positions) and POISON()
    world.until_idle(driver := world.driver())
    driver.release()
    others = [1, 2, 4, 5, 7, 8, 9, 10]
    assert keeping.of("list") == others
    assert [position for position in keeping.of("first") if position in others] == others
    assert world.stored() == 10


@pytest.mark.parametrize("cls", [SinglyAndListed, TwiceListed])
@pytest.mark.parametrize("error", [OSError("once"), ConnectionError("away")])
def test_a_list_of_parked_events_that_fails_reaches_no_handler_of_the_participant_twice(
    cls: type[Any], error: Exception
) -> None:
    keeping = cls()
    world = parking(keeping.first, keeping.handle, tracker=(tracker := InMemoryProgressTracker()))
    tracker.is_outage = lambda error: isinstance(error, ConnectionError)  # type: ignore[method-assign]
    keeping.before = POISON
    world.append(BAD, BAD, BAD, BAD)
    world.until_idle(driver := world.driver())
    keeping.durable.clear()
    keeping.kept.clear()
    keeping.before = failing_once_with(error, 2)
    later(world, driver)
    later(world, driver)
    driver.release()
    assert keeping.of("first") == keeping.of("list") == [1, 2, 3, 4]
    assert world.waiting() == {}


def test_deferred_mode_loses_no_events_between_failures_in_different_handlers() -> None:
    rows: list[int] = []

    @event_handling(GROUP, types=["*"])
    def single(raw: Event) -> None:
        if raw.position == 3:
            NEVER()
        rows.append(raw.position)

    listed = Listed(lambda positions: 6 in positions and POISON())
    world = parking(listed.handle, single, mode=CheckpointMode.DEFERRED, batch_size=8)
    world.append(*[f"/o/{n}" for n in range(1, 9)])
    world.until_idle(driver := world.driver())
    driver.release()
    assert set(rows) == {1, 2, 4, 5, 7, 8}
    assert world.waiting() == {3: "exhausted", 6: "retrying"}
    assert world.stored() == 8


@pytest.mark.parametrize("how", ["skip", "pause"])
def test_events_in_the_other_half_do_not_overtake_one_that_a_person_has_changed(how: str) -> None:
    many = 2  # lists of more events fail

    def fails(positions: list[int]) -> None:
        if len(positions) > many:
            POISON()
        if positions == [1, 2] and len(listed.calls) == 0:
            assert world.as_a_person(1, how)

    listed = Listed(lambda _: POISON())
    world = parking(listed.handle)
    world.append(BAD, BAD, BAD, BAD)
    world.until_idle(driver := world.driver())
    listed.before = fails
    later(world, driver)
    later(world, driver)
    last = {position: index for index, position in enumerate(listed.taken)}
    if how == "pause":
        assert last.keys() <= {1, 2}
        assert world.waiting() == {1: "paused", 2: "pending", 3: "pending", 4: "pending"}
    else:
        assert last[2] < last[3] < last[4]


def test_in_a_group_without_participants_the_other_half_does_not_overtake_a_paused_event() -> None:
    seen: list[int] = []
    fails, opened = [True], []

    class PausedBeforeTheHalf(InMemoryProgressTracker):
        @contextmanager
        def unit(self, *arguments: Any, **rest: Any) -> Iterator[Any]:
            change = rest.get("change")
            if change is not None and change.done:
                opened.append(change.done)
                if len(opened) == 2:
                    world.as_a_person(1, "pause")
            with super().unit(*arguments, **rest) as unit:
                yield unit

    @event_handling(GROUP, types=["*"])
    def handle(events: list[Event]) -> None:
        if fails or len(events) > 2:
            POISON()
        seen.extend(event.position for event in events)

    world = parking(handle, tracker=PausedBeforeTheHalf())
    world.append(BAD, BAD, BAD, BAD)
    world.until_idle(driver := world.driver())
    fails.clear()
    later(world, driver)
    assert seen == []
    assert world.waiting() == {1: "paused", 2: "pending", 3: "pending", 4: "pending"}


def test_skipping_an_event_that_participants_are_handling_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    board = Board()
    board.before[1] = POISON
    world = parking(board.handle).given(1, BAD)
    world.until_idle(driver := world.driver())
    board.before = {1: lambda: world.as_a_person(1, "skip")}
    caplog.clear()
    later(world, driver)
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert message.startswith("[board 0/1] a person has changed event 1 at position 1 (moved, /order/1) of sequence ")
    assert (world.waiting(), board.positions) == ({}, [1])


def test_a_parked_event_that_cannot_be_made_durable_blocks_only_its_sequence_and_uses_no_attempt() -> None:
    board = Board()
    board.before[1] = POISON
    world = parking(board.handle, park_attempts=3)
    world.append(BAD, GOOD)
    world.until_idle(driver := world.driver())
    board.before = {}
    board.answers["parked"] = raising(OSError("disk full"))
    world.append(GOOD, GOOD, BAD)
    for _ in range(10):
        later(world, driver, most=20)
    assert board.positions.count(1) <= 11
    assert {3, 4} <= set(board.positions)
    assert world.waiting() == {1: "retrying", 5: "pending"}
    (first, _) = world.tracker.entries(GROUP)
    assert first.attempts == 1
    del board.answers["parked"]
    later(world, driver)
    assert world.waiting() == {}
    assert driver.supervised.failure is None


def test_a_parked_event_that_cannot_be_made_durable_uses_no_attempt_after_a_crash() -> None:
    board = Board()
    board.before[1] = POISON
    world = parking(board.handle, park_attempts=3)
    world.append(BAD, GOOD)
    world.until_idle(world.driver())
    board.before = {}
    board.answers["parked"] = raising(OSError("disk full"))
    driver = world.driver()  # the first process has crashed
    for _ in range(6):
        later(world, driver, most=20)
    (entry,) = world.tracker.entries(GROUP)
    assert (entry.attempts, entry.reason) == (1, "OSError: poison")


def test_a_participant_that_cannot_confirm_parked_events_is_refused_while_events_wait() -> None:
    board = Board()
    board.before[1] = POISON
    world = parking(board.handle).given(1, BAD)
    world.until_idle(driver := world.driver())
    driver.release()

    @checkpointing(GROUP)
    class Without:
        @event_handling(types=["*"])
        def handle(self, raw: Event) -> None: ...

        def on_checkpoint(self, partition: Any, requested: int) -> int:
            return requested

    rest = {"on_exhausted": OnExhausted.SKIP, "on_undecodable": OnExhausted.STOP}
    other = parking(Without().handle, tracker=world.tracker, store=world.store, clock=world.clock, **rest)
    with pytest.raises(InboxError, match=r"OCQ-609.*Without does not report when parked events are durable"):
        other.driver()
    assert world.waiting() == {1: "retrying"}


def test_chunks_from_the_inbox_are_small_for_slow_handlers_too() -> None:
    board = Board()
    board.before[1] = POISON
    world = parking(board.handle).given(301, BAD)
    world.until_idle(driver := world.driver())
    board.before = {number: lambda: world.clock.advance(1.0) for number in range(1, 302)}
    world.clock.advance(PARK_SECONDS)
    for _ in range(10):
        driver.step()
    assert 10 <= len(board.out_of_inbox) <= 100


def test_events_before_a_full_inbox_are_confirmed_once() -> None:
    board, rows = Board(), []

    @event_handling(GROUP, types=["*"])
    def note(raw: Event) -> None:
        rows.append(raw.position)

    board.before[1] = NEVER
    world = parking(board.handle, note, most_of_sequence=1, batch_size=8)
    world.append(BAD, GOOD, BAD, GOOD)
    driver = world.driver()
    for _ in range(10):
        later(world, driver, most=5)
    assert (board.positions, rows) == ([2], [2])
    assert world.stored() == 2
    assert driver.supervised.failure is not None
    assert driver.supervised.failure.code == "OCQ-601"

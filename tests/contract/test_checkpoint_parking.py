"""Groups with participants that park events: a parked event leaves the inbox when all have made it durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event as Signal
from typing import Any

import pytest
from sqlalchemy import Connection, text
from support.participants import (
    GROUP,
    PARK_SECONDS,
    TRACKERS,
    Board,
    Counting,
    World,
    counting_tracker,
    failures,
    raising,
)

from opencqrs_py import Event, NonTransientError, NoRetry, checkpointing, event_handling
from opencqrs_py.model import Partition
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointMode

BAD, GOOD = "/order/1", "/order/2"
"""Subjects of two sequences."""

POISON = raising(OSError("poison"))


pytestmark = pytest.mark.release(kind="mariadb")  # whose statements for the inbox are those of SQLite


@pytest.fixture(params=TRACKERS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def tracker(kind: str, request: pytest.FixtureRequest) -> Counting:
    return counting_tracker(kind, request)


def parking(tracker: Any, *handlers: Any, **rest: Any) -> World:
    """Return a group that parks an event when it fails."""
    return World(tracker, *handlers, back_off=NoRetry(), on_exhausted=OnExhausted.PARK, **rest)


def later(world: World, *drivers: Any, seconds: float = PARK_SECONDS) -> None:
    """Let parked events become due, and handle them."""
    world.clock.advance(seconds)
    world.until_idle(*drivers)


def test_an_event_is_parked_after_a_checkpoint_of_those_before_it_and_others_are_handled(tracker: Counting) -> None:
    board = Board()
    board.before[3] = POISON
    world = parking(tracker, board.handle)
    world.append(GOOD, GOOD, BAD, GOOD, BAD, GOOD)
    driver = world.driver()
    world.until_idle(driver)
    assert board.positions == [1, 2, 4, 6]
    assert world.waiting() == {3: "retrying", 5: "pending"}
    assert board.asked() == [2, 4]  # each before the progress passes an event that was not handled
    assert world.stored() == 5
    driver.release()
    assert world.stored() == 6


def test_parked_events_are_handled_in_order_and_leave_the_inbox_once_durable(tracker: Counting) -> None:
    board, waiting = Board(), []
    board.answers["parked"] = lambda *_: waiting.append(sorted(world.waiting()))
    board.before[1] = POISON
    world = parking(tracker, board.handle)
    world.append(BAD, GOOD, BAD)
    world.until_idle(driver := world.driver())
    board.before.clear()
    later(world, driver)
    assert board.positions == [2, 1, 3]
    assert board.out_of_inbox == [1, 3]
    assert board.parked() == [(1, 3)]
    assert waiting == [[1, 3]]  # they were there while the participant made them durable
    assert world.waiting() == {}
    world.append(BAD)
    world.until_idle(driver)
    assert board.positions == [2, 1, 3, 4]
    assert board.out_of_inbox == [1, 3]


def test_events_before_a_parked_one_that_fails_again_are_not_handled_again(tracker: Counting) -> None:
    board = Board()
    board.before[1] = POISON
    world = parking(tracker, board.handle)
    world.append(BAD, BAD, BAD)
    world.until_idle(driver := world.driver())
    board.before = {2: POISON}
    later(world, driver)
    assert (board.positions, board.parked()) == ([1], [(1,)])
    assert world.waiting() == {2: "retrying", 3: "pending"}
    board.before = {}
    later(world, driver)
    assert (board.positions, board.parked()) == ([1, 2, 3], [(1,), (2, 3)])


@pytest.mark.parametrize("mixed", [False, True])
def test_an_unconfirmed_parked_event_stays_and_is_handled_again_after_a_new_claim(
    tracker: Counting,
    mixed: bool,  # noqa: FBT001 parametrized
) -> None:
    board, rows = Board(), []

    @event_handling(GROUP, types=["*"])
    def note(raw: Event) -> None:
        rows.append(raw.position)

    board.before[1] = POISON
    world = parking(tracker, board.handle, *([note] if mixed else []))
    world.append(BAD, GOOD)
    world.until_idle(driver := world.driver())
    board.before = {}
    board.answers["parked"] = raising(OSError("disk full"))
    world.clock.advance(PARK_SECONDS)
    driver.step()
    assert failures(world.seen)[-1:] == ["OCQ-646"]
    (failed,) = (each.failure for each in world.seen.notices[-1:])
    assert "Board has not confirmed the parked events at 1: OSError: disk full" in str(failed)
    assert world.waiting() == {1: "retrying"}
    assert rows == ([2] if mixed else [])
    del board.answers["parked"]
    later(world, driver)
    assert board.asked("claimed") == [0, 2 if mixed else 1]
    assert world.waiting() == {}
    assert board.positions.count(1) == 2
    assert rows == ([2, 1] if mixed else [])


@pytest.mark.release(kind=("sqlite", "postgresql"))  # a thread waits for it
def test_a_participant_that_never_returns_from_parked_events_is_abandoned(tracker: Counting) -> None:
    board, returns = Board(), Signal()
    board.answers["parked"] = lambda *_: returns.wait(60)
    board.before[1] = POISON
    world = parking(tracker, board.handle, timeout=0.5).given(1, BAD)
    world.until_idle(driver := world.driver())
    board.before = {}
    world.clock.advance(PARK_SECONDS)
    driver.step()
    returns.set()
    assert failures(world.seen)[-1:] == ["OCQ-646"]
    assert world.waiting() == {1: "retrying"}


def test_events_lost_from_memory_in_a_crash_are_handled_again_from_inbox_and_log(tracker: Counting) -> None:
    board = Board()
    board.before[2] = POISON
    world = parking(tracker, board.handle)
    world.append(GOOD, BAD, GOOD, BAD, GOOD)
    world.until_idle(world.driver())
    assert world.stored() == 4
    board.before = {}
    world.clock.advance(PARK_SECONDS)
    driver = world.driver()  # the first process has crashed
    world.until_idle(driver)
    driver.release()
    assert sorted(board.positions) == [1, 2, 3, 4, 5, 5]
    assert (world.waiting(), world.stored()) == ({}, 5)


def test_other_handlers_in_the_group_write_their_rows_once(tracker: Counting) -> None:
    if tracker.database is None:
        pytest.skip("rows are in a database")
    with tracker.database.writing() as connection:
        connection.execute(text("CREATE TABLE written (position INTEGER)"))
    fails: dict[int, Callable[[], object]] = {2: POISON}

    @event_handling(GROUP, types=["*"])
    def insert(raw: Event, connection: Connection) -> None:
        connection.execute(text("INSERT INTO written VALUES (:position)"), {"position": raw.position})
        fails.get(raw.position, lambda: None)()

    board = Board()
    world = parking(tracker, board.handle, insert)
    world.append(GOOD, BAD, GOOD, BAD, GOOD)
    world.until_idle(driver := world.driver())
    assert sorted(world.waiting()) == [2, 4]
    fails.clear()
    later(world, driver)
    driver.release()
    with tracker.database.reading() as connection:
        rows = [row[0] for row in connection.execute(text("SELECT position FROM written"))]
    assert rows == [1, 3, 5, 2, 4]
    assert board.parked() == [(2, 4)]


def test_in_deferred_mode_events_after_a_parked_one_are_stored_in_the_inbox_before_others_pass_them(
    tracker: Counting,
) -> None:
    rows: list[int] = []

    @event_handling(GROUP, types=["*"])
    def note(raw: Event) -> None:
        rows.append(raw.position)

    board = Board()
    board.before[1] = raising(NonTransientError("never"))
    world = parking(tracker, board.handle, note, mode=CheckpointMode.DEFERRED)
    world.append(BAD, GOOD, BAD, GOOD)
    world.until_idle(driver := world.driver())
    assert (rows, world.stored()) == ([2, 4], 3)
    assert world.waiting() == {1: "exhausted", 3: "pending"}
    driver.release()
    assert world.stored() == 4


def test_several_participants_confirm_parked_events(tracker: Counting) -> None:
    boards = Board(), Board()
    boards[1].before[1] = POISON
    world = parking(tracker, *(board.handle for board in boards)).given(1, BAD)
    world.until_idle(driver := world.driver())
    boards[1].before = {}
    later(world, driver)
    assert [board.parked() for board in boards] == [[(1,)], [(1,)]]
    assert world.waiting() == {}


def test_a_participant_can_handle_the_end_of_parked_events_asynchronously(tracker: Counting) -> None:
    flushed: list[Sequence[int]] = []

    @checkpointing(GROUP)
    class Asynchronous(Board):
        async def on_parked_handled(self, partition: Partition, positions: Sequence[int]) -> None:
            flushed.append((partition.residue, *positions))

    board = Asynchronous()
    board.before[1] = POISON
    world = parking(tracker, board.handle).given(1, BAD)
    world.until_idle(driver := world.driver())
    board.before = {}
    later(world, driver)
    assert (flushed, world.waiting()) == ([(0, 1)], {})

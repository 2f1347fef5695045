"""The cases of self-checkpointing, on progress in memory and in each database; numbers as in the facts, section 8.8."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from threading import Event as Signal
from typing import Any

import pytest
from sqlalchemy import Connection, text
from support.participants import (
    FIRST,
    GROUP,
    LATEST_ALWAYS,
    SECOND,
    TRACKERS,
    Board,
    Counting,
    World,
    counting_tracker,
    failures,
    max_of,
    raising,
    stuck_at,
)

from opencqrs_py import (
    LATEST,
    CheckpointParticipant,
    CheckpointTrigger,
    Event,
    EventHandlingProcessor,
    InMemoryEventStore,
    NonTransientError,
    NoRetry,
    PartitionKeyResolver,
    PerSubject,
    ProcessorOptions,
    Reset,
    checkpointing,
    event_handling,
)
from opencqrs_py.control.layouts import Log, carried_over
from opencqrs_py.errors import AssemblyError, HandlerSignatureError
from opencqrs_py.model import Partition, ProcessorState, layout
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointMode
from opencqrs_py.processing.inbox.batches import ScheduleRule
from opencqrs_py.processing.inbox.schedules import FixedDelay
from opencqrs_py.processing.recovery import Action, FixedBackOff

# Progress is stored in one column, whatever the case.
pytestmark = [
    pytest.mark.release(kind=("postgresql", "mariadb")),
    pytest.mark.release("test_1c_release_failing_participant", kind="sqlite"),
]

ONLY = Partition(1, 0)


@pytest.fixture(params=TRACKERS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def tracker(kind: str, request: pytest.FixtureRequest) -> Counting:
    found = counting_tracker(kind, request)
    if found.database is not None:
        with found.database.writing() as connection:
            connection.execute(text("CREATE TABLE written (position INTEGER)"))
    return found


class Ordinary:
    """A handler that is not a participant's; its rows are in the transaction, if there is one."""

    def __init__(self, tracker: Any) -> None:
        self._database = tracker.database
        self._rows: list[int] = []
        self.before: dict[int, Callable[[], object]] = {}

        @event_handling(GROUP, types=["*"])
        def insert(raw: Event, connection: Connection) -> None:
            self.before.get(raw.position, lambda: None)()
            connection.execute(text("INSERT INTO written VALUES (:position)"), {"position": raw.position})

        @event_handling(GROUP, types=["*"])
        def note(raw: Event) -> None:
            self.before.get(raw.position, lambda: None)()
            self._rows.append(raw.position)

        self.handle = note if self._database is None else insert

    @property
    def rows(self) -> list[int]:
        if self._database is None:
            return self._rows
        with self._database.reading() as connection:
            return [row[0] for row in connection.execute(text("SELECT position FROM written ORDER BY position"))]


@contextmanager
def unavailable(tracker: Any, error: Exception) -> Iterator[None]:
    """Have a tracker raise an error on every read or write; a ``ConnectionError`` is an outage."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tracker, "unit", raising(error))
        patched.setattr(tracker, "renewed", raising(error))
        patched.setattr(tracker, "is_outage", lambda found: isinstance(found, ConnectionError))
        yield


# -------------------------------------------------------------------------------------------------- 1: release


def released(tracker: Any, events: int, *boards: Board) -> World:
    """Let boards handle some events, and be released."""
    world = World(tracker, *(board.handle for board in boards)).given(events)
    driver = world.driver()
    world.until_idle(driver)
    driver.release()
    return world


def test_1a_release_two_participants_catch_up(tracker: Counting) -> None:
    lead, lag = Board(), Board(released=stuck_at(7))
    world = released(tracker, 10, lead, lag)
    assert (lead.asked("checkpoint"), lag.asked("checkpoint")) == ([], [10])
    assert world.stored() == 10
    assert tracker.statuses()[0].state is ProcessorState.STOPPED


def test_1b_release_stuck_participant_falls_back(tracker: Counting, caplog: pytest.LogCaptureFixture) -> None:
    world = released(tracker, 10, Board(), Board(released=stuck_at(6), checkpoint=stuck_at(6)))
    assert world.stored() == 6
    assert "Board holds the progress back at the release" in caplog.text
    assert tracker.statuses()[0].state is ProcessorState.STOPPED


def fails(*_: object) -> object:
    raise OSError("disk full")


async def fails_later(*_: object) -> object:
    raise OSError("disk full")


@pytest.mark.parametrize("failing", [fails, fails_later, stuck_at(None)])
def test_1c_release_failing_participant(tracker: Counting, failing: Any, caplog: pytest.LogCaptureFixture) -> None:
    board = Board(released=failing)
    world = released(tracker, 10, board, Board())
    assert (world.stored(), tracker.stores) == (0, [])
    assert tracker.statuses()[0].state is ProcessorState.STOPPED  # H8: released nevertheless
    assert "Board could not flush" in caplog.text
    assert "events after the stored position are repeated" in caplog.text
    assert (failures(world.seen), "when the partition is next assigned" in caplog.text) == (["OCQ-646"], True)
    world.until_idle(world.driver())
    assert board.asked("claimed") == [0, 0]
    assert board.positions == [*range(1, 11)] * 2


def test_a_release_with_nothing_to_flush_is_not_a_failure(tracker: Counting) -> None:
    world = World(tracker, Board(released=fails).handle).given(10)
    world.until_idle(driver := world.driver())
    driver.processor.trigger.request()  # type: ignore[union-attr]
    world.until_idle(driver)
    driver.release()
    assert (world.stored(), tracker.statuses()[0].error, failures(world.seen)) == (10, "", [])


def test_1d_release_three_participants_lowest(tracker: Counting) -> None:
    boards = Board(), Board(released=stuck_at(8)), Board(released=stuck_at(6), checkpoint=stuck_at(6))
    assert released(tracker, 10, *boards).stored() == 6


# ----------------------------------------------------------------------------------------------------- 2: auto


@pytest.mark.parametrize("answer", [stuck_at(0), raising(OSError("no")), stuck_at(None)])
def test_2a_2b_auto_participant_that_does_not_confirm(tracker: Counting, answer: Any) -> None:
    board, ordinary = Board(checkpoint=answer), Ordinary(tracker)
    world = World(tracker, board.handle, ordinary.handle).given(1)
    driver = world.driver()
    driver.step()
    assert (world.stored(), ordinary.rows, tracker.stores) == (0, [], [])
    assert failures(world.seen) == ["OCQ-646"]
    assert driver.wait() == 1.0
    assert driver.supervised.state is ProcessorState.BACKING_OFF
    del board.answers["checkpoint"]
    world.until_idle(driver)
    assert board.positions == [1, 1]
    assert (world.stored(), ordinary.rows) == (1, [1])


# ------------------------------------------------------------------------------------------------- 3: triggers


def test_3a_two_partitions_two_triggers(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle, partitions=2)
    world.append(FIRST, SECOND)
    for driver in world.claimed():
        driver.step()
    first, second = (board.triggers[partition] for partition in layout(2))
    assert first is not second
    assert board.of_events == [first, second]


def test_3b_checkpoint_is_of_its_partition(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle, partitions=2)
    world.append(FIRST, SECOND, FIRST, SECOND, FIRST, SECOND)
    drivers = world.claimed()
    world.until_idle(*drivers)
    board.triggers[Partition(2, 0)].request(5)
    world.until_idle(*drivers)
    assert board.calls[-1] == ("checkpoint", "0/2", 5)
    assert world.stored_of_all() == {"0/2": 6, "1/2": 0}  # 6 is another partition's


def test_3c_the_trigger_of_another_partition_requests_there_only(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle, partitions=2)
    world.append(FIRST, SECOND)
    drivers = world.claimed()
    world.until_idle(*drivers)
    list(board.triggers.values())[-1].request()  # as an instance does that keeps only the last one
    world.until_idle(*drivers)
    assert world.stored_of_all() == {"0/2": 0, "1/2": 2}


# ---------------------------------------------------------------------------------------------------- 4: mixed


def test_4a_mixed_mode_end_to_end(tracker: Counting) -> None:
    board, ordinary = Board(), Ordinary(tracker)
    world = World(tracker, board.handle, ordinary.handle).given(5)
    driver = world.driver()
    world.until_idle(driver)
    driver.release()
    world.given(1)
    world.until_idle(world.driver())
    assert board.positions == [1, 2, 3, 4, 5, 6]
    assert ordinary.rows == [1, 2, 3, 4, 5, 6]


def test_4b_mixed_mode_is_visible(tracker: Counting, caplog: pytest.LogCaptureFixture) -> None:
    board, ordinary = Board(), Ordinary(tracker)
    world = World(tracker, board.handle, ordinary.handle)
    driver = world.driver()
    (warning,) = (each for each in caplog.records if each.levelno == logging.WARNING)
    assert "checkpoint of Board with each chunk" in warning.getMessage()
    assert "test_checkpoint_cases.py" in warning.getMessage()
    driver.step()
    driver.release()
    assert tracker.statuses()[0].checkpoint.mode == "auto"
    with pytest.raises(AssemblyError, match="OCQ-643"):
        World(tracker, board.handle, ordinary.handle, mode=CheckpointMode.REQUIRE_DEFERRED)


def test_in_deferred_mode_other_handlers_get_events_since_the_last_checkpoint_again(
    tracker: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    board, ordinary = Board(), Ordinary(tracker)
    world = World(tracker, board.handle, ordinary.handle, mode=CheckpointMode.DEFERRED).given(3)
    world.until_idle(driver := world.driver())
    assert "after a crash these handlers see events again" in caplog.text
    board.trigger.request(2)
    world.until_idle(driver)
    assert world.stored() == 2
    assert tracker.stores == [2]
    world.until_idle(world.driver())  # the first one has crashed
    assert ordinary.rows == [1, 2, 3, 3]
    assert board.positions == [1, 2, 3, 3]


def test_5_auto_two_participants_reconcile(tracker: Counting) -> None:
    first, second, ordinary = Board(checkpoint=max_of(3)), Board(checkpoint=max_of(5)), Ordinary(tracker)
    world = World(tracker, first.handle, second.handle, ordinary.handle).given(1)
    world.driver().step()
    assert (first.asked(), second.asked(), tracker.stores) == ([1], [1], [1])  # H4: not 5


SCHEDULE = ScheduleRule(FixedDelay(1.0, 1.0))


def test_6a_participants_of_groups_that_do_not_stream_are_refused(tracker: Counting) -> None:
    with pytest.raises(AssemblyError, match=r"OCQ-642.*group 'board' has participants, and.*is scheduled"):
        EventHandlingProcessor(
            0,
            "/",
            True,  # noqa: FBT003 recursive
            InMemoryEventStore(),
            tracker,
            PerSubject(),
            PartitionKeyResolver(1),
            [Board().handle],
            NoRetry(),
            options=ProcessorOptions(schedule=SCHEDULE),
        )


def test_6b_trigger_parameter_without_participant_fails(tracker: Counting) -> None:
    @event_handling(GROUP, types=["*"])
    def handle(raw: Event, trigger: CheckpointTrigger) -> None: ...

    with pytest.raises(HandlerSignatureError, match=r"OCQ-644.*'trigger'.*group 'board' has no participant"):
        World(tracker, handle)


# ------------------------------------------------------------------------------------------------- 7, 8: requests


def test_7_running_regression_ignored(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle).given(6)
    world.until_idle(driver := world.driver())
    board.trigger.request(5)
    world.until_idle(driver)
    board.trigger.request(3)
    world.until_idle(driver)
    assert (board.asked(), tracker.stores, world.stored()) == ([5], [5], 5)


def test_8a_concurrent_requests_collapse(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle).given(9)
    world.until_idle(driver := world.driver())

    def at_first(_: Partition, asked: int) -> int:
        if asked == 5:
            board.trigger.request(8)
            board.trigger.request(3)
        return asked

    board.answers["checkpoint"] = at_first
    board.trigger.request(5)
    world.until_idle(driver)
    assert (board.asked(), tracker.stores) == ([5, 8], [5, 8])


def test_8b_request_from_100_threads(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle).given(100)
    world.until_idle(driver := world.driver())
    order = list(range(1, 101))
    Random(1).shuffle(order)
    with ThreadPoolExecutor(100) as pool:
        requests = [pool.submit(board.trigger.request, position) for position in order]
        while not all(request.done() for request in requests) or driver.processor.has_checkpoint():
            driver.step()
    assert tracker.stores == sorted(set(tracker.stores))
    assert tracker.stores[-1] == world.stored() == 100
    assert len(tracker.stores) <= 100


# --------------------------------------------------------------------------------------------------- 9, 11: replays


def reset(tracker: Any, partitions: int = 1, position: int = 0) -> None:
    with tracker.resetting(Reset(GROUP, position, reset_at="2026-01-01T00:00:00+00:00"), layout(partitions)):
        pass


def test_9a_a_checkpoint_after_the_progress_was_taken_over_is_not_stored(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle).given(5)
    world.until_idle(driver := world.driver())
    (taken,) = tracker.claim(GROUP, layout(1), 0, "another")
    with tracker.unit(GROUP, taken, 3):
        pass
    board.trigger.request()
    world.until_idle(driver)
    assert (world.stored(), tracker.stores) == (3, [3])
    assert driver.over


def replayed(tracker: Counting, events: int = 10) -> tuple[World, Board, Any]:
    """Return a group that has handled events, was reset to the start and claimed again, before its first step."""
    board = Board()
    world = World(tracker, board.handle).given(events)
    driver = world.driver()
    world.until_idle(driver)
    driver.release()
    assert world.stored() == events
    reset(tracker)
    board.calls.clear()
    board.seen.clear()
    tracker.stores.clear()
    return world, board, world.driver()


def test_9b_replay_boundary_progress(tracker: Counting) -> None:
    world, board, driver = replayed(tracker)
    world.until_idle(driver)
    board.trigger.request(6)
    world.until_idle(driver)
    (status,) = tracker.statuses()
    assert (status.position, status.replay.until) == (6, 10)  # H5
    world.until_idle(again := world.driver())
    assert board.replayed == [*range(1, 11), *range(7, 11)]
    again.release()


def test_9c_replay_boundary_concludes(tracker: Counting) -> None:
    world, board, driver = replayed(tracker)
    world.given(1)
    world.until_idle(driver)
    board.trigger.request(10)
    driver.step()
    board.trigger.request(11)
    world.until_idle(driver)
    (status,) = tracker.statuses()
    assert (status.position, status.replay) == (11, None)
    assert board.replayed == [*range(1, 11)]


def test_11a_reset_with_participant(tracker: Counting) -> None:
    board = Board(released=stuck_at(None))
    world = World(tracker, board.handle).given(60)
    world.until_idle(driver := world.driver())
    board.trigger.request(50)
    world.until_idle(driver)
    driver.release()
    assert board.calls[-2:] == [("released", "0/1", 60), ("closed", "0/1")]
    calls = len(board.calls)
    reset(tracker)
    assert len(board.calls) == calls
    driver = world.driver()
    world.until_idle(driver)
    assert board.calls[calls] == ("claimed", "0/1", 0)
    board.trigger.request(10)
    world.until_idle(driver)
    (status,) = tracker.statuses()
    assert (status.position, status.replay.until) == (10, 50)
    board.trigger.request(49)
    world.until_idle(driver)
    assert tracker.statuses()[0].replay is not None
    board.trigger.request(50)
    world.until_idle(driver)
    assert tracker.statuses()[0].replay is None


def test_11b_stale_ack_after_reset(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle).given(50)
    world.until_idle(driver := world.driver())
    driver.release()
    stale = board.trigger
    reset(tracker)
    world.until_idle(driver := world.driver())
    stale.request(50)
    world.until_idle(driver)
    assert world.stored() == 0


# --------------------------------------------------------------------------------------------- 10: split and merge


def repartitioned(tracker: Any, world: World, partitions: int) -> None:
    log = Log(world.processing.hashes_at, world.processing.positions_of)
    tracker.repartition(GROUP, layout(partitions), lambda known: carried_over(known, layout(partitions), log))


def test_10a_split_with_participant(tracker: Counting) -> None:
    board = Board()
    store = World(tracker, board.handle).store
    whole = World(tracker, board.handle, store=store)
    whole.append(*[FIRST, SECOND] * 10)
    whole.until_idle(driver := whole.driver())
    old = board.trigger
    old.request(14)
    whole.until_idle(driver)
    driver.release()
    assert board.calls[-2:] == [("released", "0/1", 20), ("closed", "0/1")]
    repartitioned(tracker, whole, 2)
    halves = World(tracker, board.handle, partitions=2, store=store)
    drivers = halves.claimed()
    halves.until_idle(*drivers)
    assert board.calls[-2:] == [("claimed", "0/2", 20), ("claimed", "1/2", 20)]
    assert len({id(old), *(id(board.triggers[half]) for half in layout(2))}) == 3
    old.request()
    halves.until_idle(*drivers)
    assert board.asked() == [14]
    assert board.positions == [*range(1, 21)]


def test_10b_merge_with_participants(tracker: Counting) -> None:
    board = Board()
    halves = World(tracker, board.handle, partitions=2)
    halves.append(*[FIRST] * 5, *[SECOND] * 5)
    first, second = halves.claimed()
    halves.until_idle(first, second)
    halves.append(*[SECOND] * 5, *[FIRST] * 5)
    halves.until_idle(second)  # the first one stays at 10
    first.release()
    second.release()
    assert halves.stored_of_all() == {"0/2": 10, "1/2": 20}
    assert [call[0] for call in board.calls].count("released") == 2
    repartitioned(tracker, halves, 1)
    whole = World(tracker, board.handle, store=halves.store)
    whole.until_idle(driver := whole.driver())
    assert board.calls[-1] == ("claimed", "0/1", 10)
    assert sorted(board.positions) == [*range(1, 21)]  # those of the second half are not handled again
    board.triggers[ONLY].request()
    whole.until_idle(driver)
    assert whole.stored() == 20


# ------------------------------------------------------------------------------------------------------ 12: LATEST


def test_12a_latest_as_answer(tracker: Counting) -> None:
    board = Board(checkpoint=LATEST_ALWAYS)
    world = World(tracker, board.handle).given(1)
    world.until_idle(driver := world.driver())
    board.trigger.request(1)
    world.until_idle(driver)
    assert (board.asked(), tracker.stores) == ([1], [1])


def test_12b_latest_before_any_event(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle)
    world.until_idle(driver := world.driver())
    board.trigger.request()
    board.trigger.request(LATEST)
    world.given(1)
    world.until_idle(driver)
    assert (board.asked(), tracker.stores) == ([], [])


def test_12c_latest_with_backlog(tracker: Counting) -> None:
    board = Board(checkpoint=LATEST_ALWAYS)
    world = World(tracker, board.handle, batch_size=3).given(9)
    driver = world.driver()
    driver.step()
    board.trigger.request()
    driver.step()
    assert (board.asked(), tracker.stores, world.stored()) == ([3], [3], 3)


# ----------------------------------------------------------------------------------------------------- further cases


def test_deferred_no_request_no_store(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle).given(500)
    world.until_idle(world.driver())
    assert board.positions == [*range(1, 501)]
    assert (board.asked(), tracker.stores) == ([], [])


def test_progress_past_events_of_other_groups_is_stored_if_no_event_waits_for_a_checkpoint(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle, partitions=2)
    world.append(SECOND, SECOND)
    first, second = world.claimed()
    world.until_idle(first, second)
    assert world.stored_of_all() == {"0/2": 2, "1/2": 0}
    world.append(FIRST, SECOND)
    world.until_idle(first)
    assert world.stored_of_all() == {"0/2": 2, "1/2": 0}
    board.triggers[Partition(2, 0)].request()
    world.until_idle(first)
    assert board.asked() == [3]  # the last event that it was given
    assert world.stored_of_all() == {"0/2": 4, "1/2": 0}


def test_leapfrog(tracker: Counting) -> None:
    first = Board(checkpoint=lambda _, asked: {5: 7, 10: 15}[asked])
    second = Board(checkpoint=max_of(10))
    world = World(tracker, first.handle, second.handle).given(20)
    world.until_idle(driver := world.driver())
    first.trigger.request(5)
    world.until_idle(driver)
    assert (first.asked(), second.asked(), tracker.stores) == ([5, 10], [5, 15], [15])


def test_request_during_run_not_lost(tracker: Counting) -> None:
    board = Board()
    board.answers["checkpoint"] = lambda _, asked: (board.trigger.request(6), asked)[1] if asked == 5 else asked
    world = World(tracker, board.handle).given(6)
    world.until_idle(driver := world.driver())
    board.trigger.request(5)
    world.until_idle(driver)
    assert (board.asked(), tracker.stores) == ([5, 6], [5, 6])


def test_request_after_release_ignored(tracker: Counting) -> None:
    board = Board(released=stuck_at(0))
    world = World(tracker, board.handle).given(6)
    world.until_idle(driver := world.driver())
    driver.release()
    calls = len(board.calls)
    board.trigger.request()
    board.trigger.request(4)
    assert not driver.processor.has_checkpoint()
    assert (len(board.calls), tracker.stores) == (calls, [])


def test_a_release_before_the_stored_position_is_ignored(tracker: Counting) -> None:
    board = Board(released=stuck_at(3))
    world = World(tracker, board.handle).given(6)
    world.until_idle(driver := world.driver())
    board.trigger.request(5)
    world.until_idle(driver)
    driver.release()
    assert (world.stored(), tracker.stores) == (5, [5])


@pytest.mark.parametrize("mixed", [False, True])
def test_poison_event_not_skipped_on_release(tracker: Counting, *, mixed: bool) -> None:  # H1
    board, ordinary = Board(checkpoint=LATEST_ALWAYS, released=LATEST_ALWAYS), Ordinary(tracker)
    definitions = [board.handle, ordinary.handle] if mixed else [board.handle]
    world = World(tracker, *definitions, batch_size=5 if mixed else 9).given(9)
    (ordinary if mixed else board).before[7] = raising(OSError("poison"))
    driver = world.driver()
    driver.step()
    driver.step()
    board.trigger.request()
    driver.step()
    assert driver.supervised.state is ProcessorState.BACKING_OFF
    driver.release()
    assert world.stored() == 6
    (ordinary if mixed else board).before.clear()
    world.until_idle(world.driver())
    assert sorted(set(board.positions)) == [*range(1, 10)]
    assert board.positions[-3:] == [7, 8, 9]
    if mixed:
        once = ordinary.rows if tracker.database else sorted(set(ordinary.rows))
        assert once == [*range(1, 10)]


def test_request_beyond_handled_rejected(tracker: Counting) -> None:  # H3
    board = Board()
    world = World(tracker, board.handle)
    world.until_idle(driver := world.driver())
    with pytest.raises(Exception, match="OCQ-647"):
        board.trigger.request(5)
    world.until_idle(driver)
    assert (board.asked(), tracker.stores) == ([], [])


def test_participant_timeout(tracker: Counting) -> None:  # H7
    ended = Signal()
    board = Board(checkpoint=lambda *_: ended.wait(60))
    world = World(tracker, board.handle, Ordinary(tracker).handle, timeout=0.5).given(1)
    driver = world.driver()
    opened: list[None] = []
    tracker.unit = lambda *_a, **_k: opened.append(None)  # type: ignore[method-assign]
    driver.step()
    assert opened == []  # no transaction while it waits
    assert failures(world.seen) == ["OCQ-646"]
    assert "it has not returned within" in driver.supervised.status().error
    del tracker.unit
    world.clock.advance(1)
    driver.step()  # its call still has not returned: it is not called again
    assert failures(world.seen)[-1] in ("OCQ-645", "OCQ-646")
    assert "an earlier call has not returned" in driver.supervised.status().error
    ended.set()


def test_a_participant_gets_a_partition_again_only_after_it_returned_and_discarded_it(tracker: Counting) -> None:
    @checkpointing(GROUP)
    class WithoutClaim(Board):
        on_partition_claimed = CheckpointParticipant.on_partition_claimed

    ended, slow = Signal(), [True]

    def at_first(_: Partition, asked: int) -> int:
        if slow:
            slow.clear()
            ended.wait(60)
        return asked

    board = WithoutClaim(checkpoint=at_first)
    world = World(tracker, board.handle, Ordinary(tracker).handle, timeout=0.5).given(2)
    driver = world.driver()
    driver.step()
    given = board.positions
    world.clock.advance(1)
    driver.step()
    assert failures(world.seen) == ["OCQ-646", "OCQ-645"]
    assert board.positions == given  # no event in parallel to the call that has not returned
    assert [call[0] for call in board.calls] == ["checkpoint"]
    ended.set()
    until = time.monotonic() + 60
    while len(board.calls) < 3 and time.monotonic() < until:
        world.clock.advance(60)
        driver.step()
    assert [call[0] for call in board.calls[:3]] == ["checkpoint", "closed", "checkpoint"]
    assert board.positions[: 2 * len(given)] == given * 2


def test_claim_exception_isolated(tracker: Counting) -> None:  # H9
    def rejects(partition: Partition, resume_at: int) -> int:
        if partition.residue == 1:
            raise OSError("no room")
        return resume_at

    board = Board(claimed=rejects)
    world = World(tracker, board.handle, partitions=2)
    world.append(*[FIRST, SECOND] * 5)
    first, second = world.claimed()
    waits = []
    for _ in range(7):
        second.step()
        waits.append(second.wait())
        world.clock.advance(second.wait())
    world.until_idle(first)
    assert waits == [1, 2, 4, 8, 16, 32, 60]
    assert board.positions == [1, 3, 5, 7, 9]
    assert second.supervised.state is ProcessorState.FAILED
    assert first.supervised.state is ProcessorState.RUNNING
    board.answers.clear()
    world.until_idle(second)
    assert sorted(board.positions) == [*range(1, 11)]
    assert [notice.action for notice in world.seen.notices][-2:] == [Action.CLAIM, None]


def test_one_stuck_participant_does_not_stop_all_progress(tracker: Counting) -> None:  # H6
    board, slow = Board(checkpoint=LATEST_ALWAYS), Board(checkpoint=lambda _, asked: min(asked, 5))
    world = World(tracker, board.handle, slow.handle).given(9)
    world.until_idle(driver := world.driver())
    board.trigger.request(5)
    driver.step()
    assert (world.stored(), failures(world.seen)) == (5, [])
    board.trigger.request(9)
    driver.step()
    assert (world.stored(), failures(world.seen)) == (5, ["OCQ-646"])


# -------------------------------------------------------------------------------------------- failures and crashes


def test_events_before_a_failing_one_are_handled_once(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle, batch_size=9).given(9)
    board.before[5] = raising(OSError("not now"))
    driver = world.driver()
    driver.step()
    assert board.positions == [1, 2, 3, 4]
    board.trigger.request()  # while the event backs off
    assert driver.wait() == 0
    driver.step()
    assert (world.stored(), driver.wait()) == (4, 1.0)
    assert driver.supervised.state is ProcessorState.BACKING_OFF
    board.before.clear()
    world.until_idle(driver)
    assert board.positions == [*range(1, 10)]


@pytest.mark.parametrize("error", [ConnectionError("away"), PermissionError("denied")])
def test_a_checkpoint_that_cannot_be_stored_is_retried_after_a_wait(tracker: Counting, error: Exception) -> None:
    board = Board()
    world = World(tracker, board.handle).given(3)
    world.until_idle(driver := world.driver())
    board.trigger.request()
    with unavailable(tracker, error):
        for _ in range(3):
            driver.step()
            assert driver.wait() > 0
            assert not driver.processor.has_checkpoint()
            world.clock.advance(driver.wait())
    driver.step()
    assert (world.stored(), len(failures(world.seen))) == (3, 3)


def test_a_checkpoint_is_made_while_the_log_cannot_be_read(tracker: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board()
    world = World(tracker, board.handle).given(3)
    world.until_idle(driver := world.driver())
    world.given(1)
    monkeypatch.setattr(world.store, "read", raising(ValueError("no events")))
    driver.step()
    assert driver.wait() > 0
    board.trigger.request()
    assert driver.wait() == 0
    driver.step()
    assert (world.stored(), driver.supervised.state) == (3, ProcessorState.FAILED)


@pytest.mark.parametrize(
    ("error", "state"),
    [(NonTransientError("never"), ProcessorState.FAILED), (OSError("not now"), ProcessorState.BACKING_OFF)],
)
def test_a_checkpoint_while_an_event_fails_leaves_the_failure_in_the_status(
    tracker: Counting, monkeypatch: pytest.MonkeyPatch, error: Exception, state: ProcessorState
) -> None:
    board = Board()
    world = World(tracker, board.handle, on_exhausted=OnExhausted.STOP, back_off=FixedBackOff(30.0)).given(9)
    board.before[5] = raising(error)
    driver = world.driver()
    driver.step()
    (before,) = tracker.statuses()
    world.clock.advance(2)
    board.trigger.request()
    published: list[ProcessorState] = []
    report = world.tracker.report
    monkeypatch.setattr(
        tracker, "report", lambda status, epoch: (published.append(status.state), report(status, epoch))
    )
    driver.step()
    (after,) = tracker.statuses()
    assert published == [state]  # at no time another one
    assert (after.state, after.position, after.checkpoint.handled) == (state, 4, 4)
    assert str(error) in after.error
    assert (after.attempt, after.error, after.next_attempt_at) == (1, before.error, before.next_attempt_at)
    assert after.checkpoint.at.startswith("2026-01-01T00:00:02")


def test_an_event_is_skipped_only_after_those_before_it_are_confirmed(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle, batch_size=9, back_off=NoRetry()).given(9)
    board.before[5] = raising(OSError("never"))
    world.until_idle(driver := world.driver())
    assert board.positions == [1, 2, 3, 4, 6, 7, 8, 9]
    assert (board.asked(), tracker.stores, world.stored()) == ([4], [4, 5], 5)
    assert [skip.position for skip in tracker.skipped()] == [5]
    assert driver.supervised.skipped == 1


def test_an_event_is_not_skipped_until_participants_confirm_those_before_it(tracker: Counting) -> None:
    board = Board(checkpoint=stuck_at(0))
    world = World(tracker, board.handle, batch_size=9, back_off=NoRetry()).given(9)
    board.before[5] = raising(OSError("never"))
    world.until_idle(world.driver())
    assert (world.stored(), tracker.skipped()) == (0, [])
    assert "OCQ-646" in failures(world.seen)
    board.answers.clear()
    world.until_idle(world.driver())
    assert world.stored() == 5


def test_a_failed_partition_still_releases_its_participants(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle, on_exhausted=OnExhausted.STOP, batch_size=9).given(9)
    board.before[5] = raising(NonTransientError("never"))
    world.until_idle(driver := world.driver())
    assert driver.supervised.state is ProcessorState.FAILED
    driver.release()
    assert board.calls[-2:] == [("released", "0/1", 4), ("closed", "0/1")]
    assert world.stored() == 4


@pytest.mark.parametrize("why", ["its flush fails", "its flush is too little", "an outage"])
def test_a_failed_partition_still_reports_its_event_whatever_its_release_results_in(
    tracker: Counting, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    released = {"its flush fails": raising(OSError("disk full")), "its flush is too little": lambda _, _up_to: 2}
    board = Board(**({"released": released[why]} if why in released else {}))
    world = World(tracker, board.handle, on_exhausted=OnExhausted.STOP, batch_size=9).given(9)
    board.before[5] = raising(NonTransientError("never"))
    world.until_idle(driver := world.driver())
    if why == "an outage":
        monkeypatch.setattr(tracker, "renewed", raising(ConnectionError("away")))
        monkeypatch.setattr(tracker, "is_outage", lambda error: isinstance(error, ConnectionError))
    driver.release()
    (status,) = world.tracker.statuses()
    assert status.state is ProcessorState.FAILED
    assert status.error.startswith("NonTransientError: never")
    assert driver.supervised.failed_at_end() is not None


def test_after_a_crash_events_since_the_last_checkpoint_are_handled_again(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle).given(9)
    world.until_idle(driver := world.driver())
    board.trigger.request(4)
    world.until_idle(driver)
    after = Board()
    world = World(tracker, after.handle, store=world.store)
    world.until_idle(world.driver())
    assert after.asked("claimed") == [4]
    assert after.positions == [5, 6, 7, 8, 9]


def test_a_claim_closes_the_previous_claim_of_the_same_process_once(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle).given(3)
    world.until_idle(first := world.driver())
    world.until_idle(second := world.driver())
    first.step()
    first.release()
    assert board.calls == [("claimed", "0/1", 0), ("closed", "0/1"), ("claimed", "0/1", 0)]
    second.release()
    assert board.calls[3:] == [("released", "0/1", 3), ("closed", "0/1")]


def test_a_partition_taken_over_is_closed_and_not_flushed(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle).given(3)
    world.until_idle(driver := world.driver())
    tracker.claim(GROUP, layout(1), 0, "another")
    world.clock.advance(2)
    world.given(1)
    world.until_idle(driver)
    assert driver.over  # although nothing was stored meanwhile
    driver.release()
    assert board.calls == [("claimed", "0/1", 0), ("closed", "0/1")]
    assert tracker.stores == []


def test_a_release_before_a_takeover_is_noticed_closes_the_partition_without_a_flush(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle).given(3)
    world.until_idle(driver := world.driver())
    tracker.claim(GROUP, layout(1), 0, "another")  # while this process was frozen, for example
    driver.release()
    assert board.calls == [("claimed", "0/1", 0), ("closed", "0/1")]
    assert (tracker.stores, failures(world.seen)) == ([], [])


@pytest.mark.parametrize("noticed", [False, True])
def test_a_release_in_an_outage_flushes_nothing_and_events_are_handled_again(
    tracker: Counting, caplog: pytest.LogCaptureFixture, *, noticed: bool
) -> None:
    board = Board()
    world = World(tracker, board.handle).given(3)
    world.until_idle(driver := world.driver())
    with unavailable(tracker, ConnectionError("away")):
        if noticed:
            driver.supervised.doubt()
        driver.release()
    assert board.calls == [("claimed", "0/1", 0), ("closed", "0/1")]
    assert "ConnectionError: away" in caplog.text
    assert tracker.statuses()[0].state is ProcessorState.STOPPED
    assert driver.supervised.failed_at_end() is not None  # so a run until caught up ends with 1
    world.until_idle(world.driver())
    assert board.positions == [1, 2, 3, 1, 2, 3]


def test_no_checkpoint_is_made_after_a_pause_during_which_the_partition_was_taken_over(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle).given(3)
    world.until_idle(driver := world.driver())
    tracker.claim(GROUP, layout(1), 0, "another")
    board.trigger.request()
    world.clock.advance(2)
    driver.step()
    assert driver.over
    assert board.asked() == []


def test_no_checkpoint_is_made_after_a_pause_while_an_outage_hides_a_takeover(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle).given(3)
    world.until_idle(driver := world.driver())
    board.trigger.request()
    world.clock.advance(2)
    with unavailable(tracker, ConnectionError("away")):
        driver.step()
        assert (board.asked(), driver.supervised.state) == ([], ProcessorState.WAITING)
    world.until_idle(driver)
    assert (board.asked(), world.stored()) == ([3], 3)


def test_the_positions_of_participants_are_published(tracker: Counting) -> None:
    board = Board()
    world = World(tracker, board.handle, batch_size=4).given(9)
    driver = world.driver()
    driver.step()
    board.trigger.request(3)
    driver.step()
    world.clock.advance(2)
    driver.step()
    (status,) = tracker.statuses()
    assert (status.position, status.checkpoint.polled, status.checkpoint.handled) == (3, 8, 8)
    assert status.checkpoint.mode == "deferred"
    assert status.checkpoint.at.startswith("2026-01-01T00:00:00")
    assert status.updated_at.startswith("2026-01-01T00:00:02")  # its events are handled, though not stored


def test_a_group_without_participants_shows_no_participant_positions(tracker: Counting) -> None:
    ordinary = Ordinary(tracker)
    world = World(tracker, ordinary.handle).given(1)
    world.until_idle(driver := world.driver())
    driver.release()
    assert tracker.statuses()[0].checkpoint is None

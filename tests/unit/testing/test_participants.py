"""HandlerTest with participants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from opencqrs_py import (
    CheckpointParticipant,
    CheckpointTrigger,
    Event,
    FixedBackOff,
    NoRetry,
    ProcessingContext,
    checkpointing,
    event_handling,
)
from opencqrs_py.errors import AssemblyError, CheckpointError
from opencqrs_py.testing import HandlerTest

ONE = {"type": "moved"}


@checkpointing("board")
class Board(CheckpointParticipant):
    """A participant that keeps its events in memory until a checkpoint."""

    durable: list[int] = []  # noqa: RUF012 of all instances, as a disk is
    fails = False
    made: list[Board] = []  # noqa: RUF012 likewise

    def __init__(self) -> None:
        self.memory: list[int] = []
        self.closed = 0
        Board.made.append(self)

    @event_handling(types=["moved", "poison", "save"])
    def move(self, event: Event, context: ProcessingContext, trigger: CheckpointTrigger) -> None:
        if event.type == "poison":
            raise LookupError("poison")
        self.memory.append(context.position)
        if event.type == "save":
            trigger.request()

    def on_checkpoint(self, partition: Any, requested: int) -> int:
        del partition
        if Board.fails:
            raise OSError("disk full")
        Board.durable += self.memory
        self.memory = []
        return requested

    def on_partition_closed(self, partition: Any) -> None:
        del partition
        self.closed += 1


@event_handling("board", types=["*"])
def count(event: Event) -> None:
    """Do nothing, in the transaction."""


@pytest.fixture(autouse=True)
def empty() -> None:
    Board.durable, Board.made, Board.fails = [], [], False


def test_a_request_is_met_by_the_next_handle() -> None:
    test = HandlerTest(Board).given(ONE, ONE, ONE).handle().expect_progress(0)
    test.request(2).handle().expect_progress(2)
    assert Board.durable == [1, 2, 3]


def test_a_handler_may_request_a_checkpoint() -> None:
    HandlerTest(Board).given(ONE, {"type": "save"}).handle().expect_progress(2)


def test_restart_releases_and_crash_does_not() -> None:
    test = HandlerTest(Board).given(ONE, ONE).handle().restart().expect_progress(2)
    test.given(ONE).handle().crash().expect_progress(2)
    test.handle().expect_progress(2)
    before, after = Board.made
    assert (before.memory, after.memory, after.closed) == ([3], [3], 0)
    test.restart().expect_progress(3)
    assert Board.durable == [1, 2, 3]


def test_an_event_counts_as_tried_once_a_participants_handler_was_called() -> None:
    test = HandlerTest(Board).given(ONE, {"type": "other"}).handle().expect_progress(0)
    test.expect_attempts(1, 1).expect_attempts(2, 0)
    test.request().handle().expect_attempts(1, 1).expect_progress(2)
    test.given(ONE).handle().crash().expect_attempts(3, 1)


def test_attempts_of_a_participants_handler_are_counted_before_the_checkpoint() -> None:
    @checkpointing("once")
    class Once(CheckpointParticipant):
        @event_handling(types=["moved"])
        def move(self, event: Event, context: ProcessingContext) -> None:
            if context.attempt == 1:
                raise LookupError("at first")

        def on_checkpoint(self, partition: Any, requested: int) -> int:
            return requested

    HandlerTest(Once, retry=FixedBackOff(1)).given(ONE).handle().expect_progress(0).expect_attempts(1, 2)


def test_an_error_of_a_participants_handler_is_raised() -> None:
    test = HandlerTest(Board).given(ONE, {"type": "poison"})
    with pytest.raises(LookupError, match="poison"):
        test.handle()


def test_a_failed_checkpoint_fails_the_test() -> None:
    test = HandlerTest(Board).given(ONE).handle().request()
    Board.fails = True
    with pytest.raises(AssertionError, match=r"OCQ-646.*disk full"):
        test.handle()


@pytest.mark.parametrize("stop", [HandlerTest.restart, HandlerTest.reset, HandlerTest.close])
def test_a_flush_that_fails_during_a_stop_fails_the_test(stop: Callable[[HandlerTest], Any]) -> None:
    test = HandlerTest(Board).given(ONE).handle()
    Board.fails = True
    with pytest.raises(AssertionError, match=r"OCQ-646.*disk full"):
        stop(test)
    test.close()


@pytest.mark.parametrize("stop", [HandlerTest.restart, HandlerTest.reset, HandlerTest.close])
def test_with_a_retry_a_failed_flush_does_not_prevent_the_stop(stop: Callable[[HandlerTest], Any]) -> None:
    test = HandlerTest(Board, retry=NoRetry()).given(ONE).handle()
    Board.fails = True
    stop(test)
    test.expect_log("OCQ-646").expect_progress(0)


def test_after_a_failed_flush_events_are_delivered_again_and_a_reset_succeeds() -> None:
    test = HandlerTest(Board).given(ONE).handle()
    Board.fails = True
    with pytest.raises(AssertionError, match="disk full"):
        test.reset()
    Board.fails = False
    test.reset().handle().restart().expect_progress(1)
    assert Board.durable == [1, 1]


def test_with_a_retry_the_partition_restarts_after_a_failed_checkpoint() -> None:
    test = HandlerTest(Board, retry=NoRetry()).given(ONE).handle().request()
    Board.fails = True
    test.handle(seconds=0)
    Board.fails = False
    test.handle().restart().expect_progress(1).expect_log("OCQ-646", "recovered")


@checkpointing("unclaimed")
class Unclaimed(CheckpointParticipant):
    claimed = 0

    @event_handling(types=["moved"])
    def move(self, event: Event) -> None:
        raise LookupError("poison")

    def on_partition_claimed(self, partition: Any, resume_at: int, trigger: CheckpointTrigger) -> None:
        Unclaimed.claimed += 1
        if Unclaimed.claimed > 1:
            raise OSError("no disk")

    def on_checkpoint(self, partition: Any, requested: int) -> int:
        return requested


def test_a_partition_may_fail_with_an_error_that_no_handler_raised() -> None:
    Unclaimed.claimed = 0
    test = HandlerTest(Unclaimed, retry=NoRetry()).given(ONE).handle().restart().handle()
    test.expect_failed(CheckpointError).expect_failed()
    assert test.error is None
    with pytest.raises(AssertionError, match=r"expected: 'LookupError'\n  found:    'CheckpointError'"):
        test.expect_failed(LookupError)


def test_the_checkpointing_mode_can_be_set() -> None:
    HandlerTest(Board, count).given(ONE).handle().expect_progress(1)
    HandlerTest(Board, count, checkpointing="deferred").given(ONE).handle().expect_progress(0)
    with pytest.raises(AssemblyError, match="OCQ-643"):
        HandlerTest(Board, count, checkpointing="require-deferred")


def test_without_a_participant_no_checkpoint_can_be_requested() -> None:
    with pytest.raises(ValueError, match="no participant of group 'board' has partition 0/1"):
        HandlerTest(count).given(ONE).handle().request()
    with pytest.raises(ValueError, match="no participant"):
        HandlerTest(Board).request()


def test_a_request_beyond_the_given_events_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="OCQ-647"):
        HandlerTest(Board).given(ONE).handle().request(7)


@checkpointing("mail")
class Outbox(CheckpointParticipant):
    """A participant that starts sending in the handler, and awaits it at a checkpoint."""

    def __init__(self) -> None:
        self.sending: list[asyncio.Task[None]] = []
        self.sent: list[str] = []

    @event_handling(types=["moved"])
    async def send(self, event: Event) -> None:
        self.sending.append(asyncio.create_task(self.deliver(event.id)))

    async def deliver(self, event_id: str) -> None:
        await asyncio.sleep(0)
        self.sent.append(event_id)

    async def on_checkpoint(self, partition: Any, requested: int) -> int:
        del partition
        await asyncio.gather(*self.sending)
        assert len(self.sent) == len(self.sending)
        return requested


def test_a_checkpoint_may_await_tasks_that_a_handler_has_started() -> None:
    HandlerTest(Outbox).given(ONE, ONE).handle().request().handle().expect_progress(2)

"""Hanging handler calls: they are warned of, their threads abandoned, and their partitions continue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from threading import Event as Signal
from typing import Any

import pytest
from support.observers import Watching

from opencqrs_py import AfterCommit, Event
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.control.records import GroupPartition
from opencqrs_py.engines import driver as driving
from opencqrs_py.engines.call_watching import CallWatcher
from opencqrs_py.engines.driver import PartitionDriver
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.spark.jobs import timed_out_call
from opencqrs_py.engines.spark.turns import PartitionsInTurn, TaskTimedOutError, TimedOut, Turns, timed_out_of
from opencqrs_py.engines.thread import ThreadEngine
from opencqrs_py.engines.thread import engine as thread_engine
from opencqrs_py.errors import EngineLostError
from opencqrs_py.model import (
    Cursor,
    Failure,
    Handler,
    HandlerMark,
    Origin,
    Outcome,
    Partition,
    PartitionStatus,
    ProcessorState,
    layout,
)
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.binding import NothingProvided, bind
from opencqrs_py.processing.calls import CallLimits
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.notices import line_of
from opencqrs_py.processing.recovery import Action, FixedBackOff
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.testing import FakeClock

SECONDS = 60  # longest wait for another thread
ONE = Partition(1, 0)
SOON = CallLimits(timeout=0.1)


class Tracker(InMemoryProgressTracker):
    """Progress in a database that may be unavailable until some claims have failed."""

    failing_claims = 0

    def claim(self, *args: Any, **kwargs: Any) -> tuple[Cursor, ...]:
        self._reach()
        return super().claim(*args, **kwargs)

    def statuses(self) -> list[PartitionStatus]:
        self._reach(0)
        return super().statuses()

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)

    def _reach(self, fewer: int = 1) -> None:
        if self.failing_claims:
            self.failing_claims -= fewer
            raise ConnectionError("it cannot be reached")


class Group:
    """A group whose handler hangs at some events, as often as configured, until the test ends."""

    def __init__(self, events: int = 4) -> None:
        self.store, self.tracker = InMemoryEventStore(), Tracker()
        self.store.append(Event(0, f"id {n}", "s", "/a", "t", None, None, "{}", None) for n in range(1, events + 1))
        self.hangs: dict[int, int] = {}
        self.over, self.returned = Signal(), Signal()
        self.hung = 0  # calls
        self.clock = FakeClock()
        self.handled: list[int] = []
        self.lists: list[list[int]] = []
        self.repeats = 1  # of an attempt

        def handle(raw: Event) -> None:
            self.hang_if_due(raw.position)
            self.handled.append(raw.position)

        self.handler: Callable[..., None] = handle

    def hang_if_due(self, position: int) -> None:
        if self.hangs.get(position, 0):
            self.hangs[position] -= 1
            self.hung += 1
            assert self.over.wait(SECONDS)
            self.returned.set()
            raise ValueError("too late")

    def run(self, limits: CallLimits, batch_size: int = 1) -> GroupRun:
        handler = bind(Handler(HandlerMark("group", types=("t",)), self.handler, "handlers.py:7"), NothingProvided())
        processing = GroupProcessing(
            "group",
            self.store,
            self.tracker,
            Dispatcher([handler], []),
            subject="/",
            recursive=True,
            sequencing=SequencingByEvent(PerSubject()),
            partitions=1,
            batch_size=batch_size,
            limits=limits,
        )
        return GroupRun(processing, layout(1), lambda: 0, FixedBackOff(0, self.repeats), OnExhausted.SKIP)


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    made.over.set()


@pytest.fixture
def start(group: Group) -> Iterator[Callable[..., tuple[ThreadEngine, Watching]]]:
    engines: list[ThreadEngine] = []

    def started(limits: CallLimits, batch_size: int = 1, at_once: int | None = None) -> tuple[ThreadEngine, Watching]:
        watching = Watching()
        run = replace(group.run(limits, batch_size), most_at_once=at_once)
        engines.append(ThreadEngine([run], "me", watching, group.clock))
        engines[-1].assign("group", layout(1))
        engines[-1].start()
        return engines[-1], watching

    yield started
    group.over.set()
    for engine in engines:
        engine.stop(SECONDS)


Start = Callable[..., tuple[ThreadEngine, Watching]]


def wait_for(group: Group, watching: Watching, condition: Callable[[], object]) -> None:
    """Wait for a condition. Time passes only while a call hangs, so no other call is abandoned on a slow machine."""

    def holds() -> bool:
        timeouts = [each for each in watching.notices if each.failure and each.failure.code == "OCQ-229"]
        if group.hung > len(timeouts):
            group.clock.advance(1)
        return bool(condition())

    watching.wait_for(holds)


def test_a_call_that_hangs_uses_an_attempt_and_the_event_is_tried_again(group: Group, start: Start) -> None:
    group.hangs = {2: 1}
    engine, watching = start(SOON)
    wait_for(group, watching, lambda: group.handled == [1, 2, 3, 4])
    retries = [notice for notice in watching.notices if notice.action is Action.RETRY]
    assert [(notice.attempt, notice.failure.code) for notice in retries if notice.failure] == [(1, "OCQ-229")]
    assert retries[0].failure is not None
    assert retries[0].failure.position == 2
    assert "self.over.wait(SECONDS)" in retries[0].failure.traceback
    engine.check()
    assert engine.assigned() == [GroupPartition("group", ONE)]
    assert watching.moments == [
        ("claimed", "group", "0/1", 0),
        ("stopped", "group", "0/1"),
        ("claimed", "group", "0/1", 1),
    ]


def test_a_call_that_hangs_in_an_outage_is_tried_again_after_the_outage(
    group: Group, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "OUTAGE_BACK_OFF", FixedBackOff(0))
    group.hangs = {2: 1}

    def handle(raw: Event) -> None:
        group.tracker.failing_claims = 2 * group.hangs.get(raw.position, 0)
        group.hang_if_due(raw.position)
        group.handled.append(raw.position)

    def continued() -> bool:
        engine.check()
        return group.handled == [1, 2, 3, 4]

    group.handler = handle
    engine, watching = start(SOON)
    wait_for(group, watching, continued)
    assert [notice.action for notice in watching.notices] == [Action.WAIT, Action.WAIT, Action.RETRY, None]
    assert watching.notices[2].attempt == 1


def hanging_in_outage(group: Group, start: Start, monkeypatch: pytest.MonkeyPatch) -> tuple[ThreadEngine, Watching]:
    """Start an engine whose second event hangs, and wait until its partition cannot be claimed again."""
    monkeypatch.setattr(driving, "OUTAGE_BACK_OFF", FixedBackOff(0.01))
    group.hangs = {2: 1}

    def handle(raw: Event) -> None:
        group.tracker.failing_claims = 10**9 * group.hangs.get(raw.position, 0)
        group.hang_if_due(raw.position)
        group.handled.append(raw.position)

    group.handler = handle
    engine, watching = start(SOON)
    wait_for(group, watching, lambda: [notice for notice in watching.notices if notice.action is Action.WAIT])
    return engine, watching


def test_a_partition_released_during_an_outage_is_not_claimed_again(
    group: Group, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = hanging_in_outage(group, start, monkeypatch)
    engine.release("group", [ONE], SECONDS)
    group.tracker.failing_claims = 0
    (others,) = group.tracker.claim("group", [ONE], 0, "another node")
    group.over.set()
    engine.stop(SECONDS)
    assert group.tracker.renewed("group", others) is not None


@pytest.mark.parametrize("end", ["release", "stop"])
def test_a_partition_released_while_its_call_hangs_in_an_outage_can_be_assigned_again(
    group: Group, start: Start, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    engine, watching = hanging_in_outage(group, start, monkeypatch)
    if end == "stop":
        engine.stop(SECONDS)
    else:
        engine.release("group", [ONE], SECONDS)
    group.tracker.failing_claims = 0
    assert engine.assigned() == []
    assert watching.moments == [("claimed", "group", "0/1", 0), ("stopped", "group", "0/1")]
    (status,) = group.tracker.statuses()
    assert status.state is ProcessorState.STOPPED
    assert status.error.startswith("[OCQ-229] HandlerTimeoutError")
    if end == "release":
        engine.assign("group", [ONE])
        wait_for(group, watching, lambda: group.handled == [1, 2, 3, 4])


def test_events_handled_and_skipped_before_a_call_hung_are_counted(group: Group, start: Start) -> None:
    group.hangs = {3: 1}

    def handle(raw: Event) -> None:
        group.hang_if_due(raw.position)
        if raw.position == 2:
            raise ValueError(raw.id)
        group.handled.append(raw.position)

    group.handler = handle
    engine, watching = start(SOON)
    wait_for(group, watching, lambda: group.handled == [1, 3, 4])
    (partition,) = engine.partitions()
    watching.wait_for(lambda: partition.cursor.stored == 4)
    assert (partition.handled, partition.skipped) == (3, 1)


def test_a_call_that_hangs_does_not_count_towards_the_limit_of_concurrent_calls(group: Group, start: Start) -> None:
    group.hangs = {2: 1}
    _, watching = start(SOON, at_once=1)
    wait_for(group, watching, lambda: group.handled == [1, 2, 3, 4])


def test_an_event_whose_calls_keep_hanging_exhausts_its_attempts(group: Group, start: Start) -> None:
    group.hangs = {2: 9}
    _, watching = start(SOON)
    wait_for(group, watching, lambda: group.handled == [1, 3, 4])
    (skip,) = group.tracker.skipped()
    assert (skip.position, skip.attempts) == (2, 2)
    assert skip.reason.startswith("[OCQ-229] HandlerTimeoutError: the handler has not returned for ")


def test_a_hung_thread_that_finally_returns_has_no_effect(group: Group, start: Start) -> None:
    group.hangs = {2: 1}
    engine, watching = start(SOON)
    wait_for(group, watching, lambda: group.handled == [1, 2, 3, 4])
    before = len(watching.told)
    group.over.set()
    assert group.returned.wait(SECONDS)
    engine.stop(SECONDS)
    assert [each for each in watching.told[before:] if each[0] == "noticed"] == []
    assert [(p.state, p.cursor.stored) for p in engine.partitions()] == [(ProcessorState.STOPPED, 4)]
    assert group.handled == [1, 2, 3, 4]


def test_each_event_of_a_list_that_hangs_is_tried_alone(group: Group, start: Start) -> None:
    def handle(raw: list[Event]) -> None:
        group.lists.append([each.position for each in raw])
        for each in raw:
            group.hang_if_due(each.position)

    group.handler, group.hangs = handle, {3: 9}
    _, watching = start(SOON, 10)
    wait_for(group, watching, lambda: group.lists[-1:] == [[4]])
    assert [each.position for each in group.tracker.skipped()] == [3]
    assert group.lists[0] == [1, 2, 3, 4]
    assert group.lists[1:3] == [[1], [2]]
    first, *others = [notice for notice in watching.notices if notice.failure is not None]
    assert line_of(first).startswith("[group 0/1] could not continue at one of 4 events, from event id 1 at position 1")
    assert line_of(first).endswith("no attempt is used, and each of its events is handled alone next")
    assert [(notice.action, notice.attempt) for notice in others] == [(Action.RETRY, 1), (Action.SKIP, 2)]
    assert {notice.failure.position for notice in others if notice.failure} == {3}


@pytest.mark.parametrize(
    ("participates", "before", "isolated"), [(False, 1_000, 3), (True, 0, 3), (True, 2, 5), (True, 1_000_000, 3 + 49)]
)
def test_participants_handle_only_the_repeated_events_alone(
    group: Group, before: int, isolated: int, *, participates: bool
) -> None:
    """The events handled since the claim are not the limit: a claim may last for days, with many checkpoints."""
    (cursor,) = group.tracker.claim("group", layout(1), 0, "me")
    cursor = replace(cursor, stored=100, position=100)
    driver = PartitionDriver(group.run(SOON), cursor, group.clock, Watching())
    driver._participates = participates
    failure = Failure(Origin.HANDLER, permanent=False, error="HandlerTimeoutError", message="hangs", position=150)
    driver.settle_timeout(failure, 3, before, parked=False, sequence_id="")
    assert driver.cursor.isolate == isolated


def test_an_event_of_a_list_that_hangs_is_tried_alone_before_it_is_abandoned(group: Group, start: Start) -> None:
    """Otherwise, without retries, the first event of the list would be lost instead of the one that hangs."""

    def handle(raw: list[Event]) -> None:
        for each in raw:
            group.hang_if_due(each.position)
        group.handled.extend(each.position for each in raw)

    group.handler, group.hangs, group.repeats = handle, {3: 2}, 0
    _, watching = start(SOON, 10)
    wait_for(group, watching, lambda: group.handled == [1, 2, 4])
    assert [each.position for each in group.tracker.skipped()] == [3]


def test_a_stop_does_not_wait_for_an_abandoned_thread(group: Group, start: Start) -> None:
    group.hangs = {4: 1}
    engine, watching = start(SOON)
    wait_for(group, watching, lambda: group.handled == [1, 2, 3, 4])
    engine.stop(SECONDS)
    assert not group.returned.is_set()


def test_too_many_hanging_threads_end_the_engine(group: Group, start: Start, monkeypatch: Any) -> None:
    monkeypatch.setattr(thread_engine, "MOST_HANGING", 0)
    group.hangs = {2: 1}
    engine, watching = start(SOON)
    wait_for(group, watching, lambda: group.handled == [1, 2, 3, 4])
    with pytest.raises(EngineLostError, match=r"OCQ-415.* 1 threads hang"):
        engine.check()


def test_a_slow_call_is_logged_with_its_stack(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    def handle(raw: Event) -> None:
        if raw.position == 1:
            watcher.look()
            group.clock.advance(31)
            watcher.look()

    group.handler = handle
    processor = group.run(CallLimits(warn_after=30)).processing.processor(ONE)
    watcher = CallWatcher(lambda: [processor], [processor.limits], _unexpected, group.clock)
    (cursor,) = group.tracker.claim("group", layout(1), 0, "me")
    with caplog.at_level(logging.WARNING, "opencqrs.processing"):
        assert processor.step(cursor).failure is None
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "[group 0/1] event id 1 at position 1 (t, /a) has been with its handler for 31 s\n"
    )
    assert "watcher.look()" in record.getMessage()
    said = vars(record)
    assert (said["action"], said["group"], said["partition"], said["position"], said["attempt"]) == (
        "slow",
        "group",
        "0/1",
        1,
        1,
    )


def test_slow_calls_after_the_commit_are_logged_and_never_abandoned(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    def ring() -> None:
        for seconds in (0, 31, 1_000):
            group.clock.advance(seconds)
            watcher.look()

    def handle(raw: Event, after_commit: AfterCommit) -> None:
        watcher.look()
        if raw.position == 1:
            after_commit(ring)

    group.handler = handle
    processor = group.run(CallLimits(warn_after=30, timeout=60)).processing.processor(ONE)
    watcher = CallWatcher(lambda: [processor], [processor.limits], _unexpected, group.clock)
    (cursor,) = group.tracker.claim("group", layout(1), 0, "me")
    with caplog.at_level(logging.WARNING, "opencqrs.processing"):
        done = processor.step(cursor)
        assert processor.step(done.cursor).failure is None
    assert [message.partition("\n")[0] for message in caplog.messages] == [
        f"[group 0/1] the calls after the commit of event id 1 at position 1 (t, /a) have not returned for {time}"
        for time in ("31 s", "17 min 11 s")
    ]
    assert "watcher.look()" in caplog.text


def _unexpected(*_: object) -> None:
    pytest.fail("a call was abandoned")


# In a worker of Spark


def test_a_call_that_hangs_in_a_worker_ends_the_task_with_the_failure(group: Group) -> None:
    group.hangs = {1: 1}
    run = group.run(SOON)
    (cursor,) = group.tracker.claim("group", layout(1), 0, "me")
    with pytest.raises(TaskTimedOutError) as raised:
        Turns(SOON).begin(run.processing.processor(ONE), Outcome(cursor), lambda: True).result()
    text = f"Traceback (most recent call last):\n  File\nx.{type(raised.value).__name__}: {raised.value}"
    found = timed_out_of(text.splitlines()[-1])
    assert found is not None
    assert (found.partition, found.listed, found.failure.position, found.failure.code) == (ONE, 0, 1, "OCQ-229")


def test_the_error_of_a_task_with_a_hanging_call_carries_its_outcomes_so_far(group: Group) -> None:
    """Otherwise committed events, skips and failures would be neither counted nor logged."""
    group.hangs = {3: 1}
    run = group.run(SOON)
    (cursor,) = group.tracker.claim("group", layout(1), 0, "me")
    turns = PartitionsInTurn(Turns(SOON), [run.processing.processor(ONE)], {ONE: Outcome(cursor)})
    with pytest.raises(TaskTimedOutError) as raised:
        turns.run(inf, lambda: True)
    found = timed_out_of(f"TaskTimedOutError: {raised.value}")
    assert found is not None
    (outcome,) = found.outcomes
    assert (outcome.handled, outcome.cursor.stored, group.handled) == (2, 2, [1, 2])


@pytest.mark.parametrize("limits", [CallLimits(30, inf), CallLimits(inf, 30), CallLimits(30, 60)])
def test_quick_steps_are_unaffected_by_limits(group: Group, limits: CallLimits) -> None:
    turns, run = Turns(limits), group.run(limits)
    (cursor,) = group.tracker.claim("group", layout(1), 0, "me")
    processor, outcome = run.processing.processor(ONE), Outcome(cursor)
    while not outcome.idle:  # a busy machine may need several turns
        outcome = turns.begin(processor, outcome, lambda: True).result()
    assert outcome.cursor.stored == 4
    assert group.handled == [1, 2, 3, 4]


@pytest.mark.parametrize("line", ["", "ValueError: no", "x.TaskTimedOut: {}"])
def test_other_errors_of_a_turn_are_not_timeouts(line: str) -> None:
    assert timed_out_of(line) is None
    assert timed_out_call(RuntimeError(line)) is None


def test_the_text_of_a_timeout_is_one_line(group: Group) -> None:
    group.hangs = {1: 1}
    run = group.run(SOON)
    (cursor,) = group.tracker.claim("group", layout(1), 0, "me")
    with pytest.raises(TaskTimedOutError) as raised:
        Turns(SOON).begin(run.processing.processor(ONE), Outcome(cursor), lambda: True).result()
    assert "\n" not in str(raised.value)
    assert isinstance(timed_out_of(f"TaskTimedOutError: {raised.value}"), TimedOut)

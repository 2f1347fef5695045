"""How the partitions of a task take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event as Signal
from threading import current_thread

import pytest

from opencqrs_py.engines.spark import turns
from opencqrs_py.engines.spark.turns import PartitionsInTurn, TaskTimedOutError, TimedOut, Turns, timed_out_of
from opencqrs_py.model import Cursor, Failure, Origin, Outcome, Partition, layout
from opencqrs_py.processing.calls import NO_LIMITS

SECONDS = 60  # longest wait; nothing here takes long


class Processor:
    """A processor of a short log that handles one event per step."""

    group = "g"
    limits = NO_LIMITS

    def __init__(self, partition: Partition, head: int) -> None:
        self.partition = partition
        self.head = head
        self.before: dict[int, Callable[[], object]] = {}  # called before the event at a position is handled
        self.steps: list[str] = []
        self.flushed = 0

    def step(self, cursor: Cursor) -> Outcome:
        self.steps.append(current_thread().name)
        if cursor.position == self.head:
            return Outcome(cursor, idle=True)
        position = cursor.position + 1
        failure = self.before.get(position, lambda: None)()
        if isinstance(failure, Failure):
            return Outcome(cursor, failure=failure)
        return Outcome(cursor.moved_to(position, stored=True), handled=1)

    def flush(self, cursor: Cursor) -> Outcome:
        self.flushed += 1
        return Outcome(cursor, idle=True)


class FakeClock:
    """Replaces the module ``time``."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return round(self.now, 6)


def in_time(step: Callable[[Cursor], Outcome], clock: FakeClock, seconds: float) -> Callable[[Cursor], Outcome]:
    """Return a step that takes some more seconds."""

    def slow(cursor: Cursor) -> Outcome:
        clock.now += seconds
        return step(cursor)

    return slow


def hang(begun: Signal, go: Signal) -> None:
    begun.set()
    assert go.wait(SECONDS)


@pytest.fixture
def processors() -> list[Processor]:
    return [Processor(partition, 5) for partition in layout(3)]


def in_turn(processors: list[Processor], begun: Sequence[int] = (0, 0, 0)) -> PartitionsInTurn:
    """Return the partitions of the processors at the positions where they have ``begun``."""
    cursors = [Cursor(one.partition, 1, at, at) for one, at in zip(processors, begun, strict=False)]
    return PartitionsInTurn(Turns(NO_LIMITS), processors, {one.partition: Outcome(one) for one in cursors})


def positions(partitions: PartitionsInTurn) -> list[int]:
    return [outcome.cursor.position for outcome in partitions.outcomes.values()]


def test_each_partition_reaches_the_head_and_its_handled_events_add_up(processors):
    partitions = in_turn(processors)
    partitions.run(float("inf"), lambda: True)
    assert positions(partitions) == [5, 5, 5]
    assert all(outcome.idle and outcome.handled == 5 for outcome in partitions.outcomes.values())
    assert [one.flushed for one in processors] == [0, 0, 0]


def test_without_time_each_partition_takes_one_turn_and_stores_its_progress(processors, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 0)
    partitions = in_turn(processors)
    partitions.run(0.0, lambda: True)
    assert positions(partitions) == [1, 1, 1]
    assert not any(outcome.idle for outcome in partitions.outcomes.values())
    assert [one.flushed for one in processors] == [1, 1, 1]


def test_without_permission_no_partition_takes_a_turn(processors):
    partitions = in_turn(processors)
    partitions.run(float("inf"), lambda: False)
    assert [one.steps for one in processors] == [[], [], []]
    assert not any(outcome.idle for outcome in partitions.outcomes.values())


@pytest.mark.parametrize(("position", "reached"), [(1, [1, 0, 0]), (3, [3, 2, 2])])
def test_after_the_permission_ends_no_partition_takes_a_turn_and_each_stores_its_progress(
    position, reached, processors, monkeypatch
):
    monkeypatch.setattr(turns, "TURN_SECONDS", 0)
    monkeypatch.setattr(turns, "SLOW_SECONDS", SECONDS)
    withdrawn = Signal()
    processors[0].before[position] = withdrawn.set
    partitions = in_turn(processors)
    partitions.run(float("inf"), lambda: not withdrawn.is_set())
    assert positions(partitions) == reached
    assert not any(outcome.idle for outcome in partitions.outcomes.values())
    assert [one.flushed for one in processors] == [1, 1, 1]


def test_a_failure_ends_the_turns_of_its_partition_only(processors):
    failure = Failure(Origin.HANDLER, permanent=False, error="ValueError", message="no")
    processors[1].before[3] = lambda: failure
    partitions = in_turn(processors)
    partitions.run(float("inf"), lambda: True)
    assert positions(partitions) == [5, 2, 5]
    assert [outcome.failure for outcome in partitions.outcomes.values()] == [None, failure, None]


def test_a_slow_turn_delays_only_its_own_partition_even_as_new_events_arrive(processors, monkeypatch):
    monkeypatch.setattr(turns, "SLOW_SECONDS", 0)
    begun, go = Signal(), Signal()
    processors[0].before[2] = lambda: hang(begun, go)
    processors[2].before[8] = go.set  # an event that appears only while the slow one is being handled

    def appear() -> None:
        assert begun.wait(SECONDS)
        for one in processors:
            one.head = 10

    with ThreadPoolExecutor(1) as other:
        appeared = other.submit(appear)
        partitions = in_turn(processors)
        partitions.run(0.0, lambda: True)  # the time is over at once, but the task cannot end yet
        appeared.result(SECONDS)
    reached = dict(zip((one.partition.residue for one in processors), positions(partitions), strict=True))
    assert reached[2] >= 8
    assert all(outcome.failure is None for outcome in partitions.outcomes.values())
    assert [one.flushed for one in processors if partitions.outcomes[one.partition].cursor.position < 10] != [0]


def test_without_permission_the_others_do_not_continue_during_a_slow_turn(processors, monkeypatch):
    monkeypatch.setattr(turns, "SLOW_SECONDS", 0)
    monkeypatch.setattr(turns, "TURN_SECONDS", 0)
    begun, go, asked = Signal(), Signal(), Counter[str]()
    processors[0].before[1] = lambda: hang(begun, go)

    def permitted() -> bool:
        asked["times"] += 1
        if asked["times"] == 1:  # for the turn that is slow
            return True
        if asked["times"] > 10:
            go.set()
        return False

    partitions = in_turn(processors)
    partitions.run(float("inf"), permitted)
    assert positions(partitions) == [1, 0, 0]


class TestCatchingUp:
    """Time passes by steps only: each takes ten milliseconds."""

    @pytest.fixture
    def clock(self, processors, monkeypatch) -> FakeClock:
        clock = FakeClock()
        monkeypatch.setattr(turns, "time", clock)
        monkeypatch.setattr(turns, "SLOW_SECONDS", SECONDS)
        for one in processors:
            one.head = 10**9
            monkeypatch.setattr(one, "step", in_time(one.step, clock, 0.01))
        return clock

    def test_the_first_partitions_let_one_that_is_behind_catch_up(self, processors, clock):
        partitions = in_turn(processors, (3, 1, 3))
        partitions.run(0.05, lambda: True)
        assert positions(partitions) == [4, 4, 4]

    def test_they_wait_for_a_moment(self, processors, clock):
        partitions = in_turn(processors, (90, 0, 90))
        partitions.run(0.11, lambda: True)
        assert positions(partitions) == [92, 7, 92]  # three steps, five of the one behind, three steps

    def test_what_is_far_behind_does_not_delay_the_others_for_long(self, processors, clock):
        partitions = in_turn(processors, (10**6, 0, 0))
        partitions.run(2.0, lambda: True)
        assert len(processors[0].steps) > 0.8 * 200 / 3

    def test_after_long_they_still_wait_now_and_then(self, processors, clock):
        partitions = in_turn(processors, (10**6, 0, 0))
        partitions.run(100.0, lambda: True)
        first, *others = [len(one.steps) for one in processors]
        assert first > 0.9 * 10_000 / 3
        assert min(others) - first > 150  # in a wait of each second, two or three

    def test_a_slow_step_of_what_is_behind_ends_the_wait(self, processors, clock, monkeypatch):
        for one in processors[1:]:
            monkeypatch.setattr(one, "step", in_time(one.step, clock, 0.3))
        partitions = in_turn(processors, (10**6, 0, 0))
        partitions.run(10.0, lambda: True)
        assert [len(one.steps) for one in processors] == [13, 17, 16]  # without an end of waits: 11

    def test_what_works_in_the_inbox_steps_as_well(self, processors, clock, monkeypatch):
        inbox = processors[2]
        work = in_time(lambda cursor: Outcome(cursor, without_log=True), clock, 0.01)
        monkeypatch.setattr(inbox, "step", lambda cursor: inbox.steps.append("") or work(cursor))
        partitions = in_turn(processors, (10**6, 0, 0))
        partitions.run(2.0, lambda: True)
        assert len(inbox.steps) >= 200 / 3

    def test_the_others_do_not_wait_for_what_stays_where_it_is(self, processors, clock, monkeypatch):
        monkeypatch.setattr(
            processors[1], "step", in_time(lambda cursor: Outcome(cursor, without_log=True), clock, 0.01)
        )
        partitions = in_turn(processors, (3, 1, 3))
        partitions.run(0.30, lambda: True)
        assert positions(partitions) == [13, 1, 13]


def test_a_single_partition_needs_no_thread(processors):
    in_turn(processors[:1]).run(float("inf"), lambda: True)
    assert set(processors[0].steps) == {current_thread().name}
    in_turn(processors[1:]).run(float("inf"), lambda: True)
    assert current_thread().name not in processors[1].steps


def test_an_exception_of_a_step_ends_the_task(processors):
    def interrupted() -> None:
        raise KeyboardInterrupt

    processors[2].before[3] = interrupted
    with pytest.raises(KeyboardInterrupt):
        in_turn(processors).run(float("inf"), lambda: True)


def test_an_abandoned_call_ends_the_task_with_the_outcomes_of_the_other_partitions(processors, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 0)
    failure = Failure(Origin.HANDLER, permanent=False, error="HandlerTimeoutError", message="hangs", position=3)
    call = TimedOut(processors[2].partition, failure, 0)

    def time_out() -> None:
        raise TaskTimedOutError.of(call)

    processors[2].before[3] = time_out
    with pytest.raises(TaskTimedOutError) as raised:
        in_turn(processors).run(float("inf"), lambda: True)
    found = timed_out_of(f"TaskTimedOutError: {raised.value}")
    assert found is not None
    assert (found.partition, found.failure) == (call.partition, failure)
    assert [(one.cursor.partition, one.handled) for one in found.outcomes] == [
        (one.partition, 3) for one in processors[:2]
    ]

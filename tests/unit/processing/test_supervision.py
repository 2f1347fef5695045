"""Supervision: the states of a partition, its waits and its notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from opencqrs_py.model import Cursor, Failure, Origin, Outcome, Partition, ProcessorState, Skip
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.notices import NO_OBSERVER, Notice, text_of
from opencqrs_py.processing.ports import BackOff
from opencqrs_py.processing.recovery import Action, ExponentialBackOff, FixedBackOff, NoRetry
from opencqrs_py.processing.supervision import SupervisedPartition
from opencqrs_py.testing import FakeClock

PARTITION = Partition(2, 1)
START = Cursor(PARTITION, epoch=7, stored=10, position=10)

RUNNING, BACKING_OFF = ProcessorState.RUNNING, ProcessorState.BACKING_OFF
WAITING, FAILED, STOPPED = ProcessorState.WAITING, ProcessorState.FAILED, ProcessorState.STOPPED


def failure(origin: Origin = Origin.HANDLER, position: int | None = 11, *, permanent: bool = False) -> Failure:
    named = position if origin in (Origin.HANDLER, Origin.EVENT) else None
    return Failure(origin, permanent=permanent, error="ValueError", message="mine", position=named)


OUTAGE, FENCED = failure(Origin.OUTAGE), failure(Origin.FENCED)
FRAMEWORK, UNDECODABLE = failure(Origin.FRAMEWORK), failure(Origin.EVENT, permanent=True)
PERMANENT = failure(permanent=True)
SKIP = Skip("g", PARTITION, 11, "11", "s", "/", "lent", 1, "no", "2026-01-01T00:00:00+00:00")


class Supervised:
    """A supervised partition with a clock that is advanced by hand."""

    def __init__(
        self,
        back_off: BackOff | None = None,
        on_exhausted: OnExhausted = OnExhausted.SKIP,
        cursor: Cursor = START,
        on_undecodable: OnExhausted = OnExhausted.STOP,
    ) -> None:
        self.clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
        self.partition = SupervisedPartition(
            "books", cursor, back_off or FixedBackOff(2, 3), on_exhausted, self.clock, on_undecodable
        )

    def fails(self, *failures: Failure, to: int | None = None) -> list[tuple[Action | None, float]]:
        """Let steps fail in turn, each when it is due; return actions and waits."""
        return [self._fail(t, to) for t in failures]

    def _fail(self, failure: Failure, to: int | None) -> tuple[Action | None, float]:
        self.clock.advance(self.partition.wait())
        cursor = self.partition.cursor
        outcome = Outcome(cursor if to is None else cursor.moved_to(to, stored=True), failure=failure)
        notice = self.partition.take(outcome)
        assert notice is not None
        assert notice.wait == pytest.approx(self.partition.wait())
        return notice.action, notice.wait

    def succeeds(self, to: int, handled: int = 1) -> Notice | None:
        return self.partition.take(Outcome(self.partition.cursor.moved_to(to, stored=True), handled=handled))


# No failures


def test_a_partition_starts_and_then_runs() -> None:
    supervised = Supervised()
    assert supervised.partition.state is ProcessorState.STARTING
    assert supervised.partition.partition is PARTITION
    assert supervised.succeeds(12, handled=2) is None
    assert supervised.succeeds(15, handled=3) is None
    assert supervised.partition.state is RUNNING
    assert supervised.partition.handled == 5
    assert supervised.partition.cursor.position == 15
    assert supervised.partition.wait() == 0


@pytest.mark.parametrize(
    ("cursor", "head", "done"),
    [
        (START, 10, True),
        (START, 9, True),
        (START, 11, False),
        (START.moved_to(12, stored=False), 12, False),
        (START.moved_to(12, stored=True), 12, True),
    ],
)
def test_a_partition_is_done_once_all_events_are_handled_and_stored(cursor: Cursor, head: int, *, done: bool) -> None:
    assert Supervised(cursor=cursor).partition.done(head) is done


@pytest.mark.parametrize("given", [failure(), OUTAGE, FRAMEWORK, FENCED])
def test_a_partition_with_a_failure_is_not_done(given: Failure) -> None:
    supervised = Supervised()
    supervised.fails(given)
    assert not supervised.partition.done(10)


# An event fails


def test_an_event_is_retried_with_its_back_off_and_abandoned_when_that_ends() -> None:
    supervised = Supervised(ExponentialBackOff(max_attempts=3))
    attempts, states = [], []
    answers = []
    for _ in range(4):
        attempts.append(supervised.partition.cursor.attempt)
        answers += supervised.fails(failure())
        states.append(supervised.partition.state)
    assert answers == [(Action.RETRY, 2.0), (Action.RETRY, 3.0), (Action.RETRY, 4.5), (Action.SKIP, 0.0)]
    assert attempts == [1, 2, 3, 4]
    assert states == [BACKING_OFF, BACKING_OFF, BACKING_OFF, RUNNING]
    assert supervised.partition.cursor.skip
    assert supervised.partition.cursor.failing == 11


def test_the_wait_for_the_next_attempt_decreases_during_back_off() -> None:
    supervised = Supervised(FixedBackOff(10))
    supervised.fails(failure())
    supervised.clock.advance(4)
    assert supervised.partition.wait() == 6
    supervised.clock.advance(60)
    assert supervised.partition.wait() == 0
    assert supervised.partition.state is BACKING_OFF


@pytest.mark.parametrize(("ahead", "wait"), [(3_600, 3.0), (0, 3.0), (-1, 2.0), (-3_600, 0.0)])
def test_a_wait_begun_by_a_process_whose_clock_was_ahead_lasts_no_longer(ahead: int, wait: float) -> None:
    before = Supervised(ExponentialBackOff(initial=2, multiplier=1.5))
    before.fails(failure(), failure())
    record = before.partition.record
    assert record is not None
    clock = FakeClock(before.clock.now() - timedelta(seconds=ahead))
    cursor = replace(START, epoch=8).resuming(record)
    after = SupervisedPartition("books", cursor, ExponentialBackOff(initial=2, multiplier=1.5), OnExhausted.SKIP, clock)
    assert after.wait() == wait


@pytest.mark.parametrize(
    ("on_exhausted", "action", "state"),
    [(OnExhausted.SKIP, Action.SKIP, RUNNING), (OnExhausted.STOP, Action.STOP, FAILED)],
)
def test_without_retries_the_first_failure_exhausts_the_attempts(
    on_exhausted: OnExhausted, action: Action, state: ProcessorState
) -> None:
    supervised = Supervised(NoRetry(), on_exhausted)
    assert [given for given, _ in supervised.fails(failure())] == [action]
    assert supervised.partition.state is state
    assert supervised.partition.cursor.skip is (action is Action.SKIP)


def test_exhausted_attempts_stop_the_partition_if_configured() -> None:
    supervised = Supervised(FixedBackOff(2, 1), OnExhausted.STOP)
    assert supervised.fails(*[failure()] * 4) == [
        (Action.RETRY, 2),
        (Action.STOP, 30),
        (Action.STOP, 60),
        (Action.STOP, 120),
    ]
    assert not supervised.partition.cursor.skip
    assert supervised.partition.state is FAILED


def test_recovery_is_reported_once_and_the_next_failure_starts_over() -> None:
    supervised = Supervised(FixedBackOff(2, 1))
    supervised.fails(failure())
    assert supervised.succeeds(11) == Notice("books", PARTITION, None)
    assert supervised.succeeds(12) is None
    assert supervised.partition.cursor.attempt == 1
    assert supervised.fails(failure(position=13)) == [(Action.RETRY, 2)]


def test_each_event_has_its_own_attempts() -> None:
    supervised = Supervised(FixedBackOff(2, 1))
    assert supervised.fails(failure(position=11)) == [(Action.RETRY, 2)]
    assert supervised.fails(failure(position=14), to=13) == [(Action.RETRY, 2)]
    assert supervised.partition.cursor.attempt == 2
    assert supervised.fails(failure(position=14)) == [(Action.SKIP, 0)]


def test_an_event_before_a_failed_one_has_its_own_attempts() -> None:
    supervised = Supervised(FixedBackOff(2, 1))
    assert supervised.fails(failure(position=14)) == [(Action.RETRY, 2)]
    assert supervised.fails(failure(position=11)) == [(Action.RETRY, 2)]
    assert supervised.fails(failure(position=11)) == [(Action.SKIP, 0)]


def test_abandoning_an_event_ends_the_failure_without_counting_as_recovery() -> None:
    supervised = Supervised(NoRetry())
    supervised.fails(failure())
    skipped = Outcome(supervised.partition.cursor.moved_to(11, stored=True), skips=(SKIP,))
    assert supervised.partition.take(skipped) is None
    assert supervised.partition.failure is None
    assert supervised.partition.state is RUNNING
    assert supervised.partition.handled == 0


def test_a_notice_states_what_failed_and_what_happens_next() -> None:
    supervised = Supervised(FixedBackOff(2))
    given = failure()
    first = supervised.partition.take(Outcome(START, failure=given))
    second = supervised.partition.take(Outcome(supervised.partition.cursor, failure=given))
    assert first == Notice("books", PARTITION, Action.RETRY, given, attempt=1, wait=2)
    assert second == Notice("books", PARTITION, Action.RETRY, given, attempt=2, wait=2)


# Outages of store or database (K1, K2, K4)


def test_an_outage_is_retried_forever_with_growing_waits() -> None:
    supervised = Supervised(NoRetry())
    answers = supervised.fails(*[OUTAGE] * 100)
    assert [wait for _, wait in answers[:8]] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert {action for action, _ in answers} == {Action.WAIT}
    assert supervised.partition.state is WAITING
    assert supervised.partition.cursor == START


def test_the_advice_on_an_outage_in_a_handler_is_given_once() -> None:
    supervised, met = Supervised(), replace(OUTAGE, event="event 12 at position 12 (lent, /a)", advice="  fix:   mine")
    supervised.succeeds(to=11)
    for _ in range(2):
        notices = [supervised.partition.take(Outcome(supervised.partition.cursor, failure=met)) for _ in range(2)]
        assert ["fix:" in text_of(notice) for notice in notices if notice] == [True, False]
        supervised.succeeds(to=12)
    notice = supervised.partition.take(Outcome(supervised.partition.cursor, failure=replace(met, event="")))
    assert notice is not None
    assert "fix:" not in text_of(notice)


def test_an_outage_uses_no_attempt_of_an_event() -> None:
    supervised = Supervised(FixedBackOff(7, 2))
    answers = supervised.fails(failure(), OUTAGE, OUTAGE, failure(), OUTAGE, failure())
    assert answers == [
        (Action.RETRY, 7),
        (Action.WAIT, 0.5),
        (Action.WAIT, 1),
        (Action.RETRY, 7),
        (Action.WAIT, 0.5),
        (Action.SKIP, 0),
    ]


def test_an_outage_does_not_prevent_an_exhausted_event_from_being_abandoned() -> None:
    supervised = Supervised(NoRetry())
    supervised.fails(failure(), OUTAGE)
    assert supervised.partition.cursor.skip
    assert supervised.partition.cursor.failing == 11


def test_progress_between_two_outages_ends_the_first() -> None:
    supervised = Supervised()
    assert supervised.fails(OUTAGE, OUTAGE) == [(Action.WAIT, 0.5), (Action.WAIT, 1)]
    assert supervised.fails(OUTAGE, to=12) == [(Action.WAIT, 0.5)]
    supervised.succeeds(13)
    assert supervised.fails(OUTAGE) == [(Action.WAIT, 0.5)]


# The partition fails (K3, K8)


@pytest.mark.parametrize("given", [PERMANENT, UNDECODABLE, FRAMEWORK])
def test_a_failed_partition_is_retried_after_growing_pauses(given: Failure) -> None:
    supervised = Supervised()
    answers = supervised.fails(*[given] * 8)
    assert answers == [(Action.STOP, wait) for wait in (30, 60, 120, 240, 480, 600, 600, 600)]
    assert supervised.partition.state is FAILED
    assert not supervised.partition.over
    assert not supervised.partition.cursor.skip


def test_a_failed_partition_that_makes_progress_has_recovered() -> None:
    supervised = Supervised()
    supervised.fails(PERMANENT, PERMANENT)
    assert supervised.succeeds(11) == Notice("books", PARTITION, None)
    assert supervised.fails(PERMANENT) == [(Action.STOP, 30)]


def test_pauses_start_over_after_progress() -> None:
    supervised = Supervised()
    supervised.fails(PERMANENT, PERMANENT)
    assert supervised.fails(failure(position=14, permanent=True), to=13) == [(Action.STOP, 30)]


def test_an_outage_does_not_shorten_the_pauses_of_a_failed_partition() -> None:
    supervised = Supervised()
    assert supervised.fails(PERMANENT, OUTAGE, PERMANENT) == [(Action.STOP, 30), (Action.WAIT, 0.5), (Action.STOP, 60)]


# No step was begun because the run stops


@pytest.mark.parametrize("given", [failure(), PERMANENT, OUTAGE, FRAMEWORK])
def test_a_known_failure_persists_until_a_step_was_tried(given: Failure) -> None:
    supervised = Supervised(FixedBackOff(2, 3))
    supervised.fails(given)
    supervised.clock.advance(supervised.partition.wait())
    known = supervised.partition.status()
    cursor = replace(supervised.partition.cursor, epoch=8)
    assert supervised.partition.take(Outcome(cursor, without_log=True)) is None
    assert supervised.partition.status() == known
    assert supervised.partition.cursor == cursor
    assert supervised.succeeds(11) == Notice("books", PARTITION, None)


def test_steps_of_the_inbox_are_counted_but_only_a_step_of_the_log_ends_its_failure() -> None:
    supervised = Supervised()
    supervised.fails(FRAMEWORK)
    supervised.clock.advance(30)
    done = Outcome(supervised.partition.cursor, handled=2, skips=(SKIP,), without_log=True)
    assert supervised.partition.take(done) is None
    assert (supervised.partition.handled, supervised.partition.skipped) == (2, 1)
    assert supervised.partition.state is FAILED
    assert supervised.partition.wait() == 0
    assert supervised.fails(FRAMEWORK) == [(Action.STOP, 60)]


UNTRIED = replace(FRAMEWORK, position=11, event="event 11", event_id="e", event_type="t", untried=True)


@pytest.mark.parametrize(
    ("before", "given", "attempts", "first_error"),
    [
        pytest.param([], UNTRIED, 0, "", id="no attempt before"),
        pytest.param([], replace(UNTRIED, origin=Origin.EVENT), 0, "", id="an undecodable event"),
        pytest.param([failure()] * 2, UNTRIED, 2, "ValueError: mine", id="two attempts before"),
        pytest.param([UNTRIED], UNTRIED, 0, "", id="again"),
    ],
)
def test_an_event_before_which_the_partition_stops_is_recorded_but_uses_no_attempt(
    before: Sequence[Failure], given: Failure, attempts: int, first_error: str
) -> None:
    supervised = Supervised(on_undecodable=OnExhausted.SKIP)
    supervised.fails(*before)
    stopped = replace(given, message="unknown sequence")
    ((action, _),) = supervised.fails(stopped)
    status = supervised.partition.status()
    assert (action, status.state, status.attempt) == (Action.STOP, FAILED, 0)
    assert status.failure is not None
    assert (status.failure.position, status.failure.attempts) == (11, attempts)
    assert (status.failure.first_error, status.failure.last_error) == (first_error, "ValueError: unknown sequence")
    assert status.failure.blocks
    assert supervised.partition.cursor.attempt == attempts + 1
    supervised.fails(failure())
    assert supervised.partition.status().attempt == attempts + 1
    record = supervised.partition.record
    assert record is not None
    assert (record.attempts, record.first_error) == (attempts + 1, "ValueError: mine")


def test_the_attempts_of_a_later_event_are_kept_while_the_partition_stops_before_an_earlier_one() -> None:
    supervised = Supervised()
    supervised.fails(failure(position=12))
    supervised.fails(UNTRIED)
    assert supervised.partition.record is not None
    assert (supervised.partition.record.position, supervised.partition.record.attempts) == (12, 1)
    assert (supervised.partition.cursor.failing, supervised.partition.cursor.attempt) == (12, 2)
    assert supervised.partition.status().error == "ValueError: mine - event 11"


@pytest.mark.parametrize(("failed", "in_inbox"), [(OUTAGE, False), (OUTAGE, True), (FRAMEWORK, True)])
def test_an_outage_or_a_failure_of_the_inbox_ends_once_its_events_are_tried(failed: Failure, *, in_inbox: bool) -> None:
    supervised = Supervised()
    supervised.partition.take(Outcome(START, failure=failed, without_log=in_inbox))
    assert supervised.partition.take(Outcome(START, without_log=True)) is None
    assert supervised.partition.failure == failed
    assert supervised.partition.take(Outcome(START, handled=1, without_log=True)) == Notice("books", PARTITION, None)
    assert supervised.partition.failure is None


def test_expired_events_are_counted_across_steps_and_the_first_is_named() -> None:
    steps = [Outcome(START, expired=1_000, expired_events=tuple(f"{step}-{n}" for n in range(6))) for step in "ab"]
    both = steps[0].followed_by(steps[1])
    assert (both.expired, both.expired_events[5:]) == (2_000, ("a-5", "b-0", "b-1", "b-2", "b-3"))
    earlier, supervised = Supervised().partition, Supervised().partition
    earlier.take(both)
    supervised.take(steps[0])
    supervised.count_on(earlier)
    assert supervised.expired == 3_000


@pytest.mark.parametrize("with_log", [(0,), (1,), (0, 1)], ids=str)
def test_combined_steps_have_read_the_log_if_one_of_them_has(with_log: Sequence[int]) -> None:
    steps = [Outcome(START, without_log=number not in with_log) for number in range(2)]
    begun = Outcome(START, without_log=True)
    assert begun.followed_by(begun).without_log
    assert not begun.followed_by(steps[0]).followed_by(steps[1]).without_log


def test_progress_that_cannot_be_stored_is_a_failure_even_if_no_step_was_tried() -> None:
    supervised = Supervised()
    notice = supervised.partition.take(Outcome(START, failure=OUTAGE, without_log=True))
    assert notice is not None
    assert notice.action is Action.WAIT


# Another processor owns the partition


def test_a_fenced_partition_leaves() -> None:
    supervised = Supervised()
    assert supervised.fails(FENCED) == [(Action.LEAVE, 0)]
    assert supervised.partition.state is STOPPED
    assert supervised.partition.over


@pytest.mark.parametrize("before", [(), (failure(),), (OUTAGE,)])
def test_a_new_claim_at_the_same_position_keeps_the_known_failure(before: Sequence[Failure]) -> None:
    supervised = Supervised(FixedBackOff(2, 1))
    supervised.fails(*before)
    known = supervised.partition.cursor
    supervised.partition.claimed_again(Cursor(PARTITION, epoch=8, stored=10, position=10))
    assert supervised.partition.cursor.epoch == 8
    assert supervised.partition.cursor.retrying(99).attempt == known.retrying(99).attempt
    assert (supervised.partition.cursor.failing, supervised.partition.cursor.attempt) == (
        known.failing,
        known.attempt,
    )


def test_a_new_claim_at_a_later_position_starts_over() -> None:
    supervised = Supervised(FixedBackOff(2, 1))
    supervised.fails(failure(position=11))
    found = Cursor(PARTITION, epoch=8, stored=13, position=13)
    supervised.partition.claimed_again(found)
    assert supervised.partition.cursor == found
    assert supervised.fails(failure(position=14), failure(position=14)) == [(Action.RETRY, 2), (Action.SKIP, 0)]


def test_a_new_claim_that_finds_progress_before_the_failed_event_keeps_its_attempts() -> None:
    """As with participants whose task was lost after a checkpoint; otherwise the event gets all its attempts again."""
    supervised = Supervised(FixedBackOff(2, 1))
    supervised.fails(failure(position=14))
    supervised.partition.claimed_again(Cursor(PARTITION, epoch=8, stored=12, position=12, isolate=3))
    cursor = supervised.partition.cursor
    assert (cursor.epoch, cursor.stored, cursor.position, cursor.isolate) == (8, 12, 12, 3)
    assert (cursor.failing, cursor.attempt) == (14, 2)
    assert supervised.fails(failure(position=14)) == [(Action.SKIP, 0)]


def test_a_new_claim_that_finds_progress_before_the_failed_event_keeps_the_skip() -> None:
    supervised = Supervised(FixedBackOff(2, 1))
    assert supervised.fails(failure(position=14), failure(position=14)) == [(Action.RETRY, 2), (Action.SKIP, 0)]
    supervised.partition.claimed_again(Cursor(PARTITION, epoch=8, stored=12, position=12))
    assert supervised.partition.cursor.skip
    assert (supervised.partition.cursor.failing, supervised.partition.cursor.stored) == (14, 12)


def test_a_claim_at_the_same_progress_keeps_the_position_read_beyond_it() -> None:
    supervised = Supervised(cursor=START.moved_to(15, stored=False))
    supervised.partition.claimed_again(Cursor(PARTITION, epoch=8, stored=10, position=10))
    assert supervised.partition.cursor == Cursor(PARTITION, epoch=8, stored=10, position=15)


# Stop and status


def test_a_partition_stops_on_request() -> None:
    supervised = Supervised()
    supervised.succeeds(11)
    supervised.partition.stop()
    assert supervised.partition.state is STOPPED
    assert supervised.partition.over


def test_a_failed_partition_stays_failed_when_it_is_stopped() -> None:
    supervised = Supervised()
    supervised.fails(PERMANENT)
    supervised.partition.stop()
    assert supervised.partition.state is FAILED


def test_the_status_of_a_healthy_partition_is_short() -> None:
    supervised = Supervised()
    supervised.succeeds(12)
    status = supervised.partition.status()
    assert (status.group, status.partition, status.position, status.state) == ("books", PARTITION, 12, RUNNING)
    assert (status.attempt, status.error, status.next_attempt_at) == (0, "", None)


@pytest.mark.parametrize(
    ("failures", "state", "attempt", "next_attempt_at"),
    [
        ([failure()], BACKING_OFF, 1, "2026-01-01T00:00:02.000+00:00"),
        ([failure(), failure()], BACKING_OFF, 2, "2026-01-01T00:00:04.000+00:00"),
        ([OUTAGE], WAITING, 0, "2026-01-01T00:00:00.500+00:00"),
        ([failure(), OUTAGE], WAITING, 0, "2026-01-01T00:00:02.500+00:00"),
        ([FRAMEWORK], FAILED, 0, "2026-01-01T00:00:30.000+00:00"),
        ([PERMANENT], FAILED, 1, "2026-01-01T00:00:30.000+00:00"),
        ([FENCED], STOPPED, 0, None),
    ],
)
def test_the_status_shows_error_attempts_and_the_time_of_the_next(
    failures: list[Failure], state: ProcessorState, attempt: int, next_attempt_at: str | None
) -> None:
    supervised = Supervised()
    supervised.fails(*failures)
    status = supervised.partition.status()
    assert (status.state, status.attempt, status.next_attempt_at) == (state, attempt, next_attempt_at)
    assert status.error.startswith("ValueError: mine")
    assert status.position == 10


def test_the_status_names_the_event_in_hand() -> None:
    supervised = Supervised()
    supervised.fails(replace(failure(), event="event 4711 at position 11 (lent, /books/1)"))
    assert supervised.partition.status().error == "ValueError: mine - event 4711 at position 11 (lent, /books/1)"


def test_a_handler_error_must_name_its_event() -> None:
    nameless = Failure(Origin.HANDLER, permanent=False, error="ValueError", message="mine")
    with pytest.raises(ValueError, match="handler errors name the event in hand"):
        Supervised().partition.take(Outcome(START, failure=nameless))


def test_an_observer_is_optional() -> None:
    NO_OBSERVER.claimed("books", PARTITION, 0)
    NO_OBSERVER.advanced("books", PARTITION, Outcome(START))
    NO_OBSERVER.noticed(Notice("books", PARTITION, None))
    NO_OBSERVER.stopped("books", PARTITION)

"""The golden series of J14, J15 and J11: when the runs of a job that takes seven seconds begin."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from opencqrs_py.adapters.memory.jobs import InMemoryJobStore
from opencqrs_py.jobs.desk import Ending, JobDesk, Worker
from opencqrs_py.jobs.ports import JobBook
from opencqrs_py.jobs.rules import JobRule, Meeting, Ticking
from opencqrs_py.jobs.runs import JobRun, RunPosition, RunStatus
from opencqrs_py.jobs.sitting import tick_id
from opencqrs_py.model.choices import Misfire, Overlap
from opencqrs_py.model.job import Trigger
from opencqrs_py.processing.inbox.schedules import CronSchedule, FixedDelay, FixedRate
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.testing.clock import FakeClock

DELAY = Ticking(FixedDelay(0, 5), "fixed-delay 5 s", from_end=True)
RATE = Ticking(FixedRate(0, 5), "fixed-rate 5 s", misfire=Misfire.SKIP)
WORKER = Worker("node", "node", frozenset({"node"}), 4, frozenset({"job"}), lambda: {"node"})


@dataclass
class Series:
    """Runs of one job, each of which takes ``seconds``."""

    rule: JobRule
    seconds: int = 7
    clock: FakeClock = field(default_factory=FakeClock)
    starts: list[int] = field(default_factory=list)

    def until(self, last: int) -> dict[int, RunStatus]:
        store = InMemoryJobStore(self.clock)
        desk, begin = JobDesk(store, {"job": self.rule}), self.clock.now()
        in_hand: list[tuple[int, JobRun]] = []
        for second in range(last + 1):
            for end, run in [each for each in in_hand if each[0] == second]:
                desk.finish(run, Ending(RunPosition(done=True)))
                in_hand.remove((end, run))
            for run in desk.attend(WORKER):
                self.starts.append(second)
                in_hand.append((second + self.seconds, run))
            self.clock.advance(1)
        found = (run for run in store.history() if run.scheduled_at is not None)
        return {round((run.scheduled_at - begin).total_seconds()): run.status for run in found}


@pytest.mark.parametrize(
    ("ticking", "overlap", "starts"),
    [
        pytest.param(DELAY, Overlap.SKIP, [0, 12, 24], id="J14: a fixed delay starts at the end"),
        pytest.param(RATE, Overlap.SKIP, [0, 10, 20], id="J15: a tick during a run is skipped"),
        pytest.param(RATE, Overlap.QUEUE, [0, 7, 14, 21], id="J11: one run waits, and absorbs those that come later"),
        pytest.param(RATE, Overlap.CANCEL, [0, 7, 12, 17, 22], id="J11: the previous run is cancelled, and ends"),
    ],
)
def test_runs_of_seven_seconds_begin_as_the_overlap_rule_requires(ticking, overlap, starts):
    series = Series(JobRule("job", ticking, Meeting(overlap, grace=2)))
    series.until(25)
    assert series.starts == starts


def test_each_tick_has_one_record_with_its_outcome():
    found = Series(JobRule("job", RATE, Meeting())).until(24)
    assert found == {
        0: RunStatus.SUCCEEDED,
        5: RunStatus.SKIPPED,
        10: RunStatus.SUCCEEDED,
        15: RunStatus.SKIPPED,
        20: RunStatus.RUNNING,
    }


@pytest.mark.parametrize("began", [False, True])
def test_an_already_recorded_tick_starts_no_second_run(began):
    clock = FakeClock()
    store, at = InMemoryJobStore(clock), clock.now()
    id_ = f"job@{at.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"
    past = replace(JobRun(id_, "job", Trigger.SCHEDULE, at), started_at=at if began else None)
    with store.open(["job"]) as book:
        book.put(past.ended(RunStatus.SUCCEEDED if began else RunStatus.SKIPPED, at))
    desk = JobDesk(store, {"job": JobRule("job", RATE)})  # as after a change of the schedule, and of the clock
    assert desk.attend(WORKER) == []
    assert [run.id for run in store.history()] == [id_]
    assert store.look().runs == ()
    clock.advance(5)
    assert [run.scheduled_at for run in desk.attend(WORKER)] == [at + timedelta(seconds=5)]


def test_a_tick_whose_id_is_requested_at_the_same_moment_is_not_begun():
    clock = FakeClock()
    store = InMemoryJobStore(clock)
    requested = JobRun(tick_id("job", clock.now()), "another job", Trigger.MANUAL, clock.now())

    def request_and_draw() -> float:
        assert store.request(requested)
        return 0.0

    desk = JobDesk(store, {"job": JobRule("job", replace(RATE, jitter=1))}, request_and_draw)
    assert desk.attend(WORKER) == []
    assert store.history() == [requested]


class SetClock(FakeClock):
    """A clock that can be set, even back."""

    def set(self, time: datetime) -> None:
        self._start, self._gone = time, 0.0


@pytest.mark.parametrize("ahead", [timedelta(minutes=5), timedelta(days=400)])
@pytest.mark.parametrize(
    ("ticking", "wait"),
    [
        (Ticking(FixedDelay(6, 10), "delay", from_end=True), 10),
        (Ticking(FixedRate(60, 10), "rate"), 10),
        (Ticking(CronSchedule("*/15 * * * *"), "cron"), 300),
    ],
    ids=["delay", "rate", "cron"],
)
def test_setting_the_clock_back_does_not_delay_ticks_by_as_much(ticking, wait, ahead):
    right = datetime(2026, 3, 2, 1, 10, tzinfo=UTC)
    clock = SetClock(right + ahead)
    store = InMemoryJobStore(clock)
    desk = JobDesk(store, {"job": JobRule("job", ticking)})
    desk.attend(WORKER)
    clock.advance(960)
    for run in desk.attend(WORKER):
        desk.finish(run, Ending(RunPosition(done=True)))
    clock.set(right)
    after_restart = JobDesk(store, {"job": JobRule("job", ticking)})
    assert after_restart.attend(WORKER) == []
    clock.advance(wait - 1)
    assert after_restart.attend(WORKER) == []
    clock.advance(1)
    assert len(after_restart.attend(WORKER)) == 1


@pytest.mark.parametrize(
    "ending",
    [Ending(RunPosition(), error="no answer"), Ending(RunPosition(), released=True)],
    ids=["failed", "released"],
)
def test_setting_the_clock_back_does_not_delay_the_next_attempt_by_as_much(ending):
    clock = SetClock(datetime(2026, 3, 2, 1, 10, tzinfo=UTC))
    store = InMemoryJobStore(clock)
    desk = JobDesk(store, {"job": JobRule("job", RATE, back_off=FixedBackOff(30))})
    (run,) = desk.attend(WORKER)
    desk.finish(run, ending)
    clock.set(clock.now() - timedelta(days=1))
    assert desk.attend(WORKER) == []
    clock.advance(30)
    assert [each.id for each in desk.attend(WORKER)] == [run.id]


def test_setting_the_clock_back_does_not_delay_recorded_ticks_by_as_much():
    clock = SetClock(datetime(2026, 3, 2, 1, 10, tzinfo=UTC))
    store = InMemoryJobStore(clock)
    desk = JobDesk(store, {"job": JobRule("job", replace(RATE, jitter=20))}, lambda: 1.0)
    desk.attend(WORKER)
    (queued,) = store.look().runs
    clock.set(clock.now() - timedelta(days=1))
    assert desk.attend(WORKER) == []
    clock.advance(20)
    assert queued.id in [run.id for run in desk.attend(WORKER)]


def test_a_tick_that_repeats_after_the_clock_is_set_back_starts_no_second_run():
    clock = SetClock(datetime(2026, 3, 2, 1, 10, tzinfo=UTC))
    store = InMemoryJobStore(clock)
    desk = JobDesk(store, {"job": JobRule("job", Ticking(CronSchedule("30 * * * *"), "cron"))})
    begun = []
    for minutes, back in ((0, 0), (20, 0), (60, 100), (20, 0), (60, 0), (60, 0), (60, 0)):
        clock.advance(60 * minutes)
        for run in desk.attend(WORKER):
            begun.append(f"{run.scheduled_at:%H:%M}")
            desk.finish(run, Ending(RunPosition(done=True)))
        clock.set(clock.now() - timedelta(minutes=back))
    assert begun == ["01:30", "02:30", "03:30"]


@pytest.mark.parametrize(
    ("misfire", "ahead", "later"),
    [
        pytest.param(Misfire.RUN_ONCE, ["04:30"], ["01:30", "02:30", "03:30", "05:30"], id="run-once"),
        pytest.param(Misfire.SKIP, ["04:30"], ["01:30", "02:30", "03:30", "05:30"], id="skip"),
    ],
)
def test_ticks_that_the_clock_passed_while_it_was_ahead_start_their_runs_once_it_is_set_back(misfire, ahead, later):
    clock = SetClock(datetime(2026, 3, 2, 1, 10, tzinfo=UTC))
    store = InMemoryJobStore(clock)
    desk = JobDesk(store, {"job": JobRule("job", Ticking(CronSchedule("30 * * * *"), "cron", misfire=misfire))})
    begun: list[str] = []

    def attend() -> None:
        for run in desk.attend(WORKER):
            begun.append(f"{run.scheduled_at:%H:%M}")
            desk.finish(run, Ending(RunPosition(done=True)))

    attend()
    clock.advance(3 * 3_600 + 20 * 60)
    attend()
    assert begun == ahead
    clock.set(clock.now() - timedelta(hours=3, minutes=20))
    attend()
    clock.advance(20 * 60)
    for _ in range(5):
        attend()
        clock.advance(3_600)
    assert begun == ahead + later
    assert {f"{run.scheduled_at:%H:%M}" for run in store.history()} == {*ahead, *later}


@pytest.mark.parametrize("misfire", Misfire)
def test_a_run_in_progress_stays_as_it_is_when_its_tick_repeats_after_the_clock_is_set_back(misfire):
    clock = SetClock(datetime(2026, 3, 2, 1, 10, tzinfo=UTC))
    store = InMemoryJobStore(clock)
    desk = JobDesk(store, {"job": JobRule("job", Ticking(CronSchedule("30 * * * *"), "cron", misfire=misfire))})
    desk.attend(WORKER)
    clock.advance(20 * 60)
    (run,) = desk.attend(WORKER)
    clock.set(clock.now() - timedelta(hours=2))
    for _ in range(6):
        assert desk.attend(WORKER) == []
        clock.advance(30 * 60)
    assert store.find(run.id) == run


def test_the_run_that_has_waited_longest_for_capacity_begins_first():
    clock = FakeClock()
    store = InMemoryJobStore(clock)
    desk = JobDesk(store, {name: JobRule(name) for name in ("a", "z")})
    worker = replace(WORKER, free=1, ticks_of=frozenset())
    begun = []
    for second in range(6):  # ordered by name, a run of a would always precede the one of z
        store.request(JobRun(f"a{second}", "a", Trigger.EVENT, clock.now(), ids=(second,), due_at=clock.now()))
        if second == 1:
            store.request(JobRun("z", "z", Trigger.MANUAL, clock.now(), due_at=clock.now()))
        clock.advance(1)
        for run in desk.attend(worker):
            begun.append(run.id)
            desk.finish(run, Ending(RunPosition(done=True)))
    assert begun == ["a0", "a1", "z", "a2", "a4", "a5"]


class LateStore(InMemoryJobStore):
    """A store in which the owner of a run commits again while another process takes the run over."""

    @contextmanager
    def open(self, jobs: Collection[str]) -> Iterator[JobBook]:
        with super().open(jobs) as book:
            put, seen = book.put, set()

            def put_late(run: JobRun) -> JobRun:
                if run.status is RunStatus.RETRYING and run.id not in seen:
                    seen.add(run.id)
                    run = replace(run, position=RunPosition(after=7, items=7))
                return put(run)

            book.put = put_late
            yield book


def test_a_run_that_is_taken_over_continues_after_the_last_commit_of_its_owner():
    clock = FakeClock()
    store = LateStore(clock)
    store.request(JobRun("run", "job", Trigger.MANUAL, clock.now(), due_at=clock.now()))
    rules = {"job": JobRule("job")}
    assert JobDesk(store, rules).attend(WORKER)[0].position == RunPosition()
    heir = replace(WORKER, node="heir", alive=frozenset({"heir"}), alive_now=lambda: {"heir"})
    (begun,) = JobDesk(store, rules).attend(heir)
    assert begun.position == RunPosition(after=7, items=7)
    assert store.find("run") == begun


class HeldStore(InMemoryJobStore):
    """A store in which another process locks the records of one job permanently."""

    @contextmanager
    def open(self, jobs: Collection[str]) -> Iterator[JobBook]:
        if "m" in jobs:
            raise TimeoutError("another process holds them")
        with super().open(jobs) as book:
            yield book

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, TimeoutError)


def test_locked_records_of_a_job_do_not_block_runs_of_other_jobs():
    clock = FakeClock()
    store = HeldStore(clock)
    desk = JobDesk(store, {name: JobRule(name) for name in "amz"})
    worker = replace(WORKER, ticks_of=frozenset())
    for name in "amz":
        store.request(JobRun(name, name, Trigger.MANUAL, clock.now(), due_at=clock.now()))
    clock.advance(1)
    assert [run.id for run in desk.attend(worker)] == ["a"]  # it is executed, and the next poll does not begin it again
    assert [run.id for run in desk.attend(worker)] == ["z"]
    assert desk.attend(worker) == []
    assert desk.next_due(store.look(), worker) == clock.now() + timedelta(seconds=3)  # not immediately, in a loop
    clock.advance(3)
    with pytest.raises(TimeoutError):
        desk.attend(worker)
    assert [run.attempt for run in store.look().runs] == [1, 0, 1]


def test_the_time_of_the_last_success_is_kept_while_later_runs_fail():
    clock = FakeClock()
    store = InMemoryJobStore(clock)
    desk = JobDesk(store, {"job": JobRule("job", RATE)})
    ends = []
    for error in ("", "", "broken"):
        (run,) = desk.attend(WORKER)
        desk.finish(run, Ending(RunPosition(done=True), error=error, permanent=True))
        ends.append(clock.now())
        clock.advance(5)
    assert store.look().records["job"].succeeded_at == ends[1]
    desk.pause("job", "ann", "")
    desk.resume("job")
    assert store.look().records["job"].succeeded_at == ends[1]


def test_a_run_begun_under_an_earlier_node_id_without_a_reply_is_begun_again():
    """Its owner counts as alive, because the process still executes other runs that it began under that id."""
    clock = FakeClock()
    store = InMemoryJobStore(clock)
    store.request(JobRun("run", "job", Trigger.MANUAL, clock.now(), due_at=clock.now()))
    rules = {"job": JobRule("job")}
    JobDesk(store, rules).attend(WORKER)  # the reply is lost
    again = replace(WORKER, node="another", alive=frozenset({"node", "another"}), alive_now=lambda: {"node", "another"})
    desk = JobDesk(store, rules)
    assert desk.attend(again) == []
    (begun,) = desk.attend(replace(again, own=frozenset({"node", "another"})))
    assert (begun.id, begun.owner, begun.attempt) == ("run", "another", 1)

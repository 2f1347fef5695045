"""Each change of a run's status at the desk, with one process, two, or a dead one."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from opencqrs_py.adapters.memory.jobs import InMemoryJobStore
from opencqrs_py.jobs.desk import Ending, JobDesk, Worker
from opencqrs_py.jobs.rules import JobRule, Meeting, Ticking
from opencqrs_py.jobs.runs import JobRecord, JobRun, RunPosition, RunStatus
from opencqrs_py.jobs.sitting import MOST_DEATHS
from opencqrs_py.jobs.ticks import MOST_TICKS
from opencqrs_py.model.choices import Misfire, Overlap, OverlapScope
from opencqrs_py.model.job import Trigger
from opencqrs_py.processing.inbox.schedules import CronSchedule, FixedDelay, FixedRate
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.testing.clock import FakeClock

RATE = Ticking(FixedRate(0, 10), "every 10 s")
DELAY = Ticking(FixedDelay(3, 10), "10 s after the end of a run", from_end=True)
DONE = Ending(RunPosition(done=True))
FAILED = Ending(RunPosition(), error="no")


class World:
    """Processes ``a``, ``b`` ... on one store."""

    def __init__(self, *rules: JobRule) -> None:
        self.clock = FakeClock()
        self.store = InMemoryJobStore(self.clock)
        self.rules = {rule.name: rule for rule in rules or (JobRule("job"),)}
        self.alive = {"a", "b"}
        self.desks: dict[str, JobDesk] = {}

    def desk(self, node: str = "a") -> JobDesk:
        return self.desks.setdefault(node, JobDesk(self.store, self.rules, lambda: 0.5))

    def worker(self, node: str = "a", *, free: int = 4, known: Collection[str] | None = None) -> Worker:
        known = frozenset(self.alive if known is None else known)
        return Worker(node, f"host {node}", known, free, frozenset(self.rules), lambda: self.alive)

    def attend(self, node: str = "a", **others: Any) -> list[JobRun]:
        return self.desk(node).attend(self.worker(node, **others))

    def request(self, id_: str, job: str = "job", trigger: Trigger = Trigger.MANUAL, **others: Any) -> str:
        run = replace(JobRun(id_, job, trigger, self.clock.now()), **others)
        assert self.store.request(run)
        return id_

    def event(self, id_: str, *ids: int | str, job: str = "job") -> str:
        return self.request(id_, job, Trigger.EVENT, ids=ids or None)

    def run(self, id_: str) -> JobRun:
        found = self.store.find(id_)
        assert found is not None
        return found

    def statuses(self) -> dict[str, str]:
        return {run.id: run.status.value for run in self.store.history()}

    def ticks(self) -> list[str]:
        runs = [run for run in self.store.history() if run.trigger is Trigger.SCHEDULE]
        return [run.status.value for run in reversed(runs)]

    def at(self, seconds: float) -> datetime:
        return FakeClock().now() + timedelta(seconds=seconds)


def only(runs: list[JobRun]) -> JobRun:
    (run,) = runs
    return run


def test_a_run_begins_and_ends():
    world = World()
    world.request("x", actor="ann")
    run = only(world.attend())
    assert (run.status, run.attempt, run.owner, run.node, run.token) == (RunStatus.RUNNING, 1, "a", "host a", 1)
    assert (run.started_at, run.actor) == (world.at(0), "ann")
    world.clock.advance(7)
    ended = world.desk().finish(run, Ending(RunPosition(done=True, items=3), reason="the rest is for the next run"))
    assert (ended.status, ended.ended_at, ended.owner, ended.token) == (RunStatus.SUCCEEDED, world.at(7), "", 2)
    assert (ended.position.items, ended.reason) == (3, "the rest is for the next run")
    assert world.attend() == []


def test_two_processes_begin_a_run_once():
    world = World()
    world.request("x")
    assert len([*world.attend("a"), *world.attend("b"), *world.attend("a")]) == 1


def test_a_run_begins_when_it_is_due():
    world = World()
    world.request("x", due_at=world.at(5))
    assert world.attend() == []
    assert world.desk().next_due(world.store.look(), world.worker()) == world.at(5)
    world.clock.advance(5)
    assert only(world.attend()).id == "x"


def test_j19_a_failed_run_is_retried_and_then_abandoned():
    world = World(JobRule("job", back_off=FixedBackOff(3, 1)))
    world.request("x")
    known = world.desk().finish(only(world.attend()), Ending(RunPosition(after=4), error="no\n  line 3"))
    assert (known.status, known.due_at, known.error, known.owner) == (
        RunStatus.RETRYING,
        world.at(3),
        "no\n  line 3",
        "",
    )
    assert known.position.after == 4
    assert world.attend() == []
    world.clock.advance(3)
    run = only(world.attend("b"))
    assert (run.attempt, run.started_at) == (2, world.at(0))
    known = world.desk("b").finish(run, FAILED)
    assert (known.status, known.error, known.attempt) == (RunStatus.FAILED, "no", 2)


def test_j19_a_permanent_failure_is_not_retried():
    world = World(JobRule("job", back_off=FixedBackOff(3)))
    world.request("x")
    assert world.desk().finish(only(world.attend()), replace(FAILED, permanent=True)).status is RunStatus.FAILED


@pytest.mark.parametrize("ticking", [RATE, DELAY], ids=["fixed rate", "fixed delay"])
def test_j19_a_failing_run_does_not_end_the_schedule(ticking):
    world = World(JobRule("job", ticking))
    found = []
    for _ in range(40):
        for run in world.attend():
            found.append(run.id)
            world.desk().finish(run, FAILED)
        world.clock.advance(1)
    assert len(found) == 4


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        pytest.param(
            RunPosition(9, done=True, items=3, failed=(2, 5), error="2: no"),
            RunPosition(items=3, only=(2, 5)),
            id="all tried",
        ),
        pytest.param(
            RunPosition(5, items=3, failed=(2,), error="2: no"),
            RunPosition(5, items=3, failed=(2,), error="2: no"),
            id="not all tried",
        ),
    ],
)
def test_failed_items_are_retried_once_all_others_were_tried(position, expected):
    world = World(JobRule("job", back_off=FixedBackOff(0)))
    world.request("x")
    assert world.desk().finish(only(world.attend()), Ending(position, error="no")).position == expected


def test_a_run_of_a_dead_process_is_taken_over_with_the_next_token():
    world = World(JobRule("job", back_off=FixedBackOff(0, 0)))
    world.request("x")
    lost = only(world.attend("a"))
    world.store.advance(lost, RunPosition(after=7, items=7))
    world.alive = {"b"}
    run = only(world.attend("b"))
    assert (run.id, run.owner, run.deaths, run.attempt) == ("x", "b", 1, 2)
    assert run.token > lost.token
    assert run.position == RunPosition(after=7, items=7)
    assert not world.store.advance(lost, RunPosition(after=8))
    assert not world.store.report(lost)
    assert world.desk("a").finish(lost, DONE) is None
    assert world.desk("b").finish(run, DONE).status is RunStatus.SUCCEEDED


def test_deaths_of_the_process_use_no_attempts_and_three_of_them_fail_a_run():
    world = World(JobRule("job", back_off=FixedBackOff(0, 0)))
    world.request("x")
    for node in "abc":
        world.alive = {node}
        assert only(world.attend(node)).status is RunStatus.RUNNING
    world.alive = {"d"}
    assert world.attend("d") == []
    run = world.run("x")
    assert (run.status, run.deaths) == (RunStatus.FAILED, 3)
    assert run.error == "3 processes have ended during this run, the last one is node host c"


def test_a_failure_after_a_death_of_the_process_has_the_remaining_attempts():
    world = World(JobRule("job", back_off=FixedBackOff(0, 1)))
    world.request("x")
    world.attend("a")
    world.alive = {"b"}
    assert world.desk("b").finish(only(world.attend("b")), FAILED).status is RunStatus.RETRYING
    assert world.desk("b").finish(only(world.attend("b")), FAILED).status is RunStatus.FAILED


def test_no_run_is_taken_from_a_process_that_has_just_started():
    world = World()
    world.request("x")
    world.alive = {"a", "b", "new"}
    run = only(world.attend("new"))
    assert world.attend("a", known={"a", "b"}) == []
    assert world.run("x") == run


def test_live_processes_are_only_queried_if_a_run_has_lost_its_process():
    world = World()
    world.request("x")
    world.attend("a")

    def asked() -> Collection[str]:
        raise AssertionError

    worker = replace(world.worker("b"), alive_now=asked)
    assert world.desk("b").attend(worker) == []


def test_a_released_run_continues_on_another_node_in_the_same_attempt():
    world = World(JobRule("job", back_off=FixedBackOff(0, 0)))
    world.request("x")
    first = only(world.attend("a"))
    assert world.store.advance(first, RunPosition(after=3, items=3))
    known = world.desk("a").finish(first, Ending(RunPosition(), reason="its process is ending", released=True))
    assert (known.status, known.position.after, known.reason) == (RunStatus.RETRYING, 3, "its process is ending")
    run = only(world.attend("b"))
    assert (run.attempt, run.deaths, run.reason, run.position.after) == (1, 0, "", 3)
    assert world.desk("b").finish(run, FAILED).status is RunStatus.FAILED


@pytest.mark.parametrize(
    "ending", [FAILED, replace(FAILED, error="", released=True), Ending(RunPosition(), cancelled=True)]
)
def test_a_run_with_a_cancel_request_is_not_retried(ending):
    world = World(JobRule("job", back_off=FixedBackOff(0)))
    world.request("x")
    run = only(world.attend())
    world.store.advance(run, RunPosition(after=2))
    asked = world.desk("b").cancel("x", "not needed", "ann")
    assert (asked.status, asked.cancelled_at, asked.actor) == (RunStatus.RUNNING, world.at(0), "ann")
    known = world.desk().finish(run, ending)
    assert known.status is RunStatus.CANCELLED
    assert known.reason == "not needed"
    assert (known.position.after == 2) == (not ending.error)


def test_a_run_that_completes_despite_a_cancel_request_has_succeeded():
    world = World()
    world.request("x")
    run = only(world.attend())
    world.desk().cancel("x", "not needed")
    assert world.desk().finish(run, DONE).status is RunStatus.SUCCEEDED


def test_a_run_with_a_cancel_request_ends_with_its_process():
    world = World()
    world.request("x")
    world.attend("a")
    world.desk().cancel("x", "not needed")
    world.alive = {"b"}
    assert world.attend("b") == []
    assert (world.run("x").status, world.run("x").reason) == (RunStatus.CANCELLED, "not needed")


def test_a_run_that_no_process_executes_is_cancelled_at_once():
    world = World(JobRule("job", back_off=FixedBackOff(9), meeting=Meeting(Overlap.QUEUE)))
    world.request("retrying")
    world.desk().finish(only(world.attend()), FAILED)
    world.request("queued")
    world.attend()
    assert world.statuses() == {"retrying": "retrying", "queued": "queued"}
    assert world.desk().cancel("queued", "no").status is RunStatus.CANCELLED
    assert world.desk().cancel("retrying", "no").status is RunStatus.CANCELLED
    assert world.desk().cancel("retrying", "again") is None
    assert world.desk().cancel("unknown", "no") is None


def test_cancelling_twice_keeps_the_first_time():
    world = World()
    world.request("x")
    world.attend()
    world.desk().cancel("x", "one")
    world.clock.advance(5)
    assert world.desk().cancel("x", "two").cancelled_at == world.at(0)


@pytest.mark.parametrize(("alive", "status"), [("ab", RunStatus.RUNNING), ("b", RunStatus.CANCELLED)])
def test_cancelling_a_run_of_an_unknown_job_ends_it_once_its_process_has_ended(alive, status):
    world = World()
    world.request("x")
    run = only(world.attend())
    others = JobDesk(world.store, {})
    assert others.cancel("x", "removed", alive_now=lambda: set(alive)).status is status
    assert world.run("x").reason == "removed"
    assert (world.desk().finish(run, DONE) is not None) == (status is RunStatus.RUNNING)


def test_a_reserved_run_is_left_to_its_caller():
    world = World()
    world.request("x", reserved="a")
    assert world.attend("a") == world.attend("b") == []
    assert world.desk("b").begin("x", world.worker("b")).status is RunStatus.QUEUED
    assert world.desk("a").begin("x", world.worker("a")).status is RunStatus.RUNNING
    assert world.desk("a").begin("x", world.worker("a")).token == 1
    assert world.desk("a").next_due(world.store.look(), world.worker("a")) is None


def test_a_reserved_run_is_never_due_for_other_processes():
    world = World()
    world.request("x", reserved="a")
    assert world.desk("b").next_due(world.store.look(), world.worker("b")) is None


def test_a_reserved_run_that_has_not_begun_ends_with_its_process():
    world = World()
    world.request("x", reserved="a")
    world.alive = {"b"}
    assert world.attend("b") == []
    assert world.run("x").reason == "the process that was to run it has ended"
    assert world.run("x").status is RunStatus.CANCELLED


def test_a_reserved_run_that_has_begun_continues_elsewhere_when_its_process_ends():
    world = World()
    world.request("x", reserved="a")
    run = world.desk("a").begin("x", world.worker("a"))
    assert world.store.advance(run, RunPosition(after=3, items=3))
    world.alive = {"b"}
    known = only(world.attend("b"))
    assert (known.owner, known.attempt, known.deaths, known.reserved) == ("b", 2, 1, "")
    assert known.position.items == 3
    assert world.desk("a").finish(run, DONE) is None
    (reported,) = world.desk("b").recovered()
    assert (reported.status, reported.error) == (RunStatus.RETRYING, "the process of node host a has ended")


def test_a_reserved_run_that_waits_for_its_next_attempt_when_its_process_ends_has_it_elsewhere():
    world = World(JobRule("job", back_off=FixedBackOff(3, 1)))
    world.request("x", reserved="a")
    world.desk("a").finish(world.desk("a").begin("x", world.worker("a")), FAILED)
    world.alive = {"b"}
    assert world.attend("b") == []
    (reported,) = world.desk("b").recovered()
    assert (reported.status, reported.deaths, reported.error) == (RunStatus.RETRYING, 0, "no")
    assert reported.reason == "the process of node host a has ended"
    world.clock.advance(3)
    run = only(world.attend("b"))
    assert (run.attempt, run.reason) == (2, "")
    assert world.desk("b").finish(run, FAILED).status is RunStatus.FAILED


@pytest.mark.parametrize(
    ("trigger", "reserved", "ended", "alive", "left"),
    [
        (Trigger.MANUAL, "", "", "b", True),
        (Trigger.MANUAL, "a", "", "b", True),
        (Trigger.MANUAL, "", "", "ab", False),
        (Trigger.MANUAL, "a", "failed", "b", True),
        (Trigger.MANUAL, "a", "failed", "ab", False),
        (Trigger.MANUAL, "", "failed", "ab", True),
        (Trigger.MANUAL, "", "done", "b", False),
        *((trigger, "", "", "b", False) for trigger in Trigger if trigger is not Trigger.MANUAL),
    ],
)
def test_a_requested_run_that_has_begun_and_that_no_process_has_in_hand_is_left(trigger, reserved, ended, alive, left):
    world = World(JobRule("job", back_off=FixedBackOff(3, 1)))
    world.request("x", trigger=trigger, reserved=reserved)
    run = world.desk("a").begin("x", world.worker("a")) if reserved else only(world.attend("a"))
    if ended:
        world.desk("a").finish(run, DONE if ended == "done" else FAILED)
    world.alive = set(alive)
    for name in "yz":  # that have not begun
        world.request(name, reserved="b" if name == "y" else "")
    assert [each.id for each in world.desk("b").left("job", world.worker("b"))] == ["x"] * left


def test_a_caller_begins_no_run_but_its_own():
    world = World(JobRule("job", meeting=Meeting(Overlap.QUEUE, OverlapScope.PER_ID)))
    world.request("x", ids=(1,))
    run = only(world.attend("a"))
    world.desk("a").finish(run, Ending(run.position, released=True))
    for name, ids, reserved in [("w", (4,), ""), ("z", (2,), "a"), ("y", (3,), "b")]:
        world.request(name, ids=ids, reserved=reserved)
    assert world.desk("b").begin("y", world.worker("b")).id == "y"
    assert {each: world.run(each).status.value for each in "wxz"} == {"w": "queued", "x": "retrying", "z": "queued"}


def test_j5_a_caller_sees_that_its_run_was_skipped_or_waits():
    world = World(JobRule("job"), JobRule("queue", meeting=Meeting(Overlap.QUEUE)))
    for job in ("job", "queue"):
        world.request(f"{job} 1", job)
        assert only(world.attend("b")).job == job
        world.request(f"{job} 2", job, reserved="a")
    assert world.desk().begin("job 2", world.worker()).status is RunStatus.SKIPPED
    assert world.desk().begin("queue 2", world.worker()).queued


def test_j5_a_caller_sees_that_its_run_was_cancelled_while_it_waited():
    world = World(JobRule("job", meeting=Meeting(Overlap.QUEUE)))
    world.request("x")
    world.attend()
    world.request("y", reserved="a")
    assert world.desk().begin("y", world.worker()).queued
    world.desk("b").cancel("y", "not needed")
    assert world.desk().begin("y", world.worker()).status is RunStatus.CANCELLED


@pytest.mark.parametrize("run", ["unknown", "elsewhere"])
def test_beginning_an_unknown_run_or_a_run_of_an_unknown_job_is_refused(run):
    world = World()
    world.request("elsewhere", "a job of other processes")
    with pytest.raises(LookupError, match=run):
        world.desk().begin(run, world.worker())


def test_a_full_worker_begins_no_run_but_still_skips_ticks_that_come_during_a_run():
    world = World(JobRule("job", RATE))
    run = only(world.attend(free=1))
    world.clock.advance(10)
    assert world.attend(free=0) == []
    world.desk().finish(run, DONE)
    assert world.attend(free=1) == []
    assert world.ticks() == ["succeeded", "skipped"]


def test_a_full_worker_does_not_fence_off_a_run_that_it_cannot_replace():
    world = World(JobRule("job", meeting=Meeting(Overlap.CANCEL, grace=5)))
    world.request("old")
    world.attend("b")
    world.request("new")
    world.attend("a")
    world.clock.advance(5)
    assert world.attend("a", free=0) == []
    assert world.run("old").status is RunStatus.RUNNING
    assert only(world.attend("a", free=1)).id == "new"
    assert world.run("old").reason == "it did not end within 5 s"
    assert world.run("old").status is RunStatus.CANCELLED


def test_a_retrying_run_is_cancelled_at_once_by_a_new_run():
    world = World(JobRule("job", meeting=Meeting(Overlap.CANCEL), back_off=FixedBackOff(60)))
    world.request("old")
    world.desk().finish(only(world.attend()), FAILED)
    world.request("new")
    assert only(world.attend()).id == "new"
    assert world.run("old").reason == "run new is to take its place"


def test_the_newest_run_replaces_waiting_runs():
    world = World(JobRule("job", meeting=Meeting(Overlap.CANCEL)))
    world.request("1")
    world.attend()
    world.clock.advance(1)
    world.request("2")
    world.attend()
    world.clock.advance(1)
    world.request("3")
    world.attend()
    assert world.statuses() == {"1": "running", "2": "coalesced", "3": "queued"}
    assert world.run("2").into == "3"
    assert world.run("1").cancelled_at == world.at(1)


def test_a_released_run_needs_free_capacity():
    world = World()
    world.request("x")
    world.desk().finish(only(world.attend()), Ending(RunPosition(), released=True))
    assert world.attend("b", free=0) == []
    assert only(world.attend("b", free=1)).id == "x"


@pytest.mark.parametrize("first", ["one", "other"])
@pytest.mark.parametrize("overlap", list(Overlap))
def test_j17_jobs_that_exclude_each_other_do_so_both_ways(first, overlap):
    meeting = Meeting(overlap, exclusive=frozenset({"other"}))
    world = World(JobRule("one", meeting=meeting), JobRule("other", meeting=Meeting(overlap)), JobRule("free"))
    second = "other" if first == "one" else "one"
    world.request("first", first)
    run = only(world.attend("a"))
    world.request("second", second)
    world.request("third", "free")
    assert only(world.attend("b")).id == "third"
    # otherwise one of two jobs with the same time would be skipped every day
    assert world.run("second").status is RunStatus.QUEUED
    world.desk("a").finish(run, DONE)
    assert [each.id for each in world.attend("b")] == ["second"]


def test_j17_a_job_may_list_itself_as_exclusive():
    world = World(JobRule("job", meeting=Meeting(Overlap.QUEUE, exclusive=frozenset({"job"}))))
    world.request("1")
    assert only(world.attend()).id == "1"


def test_runs_of_unknown_jobs_are_left_alone():
    world = World()
    world.request("x", "a job of other processes")
    world.request("y")
    assert only(world.attend()).id == "y"
    assert world.desk().next_due(world.store.look(), world.worker()) is None


def test_j17_a_run_that_died_too_often_does_not_block_an_exclusive_job_forever():
    world = World(JobRule("one", meeting=Meeting(Overlap.QUEUE, exclusive=frozenset({"other"}))), JobRule("other"))
    for node in "abc":
        world.alive = {node}
        if node == "a":
            world.request("x", "other")
        only(world.attend(node))
    world.alive = {"d"}
    world.request("y", "one")
    assert only(world.attend("d")).id == "y"


def test_j4_a_startup_run_begins_after_its_delay_once():
    world = World()
    run = JobRun("job@start:a", "job", Trigger.STARTUP, world.at(0), due_at=world.at(5))
    assert world.store.request(run)
    assert not world.store.request(run)
    assert world.attend() == []
    world.clock.advance(5)
    assert only([*world.attend("b"), *world.attend("a")]).trigger is Trigger.STARTUP


def test_events_are_coalesced_up_to_one_page_of_ids():
    world = World(JobRule("job", limit=3))
    for id_, ids in {"e1": (1, 2), "e2": (2, 3), "e3": (4,), "e4": ("1",)}.items():
        world.event(id_, *ids)
    run = only(world.attend())
    assert (run.id, run.ids) == ("e1", (1, 2, 3))
    assert world.statuses() == {"e1": "running", "e2": "coalesced", "e3": "queued", "e4": "coalesced"}
    world.desk().finish(run, DONE)
    assert only(world.attend()).ids == (4,)


def test_an_event_without_ids_absorbs_all_others():
    world = World(JobRule("job", limit=1))
    world.event("e1", 1)
    world.event("e2")
    assert only(world.attend()).ids is None
    assert world.run("e2").into == "e1"


def test_events_for_an_id_of_an_active_run_are_not_coalesced():
    world = World(JobRule("job", meeting=Meeting(scope=OverlapScope.PER_ID)))
    world.request("x", ids=("2",))
    world.attend()
    for id_, ids in {"e1": (1,), "e2": (2,), "e3": (3,)}.items():
        world.event(id_, *ids)
    run = only(world.attend())
    assert run.ids == (1, 3)
    assert (world.run("e2").status, world.run("e2").queued) == (RunStatus.QUEUED, True)


def test_waiting_events_and_events_not_yet_due_are_left_alone():
    world = World(JobRule("job", meeting=Meeting(scope=OverlapScope.PER_ID)))
    world.event("e1", 1)
    world.request("late", trigger=Trigger.EVENT, ids=(2,), due_at=world.at(9))
    world.request("asked", ids=(5,))
    assert sorted(run.id for run in world.attend(free=3)) == ["asked", "e1"]
    assert world.run("late").status is RunStatus.QUEUED


def test_a_retried_run_of_an_event_absorbs_no_other_events():
    world = World(JobRule("job", back_off=FixedBackOff(0)))
    world.event("e1", 1)
    world.desk().finish(only(world.attend()), FAILED)
    world.event("e2", 2)
    assert only(world.attend()).ids == (1,)


def test_many_waiting_events_are_written_once(monkeypatch):
    world = World()
    world.event("e0", 0)
    world.attend()
    for number in range(1, 2_000):
        world.event(f"e{number}", number)
    written: list[str] = []
    put = InMemoryJobStore.open

    @contextmanager
    def counting(store, jobs):
        with put(store, jobs) as book:
            original = book.put

            def noted(run):
                written.append(run.id)
                return original(run)

            book.put = noted
            yield book

    monkeypatch.setattr(InMemoryJobStore, "open", counting)
    for _ in range(3):
        assert world.attend() == []
    assert len(written) == 1_999


def test_a_paused_job_skips_ticks_and_starts_queues_events_and_runs_manual_requests():
    world = World(JobRule("job", RATE, Meeting(Overlap.QUEUE)))
    in_hand = only(world.attend())
    world.event("held")
    world.attend()
    record, is_new = world.desk().pause("job", "ann", "maintenance")
    assert is_new
    assert (record.paused_at, record.paused_by, record.reason) == (world.at(0), "ann", "maintenance")
    assert world.desk().pause("job", "bob", "again") == (record, False)
    world.clock.advance(10)
    world.request("start", trigger=Trigger.STARTUP)
    assert world.attend() == []
    assert world.run("start").reason == "the job is paused by ann: maintenance"
    assert world.run("start").status is RunStatus.SKIPPED
    world.desk().finish(in_hand, DONE)
    assert world.attend() == []
    view = world.store.look()
    assert world.desk().next_due(view, world.worker()) == world.at(20)
    world.request("asked")
    run = only(world.attend())
    assert run.id == "asked"
    world.desk().finish(run, DONE)
    resumed, was_paused = world.desk().resume("job")
    assert (resumed.is_paused, was_paused) == (False, True)
    assert only(world.attend()).id == "held"
    assert not world.desk().resume("job")[1]
    assert world.ticks() == ["succeeded", "skipped"]


def test_a_new_event_of_a_paused_job_causes_no_immediate_poll():
    world = World()
    world.desk().pause("job", "", "")
    world.event("held")
    assert world.attend() == []
    assert world.desk().next_due(world.store.look(), world.worker()) is None
    world.request("asked")
    assert world.desk().next_due(world.store.look(), world.worker()) == world.at(0)


def test_a_pause_without_name_or_reason_has_a_short_message():
    world = World(JobRule("job", RATE))
    world.desk().pause("job", "", "")
    world.attend()
    assert only(world.store.history()).reason == "the job is paused"


def test_a_retry_runs_during_a_pause():
    world = World(JobRule("job", RATE, back_off=FixedBackOff(5)))
    world.desk().finish(only(world.attend()), FAILED)
    world.desk().pause("job", "ann", "")
    world.clock.advance(5)
    assert only(world.attend()).attempt == 2


@pytest.mark.parametrize("paused", [False, True])
def test_j14_a_fixed_delay_always_has_a_next_tick(paused):
    world = World(JobRule("job", replace(DELAY, misfire=Misfire.SKIP, grace=1)))
    if paused:
        world.desk().pause("job", "ann", "")
    found = []
    for second in range(36):
        if second == 13 and paused:
            world.desk().resume("job")
        for run in world.attend():
            found.append(second)
            world.desk().finish(run, FAILED)
        world.clock.advance(1)
    assert found == ([13, 23, 33] if paused else [3, 13, 23, 33])


@pytest.mark.parametrize("how", ["cancelled", "dead", "skipped", "fenced", "by a process that does not know the job"])
def test_j14_a_fixed_delay_starts_when_a_run_ends_for_any_reason(how):
    overlap = Overlap.CANCEL if how == "fenced" else Overlap.SKIP
    world = World(JobRule("job", DELAY, Meeting(overlap, grace=0)))
    world.attend()
    world.clock.advance(3)
    if how == "skipped":
        world.request("x")
        world.desk().begin("x", world.worker())
        assert world.attend() == []
    else:
        run = only(world.attend())
    match how:
        case "cancelled":
            world.desk().finish(run, Ending(RunPosition(), cancelled=True))
        case "dead":
            for node in "bcd":
                world.alive = {node}
                world.attend(node)
            world.alive = {"a", "b"}
        case "fenced":
            world.request("x")
            assert world.attend() == []
            assert only(world.attend()).id == "x"
        case "by a process that does not know the job":
            world.desk().finish(run, Ending(RunPosition(), released=True))
            assert JobDesk(world.store, {}).cancel(run.id, "no").status is RunStatus.CANCELLED
            assert world.store.look().records["job"].next_tick is None
            world.attend()
    assert world.store.look().records["job"].next_tick == world.at(13)


def test_a_changed_schedule_starts_from_now():
    world = World(JobRule("job", RATE))
    world.desk().finish(only(world.attend()), DONE)
    world.clock.advance(4)
    world.rules["job"] = JobRule("job", Ticking(FixedRate(1, 5), "every 5 s"))
    world.attend()
    assert world.store.look().records["job"] == JobRecord("job", "every 5 s", world.at(5), succeeded_at=world.at(0))


@pytest.mark.parametrize(
    ("ticking", "ticks", "following"),
    [
        pytest.param(Ticking(FixedRate(5, 5), "new"), ["succeeded", "running"], 20, id="run-once: it runs"),
        pytest.param(
            Ticking(FixedRate(5, 5), "new", misfire=Misfire.SKIP, grace=2), ["succeeded", "skipped"], 20, id="skip"
        ),
        pytest.param(
            replace(DELAY, text="new"), ["succeeded", "running"], None, id="fixed delay: the next one follows its end"
        ),
        pytest.param(Ticking(), ["succeeded", "skipped"], None, id="without a schedule"),
    ],
)
def test_a_tick_due_before_the_schedule_changed_is_recorded(ticking, ticks, following):
    world = World(JobRule("job", RATE))
    world.desk().finish(only(world.attend()), DONE)
    world.clock.advance(15)
    world.rules["job"] = JobRule("job", ticking)
    world.attend()
    assert world.ticks() == ticks
    assert world.store.look().records["job"].next_tick == (None if following is None else world.at(following))


def test_a_process_whose_schedule_is_not_the_newest_handles_no_ticks():
    world = World(JobRule("job", RATE))
    worker = replace(world.worker(), ticks_of=frozenset())
    assert world.desk().attend(worker) == []
    assert world.store.look().records == {}
    assert only(world.attend("b")).scheduled_at == world.at(0)
    world.store.history()
    old = JobDesk(world.store, {"job": JobRule("job", DELAY)})
    ended = old.finish(only(list(world.store.look().runs)), DONE)
    assert ended.status is RunStatus.SUCCEEDED
    assert world.store.look().records["job"].next_tick == world.at(10)


def test_setting_the_clock_back_repeats_no_tick():
    world = World(JobRule("job", RATE))
    world.clock = FakeClock(world.at(100))
    world.store._clock = world.clock
    world.desk().finish(only(world.attend()), DONE)
    world.store._clock = FakeClock(world.at(95))
    assert world.attend() == []
    world.store._clock = FakeClock(world.at(110))
    assert only(world.attend()).scheduled_at == world.at(110)


def test_j7_jitter_delays_the_run_and_not_the_tick():
    world = World(JobRule("job", replace(RATE, jitter=4, misfire=Misfire.CATCH_UP)))
    assert world.attend() == []
    run = only(list(world.store.look().runs))
    assert (run.scheduled_at, run.due_at) == (world.at(0), world.at(2))
    assert world.desk().next_due(world.store.look(), world.worker()) == world.at(2)
    world.clock.advance(2)
    assert only(world.attend()).id == run.id


@pytest.mark.parametrize(
    ("misfire", "seconds", "status"),
    [
        (Misfire.SKIP, 3, RunStatus.RUNNING),
        (Misfire.SKIP, 4, RunStatus.SKIPPED),
        (Misfire.SKIP, 3_600, RunStatus.SKIPPED),
        (Misfire.RUN_ONCE, 3_600, RunStatus.RUNNING),
    ],
)
def test_j15_a_tick_whose_process_ended_during_its_jitter_is_missed_like_others(misfire, seconds, status):
    world = World(JobRule("job", replace(RATE, jitter=4, misfire=misfire, grace=1.5)))
    assert world.attend() == []
    (waiting,) = world.store.look().runs
    world.clock.advance(seconds)  # it was due after 2
    world.attend()
    found = world.run(waiting.id)
    assert found.status is status
    if status is RunStatus.SKIPPED:
        assert found.reason.startswith("it was missed: no process could begin it within 1.5 s")


def test_j15_a_tick_for_which_no_process_had_capacity_in_time_is_missed():
    world = World(JobRule("job", replace(RATE, misfire=Misfire.SKIP, grace=5)))
    assert world.attend(free=0) == []
    (waiting,) = world.store.look().runs
    world.clock.advance(6)
    assert world.attend() == []
    assert world.run(waiting.id).status is RunStatus.SKIPPED


@pytest.mark.parametrize(
    ("misfire", "ticks", "paused", "runs", "warned"),
    [
        pytest.param(Misfire.CATCH_UP, MOST_TICKS, False, MOST_TICKS, "", id="as many as are recorded"),
        pytest.param(Misfire.CATCH_UP, MOST_TICKS + 1, False, MOST_TICKS, "1 missed tick starts", id="one more"),
        pytest.param(Misfire.CATCH_UP, MOST_TICKS + 1_001, False, MOST_TICKS, "1,001 missed ticks start", id="more"),
        pytest.param(Misfire.CATCH_UP, MOST_TICKS + 1_001, True, 0, "", id="paused"),
        pytest.param(Misfire.RUN_ONCE, MOST_TICKS + 1_001, False, 1, "", id="run once"),
        pytest.param(Misfire.SKIP, MOST_TICKS + 1_001, False, 1, "", id="skip"),
    ],
)
def test_of_many_missed_ticks_catch_up_runs_the_last_ones_and_warns_of_the_others(
    misfire, ticks, paused, runs, warned, caplog
):
    world = World(JobRule("job", replace(RATE, misfire=misfire)))
    world.desk().finish(only(world.attend()), DONE)
    (first,) = (run.scheduled_at for run in world.store.history())
    if paused:
        world.desk().pause("job", "ann", "")
    world.clock.advance((first - world.clock.now()).total_seconds() + 10 * ticks)
    world.attend()
    world.attend()
    left = [run for run in world.store.history(limit=2 * ticks) if run.is_open and run.scheduled_at > first]
    text = f"[job job] {warned} no run: misfire catch-up starts at most the last {MOST_TICKS:,}"
    assert caplog.messages == ([text] if warned else [])
    assert len(left) == runs


def test_runs_of_a_job_are_cancelled_in_one_transaction(monkeypatch):
    world = World(JobRule("job", meeting=Meeting(Overlap.QUEUE, OverlapScope.PER_ID, queue_size=9)))
    runs = [world.run(world.request(str(number), ids=(0, number + 1))) for number in range(5)]
    active, opened, open_ = only(world.attend()), [], InMemoryJobStore.open
    ended = only([run for run in runs if run.id == "3"])
    world.desk().cancel(ended.id, "before")
    monkeypatch.setattr(InMemoryJobStore, "open", lambda store, jobs: opened.append(jobs) or open_(store, jobs))
    found = world.desk().cancel_all("job", runs, "not today", "ann")
    assert [(run.id, run.is_open, run.actor) for run in found] == [
        (each.id, each.id == active.id, "ann") for each in runs if each.id != ended.id
    ]
    assert world.run(ended.id).reason == "before"
    assert {world.run(run.id).reason for run in found} == {"not today"}
    assert world.desk().cancel_all("job", [], "none") == []
    assert opened == [["job"]]


def test_j15_catch_up_runs_each_missed_tick_one_after_the_other():
    world = World(JobRule("job", replace(RATE, misfire=Misfire.CATCH_UP), Meeting(Overlap.CANCEL, grace=0)))
    world.desk().finish(only(world.attend()), DONE)
    world.clock.advance(35)
    begun = []
    for _ in range(4):
        for run in world.attend():
            begun.append((run.scheduled_at - world.at(0)).total_seconds())
            world.desk().finish(run, DONE)
    assert begun == [10, 20, 30]


def test_j15_of_more_than_a_thousand_missed_ticks_the_oldest_share_one_record():
    world = World(JobRule("job", RATE))
    world.desk().finish(only(world.attend()), DONE)
    world.clock.advance(15_005)
    run = only(world.attend())
    rows = [row for row in world.store.history(limit=2_000) if row.id != "job@2026-01-01T00:00:00.000Z"]
    assert len(rows) == 1_001
    assert sum(row.ticks for row in rows) == 1_500
    assert {row.into for row in rows if row.id != run.id} == {run.id}
    assert world.store.look().records["job"].next_tick == world.at(15_010)


def test_j7_a_cron_job_has_a_tick_at_each_of_its_times():
    world = World(JobRule("job", Ticking(CronSchedule("*/5 * * * *"), "cron")))
    begun = []
    for minute in range(11):
        for run in world.attend():
            begun.append(minute)
            world.desk().finish(run, DONE)
        world.clock.advance(60)
    assert begun == [5, 10]
    assert [run.id for run in reversed(world.store.history())] == [
        "job@2026-01-01T00:05:00.000Z",
        "job@2026-01-01T00:10:00.000Z",
    ]


def test_purging_keeps_the_listed_history_and_the_last_run():
    world = World(JobRule("job", RATE, keep=timedelta(seconds=25)), JobRule("other"))
    for _ in range(5):
        world.desk().finish(only(world.attend()), DONE)
        world.clock.advance(10)
    assert world.desk().purge() == 3
    assert len(world.store.history()) == 2
    world.clock.advance(1_000)
    assert world.desk().purge() == 1
    assert world.store.last_runs()["job"].ended.scheduled_at == world.at(40)


class Cut(InMemoryJobStore):
    """A database whose connection is lost before a commit, or after it."""

    cut = ""

    @contextmanager
    def open(self, jobs: Collection[str]) -> Any:
        with super().open(jobs) as book:
            yield book
            if self.cut == "before":
                raise ConnectionError
        if self.cut == "after":
            raise ConnectionError

    def put_as_sql(self, run: JobRun) -> None:
        """Store a run as a database does: with times in milliseconds."""
        due = run.due_at
        assert due is not None
        self._runs[run.id] = replace(run, due_at=due.replace(microsecond=due.microsecond // 1_000 * 1_000))


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_run_whose_begin_was_not_confirmed_begins_at_the_next_poll(cut):
    world = World()
    world.store = Cut(world.clock)
    world.request("x")
    world.store.cut = cut
    with pytest.raises(ConnectionError):
        world.attend()
    world.store.cut = ""
    run = only(world.attend())
    assert (run.attempt, run.deaths) == (1, 0)
    assert world.desk().finish(run, DONE).status is RunStatus.SUCCEEDED


@pytest.mark.parametrize("cut", ["before", "after"])
def test_runs_begun_before_the_connection_was_lost_are_not_lost(cut, monkeypatch):
    world = World(JobRule("a"), JobRule("b"))
    world.store = Cut(world.clock)
    world.request("1", "a")
    world.request("2", "b")
    open_ = Cut.open

    @contextmanager
    def cut_at_b(store, jobs):
        store.cut = cut if "b" in jobs else ""
        with open_(store, jobs) as book:
            yield book

    with monkeypatch.context() as patch:
        patch.setattr(Cut, "open", cut_at_b)
        with pytest.raises(ConnectionError):
            world.attend()
    world.store.cut = ""
    assert sorted(run.id for run in world.attend()) == ["1", "2"]
    assert world.attend() == []


def test_a_reserved_run_whose_begin_was_not_confirmed_is_cancelled():
    world = World()
    world.store = Cut(world.clock)
    world.request("x", reserved="a")
    world.store.cut = "after"
    with pytest.raises(ConnectionError):
        world.desk().begin("x", world.worker())
    world.store.cut = ""
    assert world.attend() == []
    assert world.run("x").reason == "its caller could not learn that it had begun"
    assert list(world.desk().recovered()) == [world.run("x")]


def test_a_reserved_run_whose_second_begin_was_not_confirmed_continues_without_its_caller():
    world = World(JobRule("job", back_off=FixedBackOff(0, 2)))
    world.store = Cut(world.clock)
    world.request("x", reserved="a")
    world.desk().finish(world.desk().begin("x", world.worker()), replace(FAILED, position=RunPosition(items=2)))
    world.store.cut = "after"
    with pytest.raises(ConnectionError):
        world.desk().begin("x", world.worker())
    world.store.cut = ""
    run = only(world.attend())
    assert (run.attempt, run.deaths, run.reserved, run.position.items) == (2, 0, "", 2)


def test_a_left_run_whose_begin_for_a_caller_was_not_confirmed_continues():
    """A stop has released its first attempt, so that the next one is the first one again."""
    world = World()
    world.store = Cut(world.clock)
    world.request("x")
    run = only(world.attend())
    world.desk().finish(run, Ending(run.position, released=True))
    world.store.cut = "after"
    with pytest.raises(ConnectionError):
        world.desk().begin("x", world.worker())
    world.store.cut = ""
    assert only(world.attend()).attempt == 1


def test_an_unconfirmed_end_is_recorded_again():
    world = World()
    world.store = Cut(world.clock)
    world.request("x")
    run = only(world.attend())
    world.store.cut = "before"
    with pytest.raises(ConnectionError):
        world.desk().finish(run, DONE)
    world.store.cut = ""
    assert world.attend() == []
    assert world.desk().finish(run, DONE).status is RunStatus.SUCCEEDED
    assert world.desk().finish(run, DONE) is None


@pytest.mark.parametrize("begun_again", [True, False])
def test_an_unconfirmed_failed_attempt_is_found_even_if_the_next_attempt_has_begun(begun_again):
    world = World(JobRule("job", back_off=FixedBackOff(1.0005, 1)))
    world.store = Cut(world.clock)
    world.request("x")
    run = only(world.attend("a"))
    world.store.cut = "after"
    with pytest.raises(ConnectionError):
        world.desk("a").finish(run, FAILED)
    world.store.cut = ""
    world.store.put_as_sql(world.run("x"))
    world.clock.advance(2)
    if begun_again:
        assert only(world.attend("b")).attempt == 2
    known = world.desk("a").finish(run, FAILED)
    assert (known.status, known.error, known.attempt) == (RunStatus.RETRYING, "no", 1)


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize(
    ("deaths", "reserved", "status"),
    [(1, "", RunStatus.RETRYING), (MOST_DEATHS, "", RunStatus.FAILED), (1, "gone 0", RunStatus.RETRYING)],
)
def test_recovery_from_a_dead_process_is_reported_once_even_if_its_commit_was_not_confirmed(
    cut, deaths, reserved, status
):
    world = world_of_the_dead(deaths, reserved)
    world.store.cut = cut
    with pytest.raises(ConnectionError):
        world.attend("a")
    assert list(world.desk("a").recovered()) == []
    world.store.cut = ""
    world.clock.advance(1)
    again = world.attend("a")
    assert [run.status for run in world.desk("a").recovered()] == [status]
    assert len(again) == (status is RunStatus.RETRYING)
    world.attend("a")
    assert list(world.desk("a").recovered()) == []


def test_recovery_from_a_dead_process_is_only_reported_by_the_process_that_recorded_it():
    world = world_of_the_dead(MOST_DEATHS)
    world.store.cut = "before"
    with pytest.raises(ConnectionError):
        world.attend("a")
    world.store.cut = ""
    world.clock.advance(1)
    world.attend("b")
    world.attend("a")
    assert [[run.status for run in world.desk(node).recovered()] for node in "ab"] == [[], [RunStatus.FAILED]]


@pytest.mark.parametrize("cut", ["before", "after"])
def test_recovery_from_a_dead_process_is_reported_when_a_caller_begins_a_run(cut):
    world = world_of_the_dead(MOST_DEATHS)
    world.request("mine", reserved="a")
    world.store.cut = cut
    with pytest.raises(ConnectionError):
        world.desk("a").begin("mine", world.worker("a"))
    world.store.cut = ""
    world.clock.advance(1)
    world.desk("a").begin("mine", world.worker("a"))
    assert next((run.id, run.status) for run in world.desk("a").recovered()) == ("x", RunStatus.FAILED)


def world_of_the_dead(deaths: int, reserved: str = "") -> World:
    """Return a world in which processes have died during run ``x``; the last death is not noticed yet."""
    world = World()
    world.store = Cut(world.clock)
    world.request("x", reserved=reserved)
    for number in range(deaths):
        world.alive = {f"gone {number}"}
        world.desk(f"gone {number}").begin("x", world.worker(f"gone {number}"))
        assert world.run("x").status is RunStatus.RUNNING
    world.alive = {"a", "b"}
    return world


def test_the_in_memory_store_writes_nothing_if_the_block_raises():
    world = World()

    def write() -> None:
        with world.store.open(["job"]) as book:
            book.put(JobRun("x", "job", Trigger.MANUAL, world.at(0)))
            book.put_record(JobRecord("job", "text"))
            assert [run.id for run in book.runs] == ["x"]
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write()
    assert world.store.find("x") is None
    assert world.store.look().records == {}
    assert not world.store.is_outage(ValueError())

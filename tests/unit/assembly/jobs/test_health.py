"""When a job is healthy, and how problems are reported."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from opencqrs_py.adapters.memory.jobs import InMemoryJobStore
from opencqrs_py.assembly.health import Health
from opencqrs_py.assembly.jobs.health import JobHealth, judged_job
from opencqrs_py.assembly.jobs.jobs import Jobs, JobStatus, KnownJobs
from opencqrs_py.control.records import ControlView
from opencqrs_py.jobs.desk import Ending, JobDesk, Worker
from opencqrs_py.jobs.rules import JobRule, Ticking
from opencqrs_py.jobs.runs import JobRecord, JobRun, RunPosition, RunStatus
from opencqrs_py.model.job import Job, JobMark, Trigger
from opencqrs_py.model.masking import remember
from opencqrs_py.processing.inbox.schedules import FixedRate
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.testing import FakeClock

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
SCHEDULED = JobRule("remind", Ticking(FixedRate(0, 60), "every 60 s"), budget=300.0)
JOB = Job(JobMark("remind"), print, "jobs.py:1 (remind)")


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def record(tick: float | None = 30, *, paused: bool = False) -> JobRecord:
    return JobRecord("remind", "every 60 s", None if tick is None else at(tick), NOON if paused else None)


def run(status: RunStatus, started: float | None = -100, **changes: object) -> JobRun:
    began = None if started is None else at(started)
    made = JobRun("remind:1", "remind", Trigger.SCHEDULE, at(-200), status=status, started_at=began, attempt=1)
    return replace(made, node="blue", **changes)


DONE = run(RunStatus.SUCCEEDED, ended_at=at(-90))
WELL = JobStatus(JOB, SCHEDULED, record(), (), DONE, DONE, ("blue",), (), NOON)
FAILED = run(RunStatus.FAILED, ended_at=at(-90), error="ValueError: no hunter22\n  jobs.py:3")
CANCELLED = run(RunStatus.CANCELLED, id="remind:9", ended_at=at(-30))
OVERDUE = replace(WELL, record=record(-61))
LATE = run(RunStatus.QUEUED, None, id="remind:2", scheduled_at=at(-900), due_at=at(-900))
WAITS = run(RunStatus.RUNNING, id="remind:3", error="OperationalError: no archive\n  jobs.py:3", waits_until=at(30))
ALONE = replace(WELL, nodes=())


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (WELL, "idle"),
        (replace(WELL, record=None, last=None, outcome=None), "idle"),
        (replace(WELL, open=(run(RunStatus.QUEUED, None, due_at=at(-60)),)), "idle"),
        (replace(WELL, open=(run(RunStatus.QUEUED, None, reserved="green"),)), "idle"),
        (replace(WELL, open=(run(RunStatus.RUNNING), LATE)), "running"),
        (replace(WELL, open=(run(RunStatus.RUNNING), WAITS)), "waiting"),
        (replace(WELL, open=(replace(WAITS, waits_until=NOON),)), "running"),
        (replace(WELL, open=(replace(WAITS, waits_until=None, due_at=at(30)),)), "running"),
        (replace(WELL, open=(replace(WAITS, started_at=at(-86400), due_at=at(-60), attempt=2),)), "waiting"),
        (replace(WELL, open=(replace(WAITS, status=RunStatus.RETRYING),)), "running"),
        (replace(WELL, record=record(paused=True), open=(replace(LATE, trigger=Trigger.EVENT),)), "paused"),
        (replace(WELL, open=(run(RunStatus.RUNNING),)), "running"),
        (replace(WELL, open=(run(RunStatus.RETRYING),)), "running"),
        (replace(WELL, record=record(paused=True)), "paused"),
        (replace(WELL, last=CANCELLED), "idle"),
        (replace(WELL, last=CANCELLED, outcome=None), "idle"),
        pytest.param(replace(WELL, record=record(-60)), "idle", id="a tick within its patience"),
        pytest.param(replace(WELL, record=record(-900, paused=True)), "paused", id="overdue and paused"),
        pytest.param(replace(OVERDUE, rule=JobRule("remind")), "idle", id="a tick from before triggers were disabled"),
        pytest.param(
            replace(WELL, open=(run(RunStatus.RUNNING, -360),)), "running", id="within its budget plus a minute"
        ),
        pytest.param(
            replace(WELL, open=(run(RunStatus.RUNNING, -5_000, due_at=at(-10)),)), "running", id="released by a stop"
        ),
        pytest.param(
            replace(WELL, rule=replace(SCHEDULED, budget=float("inf")), open=(run(RunStatus.RUNNING, -9e6),)),
            "running",
            id="no budget",
        ),
        pytest.param(
            replace(WELL, open=(run(RunStatus.RUNNING, -5_000, attempt=2, due_at=at(-10)),)),
            "running",
            id="the second attempt has its own budget",
        ),
        pytest.param(
            replace(WELL, open=(run(RunStatus.RETRYING, -5_000),)), "running", id="waiting for its next attempt"
        ),
    ],
)
def test_a_healthy_job_reports_its_state(status, state):
    assert judged_job(status, 60.0, unowned=False) == JobHealth("remind", state)


@pytest.mark.parametrize(
    ("status", "problem", "line"),
    [
        *(
            (
                replace(WELL, last=last, outcome=FAILED),
                "failed",
                "[job remind] run remind:1 failed at 2026-01-05T11:58:30.000Z: ValueError: no ***: fix its cause, then "
                "opencqrs jobs run remind",
            )
            for last in (FAILED, CANCELLED)
        ),
        (
            OVERDUE,
            "overdue",
            "[job remind] its tick of 2026-01-05T11:58:59.000Z is overdue by 1 min 1 s: look at the log of node blue; "
            "node.max-runs may be too low",
        ),
        (
            replace(WELL, open=(LATE, replace(LATE, id="remind:3", due_at=at(-840)))),
            "overdue",
            "[job remind] run remind:2 has waited for 15 min 0 s to begin: look at the log of node blue; node.max-runs "
            "may be too low, or other runs hang: opencqrs jobs runs",
        ),
        (
            replace(WELL, open=(run(RunStatus.RUNNING, -361),)),
            "stuck",
            "[job remind] run remind:1 has taken 6 min 1 s so far, and its time budget is 5 min 0 s: look at the log "
            "of node blue; opencqrs jobs cancel remind requests its end",
        ),
        (
            replace(WELL, open=(replace(WAITS, started_at=at(-86400)),)),
            "stuck",
            "[job remind] run remind:3 has taken 24 h 0 min so far, and its time budget is 5 min 0 s: look at the log "
            "of node blue; opencqrs jobs cancel remind requests its end",
        ),
        (
            replace(WELL, open=(replace(WAITS, started_at=at(-86400), due_at=at(-7200), attempt=2),)),
            "stuck",
            "[job remind] run remind:3 has taken 2 h 0 min so far, and its time budget is 5 min 0 s: look at the log "
            "of node blue; opencqrs jobs cancel remind requests its end",
        ),
    ],
)
def test_a_problem_of_a_job_is_a_line_with_the_fix(status, problem, line):
    remember(["hunter22"])
    health = judged_job(status, 60.0, unowned=False)
    assert (health.healthy, health.state) == (False, problem)
    assert [finding.line for finding in health.findings] == [line]


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (ALONE, "unowned"),
        pytest.param(replace(ALONE, record=record(-900)), "unowned", id="overdue for the same reason"),
        pytest.param(replace(ALONE, record=None, last=None, outcome=None), "unowned", id="never run"),
        pytest.param(replace(ALONE, record=record(paused=True)), "paused", id="paused"),
        pytest.param(replace(ALONE, rule=JobRule("remind")), "idle", id="no schedule or disabled triggers"),
    ],
)
def test_a_scheduled_job_that_no_process_runs_is_unhealthy(status, state):
    health = judged_job(status, 60.0, unowned=True)
    assert (health.state, len(health.findings)) == (state, state == "unowned")
    for finding in health.findings:
        assert finding.line == (
            "[job remind] no process runs it, and it has a schedule (every 60 s): start opencqrs run; or, if this is "
            "intended, opencqrs jobs pause remind"
        )


def test_a_job_stays_failed_while_later_runs_are_cancelled_and_old_ones_purged():
    clock = FakeClock()
    store, rules = InMemoryJobStore(clock), {"remind": JobRule("remind", back_off=FixedBackOff(0, 0))}
    desk, worker = JobDesk(store, rules), Worker("a", "a", frozenset({"a"}), 1, frozenset(), lambda: {"a"})
    jobs = Jobs(KnownJobs([JOB], rules, store, ControlView, lambda: None, {}))
    for ending in (Ending(RunPosition(), error="no"), *[Ending(RunPosition(), cancelled=True)] * 2):
        store.request(JobRun(f"run {clock.monotonic()}", "remind", Trigger.MANUAL, clock.now()))
        (begun,) = desk.attend(worker)
        clock.advance(10)
        assert desk.finish(begun, ending) is not None
    clock.advance(1_000_000)
    assert desk.purge() == 1
    (status,) = jobs.statuses()
    health = judged_job(status, 60.0, unowned=False)
    assert status.last is not None
    assert (status.last.status, health.state) == (RunStatus.CANCELLED, "failed")


def test_each_problem_of_a_job_is_a_line_and_the_worst_is_its_state():
    status = replace(OVERDUE, last=FAILED, outcome=FAILED, open=(run(RunStatus.RUNNING, -900),))
    health = judged_job(status, 60.0, unowned=False)
    assert [finding.problem for finding in health.findings] == ["failed", "overdue", "stuck"]
    assert health.state == "failed"


def test_the_health_of_the_application_includes_its_jobs():
    well, unwell = judged_job(WELL, 60.0, unowned=False), judged_job(OVERDUE, 60.0, unowned=False)
    assert Health(jobs=(well,)).healthy
    health = Health(jobs=(well, unwell))
    assert not health.healthy
    assert health.lines() == [unwell.findings[0].line]
    assert health.as_json()["jobs"] == [
        {"job": "remind", "healthy": True, "state": "idle", "problems": []},
        {
            "job": "remind",
            "healthy": False,
            "state": "overdue",
            "problems": [
                {"problem": "overdue", "message": unwell.findings[0].why, "fix": unwell.findings[0].fix},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("status", "seconds"),
    [
        (replace(WELL, open=(LATE,)), 900),
        (replace(WELL, open=(replace(LATE, due_at=at(10)),)), None),
        (replace(WELL, record=record(-61), open=()), 61),
    ],
)
def test_the_lag_of_a_job_grows_while_its_run_waits(status, seconds):
    assert status.lag_seconds == seconds

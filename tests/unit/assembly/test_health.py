"""What counts as unhealthy, and the lines that report it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opencqrs_py.assembly.health import Health, HealthRule, Problem, Standing, judged, obstacle
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import FailureRecord, PartitionStatus, ProcessorState

HALF = Partition(2, 1)
FAILURE = FailureRecord(8, "e8", "lent", 3, 2, "first", "ValueError: no", "2026-01-05T09:00:00+00:00")
CRASHED = replace(FAILURE, attempts=0, crashes=3, last_error="[OCQ-236] it ended 3 processes")
NEVER_RUN = Standing("loans", HALF, wanted=True, led=True, status=None, head=10)


def standing(state=ProcessorState.RUNNING, position=10, *, waited=0.0, owner="web1:7", failure=None, error="", **said):
    status = PartitionStatus("loans", HALF, position, state, owner=owner, failure=failure, error=error)
    known = {"wanted": True, "led": True, "head": 10, "owner": owner, **said}
    return Standing("loans", HALF, status=status, waited=lambda: waited, **known)


def paused(position, waited):
    found = standing(ProcessorState.STOPPED, position, owner="", wanted=False, waited=waited)
    return replace(found, status=replace(found.status, wanted="paused"))


@pytest.mark.parametrize(
    "well",
    [
        paused(2, 59.9),
        paused(10, 1_000.0),
        standing(),
        standing(position=2),
        standing(position=2, waited=59.9),
        standing(waited=1_000.0),  # idle: there is nothing to handle
        standing(ProcessorState.BACKING_OFF, 7, waited=10.0, failure=FAILURE),
        standing(ProcessorState.WAITING, 7, waited=10.0),
        standing(ProcessorState.STOPPED, 2, owner="", wanted=False),
        standing(ProcessorState.FAILED, 2, owner="", wanted=False),
        replace(NEVER_RUN, wanted=False),
        replace(NEVER_RUN, owner="web1:7", waited=lambda: 59.9),
        replace(NEVER_RUN, owner="web1:7", waited=lambda: 1_000.0, head=0),  # there is nothing to handle
        replace(NEVER_RUN, led=False, waited=lambda: 1_000.0),
        replace(NEVER_RUN, led=False),
        standing(owner="", led=False),
    ],
)
def test_a_healthy_partition_has_no_finding(well):
    assert judged("loans", [well], HealthRule()).findings == ()


@pytest.mark.parametrize(
    ("unwell", "problem", "line"),
    [
        (
            standing(ProcessorState.FAILED, 7, failure=FAILURE),
            Problem.FAILED,
            "[loans 1/2] failed at event e8 (lent) at position 8 on attempt 3: ValueError: no: "
            "fix its cause, then opencqrs groups restart loans:1/2",
        ),
        (
            standing(ProcessorState.FAILED, 6, failure=FAILURE, error="[OCQ-601] the inbox is full - event e7"),
            Problem.FAILED,
            "[loans 1/2] failed: [OCQ-601] the inbox is full - event e7: "
            "fix its cause, then opencqrs groups restart loans:1/2",
        ),
        (
            standing(ProcessorState.FAILED, 6, owner="", led=False, failure=CRASHED, error="[OCQ-316] another log"),
            Problem.FAILED,
            "[loans 1/2] failed: [OCQ-316] another log: "
            "fix its cause; the next attempt is after a pause, or at the next start of its process",
        ),
        (
            standing(position=12),  # beyond the newest event: it is another log
            Problem.FAILED,
            "[loans 1/2] failed: fix its cause, then opencqrs groups restart loans:1/2",
        ),
        (
            standing(ProcessorState.STOPPED, 12, owner=""),
            Problem.FAILED,
            "[loans 1/2] failed, and no process runs it: fix its cause, then start opencqrs run; or, if this is "
            "intended, opencqrs groups stop loans",
        ),
        (
            standing(ProcessorState.FAILED, 7, owner="", failure=FAILURE),
            Problem.FAILED,
            "[loans 1/2] failed at event e8 (lent) at position 8 on attempt 3: ValueError: no, and no process runs it: "
            "fix its cause, then start opencqrs run; or, if this is intended, opencqrs groups stop loans",
        ),
        (
            paused(2, 60.0),
            Problem.STALLED,
            "[loans 1/2] is paused by a command, and has made no progress for 1 min 0 s, lag 8: "
            "if no such command runs any more, opencqrs groups start loans:1/2",
        ),
        (
            NEVER_RUN,
            Problem.UNOWNED,
            "[loans] no process runs it: start opencqrs run; or, if this is intended, opencqrs groups stop loans",
        ),
        (
            standing(ProcessorState.UNOWNED, owner=""),
            Problem.UNOWNED,
            "[loans] the process that ran it has ended without releasing it: start opencqrs run; or, if this is "
            "intended, opencqrs groups stop loans",
        ),
        (
            standing(ProcessorState.UNOWNED, owner="", lapsed=5.0),
            Problem.UNOWNED,
            "[loans] its lease has ended: its process has ended, or cannot reach the database or write to it: look at "
            "the log of its process; if that has ended, start opencqrs run; or, if this is intended, opencqrs groups "
            "stop loans",
        ),
        (
            standing(ProcessorState.STOPPED, 7, owner="", failure=FAILURE, error="ValueError: no"),
            Problem.UNOWNED,
            "[loans] no process runs it; its last attempt failed at event e8 (lent) at position 8 on attempt 3: "
            "ValueError: no: start opencqrs run; or, if this is intended, opencqrs groups stop loans",
        ),
        (
            standing(ProcessorState.UNOWNED, 7, owner="", error="[OCQ-304] no database"),
            Problem.UNOWNED,
            "[loans] the process that ran it has ended without releasing it; its last error was: [OCQ-304] no "
            "database: start opencqrs run; or, if this is intended, opencqrs groups stop loans",
        ),
        (
            standing(ProcessorState.STANDBY, 7, owner="", able=["web1:7"], failure=FAILURE, error="ValueError: no"),
            Problem.UNOWNED,
            "[loans] no node has taken it yet, though web1:7 could; its last attempt failed at event e8 (lent) at "
            "position 8 on attempt 3: ValueError: no: look at opencqrs nodes; node.max-partitions or "
            "life-cycle.max-partitions-per-node may be too low",
        ),
        (
            standing(ProcessorState.STANDBY, owner="", able=["web1:7", "web2:9"]),
            Problem.UNOWNED,
            "[loans] no node has taken it yet, though web1:7, web2:9 could: look at opencqrs nodes; "
            "node.max-partitions or life-cycle.max-partitions-per-node may be too low",
        ),
        (
            standing(ProcessorState.STOPPED, owner="", led=False),
            Problem.UNOWNED,
            "[loans] no process runs it: start opencqrs run; or, if this is intended, set life-cycle.auto-start: false",
        ),
        (
            standing(ProcessorState.FAILED, 7, owner="", led=False, failure=FAILURE),
            Problem.FAILED,
            "[loans 1/2] failed at event e8 (lent) at position 8 on attempt 3: ValueError: no: "
            "fix its cause; the next attempt is after a pause, or at the next start of its process",
        ),
        (
            standing(ProcessorState.FAILED, 7, owner="", led=False, failure=CRASHED),
            Problem.FAILED,
            "[loans 1/2] failed at event e8 (lent) at position 8: [OCQ-236] it ended 3 processes: "
            "fix its handler, then release the event as OCQ-236 says",
        ),
        (
            standing(position=2, waited=60.0),
            Problem.STALLED,
            "[loans 1/2] has made no progress for 1 min 0 s, lag 8: look at the log of node web1:7",
        ),
        (
            replace(NEVER_RUN, owner="web1:7", waited=lambda: 90.0),
            Problem.STALLED,
            "[loans 1/2] has not begun for 1 min 30 s, lag 10: look at the log of node web1:7",
        ),
        (
            standing(ProcessorState.BACKING_OFF, 7, waited=90.0, failure=FAILURE),
            Problem.STALLED,
            "[loans 1/2] backs off for 1 min 30 s at event e8 (lent) at position 8 on attempt 3: ValueError: no, "
            "lag 3: fix what its handler raises, or limit retry.max-attempts",
        ),
        (
            standing(ProcessorState.WAITING, 7, waited=90.0, owner="", led=False),
            Problem.STALLED,
            "[loans 1/2] waits for the database or event store for 1 min 30 s, lag 3: look at the log of its process",
        ),
    ],
)
def test_an_unhealthy_partition_has_a_line_with_place_reason_and_fix(unwell, problem, line):
    health = judged("loans", [unwell], HealthRule())
    (finding,) = health.findings
    assert (finding.problem, finding.line, health.state) == (problem, line, problem.value)


@pytest.mark.parametrize(("max_lag", "healthy"), [(None, True), (8, True), (7, False), (0, False)])
def test_more_lag_than_allowed_is_unhealthy(max_lag, healthy):
    for each in (standing(position=2), replace(NEVER_RUN, owner="web1:7", head=8)):
        health = judged("loans", [each], HealthRule(max_lag))
        assert health.healthy is healthy
        assert [finding.problem for finding in health.findings] == ([] if healthy else [Problem.LAGGING])


def test_a_partition_without_lag_satisfies_a_limit_of_0():
    assert judged("loans", [standing()], HealthRule(max_lag=0)).healthy


def test_the_waiting_time_of_a_partition_without_lag_is_not_queried():
    def never():
        pytest.fail("the event store was asked")

    assert judged("loans", [replace(standing(), waited=never)], HealthRule()).healthy


def test_a_group_without_a_process_is_one_line_and_single_partitions_are_one_line_each():
    four = [replace(NEVER_RUN, partition=Partition(4, residue)) for residue in range(4)]
    (line,) = Health((judged("loans", four, HealthRule()),)).lines()
    assert line.startswith("[loans] no process runs it")
    owned = [replace(four[0], owner="web1:7"), *four[1:]]
    assert len(Health((judged("loans", owned, HealthRule()),)).lines()) == 3


@pytest.mark.parametrize(
    ("standings", "state"),
    [
        ([standing()], "running"),
        ([replace(NEVER_RUN, led=False)], "unknown"),
        ([standing(ProcessorState.STOPPED, owner="", wanted=False)], "stopped"),
        ([standing(), standing(ProcessorState.STOPPED, owner="", wanted=False)], "running"),
        ([standing(position=2, waited=90.0), standing(ProcessorState.FAILED)], "failed"),
    ],
)
def test_the_state_of_a_group_is_its_worst_problem_or_its_activity(standings, state):
    assert judged("loans", standings, HealthRule()).state == state


def test_the_json_has_each_problem_with_its_place():
    groups = (judged("loans", [NEVER_RUN], HealthRule()), judged("books", [standing()], HealthRule()))
    shown = Health(groups).as_json()
    assert (shown["healthy"], shown["unavailable"]) == (False, None)
    loans, books = shown["groups"]
    assert [(each["partition"], each["problem"]) for each in loans.pop("problems")] == [(None, "unowned")]
    assert loans == {"group": "loans", "healthy": False, "state": "unowned", "lag": 10, "partitions": 1}
    assert (books["healthy"], books["problems"]) == (True, [])


def test_an_unavailable_database_makes_the_application_unhealthy_in_one_line():
    health = Health(unavailable="[OCQ-304] no answer")
    assert (health.healthy, health.lines()) == (False, ["[OCQ-304] no answer"])
    assert health.as_json() == {"healthy": False, "unavailable": "[OCQ-304] no answer", "groups": [], "jobs": []}


@pytest.mark.parametrize(
    ("unwell", "fix"),
    [
        (standing(ProcessorState.STOPPED, 2, owner=""), "opencqrs groups stop 'my loans'"),
        (standing(ProcessorState.FAILED, 2), "opencqrs groups restart 'my loans:1/2'"),
        (paused(2, 60.0), "opencqrs groups start 'my loans:1/2'"),
    ],
)
def test_names_in_advised_commands_are_quoted_for_the_shell(unwell, fix):
    (finding,) = judged("my loans", [replace(unwell, group="my loans")], HealthRule()).findings
    assert finding.fix.endswith(fix)


@pytest.mark.parametrize("failure", [None, FAILURE, CRASHED])
@pytest.mark.parametrize("state", ProcessorState)
@pytest.mark.parametrize("wanted", [True, False])
def test_without_leases_no_command_for_leases_is_advised(state, failure, wanted):
    without = standing(state, 7, owner="", led=False, waited=90.0, failure=failure, wanted=wanted)
    findings = judged("loans", [without], HealthRule(max_lag=0)).findings
    advised = [*(finding.fix for finding in findings), *(obstacle(without) or ())]
    assert not [each for each in advised if "opencqrs groups" in each]


@pytest.mark.parametrize(
    ("held_up", "advised"),
    [
        (standing(ProcessorState.STOPPED, 2, wanted=False), "opencqrs run --group 'my loans'"),
        (standing(ProcessorState.STOPPED, 2), "set life-cycle.auto-start: false"),
        (standing(ProcessorState.FAILED, 2, failure=FAILURE), "or at the next start of its process"),
    ],
)
def test_the_obstacle_of_a_wait_without_leases_advises_a_working_fix(held_up, advised):
    reason = obstacle(replace(held_up, group="my loans", owner="", led=False))
    assert reason is not None
    assert reason[1].endswith(advised)


def test_the_obstacle_of_a_wait_quotes_the_group_for_the_shell():
    stopped = replace(standing(ProcessorState.STOPPED, 2, owner="", wanted=False), group="my loans")
    assert obstacle(stopped) == ("it is stopped", "opencqrs groups start 'my loans:1/2'")

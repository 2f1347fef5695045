"""J11 and J17: what happens to a run that is due while others are active."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from opencqrs_py.jobs.overlap import Verdict, admission, excludes
from opencqrs_py.jobs.rules import Meeting
from opencqrs_py.jobs.runs import JobRun, RunStatus, chosen_ids
from opencqrs_py.model.choices import Overlap, OverlapScope
from opencqrs_py.model.job import Trigger

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SKIP, QUEUE, CANCEL = Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL
ALL, PER_ID = OverlapScope.ALL_RUNS, OverlapScope.PER_ID


def run(id_: str, ago: float = 0, trigger: Trigger = Trigger.SCHEDULE, **others: Any) -> JobRun:
    at = NOW - timedelta(seconds=ago)
    return replace(JobRun(id_, others.pop("job", "job"), trigger, at, due_at=at), **others)


UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
ACTIVE = run("active", 60, status=RunStatus.RUNNING, token=1)
RETRYING = replace(ACTIVE, status=RunStatus.RETRYING)
OF_EVENT = replace(ACTIVE, trigger=Trigger.EVENT)
WAITING = run("waiting", 30, queued=True)
EVENT = run("event", trigger=Trigger.EVENT)


def cancelled(ago: float) -> JobRun:
    return replace(ACTIVE, cancelled_at=NOW - timedelta(seconds=ago))


@pytest.mark.parametrize("trigger", list(Trigger))
@pytest.mark.parametrize("overlap", list(Overlap))
@pytest.mark.parametrize("scope", list(OverlapScope))
def test_a_run_begins_if_no_other_run_blocks_it(trigger, overlap, scope):
    assert admission(run("new", 0, trigger), [], [], Meeting(overlap, scope), NOW).verdict is Verdict.BEGIN


@pytest.mark.parametrize("trigger", [each for each in Trigger if each is not Trigger.EVENT])
@pytest.mark.parametrize("active", [ACTIVE, RETRYING, OF_EVENT], ids=["running", "retrying", "of an event"])
@pytest.mark.parametrize(
    ("overlap", "verdict"),
    [
        pytest.param(SKIP, Verdict.SKIP, id="J11: skip"),
        pytest.param(QUEUE, Verdict.WAIT, id="J11: queue"),
        pytest.param(CANCEL, Verdict.WAIT, id="J11: cancel"),
    ],
)
def test_overlap_decides_about_a_run_while_another_is_active(trigger, active, overlap, verdict):
    found = admission(run("new", 0, trigger), [active], [], Meeting(overlap), NOW)
    assert found.verdict is verdict
    assert found.reason == ("run active has not ended" if overlap is SKIP else "")
    assert found.cancel == ((active,) if overlap is CANCEL and active is not OF_EVENT else ())


@pytest.mark.parametrize("overlap", list(Overlap))
@pytest.mark.parametrize("in_the_way", [[ACTIVE], [WAITING], [ACTIVE, WAITING, run("more", 20, queued=True)]])
def test_j6_a_run_for_an_event_is_never_skipped(overlap, in_the_way):
    found = admission(EVENT, in_the_way, [], Meeting(overlap, queue_size=1), NOW)
    assert found.verdict is Verdict.WAIT
    assert not found.cancel
    assert not found.replaces


@pytest.mark.parametrize("overlap", list(Overlap))
def test_a_waiting_run_keeps_waiting_and_cancels_no_other(overlap):
    found = admission(WAITING, [ACTIVE], [], Meeting(overlap), NOW)
    assert found == replace(found, verdict=Verdict.WAIT, cancel=(), replaces=())


@pytest.mark.parametrize("overlap", list(Overlap))
def test_waiting_runs_begin_in_order(overlap):
    later = run("later", 10, queued=True)
    assert admission(later, [WAITING], [], Meeting(overlap), NOW).verdict is Verdict.WAIT
    assert admission(WAITING, [later], [], Meeting(overlap), NOW).verdict is Verdict.BEGIN


@pytest.mark.parametrize(
    ("new", "waiting", "size", "verdict"),
    [
        pytest.param(None, [None], 1, Verdict.COALESCE, id="J11: the same for all"),
        pytest.param((1, 2), [("2", "1")], 1, Verdict.COALESCE, id="J11: the same ids, in any order and type"),
        pytest.param((1,), [(1, 2)], 1, Verdict.COALESCE, id="J11: ids that a waiting run covers"),
        pytest.param((UUID.upper(),), [(UUID,)], 2, Verdict.WAIT, id="a UUID in capitals may be another item"),
        pytest.param((1, 2), [(1,)], 2, Verdict.WAIT, id="J11: more ids than the waiting run has"),
        pytest.param((1,), [None], 2, Verdict.WAIT, id="J11: ids, while a run for all waits, whose input may differ"),
        pytest.param(None, [(1,)], 2, Verdict.WAIT, id="J11: all, while a run for one id waits"),
        pytest.param((3,), [(1,), (2,)], 2, Verdict.SKIP, id="J11: the queue is full"),
    ],
)
def test_a_queue_only_holds_different_runs(new, waiting, size, verdict):
    queued = [run(f"waiting {index}", 10, ids=each, queued=True) for index, each in enumerate(waiting)]
    found = admission(run("new", ids=new), [ACTIVE, *queued], [], Meeting(QUEUE, queue_size=size), NOW)
    assert found.verdict is verdict
    assert found.into == ("waiting 0" if verdict is Verdict.COALESCE else "")
    assert ("the queue is full, waiting runs: 2" in found.reason) == (verdict is Verdict.SKIP)


def test_no_run_is_coalesced_into_a_reserved_run_whose_caller_may_stop_waiting():
    reserved = replace(WAITING, reserved="node", trigger=Trigger.MANUAL)
    assert admission(run("new"), [ACTIVE, reserved], [], Meeting(QUEUE, queue_size=2), NOW).verdict is Verdict.WAIT
    found = admission(run("new"), [ACTIVE, reserved], [], Meeting(CANCEL), NOW)
    assert (found.verdict, found.replaces) == (Verdict.WAIT, ())
    found = admission(replace(run("new"), reserved="node"), [ACTIVE, WAITING], [], Meeting(CANCEL), NOW)
    assert (found.verdict, found.replaces) == (Verdict.WAIT, ())


@pytest.mark.parametrize(
    ("new", "waiting", "replaced"),
    [
        pytest.param(None, WAITING, True, id="J11: all for all"),
        pytest.param((1, 2), replace(WAITING, ids=("1",)), True, id="J11: more ids"),
        pytest.param((1,), replace(WAITING, ids=(1, 2)), False, id="J11: fewer ids"),
        pytest.param((1,), WAITING, False, id="J11: an id for all"),
        pytest.param(None, replace(WAITING, trigger=Trigger.EVENT), False, id="J6: an event is not replaced"),
    ],
)
def test_the_newest_run_replaces_the_runs_it_covers(new, waiting, replaced):
    found = admission(run("new", ids=new), [ACTIVE, waiting], [], Meeting(CANCEL), NOW)
    assert found.verdict is Verdict.WAIT
    assert found.cancel == (ACTIVE,)
    assert found.replaces == ((waiting,) if replaced else ())


@pytest.mark.parametrize(
    ("active", "verdict", "fence"),
    [
        pytest.param([cancelled(29.9)], Verdict.WAIT, 0, id="J11: within its grace"),
        pytest.param([cancelled(30)], Verdict.BEGIN, 1, id="J11: after its grace"),
        pytest.param(
            [cancelled(40), replace(ACTIVE, id="b")], Verdict.WAIT, 0, id="J11: one of two is not cancelled yet"
        ),
        pytest.param([cancelled(40), replace(cancelled(31), id="b")], Verdict.BEGIN, 2, id="J11: after both graces"),
    ],
)
@pytest.mark.parametrize("new", [WAITING, run("new"), EVENT], ids=["waiting", "new", "event"])
def test_a_run_that_ignores_a_cancel_request_is_fenced_off_after_its_grace(active, verdict, fence, new):
    found = admission(new, active, [], Meeting(CANCEL, grace=30), NOW)
    assert found.verdict is verdict
    assert len(found.fence) == fence


def test_a_cancel_request_is_not_repeated():
    found = admission(run("new"), [cancelled(1)], [], Meeting(CANCEL), NOW)
    assert (found.verdict, found.cancel) == (Verdict.WAIT, ())


@pytest.mark.parametrize(
    ("scope", "one", "other", "excluded"),
    [
        (ALL, None, (1,), True),
        (ALL, (1,), (2,), True),
        (PER_ID, None, None, True),
        (PER_ID, None, (1,), False),
        (PER_ID, (1,), None, False),
        (PER_ID, (1,), (2,), False),
        (PER_ID, (1, 2), (2, 3), True),
        pytest.param(PER_ID, ("1",), (1,), True, id="J11: an id of the command line is a text"),
        pytest.param(PER_ID, (UUID.upper(),), (UUID,), True, id="a UUID in capitals"),
        pytest.param(PER_ID, ("A",), ("a",), False, id="another text in capitals"),
    ],
)
def test_the_scope_decides_which_runs_exclude_each_other(scope, one, other, excluded):
    assert excludes(run("one", ids=one), run("other", ids=other), scope) is excluded
    new = run("new", ids=one)
    verdict = admission(new, [replace(ACTIVE, ids=other)], [], Meeting(SKIP, scope), NOW).verdict
    assert verdict is (Verdict.SKIP if excluded else Verdict.BEGIN)


@pytest.mark.parametrize(("overlap", "verdict"), [(SKIP, Verdict.WAIT), (QUEUE, Verdict.WAIT), (CANCEL, Verdict.WAIT)])
@pytest.mark.parametrize("scope", list(OverlapScope))
def test_j17_an_exclusive_job_blocks_a_run_and_is_not_cancelled(overlap, verdict, scope):
    busy = replace(ACTIVE, job="other")
    found = admission(run("new"), [], [busy], Meeting(overlap, scope), NOW)
    assert found.verdict is verdict
    assert found.cancel == ()
    assert admission(run("new"), [], [replace(WAITING, job="other")], Meeting(overlap), NOW).verdict is Verdict.BEGIN


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ((), ValueError, "ids is empty: name some"),
        ("4711", TypeError, r"write \['4711'\]"),
        ([("a", 1)], TypeError, "is not an id"),
        ([None], TypeError, "is not an id"),
    ],
)
def test_ambiguous_ids_are_refused(ids, error, message):
    with pytest.raises(error, match=message):
        chosen_ids(ids)
    assert chosen_ids(["7", 7, "a", "7"]) == ("7", "a")

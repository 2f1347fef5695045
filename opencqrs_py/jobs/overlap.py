"""Overlap: whether a run that is due may begin beside those that have not ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

from opencqrs_py.jobs.rules import Meeting
from opencqrs_py.jobs.runs import JobRun
from opencqrs_py.model.choices import Overlap, OverlapScope
from opencqrs_py.model.job import JobId, Trigger

_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class Verdict(Enum):
    """What happens to a run that is due."""

    BEGIN = auto()
    WAIT = auto()
    SKIP = auto()
    COALESCE = auto()  # together with a waiting run that does the same


@dataclass(frozen=True, slots=True)
class Admission:
    """What happens to a run that is due, and to others because of it.

    Attributes:
        verdict: What happens to it.
        reason: Why it is skipped.
        into: The run that covers it, too.
        cancel: Runs that are asked to end.
        fence: Runs that were asked to end, have not, and count as ended.
        replaces: Waiting runs that it covers from now on.
    """

    verdict: Verdict
    reason: str = ""
    into: str = ""
    cancel: tuple[JobRun, ...] = ()
    fence: tuple[JobRun, ...] = ()
    replaces: tuple[JobRun, ...] = ()


def admission(run: JobRun, own: Sequence[JobRun], others: Sequence[JobRun], rule: Meeting, now: datetime) -> Admission:
    """Return whether a run that has not begun may begin.

    Args:
        run: The run, which is due.
        own: The other runs of its job that have not ended.
        others: Those of the jobs that exclude it.
        rule: What happens when runs meet.
        now: Now.

    Source:
        J11 and J17.
    """
    active = [each for each in own if each.is_active and excludes(run, each, rule.scope)]
    busy = [each for each in others if each.is_active]
    waiting = [each for each in own if each.queued and not each.is_active and excludes(run, each, rule.scope)]
    before = [each for each in waiting if _order(each) < _order(run)]
    if rule.overlap is Overlap.CANCEL:
        late = tuple(each for each in active if _is_over(each, rule, now))
        if len(late) == len(active) and not busy and not before:
            return Admission(Verdict.BEGIN, fence=late)
    elif not active and not busy and not before:
        return Admission(Verdict.BEGIN)
    if run.queued or _must_not_be_lost(run):
        return Admission(Verdict.WAIT)
    return _newcomer(run, active, waiting, rule)


def excludes(run: JobRun, other: JobRun, scope: OverlapScope) -> bool:
    """Return whether two runs of a job must not run beside each other."""
    if scope is OverlapScope.ALL_RUNS:
        return True
    if run.ids is None or other.ids is None:
        return run.ids is None and other.ids is None
    return not set(map(_folded, run.ids)).isdisjoint(map(_folded, other.ids))


def _newcomer(run: JobRun, active: Sequence[JobRun], waiting: Sequence[JobRun], rule: Meeting) -> Admission:
    match rule.overlap:
        case Overlap.SKIP if not active and not waiting:
            return Admission(Verdict.WAIT)  # for other jobs, which may be due at the same time every time
        case Overlap.SKIP:
            blocking = (*active, *waiting)[0]
            return Admission(Verdict.SKIP, f"run {blocking.id} has not ended")
        case Overlap.QUEUE:
            same = next((each for each in waiting if not each.reserved and _covers(each, run)), None)
            if same is not None:
                return Admission(Verdict.COALESCE, into=same.id)
            if len(waiting) >= rule.queue_size:
                return Admission(Verdict.SKIP, f"the queue is full, waiting runs: {len(waiting)}")
            return Admission(Verdict.WAIT)
        case Overlap.CANCEL:  # pragma: no branch there is no other rule
            lasting = (each for each in active if not _must_not_be_lost(each))
            asked = tuple(each for each in lasting if each.cancelled_at is None)
            replaced = tuple(
                each for each in waiting if not _must_not_be_lost(each) and not each.reserved and _covers(run, each)
            )
            return Admission(Verdict.WAIT, cancel=asked, replaces=replaced if not run.reserved else ())


def _is_over(run: JobRun, rule: Meeting, now: datetime) -> bool:
    """Return whether a run was asked to end, and its time for that is over."""
    return run.cancelled_at is not None and now >= run.cancelled_at + timedelta(seconds=rule.grace)


def _must_not_be_lost(run: JobRun) -> bool:
    """Return whether a run waits whatever the rule says: no event is handled twice, so none may be left out."""
    return run.trigger is Trigger.EVENT


def _covers(run: JobRun, other: JobRun) -> bool:
    """Return whether one run can cover another without leaving anything out."""
    if run.ids is None or other.ids is None:
        return run.ids is None and other.ids is None
    return _keys(other.ids) <= _keys(run.ids)


def _keys(ids: tuple[JobId, ...]) -> set[str]:
    return set(map(str, ids))


def _folded(id_: JobId) -> str:
    """Return the text of an id; of a UUID in lower case, since upper case may mean the same id."""
    text = str(id_)
    return text.lower() if _UUID.fullmatch(text) else text


def _order(run: JobRun) -> tuple[datetime, str]:
    return run.due_at or run.requested_at, run.id

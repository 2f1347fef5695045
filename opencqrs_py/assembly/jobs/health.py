"""Health of jobs: one rule, for ``opencqrs health``, ``opencqrs status`` and the API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from opencqrs_py.assembly.jobs.rows import iso
from opencqrs_py.jobs.runs import WAITING, JobRun, RunStatus
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.naming import listed
from opencqrs_py.processing.notices import in_words

if TYPE_CHECKING:
    from opencqrs_py.assembly.jobs.jobs import JobStatus

GRACE_SECONDS = 60.0
"""What a run may take beyond its time budget: the page or item in hand."""


class JobProblem(StrEnum):
    """What may be wrong with a job, the worst first."""

    FAILED = "failed"  # its last run that was not cancelled has failed
    UNOWNED = "unowned"  # it has a schedule, and no process runs it
    OVERDUE = "overdue"  # its next tick has come long ago, and no run has begun
    STUCK = "stuck"  # a run exceeds its time budget


@dataclass(frozen=True, slots=True)
class JobFinding:
    """Something unhealthy.

    Attributes:
        job: Name of the job.
        problem: What is wrong.
        why: The same for a person, with figures.
        fix: Where to look, or what to do.
    """

    job: str
    problem: JobProblem
    why: str
    fix: str

    @property
    def line(self) -> str:
        """All of it in one line."""
        return f"[job {self.job}] {self.why}: {self.fix}"


@dataclass(frozen=True, slots=True)
class JobHealth:
    """The health of a job.

    Attributes:
        job: Its name.
        state: ``running`` while a run has begun and not ended, ``waiting`` while one of these waits as a database is
            unavailable, ``paused``, ``idle``; else its worst problem.
        findings: What is unhealthy.
    """

    job: str
    state: str
    findings: tuple[JobFinding, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """Return it in the shape of the JSON output."""
        return {
            "job": self.job,
            "healthy": self.healthy,
            "state": self.state,
            "problems": [
                {"problem": finding.problem.value, "message": finding.why, "fix": finding.fix}
                for finding in self.findings
            ],
        }


def judged_job(status: JobStatus, overdue_after: float, *, unowned: bool) -> JobHealth:
    """Return the health of a job. One that is paused, or whose triggers are off, need not run.

    Args:
        status: What is known of it.
        overdue_after: Seconds after which a tick that has come counts as overdue.
        unowned: Whether it is known that no process runs it.
    """
    name = status.job.name
    found = tuple(JobFinding(name, *each) for each in _problems(status, overdue_after, unowned=unowned))
    if found:
        return JobHealth(name, found[0].problem.value, found)
    if any(run.awaits_database(status.now) for run in status.open):
        return JobHealth(name, WAITING)
    if any(run.is_active for run in status.open):
        return JobHealth(name, "running")
    return JobHealth(name, "paused" if status.record is not None and status.record.is_paused else "idle")


def _problems(status: JobStatus, overdue_after: float, *, unowned: bool) -> Iterator[tuple[JobProblem, str, str]]:
    name, outcome, record = status.job.name, status.outcome, status.record
    if outcome is not None and outcome.status is RunStatus.FAILED:
        error = scrubbed(outcome.error.partition("\n")[0])
        why = f"run {outcome.id} failed at {iso(outcome.ended_at)}" + (f": {error}" if error else "")
        yield JobProblem.FAILED, why, f"fix its cause, then opencqrs jobs run {name}"
    is_to_run = status.rule.ticking.schedule is not None and not (record is not None and record.is_paused)
    tick = record.next_tick if record is not None else None
    late = (status.now - tick).total_seconds() if tick is not None else 0.0
    if is_to_run and unowned:
        why = f"no process runs it, and it has a schedule ({status.rule.ticking.text})"
        yield JobProblem.UNOWNED, why, f"start opencqrs run; or, if this is intended, opencqrs jobs pause {name}"
    elif is_to_run and tick is not None and late > overdue_after:
        yield JobProblem.OVERDUE, f"its tick of {iso(tick)} is overdue by {in_words(late)}", _look_at(status)
    elif (run := status.waiting) is not None and status.waited_seconds > overdue_after:
        why = f"run {run.id} has waited for {in_words(status.waited_seconds)} to begin"
        yield JobProblem.OVERDUE, why, f"{_look_at(status)}, or other runs hang: opencqrs jobs runs"
    yield from _stuck(status)


def _look_at(status: JobStatus) -> str:
    where = f"the log of node {listed(status.nodes)}" if status.nodes else "the log of its process"
    return f"look at {where}; node.max-runs may be too low"


def _stuck(status: JobStatus) -> Iterator[tuple[JobProblem, str, str]]:
    budget = status.rule.budget
    for run in status.open:
        if run.status is RunStatus.RUNNING and (age := _age(run, status)) > budget + GRACE_SECONDS:
            why = f"run {run.id} has taken {in_words(age)} so far, and its time budget is {in_words(budget)}"
            fix = f"look at the log of node {run.node}; opencqrs jobs cancel {status.job.name} requests its end"
            yield JobProblem.STUCK, why, fix


def _age(run: JobRun, status: JobStatus) -> float:
    """Return for how many seconds the attempt in hand has lasted, as far as its record tells.

    A record has the time at which the first attempt began; a later one has begun when it was due, or after that.
    """
    began = run.started_at or status.now
    if run.due_at is not None:  # also of a first attempt that a stop has released, which is the first one again
        began = max(began, run.due_at)
    return (status.now - began).total_seconds()

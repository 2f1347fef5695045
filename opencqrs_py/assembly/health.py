"""Whether groups and jobs are well: one rule, for ``opencqrs health`` and for ``opencqrs status --check``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from opencqrs_py.assembly.jobs.health import JobHealth
from opencqrs_py.control.records import Wanted
from opencqrs_py.model.naming import in_one_line, listed
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import PartitionStatus, ProcessorState
from opencqrs_py.processing.notices import in_words
from opencqrs_py.processing.processor import MOST_CRASHES


class Problem(StrEnum):
    """What may be wrong with a partition, the worst first."""

    FAILED = "failed"  # stopped by an error
    UNOWNED = "unowned"  # wanted, and no process has it
    STALLED = "stalled"  # there are events to handle, and its progress does not move
    LAGGING = "lagging"  # further behind the newest event than health.max-lag allows


@dataclass(frozen=True, slots=True)
class HealthRule:
    """What counts as unhealthy, besides partitions that have failed or have no owner.

    Attributes:
        max_lag: Most events between a partition and the newest one; ``None``: any number.
        stalled_after: Seconds without progress, while there are events to handle.
    """

    max_lag: int | None = None
    stalled_after: float = 60.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a partition when its health is judged.

    Attributes:
        group: Processing group.
        partition: Its partition.
        wanted: Whether it is to be started.
        led: Whether its group uses leases, so that its owner is known.
        status: What is known of its progress; ``None`` before its first run.
        head: Position of the newest event; ``None`` if the event store has not answered.
        owner: Name of the node that has it; empty if none has, or its group does not use leases.
        able: Names of the live nodes that can run it.
        lapsed: Seconds since its lease ended by time, while its process may be alive; ``None`` if it did not.
        waited: Returns the seconds for which it has had events to handle and has stored no progress, or its owner has
            had it before its first run; called only if it lags.
    """

    group: str
    partition: Partition
    wanted: bool
    led: bool
    status: PartitionStatus | None
    head: int | None
    owner: str = ""
    able: Sequence[str] = ()
    lapsed: float | None = None
    waited: Callable[[], float] = lambda: 0.0

    @property
    def lag(self) -> int:
        """Positions between the partition and the head, at least 0; before its first run, the head if it is known."""
        return max(0, (self.head or 0) - (self.status.position if self.status is not None else 0))

    @property
    def has_failed(self) -> bool:
        """Whether it was stopped by an error, or would be refused at the next start: the log ends before it."""
        return self.status is not None and (self.status.state is ProcessorState.FAILED or self.is_beyond)

    @property
    def is_beyond(self) -> bool:
        """Whether its progress, or what counts as handled, is beyond the end of the log, so belongs to another log."""
        return self.status is not None and self.head is not None and self.status.farthest > self.head


@dataclass(frozen=True, slots=True)
class Finding:
    """Something unhealthy.

    Attributes:
        group: Processing group.
        partition: Its partition; ``None`` if it is the same for all partitions of the group.
        problem: What is wrong.
        why: The same for a person, with figures.
        fix: Where to look, or what to do.
    """

    group: str
    partition: Partition | None
    problem: Problem
    why: str
    fix: str

    @property
    def line(self) -> str:
        """All of it in one line."""
        place = self.group if self.partition is None else f"{self.group} {self.partition}"
        return f"[{place}] {self.why}: {self.fix}"


@dataclass(frozen=True, slots=True)
class GroupHealth:
    """The health of a group.

    Attributes:
        group: Processing group.
        state: ``running``, ``stopped`` if that is wanted, ``unknown`` if only the process that runs it can tell; else
            its worst problem.
        lag: Positions between the newest event and its slowest partition.
        partitions: How many partitions it has.
        findings: What is unhealthy.
    """

    group: str
    state: str
    lag: int
    partitions: int
    findings: tuple[Finding, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.findings


@dataclass(frozen=True, slots=True)
class Health:
    """The health of an application, as far as the databases show it.

    Attributes:
        groups: Its groups.
        unavailable: Why their health is unknown, in one line; empty if it is known.
        jobs: Its jobs; none if only some groups were requested.
    """

    groups: tuple[GroupHealth, ...] = ()
    unavailable: str = ""
    jobs: tuple[JobHealth, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether everything is well."""
        well = all(group.healthy for group in self.groups) and all(job.healthy for job in self.jobs)
        return well and not self.unavailable

    def lines(self) -> list[str]:
        """Return a line for each unhealthy thing."""
        if self.unavailable:
            return [self.unavailable]
        of_groups = [finding.line for group in self.groups for finding in group.findings]
        return [*of_groups, *(finding.line for job in self.jobs for finding in job.findings)]

    def as_json(self) -> dict[str, Any]:
        """Return it in the shape of the JSON output."""
        return {
            "healthy": self.healthy,
            "unavailable": self.unavailable or None,
            "groups": [_group_as_json(group) for group in self.groups],
            "jobs": [job.as_json() for job in self.jobs],
        }


def judged(group: str, standings: Sequence[Standing], rule: HealthRule) -> GroupHealth:
    """Return the health of a group, from what is known of its partitions."""
    found = [finding for each in standings if (finding := _finding(each, rule)) is not None]
    if len(found) == len(standings) and _is_the_same(found):
        found = [replace(found[0], partition=None)]
    lag = max((each.lag for each in standings), default=0)
    return GroupHealth(group, _state(standings, found), lag, len(standings), tuple(found))


def obstacle(standing: Standing) -> tuple[str, str] | None:
    """Return why a partition makes no progress until a person acts, and what to do; ``None`` if it may progress.

    One that a process can still take, that backs off, that waits for a database, or that a command has paused while
    it works, may continue without action.
    """
    status = standing.status
    if status is not None and standing.is_beyond:
        return _failed(standing, status, "it has failed")
    if not standing.wanted:
        if status is not None and status.wanted == Wanted.PAUSED:
            return None
        return "it is stopped", _start(standing)
    if is_unowned(standing):
        return None if standing.able else _unowned(standing)
    if status is not None and standing.has_failed:
        return _failed(standing, status, "it has failed")
    return None


def _is_the_same(found: Sequence[Finding]) -> bool:
    """Return whether no partition of a group is owned, each for the same reason."""
    reasons = {(each.problem, each.why, each.fix) for each in found}
    return len(reasons) == 1 and found[0].problem is Problem.UNOWNED


def _state(standings: Sequence[Standing], found: Sequence[Finding]) -> str:
    if found:
        return min((finding.problem for finding in found), key=list(Problem).index).value
    if not any(each.wanted for each in standings):
        return "stopped"
    return "unknown" if all(each.status is None and not each.owner for each in standings) else "running"


def _finding(standing: Standing, rule: HealthRule) -> Finding | None:
    """Return the worst problem of a partition, ``None`` if it is well. One that is stopped on purpose is."""
    problems = _problems if standing.wanted else _left_paused
    for problem, why, fix in problems(standing, rule):
        return Finding(standing.group, standing.partition, problem, why, fix)
    return None


def _problems(standing: Standing, rule: HealthRule) -> Iterator[tuple[Problem, str, str]]:
    status = standing.status
    if status is not None and standing.has_failed and not (is_unowned(standing) and standing.able):
        yield Problem.FAILED, *_failed(standing, status, "failed")
    if is_unowned(standing):
        yield Problem.UNOWNED, *_unowned(standing)
    if status is None and not standing.owner:
        return
    if standing.lag and (waited := standing.waited()) >= rule.stalled_after:
        why = f"{_held_up(status, waited)}, lag {standing.lag:,}"
        yield Problem.STALLED, why, _where_to_look(standing, status)
    if rule.max_lag is not None and standing.lag > rule.max_lag:
        why = f"lag {standing.lag:,} is more than health.max-lag {rule.max_lag:,}"
        yield Problem.LAGGING, why, "see with opencqrs status --watch whether it catches up"


def _left_paused(standing: Standing, rule: HealthRule) -> Iterator[tuple[Problem, str, str]]:
    """Yield a finding if a partition has been paused for long: a killed command does not start it again."""
    is_paused = standing.status is not None and standing.status.wanted == Wanted.PAUSED
    if is_paused and standing.lag and (waited := standing.waited()) >= rule.stalled_after:
        why = f"is paused by a command, and has made no progress for {in_words(waited)}, lag {standing.lag:,}"
        yield Problem.STALLED, why, f"if no such command runs any more, {_start(standing)}"


def is_unowned(standing: Standing) -> bool:
    """Return whether no process has a partition."""
    status = standing.status
    if standing.led:
        return not standing.owner
    return status is not None and status.state is ProcessorState.STOPPED


def _failed(standing: Standing, status: PartitionStatus, verb: str) -> tuple[str, str]:
    why = f"{verb}{_error(status)}"
    if is_unowned(standing):
        return f"{why}, and no process runs it", f"fix its cause, then {_run_or_stop(standing)}"
    return why, _recovery(standing, status)


def _unowned(standing: Standing) -> tuple[str, str]:
    status = standing.status
    last = _last_failure(status) if status is not None and status.error else ""
    if standing.able:
        fix = "look at opencqrs nodes; node.max-partitions or life-cycle.max-partitions-per-node may be too low"
        return f"no node has taken it yet, though {listed(standing.able)} could{last}", fix
    why = "no process runs it"
    if standing.lapsed is not None:
        why = "its lease has ended: its process has ended, or cannot reach the database or write to it"
        fix = f"look at the log of its process; if that has ended, {_run_or_stop(standing)}"
        return f"{why}{last}", fix
    if status is not None and status.state is ProcessorState.UNOWNED:
        why = "the process that ran it has ended without releasing it"
    return f"{why}{last}", _run_or_stop(standing)


def _run_or_stop(standing: Standing) -> str:
    stop = f"opencqrs groups stop {shlex.quote(standing.group)}" if standing.led else "set life-cycle.auto-start: false"
    return f"start opencqrs run; or, if this is intended, {stop}"


def _start(standing: Standing) -> str:
    """Return how a partition is started; commands for groups are refused unless it uses leases."""
    if standing.led:
        return f"opencqrs groups start {_place(standing)}"
    return f"opencqrs run --group {shlex.quote(standing.group)}"


def _recovery(standing: Standing, status: PartitionStatus) -> str:
    """Return what to do about a partition that has failed."""
    if standing.led:
        return f"fix its cause, then opencqrs groups restart {_place(standing)}"
    failed = status.failed_event
    if failed is not None and failed.crashes >= MOST_CRASHES:  # no start tries it again
        return "fix its handler, then release the event as OCQ-236 says"
    return "fix its cause; the next attempt is after a pause, or at the next start of its process"


def _place(standing: Standing) -> str:
    return shlex.quote(f"{standing.group}:{standing.partition}")


def _error(status: PartitionStatus) -> str:
    failure = status.failed_event
    if failure is None:
        return f": {status.error}" if status.error else ""
    event = in_one_line(f"event {failure.event_id} ({failure.event_type}) at position {failure.position}")
    attempt = f" on attempt {failure.attempts}" if failure.attempts else ""
    return f" at {event}{attempt}: {failure.last_error}"


def _last_failure(status: PartitionStatus) -> str:
    what = "its last error was" if status.failed_event is None else "its last attempt failed"
    return f"; {what}{_error(status)}"


def _held_up(status: PartitionStatus | None, waited: float) -> str:
    since = in_words(waited)
    if status is None:
        return f"has not begun for {since}"
    match status.state:
        case ProcessorState.BACKING_OFF:
            return f"backs off for {since}{_error(status)}"
        case ProcessorState.WAITING:
            return f"waits for the database or event store for {since}{_error(status)}"
        case _:
            return f"has made no progress for {since}"


def _where_to_look(standing: Standing, status: PartitionStatus | None) -> str:
    if status is not None and status.state is ProcessorState.BACKING_OFF:
        return "fix what its handler raises, or limit retry.max-attempts"
    return f"look at the log of {f'node {standing.owner}' if standing.owner else 'its process'}"


def seconds_since(moment: str | None, now: datetime) -> float | None:
    """Return the seconds since an ISO 8601 time, at least 0; ``None`` if there is none."""
    return None if moment is None else max(0.0, (now - datetime.fromisoformat(moment)).total_seconds())


def _group_as_json(group: GroupHealth) -> dict[str, Any]:
    return {
        "group": group.group,
        "healthy": group.healthy,
        "state": group.state,
        "lag": group.lag,
        "partitions": group.partitions,
        "problems": [
            {
                "partition": None if finding.partition is None else str(finding.partition),
                "problem": finding.problem.value,
                "message": finding.why,
                "fix": finding.fix,
            }
            for finding in group.findings
        ],
    }

"""What happens to partitions and runs of jobs in this process, counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from threading import Lock

from typing_extensions import override

from opencqrs_py.jobs.runs import JobRun, RunStatus
from opencqrs_py.model.outcome import Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.notices import Notice, Observer
from opencqrs_py.processing.recovery import Action

_FAILED_ATTEMPTS = frozenset({Action.RETRY, Action.SKIP, Action.PARK, Action.STOP})


@dataclass(slots=True)
class PartitionCounts:
    """What has happened to a partition in this process, since its start.

    Attributes:
        claims: How often this process has claimed it.
        handled: Events that handlers have handled.
        skipped: Events that were skipped.
        failed_attempts: Attempts of events that have failed.
        failures: How often it was stopped by an error.
        outages: How often it began to wait, or waited again, for a database or the event store.
    """

    claims: int = 0
    handled: int = 0
    skipped: int = 0
    failed_attempts: int = 0
    failures: int = 0
    outages: int = 0


class Counting(Observer):
    """Counts what processors of this process do. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[tuple[str, str], PartitionCounts] = {}
        self._held: set[tuple[str, str]] = set()  # partitions that are held, of which reminders follow

    def counts(self) -> dict[tuple[str, str], dict[str, int]]:
        """Return what was counted, by group and partition."""
        with self._lock:
            return {key: asdict(each) for key, each in self._counts.items()}

    @override
    def claimed(self, group: str, partition: Partition, position: int) -> None:
        with self._lock:
            self._of(group, partition).claims += 1
            self._held.discard((group, str(partition)))

    @override
    def advanced(self, group: str, partition: Partition, outcome: Outcome) -> None:
        if not (outcome.handled or outcome.skips):
            return
        with self._lock:
            counts = self._of(group, partition)
            counts.handled += outcome.handled
            counts.skipped += outcome.skipped

    @override
    def noticed(self, notice: Notice) -> None:
        with self._lock:
            counts = self._of(notice.group, notice.partition)
            counts.failed_attempts += notice.attempt > 0 and notice.action in _FAILED_ATTEMPTS
            counts.failures += notice.action is Action.STOP or self._is_held_now(notice)
            counts.outages += notice.action is Action.WAIT

    def _is_held_now(self, notice: Notice) -> bool:
        """Return whether a notice is the first one about a held partition."""
        key = (notice.group, str(notice.partition))
        if notice.action is not Action.HOLD or key in self._held:
            return False
        self._held.add(key)
        return True

    def _of(self, group: str, partition: Partition) -> PartitionCounts:
        return self._counts.setdefault((group, str(partition)), PartitionCounts())


@dataclass(slots=True)
class RunCounts:
    """The results of a job's runs that this process has ended, since its start.

    Attributes:
        statuses: How many have ended with each status.
        seconds: Their total duration, from their first attempt to their end.
        items: How many ids they have handled.
    """

    statuses: dict[RunStatus, int] = field(default_factory=dict)
    seconds: float = 0.0
    items: int = 0

    @property
    def runs(self) -> int:
        """How many there were."""
        return sum(self.statuses.values())


class RunCounting:
    """Counts the runs of jobs that this process has ended. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, RunCounts] = {}

    def counts(self) -> dict[str, RunCounts]:
        """Return what was counted, by job."""
        with self._lock:
            return {job: replace(each, statuses=dict(each.statuses)) for job, each in self._counts.items()}

    def ended(self, run: JobRun) -> None:
        """Count a run that has ended."""
        took = (run.ended_at - run.started_at).total_seconds() if run.started_at and run.ended_at else 0.0
        with self._lock:
            counts = self._counts.setdefault(run.job, RunCounts())
            counts.statuses[run.status] = counts.statuses.get(run.status, 0) + 1
            counts.seconds += max(0.0, took)
            counts.items += run.position.items

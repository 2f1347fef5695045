"""What happens to partitions in this process, counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from threading import Lock

from typing_extensions import override

from opencqrs_py.model.outcome import Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.recovery import Action
from opencqrs_py.processing.supervision import Notice, Observer

_FAILED_ATTEMPTS = frozenset({Action.RETRY, Action.SKIP, Action.STOP})


@dataclass(slots=True)
class Counts:
    """What has happened to a partition in this process, since its start.

    Attributes:
        claims: How often this process has claimed it.
        handled: Events that handlers have handled.
        skipped: Events that were given up.
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
        self._counts: dict[tuple[str, str], Counts] = {}

    def counts(self) -> dict[tuple[str, str], dict[str, int]]:
        """Return what was counted, by group and partition."""
        with self._lock:
            return {key: asdict(each) for key, each in self._counts.items()}

    @override
    def claimed(self, group: str, partition: Partition, position: int) -> None:
        with self._lock:
            self._of(group, partition).claims += 1

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
            counts.failures += notice.action is Action.STOP
            counts.outages += notice.action is Action.WAIT

    def _of(self, group: str, partition: Partition) -> Counts:
        return self._counts.setdefault((group, str(partition)), Counts())

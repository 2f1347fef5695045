"""What ``opencqrs run`` shows while it runs: progress bars on a terminal, plain lines elsewhere, and all failures."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event, Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from opencqrs_py.cli.output import clean, stderr
from opencqrs_py.model.outcome import Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import PartitionStatus, ProcessorState
from opencqrs_py.processing.notices import Observer, in_words, when

if TYPE_CHECKING:
    from opencqrs_py.assembly.application import Application

_log = logging.getLogger("opencqrs.progress")

_BARS_SECONDS = 0.25
_LINES_SECONDS = 5.0
_RATE_SECONDS = 8.0  # a rate is the mean of about that many seconds
_HELD_UP = {
    ProcessorState.BACKING_OFF: "backing-off, attempt {attempt}, retry",
    ProcessorState.WAITING: "waiting for the database or event store, retry",
    ProcessorState.FAILED: "failed, next attempt",
    ProcessorState.STOPPED: "stopped",
}


@dataclass(frozen=True, slots=True)
class SeenPartition:
    """One partition at one moment.

    Attributes:
        group: Processing group.
        partition: Its partition.
        position: Stored progress.
        head: Newest event; ``None`` if it is not known.
        rate: Positions per second, lately.
        held_up: What the partition waits for, in words; empty while it runs.
    """

    group: str
    partition: str
    position: int
    head: int | None
    rate: float
    held_up: str = ""

    @property
    def figures(self) -> str:
        """Events, rate, lag and time left, for people; of a partition that is held up, by what."""
        lag = max(0, (self.head or 0) - self.position)
        left = f", {in_words(lag / self.rate)} left" if lag and self.rate else ""
        return f"{how_far(self.position, self.head)}, {self.held_up or f'{self.rate:,.0f}/s{left}'}"


class Monitor(Observer, AbstractContextManager["Monitor"]):
    """Watches a run: an observer for the engines, and a thread that polls progress.

    Args:
        application: The application that runs.
        every: Seconds between two polls.
        ends: Whether the run ends when it has caught up.
    """

    def __init__(self, application: Application, every: float, *, ends: bool = False) -> None:
        self.handled: dict[tuple[str, str], int] = defaultdict(int)
        self._groups: set[str] = set()
        self.held: set[str] = set()  # the partitions that run
        self.started = False
        self._application = application
        self._every = every
        self._lock = Lock()
        self._done = Event()
        self._thread = Thread(target=self._watch, name="opencqrs-monitor", daemon=True)
        self._seen: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        self._said_at_head = ends

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(0.5)

    def claimed(self, group: str, partition: Partition, position: int) -> None:
        """Watch the group."""
        del position
        self.held.add(f"{group} {partition}")
        self.started = True
        with self._lock:
            self._groups.add(group)

    def stopped(self, group: str, partition: Partition) -> None:
        """Note that the partition has no event in progress."""
        self.held.discard(f"{group} {partition}")

    def advanced(self, group: str, partition: Partition, outcome: Outcome) -> None:
        """Count what was handled."""
        with self._lock:
            self.handled[group, str(partition)] += outcome.handled

    def show(self, looks: list[SeenPartition]) -> None:
        """Log a line for each partition that moved since the last time, and once a line that all are at the head.

        Without that, a run with an empty log would look like a start that hangs. A run that ends when caught up needs
        no such line.
        """
        for look in looks:
            if look.rate:
                _log.info("[%s %s] %s", look.group, look.partition, look.figures)
        if looks and not self._said_at_head and all(map(_is_at_head, looks)):
            self._said_at_head = True
            _log.info("there are no new events: all partitions wait for more")

    def _watch(self) -> None:
        while not self._done.wait(self._every):
            with self._lock:
                groups = sorted(self._groups)
            try:
                statuses = self._application.status(groups) if groups else []
            except Exception:  # the engines report what is wrong with the database
                statuses = []
            self.show([self._look(p, s.head) for s in statuses for p in s.partitions])

    def _look(self, status: PartitionStatus, head: int | None) -> SeenPartition:
        kept = round(_RATE_SECONDS / self._every)
        group, partition, position = status.group, str(status.partition), status.position
        seen = self._seen.setdefault((group, partition), deque(maxlen=max(2, kept)))
        now = time.monotonic()
        seen.append((now, position))
        (then, before) = seen[0]
        rate = (position - before) / (now - then) if now > then else 0.0
        return SeenPartition(group, partition, position, head, rate, held_up(status, datetime.now(UTC)))


def _is_at_head(look: SeenPartition) -> bool:
    return look.head is not None and look.position >= look.head and not look.rate and not look.held_up


def how_far(position: int, head: int | None) -> str:
    """Return in words how far a partition is, for people."""
    if head is None:
        return f"{position:,}, newest event unknown"
    return f"{position:,} of {head:,}, lag {max(0, head - position):,}"


def held_up(status: PartitionStatus, now: datetime) -> str:
    """Return what a partition waits for and for how long, empty while it runs."""
    words = _HELD_UP.get(status.state, "")
    due = status.next_attempt_at and datetime.fromisoformat(status.next_attempt_at)
    if not words or not due:
        return status.state.value if words else ""
    left = max(0.0, (due - now).total_seconds())
    return f"{words.format(attempt=status.attempt)} {when(left)}"


class TerminalMonitor(Monitor):
    """The same with a progress bar for each partition."""

    def __init__(self, application: Application) -> None:
        super().__init__(application, _BARS_SECONDS)
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 only on a terminal

        self._bars: Any = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[figures]}", markup=False),
            console=stderr(),
            transient=True,
        )
        self._tasks: dict[tuple[str, str], Any] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._bars.stop()

    def show(self, looks: list[SeenPartition]) -> None:
        """Move the bars."""
        for look in looks:
            key = (look.group, look.partition)
            state = {"total": None if look.head is None else max(1, look.head), "figures": look.figures}
            if key not in self._tasks:
                self._tasks[key] = self._bars.add_task(clean(f"{look.group} {look.partition}"), **state)
            self._bars.update(self._tasks[key], completed=look.position, **state)


def monitor_for(application: Application, *, terminal: bool, ends: bool = False) -> Monitor:
    """Return the monitor that fits where messages go, for a run that ends when it has caught up, or for any other."""
    return TerminalMonitor(application) if terminal else Monitor(application, _LINES_SECONDS, ends=ends)

"""The parts of a job runner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from opencqrs_py.jobs.binding import BoundJob
from opencqrs_py.jobs.desk import Ending
from opencqrs_py.jobs.execution import Surroundings
from opencqrs_py.jobs.ports import JobStore, Selector
from opencqrs_py.jobs.runs import JobRun
from opencqrs_py.model.job import RunSignals
from opencqrs_py.processing.ports import Clock, Transactions


@dataclass(frozen=True, slots=True)
class Company:
    """This process among those that run jobs.

    Attributes:
        node: Its id.
        name: Its display name.
        alive: Ids of all live nodes, including its own, as of its last heartbeat.
        schedules: The valid schedule of each job that live nodes run.
    """

    node: str
    name: str
    alive: frozenset[str]
    schedules: Mapping[str, str]
    alive_now: Callable[[], Collection[str]]


class Attempt(Protocol):
    """One attempt of a run."""

    def execute(self) -> Ending | None:
        """Execute it; ``None`` if another process has taken the run over in the meantime."""
        ...


class RunObserver(Protocol):
    """Observes the ends of runs of this process. It must return at once, and not raise."""

    def ended(self, run: JobRun) -> None:
        """Note a finished run, as recorded."""
        ...


MakeAttempt = Callable[[BoundJob, JobRun, Surroundings, RunSignals, Callable[[], bool]], Attempt]


@dataclass(frozen=True, slots=True)
class JobParts:
    """The parts of a runner.

    Attributes:
        jobs: The jobs, by name.
        store: The tables of jobs.
        transactions: Opens transactions on the read models' database; ``None`` if there is none.
        select: Executes statements that inputs return.
        clock: For time budgets.
        most: How many runs the process executes at once, at least 1.
        on_spark: Makes attempts whose items are handled on Spark; ``None`` if none are.
        observer: Observes the ends of runs.
        runners: Ids of the runners of the same store in this process.
    """

    jobs: Mapping[str, BoundJob]
    store: JobStore
    transactions: Transactions | None
    select: Selector
    clock: Clock
    most: int = 4
    on_spark: MakeAttempt | None = None
    observer: RunObserver | None = None
    runners: set[str] = field(default_factory=set)

    @property
    def schedules(self) -> dict[str, str]:
        """What identifies the schedule of each job, by name."""
        return {name: job.rule.ticking.text for name, job in self.jobs.items()}

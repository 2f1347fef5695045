"""What a job runner is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
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
        name: How people know it.
        alive: Ids of all nodes that live, its own included, as of its last heartbeat.
        schedules: The schedule that counts of each job that living nodes run.
    """

    node: str
    name: str
    alive: frozenset[str]
    schedules: Mapping[str, str]
    alive_now: Callable[[], Collection[str]]


class Attempt(Protocol):
    """One attempt of a run."""

    def execute(self) -> Ending | None:
        """Execute it; ``None`` if the run was taken from this process meanwhile."""
        ...


class RunObserver(Protocol):
    """Sees how runs end that this process has executed. It must return at once, and not raise."""

    def ended(self, run: JobRun) -> None:
        """Take note of a run that has ended, as it is recorded."""
        ...


MakeAttempt = Callable[[BoundJob, JobRun, Surroundings, RunSignals, Callable[[], bool]], Attempt]


@dataclass(frozen=True, slots=True)
class JobParts:
    """What a runner is made of.

    Attributes:
        jobs: The jobs, by name.
        store: The tables of jobs.
        transactions: Opens transactions on the read models' database; ``None`` if there is none.
        select: Executes statements that inputs return.
        clock: For time budgets.
        most: How many runs the process has in hand at once, at least 1.
        on_spark: Makes attempts whose items are handled on Spark; ``None`` if none are.
        observer: Sees how runs end.
    """

    jobs: Mapping[str, BoundJob]
    store: JobStore
    transactions: Transactions | None
    select: Selector
    clock: Clock
    most: int = 4
    on_spark: MakeAttempt | None = None
    observer: RunObserver | None = None

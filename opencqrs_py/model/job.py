"""Jobs: functions that run at set times, on an event or on demand, and the context of their runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from opencqrs_py.errors import JobCancelledError

JobId: TypeAlias = int | str
"""Identifies an item of a job, such as the key of an invoice. All ids of a job have one type."""


class Trigger(StrEnum):
    """What started a run."""

    SCHEDULE = "schedule"
    STARTUP = "startup"
    EVENT = "event"
    MANUAL = "manual"
    HTTP = "http"


@dataclass(frozen=True, slots=True)
class JobMark:
    """The mark of ``@job`` on a function or method.

    Attributes:
        name: Name of the job.
        input: Yields or selects the ids that the job applies to; ``None`` for a job without items.
        home: Module whose import made the decoration; empty if no import was running.
    """

    name: str
    input: Callable[..., Any] | None = None
    home: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the project.

    Attributes:
        mark: Its name and input.
        call: The function or bound method.
        place: ``file:line (name)`` for messages.
        reference: Identifies it in every process that imports the same modules.
    """

    mark: JobMark
    call: Callable[..., Any]
    place: str
    reference: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """Its name."""
        return self.mark.name


@dataclass(frozen=True, slots=True)
class JobPage:
    """A request to an input function. It returns the ids that apply, in ascending order; none at the end.

    Attributes:
        limit: Most ids, at least 1.
        after: The id that they follow; ``None`` for the first ones.
        ids: If given, only these, as texts from the command line and from events; ``None``: all that apply.
    """

    limit: int
    after: JobId | None = None
    ids: tuple[JobId, ...] | None = None


class RunSignals:
    """Signals between a run and the process that runs it, from different threads."""

    def __init__(self) -> None:
        self.cancelled = ""  # why the run should end; empty: it continues
        self.done: int | None = None
        self.total: int | None = None
        self.raised = False  # whether the call was ended by ``JobContext.raise_if_cancelled``


@dataclass(frozen=True, slots=True)
class JobContext:
    """The circumstances of one call of a job. A function gets it by annotation.

    Attributes:
        job: Name of the job.
        run: Id of the run, the same in all of its calls and attempts.
        trigger: What started the run.
        ids: The ids of this call: a page, or one. Empty for a job without input that runs for all.
        attempt: Number of this attempt of the run, from 1.
        scheduled_at: The tick, in UTC; ``None`` if no schedule has started the run.
        deadline: End of the time budget, in UTC; ``None`` without one.
    """

    job: str
    run: str
    trigger: Trigger = Trigger.MANUAL
    ids: tuple[JobId, ...] = ()
    attempt: int = 1
    scheduled_at: datetime | None = None
    deadline: datetime | None = None
    _signals: RunSignals = field(default_factory=RunSignals, repr=False, compare=False)

    @property
    def id(self) -> JobId:
        """The one id that this call is for.

        Raises:
            ValueError: If there is none, or several: use ``ids``.
        """
        if len(self.ids) != 1:
            raise ValueError(f"the call is for {len(self.ids)} ids, so there is no single one: read JobContext.ids")
        return self.ids[0]

    @property
    def cancelled(self) -> bool:
        """Whether the run should end soon, at the request of a person or a newer run, or because the process ends.

        A long job should check it now and then. If it returns, its changes are kept, and the ids of the
        call count as done; see ``raise_if_cancelled`` for the other way.
        """
        return bool(self._signals.cancelled)

    def raise_if_cancelled(self) -> None:
        """Raise if the run should end: the changes of the call are rolled back, and its ids are not done.

        The same happens if the job catches the error, like any other, and returns.

        Raises:
            JobCancelledError: If the run should end.
        """
        if self._signals.cancelled:
            self._signals.raised = True
            raise JobCancelledError(self._signals.cancelled)

    def progress(self, done: int, total: int | None = None) -> None:
        """Report the progress of the run, for ``opencqrs jobs list``.

        Args:
            done: How much is done, 0 or more.
            total: The total amount, if known.

        Raises:
            ValueError: If a number is negative.
        """
        if done < 0 or (total is not None and total < 0):
            raise ValueError(f"progress must be 0 or more, got {done} of {total}")
        self._signals.done, self._signals.total = done, total

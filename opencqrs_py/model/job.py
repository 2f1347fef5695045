"""Jobs: functions that run at a time, on an event or on demand, and what they may ask about their run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from opencqrs_py.errors import JobCancelledError

JOB_ATTRIBUTE = "__opencqrs_jobs__"

JobId: TypeAlias = int | str
"""What a job knows one of its items by, such as the key of an invoice. All ids of a job are of one type."""


class Trigger(StrEnum):
    """What has started a run."""

    SCHEDULE = "schedule"
    STARTUP = "startup"
    EVENT = "event"
    MANUAL = "manual"
    HTTP = "http"


@dataclass(frozen=True, slots=True)
class JobMark:
    """What ``@job`` leaves on a function or method.

    Attributes:
        name: Name of the job.
        input: Yields or selects the ids that the job applies to; ``None`` if it works on no items.
        home: Module whose import made the decoration; empty when none was under way.
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
        reference: The same in every process that imports the same modules.
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
    """Which ids an input function is asked for. It returns those that apply, in ascending order; none at the end.

    Attributes:
        limit: How many at most, at least 1.
        after: The id after which they follow; ``None`` for the first ones.
        ids: Only these, if any are named, of the command line and of events as texts; ``None``: all that apply.
    """

    limit: int
    after: JobId | None = None
    ids: tuple[JobId, ...] | None = None


class RunSignals:
    """What a run and the process that runs it say to each other, from different threads."""

    def __init__(self) -> None:
        self.cancelled = ""  # why the run is to end; empty: it is to go on
        self.done: int | None = None
        self.total: int | None = None
        self.raised = False  # whether the call was ended by ``JobContext.raise_if_cancelled``


@dataclass(frozen=True, slots=True)
class JobContext:
    """The circumstances of one call of a job. A function gets it by annotation.

    Attributes:
        job: Name of the job.
        run: Id of the run, the same in all of its calls and attempts.
        trigger: What has started the run.
        ids: What this call is for: a page of ids, or one. Empty for a job without input that is run for all.
        attempt: Number of this attempt of the run, from 1.
        scheduled_at: The tick, in UTC; ``None`` if no schedule has started the run.
        deadline: When the time budget is over, in UTC; ``None`` without one.
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
            ValueError: If it is for none, or for several: read ``ids`` then.
        """
        if len(self.ids) != 1:
            raise ValueError(f"the call is for {len(self.ids)} ids, so there is no single one: read JobContext.ids")
        return self.ids[0]

    @property
    def cancelled(self) -> bool:
        """Whether the run is to end soon: a person, a newer run or the end of the process asks for it.

        A job that takes long looks at it now and then. If it returns, what it has written is kept, and the ids of the
        call count as done; see ``raise_if_cancelled`` for the other way.
        """
        return bool(self._signals.cancelled)

    def raise_if_cancelled(self) -> None:
        """Return unless the run is to end. What the call has written is rolled back then, and its ids are not done.

        That holds also if the job catches the error, with all others, and returns.

        Raises:
            JobCancelledError: If the run is to end.
        """
        if self._signals.cancelled:
            self._signals.raised = True
            raise JobCancelledError(self._signals.cancelled)

    def progress(self, done: int, total: int | None = None) -> None:
        """Say how far the run is, for ``opencqrs jobs list``.

        Args:
            done: How much is done, 0 or more.
            total: How much there is in all, if that is known.

        Raises:
            ValueError: If a number is negative.
        """
        if done < 0 or (total is not None and total < 0):
            raise ValueError(f"progress counts from 0, got {done} of {total}")
        self._signals.done, self._signals.total = done, total

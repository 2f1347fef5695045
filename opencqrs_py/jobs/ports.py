"""What jobs need from outside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from opencqrs_py.jobs.runs import JobRecord, JobRun, JobsView, LastRuns, RunPosition
from opencqrs_py.model.job import JobId, JobPage
from opencqrs_py.processing.ports import UnitOfWork


class JobBook(Protocol):
    """The records of some jobs and of their runs that have not ended, locked against other changes.

    What is put is written at the end of the block in which it is open.
    """

    @property
    def now(self) -> datetime:
        """The time in UTC, by the store's clock."""
        ...

    @property
    def records(self) -> Mapping[str, JobRecord]:
        """What is kept of each of the jobs, by name; a job that is new has an empty record."""
        ...

    @property
    def runs(self) -> Sequence[JobRun]:
        """Their runs that have not ended, including changes, by time of request, then by id.

        Their owners may record meanwhile what is done. A run that was put under another token, to continue elsewhere,
        shows what was recorded last.
        """
        ...

    @property
    def known(self) -> Collection[str]:
        """The ids of runs that were put as new but already have a record; to be read after the block."""
        ...

    def recorded(self, ids: Collection[str]) -> Collection[str]:
        """Return those of some ids of which a run is recorded, or was put, that does not give way to a new one."""
        ...

    def put(self, run: JobRun) -> JobRun:
        """Write a run: what was changed of one that is among ``runs``, or a new one.

        One that has ended is no longer among ``runs``. A record with the id of a new one stays as it is,
        unless it ``gives_way`` to it.

        Returns:
            The current state of the run; if it is taken from its owner, with what that committed last.
        """
        ...

    def put_record(self, record: JobRecord) -> None:
        """Write what is kept of a job."""
        ...


class JobStore(Protocol):
    """The tables of jobs and runs. Safe for several threads; each method is one short transaction.

    Times are those of the store's own clock, in milliseconds.
    """

    def prepare(self) -> None:
        """Create the tables if they are missing; to be called before transactions in which runs are requested."""
        ...

    def open(self, jobs: Collection[str]) -> AbstractContextManager[JobBook]:
        """Open the records of some jobs; a second caller for one of them waits until the block has ended.

        If the block raises, nothing is written. A call that waits too long raises an outage.
        """
        ...

    def look(self, jobs: Collection[str] | None = None) -> JobsView:
        """Return the state of the named jobs, or of all known ones. It waits for no lock."""
        ...

    def request(self, run: JobRun, unit: UnitOfWork | None = None) -> bool:
        """Record a requested run, unless there is one with its id; return whether it is new.

        Args:
            run: The run. Without a ``due_at`` it may begin at once; its ``requested_at`` is set by the store.
            unit: The transaction that it becomes part of, if that is one of the same database; ``None``: its own.
        """
        ...

    def advance(self, run: JobRun, position: RunPosition, unit: UnitOfWork | None = None) -> bool:
        """Record what of a run is done, if its owner still has it under the same token.

        Args:
            run: The run as its owner has it, with what it says of its progress.
            position: What is done now.
            unit: The transaction of the items; ``None``: a separate one.

        Returns:
            Whether it is recorded. If not, another one has the run, and the transaction must not be committed.

        Raises:
            JobError: OCQ-670, if the transaction is one of another database: there can be no commit of both.
        """
        ...

    def report(self, run: JobRun) -> bool:
        """Record how far a run says it is (``done`` and ``total``); return whether its owner still has it."""
        ...

    def report_wait(self, run: JobRun, error: str, seconds: float) -> bool:
        """Record that an attempt waits, as a database is unavailable, and why; return whether that is recorded.

        It is not if its owner does not have the run any more, or the run was asked to end.

        Args:
            run: The run as its owner has begun it.
            error: Why it waits.
            seconds: How long, from now.
        """
        ...

    def find(self, run: str) -> JobRun | None:
        """Return the run with an id."""
        ...

    def history(self, job: str | None = None, limit: int = 100) -> list[JobRun]:
        """Return runs of a job, or of all, newest request first; at most ``limit``."""
        ...

    def last_runs(self) -> dict[str, LastRuns]:
        """Return the last runs of each job of which one has begun and ended."""
        ...

    def purge(self, job: str, before: datetime) -> int:
        """Remove runs of a job that ended before a time, but for its ``LastRuns``; return how many."""
        ...

    def spread(self, run: JobRun, children: Sequence[JobRun]) -> bool:
        """Record the children of a run, if its owner still has it under the same token; return whether it has.

        Children are in no list: not in a book, a view, or the history. They are removed when their run ends,
        in any process; what they have not committed by then is lost.

        Args:
            run: The run as its owner has it.
            children: What is running for it, each with some of its ids; their ids were never used before.
        """
        ...

    def take_children(self, run: JobRun, owner: str) -> list[JobRun] | None:
        """Take the children of a run from their owners, which can then commit nothing more.

        Args:
            run: The run as its owner has it.
            owner: The node that executes the children from now on.

        Returns:
            The children by id, under their next tokens, with what was recorded last; ``None`` if another one has the
            run.
        """
        ...

    def gather(self, run: JobRun, position: RunPosition, children: Sequence[JobRun] = ()) -> bool:
        """Record what of a run is done, with all that its children have done, if its owner still has it.

        Args:
            run: The run as its owner has it, with what it says of its progress.
            position: What is done now.
            children: Those that continue, with the positions that they get; the others are removed. One that another
                copy of its task has taken over keeps its own.

        Returns:
            Whether it is recorded.
        """
        ...

    def take_over(self, child: JobRun) -> JobRun | None:
        """Take a child from another copy of the same task, which commits nothing more.

        Args:
            child: The child as the task was given it.

        Returns:
            The child under its next token, with what was recorded last; ``None`` if its owner does not have it any
            more.
        """
        ...

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means that the store is temporarily unavailable."""
        ...


class Selector(Protocol):
    """Executes what an input function has returned, if that is a statement of the database."""

    def limited(self, statement: object, unit: UnitOfWork | None) -> Sequence[JobId] | None:
        """Return all ids that a statement with its own limit selects; it cannot be read page by page.

        Executed again for each page it would select others, as what is done changes what comes first.

        Returns:
            ``None`` if it is not such a statement.

        Raises:
            JobError: OCQ-665, if it selects something else than one column.
        """
        ...

    def ids(self, statement: object, page: JobPage, unit: UnitOfWork | None) -> Sequence[JobId] | None:
        """Return a page of the ids that a statement selects, in ascending order.

        Args:
            statement: What the input function has returned.
            page: Which of them.
            unit: The transaction to read in.

        Returns:
            ``None`` if it is not a statement that selects ids.

        Raises:
            JobError: OCQ-665, if it selects something else than one column.
        """
        ...

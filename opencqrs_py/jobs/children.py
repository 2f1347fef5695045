"""Children of a run: its parts that are executed in parallel, each under its own record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opencqrs_py.errors import FencedError
from opencqrs_py.jobs.desk import Ending
from opencqrs_py.jobs.items import IdPage, place_after
from opencqrs_py.jobs.runs import JobRun, RunPosition, distinct
from opencqrs_py.model.job import JobId


class EndedError(Exception):
    """Ends an attempt."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.error)
        self.ending = ending


def page_of(children: Sequence[JobRun], position: RunPosition, named: Sequence[JobId] | None) -> IdPage:
    """Return the page that children were made of. Whether another one follows is not recorded; it may be empty.

    Args:
        children: The children of a run.
        position: What was done of the run before that page.
        named: What the run is for; ``None``: all that applies.
    """
    ids = tuple(id_ for child in children for id_ in child.ids or ())
    if not ids or named is None:
        return IdPage(ids, ids, ids[-1] if ids else None, last=not ids)
    names = distinct(named)
    end = place_after(names, ids[-1])
    return IdPage(ids, ids, ids[-1], end == len(names), named=names[place_after(names, position.after) : end])


def with_part(position: RunPosition, part: RunPosition) -> RunPosition:
    """Return what is done of a run with what a child has done."""
    failed, error = (*position.failed, *part.failed), position.error or part.error
    return replace(position, items=position.items + part.items, failed=failed, error=error)


def counted_in_run(position: RunPosition) -> RunPosition:
    """Return the position of a child whose items its run has."""
    return replace(position, items=0, failed=(), error="")


class RunFencedError(FencedError):
    """A run was taken over by another process. A job may raise ``FencedError`` itself, by a tracker that it uses."""


def fenced(run: JobRun) -> RunFencedError:
    """Return the error that another process has a run."""
    return RunFencedError(f"run {run.id} was taken over by another process")

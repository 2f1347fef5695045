"""The items of a run: which ids come next, page by page."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opencqrs_py.errors import JobError
from opencqrs_py.jobs.binding import BoundJob, JobInput, work_of
from opencqrs_py.jobs.ports import Selector
from opencqrs_py.jobs.runs import JobRun, RunPosition, distinct
from opencqrs_py.model.job import JobId, JobPage, Trigger
from opencqrs_py.processing.ports import UnitOfWork

_ASCENDING = "return the ids in ascending order, those after page.after, or return a select() of the ids"


@dataclass(frozen=True, slots=True)
class IdPage:
    """Some ids of a run.

    Attributes:
        ids: The ids; empty for a job that works on no items, and where none of those that were named applies.
        marks: For each of the ids, up to which one everything is done with it; of named ids as they were named.
        after: The id up to which everything is done with this page.
        last: Whether nothing comes after it.
        call: Whether the job is to be called for it.
        named: The ids that the input was asked about, in their order; empty if it was asked about none.
    """

    ids: tuple[JobId, ...]
    marks: tuple[JobId | None, ...]
    after: JobId | None
    last: bool
    call: bool = True
    named: tuple[JobId, ...] = ()

    @property
    def left_out(self) -> int:
        """How many of the named ids the input did not return."""
        return len(self.named) - len(set(map(str, self.marks))) if self.named else 0

    def one_by_one(self) -> tuple[list[IdPage], IdPage]:
        """Return a page for each call of one item, and what is left of the page after the last of them.

        Each one has the named ids up to its own that are left out, so that they are counted with what it commits.
        """
        if not self.ids:
            return [self] * self.call, replace(self, call=False)
        places = {str(name): place for place, name in enumerate(self.named, 1)}
        pages, begin = [], 0
        for item, mark in zip(self.ids, self.marks, strict=True):
            end = max(begin, places.get(str(mark), 0))
            pages.append(IdPage((item,), (mark,), mark, last=False, named=self.named[begin:end]))
            begin = end
        return pages, IdPage((), (), self.after, self.last, call=False, named=self.named[begin:])


class Items:
    """Returns the pages of one run.

    Args:
        job: The job.
        run: The run.
        select: Executes statements that an input returns.
    """

    def __init__(self, job: BoundJob, run: JobRun, select: Selector) -> None:
        self._job = job
        self._run = run
        self._select = select
        self._gathered: list[JobId] | None = None
        self._may_be_short = False  # whether a page that is not full may be followed by another one

    def page(self, position: RunPosition, most: int, unit: UnitOfWork | None) -> IdPage:
        """Return the page after a position.

        Args:
            position: What of the run is done.
            most: Ids of the page at most, at least 1.
            unit: The transaction to read in; ``None`` if the input asks for none.

        Raises:
            JobError: OCQ-665 or OCQ-666, if the input breaks its contract.
        """
        named = position.only if position.only is not None else self._run.ids
        if named is not None:
            return self._of_named(distinct(named), position, most, unit)
        if self._job.input is None:
            return IdPage((), (), None, last=True)
        ids = self._applying(self._job.input, JobPage(most, position.after), unit)
        last = not ids if self._may_be_short else len(ids) < most
        return IdPage(ids, ids, ids[-1] if ids else position.after, last, call=bool(ids))

    def passed(self, position: RunPosition, page: IdPage) -> RunPosition:
        """Return a position as it is after a page whose items are counted, with the ids that it has left out."""
        moved = replace(position, after=page.after, done=page.last)
        if position.only is not None:
            return replace(moved, gone=position.gone + page.left_out)
        if self._run.trigger is Trigger.EVENT:
            return replace(moved, unmet=position.unmet + page.left_out)
        return moved

    def _of_named(self, named: tuple[JobId, ...], position: RunPosition, most: int, unit: UnitOfWork | None) -> IdPage:
        begin = place_after(named, position.after)
        chunk = named[begin : begin + most]
        last = begin + most >= len(named)
        after = chunk[-1] if chunk else position.after
        if self._job.input is None:
            return IdPage(chunk, chunk, after, last, call=bool(chunk))
        found = self._found(self._job.input, chunk, unit)
        ids, marks = tuple(id_ for _, id_ in found), tuple(mark for mark, _ in found)
        return IdPage(ids, marks, after, last, call=bool(found), named=chunk)

    def _found(self, given: JobInput, named: tuple[JobId, ...], unit: UnitOfWork | None) -> list[tuple[JobId, JobId]]:
        """Return which of the named ids apply, each as it was named and as the input spells it."""
        ids = self._applying(given, JobPage(max(1, len(named)), None, named), unit)
        exact = {str(each): each for each in ids}
        if exact.keys() <= set(map(str, named)):
            return [(each, exact[str(each)]) for each in named if str(each) in exact]
        # The database treats another spelling as the same, such as a UUID in upper case.
        found: dict[str, tuple[JobId, JobId]] = {}
        for name in named:
            for each in self._applying(given, JobPage(1, None, (name,)), unit):
                found.setdefault(str(each), (name, each))
        return list(found.values())

    def _applying(self, given: JobInput, page: JobPage, unit: UnitOfWork | None) -> tuple[JobId, ...]:
        if self._gathered is not None:
            return self._of_gathered(page)
        result = given.call(page, work_of(self._job.job.name, unit))
        limited = self._select.limited(result, unit)
        selected = self._select.ids(result, page, unit) if limited is None else None
        if selected is not None:
            return tuple(selected)
        if limited is None and given.paged:
            self._may_be_short = True
            return _checked(_listed(result, given.place), page, given.place)
        self._gathered = sorted(set(_listed(result if limited is None else limited, given.place)))
        return self._of_gathered(page)

    def _of_gathered(self, page: JobPage) -> tuple[JobId, ...]:
        gathered: list[Any] = self._gathered or []
        if page.ids is not None:
            wanted = set(map(str, page.ids))
            return tuple(each for each in gathered if str(each) in wanted)
        begin = 0 if page.after is None else bisect_right(gathered, page.after)
        return tuple(gathered[begin : begin + page.limit])


def place_after(named: Sequence[JobId], after: JobId | None) -> int:
    """Return how many of the named ids are done if all up to one of them are."""
    return 0 if after is None else list(map(str, named)).index(str(after)) + 1


def _listed(result: object, place: str) -> list[JobId]:
    if isinstance(result, str | bytes) or not isinstance(result, Iterable):
        what = f"the input of the job returned a {type(result).__name__}, not ids"
        raise JobError("OCQ-665", what, place, "return a select() of one column, or return or yield ids")
    ids = list(result)
    for each in ids:
        if isinstance(each, bool) or not isinstance(each, int | str):
            what = f"the input of the job yields a {type(each).__name__}, and ids are whole numbers or texts"
            raise JobError("OCQ-665", what, place, "yield the key of each item, such as row.id or str(row.id)")
    if len({type(each) for each in ids}) > 1:
        what = "the input of the job yields both whole numbers and texts"
        raise JobError("OCQ-665", what, place, "yield ids of one type")
    return ids


def _checked(ids: Sequence[JobId], page: JobPage, place: str) -> tuple[JobId, ...]:
    """Return what an input has returned for a page, if it is valid."""
    if page.ids is not None:
        return _only_named(ids, page.ids, place)
    before: Any = page.after
    each: Any
    for each in ids:
        if before is not None and (type(each) is not type(before) or each <= before):
            what = f"the input of the job returned {each!r} after {before!r}: the same ids could be handled twice"
            raise JobError("OCQ-666", what, place, _ASCENDING)
        before = each
    return tuple(ids[: page.limit])


def _only_named(ids: Sequence[JobId], named: Sequence[JobId], place: str) -> tuple[JobId, ...]:
    known = set(map(str, named))
    other = next((each for each in ids if str(each) not in known), None)
    if other is not None:
        what = f"the input of the job was asked about {len(named)} ids, and returned {other!r}, which is none of them"
        raise JobError("OCQ-666", what, place, "where page.ids is not None, return only those of page.ids that apply")
    return tuple(ids)

"""Positions: reading events again by position, and the position of the newest event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import ATTRIBUTES, Selection
from opencqrs_py.processing.ports import EventSource, HeldUpSource, PickingSource

_ALL = Selection("/", recursive=True, attributes=ATTRIBUTES)
_NEAR = 20  # most positions between two events that are read together, in a store that cannot pick events
_AT_ONCE = 1_000


def events_at(source: EventSource, positions: Iterable[int]) -> dict[int, Event]:
    """Return the events at positions, by position, without those that are no longer in the log."""
    wanted = sorted(set(positions))
    if isinstance(source, PickingSource):
        return {event.position: event for event in source.pick(wanted)}
    found: dict[int, Event] = {}
    for run in _runs(wanted):
        after, there = run[0] - 1, set(run)
        while after < run[-1]:
            part = source.read(after, _AT_ONCE, _ALL, run[-1])
            found.update((event.position, event) for event in part.events if event.position in there)
            if part.upto <= after:
                break
            after = part.upto
    return found


def newest_in(source: EventSource) -> int:
    """Return the position of the newest event of a log, even one that may not be read yet."""
    head = source.head()
    return max(head, source.newest()) if isinstance(source, HeldUpSource) else head


def _runs(positions: list[int]) -> Iterator[list[int]]:
    """Yield runs of positions that are close to each other."""
    run: list[int] = []
    for position in positions:
        if run and position - run[-1] > _NEAR:
            yield run
            run = []
        run.append(position)
    if run:
        yield run

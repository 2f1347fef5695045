"""Finding events by their ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from opencqrs_py.model.selection import Selection
from opencqrs_py.processing.ports import EventSource

_AT_ONCE = 10_000
_IDENTITIES = Selection("/", recursive=True, attributes=frozenset({"id", "source"}))


class FoundEvent(NamedTuple):
    """Where an event is."""

    position: int
    source: str


@runtime_checkable
class FindingSource(Protocol):
    """An event source that finds events by their ids without reading all of them."""

    def find(self, event_id: str, source: str = "") -> list[FoundEvent]:
        """Return the events with an id, one for each source that has it, by source; of one source if it is named."""
        ...


def find_event(store: EventSource, event_id: str, source: str = "") -> list[FoundEvent]:
    """Return the events with an id, as ``FindingSource.find``; a store that cannot find them is read from its start."""
    if isinstance(store, FindingSource):
        return store.find(event_id, source)
    return sorted(_read(store, event_id, source), key=lambda found: found.source)


def _read(store: EventSource, event_id: str, source: str) -> Iterator[FoundEvent]:
    after, head = 0, store.head()
    while after < head:
        part = store.read(after, _AT_ONCE, _IDENTITIES, head)
        for event in part.events:
            if event.id == event_id and source in ("", event.source):
                yield FoundEvent(event.position, event.source)
        if part.upto <= after:
            return
        after = part.upto

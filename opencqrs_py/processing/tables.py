"""Tables that handlers take: what the dispatcher knows of them without loading pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.processing.binding import BoundHandler


class RowFailedError(Exception):
    """The event at ``index`` among several cannot become a row of a table, because of ``error``."""

    def __init__(self, index: int, error: BaseException) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class TableMaker(Protocol):
    """Makes the tables of a handler."""

    def of_chunk(self, chunk: Chunk) -> Any:
        """Return the table of the events of a chunk as they are stored; raises ``RowFailedError``."""
        ...

    def of_events(self, events: Sequence[Event], objects: Sequence[Any]) -> Any:
        """Return the table of events as they were read.

        Args:
            events: One or more.
            objects: Their decoded data; ``None`` for each that was not decoded.

        Raises:
            RowFailedError: With the index of an event that cannot become a row, and the reason.
        """
        ...


def table_maker_for(bound: BoundHandler) -> TableMaker | None:
    """Return the maker of a handler's tables, ``None`` if it takes none; raises OCQ-238 like ``TableReader``."""
    if not bound.signature.in_columns:
        return None
    from opencqrs_py.processing.columns import TableReader  # noqa: PLC0415 loads pyarrow, only where it is asked for

    classes = bound.signature.event_classes
    return TableReader(classes[0] if classes else None, bound.handler.place)

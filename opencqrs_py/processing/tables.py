"""Tables that handlers take: what the dispatcher knows about them without loading pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event


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

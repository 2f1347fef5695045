"""The input of a handler with ``@dataframe_handler``: a range of events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from opencqrs_py.errors import HandlerSignatureError


class EventFrames(ABC):
    """The events of a range of positions, as data frames of Spark that read them when they are used.

    Used as an annotation: ``def lent(events: EventFrames, connection: Connection)``. Valid for one call of the handler.

    Attributes:
        first: Position of the first event of the range that the group handles.
        last: Last position of the range.
    """

    _in_rebuild = False

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last

    @property
    def batch(self) -> str:
        """A name that the range keeps in each attempt, for data that is written elsewhere.

        It is the position of its first event, in 19 digits, so that names sort like positions. The next attempt must
        replace the data that an attempt wrote under it; it may end at another position.

        Raises:
            HandlerSignatureError: OCQ-245 in a rebuild, whose ranges would replace those in use.
        """
        if self._in_rebuild:
            what = "events.batch is not available in a rebuild: what is written under it would replace what is in use"
            fix = "write no files while ProcessingContext.rebuilding is true, or write them to another folder"
            raise HandlerSignatureError("OCQ-245", what, fix=fix)
        return f"{self.first:019d}"

    @abstractmethod
    def of(self, event_class: type) -> Any:
        """Return the events of a class as a ``pyspark.sql.DataFrame``: a column for each field, and three more.

        These are ``position``, ``subject`` and ``time``. Rows have no order.

        Raises:
            HandlerSignatureError: OCQ-206 or OCQ-238, if there can be no table of the class; OCQ-241, if workers
                cannot import it, or the group does not handle all of its event types.
        """

    @abstractmethod
    def as_stored(self) -> Any:
        """Return all events of the range as a ``pyspark.sql.DataFrame``, the data as JSON text.

        Its columns are ``position``, ``type``, ``subject``, ``time`` and ``data``. Rows have no order.
        """

"""A mapping: the columns of another system's table that contain the parts of an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from opencqrs_py.errors import EventStoreError

_NEEDED = ("table", "position", "id", "type", "data")


@dataclass(frozen=True, slots=True)
class TableMapping:
    """The columns of another system's table that hold the parts of an event. Names are case-sensitive.

    Attributes:
        table: Name of the table; optionally after a schema and a dot.
        position: Whole number above 0, unique per row, that grows as rows are added.
        id: The event's id.
        type: Its type.
        data: Its data, as JSON.
        source: Its source; ``None`` if no column holds it.
        subject: Its subject; ``None`` when no column holds it: then it is ``/``.
        time: Its time; ``None`` when no column holds it.
        metadata: Its metadata, as a JSON object; ``None`` if no column holds it.
        source_value: The source of all events, where no column holds it.
        said_in: Prefix of the names of the parts in their source; for messages.
    """

    table: str
    position: str
    id: str
    type: str
    data: str
    source: str | None = None
    subject: str | None = None
    time: str | None = None
    metadata: str | None = None
    source_value: str = ""
    said_in: str = field(default="event-store.mapping", compare=False)

    @classmethod
    def of(cls, named: Mapping[str, str], said_in: str, place: str) -> Self | None:
        """Return the mapping of the given parts, ``None`` without any.

        Args:
            named: Names of columns, by part.
            said_in: As the attribute.
            place: Where the parts were written.

        Raises:
            EventStoreError: OCQ-313, if a part is missing that every event needs.
        """
        if not named:
            return None
        missing = [part for part in _NEEDED if part not in named]
        if missing:
            what = f"the mapping of a table lacks {', '.join(missing)}"
            fix = f"set {', '.join(f'{said_in}.{part}' for part in missing)}"
            raise EventStoreError("OCQ-313", what, place, fix)
        return cls(**named, said_in=said_in)

    @property
    def columns(self) -> dict[str, str]:
        """The columns, by part of the event."""
        parts = ("position", "id", "source", "subject", "type", "time", "data", "metadata")
        named = {part: getattr(self, part) for part in parts}
        return {part: column for part, column in named.items() if column is not None}

"""An event: a CloudEvent together with its position in the store's global order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.json_text import read_json
from opencqrs_py.model.naming import event_label
from opencqrs_py.model.times import moment_of

NOT_UTF_8 = "not UTF-8: "
"""Prefix of the text of bytes that are not UTF-8, as another program may have stored them; the text is not JSON."""

_FIX_DATA = "fix the event where it is stored, or use a handler that takes the raw Event and reads no data"
_FIX_METADATA = "fix the event where it is stored, or ask for no Metadata"


class Metadata(dict[str, Any]):
    """The metadata of an event: the CloudEvent's extension attributes. Empty if there are none.

    Each handler, and each access to ``Event.metadata``, gets its own dictionary: changes are not visible elsewhere.
    """


class _Columns(NamedTuple):
    position: int
    id: str
    source: str
    subject: str
    type: str
    time: str | None
    content_type: str
    payload: str | None
    extensions: str | None


class Event(_Columns):
    """One stored CloudEvent, decoded on access.

    A named tuple rather than a dataclass: a store makes one per row, and ``Event._make(row)`` costs a fifth of a
    frozen dataclass. It is immutable, as partitions, groups and attempts share it: ``data`` and
    ``metadata`` are decoded at each access, and no attribute can be set.

    Attributes:
        position: Place in the store's global order, from 1.
        id: CloudEvents ``id``; with ``source`` it is unique in a store.
        source: CloudEvents ``source``.
        subject: CloudEvents ``subject``; starts with a slash in well-formed logs.
        type: CloudEvents ``type``.
        time: CloudEvents ``time`` as it was sent (RFC 3339), or ``None``.
        content_type: CloudEvents ``datacontenttype``.
        payload: The data as JSON text, or ``None`` when the event has none.
        extensions: All other attributes as one JSON object, or ``None``.
    """

    __slots__ = ()

    @property
    def data(self) -> Any:
        """The data decoded from JSON, at each access: the caller may keep and change the object.

        No digit of a number is lost: whole numbers are ``int``, of any size; others ``float``, or ``Decimal`` if a
        ``float`` would change digits.

        Raises:
            EventFormatError: OCQ-210, if the event has no data or they are not JSON.

        Source:
            Decision K14: no data is an error that names the event.
        """
        if self.payload is None:
            raise EventFormatError("OCQ-210", "the event has no data", self.label, _FIX_DATA)
        return self._parsed("data", self.payload, _FIX_DATA)

    @property
    def metadata(self) -> Metadata:
        """The extension attributes, decoded at each access like ``data``; empty when there are none (K14).

        Raises:
            EventFormatError: OCQ-210, if they are not a JSON object, as in a table that another program fills.
        """
        if not self.extensions:
            return Metadata()
        found = self._parsed("metadata", self.extensions, _FIX_METADATA)
        if not isinstance(found, dict):
            what = "the event's metadata are not a JSON object"
            raise EventFormatError("OCQ-210", what, self.label, _FIX_METADATA)
        return Metadata(found)

    def _parsed(self, part: str, text: str, fix: str) -> Any:
        try:
            return read_json(text)
        except ValueError as error:
            why = "the bytes are not UTF-8" if text.startswith(NOT_UTF_8) else error
            raise EventFormatError("OCQ-210", f"the event's {part} are not JSON ({why})", self.label, fix) from error

    @property
    def timestamp(self) -> datetime | None:
        """``time`` as an aware datetime (to the microsecond), or ``None``.

        A leap second is the first moment of the next second. A time without an offset, which another program may have
        written into a table, is treated as UTC.

        Raises:
            EventFormatError: OCQ-210, if it is not a time, as in a table that another program fills, or
                is in the year 0 or 10,000.
        """
        try:
            moment = moment_of(self.time) if self.time else None
        except ValueError:
            what = f"the event's time is {self.time!r}, which is not an RFC 3339 time of the years 1 to 9999"
            fix = "fix it where it is stored, or handle the text that was sent: Event.time"
            raise EventFormatError("OCQ-210", what, self.label, fix) from None
        return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment

    @property
    def label(self) -> str:
        """How messages name the event."""
        return event_label(self.id, self.position, self.type, self.subject)

"""Fingerprints of a log: the identity of its newest event at or below a position."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from opencqrs_py.errors import OtherLogError
from opencqrs_py.model.event import Event

_LONGEST = 1_000  # characters; the progress table of every database holds as many
_WAYS_OUT = (
    "put back the event store that the progress belongs to; or rebuild the group: delete its read model and its rows "
    "in opencqrs_progress and opencqrs_groups; or, to continue from here all the same, set log_fingerprint to NULL in "
    "its rows of opencqrs_progress, and position to the newest event's if it is beyond it"
)


@dataclass(frozen=True, slots=True)
class LogMark:
    """The newest event at or below a position.

    Attributes:
        position: Its position; 0 when there is none.
        source: CloudEvents ``source``.
        event_id: CloudEvents ``id``.
    """

    position: int = 0
    source: str = ""
    event_id: str = ""

    @classmethod
    def of(cls, event: Event | None) -> LogMark:
        """Return the mark of an event, or of an empty log."""
        return cls() if event is None else cls(event.position, event.source, event.id)

    @property
    def text(self) -> str:
        """The mark as ASCII, 1 to 1,000 characters; a long identity as its SHA-256."""
        if not self.position:
            return "[0]"
        text = json.dumps([self.position, self.source, self.event_id])
        if len(text) <= _LONGEST:
            return text
        identity = json.dumps([self.source, self.event_id]).encode()
        return json.dumps([self.position, hashlib.sha256(identity).hexdigest()])

    def __str__(self) -> str:
        if not self.position:
            return "nothing"
        return f"event {self.event_id[:100]} of {self.source[:100]} at position {self.position}"


def check_mark(
    position: int, fingerprint: str, head: Callable[[], int], find: Callable[[int], LogMark | None], where: str
) -> None:
    """Compare a log with the fingerprint that a ``LogMark`` has left.

    Args:
        position: The stored progress.
        fingerprint: The text stored with it; empty when an older version has stored none.
        head: Returns the position of the newest event.
        find: Returns the mark of the event at a position, ``None`` if there is no event.
        where: How messages name the log.

    Raises:
        EventStoreError: OCQ-316, if the log does not hold the event.
    """
    marked = _position_in(fingerprint)
    if marked is None:
        if position > (newest := head()):
            raise another_log(f"the progress is at position {position}, but the log ends at {newest}", where)
        return
    if marked == 0:
        return
    found = find(marked)
    if found is not None and found.text == fingerprint:
        return
    expected = _described(fingerprint)
    there = f"it holds {found}" if found is not None else f"there is none: the log ends at position {head()}"
    raise another_log(f"it should hold {expected}, but {there}", where)


def another_log(what: str, where: str) -> OtherLogError:
    """Return the error that the log is not the one that the progress belongs to."""
    return OtherLogError(
        "OCQ-316", f"the event store is not the one that the progress belongs to: {what}", where, _WAYS_OUT
    )


def _position_in(fingerprint: str) -> int | None:
    try:
        found = json.loads(fingerprint)
    except ValueError:
        return None if not fingerprint else -1  # of another kind of store: no event is there
    return found[0] if isinstance(found, list) and found and isinstance(found[0], int) else -1


def _described(fingerprint: str) -> str:
    try:
        position, source, event_id = json.loads(fingerprint)
    except ValueError:
        return "another event" if fingerprint.startswith("[") else "what another kind of event store has held"
    return str(LogMark(position, source, event_id))

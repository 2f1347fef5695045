"""Faults: how one answer of the stand-in goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Then(Enum):
    """What happens to an answer after some lines of it."""

    GO_ON = auto()
    """Nothing special."""
    CUT = auto()
    """The connection breaks."""
    END = auto()
    """The stream ends as if it were complete."""
    STALL = auto()
    """Nothing more is sent, and the connection stays open."""
    QUIET = auto()
    """Heartbeats only, whatever is written."""


@dataclass(frozen=True, slots=True)
class Fault:
    """How one answer goes wrong.

    Attributes:
        what: Which requests: ``read-events``, ``observe-events``, ``write-events``, ``ping`` …
        after: Number of lines that are sent as they should be.
        line: Sent then, when it is not empty: a line that is an error, unknown, or no JSON. It is a whole one when the
            answer continues, else half a one.
        then: What happens next.
        status: Unless 0: the answer has this status, and ``line`` as its text; nothing else is done.
        retry_after: Seconds that the header ``Retry-After`` of such an answer names; ``None`` for no header.
        pause: Seconds before each line.
        stored: For ``write-events`` that are cut or stall: whether the events are stored nevertheless.
    """

    what: str
    after: int = 0
    line: str = ""
    then: Then = Then.GO_ON
    status: int = 0
    retry_after: int | None = None
    pause: float = 0.0
    stored: bool = False

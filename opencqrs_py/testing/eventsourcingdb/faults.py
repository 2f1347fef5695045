"""Faults: how one response of the stand-in fails."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Then(Enum):
    """What happens to a response after some of its lines."""

    GO_ON = auto()
    """No fault."""
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
    """How one response fails.

    Attributes:
        what: Which requests: ``read-events``, ``observe-events``, ``write-events``, ``ping`` …
        after: Number of lines that are sent correctly.
        line: Sent next, unless it is empty: a line that is an error, unknown, or not JSON. It is complete if the
            response continues, else half a line.
        then: What happens next.
        status: Unless 0: the response has this status, and ``line`` as its text; nothing else is done.
        retry_after: Seconds in the ``Retry-After`` header of such a response; ``None`` for no header.
        pause: Seconds before each line.
        stored: For ``write-events`` that are cut or stall: whether the events are stored anyway.
    """

    what: str
    after: int = 0
    line: str = ""
    then: Then = Then.GO_ON
    status: int = 0
    retry_after: int | None = None
    pause: float = 0.0
    stored: bool = False

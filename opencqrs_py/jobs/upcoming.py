"""The next instants of a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from opencqrs_py.jobs.rules import Ticking


@dataclass(frozen=True, slots=True)
class Upcoming:
    """An instant."""

    at: datetime
    local: str
    note: str = ""


def upcoming(ticking: Ticking, now: datetime, count: int) -> tuple[Upcoming, ...]:
    """Return the next instants."""
    del ticking, now, count
    return ()

"""A clock that is moved by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from typing_extensions import override

from opencqrs_py.processing.ports import Clock


class FakeClock(Clock):
    """Time that stands until it is moved; ``start`` is the time of day at the beginning, a ``datetime``."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        if not isinstance(start, datetime):
            raise TypeError(f"start takes a datetime such as datetime(2026, 1, 1, tzinfo=UTC), got {start!r}")
        self._start = start
        self._gone = 0.0

    def monotonic(self) -> float:
        """Return the seconds passed so far."""
        return self._gone

    @override
    def now(self) -> datetime:
        gone = timedelta(seconds=self._gone)
        return (self._start.astimezone(UTC) + gone).astimezone(self._start.tzinfo)

    def advance(self, seconds: float) -> None:
        """Let some seconds pass; ``ValueError`` if they are negative."""
        self._gone += forward(seconds)


def forward(seconds: float) -> float:
    """Return seconds by which time may move; ``ValueError`` if they are negative."""
    if seconds < 0:
        raise ValueError(f"time does not go back, got {seconds}")
    return seconds

"""How far long work is."""

from __future__ import annotations

import time
from collections.abc import Callable

from opencqrs_py.cli.notices import in_words
from opencqrs_py.cli.output import stderr

__all__ = ["Progress", "rate"]

_TELL_EVERY = 2.0  # seconds between two lines


class Progress:
    """Tells on standard error, now and then, how much is done.

    Args:
        done: The word for it, such as ``read``.
        total: How much there is, if that is known.
        monotonic: Seconds that never go back.
    """

    def __init__(self, done: str, total: int | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._word = done
        self._total = total
        self._monotonic = monotonic
        self._began = self._told = monotonic()

    def __call__(self, done: int) -> None:
        """Tell it if the time has come.

        Args:
            done: Number of events so far.
        """
        now = self._monotonic()
        if now - self._told < _TELL_EVERY:
            return
        self._told = now
        speed = done / (now - self._began)
        known = f"{done:,} events {self._word} ({speed:,.0f}/s) …"
        if self._total and speed:
            left = in_words(max(0.0, (self._total - done) / speed))
            known = f"{done:,} of {self._total:,} events {self._word} ({speed:,.0f}/s), {left} left …"
        stderr().print(known, markup=False)


def rate(events: int, seconds: float) -> str:
    """Return the speed of what took long enough to have one, in brackets, or an empty text."""
    return f" ({events / seconds:,.0f}/s)" if events >= 1_000 and seconds > 0 else ""

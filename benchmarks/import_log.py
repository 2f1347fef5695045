"""The events that ``import_speed.py`` appends: made up, or from your own log.

Not a benchmark itself. The made-up events are small events of a library, with 7,919 subjects.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

from opencqrs_py.adapters.files.whole_files import events_of_file
from opencqrs_py.model import Event

__all__ = ["Log", "made_up", "made_up_in_order", "of_file"]

Log = Callable[[int, int], Iterator[Event]]
"""A log without an end: called with the number of the first event, from 0, and a count, it yields that many events."""


def made_up(first: int, count: int) -> Iterator[Event]:
    """Make up events with ids in random order, like random UUIDs."""
    return (_event(number, f"{number * 2_654_435_761 % 2**32:08x}-{number}") for number in range(first, first + count))


def made_up_in_order(first: int, count: int) -> Iterator[Event]:
    """Make up events with ids in ascending order, like UUIDs of version 7."""
    return (_event(number, f"{number:016x}") for number in range(first, first + count))


def of_file(file: Path) -> Log:
    """Repeat the events of a file endlessly, each time with another source."""
    log = tuple(events_of_file(file))
    gc.freeze()  # else the garbage collector would scan the log repeatedly, and the benchmark would measure that

    def cut(first: int, count: int) -> Iterator[Event]:
        for number in range(first, first + count):
            times, index = divmod(number, len(log))
            yield log[index]._replace(source=f"{log[index].source}-{times}")

    return cut


def _event(number: int, name: str) -> Event:
    book = f"/books/{number % 7_919}"
    payload = f'{{"isbn":"978-{number % 7_919:010}","reader":"reader {number % 613}","days":{number % 28}}}'
    kind = f"library.book-{('lent', 'returned', 'reserved')[number % 3]}.v1"
    time = f"2026-01-{1 + number % 28:02}T{number % 24:02}:{number % 60:02}:00Z"
    return Event(0, name, "urn:library", book, kind, time, "application/json", payload, None)

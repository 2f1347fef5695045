"""Readers that stay open, so that a read goes on where the one before it ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from opencqrs_py.adapters.files.identity import KnownFile
from opencqrs_py.adapters.files.selected import Selected

__all__ = ["EventFile", "EventReader", "Readers"]


class EventReader(Protocol):
    """Goes through a file's events once.

    Attributes:
        path: The file.
        number: Number of the next event, from 0; after an error, of what is no event.
        ended: Whether there was no next event.
    """

    path: Path | str
    number: int
    ended: bool

    def take(self, most: int, into: Selected) -> None:
        """Look at the next ``most`` events, and collect those that are selected; what comes before an error, too."""
        ...

    def skip_to(self, number: int) -> None:
        """Pass over events up to the one of that number."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class EventFile(Protocol):
    """One file of a log. Its events are numbered from 0.

    Attributes:
        path: The file.
        known: The file as it was looked at last.
        skip_limit: Most events that a reader that was kept passes over; for more, opening one anew is quicker. 0 when
            readers need not be kept at all.
    """

    path: Path
    known: KnownFile
    skip_limit: int

    def look(self, *, newest: bool) -> None:
        """Take in what was added; refuse a file that was changed.

        Args:
            newest: Whether no file comes after it.
        """
        ...

    def count(self) -> int:
        """Return how many events there are by now."""
        ...

    def may_hold(self, number: int) -> bool:
        """Return whether there may be an event of that number, from 0; events are counted only if need be."""
        ...

    def extent(self, number: int) -> tuple[int, bytes]:
        """Return the size in bytes of what holds the file's first ``number`` events (at least 1), and its digest.

        A file that is written once is looked at as a whole.
        """
        ...

    def has_grown_from(self, size: int, digest: bytes) -> bool:
        """Return whether the file was shorter, as ``extent`` said then, and has since been written to its end."""
        ...

    def reader(self, first: int, before: int) -> EventReader:
        """Open a reader at the event of that number, or before it.

        Args:
            first: Number of an event. It must have been counted, unless it is the first.
            before: Number of events in the files before this one.
        """
        ...


class Readers:
    """Readers in no use right now, the last used at the end.

    Args:
        most: Number of readers kept. More of them than there are processing groups, and each group finds its own.
    """

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._kept: list[EventReader] = []

    @contextmanager
    def at(self, file: EventFile, first: int, before: int) -> Iterator[EventReader]:
        """Lend a reader that is at the event of that number. It is closed when the block raises."""
        reader = self._taken(file, first) or file.reader(first, before)
        try:
            reader.skip_to(first)
            yield reader
        except BaseException:
            reader.close()
            raise
        if file.skip_limit and not reader.ended:
            self._keep(reader)
        else:
            reader.close()

    def is_kept_at(self, file: EventFile, first: int) -> bool:
        """Return whether a reader of the file is kept that is at the event of that number."""
        return any(reader.number == first and reader.path == file.path for reader in self._kept)

    def close(self) -> None:
        """Close all that are kept."""
        while self._kept:
            self._kept.pop().close()

    def _taken(self, file: EventFile, first: int) -> EventReader | None:
        """Take the reader of the file that is nearest before the event, if there is one."""
        least = first - file.skip_limit
        fitting = [reader for reader in self._kept if reader.path == file.path and least <= reader.number <= first]
        nearest = max(fitting, key=lambda reader: reader.number, default=None)
        if nearest is not None:
            self._kept.remove(nearest)
        return nearest

    def _keep(self, reader: EventReader) -> None:
        self._kept.append(reader)
        if len(self._kept) > self._most:
            self._kept.pop(0).close()

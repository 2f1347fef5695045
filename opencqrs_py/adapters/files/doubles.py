"""Events that occur twice in a log of files, as after ``cat a b > log``, ``cp`` or two exports."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_log = logging.getLogger("opencqrs.store")
_TWICE = (
    "%s: lines %d and %d are the same event (id %s, source %s), and it is handled twice, since a log of files is read "
    "as it is. Remove the second line before a group reads it, or import the file into a database, which stores it once"
)
_BEGIN_ALIKE = (
    "%s and %s begin with the same event (id %s, source %s), and all events that are in both are handled twice, since "
    "a log of files is read as it is. If one is a copy of the other, a link to it, or a longer export, remove one "
    "before a group reads it; an export of what is new needs --after"
)


class Doubles:
    """Looks for the usual ways in which an event gets into a file twice, and warns of the first one found.

    Those are an event twice among the first that are read together, at least 64, and a repetition of the file's first
    event. Finding all would take memory for each event, and more time than this check, which takes a hundredth of a
    read. Lines that have to be read one by one are left out.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._first_id: str | None = None
        self._first: tuple[str, str] = ("", "")  # id and source
        self._line = 0
        self._is_over = False

    def look(self, columns: Mapping[str, Sequence[Any]], number: int, lines: Sequence[bytes], line: int) -> None:
        """Check consecutive events.

        Args:
            columns: Their attributes.
            number: Number of the first one, from 0.
            lines: The lines with them, including empty ones.
            line: Number of lines before these.
        """
        if number == 0 or (self._first_id in columns["id"] and not self._is_over):
            self._compare(columns, number, [at for at, one in enumerate(lines, line + 1) if one.strip()])

    def _compare(self, columns: Mapping[str, Sequence[Any]], number: int, places: Sequence[int]) -> None:
        events = list(zip(columns["id"], columns["source"], strict=True))
        if number == 0:
            self._first, self._line, self._first_id = events[0], places[0], events[0][0]
        seen = {self._first: self._line} if number else {}
        for event, place in zip(events, places, strict=True):
            if self._is_over:
                return
            if (before := seen.setdefault(event, place)) != place and (number == 0 or event == self._first):
                self._is_over = True
                _log.warning(_TWICE, self._path, before, place, *event)


class Beginnings:
    """Warns of the first two files of a log that begin with the same event, as copies, links and repeated exports do.

    Comparing all events would take memory for each.
    """

    def __init__(self) -> None:
        self._paths: dict[tuple[str, str], Path] = {}
        self._is_over = False

    def add(self, path: Path, first: tuple[str, str]) -> None:
        """Compare a file with those before it, given id and source of its first event."""
        other = self._paths.setdefault(first, path)
        if other != path and not self._is_over:
            self._is_over = True
            _log.warning(_BEGIN_ALIKE, other, path, *first)

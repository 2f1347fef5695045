"""Events that stand twice in a file, as after ``cat a b > log`` or two exports into one file."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_log = logging.getLogger("opencqrs.store")
_TWICE = (
    "%s: lines %d and %d are the same event (id %s, source %s), and it is handled twice, as a log of files is taken as "
    "it stands. Remove the second line before a group reads it, or import the file into a database, which keeps it once"
)


class Doubles:
    """Looks for the usual ways in which an event comes into a file twice, and warns of the first one that is found.

    Those are an event twice among the first that are read together, at least 64, and the first event of the file once
    more. To find all would take memory for each event, and more than the hundredth of a read that this takes. Lines
    that have to be read one by one are left out.

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
            lines: The lines that hold them, among them empty ones.
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

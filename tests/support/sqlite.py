"""Connections of SQLite: which are open, and a warning for unclosed ones."""

from __future__ import annotations

import os
import sqlite3
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

_OURS = ("/opencqrs_py/", "/tests/")  # in whose files it is worth knowing the line
_OTHERS = ("/site-packages/", __file__)


class WatchedConnection(sqlite3.Connection):
    """A connection that says where it was opened when it is dropped open.

    From Python 3.13 on the driver warns itself, but the garbage collector may drop it in the middle of another test,
    and nothing shows which one has opened it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._opened_at = f"{os.environ.get('PYTEST_CURRENT_TEST')}, at {' < '.join(_our_lines())}"
        super().__init__(*arguments, **options)

    def __del__(self) -> None:
        if is_open(self):
            warnings.warn(f"unclosed database, opened in {self._opened_at}", ResourceWarning, stacklevel=1)


def is_open(connection: sqlite3.Connection) -> bool:
    """Return whether a connection was opened and is not closed."""
    try:
        return connection.total_changes >= 0
    except sqlite3.ProgrammingError:
        return False


def warn_of_unclosed_connections() -> None:
    """Have every Python that runs the tests warn of a connection that is dropped open."""
    sqlite3.connect = sqlite3.dbapi2.connect = partial(sqlite3.connect, factory=WatchedConnection)


def _our_lines() -> Iterator[str]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if any(part in file for part in _OURS) and not any(part in file for part in _OTHERS):
            yield f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back


@contextmanager
def opened_connections() -> Iterator[list[sqlite3.Connection]]:
    """List the connections that are opened in a block, in their order."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    with patch.object(sqlite3, "connect", noted), patch.object(sqlite3.dbapi2, "connect", noted):
        yield opened


def rows_of(file: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows that a query finds in a database file."""
    with closing(sqlite3.connect(file)) as database:
        return database.execute(query).fetchall()

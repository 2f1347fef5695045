"""What partitions are tried with in one thread: an observer, a database of one list, and the end of a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, text
from typing_extensions import override

from opencqrs_py.adapters.sql import Database
from opencqrs_py.model import Event, Outcome, Partition
from opencqrs_py.processing.notices import Notice, Observer
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent


class ForTwo(SequencingByEvent):
    """Events of ``/both`` belong to two sequences, as if upcasters had made two events of each."""

    def __init__(self) -> None:
        super().__init__(PerSubject())
        self.id_of_subject = None

    @override
    def sequence_ids(self, event: Event) -> tuple[str, ...]:
        return ("/a", "/b") if event.subject == "/both" else (event.subject,)


class CrashError(KeyboardInterrupt):
    """The end of the process: nothing more is recorded."""


class Seen(Observer):
    """Keeps the notifications."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.outcomes: list[Outcome] = []

    def noticed(self, notice: Notice) -> None:
        self.notices.append(notice)

    def advanced(self, group: str, partition: Partition, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class Rows:
    """A database of one list; transactions are all or nothing."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []

    @contextmanager
    def begin(self) -> Iterator[SimpleNamespace]:
        written: list[tuple[str, int]] = []
        yield SimpleNamespace(connection=written, session=written, flush=list, ended_early=lambda _: None)
        self.rows += written

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)


class Outage(dict[int, BaseException]):
    """The errors of a handler, of which one is an outage of the database; until its end the tracker opens no unit.

    Attributes:
        is_on: Whether it lasts.
    """

    def __init__(self, tracker: Any) -> None:
        super().__init__()
        self.is_on = False
        self._position: int | None = None
        self._unit, tracker.unit = tracker.unit, self._opened

    def at(self, position: int) -> Outage:
        """Have it begin with the next call for the event at a position."""
        self._position = position
        return self

    def end(self) -> None:
        """End it."""
        self.is_on = False

    def get(self, position: int, default: Any = None) -> Any:
        """Return the error of a call, if it has one."""
        if position != self._position:
            return default
        self._position, self.is_on = None, True
        return ConnectionError("the database is unavailable")

    def _opened(self, *arguments: Any, **named: Any) -> Any:
        if self.is_on:
            raise ConnectionError("the database is unavailable")
        return self._unit(*arguments, **named)


class SqlRows:
    """The same in a table of an SQLite database in memory."""

    def __init__(self) -> None:
        self.database = Database(f"sqlite:///file:/rows-{uuid4().hex}?vfs=memdb&uri=true")
        with self.database.writing() as connection:
            connection.execute(text("CREATE TABLE written (number INTEGER PRIMARY KEY, name TEXT, position INTEGER)"))

    @property
    def rows(self) -> list[tuple[str, int]]:
        return [(name, at) for name, at in self.database.fetch("SELECT name, position FROM written ORDER BY number")]


def write(connection: Any, name: str, position: int) -> None:
    """Write a row into either of both."""
    if isinstance(connection, Connection):
        row = {"name": name, "position": position}
        connection.execute(text("INSERT INTO written (name, position) VALUES (:name, :position)"), row)
    else:
        connection.append((name, position))

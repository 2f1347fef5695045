"""The event store on a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from threading import Lock

from sqlalchemy import Connection, func, select

from opencqrs_py.adapters.sql.appending import append_events
from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.reading import Reading, head_of, newest_mark
from opencqrs_py.adapters.sql.schema import EVENTS
from opencqrs_py.adapters.sql.versions import prepare
from opencqrs_py.adapters.sql.watching import watching
from opencqrs_py.model.appending import Appended, Precondition
from opencqrs_py.model.event import Event
from opencqrs_py.model.fingerprint import LogMark, check_mark
from opencqrs_py.model.selection import ATTRIBUTES, Selection, Slice
from opencqrs_py.model.times import microseconds
from opencqrs_py.processing.ports import Watch

__all__ = ["SqlEventStore"]

_LIVE = 32  # events at the head: they are read whole, since each commit asks for the identity of its last one


class SqlEventStore:
    """CloudEvents in the table ``opencqrs_events``.

    Appends follow each other (by SQLite's own lock, by one that the table's trigger takes on PostgreSQL), so positions
    become visible in their order and a reader that has seen position n never misses an event before it. Rolled-back
    appends leave holes that stay empty.

    Args:
        database: Where the table is; it is created at first use.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = database.table(EVENTS)
        self._ready = False
        self._known = 0  # a position that the log has reached
        self._lock = Lock()
        self._fingerprint: tuple[int, str] | None = None  # the last one, which partitions ask for in turn

    def append(
        self,
        events: Iterable[Event],
        preconditions: Sequence[Precondition] = (),
        progress: Callable[[int], None] | None = None,
    ) -> Appended:
        """Add events in one transaction; those whose source and id are known already are left out.

        Args:
            events: Any number; read as a stream. When it raises, nothing is added.
            preconditions: Checked in the transaction, before the first event is taken.
            progress: Called now and then with the number of events taken in.

        Returns:
            How many were given and how many of them were added.

        Raises:
            DatabaseAwayError: OCQ-305, if another program has been appending for too long.
            PreconditionFailedError: OCQ-320, naming the first precondition that does not hold.
        """
        self._prepare()
        return append_events(self._database, events, preconditions, progress)

    def head(self) -> int:
        """Return the position of the newest event, 0 when there is none."""
        self._prepare()
        with self._database.reading() as connection:
            return self._look(connection)

    def count(self) -> int:
        """Return how many events there are."""
        self._prepare()
        with self._database.reading() as connection:
            return connection.execute(select(func.count()).select_from(self._table)).scalar_one()

    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        """Return the selected events that follow ``after``, at most ``limit``; there may be more behind the slice.

        Nothing is read from behind ``upto``, and nobody asks for the head to know what is final before it.
        """
        self._prepare()
        if 0 < self._known - after <= _LIVE:
            selection = replace(selection, attributes=ATTRIBUTES)
        reading = Reading(self._database, selection, limit)
        with self._database.quiet():
            if upto is None:
                return reading.following(after, self._known)
            return reading.within(after, upto, self._known)

    def position_before(self, moment: datetime) -> int:
        """Return the position before the first event with ``time >= moment``; the head if there is none."""
        self._prepare()
        columns = self._table.c
        late_enough = select(columns.position).where(columns.time_us >= microseconds(moment.isoformat()))
        with self._database.reading() as connection:
            head = self._look(connection)
            position = connection.execute(late_enough.order_by(columns.position).limit(1)).scalar()
            return head if position is None else position - 1

    def watched(self) -> AbstractContextManager[Watch]:
        """Open a watch, on a connection of its own that is closed at the end of the block."""
        return self._watched()

    def fingerprint(self, position: int, event: Event | None = None) -> str:
        """Return a text that identifies the log up to ``position``: its newest event at or below it."""
        if event is None:
            self._prepare()
            with self._lock:
                known = self._fingerprint
            if known is not None and known[0] == position:
                return known[1]
        text = LogMark.of(event).text if event is not None else newest_mark(self._database, position).text
        with self._lock:
            self._fingerprint = (position, text)
        return text

    def verify(self, position: int, fingerprint: str) -> None:
        """Check that the log still holds what ``fingerprint`` says.

        Raises:
            EventStoreError: OCQ-316, if it does not.
        """
        self._prepare()

        def find(marked: int) -> LogMark | None:
            found = newest_mark(self._database, marked)
            return found if found.position == marked else None

        with self._lock:
            self._fingerprint = None
        check_mark(position, fingerprint, self.head, find, self._database.label)

    def is_outage(self, error: BaseException) -> bool:
        """Say whether the store's database does not answer for now."""
        return self._database.is_outage(error)

    @contextmanager
    def _watched(self) -> Iterator[Watch]:
        self._prepare()
        with watching(self._database, self._look) as watch:
            yield watch

    def _look(self, connection: Connection) -> int:
        self._known = head_of(self._database, connection)
        return self._known

    def _prepare(self) -> None:
        if not self._ready:
            prepare(self._database, EVENTS)
            self._ready = True

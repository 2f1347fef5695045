"""The connections of a process to one server, kept for reuse by reads and transactions.

A process with one thread, such as a Python worker of Spark, needs one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock
from typing import Any, cast

from sqlalchemy.pool import ConnectionPoolEntry, Pool
from typing_extensions import override

from opencqrs_py.adapters.sql.connections import RETURNED, close_quietly, is_sound

MOST_CONNECTIONS = 8
"""How many connections to a server the threads of a process share, unless ``database.pool-size`` says otherwise."""

IDLE_SECONDS = 60.0  # after which an unused connection is closed


class KeepingPool(Pool):
    """Keeps up to ``most`` connections, in use and idle, and gives out the one that was used last.

    It does not limit connections: one beyond ``most`` is opened on request, and closed when it is returned.
    """

    def __init__(self, creator: Any, most: int = MOST_CONNECTIONS, **options: Any) -> None:
        super().__init__(creator, **options)
        if isinstance(self.logger, logging.Logger):  # it is not if ``echo`` requests full logging
            self.logger.addFilter(_has_no_error)
        self.most = most
        self._idle: deque[tuple[ConnectionPoolEntry, float]] = deque()
        self._in_use = 0
        self._lock = Lock()
        self._disposed = False

    def lend(self) -> ConnectionPoolEntry:
        """Return a connection for a short read, at less cost than through SQLAlchemy; raises the driver's errors."""
        entry: Any = self._do_get()
        try:
            returned = entry.info.get(RETURNED)
            if returned is not None and not is_sound(entry.dbapi_connection, returned):
                self._close(entry)
            entry.get_connection()
        except BaseException:
            self._do_return_conn(entry)
            raise
        return cast("ConnectionPoolEntry", entry)

    def give_back(self, entry: ConnectionPoolEntry) -> None:
        """Take a connection back that was lent."""
        entry.info[RETURNED] = time.monotonic()
        self._do_return_conn(entry)

    def drop(self, entry: ConnectionPoolEntry) -> None:
        """Close a connection that was lent and may be broken."""
        self._close(entry)
        self._do_return_conn(entry)

    def bound(self, most: int) -> None:
        """Keep up to ``most`` connections from now on; idle ones beyond that are closed."""
        with self._lock:
            self.most = most
            surplus = [
                self._idle.popleft()[0] for _ in range(min(len(self._idle), self._in_use + len(self._idle) - most))
            ]
        self._close_all(surplus)

    @staticmethod
    def _close(entry: Any) -> None:
        close_quietly(entry.dbapi_connection)
        entry.dbapi_connection = None

    @override
    def status(self) -> str:
        return f"{self._in_use} in use, {len(self._idle)} idle, at most {self.most}"

    @override
    def dispose(self) -> None:
        with self._lock:
            self._disposed = True
            idle, self._idle = self._idle, deque()
        for entry, _ in idle:
            entry.close()

    @override
    def recreate(self) -> KeepingPool:
        return type(self)(
            self._creator,
            self.most,
            recycle=self._recycle,
            echo=self.echo,
            logging_name=self._orig_logging_name,
            reset_on_return=self._reset_on_return,
            pre_ping=self._pre_ping,
            _dispatch=self.dispatch,
            dialect=self._dialect,
        )

    @override
    def _do_get(self) -> ConnectionPoolEntry:
        with self._lock:
            self._in_use += 1
            if self._idle:
                return self._idle.pop()[0]
        try:
            return self._create_connection()
        except BaseException:
            with self._lock:
                self._in_use -= 1
            raise

    @override
    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        now = time.monotonic()
        superfluous: list[ConnectionPoolEntry] = []
        with self._lock:
            self._in_use -= 1
            if self._disposed or self._in_use + len(self._idle) >= self.most:
                superfluous.append(record)
            else:
                self._idle.append((record, now))
            while self._idle and now - self._idle[0][1] >= IDLE_SECONDS:
                superfluous.append(self._idle.popleft()[0])
        self._close_all(superfluous)

    @staticmethod
    def _close_all(entries: Iterable[ConnectionPoolEntry]) -> None:
        for one in entries:
            with suppress(Exception):  # of one that was cut
                one.close()


def _has_no_error(record: logging.LogRecord) -> bool:
    """Suppress the reason why a connection could not be reset or closed: another one replaces it.

    SQLAlchemy logs it with a traceback. Where a statement failed before that, its error is reported as it is.
    """
    return record.exc_info is None

"""Watching the table of events for new ones, on a separate connection."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from opencqrs_py.processing.ports import Watch

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql.database import Database

_LOOK_SECONDS = 0.5  # the head is read now and then, even without a notification
_SHORTEST_PAUSE = 0.001  # seconds
_LONGEST_PAUSE = 0.05  # seconds
_PAUSE_SHARE = 0.02  # of the time since the last change
_WAKES = 1_024  # most wakes that are processed at once

ReadHead = Callable[[Connection], int]
Counter = Callable[[Connection], Callable[[], int] | None]


@contextmanager
def polling(database: Database, look: ReadHead, counter: Counter = lambda _: None) -> Iterator[Watch]:
    """Open a watch that polls; ``look`` returns the head.

    ``counter`` returns, for a connection, a value that changes whenever another connection has written; ``None`` if
    there is none.
    """
    with database.reading(apart=True) as connection:
        yield Poll(database, connection, look, counter(connection))


@contextmanager
def listening(database: Database, look: ReadHead, channel: str, table_number: str) -> Iterator[Watch]:
    """Open a watch that PostgreSQL notifies of appends, on a channel; ``look`` returns the head.

    ``table_number`` is an expression that distinguishes our table from others of the same name.
    """
    with database.reading(apart=True) as connection:
        connection.detach()  # it receives notifications that the next user of a pooled connection would not expect
        try:
            connection.exec_driver_sql(f"LISTEN {channel}")
        except DBAPIError as error:
            if database.is_outage(error):
                raise
            yield Poll(database, connection, look, None)  # a replica refuses LISTEN
        else:
            table = str(connection.exec_driver_sql(f"SELECT {table_number}").scalar_one())
            with closing(Listener(connection, look, table)) as listener:
                yield listener


class Arrivals:
    """Waits until something arrives on a driver's connection; other threads can end the wait early."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._woken, self._waking = socket.socketpair()
        self._waking.setblocking(False)  # noqa: FBT003 the name of the method says it
        self._poll = select.poll()
        for each in (driver, self._woken):
            self._poll.register(each.fileno(), select.POLLIN)

    def wait(self, seconds: float) -> tuple[bool, bool]:
        """Return whether something has arrived or the connection is cut, and whether it was woken."""
        ready = [descriptor for descriptor, _ in self._poll.poll(max(1.0, seconds * 1_000))]
        if woken := self._woken.fileno() in ready:
            self._woken.recv(_WAKES)
        return self._driver.fileno() in ready, woken

    def wake(self) -> None:
        """End the wait, or the next one if there is none."""
        with suppress(OSError):  # it is closed, or has been woken so often that its buffer is full
            self._waking.send(b"\0")

    def close(self) -> None:
        """Release what wakes it; the connection belongs to the caller."""
        self._woken.close()
        self._waking.close()


class Listener:
    """Gets notifications of appends: of ours with the newest position, of other programs' through the table's trigger.

    The head is read after listening has begun, so nothing is missed in between.

    Attributes:
        look_seconds: Interval at which the head is read, also without a notification.
    """

    def __init__(self, connection: Connection, look: ReadHead, table: str) -> None:
        self._connection = connection
        self._head_of = look
        driver: Any = connection.connection.dbapi_connection
        self._driver = driver
        self._table = table
        self._arrivals = Arrivals(driver)
        self._head = 0
        self._must_look = True
        self._looked = 0.0
        self.look_seconds = _LOOK_SECONDS
        self._driver.add_notify_handler(self._take)  # notifications that arrive with other answers

    def wait(self, after: int, seconds: float) -> int:
        """Return the head as soon as it is beyond ``after``, or, unchanged, when the time is over."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if self._head <= after and (self._must_look or now - self._looked >= self.look_seconds):
                self._must_look, self._looked = False, now
                self._head = self._head_of(self._connection)
            if self._head > after or now >= until:
                return self._head
            if not self._must_look and self._listen(min(until, self._looked + self.look_seconds) - now):
                return self._head

    def wake(self) -> None:
        """Have the wait return early."""
        self._arrivals.wake()

    def close(self) -> None:
        """Release what wakes it; the connection belongs to the caller."""
        self._driver.remove_notify_handler(self._take)
        self._arrivals.close()

    def _listen(self, seconds: float) -> bool:
        """Wait for a notification, the loss of the connection, or the end of the time; return whether it was woken."""
        arrived, woken = self._arrivals.wait(seconds)
        if arrived:
            self._take_in()
        return woken

    def _take_in(self) -> None:
        try:
            self._driver.pgconn.consume_input()
            while (notice := self._driver.pgconn.notifies()) is not None:
                self._hear(notice.extra.decode())
        except self._connection.dialect.loaded_dbapi.Error:
            self._must_look = True  # which gets the error as well, and explains it

    def _take(self, notice: Any) -> None:
        self._hear(notice.payload)

    def _hear(self, payload: str) -> None:
        position, _, table = payload.partition(" ")
        if table == self._table:
            self._head = max(self._head, int(position))
        elif not table:
            self._must_look = True


class Poll:
    """Polls: the counter of changes if there is one, else the head.

    The longer nothing has happened, the longer the pauses are: a change is noticed after at most a fiftieth of the time
    since the one before, and idling costs next to nothing.
    """

    def __init__(
        self,
        database: Database,
        connection: Connection,
        look: ReadHead,
        counter: Callable[[], int] | None,
        longest_pause: float = _LONGEST_PAUSE,
    ) -> None:
        self._database = database
        self._connection = connection
        self._head_of = look
        self._counter = counter
        self._longest_pause = longest_pause
        self._changed = time.monotonic()
        self._looked = 0.0
        self._seen: int | None = None
        self._head = 0
        self._woken = Event()

    def wait(self, after: int, seconds: float) -> int:
        """Return the head as soon as it is beyond ``after``, or, unchanged, when the time is over."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            self._look(now)
            if self._head > after or now >= until:
                return self._head
            quiet = (now - self._changed) * _PAUSE_SHARE
            if self._woken.wait(min(max(quiet, _SHORTEST_PAUSE), self._longest_pause, until - now)):
                self._woken.clear()
                return self._head

    def wake(self) -> None:
        """Have the wait return early."""
        self._woken.set()

    def _look(self, now: float) -> None:
        """Read the head if something has changed. The counter is read first: a later change increments it again."""
        if self._counter is not None and now - self._looked < _LOOK_SECONDS:
            counted = self._counter()
            if counted == self._seen:
                return
            self._seen = counted
            self._changed = now
        self._looked = now
        head = self._head_of(self._connection)
        self._database.guard.check(self._connection)
        if head != self._head:
            self._changed, self._head = now, head

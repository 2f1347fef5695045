"""The watch on an EventSourcingDB: an observation of everything that is written from now on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import aclosing
from threading import Condition

from eventsourcingdb import Bound, BoundType, Client, ObserveEventsOptions

from opencqrs_py.adapters.eventsourcingdb.connection import Connection
from opencqrs_py.adapters.eventsourcingdb.failures import away
from opencqrs_py.adapters.eventsourcingdb.translation import position_of

__all__ = ["ObservingWatch"]


class ObservingWatch:
    """Follows the head on one stream. Heartbeats are signs of life; a stream that ends or stalls is an error.

    Args:
        connection: The server.
        head: Position after which to observe.
        seen: Called with each position seen, on the connection's thread.
    """

    def __init__(self, connection: Connection, head: int, seen: Callable[[int], None]) -> None:
        self._connection = connection
        self._head = head
        self._seen = seen
        self._failure: BaseException | None = None
        self._changed = Condition()
        self._following = connection.start(self._follow)
        self._following.add_done_callback(self._ended)

    def wait(self, after: int, seconds: float) -> int:
        """Return the head as soon as it is beyond ``after``, or, unchanged, when ``seconds`` are over.

        Raises:
            EventStoreError: OCQ-331 to OCQ-334, if the stream has ended or stalled; the watch is of no use any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._head > after or self._failure is not None, seconds)
            if self._head <= after and self._failure is not None:
                raise self._failure
            return self._head

    def close(self) -> None:
        """End the stream."""
        self._following.cancel()

    async def _follow(self, client: Client) -> None:
        newest = Bound(str(self._head - 1), BoundType.EXCLUSIVE) if self._head else None
        options = ObserveEventsOptions(recursive=True, lower_bound=newest)
        async with aclosing(client.observe_events("/", options)) as stream:
            async for event in stream:
                self._see(position_of(event.event_id))

    def _see(self, head: int) -> None:
        self._seen(head)
        with self._changed:
            self._head = head
            self._changed.notify_all()

    def _ended(self, following: Future[None]) -> None:
        error = None if following.cancelled() else following.exception()
        with self._changed:
            self._failure = self._connection.explained(error) if error else away("the watch is closed", "")
            self._changed.notify_all()

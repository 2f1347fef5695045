"""The watch on an EventSourcingDB: an observation of everything that is written from now on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import aclosing
from threading import Condition

from eventsourcingdb import Bound, BoundType, Client, ObserveEventsOptions

from opencqrs_py.adapters.eventsourcingdb.chain import Link, SeenChain
from opencqrs_py.adapters.eventsourcingdb.connection import Connection
from opencqrs_py.adapters.eventsourcingdb.failures import away
from opencqrs_py.adapters.eventsourcingdb.translation import position_of

__all__ = ["ObservingWatch"]


class ObservingWatch:
    """Follows the head on one stream. Heartbeats are signs of life; a stream that ends or stalls is an error.

    Args:
        connection: The server.
        chain: What was seen of the log before. The newest of it is sent first, which shows that the log is the same.
        head: Position after which events are news.
        seen: Called with each position seen, on the connection's thread.
    """

    def __init__(self, connection: Connection, chain: SeenChain, head: int, seen: Callable[[int], None]) -> None:
        self._connection = connection
        self._chain = chain
        self._head = head
        self._seen = seen
        self._failure: BaseException | None = None
        self._changed = Condition()
        self._following = connection.start(self._follow)
        self._following.add_done_callback(self._ended)

    def wait(self, after: int, seconds: float) -> int:
        """Return the head as soon as it is beyond ``after``, or, unchanged, when ``seconds`` are over.

        Raises:
            EventStoreError: OCQ-331 to OCQ-334, if the stream has ended or stalled, and OCQ-316, if the log is another
                one; the watch is of no use any more.
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
        newest = self._chain.newest
        first = Bound(str(newest.position - 1), BoundType.INCLUSIVE) if newest is not None else None
        options = ObserveEventsOptions(recursive=True, lower_bound=first)
        async with aclosing(client.observe_events("/", options)) as stream:
            async for event in stream:
                link = Link(position_of(event.event_id), event.hash)
                self._chain.follow(link, event.predecessor_hash)
                if link.position > self._head:
                    self._see(link.position)

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

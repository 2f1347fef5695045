"""The event store on EventSourcingDB."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, contextmanager
from datetime import datetime
from threading import Condition
from typing import TypeVar

from eventsourcingdb import Bound, BoundType, Client, ObserveEventsOptions
from typing_extensions import override

from opencqrs_py.adapters.eventsourcingdb.address import Address
from opencqrs_py.adapters.eventsourcingdb.chain import EMPTY, Link, SeenChain, not_the_log, other_store
from opencqrs_py.adapters.eventsourcingdb.connection import (
    Connection,
    EventSourcingDbUnavailableError,
    Use,
    unavailable,
    unknown,
)
from opencqrs_py.adapters.eventsourcingdb.reading import (
    ServerRead,
    candidate_of,
    head_of,
    newest,
    newest_upto,
    position_of,
    precondition_of,
    prove,
)
from opencqrs_py.errors import PreconditionFailedError
from opencqrs_py.model.appending import Appended, Precondition, check
from opencqrs_py.model.event import Event
from opencqrs_py.model.masking import remember
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.model.times import microseconds
from opencqrs_py.processing.finding import FindingSource, FoundEvent
from opencqrs_py.processing.ports import EventStore, Watch


class ObservingWatch(Watch):
    """Follows the head on one stream. Heartbeats are signs of life; a stream that ends or stalls is an error.

    The newest event that was seen before is sent first, which shows that the log is the same. Events after ``head`` are
    new; ``seen`` is called with each position, on the connection's thread.
    """

    def __init__(self, connection: Connection, chain: SeenChain, head: int, seen: Callable[[int], None]) -> None:
        self._connection = connection
        self._chain = chain
        self._head = head
        self._seen = seen
        self._failure: BaseException | None = None
        self._woken = False
        self._changed = Condition()
        self._following = connection.start(self._follow)
        self._following.add_done_callback(self._ended)

    @override
    def wait(self, after: int, seconds: float) -> int:
        """See ``Watch``.

        Raises:
            EventStoreError: OCQ-331 to OCQ-334, if the stream has ended or stalled, and OCQ-316, if the log is another
                one; the watch can no longer be used.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._head > after or self._failure is not None or self._woken, seconds)
            self._woken = False
            if self._head <= after and self._failure is not None:
                raise self._failure
            return self._head

    @override
    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

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
            self._failure = self._connection.explained(error) if error else unavailable("the watch is closed", "")
            self._changed.notify_all()


_SIFTED = 50_000  # most events that one read fetches from the server to find the wanted ones
STALL_SECONDS = 30.0

T = TypeVar("T")


class EventSourcingDbEventStore(EventStore, FindingSource):
    """Events in an EventSourcingDB. Its ids are numbers from 0 without a gap; a position is the id plus 1.

    The server assigns each event's id and time, so those of appended events are not kept, and an event that is appended
    twice is stored twice. Safe for several threads; not to be used across a fork.

    Args:
        url: ``eventsourcingdb://host:port`` or ``eventsourcingdb+https://host:port``.
        api_token: The server's token.
        source: Source of appended events that name none.
        stall_seconds: After so long without a sign of life, a heartbeat included, the server counts as unavailable.

    Raises:
        EventStoreError: OCQ-330, if the URL cannot be read.

    Attributes:
        gives_ids: True, since the server does.
    """

    gives_ids = True

    def __init__(self, url: str, api_token: str, *, source: str = "", stall_seconds: float = STALL_SECONDS) -> None:
        remember([api_token])
        self._address = Address.parse(url)
        self._source = source
        self._connection = Connection(self._address, api_token, stall_seconds)
        self._known = 0  # the position of the newest event as of the last news
        self._chain = SeenChain(self._address.label)

    @override
    def head(self) -> int:
        """See ``EventSource``.

        Raises:
            EventStoreError: OCQ-316, if the log does not reach what this store has read, or has something else there.
        """
        self._known = self._run(lambda client: head_of(client, self._chain, self._address.label))
        return self._known

    @override
    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        """See ``EventSource``. The server selects by subject, this method by type.

        Reads up to the newest known event; the server is queried for a newer one only if there is none after ``after``.

        Raises:
            EventStoreError: OCQ-316, if the log is not the one that this store has read before: the server has lost its
                disk, or was restored. No event of the other log is returned, until the first one is back.
        """
        if upto is not None and upto <= after:
            return Slice(after, after)
        head = self._known if self._known > after else self.head()
        if upto is not None:
            head = min(head, upto)
        if head <= after:
            return Slice(after, after)
        last = head if selection.types is None else min(head, after + max(limit, _SIFTED))
        reading = ServerRead(selection, limit, _SIFTED, self._chain, self._address.label)
        return self._run(lambda client: reading.read(client, after, last))

    @override
    def fingerprint(self, position: int, event: Event | None = None) -> str:
        """See ``EventSource``. The text is the id and hash of the newest event at or below the position.

        Queries the server only for an event that reads have not shown, mostly at the first claim of a partition.

        Raises:
            EventStoreError: OCQ-316, if the log is not the one that this store has read before.
        """
        if position <= 0:
            return EMPTY
        link = Link.of(event) if event is not None and event.position == position else None
        if link is not None:
            self._chain.keep([link])
            return link.fingerprint
        found = self._chain.at(position) or self._run(lambda client: self._looked_up(client, position))
        return EMPTY if found is None else found.fingerprint

    @override
    def verify(self, position: int, fingerprint: str) -> None:
        """See ``EventSource``. At position 0 nothing of the log was handled, so any log is accepted."""
        if position <= 0 or fingerprint == EMPTY:
            return
        label = self._address.label
        expected = Link.parse(fingerprint)
        if fingerprint and expected is None:
            raise other_store(position, f"of a log with the fingerprint '{fingerprint[:80]}'", label)
        at = position if expected is None else expected.position
        found = self._connection.run(lambda client: newest_upto(client, at, label))
        if expected is None and (found is None or found.position < position):
            raise other_store(position, f"and the log ends at {found.position if found else 0}", label)
        if expected is not None and found != expected:
            raise not_the_log(expected, found, label)
        if found is not None:
            self._chain.keep([found])

    def find(self, event_id: str, source: str = "") -> list[FoundEvent]:
        """Return the event with an id, a number that determines its position."""
        position = int(event_id) + 1 if event_id.isdecimal() and event_id.isascii() else 0
        if not 0 < position <= self.head():
            return []
        found = self.read(position - 1, 1, Selection(), position).events
        return [
            FoundEvent(event.position, event.source)
            for event in found
            if event.id == event_id and source in ("", event.source)
        ]

    @override
    def position_before(self, moment: datetime) -> int:
        """See ``EventSource``. Reads only a few events, as the times of the server's clock grow with the positions."""
        return bisect_left(range(1, self.head() + 1), microseconds(moment.isoformat()) or 0, key=self._time_at)

    @override
    def append(
        self,
        events: Iterable[Event],
        preconditions: Sequence[Precondition] = (),
        progress: Callable[[int], None] | None = None,
    ) -> Appended:
        """See ``EventStore``. All are added in one request; the server checks the preconditions in the same step.

        Returns:
            How many were given, which were all added, and the ids that the server assigned.

        Raises:
            PreconditionFailedError: OCQ-320, if a precondition does not hold.
            EventStoreError: OCQ-336, if an event has a value that the server cannot store; OCQ-335, if the response was
                lost, or the store was closed in the meantime, so that it is unknown whether the events were added.
        """
        candidates = [candidate_of(event, self._source) for event in events]
        conditions = [precondition_of(condition) for condition in preconditions]
        if not candidates:  # the server would refuse that
            check(preconditions, self._newest_of, self._address.label)
            return Appended(0, 0, ())
        try:
            written = self._connection.run(lambda client: client.write_events(candidates, conditions), unknown)
        except PreconditionFailedError:
            check(preconditions, self._newest_of, self._address.label)  # the server does not tell which one it is
            raise
        self._hear_of(position_of(written[-1].event_id))
        if progress is not None:
            progress(len(written))
        return Appended(len(candidates), len(written), tuple(str(event.event_id) for event in written))

    @override
    @contextmanager
    def watched(self) -> Iterator[ObservingWatch]:
        """Observe the log on a separate stream until the end of the block."""
        watch = ObservingWatch(self._connection, self._chain, self.head(), self._hear_of)
        try:
            yield watch
        finally:
            watch.close()

    @override
    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, EventSourcingDbUnavailableError)

    def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        self._connection.close()

    def _hear_of(self, position: int) -> None:
        self._known = max(self._known, position)

    def _run(self, use: Use[T]) -> T:
        """Use the client on the log that was read before; if that is in doubt, check it first."""
        doubted = self._chain.doubted
        try:
            if doubted is not None:
                self._known = 0
                self._connection.run(lambda client: prove(client, self._chain, doubted, self._address.label))
                self._chain.doubted = None
            return self._connection.run(use)
        except EventSourcingDbUnavailableError:
            self._known = 0  # a server that lost its disk comes back with fewer events
            raise

    async def _looked_up(self, client: Client, position: int) -> Link | None:
        """Return the newest link at or below a position, of the log that was read before."""
        found, seen = await newest_upto(client, position, self._address.label), self._chain.newest
        if seen is not None:
            await prove(client, self._chain, seen, self._address.label)
        if found is not None:
            self._chain.keep([found])
        return found

    def _newest_of(self, subject: str) -> str | None:
        found = self._connection.run(lambda client: newest(client, subject, recursive=False))
        return None if found is None else str(found.position - 1)

    def _time_at(self, position: int) -> int:
        reading = ServerRead(Selection(), 1, _SIFTED, self._chain, self._address.label)
        (event,) = self._run(lambda client: reading.read(client, position - 1, position)).events
        return microseconds(event.time) or 0

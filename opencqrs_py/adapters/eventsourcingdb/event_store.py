"""The event store on EventSourcingDB."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

from eventsourcingdb import Client

from opencqrs_py.adapters.eventsourcingdb.address import Address
from opencqrs_py.adapters.eventsourcingdb.chain import EMPTY, Link, SeenChain
from opencqrs_py.adapters.eventsourcingdb.connection import Connection, Use
from opencqrs_py.adapters.eventsourcingdb.failures import EventSourcingDbAwayError, not_the_log, other_store
from opencqrs_py.adapters.eventsourcingdb.reading import Reading, head_of, newest, newest_upto, prove
from opencqrs_py.adapters.eventsourcingdb.translation import candidate_of, position_of, precondition_of
from opencqrs_py.adapters.eventsourcingdb.watch import ObservingWatch
from opencqrs_py.errors import PreconditionFailedError
from opencqrs_py.model.appending import Appended, Precondition, check
from opencqrs_py.model.event import Event
from opencqrs_py.model.masking import remember
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.model.times import microseconds

__all__ = ["EventSourcingDbEventStore"]

_SIFTED = 50_000  # most events that one read takes from the server to find those that are wanted
STALL_SECONDS = 30.0

T = TypeVar("T")


class EventSourcingDbEventStore:
    """Events in an EventSourcingDB. Its ids are numbers from 0 without a gap; a position is the id plus 1.

    The server gives each event id and time, so those of appended events are not kept, and an event that is appended
    twice is there twice. Safe for several threads; not to be used across a fork.

    Args:
        url: ``eventsourcingdb://host:port`` or ``eventsourcingdb+https://host:port``.
        api_token: The server's token.
        source: Source of appended events that name none.
        stall_seconds: After so long without a sign of life, a heartbeat included, the server counts as away.

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
        self._known = 0  # where the newest event was when we last heard of one
        self._chain = SeenChain(self._address.label)

    def head(self) -> int:
        """Return the position of the newest event, 0 when there is none.

        Raises:
            EventStoreError: OCQ-316, if the log does not reach what this store has read, or holds something else there.
        """
        self._known = self._run(lambda client: head_of(client, self._chain, self._address.label))
        return self._known

    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        """Return the selected events that follow ``after``, at most ``limit``, none behind ``upto``.

        The server selects by subject, this method by type. Reads up to the newest event that is known of; only when
        there is none behind ``after``, the server is asked for a newer one.

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
        reading = Reading(selection, limit, _SIFTED, self._chain, self._address.label)
        return self._run(lambda client: reading.read(client, after, last))

    def fingerprint(self, position: int, event: Event | None = None) -> str:
        """Return a text that identifies the log up to ``position``: id and hash of its newest event at or below it.

        Asks the server only for an event that reads have not shown: at the first claim of a partition, mostly.

        Args:
            position: Where the log is cut.
            event: The event at ``position``, if it is at hand.

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

    def verify(self, position: int, fingerprint: str) -> None:
        """See that the log still holds what ``fingerprint`` says.

        Args:
            position: Where the progress is. At 0, nothing of the log was handled, and any log will do.
            fingerprint: What ``fingerprint()`` returned there; empty to see only that the log reaches ``position``.

        Raises:
            EventStoreError: OCQ-316, if it does not.
        """
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

    def position_before(self, moment: datetime) -> int:
        """Return the position before the first event with ``time >= moment``; the head if there is none.

        Looks at a few events only: the times, which the server's clock gave, grow with the positions.
        """
        return bisect_left(range(1, self.head() + 1), microseconds(moment.isoformat()) or 0, key=self._time_at)

    def append(
        self,
        events: Iterable[Event],
        preconditions: Sequence[Precondition] = (),
        progress: Callable[[int], None] | None = None,
    ) -> Appended:
        """Add events in their order, all or none, in one request.

        Args:
            events: Any number that the server takes at once. When it raises, nothing is added.
            preconditions: Looked at by the server in the same step.
            progress: Called with the number of events added.

        Returns:
            How many were given, which all were added, and the ids that the server gave them.

        Raises:
            PreconditionFailedError: OCQ-320, if a precondition does not hold.
            EventStoreError: OCQ-336, if an event holds what the server has no place for; OCQ-335, if the answer was
                lost, so that nobody knows whether the events were added.
        """
        candidates = [candidate_of(event, self._source) for event in events]
        conditions = [precondition_of(condition) for condition in preconditions]
        if not candidates:  # the server would refuse that
            check(preconditions, self._newest_of, self._address.label)
            return Appended(0, 0, ())
        try:
            written = self._connection.run(lambda client: client.write_events(candidates, conditions))
        except PreconditionFailedError:
            check(preconditions, self._newest_of, self._address.label)  # the server does not say which one it is
            raise
        self._hear_of(position_of(written[-1].event_id))
        if progress is not None:
            progress(len(written))
        return Appended(len(candidates), len(written), tuple(str(event.event_id) for event in written))

    @contextmanager
    def watched(self) -> Iterator[ObservingWatch]:
        """Observe the log on a stream of its own until the end of the block."""
        watch = ObservingWatch(self._connection, self._chain, self.head(), self._hear_of)
        try:
            yield watch
        finally:
            watch.close()

    def is_outage(self, error: BaseException) -> bool:
        """Say whether EventSourcingDB does not answer for now."""
        return isinstance(error, EventSourcingDbAwayError)

    def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        self._connection.close()

    def _hear_of(self, position: int) -> None:
        self._known = max(self._known, position)

    def _run(self, use: Use[T]) -> T:
        """Use the client on the log that was read before: once there is doubt about it, that is looked at first."""
        doubted = self._chain.doubted
        try:
            if doubted is not None:
                self._known = 0
                self._connection.run(lambda client: prove(client, self._chain, doubted, self._address.label))
                self._chain.doubted = None
            return self._connection.run(use)
        except EventSourcingDbAwayError:
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
        reading = Reading(Selection(), 1, _SIFTED, self._chain, self._address.label)
        (event,) = self._run(lambda client: reading.read(client, position - 1, position)).events
        return microseconds(event.time) or 0

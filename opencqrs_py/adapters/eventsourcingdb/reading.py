"""One read of an EventSourcingDB: stretch after stretch, until enough is found."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

from eventsourcingdb import Bound, BoundType, Client, Order, ReadEventsOptions

from opencqrs_py.adapters.eventsourcingdb.failures import away
from opencqrs_py.adapters.eventsourcingdb.translation import event_of
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection

__all__ = ["Reading", "newest"]


async def newest(client: Client, subject: str = "/", *, recursive: bool = True) -> str | None:
    """Return the id of a subject's newest event, ``None`` when it has none: begins to read backwards, and stops."""
    options = ReadEventsOptions(recursive=recursive, order=Order.ANTICHRONOLOGICAL)
    async with aclosing(client.read_events(subject, options)) as stream:
        async for event in stream:
            return str(event.event_id)
    return None


@dataclass(frozen=True, slots=True)
class Reading:
    """Selected events of a part of the log.

    The protocol has bounds but no limit, and what is left over when a stream is broken off was sent in vain, with a
    connection lost. So each request names a stretch: as long as what is wanted at first, twice as long each time.

    Attributes:
        selection: Which events; the server looks at the subject, we at the rest.
        limit: Most events wanted.
        label: How messages name the server.
        found: The events found so far, in the order of their positions.
    """

    selection: Selection
    limit: int
    label: str
    found: list[Event] = field(default_factory=list)

    async def read(self, client: Client, after: int, upto: int) -> list[Event]:
        """Return the first selected events of ``after + 1..upto``; all of that must be there already."""
        length = self.limit
        while after < upto and len(self.found) < self.limit:
            end = min(upto, after + length)
            await self._take(client, after, end)
            after, length = end, 2 * length
        return self.found

    async def _take(self, client: Client, after: int, end: int) -> None:
        # Position n has the id n - 1.
        first, last = Bound(str(after), BoundType.INCLUSIVE), Bound(str(end - 1), BoundType.INCLUSIVE)
        options = ReadEventsOptions(recursive=self.selection.recursive, lower_bound=first, upper_bound=last)
        seen = after
        async with aclosing(client.read_events(self.selection.subject, options)) as stream:
            async for read in stream:
                event = event_of(read)
                seen = event.position
                if self.selection.matches(event):
                    self.found.append(event)
                if len(self.found) == self.limit and seen < end:
                    return
        if seen < end and self.selection.everything:
            # A plain end of the stream says nothing about its completeness in version 1 of the protocol.
            raise away(f"its answer ended after event {seen} although there are {end}", self.label)

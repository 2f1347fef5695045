"""One read of an EventSourcingDB: stretch after stretch, until enough is found."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

from eventsourcingdb import Bound, BoundType, Client, Order, ReadEventsOptions

from opencqrs_py.adapters.eventsourcingdb.failures import away
from opencqrs_py.adapters.eventsourcingdb.translation import event_of, position_of
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection, Slice

__all__ = ["Reading", "newest"]

_FEW = 100  # events of all subjects that are had sooner than a second opinion about one subject
_EVERYTHING = Selection()


async def newest(
    client: Client, subject: str = "/", *, recursive: bool = True, after: int = 0, upto: int | None = None
) -> str | None:
    """Return the id of a subject's newest event in ``after + 1..upto``, ``None`` when the server sends none.

    Begins to read backwards, and stops.
    """
    lower, upper = _bound(after + 1) if after else None, _bound(upto) if upto else None
    options = ReadEventsOptions(recursive, lower_bound=lower, upper_bound=upper, order=Order.ANTICHRONOLOGICAL)
    async with aclosing(client.read_events(subject, options)) as stream:
        async for event in stream:
            return str(event.event_id)
    return None


@dataclass(frozen=True, slots=True)
class Reading:
    """Selected events of a part of the log.

    The protocol has bounds but no limit, and what is left over when a stream is broken off was sent in vain, with a
    connection lost. So each request names a stretch: as long as what is wanted at first, twice as long each time.

    In version 1 of the protocol a stream that ends early looks like one that is complete. It has lost its last events
    then, never one in the middle, so what was seen counts, and the stretches follow each other from the last event
    seen. That nothing comes behind it is believed only on the evidence of an event: the last id of the stretch where
    all subjects are read, else the subject's newest event.

    Attributes:
        selection: Which events; the server looks at the subject, we at the rest.
        limit: Most events wanted.
        most: Most events of all subjects that are read, where nothing else tells that there is none of the subject.
        label: How messages name the server.
        found: The events found so far, in the order of their positions.
    """

    selection: Selection
    limit: int
    most: int
    label: str
    found: list[Event] = field(default_factory=list)

    async def read(self, client: Client, after: int, upto: int) -> Slice:
        """Return the first selected events of ``after + 1..upto``; all of that must be there already.

        Raises:
            EventSourcingDbAwayError: OCQ-331, if a stream has ended before its last event.
        """
        seen = end = after
        length = self.limit
        while end < upto and not self._is_enough:
            end, length = min(upto, end + length), 2 * length
            seen = await self._take(client, self.selection, seen, end)
            if await _ends_are_marked(client):
                seen = end
        if seen < upto and not self._is_enough:
            upto = await self._make_sure(client, after, seen, upto)
        return Slice(after, self.found[-1].position if self._is_enough else upto, tuple(self.found))

    @property
    def _is_enough(self) -> bool:
        return len(self.found) >= self.limit

    async def _make_sure(self, client: Client, after: int, seen: int, upto: int) -> int:
        """Return up to where there is, surely, no event of the subject behind ``seen`` that was not found."""
        if upto - seen > _FEW:
            older = seen - 1 if seen > after else 0  # an event that was seen must be there again
            subject, recursive = self.selection.subject, self.selection.recursive
            told = await newest(client, subject, recursive=recursive, after=older, upto=upto)
            position = position_of(told) if told is not None else None
            if position is not None and seen < position <= upto:
                raise _ended_early(seen, position, self.label)
            if position is not None and position <= seen:
                return upto
            upto = min(upto, seen + self.most)
        await self._take(client, _EVERYTHING, seen, upto)
        return upto

    async def _take(self, client: Client, asked: Selection, after: int, end: int) -> int:
        """Find events among those that the server is asked for; return the position of the last one that it sent."""
        options = ReadEventsOptions(asked.recursive, lower_bound=_bound(after + 1), upper_bound=_bound(end))
        seen = after
        async with aclosing(client.read_events(asked.subject, options)) as stream:
            async for read in stream:
                event = event_of(read)
                seen = event.position
                if self.selection.matches(event):
                    self.found.append(event)
                if self._is_enough and seen < end:
                    return seen
        if seen < end and asked.everything:
            raise _ended_early(seen, end, self.label)
        return seen


async def _ends_are_marked(client: Client) -> bool:
    """Say whether the protocol marks the end of a stream, so that the client notices one that ends early.

    Asked after a stream: a client that has fallen back to version 1 stays there.
    """
    ask = getattr(client, "_get_api_version", None)
    return ask is not None and await ask() != "v1"


def _bound(position: int) -> Bound:
    return Bound(str(position - 1), BoundType.INCLUSIVE)  # position n has the id n - 1


def _ended_early(seen: int, there: int, label: str) -> Exception:
    return away(f"its answer ended after event {seen} although there are {there}", label)

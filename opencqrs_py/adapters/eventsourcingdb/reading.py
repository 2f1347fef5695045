"""Reading EventSourcingDB, and what its events and ours have in common."""

from __future__ import annotations

import json
import re
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC
from decimal import Decimal
from itertools import starmap

import eventsourcingdb as esdb
from eventsourcingdb import Bound, BoundType, Client, Order, ReadEventsOptions

from opencqrs_py.adapters.eventsourcingdb.chain import Link, SeenChain
from opencqrs_py.adapters.eventsourcingdb.connection import unavailable
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.appending import Precondition, SubjectIsOnEventId, SubjectIsPopulated, SubjectIsPristine
from opencqrs_py.model.event import Event
from opencqrs_py.model.json_text import loses_digits, without_space
from opencqrs_py.model.selection import Selection, Slice

_JSON = "application/json"
_PASSED_ON = {"traceparent": "trace_parent", "tracestate": "trace_state"}
_MADE_BY_SERVER = {"hash", "predecessorhash", "signature"}

# Not orjson: it knows no whole number beyond 64 bits.
_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_FRACTION = re.compile(r"[0-9](\.|e[+-])[0-9]")


class _RoundedError(Exception):
    """The client would send a different number than the one in the text."""


def position_of(event_id: str) -> int:
    """Return the position of an event: its id, which is a number from 0 as text, plus 1.

    Raises:
        ValueError: If the id is not such a number.
    """
    if not (event_id.isascii() and event_id.isdigit()):
        raise ValueError(f"an event's id must be a number, got {event_id!r}")
    return int(event_id) + 1


def event_of(read: esdb.Event) -> Event:
    """Return an event in this package's form.

    The data are written again from what the client has parsed, without the server's spacing. If that would round a
    number, the server's own text is used. So is the time, to the nanosecond; the client's ``datetime`` is cut to
    microseconds and has no zone. The client keeps both texts to verify the hash.
    """
    extensions = {
        "predecessorhash": read.predecessor_hash,
        "hash": read.hash,
        "signature": read.signature,
        "traceparent": read.trace_parent,
        "tracestate": read.trace_state,
    }
    return Event(
        position_of(read.event_id),
        read.event_id,
        read.source,
        read.subject,
        read.type,
        getattr(read, "_time_from_server", None) or read.time.replace(tzinfo=UTC).isoformat(),
        read.data_content_type,
        _payload(read),
        _text({name: value for name, value in extensions.items() if value is not None}),
    )


def _payload(read: esdb.Event) -> str:
    """Return the data as JSON, with all digits of their numbers; finding the server's text takes as long as parsing."""
    text = _text(read.data)
    find = getattr(read, "_find_data_from_server", None)
    if find is None or not _FRACTION.search(text):
        return text
    sent = find()
    return without_space(sent.decode()) if sent is not None and loses_digits(sent) else text


def candidate_of(event: Event, source: str) -> esdb.EventCandidate:
    """Return what is sent to store an event, with a source if it has none itself.

    Its id and time are omitted: the server assigns its own. Hashes and a signature are omitted, too, since they belong
    to the store that the event came from.

    Raises:
        EventStoreError: OCQ-336, if the event has a value that the server cannot store.
    """
    try:
        data = json.loads(event.payload, parse_float=_kept) if event.payload is not None else None
    except _RoundedError as error:
        reason = f"its client would round the number {error}"
        raise _unfit(event, reason, f'put it in the data as text: "{error}"') from None
    if not isinstance(data, dict):
        raise _unfit(event, "its data are not a JSON object", "put the data in an object")
    if event.content_type != _JSON:
        raise _unfit(event, f"its data are {event.content_type}", f"EventSourcingDB takes {_JSON} only")
    foreign = sorted(event.metadata.keys() - _PASSED_ON.keys() - _MADE_BY_SERVER)
    if foreign:
        raise _unfit(event, f"it has the extension '{foreign[0]}'", "put its value in the data")
    traces = {_PASSED_ON[name]: value for name, value in event.metadata.items() if name in _PASSED_ON}
    return esdb.EventCandidate(event.source or source, event.subject, event.type, data, **traces)


def _kept(number: str) -> float:
    """Return a number as the client sends it: as a double, which may have been written in 17 digits."""
    value = float(number)
    if repr(value) != number and Decimal(number) not in (Decimal(repr(value)), Decimal(f"{value:.17g}")):
        raise _RoundedError(number)
    return value


def precondition_of(condition: Precondition) -> esdb.Precondition:
    """Return a precondition in the client's form."""
    match condition:
        case SubjectIsPristine(subject):
            return esdb.IsSubjectPristine(subject)
        case SubjectIsPopulated(subject):
            return esdb.IsSubjectPopulated(subject)
        case SubjectIsOnEventId(subject, event_id):
            return esdb.IsSubjectOnEventId(subject, event_id)


def _unfit(event: Event, reason: str, fix: str) -> EventStoreError:
    return EventStoreError("OCQ-336", f"EventSourcingDB cannot keep the event: {reason}", event.label, fix)


_FEW = 100  # events of all subjects that can be read faster than another request, or a new connection
_EVERYTHING = Selection()


async def newest(
    client: Client, subject: str = "/", *, recursive: bool = True, after: int = 0, upto: int | None = None
) -> Link | None:
    """Return a subject's newest event in ``after + 1..upto``, ``None`` when the server sends none.

    Begins to read backwards, and stops.
    """
    lower, upper = _bound(after + 1) if after else None, _bound(upto) if upto else None
    options = ReadEventsOptions(recursive, lower_bound=lower, upper_bound=upper, order=Order.ANTICHRONOLOGICAL)
    async with aclosing(client.read_events(subject, options)) as stream:
        async for event in stream:
            return Link(position_of(event.event_id), event.hash)
    return None


async def newest_upto(client: Client, position: int, label: str) -> Link | None:
    """Return the newest event of all subjects at or below a position, ``None`` in an empty log.

    One request if there is an event at the position, else two.

    Raises:
        EventSourcingDbUnavailableError: OCQ-331, if version 1 sends nothing, which does not prove an empty log.
    """
    found = await newest(client, after=position - 1, upto=position) or await newest(client, upto=position)
    if found is None and not await _ends_are_marked(client):
        raise _sent_nothing(position, label)
    return found


async def head_of(client: Client, chain: SeenChain, label: str) -> int:
    """Return the position of the newest event, 0 in an empty log.

    Raises:
        EventStoreError: OCQ-316, if the log lacks the newest event that was seen.
        EventSourcingDbUnavailableError: OCQ-331, if version 1 sends nothing although there was an event.
    """
    seen = chain.newest  # before the request: the response need not include what is added meanwhile
    found = await newest(client)
    if found is None and seen is not None and not await _ends_are_marked(client):
        raise _sent_nothing(seen.position, label)
    if seen is not None and (found is None or found.position < seen.position):
        raise chain.broken(seen, found)
    if found is None:
        return 0
    if seen is not None and found.position > seen.position:
        await prove(client, chain, seen, label)
    chain.keep([found])
    return found.position


async def prove(client: Client, chain: SeenChain, expected: Link, label: str) -> None:
    """Check that the log has a link that was read before.

    Raises:
        EventStoreError: OCQ-316, if it does not.
        EventSourcingDbUnavailableError: OCQ-331, if version 1 sends nothing.
    """
    found = await newest_upto(client, expected.position, label)
    if found != expected:
        raise chain.broken(expected, found)


@dataclass(frozen=True, slots=True)
class ServerRead:
    """Selected events of a part of the log.

    The protocol has bounds but no limit. Breaking off a stream wastes the rest of it, and a connection. So each request
    names a page: at first as long as the limit, then twice as long each time.

    In version 1 of the protocol a stream that ends early looks complete. It then lacks its last events, never one in
    the middle, so what was seen counts, and the next range follows the last event seen. Only an event proves that
    nothing comes after it: the last id of the page where all subjects are read, else the subject's newest event.

    The log may have been replaced since the last read, by a server that has lost its disk. The first event names the
    hash of the one before it, which shows without another request that it has not. That event is of any subject, so a
    short part is read with all subjects; a long one of a narrow subject costs up to two small requests more.

    Attributes:
        selection: Which events; the server filters by subject, this class by the rest.
        limit: Most events wanted.
        most: Most events of all subjects that are read, if nothing else shows that there is none of the subject.
        chain: What was seen of the log before; what is seen now is added at the end.
        label: How messages name the server.
        found: The events found so far, in the order of their positions.
        shown: The hashes of all events that the server has sent, by position.
    """

    selection: Selection
    limit: int
    most: int
    chain: SeenChain
    label: str
    found: list[Event] = field(default_factory=list)
    shown: dict[int, str] = field(default_factory=dict)

    async def read(self, client: Client, after: int, upto: int) -> Slice:
        """Return the first selected events of ``after + 1..upto``, all of which must already exist.

        Raises:
            EventSourcingDbUnavailableError: OCQ-331, if a stream has ended before its last event.
            EventStoreError: OCQ-316, if the log is not the one that was read before.
        """
        is_short = upto - after <= _FEW and self.selection.subject.startswith("/")  # the server reports a malformed one
        asked = _EVERYTHING if is_short else self.selection
        seen = end = after
        length = max(self.limit, _FEW) if is_short else self.limit
        while end < upto and not self._is_enough:
            end, length = min(upto, end + length), 2 * length
            seen = await self._take(client, asked, seen, end)
            if await _ends_are_marked(client):
                seen = end
        if seen < upto and not self._is_enough:
            upto = await self._make_sure(client, after, seen, upto)
        if self._is_enough:
            upto = self.found[-1].position
        await self._prove(client, after, upto)
        self.chain.keep(starmap(Link, self.shown.items()))
        return Slice(after, upto, tuple(self.found))

    @property
    def _is_enough(self) -> bool:
        return len(self.found) >= self.limit

    async def _make_sure(self, client: Client, after: int, seen: int, upto: int) -> int:
        """Return up to where certainly no event of the subject after ``seen`` was missed."""
        if upto - seen > _FEW:
            older = seen - 1 if seen > after else 0  # an event that was seen must be found again
            subject, recursive = self.selection.subject, self.selection.recursive
            found = await newest(client, subject, recursive=recursive, after=older, upto=upto)
            position = found.position if found is not None else None
            if position is not None and seen < position <= upto:
                raise _ended_early(seen, position, self.label)
            if position is not None and position <= seen:
                return upto
            upto = min(upto, seen + self.most)
        await self._take(client, _EVERYTHING, seen, upto)
        return upto

    async def _take(self, client: Client, asked: Selection, after: int, end: int) -> int:
        """Find events among the requested ones; return the position of the last one that the server sent."""
        options = ReadEventsOptions(asked.recursive, lower_bound=_bound(after + 1), upper_bound=_bound(end))
        seen = after
        async with aclosing(client.read_events(asked.subject, options)) as stream:
            async for read in stream:
                event = event_of(read)
                seen = event.position
                self._follow(seen, read.hash, read.predecessor_hash)
                if not self._is_enough and self.selection.matches(event):
                    self.found.append(event)
                if self._is_enough and end - seen > _FEW:
                    return seen
        if seen < end and asked.everything:
            raise _ended_early(seen, end, self.label)
        return seen

    def _follow(self, position: int, own: str, predecessor: str) -> None:
        """Check that an event follows the one before it, if that one was seen."""
        before = position - 1
        known = self.shown.get(before) or ((link := self.chain.at(before)) and link.hash)
        if known is not None and known != predecessor:
            raise self.chain.broken(Link(before, known), Link(before, predecessor))
        self.shown[position] = own

    async def _prove(self, client: Client, after: int, upto: int) -> None:
        """Check that what was read follows what was read before, and learn the hash at ``upto`` for the next read.

        Events that were read before are checked last: a log that is replaced in between does not have them.
        """
        if upto not in self.shown:
            last = await newest_upto(client, upto, self.label)
            if last is None or last.position < upto:
                raise _ended_early(last.position if last else 0, upto, self.label)
            self.shown[upto] = last.hash
        before = self.chain.at(after)
        if before is not None and after + 1 not in self.shown:
            await prove(client, self.chain, before, self.label)


async def _ends_are_marked(client: Client) -> bool:
    """Return whether the protocol marks the end of a stream, so that the client notices one that ends early.

    Called after a stream: a client that has fallen back to version 1 stays there.
    """
    ask = getattr(client, "_get_api_version", None)
    return ask is not None and await ask() != "v1"


def _bound(position: int) -> Bound:
    return Bound(str(position - 1), BoundType.INCLUSIVE)  # position n has the id n - 1


def _ended_early(seen: int, there: int, label: str) -> Exception:
    return unavailable(f"its response ended after event {seen} although there are {there}", label)


def _sent_nothing(position: int, label: str) -> Exception:
    reason = f"it sends no event although event {position - 1} existed: the response was cut, or the server has lost it"
    return unavailable(reason, label)

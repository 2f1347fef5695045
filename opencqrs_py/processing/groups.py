"""The parts of a group, from which the processors of its partitions are made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from math import isqrt
from threading import Lock

from opencqrs_py.model.event import Event
from opencqrs_py.model.inbox import InboxEntry, first_lost
from opencqrs_py.model.partition import Partition, hash_of, residue_of
from opencqrs_py.model.progress import Cursor
from opencqrs_py.model.selection import ATTRIBUTES, Selection, Share
from opencqrs_py.processing.calls import NO_LIMITS, CallLimits
from opencqrs_py.processing.caution import Caution
from opencqrs_py.processing.checkpoints.checkpointed import CheckpointedProcessor
from opencqrs_py.processing.checkpoints.participants import says_when_parked_events_are_durable
from opencqrs_py.processing.checkpoints.participation import PARKED, Participation
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.feed import Feed
from opencqrs_py.processing.inbox.batches import ScheduleRule
from opencqrs_py.processing.inbox.late_entries import LateEntries
from opencqrs_py.processing.inbox.parked_entries import ParkingRule
from opencqrs_py.processing.inbox.parking import Parking
from opencqrs_py.processing.pipelining import Pipelining
from opencqrs_py.processing.ports import Clock, EventSource, ParkingTracker, ProgressTracker, SharingSource, SystemClock
from opencqrs_py.processing.positions import events_at
from opencqrs_py.processing.processor import PartitionProcessor, ProcessorParts
from opencqrs_py.processing.replays import ReplayRule
from opencqrs_py.processing.sequencing import Sequencing

CHUNK = 1_000
TABLE = 5_000  # events of a table: more of them are aggregated into fewer rows
_MOST_IN_TABLES = 20_000  # events of the tables of all partitions, since they are read together
_PAGES_KEPT = 4  # of the log, for partitions that lag a little
_FEEDS_KEPT = 4  # for some partitions only
_LEAST_READ = 1_000  # events fetched at once, even when each is committed alone
_ENTERING = 5_000  # small events that enter the inbox at once: with more of them, fewer pages of it change for each


class GroupProcessing:
    """Makes the processors of a group; they share source, tracker, dispatcher and feed.

    Args:
        group: Processing group.
        source: The event store.
        tracker: Where progress goes.
        dispatcher: Calls the group's handlers.
        subject: Root subject observed.
        recursive: Whether its child subjects are observed too.
        sequencing: Maps events to sequences, and sequences to partitions.
        partitions: Number of partitions, for the size of what is read at once.
        batch_size: Most events in one transaction. ``None``: 1,000 when every handler asks for the progress
            transaction, so that a repeated event changes nothing, or for a chunk at a time; 5,000 when every one takes
            a table, with more than four partitions fewer; else 1, so that a crash repeats at most one event.
        clock: Time, for processors that are given no other clock; ``None`` for the machine's.
        limits: How long a call of a handler may take.
        parking: How events are parked, and what waits is handled, where the tracker has an inbox; ``None``: as by
            default.
        schedule: How a scheduled group handles its events; ``None`` for any other. Requires an inbox.
        replays: How events are handled again after a reset; ``None``: like others.
        checkpointing: The participants of the group; ``None`` if it has none. Their events do not wait in an inbox.

    Attributes:
        selection: Which events the group reads.
    """

    def __init__(  # noqa: PLR0913 all that a group is made from
        self,
        group: str,
        source: EventSource,
        tracker: ProgressTracker,
        dispatcher: Dispatcher,
        *,
        subject: str,
        recursive: bool,
        sequencing: Sequencing,
        partitions: int,
        batch_size: int | None,
        clock: Clock | None = None,
        limits: CallLimits = NO_LIMITS,
        parking: ParkingRule | None = None,
        schedule: ScheduleRule | None = None,
        replays: ReplayRule | None = None,
        checkpointing: Participation | None = None,
    ) -> None:
        self.group = group
        self.limits = limits
        self.source = source
        self.tracker = tracker
        self.checkpointing = checkpointing
        self.batch_size = batch_size or _usual_size(dispatcher, partitions, checkpointing)
        self._dispatcher = dispatcher
        self._pipelining = Pipelining() if dispatcher.pipelines else None
        self._caution = Caution()
        self._sequencing = sequencing
        self._clock = SystemClock() if clock is None else clock
        self.schedule = schedule
        self.replays = replays
        sequenced = partitions > 1 or schedule is not None or (parking is not None and parking.parks)
        of_sequences = sequencing.attributes if sequenced else frozenset[str]()
        self._parking = self._parking_by(parking or ParkingRule())
        whole = self.batch_size == 1 or schedule is not None  # each commit stores the identity of its event
        attributes = ATTRIBUTES if whole else of_sequences | dispatcher.attributes
        self.selection = selection = Selection(subject, recursive, dispatcher.wanted_types, attributes)
        wanted = dispatcher.wants if selection.types is None else None
        size = read_size(self.batch_size, partitions)
        memory = 1 if partitions == 1 else _PAGES_KEPT
        self.feed = Feed(source, selection, sequencing, size, memory, wanted, largest=self._largest)
        self._narrowed: dict[tuple[Share, int, int], GroupProcessing] = {}
        self._claims: dict[Partition, tuple[int, int]] = {}
        self._lock = Lock()

    def narrowed(self, partitions: Collection[Partition], most: int | None = None) -> GroupProcessing:
        """Return the same for some partitions only; it reads no other events where the store can filter them.

        Args:
            partitions: Which partitions.
            most: Most events read at once; ``None`` for as many as their chunks need.
        """
        share = self._sequencing.share_of(partitions)
        if share is None or not isinstance(self.source, SharingSource) or not self.source.selects(share):
            return self
        size, largest = read_size(self.batch_size, len(partitions)), self._largest
        key = share, *((size, largest) if most is None else (min(size, most), min(largest, most)))
        with self._lock:
            found = self._narrowed.pop(key, None)
            if found is None:
                found = copy(self)
                found.feed = self.feed.sequenced.narrowed(*key)
            self._narrowed[key] = found  # least recently used is evicted first
            for old in list(self._narrowed)[:-_FEEDS_KEPT]:
                del self._narrowed[old]
        return found

    def forget_earlier(self, cursors: Iterable[Cursor]) -> None:
        """Forget the events that were read here under earlier claims, or before an outage under the current ones.

        The log may have been replaced since.
        """
        claims = {cursor.partition: (cursor.epoch, cursor.confirmed) for cursor in cursors}
        with self._lock:
            if claims.items() <= self._claims.items():
                return
            self._claims.update(claims)
            feeds = [self.feed, *(narrowed.feed for narrowed in self._narrowed.values())]
        for feed in feeds:
            feed.forget()

    @property
    def _largest(self) -> int:
        return 0 if self.schedule is None else _ENTERING

    def bounded(self, upto: int) -> GroupProcessing:
        """Return the same, limited to the log up to a final position."""
        found = copy(self)
        found.feed = self.feed.bounded(upto)
        return found

    @property
    def type_names(self) -> tuple[str, ...]:
        """The types, or patterns of types, that handlers take; empty if some take any type."""
        return self._dispatcher.type_names

    def wants(self, event_type: str) -> bool:
        """Return whether stored events of a type may lead to a handler."""
        return self._dispatcher.wants(event_type)

    @property
    def has_inbox(self) -> bool:
        """Whether events can be parked."""
        return self._parking is not None

    def why_overtaken(self, entries: Sequence[InboxEntry]) -> str:
        """Return why events in the inbox would be ignored; empty if they are not.

        They are read again and compared with the sequences under which they wait. One whose sequence cannot be
        determined counts as unchanged; its next attempt reports the error.
        """
        if self._parking is None:
            return "with its settings, the group cannot park events"
        for participant in () if self.checkpointing is None else self.checkpointing.participants:
            if not says_when_parked_events_are_durable(participant):
                return f"{participant.name} does not report when parked events are durable: it has no {PARKED}"
        events = events_at(self.source, [entry.position for entry in entries])
        for entry in entries:
            if first_lost((entry,), events) is not None:
                continue
            event = events[entry.position]
            found = self._sequences_of(event)
            if found and entry.sequence_id not in found:
                is_now = " and ".join(map(repr, found))
                return f"{event.label} waits as part of sequence {entry.sequence_id!r}, but is in {is_now} now"
        return ""

    def _sequences_of(self, event: Event) -> tuple[str, ...]:
        try:
            return self._sequencing.sequence_ids(event)
        except Exception:  # of a resolver, or of what decodes the event for it
            return ()

    @property
    def repartitions(self) -> bool:
        """Whether sequences are assigned by CRC-32, so that partitions can be changed."""
        return self._sequencing.partition_of is residue_of

    def hashes_at(self, position: int) -> list[int] | None:
        """Return the numbers of the sequences of the event at a position; ``None`` if they cannot be determined."""
        event = events_at(self.source, [position]).get(position)
        return None if event is None else [hash_of(one) for one in self._sequences_of(event)] or None

    def positions_of(self, partition: Partition, after: int, until: int) -> Iterator[int]:
        """Yield the positions of a partition's events between two positions.

        Raises:
            UnsequencedError: If the sequence of an event cannot be determined.
        """
        feed = self._unshared_feed()
        while after < until and (page := feed.read(after)) is not None:
            events, after = page.events_of(partition, after)
            yield from (event.position for event in events if event.position <= until)

    def never_handled(self, cursor: Cursor) -> list[int]:
        """Return the positions of a partition's unhandled events, up to where some are handled ahead.

        Raises:
            UnsequencedError: If the sequence of an event cannot be determined.
        """
        if (ahead := cursor.ahead) is None:
            return []
        feed, partition, after = self._unshared_feed(), cursor.partition, cursor.stored
        found = list[int]()
        while after < ahead.until and (page := feed.read(after)) is not None:
            events, upto = page.unhandled(partition, *page.events_of(partition, after), ahead)
            found += [event.position for event in events if event.position <= ahead.until]
            after = upto
        return found if cursor.replay is None else [one for one in found if not cursor.replay.covers(one)]

    def _unshared_feed(self) -> Feed:
        return Feed(self.source, self.selection, self._sequencing, _LEAST_READ).sequenced

    def look(self, cursors: Sequence[Cursor], clock: Clock) -> list[Cursor]:
        """Return cursors of partitions with what waits in the inbox; unchanged if there is no inbox."""
        if self._parking is not None and self.schedule is not None:
            return self._parking.look_ahead(self.group, cursors, clock.now(), expiring=self.schedule.expiring)
        return list(cursors) if self._parking is None else self._parking.look(self.group, cursors, clock.now())

    def bring_forward(self, cursors: Sequence[Cursor], clock: Clock) -> int:
        """Have events in the inbox tried in time whose due times come from a clock that was ahead; return how many."""
        if self._parking is None:
            return 0
        rule, each = self.schedule or self._parking.rule, self.schedule is not None and self.schedule.each
        late = LateEntries(self._parking.inbox, self.group, rule.back_off, each=each)
        return late.bring_forward(cursors, clock.now())

    def processor(self, partition: Partition, clock: Clock | None = None) -> PartitionProcessor:
        """Return the processor of one partition; it records times by the clock."""
        parts = ProcessorParts(
            self.group,
            self.feed if partition.modulus == 1 else self.feed.sequenced,
            self.tracker,
            self._dispatcher,
            self.batch_size,
            self._clock if clock is None else clock,
            self.limits,
            self._pipelining,
            self._parking,
            self._caution,
            self.schedule,
            self.replays,
        )
        if self.checkpointing is None:
            return PartitionProcessor(partition, parts)
        return CheckpointedProcessor(partition, parts, self.checkpointing)

    def _parking_by(self, rule: ParkingRule) -> Parking | None:
        """Return how the group parks; ``None`` without an inbox, or if partitions are not assigned by CRC-32."""
        if isinstance(self.tracker, ParkingTracker) and self._sequencing.partition_of is residue_of:
            return Parking(self.tracker, rule)
        return None


def _usual_size(dispatcher: Dispatcher, partitions: int, checkpointing: Participation | None) -> int:
    """Return how many events a chunk has at most; participants share no transaction."""
    if checkpointing is not None:
        others = checkpointing.others.usual
        if others is None:
            return _usual_size(dispatcher, partitions, None) if dispatcher.takes_tables else CHUNK
        return _usual_size(others, partitions, None)
    if dispatcher.takes_tables:
        return max(CHUNK, min(TABLE, _MOST_IN_TABLES // partitions))
    return CHUNK if dispatcher.takes_chunks else 1


def read_size(batch_size: int, partitions: int) -> int:
    """Return how many events to read at once, so that a partition's part of them mostly fits one transaction.

    A part of n events varies by about the square root of n; four times that leaves room for nearly all cases.
    """
    share = batch_size if partitions == 1 else max(1, batch_size - 4 * isqrt(batch_size))
    return max(_LEAST_READ, share * partitions)

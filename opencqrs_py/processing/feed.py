"""The feed of a group: reads the log once for all partitions that run in this process."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

from opencqrs_py.model.ahead import Ahead
from opencqrs_py.model.chunk import NOTHING, Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import Partition, hash_of
from opencqrs_py.model.selection import Selection, Share, Slice
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.ports import EventSource, SharingSource
from opencqrs_py.processing.sequencing import Sequencing

_FEW_PAGES = 2
_MOST_CHARACTERS = 16_000_000  # of the data of a page that has more events than the limit


class UnsequencedError(Exception):
    """The sequence of ``event`` cannot be determined, because of ``error``."""

    def __init__(self, event: Event, error: BaseException) -> None:
        super().__init__(event, error)
        self.event = event
        self.error = error


class _Assigned(NamedTuple):
    """The events of a page by the residues of their partitions, up to a position; and the reason if they end early."""

    events: Mapping[int, Chunk]
    upto: int
    failure: UnsequencedError | None


class Page:
    """A page of the log, whose events are assigned to partitions on demand. Safe for several threads.

    ``wanted`` returns whether events of a type may lead to a handler; ``None`` for all. ``only`` is the partition whose
    events it has, if the store has left out those of the others.
    """

    def __init__(
        self,
        part: Slice,
        sequencing: Sequencing,
        wanted: Callable[[str], bool] | None = None,
        only: Partition | None = None,
    ) -> None:
        self.after = part.after
        self.upto = part.upto
        self._only = only
        events = part.events if isinstance(part.events, Chunk) else Chunk(part.events)
        self._events = events if wanted is None else events.of_types(wanted)
        self._sequencing = sequencing
        self._ids: dict[str, tuple[str, ...]] = {}  # by subject, where the subject decides
        self._knows_all_ids = False  # whether that has each subject
        self._assigned: dict[int, _Assigned] = {}  # by modulus
        self._id_by_subject: dict[str, str] = {}  # of each subject, once our own resolver has returned all
        self._lock = Lock()

    def events_of(self, partition: Partition, after: int) -> tuple[Chunk, int]:
        """Return the partition's events after ``after``, in order, and the position up to which they are complete.

        A single partition gets every event, and no sequence resolver is called. Raises ``UnsequencedError`` if the next
        event's sequence cannot be determined; the events before it are returned first.
        """
        if partition.modulus == 1 or partition == self._only:
            return self._events if after == self.after else self._events.after(after), self.upto
        with self._lock:
            assigned = self._assigned.get(partition.modulus)
            if assigned is None:
                assigned = self._assigned[partition.modulus] = self._assign(partition.modulus)
            if assigned.failure is not None and after >= assigned.upto:
                del self._assigned[partition.modulus]  # the resolver is called again at the next attempt
                raise assigned.failure
        return assigned.events.get(partition.residue, NOTHING).after(after), assigned.upto

    def sequence_ids(self, event: Event) -> tuple[str, ...]:
        """Return the ids of an event's sequences, each once and in order; raise ``UnsequencedError`` on failure.

        They are cached where the subject decides. Other resolvers are called again: keeping an id for each event would
        double the cost of assigning it, and ids are needed for few events.
        """
        if (id_of := self._sequencing.id_of_subject) is not None:  # one of our own resolvers, which cannot fail
            return (id_of(event.subject),)
        with self._lock:
            return self._certain_ids(event)

    def unhandled(self, partition: Partition, events: Chunk, upto: int, ahead: Ahead) -> tuple[Chunk, int]:
        """Return a partition's events except those that were handled ahead of it, and up to where they are complete.

        Raises:
            UnsequencedError: If the sequence of the first event cannot be determined; those before it come first.
        """

        def is_handled(event: Event) -> bool:
            position = event.position
            if position > ahead.until:
                return False
            hashes = (hash_of(one) for one in self.sequence_ids(event))
            return all(ahead.covers(one, position) for one in hashes if one % partition.modulus == partition.residue)

        try:
            return events.parted(is_handled)[0], upto
        except UnsequencedError as failed:
            index = events.index_of(failed.event.position)
            if not index:
                raise
            return self.unhandled(partition, events[:index], failed.event.position - 1, ahead)

    def subjects_of(self, sequence_ids: frozenset[str], events: Chunk) -> frozenset[str] | None:
        """Return the subjects of some events of the page that belong to some sequences, where the subject decides.

        ``None`` where it does not, or not for every event: then each event has to be checked.
        """
        if not self._sequencing.by_subject:
            return None
        with self._lock:
            if self._sequencing.id_of_subject is not None:
                ids = self._ids_by_ours(self._sequencing.id_of_subject)
                return frozenset(subject for subject in events.subjects if ids[subject] in sequence_ids)
            if not self._knows_all_ids and not self._learn_all_ids():
                return None
        several = self._ids
        return frozenset(subject for subject in events.subjects if not sequence_ids.isdisjoint(several[subject]))

    def _learn_all_ids(self) -> bool:
        """Get the ids of all subjects, if necessary; return whether each has them."""
        if all(assigned.failure is not None for assigned in self._assigned.values()):  # else every id is known
            try:
                for event in self._events.first_of_each_subject():
                    self._certain_ids(event)
            except UnsequencedError:
                return False
        self._knows_all_ids = True
        return True

    def _ids_by_ours(self, id_of: Callable[[str], str]) -> Mapping[str, str]:
        """Return the ids of the page's sequences by subject, from one of our own resolvers."""
        if not self._id_by_subject:
            self._id_by_subject = {subject: id_of(subject) for subject in self._events.subjects}
        return self._id_by_subject

    def _certain_ids(self, event: Event) -> tuple[str, ...]:
        try:
            return self._ids_of(event)
        except BaseException as error:
            raise_interrupt(error)
            raise UnsequencedError(event, error) from error

    def _ids_of(self, event: Event) -> tuple[str, ...]:
        if not self._sequencing.by_subject:
            return self._sequencing.sequence_ids(event)
        found = self._ids.get(event.subject)
        if found is None:
            found = self._ids[event.subject] = self._sequencing.sequence_ids(event)
        return found

    def _assign(self, modulus: int) -> _Assigned:
        residues = self._residues(modulus)
        if self._sequencing.by_subject:
            try:
                return _Assigned(self._by_residue(residues, modulus), self.upto, None)
            except BaseException as error:  # going through the events one by one finds it
                raise_interrupt(error)
        indices: dict[int, list[int]] = defaultdict(list)
        upto, failure = self.upto, None
        for index, event in enumerate(self._events):
            try:
                found = residues(event)
            except BaseException as error:  # a resolver's; what comes before the event can be handled
                raise_interrupt(error)
                upto, failure = event.position - 1, UnsequencedError(event, error)
                break
            for residue in found:
                indices[residue].append(index)
        return _Assigned({residue: self._events.picked(those) for residue, those in indices.items()}, upto, failure)

    def _by_residue(self, residues: Callable[[Event], Iterable[int]], modulus: int) -> Mapping[int, Chunk]:
        id_of, partition_of = self._sequencing.id_of_subject, self._sequencing.partition_of
        if id_of is None:
            return self._events.by_residue(residues)
        ids = dict[str, str]()

        def residue_of(subject: str) -> int:
            sequence_id = ids[subject] = id_of(subject)
            return partition_of(sequence_id, modulus)

        found = self._events.by_residue_of_subject(residue_of)
        self._id_by_subject = ids  # only now: a partition resolver may have raised before all were resolved
        return found

    def _residues(self, modulus: int) -> Callable[[Event], Iterable[int]]:
        """Return a function from an event to the residues of its partitions."""
        partition_of, by_subject = self._sequencing.partition_of, self._sequencing.by_subject
        ids_of = self._ids_of if by_subject else self._sequencing.sequence_ids

        def residues(event: Event) -> Iterable[int]:
            ids = ids_of(event)
            if len(ids) == 1:  # nearly always
                return (partition_of(ids[0], modulus),)
            return dict.fromkeys([partition_of(one, modulus) for one in ids])

        return residues


class Feed:
    """Provides pages of the log; partitions at about the same position share a page, which is read once.

    A partition that lags by more than the kept pages catches up with pages of its own, without the events of other
    partitions if the store can filter them: else each laggard would read the whole log again. Safe for several threads.

    Args:
        source: The event store.
        selection: Which events the group reads.
        sequencing: Maps events to sequences, and sequences to partitions.
        limit: Most events per page, as far as ``largest`` allows no more.
        memory: Number of pages kept for partitions that lag a little, and for those that lag more.
        wanted: Returns whether events of a type may lead to a handler; ``None`` for all.
        upto: The last position that is read, which is final; ``None`` for the whole log.
        largest: Most events per page while events are small, so that a page has about 16 million characters of data.
    """

    def __init__(
        self,
        source: EventSource,
        selection: Selection,
        sequencing: Sequencing,
        limit: int,
        memory: int = 4,
        wanted: Callable[[str], bool] | None = None,
        upto: int | None = None,
        largest: int = 0,
    ) -> None:
        self.source = source
        self._upto = upto
        self._largest = largest
        self._limit = self._at_once = limit  # the size of the next page, by the events of the last one
        self._memory = memory
        self._selection = selection
        self._sequencing = sequencing
        self._wanted = wanted
        self._recent: deque[Page] = deque(maxlen=memory)
        self._behind: deque[Page] = deque(maxlen=memory)  # read for laggards; they evict no newer page
        self._own: dict[Partition, Page] = {}  # the last page of each laggard that has only its events
        self._lock = Lock()

    @cached_property
    def sequenced(self) -> Feed:
        """The same feed, or one whose events have all attributes that determine their sequences."""
        looked_at = self._selection.attributes | self._sequencing.attributes
        if looked_at == self._selection.attributes:
            return self
        selection = replace(self._selection, attributes=looked_at)
        return self._like(selection)

    def _like(self, selection: Selection, **others: Any) -> Feed:
        """Return a feed with another selection, and perhaps other arguments, that has read nothing yet."""
        same = {"limit": self._limit, "memory": self._memory, "upto": self._upto, "largest": self._largest}
        return Feed(self.source, selection, self._sequencing, wanted=self._wanted, **{**same, **others})

    def read(self, after: int, partition: Partition | None = None) -> Page | None:
        """Return a page that continues after ``after``, or ``None`` at the head of the log.

        Args:
            after: Position up to which all is done.
            partition: Partition that it is for; for another one the page may lack events.
        """
        with self._lock:
            for page in (*self._recent, *self._behind):
                if page.after <= after < page.upto:
                    return page
            lags = bool(self._recent) and after < self._recent[-1].after
            if lags and partition is not None and (own := self._read_own(after, partition)) is not None:
                return own
            if self._upto is not None and after >= self._upto:
                return None
            part = self.source.read(after, self._at_once, self._selection, self._upto)
            if part.upto <= after:
                return None
            page = Page(part, self._sequencing, self._wanted)
            (self._behind if lags else self._recent).append(page)
            if self._largest > self._limit and part.events:
                fitting = _MOST_CHARACTERS * len(part.events) // max(1, Chunk.of(part.events).characters)
                self._at_once = max(self._limit, min(self._largest, fitting))
            return page

    def _read_own(self, after: int, partition: Partition) -> Page | None:
        """Return a page with a laggard's events only, up to the shared pages; ``None`` if there is none.

        The shared pages prove that the log is final before them.
        """
        known = self._own.get(partition)
        if known is not None and known.after <= after < known.upto:
            return known
        share = self._sequencing.share_of([partition])
        if share is None or not isinstance(self.source, SharingSource) or not self.source.selects(share):
            return None
        of_feed = self._selection.share
        limit = max(1, self._limit // (partition.modulus if of_feed is None else len(of_feed.residues)))
        upto = min(page.after for page in self._recent if page.after > after)
        part = self.source.read(after, limit, replace(self._selection, share=share), upto)
        page = Page(part, self._sequencing, self._wanted, partition)
        self._own[partition] = page
        return page if part.upto > after else None

    def forget(self) -> None:
        """Forget all pages that were read: the log may have been replaced, so they may not be part of it."""
        with self._lock:
            self._recent.clear()
            self._behind.clear()
            self._own.clear()
        if self.sequenced is not self:
            self.sequenced.forget()

    def narrowed(self, share: Share, limit: int, largest: int = 0) -> Feed:
        """Return a feed for some partitions only, with other limits."""
        selection = replace(self._selection, share=share)
        return self._like(selection, limit=limit, memory=_FEW_PAGES, largest=largest)

    def bounded(self, upto: int) -> Feed:
        """Return a feed that ends at a final position."""
        return self._like(self._selection, upto=upto)

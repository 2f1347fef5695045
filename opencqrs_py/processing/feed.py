"""The feed of a group: reads the log once for all partitions that run in this process."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.rows import EventRows
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.ports import EventSource
from opencqrs_py.processing.sequencing import Sequencing

Residues = Callable[[Event, int], Sequence[int]]


class UnsequencedError(Exception):
    """It cannot be said to which sequence ``event`` belongs, because of ``error``."""

    def __init__(self, event: Event, error: BaseException) -> None:
        super().__init__(event, error)
        self.event = event
        self.error = error


class _Dealt(NamedTuple):
    """The events of a stretch by the residues of their partitions, up to a position; why they end there, if they do."""

    shares: Mapping[int, Sequence[Event]]
    upto: int
    failure: UnsequencedError | None


class Stretch:
    """A slice of the log, dealt out to partitions when they ask. Safe for several threads.

    Args:
        part: The slice read.
        sequencing: Says to which partitions an event goes.
        wanted: Says whether events of a type may lead to a handler; ``None`` for all.
    """

    def __init__(self, part: Slice, sequencing: Sequencing, wanted: Callable[[str], bool] | None = None) -> None:
        self.after = part.after
        self.upto = part.upto
        self._events = part.events if wanted is None else _wanted(part.events, wanted)
        self._sequencing = sequencing
        self._dealt: dict[int, _Dealt] = {}  # by modulus
        self._lock = Lock()

    def covers(self, after: int) -> bool:
        """Say whether a partition that is done up to ``after`` finds its next events here."""
        return self.after <= after < self.upto

    def share(self, partition: Partition, after: int) -> tuple[Sequence[Event], int]:
        """Return the partition's events behind ``after``, in order, and the position up to which they are all.

        Raises:
            UnsequencedError: If the next event of the stretch cannot be given to a sequence. Those before it come
                first.
        """
        if partition.modulus == 1:
            return _behind(self._events, after), self.upto
        with self._lock:
            dealt = self._dealt.get(partition.modulus)
            if dealt is None:
                dealt = self._dealt[partition.modulus] = self._deal(partition.modulus)
            if dealt.failure is not None and after >= dealt.upto:
                del self._dealt[partition.modulus]  # the resolver is asked again at the next attempt
                raise dealt.failure
        return _behind(dealt.shares.get(partition.residue, ()), after), dealt.upto

    def _deal(self, modulus: int) -> _Dealt:
        if self._sequencing.by_subject and isinstance(self._events, EventRows):
            try:
                return _Dealt(self._events.dealt(lambda one: self._sequencing.residues(one, modulus)), self.upto, None)
            except BaseException as error:  # asking for one event after the other finds the one
                raise_interrupt(error)
        shares: dict[int, list[Event]] = defaultdict(list)
        asked = self._sequencing.residues
        residues = _asked_once_a_subject(asked) if self._sequencing.by_subject else asked
        for event in self._events:
            try:
                found = residues(event, modulus)
            except BaseException as error:  # a resolver's; what comes before the event can be handled
                raise_interrupt(error)
                return _Dealt(shares, event.position - 1, UnsequencedError(event, error))
            for residue in found:
                shares[residue].append(event)
        return _Dealt(shares, self.upto, None)


def _asked_once_a_subject(residues: Residues) -> Residues:
    known: dict[str, Sequence[int]] = {}

    def remembered(event: Event, modulus: int) -> Sequence[int]:
        found = known.get(event.subject)
        if found is None:
            found = known[event.subject] = residues(event, modulus)
        return found

    return remembered


def _wanted(events: Sequence[Event], wanted: Callable[[str], bool]) -> Sequence[Event]:
    if isinstance(events, EventRows):
        return events.of_types(wanted)
    return [event for event in events if wanted(event.type)]


def _behind(events: Sequence[Event], after: int) -> Sequence[Event]:
    if not events or events[0].position > after:
        return events
    return events[bisect_right(events, after, key=lambda event: event.position) :]


class Feed:
    """Hands out stretches of the log; partitions at about the same place get the same one, read once.

    Safe for several threads.

    Args:
        source: The event store.
        selection: Which events the group looks at.
        sequencing: Says to which partitions an event goes.
        limit: Most events per stretch.
        memory: Stretches kept for partitions that lag a little.
        wanted: Says whether events of a type may lead to a handler; ``None`` for all.
    """

    def __init__(
        self,
        source: EventSource,
        selection: Selection,
        sequencing: Sequencing,
        limit: int,
        memory: int = 4,
        wanted: Callable[[str], bool] | None = None,
    ) -> None:
        self.source = source
        self._selection = selection
        self._sequencing = sequencing
        self._limit = limit
        self._wanted = wanted
        self._recent: deque[Stretch] = deque(maxlen=memory)
        self._lock = Lock()

    def read(self, after: int) -> Stretch | None:
        """Return a stretch that goes on behind ``after``, or ``None`` at the head of the log."""
        with self._lock:
            for stretch in self._recent:
                if stretch.covers(after):
                    return stretch
            part = self.source.read(after, self._limit, self._selection)
            if part.upto <= after:
                return None
            stretch = Stretch(part, self._sequencing, self._wanted)
            self._recent.append(stretch)
            return stretch

"""The events of a partition that wait in the inbox: what streaming and scheduled groups do alike with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from opencqrs_py.errors import InboxChangedError, InboxError
from opencqrs_py.model.chunk import NOTHING
from opencqrs_py.model.event import Event
from opencqrs_py.model.inbox import InboxChange, InboxEntry, InboxSelection, Remainder
from opencqrs_py.model.outcome import Failure, Outcome
from opencqrs_py.model.partition import Partition, hash_of
from opencqrs_py.model.progress import Cursor, Skip
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.feed import Page, UnsequencedError
from opencqrs_py.processing.inbox.parked_entries import before_mark
from opencqrs_py.processing.portions import Portion
from opencqrs_py.processing.ports import Clock, EventSource, ParkingTracker, UnitOfWork


@dataclass(eq=False)
class WaitingEvents(ABC):
    """Changes entries of a partition in the inbox, and records what becomes of an attempt.

    Attributes:
        inbox: The inbox.
        group: Processing group.
        partition: Partition of the group.
        source: The event store, from which events are read again.
        clock: Time.
        handle: Handles a portion; returns the failure of an event, if any, after handling those before it.
        wants: Returns whether events of a type may lead to a handler.
    """

    inbox: ParkingTracker
    group: str
    partition: Partition
    source: EventSource
    clock: Clock
    handle: Callable[[Cursor, Portion], Outcome]
    wants: Callable[[str], bool]
    _each: bool = field(default=False, init=False)  # whether each event is tried on its own
    # How many sequences of the group may wait, and how many events of one; ``None``: any number.
    _limits: tuple[int | None, int | None] = field(default=(None, None), init=False)
    # A mark that an outage has kept, the entry without it, and the rest of its sequence.
    _mark_left: tuple[InboxEntry, InboxEntry, tuple[Remainder, ...]] | None = field(default=None, init=False)

    def unit(
        self, cursor: Cursor, to: int, portion: Portion, fingerprint: str, skip: Skip | None = None
    ) -> AbstractContextManager[UnitOfWork]:
        """Open the unit of work in which a portion is handled and the inbox is changed accordingly."""
        change = self.change(portion)
        return self.inbox.unit(self.group, cursor, to, fingerprint=fingerprint, skip=skip, change=change)

    def change(self, portion: Portion) -> InboxChange:
        """Return what enters and leaves the inbox with a portion."""
        most_sequences, most_of_sequence = self._limits
        return InboxChange(
            in_milliseconds(self.clock.now()),
            added=portion.behind,
            done=portion.waiting,
            most_sequences=most_sequences,
            most_of_sequence=most_of_sequence,
            remainders=portion.remainders,
            each=self._each,
        )

    def failed(self, cursor: Cursor, failure: Failure, sequence_id: str) -> Outcome:
        """Record the failure of an attempt whose call was abandoned."""
        self._forget()
        found = self.inbox.entries(self.group, position=failure.position, selection=InboxSelection(sequence_id))
        marked = next((entry for entry in found if entry.sequence_id == sequence_id), None)
        entries = () if marked is None else (before_mark(marked, cursor),)
        portion = Portion(NOTHING, cursor.stored, waiting=entries)
        return self._recorded(cursor, portion, Outcome(cursor, failure=failure), marked)

    @abstractmethod
    def _recorded(self, cursor: Cursor, portion: Portion, done: Outcome, marked: InboxEntry | None = None) -> Outcome:
        """Record the outcome of an attempt; it is not a failure of the partition.

        Nothing is recorded if a person has changed or removed the entry since it was read.
        """

    def _forget(self) -> None:  # noqa: B027 only scheduled groups read ahead
        """Forget what is read but not handled, since entries have changed."""

    def _unmark(
        self, cursor: Cursor, marked: InboxEntry, after: InboxEntry, remainders: tuple[Remainder, ...] = ()
    ) -> None:
        """Remove the mark of an attempt that did not fail because of its event."""
        try:
            self._apply(cursor, changed=((marked, after),), remainders=remainders)
        except Exception:  # an outage, perhaps the one that ended the attempt: the next step reports it
            self._mark_left = marked, after, remainders

    def _remove_mark_left(self, cursor: Cursor) -> bool:
        """Remove a mark whose removal an outage has prevented; return whether there was one."""
        if self._mark_left is None:
            return False
        marked, after, remainders = self._mark_left
        self._apply(cursor, changed=((marked, after),), remainders=remainders)
        self._mark_left = None
        return True

    def _apply(
        self,
        cursor: Cursor,
        *,
        changed: tuple[tuple[InboxEntry, InboxEntry], ...] = (),
        removed: tuple[InboxEntry, ...] = (),
        remainders: tuple[Remainder, ...] = (),
        next_due: str | None = None,
        skip: Skip | None = None,
    ) -> bool:
        """Change the inbox and nothing else; return ``False`` if an entry has changed since it was read."""
        due, known, each = next_due or in_milliseconds(self.clock.now()), cursor.fingerprint, self._each
        change = InboxChange(due, changed=changed, removed=removed, remainders=remainders, each=each)
        try:
            with self.inbox.unit(self.group, cursor, cursor.stored, fingerprint=known, skip=skip, change=change):
                return True
        except InboxChangedError:
            self._forget()
            return False


def only_sequence(page: Page, event: Event, cursor: Cursor, among: Callable[[str], bool]) -> str | None:
    """Return the one sequence of an event that belongs to the partition; ``None`` if none does.

    Sequences that were handled ahead of the partition are left out.

    Raises:
        UnsequencedError: If the sequences cannot be determined, or, with OCQ-602, there are several.
    """
    found, partition = page.sequence_ids(event), cursor.partition
    if len(found) == 1:  # nearly always
        return found[0] if among(found[0]) and partition.owns(found[0]) else None
    own = [one for one in found if partition.owns(one)]
    if (ahead := cursor.ahead) is not None:
        own = [one for one in own if not ahead.covers(hash_of(one), event.position)]
    if not any(map(among, own)):
        return None
    if len(own) > 1:
        what = f"the event belongs to {len(own)} sequences, and cannot wait in the inbox in the order of each"
        fix = "choose sequences so that an event belongs to one, or set retry.on-exhausted: stop or skip"
        raise UnsequencedError(event, InboxError("OCQ-602", what, event.label, fix))
    return own[0]

"""The inbox in memory, beside the progress there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby

from opencqrs_py.errors import InboxChangedError
from opencqrs_py.model.inbox import (
    EVERYTHING,
    Fetching,
    InboxChange,
    InboxEntry,
    InboxSelection,
    InboxStatus,
    ParkedSequences,
    Remainder,
    too_long,
    too_many,
)
from opencqrs_py.model.partition import Partition, hash_of
from opencqrs_py.model.times import in_milliseconds

_Key = tuple[str, str]
"""Group and sequence id."""

_Sequences = dict[_Key, tuple[InboxEntry, ...]]


@dataclass(frozen=True)
class MemoryInbox:
    """Waiting events by group and sequence, in the order of positions. A change creates a new inbox."""

    sequences: dict[_Key, tuple[InboxEntry, ...]] = field(default_factory=dict)

    def parked(self, group: str, partition: Partition) -> ParkedSequences:
        """Return which sequences of a partition wait."""
        own = self._of(group, partition)
        due = [entry.due_at for entries in own.values() for entry in entries if entry.due_at is not None]
        return ParkedSequences(frozenset(own), min(due, default=None))

    def next_due(self, group: str, partition: Partition, *, expiring: bool) -> str | None:
        """Return the time from which there is something to do in a partition: an event may be tried, or has expired."""
        own = [entry for entries in self._of(group, partition).values() for entry in entries]
        times = [entry.due_at for entry in own] + [entry.expires_at for entry in own if expiring]
        return min((at for at in times if at is not None), default=None)

    def due(
        self, group: str, partition: Partition, until: datetime, most: int, fetching: Fetching
    ) -> list[tuple[InboxEntry, ...]]:
        """Return the events of the sequences that have been due for longest, see ``Inbox``."""
        limit = in_milliseconds(until)
        ready: list[tuple[str, int, tuple[InboxEntry, ...]]] = []
        for entries in self._of(group, partition).values():
            those = [entry for entry in entries if entry.due_at is not None and entry.due_at <= limit]
            if those:
                first = min((entry.due_at or "", entry.position) for entry in those)
                ready.append((*first, tuple(those) if fetching is Fetching.DUE else entries))
        found: list[tuple[InboxEntry, ...]] = []
        for _, _, entries in sorted(ready, key=lambda each: each[:2]):
            if found and sum(map(len, found)) + len(entries) > most:
                break
            found.append(entries if fetching is Fetching.WHOLE else entries[:most])
        return found

    def arranged(self, group: str, partition: Partition, now: datetime, *, each: bool, expiring: bool) -> MemoryInbox:
        """Return the inbox with a due time for each event of a partition, or only the first one of each sequence."""
        sequences = dict(self.sequences)
        for id_, entries in self._of(group, partition).items():
            those = [one._replace(due_at=_arranged(one, now)) for one in entries]
            if not each:
                those = [_waiting(those, now), *(one._replace(due_at=None) for one in those[1:])]
            sequences[group, id_] = tuple(those if expiring else [one._replace(expires_at=None) for one in those])
        return MemoryInbox(sequences)

    def is_stuck(self, group: str, sequence_id: str) -> bool:
        """Return whether an event of a sequence waits for a person."""
        return any(not entry.status.moves for entry in self.sequences.get((group, sequence_id), ()))

    def expired(self, group: str, partition: Partition, now: datetime, most: int) -> tuple[InboxEntry, ...]:
        """Return the first events that have expired, by position."""
        own = (entry for entries in self._of(group, partition).values() for entry in entries)
        over = [entry for entry in own if entry.status_at(now) is InboxStatus.EXPIRED]
        return tuple(sorted(over, key=lambda entry: entry.position)[:most])

    def entries(
        self,
        group: str,
        position: int | None = None,
        most: int | None = None,
        selection: InboxSelection = EVERYTHING,
    ) -> list[InboxEntry]:
        """Return the events of a group that are selected, by sequence and position; or that at a position."""
        own = [
            (hash_of(id_), entry.position, entry)
            for (name, id_), entries in self.sequences.items()
            if name == group
            for entry in entries
            if position in (None, entry.position) and selection.matches(entry)
        ]
        return [entry for _, _, entry in sorted(own)][:most]

    def counts(self, group: str, partition: Partition) -> tuple[tuple[InboxStatus, int], ...]:
        """Return how many events of a partition wait, by what they wait for."""
        now = datetime.now(UTC)
        own = self._of(group, partition).values()
        found = Counter(entry.status_at(now) for entries in own for entry in entries)
        return tuple((status, found[status]) for status in InboxStatus if found[status])

    def changed(self, group: str, change: InboxChange) -> MemoryInbox:
        """Return the inbox after a change of a group's events.

        Raises:
            InboxChangedError: If events are not as they were read.
            InboxFullError: OCQ-601, if more would wait than may.
        """
        sequences = dict(self.sequences)
        if change.done:
            _take_out(sequences, change.done)
        for before, after in change.changed:
            _update(sequences, before, after, change)
        for entry in change.removed:
            _remove(sequences, entry, change)
        for remainder in change.remainders:
            _put_off(sequences, group, remainder)
        for entry in change.added:
            _put_in(sequences, entry, change)
        return MemoryInbox(sequences)

    def without(self, group: str, after: int) -> MemoryInbox:
        """Return the inbox without the events of a group after a position."""
        kept: _Sequences = {}
        for key, entries in self.sequences.items():
            rest = tuple(entry for entry in entries if key[0] != group or entry.position <= after)
            _keep(kept, key, rest)
        return MemoryInbox(kept)

    def _of(self, group: str, partition: Partition) -> dict[str, tuple[InboxEntry, ...]]:
        return {
            id_: entries for (name, id_), entries in self.sequences.items() if name == group and partition.owns(id_)
        }


def _arranged(entry: InboxEntry, now: datetime) -> str | None:
    return in_milliseconds(now) if entry.status.moves and entry.due_at is None else entry.due_at


def _waiting(entries: Sequence[InboxEntry], now: datetime) -> InboxEntry:
    """Return the first event of a sequence, which waits as long as any that has failed and is not due yet."""
    first, *others = entries
    failed = (one.due_at for one in others if one.status is InboxStatus.RETRYING)
    waits = [at for at in (first.due_at, *failed) if at is not None and at > in_milliseconds(now)]
    return first._replace(due_at=max(waits)) if first.status.moves and waits else first


def _take_out(sequences: _Sequences, done: tuple[InboxEntry, ...]) -> None:
    for key, those in groupby(done, key=lambda entry: (entry.group, entry.sequence_id)):
        positions = {entry.position for entry in those}
        entries = sequences.get(key, ())
        found = [entry for entry in entries if entry.position in positions]
        if len(found) != len(positions) or any(entry.status is InboxStatus.PAUSED for entry in found):
            raise InboxChangedError("events in the inbox were changed while they were handled")
        _keep(sequences, key, tuple(entry for entry in entries if entry.position not in positions))


def _remove(sequences: _Sequences, entry: InboxEntry, change: InboxChange) -> None:
    key = (entry.group, entry.sequence_id)
    entries = sequences.get(key, ())
    found = next((one for one in entries if one.position == entry.position), None)
    if found is None or _state(found) != _state(entry):
        raise InboxChangedError("an event in the inbox was changed before it was removed")
    rest = tuple(one for one in entries if one is not found)
    _keep(sequences, key, rest if change.each else _freed(rest, change.next_due))


def _put_off(sequences: _Sequences, group: str, remainder: Remainder) -> None:
    key, until = (group, remainder.sequence_id), remainder.until
    entries = sequences.get(key, ())
    if remainder.due_at is None and all(one.status.moves for one in entries):
        return
    chosen = set(remainder.chosen)
    changed = []
    for index, one in enumerate(entries):
        due_at = one.due_at
        if until is None and chosen:
            due_at = remainder.chosen_at if one.position in chosen else remainder.due_at
        elif until is None:
            due_at = None if index else remainder.due_at
        elif due_at is not None and due_at <= until and one.position not in chosen:
            due_at = remainder.due_at
        changed.append(one._replace(due_at=due_at) if one.status.moves else one)
    _keep(sequences, key, tuple(changed))


def _freed(entries: tuple[InboxEntry, ...], due_at: str) -> tuple[InboxEntry, ...]:
    """Return the events of a sequence, of which the first may be tried, if it is not for a person."""
    if not entries or not entries[0].status.moves or entries[0].due_at is not None:
        return entries
    return (entries[0]._replace(due_at=due_at), *entries[1:])


def _keep(sequences: _Sequences, key: _Key, rest: tuple[InboxEntry, ...]) -> None:
    if rest:
        sequences[key] = rest
    else:
        sequences.pop(key, None)


def _state(entry: InboxEntry) -> tuple[InboxStatus, int, int]:
    return entry.status, entry.attempts, entry.retries


def _is_due_otherwise(found: InboxEntry, read: InboxEntry) -> bool:
    """Return whether the time of an event was changed, not given or taken as those before it have come and gone."""
    return None not in (found.due_at, read.due_at) and found.due_at != read.due_at


def _update(sequences: _Sequences, before: InboxEntry, after: InboxEntry, change: InboxChange) -> None:
    key = (before.group, before.sequence_id)
    entries = sequences.get(key, ())
    index = next((at for at, entry in enumerate(entries) if entry.position == before.position), None)
    if index is None or _state(entries[index]) != _state(before) or _is_due_otherwise(entries[index], before):
        raise InboxChangedError("an event in the inbox was changed while it was handled")
    changed = (*entries[:index], after, *entries[index + 1 :])
    free = after.due_at is None and not change.each
    _keep(sequences, key, _freed(changed, change.next_due) if free else changed)


def _put_in(sequences: _Sequences, entry: InboxEntry, change: InboxChange) -> None:
    key = (entry.group, entry.sequence_id)
    entries = sequences.get(key, ())
    if change.most_of_sequence is not None and len(entries) >= change.most_of_sequence:
        raise too_long(entry, change.most_of_sequence)
    most = change.most_sequences
    if not entries and most is not None and sum(name == entry.group for name, _ in sequences) >= most:
        raise too_many(entry, most)
    waits = not entry.status.moves or (entries and not change.each)
    sequences[key] = (*entries, entry._replace(due_at=None if waits else entry.due_at or entry.parked_at))

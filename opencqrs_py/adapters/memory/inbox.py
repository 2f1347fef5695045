"""The inbox in memory, beside the progress there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime

from opencqrs_py.errors import InboxChangedError, InboxError
from opencqrs_py.model.inbox import InboxChange, InboxEntry, InboxStatus, ParkedSequences
from opencqrs_py.model.partition import Partition, hash_of

_Key = tuple[str, str]
"""Group and sequence id."""


@dataclass(frozen=True)
class MemoryInbox:
    """What waits, by group and sequence, in the order of positions. A change makes another one."""

    sequences: dict[_Key, tuple[InboxEntry, ...]] = field(default_factory=dict)

    def parked(self, group: str, partition: Partition) -> ParkedSequences:
        """Return which sequences of a partition wait."""
        own = self._of(group, partition)
        due = [entries[0].due_at for entries in own.values() if entries[0].due_at is not None]
        return ParkedSequences(frozenset(own), min(due, default=None))

    def due(self, group: str, partition: Partition, now: datetime, most: int) -> tuple[InboxEntry, ...]:
        """Return the first events of the sequence that has been due for longest, as far as they may be tried."""
        until = now.isoformat(timespec="milliseconds")
        firsts = [(first[0].due_at, first[0].position, first) for first in self._of(group, partition).values()]
        ready = sorted(
            (due, position, entries) for due, position, entries in firsts if due is not None and due <= until
        )
        if not ready:
            return ()
        entries = ready[0][2]
        stuck = next((index for index, entry in enumerate(entries) if not entry.status.moves), len(entries))
        return entries[: min(stuck, most)]

    def entries(self, group: str, status: InboxStatus | None) -> list[InboxEntry]:
        """Return the events of a group, by sequence and position; or those with one status."""
        own = sorted((hash_of(key[1]), key, entries) for key, entries in self.sequences.items() if key[0] == group)
        return [entry for _, _, entries in own for entry in entries if status in (None, entry.status)]

    def counts(self, group: str, partition: Partition) -> tuple[tuple[InboxStatus, int], ...]:
        """Return how many events of a partition wait, by what they wait for."""
        found = Counter(entry.status for entries in self._of(group, partition).values() for entry in entries)
        return tuple((status, found[status]) for status in InboxStatus if found[status])

    def changed(self, change: InboxChange) -> MemoryInbox:
        """Return the inbox after a change.

        Raises:
            InboxChangedError: If events are not as they were read.
            InboxError: OCQ-601, if more would wait than may.
        """
        sequences = dict(self.sequences)
        if change.done:
            _take_out(sequences, change.done, change.next_due)
        for before, after in change.changed:
            _update(sequences, before, after, change.next_due)
        if change.removed:
            _remove(sequences, change.removed, change.next_due)
        for entry in change.added:
            _put_in(sequences, entry, change)
        return MemoryInbox(sequences)

    def _of(self, group: str, partition: Partition) -> dict[str, tuple[InboxEntry, ...]]:
        return {
            id_: entries for (name, id_), entries in self.sequences.items() if name == group and partition.owns(id_)
        }


def _take_out(sequences: dict[_Key, tuple[InboxEntry, ...]], done: tuple[InboxEntry, ...], now: str) -> None:
    key = (done[0].group, done[0].sequence_id)
    entries = sequences.get(key, ())
    first, rest = entries[: len(done)], entries[len(done) :]
    as_read = [one.position for one in first] == [one.position for one in done]
    if not as_read or any(one.status is InboxStatus.PAUSED for one in first):
        raise InboxChangedError("events in the inbox were changed while they were handled")
    _keep(sequences, key, rest, now)


def _remove(sequences: dict[_Key, tuple[InboxEntry, ...]], removed: tuple[InboxEntry, ...], now: str) -> None:
    key = (removed[0].group, removed[0].sequence_id)
    known = {entry.position: entry for entry in sequences.get(key, ())}
    for entry in removed:
        found = known.pop(entry.position, None)
        if found is None or _state(found) != _state(entry):
            raise InboxChangedError("an event in the inbox was changed before it was removed")
    _keep(sequences, key, tuple(known.values()), now)


def _keep(sequences: dict[_Key, tuple[InboxEntry, ...]], key: _Key, rest: tuple[InboxEntry, ...], now: str) -> None:
    """Keep the rest of a sequence; its first event may be tried at once, if it is not for a person."""
    if not rest:
        del sequences[key]
        return
    next_one = rest[0]
    if next_one.status.moves and next_one.due_at is None:
        next_one = replace(next_one, due_at=now)
    sequences[key] = (next_one, *rest[1:])


def _state(entry: InboxEntry) -> tuple[InboxStatus, int]:
    return entry.status, entry.attempts


def _update(sequences: dict[_Key, tuple[InboxEntry, ...]], before: InboxEntry, after: InboxEntry, now: str) -> None:
    key = (before.group, before.sequence_id)
    entries = sequences.get(key, ())
    index = next((at for at, entry in enumerate(entries) if entry.position == before.position), None)
    if index is None or _state(entries[index]) != _state(before):
        raise InboxChangedError("an event in the inbox was changed while it was handled")
    _keep(sequences, key, (*entries[:index], after, *entries[index + 1 :]), now)


def _put_in(sequences: dict[_Key, tuple[InboxEntry, ...]], entry: InboxEntry, change: InboxChange) -> None:
    key = (entry.group, entry.sequence_id)
    entries = sequences.get(key, ())
    where = f"group '{entry.group}', event {entry.event_id} at position {entry.position}"
    if len(entries) >= change.most_of_sequence:
        what = f"the inbox is full: {change.most_of_sequence:,} events of sequence {entry.sequence_id!r} wait"
        raise InboxError("OCQ-601", what, where, "retry or skip what is there, or raise park.max-sequence-size")
    if not entries and sum(name == entry.group for name, _ in sequences) >= change.most_sequences:
        what = f"the inbox is full: {change.most_sequences:,} sequences of the group wait"
        raise InboxError("OCQ-601", what, where, "retry or skip what is there, or raise park.max-sequences")
    due = None if entries or not entry.status.moves else entry.due_at or entry.parked_at
    sequences[key] = (*entries, replace(entry, due_at=due))

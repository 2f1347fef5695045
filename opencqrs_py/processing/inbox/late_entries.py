"""Events of the inbox that would be tried too late because their due times come from a clock that was ahead."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice

from opencqrs_py.errors import FencedError, InboxChangedError
from opencqrs_py.model.inbox import EVERYTHING, InboxChange, InboxEntry, InboxSelection, InboxStatus
from opencqrs_py.model.progress import Cursor
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.inbox.parked_entries import named
from opencqrs_py.processing.ports import BackOff, ParkingTracker
from opencqrs_py.processing.recovery import wait_after, waits_of, without_chance

_TRIES = 5  # while people change the same events
_FEW = 100  # sequences that are read one by one
_AT_ONCE = 1_000  # events that are changed in one transaction
_WAITS = 1_000  # of a back-off, among which is its longest one
_LEAST_SECONDS = 1.0  # by which a clock must have been ahead

_Pair = tuple[InboxEntry, InboxEntry]


class LateEntries:
    """Finds the events of a group that wait longer than its back-off allows, and has them tried in time.

    Times are recorded by the clock of the process that tried an event, or put it there. That clock may have been ahead
    of this process's, or set back since: such events would wait longer by the difference.

    Args:
        inbox: The inbox.
        group: Processing group.
        back_off: Waits before the attempts of events that wait.
        each: Whether each event is tried on its own, and does not wait for earlier ones.

    Raises:
        AssemblyError: OCQ-546, if a back-off of the project fails.
    """

    def __init__(self, inbox: ParkingTracker, group: str, back_off: BackOff, *, each: bool) -> None:
        self._inbox = inbox
        self._group = group
        self._back_off = back_off
        self._each = each
        waits = list(islice(waits_of(without_chance(back_off), ""), _WAITS))
        self._first, self._longest = next(iter(waits), 0.0), max(waits, default=0.0)

    def bring_forward(self, cursors: Sequence[Cursor], now: datetime) -> int:
        """Give late events of claimed partitions the due time by this process's clock; return how many."""
        late = self._late(now)
        return sum(self._brought_forward(cursor, late, now) for cursor in cursors) if late else 0

    def _brought_forward(self, cursor: Cursor, late: Sequence[_Pair], now: datetime) -> int:
        done = 0
        for _ in range(_TRIES):
            mine = [pair for pair in late if cursor.partition.owns(pair[0].sequence_id)]
            with suppress(FencedError, InboxChangedError):  # another process has it, or a person changes them
                for start in range(0, len(mine), _AT_ONCE):
                    changed = tuple(mine[start : start + _AT_ONCE])
                    self._change(cursor, InboxChange(in_milliseconds(now), changed=changed, each=self._each))
                    done += len(changed)
                break
            late = self._late(now)
        return done

    def _change(self, cursor: Cursor, change: InboxChange) -> None:
        with self._inbox.unit(self._group, cursor, cursor.stored, fingerprint=cursor.fingerprint, change=change):
            pass

    def _late(self, now: datetime) -> list[_Pair]:
        """Return the events that wait too long, before and after the change."""
        longest, pairs = _after(now, self._longest), list[_Pair]()
        found = self._found(_after(now, self._first), longest)
        sequences = self._sequences(found)
        for entry in found:
            those = [entry] if self._each else sequences.get(entry.sequence_id, [entry])
            failed = [one for one in those if one.status is InboxStatus.RETRYING]
            if failed and (entry.due_at or "") <= longest:
                continue
            wait = max(map(self._wait, failed), default=0.0)
            pairs.append((entry, entry._replace(due_at=in_milliseconds(now + timedelta(seconds=wait)))))
        return pairs

    def _found(self, first: str, longest: str) -> list[InboxEntry]:
        """Return the events that may be late: untried ones, and those that wait longer than any failed one may."""
        pending = InboxSelection(status=InboxStatus.PENDING, due_after=first)
        retrying = InboxSelection(status=InboxStatus.RETRYING, due_after=longest)
        read = ((which, self._inbox.entries(self._group, selection=which)) for which in (pending, retrying))
        return [one for which, entries in read for one in entries if which.matches(one)]

    def _sequences(self, found: Sequence[InboxEntry]) -> dict[str, list[InboxEntry]]:
        """Return all events of the sequences of some: the first one may wait for a later one that has failed."""
        ids = () if self._each else dict.fromkeys(one.sequence_id for one in found)
        sequences: dict[str, list[InboxEntry]] = {id_: [] for id_ in ids}
        which = map(InboxSelection, ids) if len(ids) <= _FEW else (EVERYTHING,)
        for one in (one for each in which for one in self._inbox.entries(self._group, selection=each)):
            if one.sequence_id in sequences:
                sequences[one.sequence_id].append(one)
        return sequences

    def _wait(self, entry: InboxEntry) -> float:
        wait = wait_after(self._back_off, max(0, entry.retries - 1), named(entry))
        return self._longest if wait is None else wait


def _after(now: datetime, seconds: float) -> str:
    """Return the time from which an event counts as late if it may wait for some seconds."""
    return in_milliseconds(now + timedelta(seconds=max(_LEAST_SECONDS, seconds)))

"""The inbox on a SQL database: the table ``opencqrs_inbox``, beside the progress and changed with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from operator import itemgetter
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    bindparam,
    case,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    tuple_,
    update,
)

from opencqrs_py.adapters.sql.connections import FetchedRows
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.inbox_rows import (
    COLUMNS,
    SequenceKey,
    entry_of,
    errors_text,
    id_of,
    key_of,
    milliseconds,
    misfit,
    ms_of,
    row_of,
    time_of,
)
from opencqrs_py.adapters.sql.inbox_statements import Place, statements_of
from opencqrs_py.adapters.sql.tables import INBOX, prepare
from opencqrs_py.errors import InboxChangedError
from opencqrs_py.model.inbox import (
    MOVING,
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
from opencqrs_py.model.naming import storable
from opencqrs_py.model.partition import WHOLE, Partition

_POSITION, _ID = COLUMNS.index("position"), COLUMNS.index("sequence_id")
_FEW = 1_000  # events that enter without a larger cache
_MOST_NAMED = 5_000  # events or sequences in a statement: some databases take no more than 32,767 values
_MOVING = sorted(status.value for status in MOVING)


T = TypeVar("T")


class SqlInbox:
    """Reads and writes the inbox of a database, within transactions that others open."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = database.table(INBOX)
        self._statements = statements_of(database)

    def prepare(self) -> None:
        """Make sure that the table exists."""
        prepare(self._database, INBOX)

    def parked(
        self, connection: Connection, group: str, partitions: Sequence[Partition]
    ) -> dict[Partition, ParkedSequences]:
        """Return which sequences of partitions wait, and the time from which the first of each may be tried."""
        columns = self._table.c
        key = (columns.sequence_hash, columns.sequence_id)
        mine = self._of(group, partitions[0]) if len(partitions) == 1 else columns.group_name == group
        rows = _raw(connection, select(*key, func.min(columns.due_ms)).where(mine).group_by(*key))
        return {partition: _known([row for row in rows if _owns(partition, row[0])]) for partition in partitions}

    def next_due(
        self, connection: Connection, group: str, partitions: Sequence[Partition], *, expiring: bool
    ) -> dict[Partition, str | None]:
        """Return the time from which there is something to do in each partition: an event may be tried, or has expired.

        Expiry is in no index, so all events are read, unless none expires.
        """
        columns, found = self._table.c, dict[Partition, str | None]()
        times = (columns.due_ms, columns.expires_ms) if expiring else (columns.due_ms,)
        for partition in partitions:
            mine = self._of(group, partition)
            firsts = [select(func.min(each)).where(mine & each.is_not(None)) for each in times]
            row = connection.execute(select(*(first.scalar_subquery() for first in firsts))).one()
            found[partition] = time_of(min((ms for ms in row if ms is not None), default=None))
        return found

    def due(
        self, connection: Connection, group: str, partition: Partition, until: datetime, most: int, fetching: Fetching
    ) -> list[tuple[InboxEntry, ...]]:
        """Return the events of the sequences that have been due for longest, see ``Inbox``.

        Raises:
            InboxError: OCQ-617, if hash and id of a sequence do not belong together.
        """
        columns = self._table.c
        is_due = columns.due_ms <= milliseconds(until)
        key = (columns.sequence_hash, columns.sequence_id)
        ordered = select(*key).where(self._of(group, partition) & is_due).order_by(columns.due_ms, columns.position)
        firsts = dict.fromkeys(map(tuple, _raw(connection, ordered.limit(_sequences_of(most)))))
        if not firsts:
            return []
        if (odd := next(filter(None, (misfit(group, key) for key in firsts)), None)) is not None:
            raise odd
        due_ms = milliseconds(until) if fetching is Fetching.DUE else None
        if len(firsts) > 1:
            firsts = self._fitting(connection, group, firsts, most, due_ms)
        if len(firsts) == 1:
            rows = self._rows_of_one(connection, group, next(iter(firsts)), most, due_ms, fetching)
        else:
            rows = [
                row for part in _hashes_of(firsts) for row in self._statements.rows(connection, group, part, due_ms)
            ]
        # Sorted here: a database may walk through all positions to find the rows of a few sequences in order.
        found: dict[str, list[InboxEntry]] = {id_: [] for _, id_ in firsts}
        for row in sorted(rows, key=itemgetter(_POSITION)):
            if (sequence := found.get(row[_ID])) is not None:  # else another one with the same hash
                sequence.append(entry_of(row))
        return [tuple(entries) for entries in found.values() if entries]  # a person may have just removed some

    def _fitting(
        self, connection: Connection, group: str, firsts: Iterable[SequenceKey], most: int, due_ms: int | None
    ) -> dict[SequenceKey, None]:
        """Return the first sequences that have no more events than wanted, by the counts of hashes; in any case one.

        They are counted in batches, since many of them will not fit.
        """
        chosen: dict[SequenceKey, None] = {}
        waiting, total, step = list(firsts), 0, most // 16 + 1
        while waiting:
            asked, waiting = waiting[:step], waiting[step:]
            counted = (self._statements.sizes(connection, group, part, due_ms) for part in _hashes_of(asked))
            sizes = {row[0]: row[1] for rows in counted for row in rows}
            for sequence in asked:
                total += sizes.get(sequence[0], 0)
                if chosen and total > most:
                    return chosen
                chosen[sequence] = None
            step = max(1, (most - total) * len(chosen) // max(1, total) + 1)
        return chosen

    def _rows_of_one(
        self,
        connection: Connection,
        group: str,
        sequence: SequenceKey,
        most: int,
        due_ms: int | None,
        fetching: Fetching,
    ) -> FetchedRows:
        """Return the rows of a sequence; the first ones only, unless all are requested."""
        columns = self._table.c
        rows = select(self._table).where(self._in(group, sequence))
        if due_ms is not None:
            rows = rows.where(columns.due_ms <= due_ms)
        if fetching is not Fetching.WHOLE:
            rows = rows.order_by(columns.position).limit(most)
        return _raw(connection, rows)

    def arrange(
        self,
        connection: Connection,
        group: str,
        partitions: Sequence[Partition],
        now: datetime,
        *,
        each: bool,
        expiring: bool,
    ) -> None:
        """Give each event its own due time, or only the first one of each sequence."""
        columns = self._table.c
        mine = or_(*(self._of(group, partition) for partition in partitions))
        if not expiring:
            lasting = update(self._table).where(mine & columns.expires_ms.is_not(None)).values(expires_ms=null())
            connection.execute(lasting)
        if each:
            untimed = mine & columns.status.in_(_MOVING) & columns.due_ms.is_(None)
            connection.execute(update(self._table).where(untimed).values(due_ms=milliseconds(now)))
        else:
            self._arrange_firsts(connection, group, mine, milliseconds(now))

    def _arrange_firsts(self, connection: Connection, group: str, mine: ColumnElement[bool], now_ms: int) -> None:
        """Give only the first event of each sequence a due time; it waits as long as any that failed would have."""
        columns = self._table.c
        key = (columns.sequence_hash, columns.sequence_id)
        lowest = select(*key, func.min(columns.position)).where(mine).group_by(*key)
        firsts = {(row[0], row[1]): row[2] for row in connection.execute(lowest)}
        having = select(*key, columns.position, columns.due_ms, columns.status).where(
            mine & columns.due_ms.is_not(None)
        )
        timed = {((row[0], row[1]), row[2]): (row[3], row[4]) for row in connection.execute(having)}
        late = sorted((key[0], position) for key, position in timed if position > firsts[key])
        this = (columns.group_name == group) & (columns.sequence_hash == bindparam("hash"))
        this &= columns.position == bindparam("at")
        moving = columns.status.in_(_MOVING)
        if waits := _waits_for_later(timed, firsts, now_ms):
            sooner = this & moving & (columns.due_ms.is_(None) | (columns.due_ms < bindparam("due")))
            longer = update(self._table).where(sooner).values(due_ms=bindparam("due"))
            connection.execute(longer, [{"hash": key[0], "at": firsts[key], "due": due} for key, due in waits])
        if late:
            those = update(self._table).where(this).values(due_ms=null())
            connection.execute(those, [{"hash": hash_, "at": position} for hash_, position in late])
        first = sorted(row for row in firsts.items() if row not in timed)
        for part in _in_parts(first):
            waiting = self._at(group, part) & moving & columns.due_ms.is_(None)
            connection.execute(update(self._table).where(waiting).values(due_ms=now_ms))

    def is_stuck(self, connection: Connection, group: str, sequence_id: str) -> bool:
        """Return whether an event of a sequence waits for a person."""
        columns = self._table.c
        those = self._in(group, key_of(sequence_id)) & columns.status.not_in(_MOVING)
        return connection.execute(select(columns.position).where(those).limit(1)).first() is not None

    def expired(
        self, connection: Connection, group: str, partition: Partition, now: datetime, most: int
    ) -> tuple[InboxEntry, ...]:
        """Return the first events that have expired, by position."""
        columns = self._table.c
        over = self._of(group, partition) & (columns.expires_ms <= milliseconds(now))
        rows = connection.execute(select(self._table).where(over).order_by(columns.position).limit(most))
        return tuple(map(entry_of, rows.all()))

    def entries(
        self, connection: Connection, group: str, position: int | None, most: int | None, selection: InboxSelection
    ) -> list[InboxEntry]:
        """Return the events of a group that are selected, by sequence and position; or that at a position."""
        columns = self._table.c
        wanted = columns.group_name == group
        if position is not None:
            wanted &= columns.position == position
        if selection.sequence_id is not None:
            wanted &= self._in(group, key_of(selection.sequence_id))
        if selection.event_id is not None:
            wanted &= columns.event_id == storable(selection.event_id)
        if selection.status is InboxStatus.EXPIRED:
            wanted &= columns.expires_ms.is_not(None)
        elif selection.status is not None:
            wanted &= columns.status == selection.status.value
        if selection.due_after is not None:
            wanted &= columns.due_ms > ms_of(selection.due_after)
        if selection.after is not None:
            hash_, after = selection.after
            same = (columns.sequence_hash == hash_) & (columns.position > after)
            wanted &= (columns.sequence_hash >= hash_) & ((columns.sequence_hash > hash_) | same)
        ordered = select(self._table).where(wanted).order_by(columns.sequence_hash, columns.position).limit(most)
        return [entry_of(row) for row in connection.execute(ordered).all()]

    def has_events(self, connection: Connection, group: str) -> bool:
        """Return whether events of a group wait."""
        found = select(self._table.c.position).where(self._table.c.group_name == group).limit(1)
        return connection.execute(found).first() is not None

    def newest(self, connection: Connection, group: str) -> int:
        """Return the highest position of a group's waiting events, 0 if there are none."""
        columns = self._table.c
        found = connection.execute(select(func.max(columns.position)).where(columns.group_name == group)).scalar()
        return found or 0

    def forget(self, connection: Connection, group: str, after: int, partition: Partition = WHOLE) -> int:
        """Drop the events of a partition after a position, which it reads again; return how many there were."""
        those = self._of(group, partition) & (self._table.c.position > after)
        return connection.execute(delete(self._table).where(those)).rowcount

    def never_handled(self, connection: Connection, group: str, after: int) -> list[tuple[int, int]]:
        """Return the hashes of the sequences, and the positions, of waiting events that were never handled before."""
        columns = self._table.c
        those = (columns.group_name == group) & (columns.position > after) & columns.replaying.is_(None)
        rows = connection.execute(select(columns.sequence_hash, columns.position).where(those))
        return [(row[0], row[1]) for row in rows]

    def replays_wait(self, connection: Connection, group: str, partition: Partition) -> bool:
        """Return whether events of a partition that are handled again wait for anything but a person."""
        columns = self._table.c
        those = self._of(group, partition) & columns.replaying.is_not(None) & columns.status.in_(_MOVING)
        return connection.execute(select(columns.position).where(those).limit(1)).first() is not None

    def counts(self, now: datetime) -> Select[Any]:
        """Ask how many events wait: group, 0, hash of the sequence, what they wait for, count."""
        columns = self._table.c
        status = case((columns.expires_ms <= milliseconds(now), InboxStatus.EXPIRED.value), else_=columns.status)
        named = (columns.group_name, literal(0), columns.sequence_hash, status)
        return select(*named, func.count()).group_by(columns.group_name, columns.sequence_hash, status)

    def check(self, connection: Connection, group: str, change: InboxChange) -> None:
        """Raise what ``apply`` would: before handlers are called, after which the change is made.

        The transaction holds the progress of the partition, so no other one changes its events in the meantime.

        Raises:
            InboxChangedError: If events are not as they were read.
            InboxFullError: OCQ-601, if more events would wait than allowed.
        """
        counted = (self._statements.count(connection, group, places) for places in _places_of(change.done))
        if sum(counted) != len(change.done):
            raise InboxChangedError("events in the inbox were changed before they were handled")
        as_read = [(self._as_read(group, before), 1) for before, _ in change.changed]
        as_read += [(self._all_as_read(group, entries), len(entries)) for entries in _in_parts(change.removed)]
        for those, count in as_read:
            if connection.execute(select(func.count()).select_from(self._table).where(those)).scalar() != count:
                raise InboxChangedError("events in the inbox were changed before they were changed again")
        if change.added and (change.most_sequences is not None or change.most_of_sequence is not None):
            self._rows_in(connection, group, change)

    def apply(self, connection: Connection, group: str, change: InboxChange) -> None:
        """Make a change.

        Raises:
            InboxChangedError: If events are not as they were read.
            InboxFullError: OCQ-601, if more events would wait than allowed.
        """
        if change.done:
            self._take_out(connection, group, change.done)
        for before, after in change.changed:
            self._update(connection, group, before, after)
            if after.due_at is None and not change.each:
                self._free_firsts(connection, group, [key_of(after.sequence_id)], change.next_due)
        if change.removed:
            self._remove(connection, group, change)
        for remainder in change.remainders:
            self._put_off(connection, group, remainder)
        if change.added:
            self._put_in(connection, group, change)

    def _take_out(self, connection: Connection, group: str, done: Sequence[InboxEntry]) -> None:
        deleted = (self._statements.delete(connection, group, places) for places in _places_of(done))
        if sum(deleted) != len(done):
            raise InboxChangedError("events in the inbox were changed while they were handled")

    def _put_off(self, connection: Connection, group: str, remainder: Remainder) -> None:
        """Have what remains of a sequence tried from a time on, as far as it does not wait for a person."""
        if remainder.due_at is None and not self.is_stuck(connection, group, remainder.sequence_id):
            return
        columns, sequence = self._table.c, key_of(remainder.sequence_id)
        those = self._in(group, sequence) & columns.status.in_(_MOVING)
        due_ms: Any = literal(ms_of(remainder.due_at), BigInteger)
        if remainder.chosen:
            self._put_off_others(connection, those, remainder)
            return
        if remainder.until is not None:
            those &= columns.due_ms <= ms_of(remainder.until)
        elif (first := self._first(connection, group, sequence)) is not None:
            those &= (columns.position == first) | columns.due_ms.is_not(None)
            due_ms = case((columns.position == first, due_ms), else_=null())
        else:
            return
        connection.execute(update(self._table).where(those).values(due_ms=due_ms))

    def _put_off_others(self, connection: Connection, those: ColumnElement[bool], remainder: Remainder) -> None:
        """Postpone events except the chosen ones; a statement names at most as many of these as a database accepts."""
        position, due_ms = self._table.c.position, self._table.c.due_ms
        later: Any = literal(ms_of(remainder.due_at), BigInteger)
        ordered, after = sorted(remainder.chosen), 0
        for part in _in_parts(ordered):
            here = those & (position > after)
            if (after := part[-1]) != ordered[-1]:
                here &= position <= after
            if remainder.until is not None:
                here &= (due_ms <= ms_of(remainder.until)) & position.not_in(part)
                new = later
            else:
                new = case((position.in_(part), literal(ms_of(remainder.chosen_at), BigInteger)), else_=later)
            connection.execute(update(self._table).where(here).values(due_ms=new))

    def _free_firsts(self, connection: Connection, group: str, sequences: Sequence[SequenceKey], due: str) -> None:
        """Have the first events of sequences tried from a time on, those that have none and are not for a person."""
        columns, wanted = self._table.c, set(sequences)
        key = (columns.sequence_hash, columns.sequence_id)
        left = select(*key, func.min(columns.position)).where(self._among(group, sequences)).group_by(*key)
        firsts = [((row[0], row[1]), row[2]) for row in connection.execute(left) if (row[0], row[1]) in wanted]
        if firsts:
            those = self._at(group, firsts)
            those &= columns.status.in_(_MOVING) & columns.due_ms.is_(None)
            connection.execute(update(self._table).where(those).values(due_ms=ms_of(due)))

    def _first(self, connection: Connection, group: str, sequence: SequenceKey) -> int | None:
        left = select(func.min(self._table.c.position)).where(self._in(group, sequence))
        first: int | None = connection.execute(left).scalar()
        return first

    def _update(self, connection: Connection, group: str, before: InboxEntry, after: InboxEntry) -> None:
        changed = {
            "status": after.status.value,
            "attempts": after.attempts,
            "retries": after.retries,
            "due_ms": ms_of(after.due_at),
            "errors": errors_text(after.errors),
        }
        as_read = self._as_read(group, before)
        if connection.execute(update(self._table).where(as_read).values(**changed)).rowcount != 1:
            raise InboxChangedError("an event in the inbox was changed while it was handled")

    def _remove(self, connection: Connection, group: str, change: InboxChange) -> None:
        for entries in _in_parts(change.removed):
            if connection.execute(delete(self._table).where(self._all_as_read(group, entries))).rowcount != len(
                entries
            ):
                raise InboxChangedError("an event in the inbox was changed before it was removed")
        if not change.each:
            sequences = list(dict.fromkeys(key_of(entry.sequence_id) for entry in change.removed))
            for part in _in_parts(sequences):
                self._free_firsts(connection, group, part, change.next_due)

    def _put_in(self, connection: Connection, group: str, change: InboxChange) -> None:
        with self._database.dialect.bulk_loading(connection) if len(change.added) > _FEW else nullcontext():
            self._statements.insert(connection, self._rows_in(connection, group, change))

    def _rows_in(self, connection: Connection, group: str, change: InboxChange) -> list[tuple[Any, ...]]:
        """Return the rows of events that come in; raises OCQ-601, if more events would wait than allowed."""
        keys = [key_of(entry.sequence_id) for entry in change.added]
        sizes = dict[SequenceKey, int]()
        if change.most_of_sequence is not None or change.most_sequences is not None:
            sizes = self._sizes(connection, group, set(keys))
        elif not change.each:
            sizes = dict.fromkeys(self._waiting(connection, group, set(keys)), 1)
        rows, new = [], list[InboxEntry]()
        for entry, sequence in zip(change.added, keys, strict=True):
            if sequence not in sizes:
                new.append(entry)
            size = sizes[sequence] = sizes.get(sequence, 0) + 1
            if change.most_of_sequence is not None and size > change.most_of_sequence:
                raise too_long(entry, change.most_of_sequence)
            rows.append(row_of(entry, sequence, first=change.each or size == 1))
        most = change.most_sequences
        if new and most is not None and (room := max(0, most - self._sequences(connection, group))) < len(new):
            raise too_many(new[room], most)
        return rows

    def _sizes(self, connection: Connection, group: str, sequences: Iterable[SequenceKey]) -> dict[SequenceKey, int]:
        """Return how many events of sequences wait, of those with the same hashes, too."""
        counted = (self._statements.sizes_by_id(connection, group, part) for part in _hashes_of(sequences))
        return {(row[0], row[1]): row[2] for rows in counted for row in rows}

    def _waiting(self, connection: Connection, group: str, sequences: Collection[SequenceKey]) -> set[SequenceKey]:
        """Return the sequences of which events wait. Of each hash one row is read, however many there are."""
        first = self._statements.first_ids(connection, group, {hash_ for hash_, _ in sequences})
        found = {key for key in sequences if first.get(key[0]) == key[1]}
        others = [key for key in sequences if key[0] in first and key not in found]  # others with the same hash wait
        return found.union(self._sizes(connection, group, others)) if others else found

    def _sequences(self, connection: Connection, group: str) -> int:
        columns = self._table.c
        key = (columns.sequence_hash, columns.sequence_id)
        each = select(*key).where(columns.group_name == group).distinct().subquery()
        return int(connection.execute(select(func.count()).select_from(each)).scalar_one())

    def _of(self, group: str, partition: Partition) -> ColumnElement[bool]:
        columns = self._table.c
        mine = columns.group_name == group
        if partition.modulus > 1:
            mine &= columns.sequence_hash % partition.modulus == partition.residue
        return mine

    def _as_read(self, group: str, entry: InboxEntry) -> ColumnElement[bool]:
        """Return the condition for the event of an entry that is unchanged, with its time, since it was read.

        Events get a time, or lose it, as those before them come and go.
        """
        columns = self._table.c
        this = self._in(group, key_of(entry.sequence_id)) & (columns.position == entry.position)
        same = (columns.status == entry.status.value) & (columns.attempts == entry.attempts)
        same &= columns.retries == entry.retries
        if entry.due_at is not None:
            same &= columns.due_ms.is_(None) | (columns.due_ms == ms_of(entry.due_at))
        return this & same

    def _all_as_read(self, group: str, entries: Sequence[InboxEntry]) -> ColumnElement[bool]:
        """Return the condition for the events of entries with the same status and attempts as when they were read."""
        columns = self._table.c
        rows: dict[tuple[str, int, int], list[tuple[SequenceKey, int]]] = {}
        for entry in entries:
            known = (entry.status.value, entry.attempts, entry.retries)
            rows.setdefault(known, []).append((key_of(entry.sequence_id), entry.position))
        state = tuple_(columns.status, columns.attempts, columns.retries)
        return or_(*(self._at(group, those) & (state == tuple_(*known)) for known, those in rows.items()))

    def _among(self, group: str, sequences: Iterable[SequenceKey]) -> ColumnElement[bool]:
        """Return the condition for events of sequences, and of others with the same hash."""
        columns = self._table.c
        return (columns.group_name == group) & columns.sequence_hash.in_(sorted({hash_ for hash_, _ in sequences}))

    def _at(self, group: str, rows: Iterable[tuple[SequenceKey, int]]) -> ColumnElement[bool]:
        """Return the condition for rows at positions of sequences, and of others with the same hash there.

        The index is queried by position only: otherwise a database might search each hash at each position.
        """
        columns, pairs = self._table.c, [(position, hash_) for (hash_, _), position in rows]
        if self._statements.finds_pairs:
            return (columns.group_name == group) & tuple_(columns.position, columns.sequence_hash).in_(pairs)
        here = (columns.group_name == group) & columns.position.in_([position for position, _ in pairs])
        return here & tuple_(columns.position, columns.sequence_hash + 0).in_(pairs)

    def _in(self, group: str, sequence: SequenceKey) -> ColumnElement[bool]:
        columns, (hash_, id_) = self._table.c, sequence
        return (columns.group_name == group) & (columns.sequence_hash == hash_) & (columns.sequence_id == id_)


def _in_parts(those: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield parts that one statement may name."""
    for start in range(0, len(those), _MOST_NAMED):
        yield those[start : start + _MOST_NAMED]


def _places_of(entries: Sequence[InboxEntry]) -> Iterator[Sequence[Place]]:
    """Yield where the rows of entries are, as many as one statement may name."""
    return _in_parts([(entry.position, key_of(entry.sequence_id)[0]) for entry in entries])


def _hashes_of(sequences: Iterable[SequenceKey]) -> Iterator[Sequence[int]]:
    """Yield the hashes of sequences, each once, as many as one statement may name."""
    return _in_parts(list(dict.fromkeys(hash_ for hash_, _ in sequences)))


def _waits_for_later(
    timed: Mapping[tuple[SequenceKey, int], tuple[int, str]], firsts: Mapping[SequenceKey, int], now_ms: int
) -> list[tuple[SequenceKey, int]]:
    """Return until when sequences wait for events after their first ones that have failed and are not due yet."""
    waits = dict[SequenceKey, int]()
    for (key, position), (due_ms, status) in timed.items():
        if position > firsts[key] and status == InboxStatus.RETRYING.value and due_ms > now_ms:
            waits[key] = max(due_ms, waits.get(key, 0))
    return sorted(waits.items())


def _owns(partition: Partition, hash_: int) -> bool:
    return hash_ % partition.modulus == partition.residue


def _known(rows: Sequence[Any]) -> ParkedSequences:
    due = min((row[2] for row in rows if row[2] is not None), default=None)
    return ParkedSequences(frozenset(id_of(row[1]) for row in rows), time_of(due))


def _sequences_of(most: int) -> int:
    """Return how many sequences to read for a number of events: most have several."""
    return most // 4 + 1


def _raw(connection: Connection, asked: Select[Any]) -> FetchedRows:
    """Return the driver's rows, for statements with so many that SQLAlchemy's overhead would matter."""
    cursor = connection.execute(asked).cursor
    return () if cursor is None else cursor.fetchall()

"""The inbox on a SQL database: the table ``opencqrs_inbox``, beside the progress and changed with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, func, literal, select, update

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.tables import INBOX, prepare
from opencqrs_py.errors import InboxChangedError, InboxError
from opencqrs_py.model.inbox import AttemptError, InboxChange, InboxEntry, InboxStatus, ParkedSequences
from opencqrs_py.model.partition import Partition, hash_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_ERROR_LENGTH, _LINES_LENGTH = 1_000, 8_000  # characters that are kept of an error, and of the lines it comes from
_moment = partial(datetime.isoformat, timespec="milliseconds")

_Sequence = tuple[int, str]
"""Hash and id of a sequence, as they are stored."""


class SqlInbox:
    """Reads and writes the inbox of a database, within transactions that others open."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = database.table(INBOX)

    def prepare(self) -> None:
        """See that the table is there."""
        prepare(self._database, INBOX)

    def parked(
        self, connection: Connection, group: str, partitions: Sequence[Partition]
    ) -> dict[Partition, ParkedSequences]:
        """Return which sequences of partitions wait, and from when on the first of each may be tried."""
        columns = self._table.c
        key = (columns.sequence_hash, columns.sequence_id)
        asked = select(*key, func.min(columns.due_ms)).where(columns.group_name == group).group_by(*key)
        rows = connection.execute(asked).all()
        return {partition: _known([row for row in rows if _owns(partition, row[0])]) for partition in partitions}

    def due(
        self, connection: Connection, group: str, partition: Partition, now: datetime, most: int
    ) -> tuple[InboxEntry, ...]:
        """Return the first events of the sequence that has been due for longest, as far as they may be tried."""
        columns = self._table.c
        first = (
            select(columns.sequence_hash, columns.sequence_id)
            .where(self._of(group, partition) & (columns.due_ms <= _ms(now)))
            .order_by(columns.due_ms, columns.position)
            .limit(1)
        )
        found = connection.execute(first).first()
        if found is None:
            return ()
        entries = []
        whole = select(self._table).where(self._in(group, tuple(found))).order_by(columns.position).limit(most)
        for row in connection.execute(whole).mappings():
            entry = _entry(row)
            if not entry.status.moves:
                break
            entries.append(entry)
        return tuple(entries)

    def entries(self, connection: Connection, group: str, status: InboxStatus | None) -> list[InboxEntry]:
        """Return the events of a group, by sequence and position; or those with one status."""
        columns = self._table.c
        wanted = columns.group_name == group
        if status is not None:
            wanted &= columns.status == status.value
        ordered = select(self._table).where(wanted).order_by(columns.sequence_hash, columns.position)
        return [_entry(row) for row in connection.execute(ordered).mappings()]

    def forget(self, connection: Connection, group: str, after: int) -> None:
        """Drop the events of a group after a position: it has no progress any more, and reads them again."""
        columns = self._table.c
        connection.execute(delete(self._table).where((columns.group_name == group) & (columns.position > after)))

    @property
    def counts(self) -> Select[Any]:
        """Asks how many events wait: group, 0, hash of the sequence, what they wait for, count."""
        columns = self._table.c
        key = (columns.group_name, columns.sequence_hash, columns.status)
        named = (columns.group_name, literal(0), columns.sequence_hash, columns.status)
        return select(*named, func.count()).group_by(*key)

    def apply(self, connection: Connection, group: str, change: InboxChange) -> None:
        """Make a change.

        Raises:
            InboxChangedError: If events are not as they were read.
            InboxError: OCQ-601, if more would wait than may.
        """
        if change.done:
            self._take_out(connection, group, change)
        for before, after in change.changed:
            self._update(connection, group, before, after)
            if after.due_at is None:
                self._free_first(connection, group, after, change.next_due)
        if change.removed:
            self._remove(connection, group, change)
        if change.added:
            self._put_in(connection, group, change)

    def _take_out(self, connection: Connection, group: str, change: InboxChange) -> None:
        columns, done, sequence = self._table.c, change.done, _sequence(change.done[0])
        first_ones = self._in(group, sequence) & (columns.position <= done[-1].position)
        as_read = first_ones & (columns.status != InboxStatus.PAUSED.value)
        taken_out = connection.execute(delete(self._table).where(as_read)).rowcount
        first = self._first(connection, group, sequence)
        if taken_out != len(done) or (first is not None and first < done[-1].position):
            raise InboxChangedError("events in the inbox were changed while they were handled")
        if first is not None:
            self._free(connection, group, sequence, first, change.next_due)

    def _free_first(self, connection: Connection, group: str, entry: InboxEntry, due: str) -> None:
        """Have the first event of an entry's sequence tried from a time on, if it has none and is not for a person."""
        sequence = _sequence(entry)
        if (first := self._first(connection, group, sequence)) is not None:
            self._free(connection, group, sequence, first, due)

    def _first(self, connection: Connection, group: str, sequence: _Sequence) -> int | None:
        left = select(func.min(self._table.c.position)).where(self._in(group, sequence))
        first: int | None = connection.execute(left).scalar()
        return first

    def _free(self, connection: Connection, group: str, sequence: _Sequence, position: int, due: str) -> None:
        """Have the event that is the first of a sequence now tried from a time on, if it is not for a person."""
        columns = self._table.c
        moves = columns.status.in_([status.value for status in InboxStatus if status.moves])
        first = self._in(group, sequence) & (columns.position == position) & moves & columns.due_ms.is_(None)
        connection.execute(update(self._table).where(first).values(due_ms=_ms_of(due)))

    def _update(self, connection: Connection, group: str, before: InboxEntry, after: InboxEntry) -> None:
        changed = {
            "status": after.status.value,
            "attempts": after.attempts,
            "retries": after.retries,
            "due_ms": _ms_of(after.due_at),
            "errors": _written(after.errors),
        }
        as_read = self._as_read(group, before)
        if connection.execute(update(self._table).where(as_read).values(**changed)).rowcount != 1:
            raise InboxChangedError("an event in the inbox was changed while it was handled")

    def _remove(self, connection: Connection, group: str, change: InboxChange) -> None:
        for entry in change.removed:
            if connection.execute(delete(self._table).where(self._as_read(group, entry))).rowcount != 1:
                raise InboxChangedError("an event in the inbox was changed before it was removed")
        self._free_first(connection, group, change.removed[0], change.next_due)

    def _put_in(self, connection: Connection, group: str, change: InboxChange) -> None:
        sizes = self._sizes(connection, group, {_sequence(entry)[0] for entry in change.added})
        rows, new = [], 0
        for entry in change.added:
            sequence = _sequence(entry)
            new += sequence not in sizes
            size = sizes[sequence] = sizes.get(sequence, 0) + 1
            if size > change.most_of_sequence:
                raise _full(
                    entry, f"{change.most_of_sequence:,} events of sequence {entry.sequence_id!r} wait", "-size"
                )
            rows.append(_row(entry, first=size == 1))
        if new and self._sequences(connection, group) + new > change.most_sequences:
            raise _full(change.added[-1], f"{change.most_sequences:,} sequences of the group wait", "s")
        connection.execute(self._table.insert(), rows)

    def _sizes(self, connection: Connection, group: str, hashes: Iterable[int]) -> dict[_Sequence, int]:
        columns = self._table.c
        key = (columns.sequence_hash, columns.sequence_id)
        these = (columns.group_name == group) & columns.sequence_hash.in_(sorted(hashes))
        counted = select(*key, func.count()).where(these).group_by(*key)
        return {(row[0], row[1]): row[2] for row in connection.execute(counted)}

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
        columns = self._table.c
        this = self._in(group, _sequence(entry)) & (columns.position == entry.position)
        return this & (columns.status == entry.status.value) & (columns.attempts == entry.attempts)

    def _in(self, group: str, sequence: _Sequence) -> ColumnElement[bool]:
        columns, (hash_, id_) = self._table.c, sequence
        return (columns.group_name == group) & (columns.sequence_hash == hash_) & (columns.sequence_id == id_)


def _owns(partition: Partition, hash_: int) -> bool:
    return hash_ % partition.modulus == partition.residue


def _known(rows: Sequence[Any]) -> ParkedSequences:
    due = min((row[2] for row in rows if row[2] is not None), default=None)
    return ParkedSequences(frozenset(json.loads(row[1]) for row in rows), _time_of(due))


def _full(entry: InboxEntry, what: str, setting: str) -> InboxError:
    where = f"group '{entry.group}', event {entry.event_id} at position {entry.position}"
    fix = f"look at opencqrs inbox list --group {entry.group}; retry or skip what is there, or raise park.max-sequence"
    return InboxError("OCQ-601", f"the inbox is full: {what}", where, fix + setting)


def _sequence(entry: InboxEntry) -> _Sequence:
    return hash_of(entry.sequence_id), json.dumps(entry.sequence_id)


def _row(entry: InboxEntry, *, first: bool) -> dict[str, Any]:
    hash_, id_ = _sequence(entry)
    due = (_ms_of(entry.due_at) or _ms_of(entry.parked_at)) if entry.status.moves else None
    return {
        "group_name": entry.group,
        "position": entry.position,
        "sequence_hash": hash_,
        "sequence_id": id_,
        "event_id": storable(entry.event_id),
        "event_source": storable(entry.event_source),
        "subject": storable(entry.subject),
        "event_type": storable(entry.event_type),
        "status": entry.status.value,
        "parked_at": entry.parked_at,
        "attempts": entry.attempts,
        "retries": entry.retries,
        "due_ms": due if first else None,
        "errors": _written(entry.errors),
    }


def _entry(row: Any) -> InboxEntry:
    as_they_are = ("position", "event_id", "event_source", "subject", "event_type", "parked_at", "attempts", "retries")
    return InboxEntry(
        group=row["group_name"],
        sequence_id=json.loads(row["sequence_id"]),
        status=InboxStatus(row["status"]),
        due_at=_time_of(row["due_ms"]),
        errors=tuple(AttemptError(**one) for one in json.loads(row["errors"])),
        **{name: row[name] for name in as_they_are},
    )


def _written(errors: Iterable[AttemptError]) -> str:
    """Return errors as JSON in ASCII, which every database takes, whatever they contain."""
    return json.dumps([asdict(one) for one in map(_short, errors)])


def _short(error: AttemptError) -> AttemptError:
    return AttemptError(error.at, error.error[:_ERROR_LENGTH], error.lines[-_LINES_LENGTH:])


def storable(text: str, length: int | None = None) -> str:
    """Return the text without what a database refuses: U+0000 and halves of surrogate pairs."""
    return text[:length].encode(errors="replace").decode().replace("\0", "?")


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def _ms_of(text: str | None) -> int | None:
    return None if text is None else _ms(datetime.fromisoformat(text))


def _time_of(ms: int | None) -> str | None:
    return None if ms is None else _moment(_EPOCH + ms * _MILLISECOND)

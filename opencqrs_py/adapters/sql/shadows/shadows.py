"""Shadows: second tables of a group, with their own progress, beside the live ones, until both are swapped."""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects.faults import Fault
from opencqrs_py.adapters.sql.group_records import SqlGroupRecords
from opencqrs_py.adapters.sql.shadows.comparison import Comparison
from opencqrs_py.adapters.sql.shadows.contents import has_rows
from opencqrs_py.adapters.sql.shadows.guards import is_ours
from opencqrs_py.adapters.sql.shadows.kept_rows import KEPT
from opencqrs_py.adapters.sql.shadows.rebuild_records import SqlRebuildRecords, ended_elsewhere
from opencqrs_py.adapters.sql.shadows.swaps import (
    BusyError,
    Swap,
    Swapped,
    built_record,
    changed_meanwhile,
    filled_since,
    nothing_to_swap,
    refused_by_database,
    swapped_record,
    undone_record,
)
from opencqrs_py.adapters.sql.shadows.urls import place_of
from opencqrs_py.adapters.sql.structure import Triggers, parts_of, structure_of, text_of
from opencqrs_py.adapters.sql.tables import REBUILDS, prepare
from opencqrs_py.errors import RebuildError, WaitTimedOutError
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.naming import listed
from opencqrs_py.model.rebuild import Fate, RebuildPhase, RebuildRecord, ShadowTable, SwappedRelation
from opencqrs_py.model.times import in_milliseconds

K = TypeVar("K")
V = TypeVar("V")

_DEADLOCKS = 10  # attempts to drop a shadow that another process fills
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two attempts to get the locks of a swap


class Shadows(ABC):
    """Keeps the shadows of groups beside the live tables of a database, and swaps them.

    Args:
        database: The database of the live tables and of the progress, opened by its URL.

    Attributes:
        rebuilds: The records of the rebuilds.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.rebuilds = SqlRebuildRecords(database)
        self._groups = SqlGroupRecords(database)

    # The build

    def structure_of(self, tables: Collection[str], connection: Connection | None = None) -> dict[str, str]:
        """Return the structure of live tables, as texts by which two moments can be compared; of those that are there.

        Args:
            tables: Their names.
            connection: The connection to use, as within a transaction that has locked them; ``None``: a new one.
        """
        if connection is None:
            with self._database.reading() as reading:
                return self.structure_of(tables, reading)
        found, triggers = structure_of(connection, tables), self._triggers(connection, tables)
        return found | {f"triggers of table {name}": text_of(each) for name, each in triggers.items()}

    def _triggers(self, connection: Connection, tables: Collection[str]) -> dict[str, Triggers]:
        """Return the triggers of tables where a connection begins, by table; empty where triggers are refused."""
        del connection, tables
        return {}

    def _require_same_structure(self, connection: Connection, swap: Swap, before: RebuildRecord) -> None:
        """Refuse with OCQ-630 to swap tables whose structure was copied before it was changed; they are locked now."""
        if changed := before.changed(self.structure_of(sorted(swap.named), connection)):
            raise changed_meanwhile(swap.group, changed)

    def open(
        self,
        group: str,
        handlers: str,
        tables: Sequence[str],
        shared: Sequence[str],
        conditions: Mapping[str, str],
    ) -> RebuildRecord:
        """Make the place of a shadow, with the tables that are not made by ``@on_start``.

        Args:
            group: Processing group.
            handlers: Fingerprint of the handlers that are to fill it.
            tables: Live tables to be made in it with the same structure, and no rows.
            shared: Live tables that it shows.
            conditions: What else the tables depend on, recorded with it.

        Raises:
            RebuildError: OCQ-630, if it cannot be made, or another process makes or drops it at the same time.
        """
        self._prepare()
        known = self.rebuilds.last(group)
        refused = known.refused if known is not None else ()
        at = in_milliseconds(datetime.now(UTC))
        begun = RebuildRecord(
            group, RebuildPhase.BUILDING, handlers, refused, shared=tuple(shared), started_at=at, conditions=conditions
        )
        self._require_tables(group, tables, shared)
        self._make_place(begun, tables, shared)
        return begun

    def _require_tables(self, group: str, tables: Collection[str], shared: Collection[str]) -> None:
        """Refuse with OCQ-630 tables of settings that do not exist, or are named in both."""
        if missing := sorted({*tables, *shared} - set(self._live_names())):
            what = f"there is no table {listed(missing)}, which settings name"
            raise RebuildError("OCQ-630", what, f"group {group}", "fix rebuild.tables and rebuild.shared-tables")
        if both := sorted({*tables} & {*shared}):
            what = f"{listed(both)} is in rebuild.tables and in rebuild.shared-tables"
            fix = "keep it in the first if handlers of the group write to it, in the second if they only read it"
            raise RebuildError("OCQ-630", what, f"group {group}", fix)

    def url(self, record: RebuildRecord, kind: str = "shadow") -> str:
        """Return the URL of the shadow, or with ``old`` that of the old tables, with its password."""
        return self._url(self._place(kind, record.group), record.shared)

    @abstractmethod
    def _url(self, place: str, shared: Sequence[str] = ()) -> str:
        """Return the URL of a place that shows some live tables, with its password."""

    def exists(self, group: str, kind: str = "shadow") -> bool:
        """Return whether the place of a shadow, or of old tables, exists."""
        return self._is_there(self._place(kind, group))

    @abstractmethod
    def _is_there(self, place: str) -> bool:
        """Return whether a place exists."""

    @abstractmethod
    def look(self, group: str, named: Collection[str], shared: Collection[str]) -> list[ShadowTable]:
        """Return the contents of the shadow, by name, with their fates; ``named`` is swapped in any case."""

    @abstractmethod
    def refusals(self, group: str, tables: Sequence[ShadowTable]) -> list[str]:
        """Return why these cannot be swapped; empty if they can."""

    def lacking(self, record: RebuildRecord, tables: Collection[str], kind: str = "shadow") -> list[str]:
        """Return what live tables have and those that are to replace them do not: columns, indexes, checks.

        Args:
            record: The rebuild.
            tables: Their names; those that only the live place has are left out.
            kind: Where the others are: in the ``shadow``, or in the place of the ``old`` ones.
        """
        others, live = self._beside(record, kind, lambda connection: parts_of(connection, tables))
        there = {table for table, *_ in others}
        return sorted(name for key, name in live.items() if key not in others and key[0] in there)

    def triggers_lacking(self, record: RebuildRecord, tables: Collection[str], kind: str = "shadow") -> list[str]:
        """Return the firing triggers of live tables that those of another place lack. Args are those of ``lacking``."""

        def look(connection: Connection) -> dict[str, Triggers]:
            return self._triggers(connection, [*filter(inspect(connection).has_table, tables)])

        others, live = self._beside(record, kind, look)
        return sorted(
            f"trigger {name} of {table}"
            for table, known in others.items()
            for name, trigger in live.get(table, {}).items()
            if trigger.fires and name not in known
        )

    def _beside(
        self, record: RebuildRecord, kind: str, look: Callable[[Connection], dict[K, V]]
    ) -> tuple[dict[K, V], dict[K, V]]:
        """Return what ``look`` finds in another place, nothing if there is no such place, and in the live one."""
        others: dict[K, V] = {}
        if self.exists(record.group, kind):
            url = self.url(replace(record, shared=()), kind)
            with closing(Database(url)) as database, database.reading() as connection:
                others = look(connection)
        with self._database.reading() as connection:
            return others, look(connection)

    def compare(self, group: str, examples: int) -> Comparison:
        """Return how the rows of the tables that would be swapped differ from the live ones, at one moment."""
        record = self.rebuilds.last(group)
        tables = self.look(group, (), record.shared if record is not None else ())
        made = [each for each in tables if each.is_table]
        found = self._compared(group, [each.name for each in made if each.fate is Fate.SWAPPED], examples)
        not_made = sorted({*self.live_tables()} - {each.name for each in tables})
        with self._database.reading() as connection:
            left = (each.name for each in made if each.fate is Fate.LEFT)
            unwritten = tuple(name for name in left if has_rows(connection, name))
        return replace(found, unwritten=unwritten, not_made=tuple(not_made))

    @abstractmethod
    def _compared(self, group: str, tables: Sequence[str], examples: int) -> Comparison:
        """Return how the rows of tables differ."""

    def drop_shadow(self, group: str) -> None:
        """Drop the shadow, with its progress, or what a swap has left of it; harmless if it does not exist.

        Another process may be filling it, whose transactions take the same locks in another order.
        """
        for attempt in range(1, _DEADLOCKS + 1):
            try:
                return self._drop_shadow(group)
            except DBAPIError as error:
                if attempt == _DEADLOCKS or self._database.dialect.fault_of(error) is not Fault.DEADLOCK:
                    raise
        return None

    @abstractmethod
    def _drop_shadow(self, group: str) -> None:
        """Likewise, at once. The drop is recorded before it happens."""

    @abstractmethod
    def _make_place(self, begun: RebuildRecord, tables: Sequence[str], shared: Sequence[str]) -> None:
        """Make the place, and record the build."""

    def _begin_after(self, begun: RebuildRecord, *, replaces_builds: bool = False) -> None:
        """Record a build whose place was made in another transaction, unless another process has dropped it since."""
        with self._database.writing() as connection:
            self.rebuilds.begin(connection, begun, replaces_builds=replaces_builds)
        if not self.exists(begun.group):  # an abort that found no record to end
            with self._database.writing() as connection:
                now = self.rebuilds.find(connection, begun.group)
                if now is not None and now.has_shadow and now.is_same(begun):  # none was begun since
                    self.rebuilds.write(connection, replace(begun, phase=RebuildPhase.ENDED))
            raise ended_elsewhere(begun.group)

    @abstractmethod
    def _live_names(self) -> list[str]:
        """Return the names of the live tables and views."""

    # The swap

    def swap(self, swap: Swap, timeout: float) -> Swapped:
        """Swap shadow and live tables, with the progress of the group; the old ones are kept.

        The live group's partitions are fenced off first, and the shadow handles what they have handled.

        Raises:
            RebuildError: OCQ-630, if no handler has written to a table of the shadow, the partitions of both differ, or
                tables have changed so that they cannot be swapped, or the database refuses it, for example because
                another table's index has the name.
            WaitTimedOutError: OCQ-536, if others have held locks on the tables for too long.
        """
        self._prepare()
        return self._patiently(swap.group, lambda: self._swap(swap), timeout)

    def undo(self, group: str, timeout: float, fills: Collection[str] = ()) -> Swapped:
        """Put the old tables back with their progress, and drop those that were built. Raises as ``swap``.

        Args:
            group: Processing group.
            timeout: Longest time in seconds to get the locks.
            fills: The live tables that the group fills. What the swap has left alone, and was empty then, must be.
        """
        self._prepare()
        return self._patiently(group, lambda: self._undo(group, fills), timeout)

    def settled(self, group: str) -> RebuildRecord | None:
        """Complete what a killed process left half-done, and return the last rebuild of a group."""
        self.complete(group)
        known = self.rebuilds.last(group)
        if known is not None and known.phase in (RebuildPhase.SWAPPED, RebuildPhase.ENDED):
            self.drop_shadow(group)
            if known.phase is RebuildPhase.ENDED:
                self.drop_old(group)
        return self.rebuilds.last(group)

    def complete(self, group: str) -> None:  # noqa: B027 one database needs it
        """Complete an interrupted swap, if there is one."""

    @abstractmethod
    def drop_old(self, group: str) -> None:
        """Drop the tables that a swap has kept."""

    @abstractmethod
    def _swap(self, swap: Swap) -> Swapped:
        """Swap at once; raises ``BusyError`` if it has to be tried again."""

    @abstractmethod
    def _undo(self, group: str, fills: Collection[str]) -> Swapped:
        """Likewise."""

    def live_tables(self) -> list[str]:
        """Return the names of the live tables, except our own."""
        with self._database.reading() as connection:
            return [name for name in inspect(connection).get_table_names() if not is_ours(name)]

    @staticmethod
    def _swapping(
        connection: Connection, swap: Swap, before: RebuildRecord, tables: Sequence[ShadowTable]
    ) -> RebuildRecord:
        """Return the record with what is swapped, and with the tables that the group fills, have rows and stay.

        Raises:
            RebuildError: OCQ-630, if there are tables but none is swapped, although events were handled; a view has no
                rows of its own.
        """
        moved = [each for each in tables if each.is_moved]
        stays = any(each.is_table and each.fate is Fate.LEFT for each in tables)
        if swap.handled and stays and not any(each.is_table for each in moved):
            raise nothing_to_swap(swap.group)
        left = sorted(swap.fills - {each.name for each in moved})
        filled = tuple(name for name in left if has_rows(connection, name))
        relations = tuple(SwappedRelation(each.kind, each.name) for each in moved)
        return replace(before, relations=relations, filled=filled)

    @staticmethod
    def _require_empty(connection: Connection, before: RebuildRecord, fills: Collection[str]) -> None:
        """Refuse with OCQ-630 to have a group handle events again whose rows in other tables stay."""
        if before.filled is None:  # by a version without it
            return
        known = {*before.filled, *(each.name for each in before.relations)}
        if found := [name for name in sorted({*fills} - known) if has_rows(connection, name)]:
            raise filled_since(before.group, found)

    def _patiently(self, group: str, attempt: Callable[[], Swapped], timeout: float) -> Swapped:
        until, pause = time.monotonic() + timeout, _FIRST_PAUSE
        while True:
            try:
                return attempt()
            except BusyError as error:
                busy = error
            except (DBAPIError, sqlite3.Error) as error:  # SQLite's tables are copied without SQLAlchemy
                if self._database.dialect.fault_of(error) is not Fault.LOCK_TIMEOUT:
                    if self._database.is_outage(error):
                        raise
                    raise refused_by_database(group, error) from error
                busy = BusyError("other programs hold locks on its tables")
            if time.monotonic() + pause >= until:
                what = f"the tables could not be swapped in {timeout:g} s: {busy.reason}"
                fix = f"nothing was changed; {busy.fix}, and run the same command again"
                raise WaitTimedOutError("OCQ-536", what, fix=fix)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    # Shared by both directions

    def _prepare(self) -> None:
        for table in (*KEPT, REBUILDS):
            prepare(self._database, table)

    def _place(self, kind: str, group: str) -> str:
        """Return the schema, database or file of the ``shadow`` or ``old`` tables."""
        return place_of(kind, group, self._live_place)

    @property
    @abstractmethod
    def _live_place(self) -> str:
        """The schema, database or file of the live tables."""

    def _record_swap(
        self, connection: Connection, swap: Swap, known: GroupRecord | None, before: RebuildRecord
    ) -> None:
        """Record who has built the live tables; ``known`` and ``before`` are the records before the swap."""
        self._groups.write(connection, built_record(known, swap), self._groups.find(connection, swap.group))
        self.rebuilds.write(connection, swapped_record(swap, known, before))

    def _record_undo(self, connection: Connection, before: RebuildRecord) -> None:
        """Record that the old tables, with their progress, are live again; ``before`` is the record before that."""
        self.rebuilds.write(connection, undone_record(before, self._groups.find(connection, before.group)))

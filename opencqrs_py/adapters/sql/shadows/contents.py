"""The contents of a shadow: our own tables in it, and which of the others a swap moves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import dataclass

from sqlalchemy import Connection, column, delete, inspect, literal, select, table
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.bulk.staging import STAGES
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects.dialect import Dialect
from opencqrs_py.adapters.sql.dialects.faults import UNKNOWN_NAMES
from opencqrs_py.adapters.sql.shadows.guards import SEEDED, WRITTEN, WRITTEN_COLUMNS, is_ours
from opencqrs_py.adapters.sql.shadows.kept_rows import KEPT
from opencqrs_py.adapters.sql.tables import NAMES, REBUILDS, prepare
from opencqrs_py.model.rebuild import Fate, ShadowTable


def prepare_place(url: str) -> None:
    """Create our tables in an existing place."""
    with closing(Database(url)) as database:
        for each in (*KEPT, REBUILDS):
            prepare(database, each)


def note_seeded(url: str) -> None:
    """Record the tables of a shadow that have rows before the first call of a handler."""
    with closing(Database(url)) as database, database.writing() as connection:
        names = [name for name in inspect(connection).get_table_names() if not is_ours(name)]
        found = [name for name in names if has_rows(connection, name)]
        connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {SEEDED} {WRITTEN_COLUMNS}")
        seeded = table(SEEDED, column("name"))
        connection.execute(delete(seeded))
        if found:
            connection.execute(seeded.insert(), [{"name": name} for name in found])


def misnamed(url: str, shared: Collection[str]) -> list[str]:
    """Return the tables that a project has made in a shadow by names like ours, so that they are not swapped.

    The stages of processes that were killed are ours.
    """
    with closing(Database(url)) as database, database.reading() as connection:
        looking = inspect(connection)
        found = {*looking.get_table_names(), *looking.get_view_names()}
    theirs = found - NAMES - {WRITTEN, SEEDED, *shared}
    return sorted(name for name in theirs if is_ours(name) and not name.startswith(STAGES))


def has_rows(connection: Connection, name: str) -> bool:
    """Return whether a table has any."""
    return connection.execute(select(literal(1)).select_from(table(name)).limit(1)).first() is not None


def written_in(
    dialect: Dialect, connection: Connection, prefix: str, tables: Iterable[str], is_filled: Callable[[str], bool]
) -> set[str]:
    """Return the tables of a shadow that handlers have written to.

    A guard may not see each write, as of a routine on MariaDB; so rows are taken as a sign of one, except in tables in
    which ``@on_start`` has put some.
    """
    written, seeded = (_names_in(dialect, connection, f"{prefix}{names}") for names in (WRITTEN, SEEDED))
    return written | {name for name in tables if name not in seeded and is_filled(name)}


def _names_in(dialect: Dialect, connection: Connection, names: str) -> set[str]:
    """Return what a table of a shadow names, which need not be there. What cannot be read is not taken for empty."""
    try:
        return set(connection.exec_driver_sql(f"SELECT name FROM {names}").scalars())  # noqa: S608
    except DBAPIError as error:
        if dialect.fault_of(error) not in UNKNOWN_NAMES:
            raise
        return set()


@dataclass(frozen=True, slots=True)
class Fates:
    """The names in a shadow by what a swap does with them.

    A table to which nothing was written, but which is there live, may be another group's: ``create_all`` makes them
    all. So it stays.

    Attributes:
        live: Those that are there live, too.
        moved: Those that are swapped, or added.
        named: Those of ``rebuild.tables``.
        shared: Those of ``rebuild.shared-tables``.
    """

    live: Collection[str]
    moved: Collection[str]
    named: Collection[str]
    shared: Collection[str] = ()

    def of(self, name: str, kind: str) -> ShadowTable:
        """Return a table, view and so on with its fate."""
        if name in self.shared:
            return shared_table(name)
        fate = Fate.LEFT if name not in self.moved else Fate.SWAPPED if name in self.live else Fate.ADDED
        return ShadowTable(name, kind, fate, "rebuild.tables" if name in self.named else "made by @on_start")


def shared_table(name: str) -> ShadowTable:
    """Return a live table that the shadow shows."""
    return ShadowTable(name, "view", Fate.SHARED, "rebuild.shared-tables")

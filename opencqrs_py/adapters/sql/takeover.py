"""Taking a partition over from a process that has a transaction open: a bounded wait, then its session is ended.

A stopped process (SIGSTOP, a paused container, a laptop asleep) keeps its row locked for as long as the server believes
that it lives. Ending its session loses nothing: its chunk is rolled back, and handled again by the new owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.outages import (
    LOCK_NOT_AVAILABLE,
    LOCK_WAIT_TIMEOUT,
    DatabaseAwayError,
    DatabaseBusyError,
    server_error,
    sql_state,
)
from opencqrs_py.adapters.sql.schema import PROGRESS
from opencqrs_py.adapters.sql.turns import take_row
from opencqrs_py.model.partition import Partition, hash_of

__all__ = ["TAKE_OVER_SECONDS", "end_holders", "held_too_long", "lock_claim", "waited_in_vain"]

TAKE_OVER_SECONDS = 10.0
"""How long a claim waits for the transaction of the owner before, on every database."""

_CLAIMS = 0x0C9125 << 32  # our advisory locks on PostgreSQL, one for each hash of a group; any number would do

_ROW = f"FROM {{}}{PROGRESS.name} WHERE group_name = %s AND modulus = %s AND residue = %s"
# A row that is locked names the transaction that has locked it; that transaction holds a lock on its own number.
_HOLDER_ON_POSTGRESQL = f"""
SELECT locks.pid FROM {{}}{PROGRESS.name} progress
JOIN pg_locks locks ON locks.locktype = 'transactionid' AND locks.granted AND locks.transactionid = progress.xmax
WHERE group_name = %s AND modulus = %s AND residue = %s AND locks.pid <> pg_backend_pid()
"""  # noqa: S608 our own names


def lock_claim(database: Database, connection: Connection, group: str, partitions: Sequence[Partition]) -> None:
    """Let claims of a group follow each other, and lock the rows of the partitions, waiting for at most 10 seconds.

    On SQLite the transaction holds the write lock already.

    Raises:
        DBAPIError: If a lock was waited for in vain; see ``waited_in_vain``.
    """
    match database.kind:
        case "postgresql":
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{TAKE_OVER_SECONDS * 1_000:.0f}ms'")
            connection.execute(select(func.pg_advisory_xact_lock(_claim(database, group))))
            wait = ""
        case "mariadb":
            take_row(database, connection, PROGRESS.name, TAKE_OVER_SECONDS)
            wait = f" WAIT {ceil(TAKE_OVER_SECONDS)}"
        case _:
            return
    for partition in sorted(partitions):
        row = (group, partition.modulus, partition.residue)
        connection.exec_driver_sql(f"SELECT epoch {_ROW.format(database.prefix)} FOR UPDATE{wait}", row).all()


def waited_in_vain(error: BaseException) -> bool:
    """Return whether a lock was not to be had in time."""
    return isinstance(error, DatabaseBusyError) or (
        isinstance(error, DBAPIError)
        and (sql_state(error) == LOCK_NOT_AVAILABLE or server_error(error) == LOCK_WAIT_TIMEOUT)
    )


def end_holders(database: Database, group: str, partitions: Sequence[Partition]) -> bool:
    """End the sessions whose open transactions hold the partitions; return whether there was one.

    On SQLite nothing can end the transaction of another process.

    Raises:
        DBAPIError: If the database's user may not end a session, or the database is unavailable.
    """
    if database.kind == "sqlite":
        return False
    find, end = {
        "postgresql": (_holder_on_postgresql, "SELECT pg_terminate_backend(%s)"),
        "mariadb": (_holder_on_mariadb, "KILL CONNECTION %s"),
    }[database.kind]
    with database.reading() as connection:
        rows = [(group, partition.modulus, partition.residue) for partition in partitions]
        holders = {holder for row in rows if (holder := find(database, connection, row)) is not None}
        for holder in holders:
            connection.exec_driver_sql(end, (holder,))
    return bool(holders)


def held_too_long(database: Database, group: str, partitions: Sequence[Partition]) -> DatabaseAwayError:
    """Return the error that a claim was waited for in vain, naming who holds the partitions."""
    columns = database.table(PROGRESS).c
    chosen = (columns.group_name == group) & (columns.owner != "")
    asked = select(columns.modulus, columns.residue, columns.owner, columns.updated_at).where(chosen)
    with database.reading() as connection:
        rows: list[Any] = [r for r in connection.execute(asked) if Partition(r.modulus, r.residue) in partitions]
    owners = dict.fromkeys(row.owner for row in rows)
    who = f"its owner {' and '.join(owners)}" if owners else "another process"
    what = (
        f"group '{group}' cannot be taken over: {who} (host:process:claim), or another writer, has had a transaction "
        f"open for more than {TAKE_OVER_SECONDS:g} seconds"
    )
    return DatabaseBusyError("OCQ-305", what, database.label, "let it finish, or end that process")


def _claim(database: Database, group: str) -> int:
    """Return the key of the advisory lock of a group's claims."""
    return _CLAIMS + hash_of(group if database.schema is None else f"{database.schema}.{group}")


def _holder_on_postgresql(database: Database, connection: Connection, row: tuple[Any, ...]) -> int | None:
    pid: int | None = connection.exec_driver_sql(_HOLDER_ON_POSTGRESQL.format(database.prefix), row).scalar()
    return pid


def _holder_on_mariadb(database: Database, connection: Connection, row: tuple[Any, ...]) -> int | None:
    """Read what an open transaction has written into the row, and not committed: the number of its connection."""
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    number: int | None = connection.exec_driver_sql(
        f"SELECT connection_id {_ROW.format(database.prefix)}", row
    ).scalar()
    return number

"""MariaDB: how its connections are set up, how its transactions begin, and which statements end them."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event

from opencqrs_py.adapters.sql.pooling import WRITING

__all__ = ["begin_on_mariadb_engine_of_others", "commits_by_itself", "in_transaction", "mariadb_engine"]

_IN_TRANSACTION = 1  # a bit of the status that the server sends with each answer: SERVER_STATUS_IN_TRANS

# A stricter isolation would go on showing what was there before the wait for another writer.
_ISOLATION = "TRANSACTION ISOLATION LEVEL READ COMMITTED"
_BEGIN = "START TRANSACTION"

_COMMENTS = re.compile(r"(?:\s+|/\*(?!!).*?\*/|(?:#|--\s)[^\n]*\n)*", re.DOTALL)
_COMMITS = re.compile(
    r"(?:ALTER|ANALYZE|BEGIN|COMMIT|CREATE(?!\s+TEMPORARY)|DROP(?!\s+TEMPORARY)|GRANT|LOCK|OPTIMIZE|RENAME|REPAIR|REVOKE|"
    r"ROLLBACK(?!\s+(?:WORK\s+)?TO)|SET\s+(?:SESSION\s+|@@(?:SESSION\.)?)?AUTOCOMMIT|START|TRUNCATE|UNLOCK)\b",
    re.IGNORECASE,
)


def mariadb_engine(url: URL) -> Engine:
    """Return an engine whose transactions begin where we say.

    By itself the driver would begin one with whatever statement comes first, and again after each statement that
    commits by itself; nobody would notice that the transaction is another one.
    """
    engine = create_engine(url, isolation_level="AUTOCOMMIT")

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION {_ISOLATION}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if not connection.get_execution_options().get("opencqrs_reading", False):
            connection.exec_driver_sql(_BEGIN)

    return engine


def begin_on_mariadb_engine_of_others(connection: Connection) -> None:
    """Begin a transaction of ours on an engine that somebody else has made; theirs begin as they like."""
    if connection.info.pop(WRITING, False):
        connection.exec_driver_sql(f"SET {_ISOLATION}")  # of the next transaction only
        connection.exec_driver_sql(_BEGIN)


def in_transaction(driver: Any) -> bool | None:
    """Say whether a connection of the driver was in a transaction after its last statement; ``None`` on other ones."""
    status = getattr(driver, "server_status", None)
    return None if status is None else bool(status & _IN_TRANSACTION)


def commits_by_itself(statement: str) -> bool:
    """Say whether a statement ends the transaction that it runs in."""
    start = _COMMENTS.match(statement)
    return _COMMITS.match(statement, start.end() if start else 0) is not None

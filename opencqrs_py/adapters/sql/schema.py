"""The tables of this package. How an older version's table becomes today's stands in ``versions``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text, UniqueConstraint

__all__ = ["EVENTS", "ON_MARIADB", "PROGRESS", "SCHEMA", "SKIPPED", "in_schema"]

_metadata = MetaData()

ON_MARIADB: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_nopad_bin"))
}
"""Tables of MariaDB: with transactions, and texts that are compared character by character, spaces at the end too."""

# MariaDB's primary keys hold texts of a limited length only.
_Table = Text().with_variant(String(64), "mysql", "mariadb")
_Group = Text().with_variant(String(500), "mysql", "mariadb")

# Subjects and types are compared byte by byte, whatever the database's language.
_Exact = Text().with_variant(Text(collation="C"), "postgresql")

SCHEMA = Table(
    "opencqrs_schema",
    _metadata,
    Column("table_name", _Table, primary_key=True),
    Column("version", Integer, nullable=False),
    **ON_MARIADB,
)

EVENTS = Table(
    "opencqrs_events",
    _metadata,
    Column("position", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("subject", _Exact, nullable=False),
    Column("type", _Exact, nullable=False),
    Column("time", Text),  # as it was sent
    Column("content_type", Text, nullable=False),
    Column("payload", Text),  # the data as JSON
    Column("extensions", Text),  # all other attributes as one JSON object
    Column("time_us", BigInteger),  # ``time`` in microseconds since 1970, to search by
    UniqueConstraint("source", "id", name="opencqrs_events_source_id"),
    sqlite_autoincrement=True,  # positions are never given twice, even after the newest event was deleted
)

PROGRESS = Table(
    "opencqrs_progress",
    _metadata,
    Column("group_name", _Group, primary_key=True),
    Column("modulus", BigInteger, primary_key=True, autoincrement=False),
    Column("residue", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),  # grows with each claim; fences out earlier owners
    Column("owner", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("next_attempt_at", Text),
    Column("updated_at", Text, nullable=False),
    Column("log_fingerprint", Text),  # the newest event at or below the position; NULL: not known, and not checked
    Column("failure", Text),  # of the event that holds the partition up, as JSON
    Column("connection_id", BigInteger),  # MariaDB: of the transaction that is open, for who takes over
    **ON_MARIADB,
)

SKIPPED = Table(
    "opencqrs_skipped",
    _metadata,
    Column("group_name", _Group, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("modulus", BigInteger, primary_key=True, autoincrement=False),
    Column("residue", BigInteger, primary_key=True, autoincrement=False),
    Column("event_id", Text, nullable=False),
    Column("event_source", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("skipped_at", Text, nullable=False),
    **ON_MARIADB,
)


@lru_cache
def in_schema(table: Table, schema: str | None) -> Table:
    """Return one of our tables as it stands in a schema, ``None`` for the one that connections begin in."""
    return table if schema is None else table.to_metadata(MetaData(), schema=schema)

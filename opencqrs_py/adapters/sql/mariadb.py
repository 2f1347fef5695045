"""MariaDB's part in appends: the table, the turn and the insert, as statements."""

from __future__ import annotations

from hashlib import sha256

from sqlalchemy import Connection

from opencqrs_py.adapters.sql.postgresql import WRITTEN
from opencqrs_py.adapters.sql.schema import EVENTS, ON_MARIADB, SCHEMA

__all__ = [
    "IN_TURN",
    "create_events",
    "identity_of",
    "insert_new",
    "is_ordered",
    "ordered",
    "select_known",
    "serialised",
]

_BYTES_OF_ID, _BYTES_OF_HASH = 20, 16
_HASH = "UNHEX(SHA2(CONCAT(CHAR_LENGTH(source), ':', source, id), 256))"
_OPTIONS = " ".join(
    f"{option.upper()}={ON_MARIADB[f'mariadb_{option}']}" for option in ("engine", "charset", "collate")
)

_CREATE_EVENTS = f"""
CREATE TABLE IF NOT EXISTS {{table}} (
    position BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id MEDIUMTEXT NOT NULL, source MEDIUMTEXT NOT NULL, subject MEDIUMTEXT NOT NULL, type MEDIUMTEXT NOT NULL,
    time MEDIUMTEXT, content_type MEDIUMTEXT NOT NULL, payload LONGTEXT, extensions LONGTEXT, time_us BIGINT,
    identity BINARY(32) AS ({_HASH}) PERSISTENT INVISIBLE,
    UNIQUE KEY {EVENTS.name}_source_id (identity)
) {_OPTIONS}
"""

IN_TURN = "@opencqrs_turn"
"""A variable of the connection that says that it has the turn already."""

_ORDERED = f"""
ALTER TABLE {{table}} MODIFY identity VARBINARY({_BYTES_OF_ID + _BYTES_OF_HASH})
AS (CONCAT(LEFT(CAST(id AS BINARY), {_BYTES_OF_ID}), LEFT({_HASH}, {_BYTES_OF_HASH}))) PERSISTENT INVISIBLE
"""
_LONGEST = f"""
SELECT character_octet_length FROM information_schema.columns
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = '{EVENTS.name}' AND column_name = 'identity'
"""  # noqa: S608 our own names


def create_events(prefix: str) -> str:
    """Return the statement that makes the table of events.

    What tells an event from all others is too long for an index here, so a hash of it stands there. Its column does not
    show up in ``SELECT *``.

    Args:
        prefix: What stands before the names of our tables, as for all that follow.
    """
    return _CREATE_EVENTS.format(table=prefix + EVENTS.name)


def serialised(prefix: str) -> tuple[str, ...]:
    """Return what lets all who add events take turns.

    Our own appends have the turn already; the trigger is for other programs. It fires before the first position is
    given, and the row that it locks stays locked until the commit, so that positions become visible in their order.
    """
    return (
        f"""
CREATE OR REPLACE TRIGGER {prefix}{EVENTS.name}_in_turn BEFORE INSERT ON {prefix}{EVENTS.name} FOR EACH ROW
BEGIN
    DECLARE turn INT;
    IF {IN_TURN} IS NULL THEN
        SELECT version INTO turn FROM {prefix}{SCHEMA.name} WHERE table_name = '{EVENTS.name}' FOR UPDATE;
    END IF;
END
""",  # noqa: S608 our own names
    )


def ordered(prefix: str) -> str:
    """Return what puts the beginning of the id before its hash, so that ids in order come to the same end of the index.

    Hashes alone go to a page anywhere in it, and once it is larger than the server's memory (with 128 MiB after a
    million events) each append reads pages and writes them away.
    """
    return _ORDERED.format(table=prefix + EVENTS.name)


def is_ordered(connection: Connection, schema: str | None) -> bool:
    """Return whether the beginning of the id stands in the column ``identity``."""
    longest: int = connection.exec_driver_sql(_LONGEST, (schema,)).scalar_one()
    return longest == _BYTES_OF_ID + _BYTES_OF_HASH


def identity_of(source: str, event_id: str) -> bytes:
    """Return what tells an event from all others, as the column ``identity`` holds it."""
    hashed = sha256(f"{len(source)}:{source}{event_id}".encode()).digest()
    return event_id.encode()[:_BYTES_OF_ID] + hashed[:_BYTES_OF_HASH]


def select_known(prefix: str, count: int) -> str:
    """Return the statement that finds those of ``count`` identities that are there."""
    return f"SELECT identity FROM {prefix}{EVENTS.name} WHERE identity IN ({', '.join(['%s'] * count)})"  # noqa: S608 our own names


def insert_new(prefix: str, count: int) -> str:
    """Return the statement that adds ``count`` rows in their order."""
    row = f"({', '.join(['%s'] * len(WRITTEN))})"
    table = prefix + EVENTS.name
    return f"INSERT INTO {table} ({', '.join(WRITTEN)}) VALUES {', '.join([row] * count)}"  # noqa: S608 our own names

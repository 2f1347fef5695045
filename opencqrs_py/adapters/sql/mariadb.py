"""MariaDB's part in appends: the table, the turn and the insert, as statements."""

from __future__ import annotations

from hashlib import sha256

from opencqrs_py.adapters.sql.postgresql import WRITTEN
from opencqrs_py.adapters.sql.schema import EVENTS, ON_MARIADB, SCHEMA

__all__ = ["CREATE_EVENTS", "IN_TURN", "SERIALISED", "identity_of", "insert_new", "select_known"]

_TABLE = EVENTS.name
_OPTIONS = " ".join(
    f"{option.upper()}={ON_MARIADB[f'mariadb_{option}']}" for option in ("engine", "charset", "collate")
)

CREATE_EVENTS = f"""
CREATE TABLE IF NOT EXISTS {_TABLE} (
    position BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id MEDIUMTEXT NOT NULL, source MEDIUMTEXT NOT NULL, subject MEDIUMTEXT NOT NULL, type MEDIUMTEXT NOT NULL,
    time MEDIUMTEXT, content_type MEDIUMTEXT NOT NULL, payload LONGTEXT, extensions LONGTEXT, time_us BIGINT,
    identity BINARY(32) AS (UNHEX(SHA2(CONCAT(CHAR_LENGTH(source), ':', source, id), 256))) PERSISTENT INVISIBLE,
    UNIQUE KEY {_TABLE}_source_id (identity)
) {_OPTIONS}
"""
"""Makes the table. What tells an event from all others is too long for an index here, so a hash of it stands there.

Its column does not show up in ``SELECT *``.
"""

IN_TURN = "@opencqrs_turn"
"""A variable of the connection that says that it has the turn already."""

SERIALISED = (
    f"""
CREATE OR REPLACE TRIGGER {_TABLE}_in_turn BEFORE INSERT ON {_TABLE} FOR EACH ROW
BEGIN
    DECLARE turn INT;
    IF {IN_TURN} IS NULL THEN
        SELECT version INTO turn FROM {SCHEMA.name} WHERE table_name = '{_TABLE}' FOR UPDATE;
    END IF;
END
""",  # noqa: S608 our own names
)
"""What lets all who add events take turns.

Our own appends have the turn already; the trigger is for other programs. It fires before the first position is given,
and the row that it locks stays locked until the commit, so that positions become visible in their order.
"""


def identity_of(source: str, event_id: str) -> bytes:
    """Return the hash of an event's source and id, as the column ``identity`` holds it."""
    return sha256(f"{len(source)}:{source}{event_id}".encode()).digest()


def select_known(count: int) -> str:
    """Return the statement that finds those of ``count`` identities that are there."""
    return f"SELECT identity FROM {_TABLE} WHERE identity IN ({', '.join(['%s'] * count)})"  # noqa: S608 our own names


def insert_new(count: int) -> str:
    """Return the statement that adds ``count`` rows in their order."""
    row = f"({', '.join(['%s'] * len(WRITTEN))})"
    return f"INSERT INTO {_TABLE} ({', '.join(WRITTEN)}) VALUES {', '.join([row] * count)}"  # noqa: S608 our own names

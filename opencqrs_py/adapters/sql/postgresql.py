"""PostgreSQL's part in appends: the turn, the insert and the word to those who listen, as statements and functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

from opencqrs_py.adapters.sql.schema import EVENTS

__all__ = ["APPENDS", "WRITTEN", "Statements", "lock_in", "statements_in"]

APPENDS = 0x0C9126 << 32
"""The advisory lock of those who add events, to a log that is in no schema of its own."""

WRITTEN = ("id", "source", "subject", "type", "time", "content_type", "payload", "extensions", "time_us")
"""The columns that an append fills."""

_NAMES = ", ".join(WRITTEN)
_COLUMNS = ", ".join(f"{name} {'bigint' if name == 'time_us' else 'text'}" for name in WRITTEN)


def lock_in(schema: str | None, lock: int) -> int:
    """Return the key of an advisory lock in a schema: keys are the whole database's, and each schema may hold a log."""
    return lock if schema is None else lock + crc32(schema.encode())


@dataclass(frozen=True, slots=True)
class Statements:
    """What is sent for the log of one schema.

    Attributes:
        channel: Where those who listen are told that events are being added. A channel is the whole database's, and
            each of its schemas may hold a log. So an append tells the newest position and, behind a space, the table's
            number; the trigger tells nothing but that there is news.
        table_number: The number that tells the table from those of the same name in other schemas.
        insert_all: Adds rows and tells the newest position; within a turn.
        append_at_once: Adds rows in a turn of its own, with the time that it waits for it; a statement that is a whole
            transaction. Returns how many were added, -1 if transactions are so strict that they do not see what was
            written during the wait.
        serialised: What lets all who add events take turns, and tells those who listen. Our own appends do both
            themselves; the trigger is for other programs. The turn is taken before the first position is given and kept
            until the commit, so that positions become visible in their order. The lock is one that, unlike a lock on
            the table, lets the server look after the table meanwhile.
    """

    channel: str
    table_number: str
    insert_all: str
    append_at_once: str
    serialised: tuple[str, ...]


@lru_cache
def statements_in(schema: str | None) -> Statements:
    """Return the statements for the log of a schema, ``None`` for the one that connections begin in."""
    prefix = "" if schema is None else f'"{schema}".'
    table, lock = prefix + EVENTS.name, lock_in(schema, APPENDS)
    channel = EVENTS.name if schema is None else f"{EVENTS.name}_{crc32(schema.encode()):08x}"
    number = f"'{table}'::regclass::oid"
    return Statements(
        channel=channel,
        table_number=number,
        insert_all=f"""{_fresh(table, "%s::json")}
SELECT count(*), pg_notify('{channel}', max(position) || ' ' || {number}) FROM fresh
""",  # noqa: S608 our own names
        append_at_once=f"SELECT {table}_append(%s::json, %s)",
        serialised=(_in_turn(table, lock, channel), _trigger(table, lock), _append(table, lock, channel, number)),
    )


def _fresh(table: str, rows: str) -> str:
    """Return the statement that adds rows of JSON in their order, but for known ones.

    Known events are looked for one by one: as a join, the server might read the whole table for a few new rows.
    """
    return f"""
WITH fresh AS (
    INSERT INTO {table} ({_NAMES}) SELECT {", ".join(f"added.{name}" for name in WRITTEN)}
    FROM ROWS FROM (json_to_recordset({rows}) AS ({_COLUMNS})) WITH ORDINALITY AS added ({_NAMES}, place)
    WHERE (SELECT 1 FROM {table} known WHERE known.source = added.source AND known.id = added.id) IS NULL
    ORDER BY added.place RETURNING position
)"""  # noqa: S608 our own names


def _append(table: str, lock: int, channel: str, number: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION {table}_append(rows json, patience text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    added bigint;
    newest bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN -1;
    END IF;
    PERFORM set_config('opencqrs.turn', '{lock}', true);
    IF NOT pg_try_advisory_xact_lock({lock}) THEN
        PERFORM set_config('lock_timeout', patience, true), pg_advisory_xact_lock({lock});
    END IF;
    {_fresh(table, "rows")} SELECT count(*), max(position) INTO added, newest FROM fresh;
    IF added > 0 THEN
        PERFORM pg_notify('{channel}', newest || ' ' || {number});
    END IF;
    RETURN added;
END $$
"""  # noqa: S608 our own names


def _in_turn(table: str, lock: int, channel: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION {table}_in_turn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock({lock});
    PERFORM pg_notify('{channel}', '');
    RETURN NULL;
END $$
"""


def _trigger(table: str, lock: int) -> str:
    return f"""
CREATE TRIGGER {EVENTS.name}_in_turn BEFORE INSERT ON {table} FOR EACH STATEMENT
WHEN (current_setting('opencqrs.turn', true) IS DISTINCT FROM '{lock}') EXECUTE FUNCTION {table}_in_turn()
"""

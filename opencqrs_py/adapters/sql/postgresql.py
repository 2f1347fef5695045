"""PostgreSQL's part in appends: the turn, the insert and the word to those who listen, as statements and functions."""

from __future__ import annotations

from opencqrs_py.adapters.sql.schema import EVENTS

__all__ = ["APPENDS", "APPEND_AT_ONCE", "EVENTS_CHANNEL", "INSERT_ALL", "SERIALISED", "TABLE_NUMBER", "WRITTEN"]

APPENDS = 0x0C9126 << 32
"""The advisory lock of those who add events."""

EVENTS_CHANNEL = "opencqrs_events"
"""Where those who listen are told that events are being added.

A channel is the whole database's, and each of its schemas may hold a log. So an append tells the newest position and,
behind a space, the table's number (``TABLE_NUMBER``); the trigger tells nothing but that there is news.
"""

WRITTEN = ("id", "source", "subject", "type", "time", "content_type", "payload", "extensions", "time_us")
"""The columns that an append fills."""

_TABLE = EVENTS.name
_NAMES = ", ".join(WRITTEN)
_COLUMNS = ", ".join(f"{name} {'bigint' if name == 'time_us' else 'text'}" for name in WRITTEN)


TABLE_NUMBER = f"'{_TABLE}'::regclass::oid"
"""The number that tells the table from those of the same name in other schemas."""


def _fresh(rows: str) -> str:
    """Return the statement that adds rows of JSON in their order, but for known ones.

    Known events are looked for one by one: as a join, the server might read the whole table for a few new rows.
    """
    return f"""
WITH fresh AS (
    INSERT INTO {_TABLE} ({_NAMES}) SELECT {", ".join(f"added.{name}" for name in WRITTEN)}
    FROM ROWS FROM (json_to_recordset({rows}) AS ({_COLUMNS})) WITH ORDINALITY AS added ({_NAMES}, place)
    WHERE (SELECT 1 FROM {_TABLE} known WHERE known.source = added.source AND known.id = added.id) IS NULL
    ORDER BY added.place RETURNING position
)"""  # noqa: S608 our own names


INSERT_ALL = f"""{_fresh("%s::json")}
SELECT count(*), pg_notify('{EVENTS_CHANNEL}', max(position) || ' ' || {TABLE_NUMBER}) FROM fresh
"""  # noqa: S608 our own names
"""Adds rows and tells the newest position; within a turn."""

APPEND_AT_ONCE = f"SELECT {_TABLE}_append(%s::json, %s)"
"""Adds rows in a turn of its own, with the time that it waits for it; a statement that is a whole transaction.

Returns how many were added, -1 if transactions are so strict that they do not see what was written during the wait.
"""

_APPEND = f"""
CREATE OR REPLACE FUNCTION {_TABLE}_append(rows json, patience text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    added bigint;
    newest bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN -1;
    END IF;
    PERFORM set_config('opencqrs.turn', '{APPENDS}', true);
    IF NOT pg_try_advisory_xact_lock({APPENDS}) THEN
        PERFORM set_config('lock_timeout', patience, true), pg_advisory_xact_lock({APPENDS});
    END IF;
    {_fresh("rows")} SELECT count(*), max(position) INTO added, newest FROM fresh;
    IF added > 0 THEN
        PERFORM pg_notify('{EVENTS_CHANNEL}', newest || ' ' || {TABLE_NUMBER});
    END IF;
    RETURN added;
END $$
"""  # noqa: S608 our own names

_IN_TURN = f"""
CREATE OR REPLACE FUNCTION {_TABLE}_in_turn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock({APPENDS});
    PERFORM pg_notify('{EVENTS_CHANNEL}', '');
    RETURN NULL;
END $$
"""

_TRIGGER = f"""
CREATE TRIGGER {_TABLE}_in_turn BEFORE INSERT ON {_TABLE} FOR EACH STATEMENT
WHEN (current_setting('opencqrs.turn', true) IS DISTINCT FROM '{APPENDS}') EXECUTE FUNCTION {_TABLE}_in_turn()
"""

SERIALISED = (_IN_TURN, _TRIGGER, _APPEND)
"""What lets all who add events take turns, and tells those who listen.

Our own appends do both themselves; the trigger is for other programs. The turn is taken before the first position is
given and kept until the commit, so that positions become visible in their order. The lock is one that, unlike a lock on
the table, lets the server look after the table meanwhile.
"""

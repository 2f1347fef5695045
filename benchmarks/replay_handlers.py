"""The handlers that ``replay.py`` measures: one read model, written in several ways.

Not a benchmark itself. Each group is one way; the benchmark runs a group by passing its function to ``Application``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from sqlalchemy import Connection, text

from opencqrs_py import ProcessingContext, bulk, event_handling, event_type

UPSERT = text(
    "INSERT INTO totals (account, events, total) VALUES (:account, 1, :amount) "
    "ON CONFLICT (account) DO UPDATE SET events = totals.events + 1, total = totals.total + excluded.total"
)
COUNT = text(
    "INSERT INTO totals (account, events, total) VALUES (:account, :number, :amount) "
    "ON CONFLICT (account) DO UPDATE SET events = totals.events + excluded.events, "
    "total = totals.total + excluded.total"
)
SQL = str(UPSERT)
if os.environ.get("REPLAY_DATABASE") == "postgresql":
    from psycopg import Connection as Driver

    MARK = "%s"
else:
    from sqlite3 import Connection as Driver

    MARK = "?"
DRIVER_SQL = SQL.replace(":account", MARK).replace(":amount", MARK)
DRIVER_COUNT = str(COUNT).replace(":account", MARK).replace(":number", MARK).replace(":amount", MARK)
TYPES = ("*",) if os.environ.get("REPLAY_LOG") else ()
"""Made-up events have the type of the event class; the events of a log have other types."""

_POISON = Path(os.environ.get("REPLAY_POISON", ""))
POISONED = frozenset(_POISON.read_text(encoding="utf-8").split() if _POISON.is_file() else ())
"""Accounts whose events fail, as long as the file that names them exists."""


@event_type("bank.paid.v1")
@dataclass(frozen=True)
class Paid:
    """A payment."""

    account: str
    amount: int


@event_handling("each", types=TYPES)
def each(event: Paid, connection: Connection) -> None:
    """Write with SQLAlchemy, one statement per event."""
    connection.execute(UPSERT, {"account": event.account, "amount": event.amount})


@event_handling("poisoned", types=TYPES)
def poisoned(event: Paid, connection: Connection) -> None:
    """Write as ``each`` does, and fail for some accounts."""
    if event.account in POISONED:
        msg = f"{event.account} is poisoned"
        raise ValueError(msg)
    connection.execute(UPSERT, {"account": event.account, "amount": event.amount})


@event_handling("list", types=TYPES)
def many(events: list[Paid], connection: Connection) -> None:
    """Write with SQLAlchemy, one ``executemany`` per chunk."""
    connection.execute(UPSERT, [{"account": event.account, "amount": event.amount} for event in events])


@event_handling("list-sums", types=TYPES)
def sums(events: list[Paid], connection: Connection) -> None:
    """Aggregate a chunk in Python, and write the sums with one statement."""
    totals: dict[str, tuple[int, int]] = {}
    for event in events:
        number, total = totals.get(event.account, (0, 0))
        totals[event.account] = number + 1, total + event.amount
    rows = [{"account": account, "events": number, "total": total} for account, (number, total) in totals.items()]
    bulk.upsert(connection, "totals", rows, keys=["account"], add=["events", "total"])


@event_handling("columns", types=TYPES, events=Paid)
def columns(payments: pa.Table, connection: Connection) -> None:
    """Aggregate a chunk in columns, and write the sums with one statement."""
    sums = payments.group_by("account", use_threads=False).aggregate([([], "count_all"), ("amount", "sum")])
    rows = sums.rename_columns(["account", "events", "total"])
    bulk.upsert(connection, "totals", rows, keys=["account"], add=["events", "total"])


@event_handling("each-exec-driver-sql", types=TYPES)
def each_exec_driver_sql(event: Paid, connection: Connection) -> None:
    """Write with SQLAlchemy's connection and a driver statement, one per event."""
    connection.exec_driver_sql(DRIVER_SQL, (event.account, event.amount))


@event_handling("each-driver", types=TYPES or ("bank.paid.v1",))
def each_driver(event: dict, driver: Driver) -> None:
    """Write with the driver's own connection, one statement per event; decoded to a dict, as in the loop by hand."""
    driver.execute(DRIVER_SQL, (event["account"], event["amount"]))


@event_handling("list-driver", types=TYPES or ("bank.paid.v1",))
def many_driver(events: list[dict], driver: Driver) -> None:
    """Write with the driver's own connection, one ``executemany`` per chunk; dicts, as in the loop by hand."""
    driver.cursor().executemany(DRIVER_SQL, [(event["account"], event["amount"]) for event in events])


@event_handling("count", types=TYPES)
def count(events: list[Paid], connection: Connection, context: ProcessingContext) -> None:
    """Write one row per chunk, so that most of the work is reading and decoding."""
    amount = sum(event.amount for event in events)
    values = {"account": str(context.partition), "number": len(events), "amount": amount}
    connection.execute(COUNT, values)


@event_handling("cpu", types=TYPES)
def cpu(event: Paid, driver: Driver) -> None:
    """Compute for a tenth of a millisecond in Python, then send one statement through the driver, as the loop does."""
    compute(event.amount)
    driver.execute(DRIVER_SQL, (event.account, event.amount))


def compute(number: int) -> int:
    """Keep a core busy for about a tenth of a millisecond."""
    for _ in range(1_500):
        number = (number * 1_103_515_245 + 12_345) & 0x7FFFFFFF
    return number

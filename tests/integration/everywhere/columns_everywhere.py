"""A group that takes columns, which every engine runs on every database."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from sqlalchemy import Connection, text

from opencqrs_py import bulk, event_handling, event_type, on_start

NOTE = Path(__file__).with_name("failed")
UNLUCKY = 13
"""The amount with which a chunk fails once."""


@event_type("paid")
@dataclass(frozen=True)
class Paid:
    account: str
    amount: int
    rate: Decimal
    note: str | None = None


@on_start("columns")
def create_totals(connection: Connection) -> None:
    columns = "account VARCHAR(40) PRIMARY KEY, events BIGINT, amount BIGINT, last_position BIGINT"
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS totals ({columns})"))
    connection.execute(text("CREATE TABLE IF NOT EXISTS rates (position BIGINT PRIMARY KEY, rate VARCHAR(60))"))


@event_handling("columns", events=Paid)
def paid(payments: pa.Table, connection: Connection) -> None:
    summed = payments.group_by("account").aggregate([([], "count_all"), ("amount", "sum"), ("position", "max")])
    rows = summed.rename_columns(["account", "events", "amount", "last_position"])
    bulk.upsert(connection, "totals", rows.drop_columns("last_position"), keys="account", add=["events", "amount"])
    bulk.upsert(connection, "totals", rows.select(["account", "last_position"]), keys="account")
    bulk.upsert(connection, "rates", payments.select(["position", "rate"]), keys="position")
    if UNLUCKY in payments["amount"].to_pylist() and not NOTE.exists():
        NOTE.touch()
        raise ValueError("again")


@event_handling("volume", types=["pa*"])
def volume(events: pa.Table, connection: Connection) -> None:
    assert events.column_names == ["position", "type", "subject", "time", "data"]

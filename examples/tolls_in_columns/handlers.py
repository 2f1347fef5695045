"""Two read models of a toll road, from events in columns: the revenue, and the vehicles that were let through."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, text

from opencqrs_py import bulk, event_handling, event_type, on_start


@event_type("tolls.paid.v1")
@dataclass(frozen=True)
class TollPaid:
    """A toll was paid. The price is in whole cents, whose sums are exact on every database."""

    station: str
    vehicle: str
    cents: int


@on_start("revenue")
def create_revenue(connection: Connection) -> None:
    """Create the table: one row per station and day."""
    columns = "station VARCHAR(40), day VARCHAR(10), vehicles BIGINT, cents BIGINT, PRIMARY KEY (station, day)"
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS revenue ({columns})"))


@event_handling("revenue", events=TollPaid)
def add_revenue(tolls: pa.Table, connection: Connection) -> None:
    """Sum up a chunk by station and day, and add the sums to the table by one statement."""
    by_day = tolls.append_column("day", pc.strftime(tolls["time"], format="%Y-%m-%d"))
    sums = by_day.group_by(["station", "day"]).aggregate([([], "count_all"), ("cents", "sum")])
    rows = sums.rename_columns(["station", "day", "vehicles", "cents"])
    bulk.upsert(connection, "revenue", rows, keys=["station", "day"], add=["vehicles", "cents"])


@on_start("let-through")
def create_let_through(connection: Connection) -> None:
    """Create the table: one row per reason, with its newest event."""
    columns = "reason VARCHAR(40) PRIMARY KEY, vehicles BIGINT, newest VARCHAR(60)"
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS let_through ({columns})"))


@event_handling("let-through", types=["tolls.let-through.*"])
def count_let_through(events: pa.Table, connection: Connection) -> None:
    """Count by reason. Without an event class the data are JSON texts, so this handler parses them."""
    reasons = [orjson.loads(data)["reason"] for data in events["data"].to_pylist()]
    given = events.select(["subject", "position"]).append_column("reason", pa.array(reasons))
    counted = given.group_by("reason").aggregate([([], "count_all"), ("position", "max")])
    newest = counted.join(given, keys=["reason", "position_max"], right_keys=["reason", "position"])
    counts = counted.select(["reason", "count_all"]).rename_columns(["reason", "vehicles"])
    bulk.upsert(connection, "let_through", counts, keys=["reason"], add=["vehicles"])
    subjects = newest.select(["reason", "subject"]).rename_columns(["reason", "newest"])
    bulk.upsert(connection, "let_through", subjects, keys=["reason"])

"""A group that gets data frames, which Spark runs on every database; and one that writes files."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from sqlalchemy import Connection, text

from opencqrs_py import EventFrames, bulk, dataframe_handler, event_type, on_start

HERE = Path(__file__).parent
UNLUCKY = 113
"""The amount with which a range fails once, and by which a process is killed once, if the file ``kill`` exists."""


@event_type("paid")
@dataclass(frozen=True)
class Paid:
    account: str
    amount: int


@on_start("frames")
def create_totals(connection: Connection) -> None:
    columns = "account VARCHAR(40) PRIMARY KEY, events BIGINT, amount BIGINT"
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS totals ({columns})"))


@dataframe_handler("frames", events=Paid)
def paid(payments: DataFrame, connection: Connection) -> None:
    rows = payments.groupBy("account").agg(sf.count("*").alias("events"), sf.sum("amount").alias("amount"))
    bulk.upsert(connection, "totals", rows, keys="account", add=["events", "amount"])
    if not payments.where(sf.col("amount") == UNLUCKY).isEmpty():
        if (HERE / "kill").exists():
            (HERE / "kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if not (HERE / "failed").exists():
            (HERE / "failed").touch()
            raise ValueError("again")


@dataframe_handler("lake")
def write_files(events: EventFrames) -> None:
    events.of(Paid).write.mode("overwrite").parquet(f"{HERE}/lake/batch={events.batch}")
    if (HERE / "kill-lake").exists():
        (HERE / "kill-lake").unlink()
        os.kill(os.getpid(), signal.SIGKILL)

"""The handler of ``spark_replay.py`` that takes data frames; importing it loads PySpark. Not a benchmark itself."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from replay_handlers import TYPES, Paid
from sqlalchemy import Connection

from opencqrs_py import bulk, dataframe_handler


@dataframe_handler("frames", types=TYPES, events=Paid)
def frames(payments: DataFrame, connection: Connection) -> None:
    """Aggregate a range on executors, and merge the result with one statement."""
    sums = payments.groupBy("account").agg(sf.count("*").alias("events"), sf.sum("amount").alias("total"))
    bulk.upsert(connection, "totals", sums, keys=["account"], add=["events", "total"])

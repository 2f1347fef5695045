"""A group whose data frames have more rows than come to the driver, on every database."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from sqlalchemy import Connection, text

from opencqrs_py import bulk, dataframe_handler, event_type, on_start

HERE = Path(__file__).parent
EACH = 120
"""Rows that an event becomes."""


@event_type("counted")
@dataclass(frozen=True)
class Counted:
    number: int


@on_start("many")
def create_tables(connection: Connection) -> None:
    columns = "item BIGINT, part BIGINT, times BIGINT, PRIMARY KEY (item, part)"
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS parts ({columns})"))


def killer(flag: Path) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that passes rows on and then kills its worker, once; it is pickled by value."""

    def passed_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if flag.exists():
            flag.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    return passed_on


@dataframe_handler("many", events=Counted)
def parts(events: DataFrame, connection: Connection) -> None:
    every = events.select(
        sf.col("number").alias("item"),
        sf.explode(sf.sequence(sf.lit(1), sf.lit(EACH))).alias("part"),
        sf.lit(1).alias("times"),
    )
    killed_once = every.mapInArrow(killer(HERE / "kill-worker"), every.schema)
    bulk.upsert(connection, "parts", killed_once, keys=["item", "part"], add="times")
    if (HERE / "fail").exists():
        (HERE / "fail").unlink()
        raise ValueError("after the merge")
    if (HERE / "kill-driver").exists():
        (HERE / "kill-driver").unlink()
        os.kill(os.getpid(), signal.SIGKILL)

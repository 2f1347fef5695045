"""How fast Spark reads an event log through ``format("opencqrs")``, compared with ``spark.read.json``.

    python benchmarks/spark_read.py --database both --check
    python benchmarks/spark_read.py --database postgresql --events 1000000

The query groups payments by account and sums them. Both ways know the columns: ``spark.read.json`` from its schema,
the data source from its option ``schema``. They read the same events alternately in one session, on two cores; the best
time of each counts, and the results are compared. Unlike the file, events from a database also pass from Python to
Java. With --check the exit code is 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql import functions as sf
from replay_log import made_up
from servers import KINDS, kinds, machine, served

from opencqrs_py import register_data_source
from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.engines.spark.session import Sessions, SessionSettings
from opencqrs_py.model.cloudevents import write_event
from opencqrs_py.model.event import Event

SEED = 4
"""Seed of the made-up events."""

EVENTS = 1_000_000
"""Default number of events."""

LEAST = 0.5
"""Least ratio of the data source's events per second to those of ``spark.read.json``."""

DATA = "account STRING, amount BIGINT, note STRING"
"""The fields of the events' data."""

MEANINGS = {
    "json": "spark.read.json with a schema, a file",
    "schema": "opencqrs, option schema, all columns",
    "narrowed": "opencqrs, option schema, .schema() of two columns",
    "text": "opencqrs, payload as STRING and from_json",
    "variant": "opencqrs, payload as VARIANT",
}

AIMED = ("narrowed",)
"""The ways that must reach ``LEAST``; the others are only shown.

Spark passes the columns that a query needs to its own readers, but not to Python data sources: they need ``.schema()``.
"""


def main() -> int:
    """Measure and return the exit code."""
    options = _options()
    print(machine())
    missed: list[str] = []
    sessions = Sessions(SessionSettings(master="local[2]", name="spark_read"))
    spark = sessions.open()
    register_data_source(spark)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "events.ndjson"
        _write(file, options.events)
        for kind in kinds(options.database):
            with served(kind) as fresh:
                missed += _measure(spark, kind, _filled(fresh(), options.events), file, options)
    sessions.close()
    print("\nall aims reached" if not missed else "\nmissed:\n  " + "\n  ".join(missed))
    return 1 if options.check and missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=(*KINDS, "both", "mariadb"), default="both")
    parser.add_argument("--events", type=int, default=EVENTS, help=f"events of the log (default: {EVENTS:,})")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each way; the best counts (default: 5)")
    parser.add_argument("--ways", nargs="+", choices=tuple(MEANINGS), default=list(MEANINGS), help="only these ways")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an aim is missed")
    return parser.parse_args()


def _events(count: int) -> Iterator[Event]:
    for number, event in enumerate(made_up(count, SEED)):
        yield event._replace(time=f"2026-01-{number % 28 + 1:02}T{number % 24:02}:00:00Z")


def _write(file: Path, count: int) -> None:
    with file.open("w") as lines:
        lines.writelines(f"{json.dumps(write_event(event))}\n" for event in _events(count))


def _filled(url: str, count: int) -> str:
    database = Database(url)
    SqlEventStore(database).append(_events(count))
    database.close()
    return url


def _ways(spark: SparkSession, url: str, file: Path) -> dict[str, Callable[[], DataFrame]]:
    """Return the data frames with the columns account and amount, by way."""
    envelope = "id STRING, source STRING, subject STRING, type STRING, time TIMESTAMP"
    of_file = spark.read.schema(f"{envelope}, data STRUCT<{DATA.replace(' ', ': ').replace(',:', ',')}>")
    texts = "position BIGINT, id STRING, source STRING, subject STRING, type STRING, time TIMESTAMP, payload STRING"

    def log(**others: str) -> DataFrameReader:
        return spark.read.format("opencqrs").options(url=url, **others)

    return {
        "json": lambda: of_file.json(str(file)).select("data.account", "data.amount"),
        "schema": lambda: log(schema=DATA).load(),
        "narrowed": lambda: log(schema=DATA).schema("account STRING, amount BIGINT").load(),
        "text": lambda: log().schema(texts).load().select(sf.from_json("payload", DATA).alias("data")).select("data.*"),
        "variant": lambda: log().load().selectExpr("payload:account::string account", "payload:amount::bigint amount"),
    }


def _measure(spark: SparkSession, kind: str, url: str, file: Path, options: argparse.Namespace) -> list[str]:
    ways = _ways(spark, url, file)
    chosen = {way: ways[way] for way in MEANINGS if way == "json" or way in options.ways}
    found = {way: _grouped(load()) for way, load in chosen.items()}  # the first run of each is not timed
    wrong = [way for way, rows in found.items() if rows != found["json"]]
    if wrong:
        sys.exit(f"the result of {wrong[0]} differs from that of json")
    seconds = dict.fromkeys(chosen, float("inf"))
    for _ in range(options.repeats):
        for way, load in chosen.items():
            start = time.perf_counter()
            _grouped(load())
            seconds[way] = min(seconds[way], time.perf_counter() - start)
    return _reported(kind, options.events, seconds)


def _grouped(frame: DataFrame) -> list[Row]:
    grouped = frame.groupBy("account").agg(sf.count("*").alias("events"), sf.sum("amount").alias("total"))
    return sorted(grouped.collect())


def _reported(kind: str, count: int, seconds: dict[str, float]) -> list[str]:
    """Print a table; return the aims that were missed."""
    print(f"\n{kind}: {count:,} events, events per second, and as a ratio to {MEANINGS['json']}")
    missed = []
    for way, taken in seconds.items():
        ratio = seconds["json"] / taken
        verdict = "" if way not in AIMED else f"aim >= {LEAST:g}   {'ok' if ratio >= LEAST else 'MISSED'}"
        print(f"  {MEANINGS[way]:<56} {count / taken:>9,.0f} {ratio:>6.2f}   {verdict}", flush=True)
        if way in AIMED and ratio < LEAST:
            missed.append(f"{kind}: {way}: {ratio:.2f}, aim >= {LEAST:g}")
    return missed


if __name__ == "__main__":
    sys.exit(main())

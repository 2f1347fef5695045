"""Explore an event log with Spark: read it, count, follow it, draw a chart.

This is a script and a notebook: editors that support ``# %%`` (VS Code, PyCharm, Spyder, Jupytext) show it in cells.
``--text`` draws the chart with characters even if matplotlib is installed.
"""

# %% A log to explore. If you have one, you need only its URL from this cell.

import os
import shutil
import subprocess
import sys
from pathlib import Path

from chart import can_draw, draw, text_bars
from make_log import DAYS, write_log
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from opencqrs_py import register_data_source
from opencqrs_py.engines.spark.columns import residue_column, subject_level_column
from opencqrs_py.engines.spark.session import Sessions, SessionSettings

data = Path(".data")
url = "sqlite:///.data/events.db"


def import_days(first: int, last: int) -> None:
    """Import some days of the made-up log by the command line."""
    write_log(data / "events.ndjson", first, last)
    command = [sys.executable, "-m", "opencqrs_py", "events", "import", str(data / "events.ndjson")]
    sys.stdout.flush()  # so that it comes before the output of the command
    subprocess.run(command, check=True, env={**os.environ, "OPENCQRS__EVENT_STORE__URL": url})


shutil.rmtree(data, ignore_errors=True)
data.mkdir()
import_days(0, DAYS - 1)

# %% A Spark session: any will do. This one finds Java and logs little. Days are in UTC.

conf = {"spark.sql.session.timeZone": "UTC"}
sessions = Sessions(SessionSettings(master="local[2]", conf=conf, name="explore"))
spark = sessions.open()
register_data_source(spark)

# %% The log is a data frame. The event store does not read the events that the options exclude.


def log(**options: object) -> DataFrame:
    """Return the current log."""
    return spark.read.format("opencqrs").options(url=url, **options).load()


log(to=4).select("position", "subject", "type", "time", "payload").show(truncate=28)

# %% Events by day and type.

by_day = log().groupBy(sf.to_date("time").alias("day")).pivot("type").count().orderBy("day")
by_day.show(5)

# %% The data are JSON: the option schema turns their fields into columns.


def placed() -> DataFrame:
    """Return the orders that were placed."""
    events = log(types="shop.order-placed.v1", schema="customer INT, amount DOUBLE")
    return events.select(sf.to_date("time").alias("day"), "customer", "amount")


best = placed().groupBy("customer").agg(sf.count("*").alias("orders"), sf.round(sf.sum("amount"), 2).alias("amount"))
best.orderBy(sf.desc("amount")).show(3)

# %% The partition in which a processing group with life-cycle.partitions: 3 would handle each order.

sequence = subject_level_column(sf.col("subject"), 2)
log().groupBy(residue_column(sequence, 3).alias("partition")).count().orderBy("partition").show()

# %% Follow the log: each run takes the events since the last one, and ends. The checkpoint stores the position.


def follow() -> int:
    """Write new events to a folder of Parquet files; return how many it contains now."""
    new = spark.readStream.format("opencqrs").option("url", url).option("maxEventsPerTrigger", 1_000).load()
    stream = new.writeStream.format("parquet").option("checkpointLocation", f"{data}/checkpoint")
    stream.trigger(availableNow=True).start(f"{data}/lake").awaitTermination()
    return spark.read.parquet(f"{data}/lake").count()


print(f"{follow():,} events in the folder of Parquet files")
import_days(DAYS - 1, DAYS)
print(f"{follow():,} events in the folder of Parquet files")

# %% A chart of the orders of each day.

amounts = placed().groupBy("day").agg(sf.sum("amount").alias("amount")).orderBy("day").collect()
days, sums = [f"{row.day:%a %d %b}" for row in amounts], [row.amount for row in amounts]
if can_draw() and "--text" not in sys.argv:
    draw("Ordered each day", days, sums, data / "orders.png")
    print(f"drawn: {data / 'orders.png'}")
else:
    print(text_bars(days, sums))

# %%

sessions.close()

"""Two read models of a bike hire, from events as data frames: income by district, bikes at each station."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from sqlalchemy import Connection, text

from opencqrs_py import EventFrames, bulk, dataframe_handler, event_type, on_start

STATIONS = Path(__file__).with_name("stations.csv")


@event_type("bikes.ride-begun.v1")
@dataclass(frozen=True)
class RideBegun:
    """A customer took a bike at a station."""

    ride: int
    bike: int
    station: str


@event_type("bikes.ride-ended.v1")
@dataclass(frozen=True)
class RideEnded:
    """A customer returned a bike. The price is in whole cents, whose sums are exact on every database."""

    ride: int
    bike: int
    station: str
    minutes: int
    cents: int


@on_start("income")
def create_income(connection: Connection) -> None:
    """Create the table: one row per district and day."""
    columns = "district VARCHAR(40), day VARCHAR(10), rides BIGINT, minutes BIGINT, cents BIGINT"
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS income ({columns}, PRIMARY KEY (district, day))"))


@dataframe_handler("income", events=RideEnded)
def add_income(rides: DataFrame, connection: Connection) -> None:
    """Look up the district of each station, sum up by district and day, and add the sums to the table."""
    stations = rides.sparkSession.read.csv(str(STATIONS), schema="station STRING, district STRING", header=True)
    located = rides.join(sf.broadcast(stations), "station", "left")
    by_day = located.groupBy(
        sf.coalesce("district", sf.lit("elsewhere")).alias("district"),
        sf.date_format("time", "yyyy-MM-dd").alias("day"),
    )
    sums = by_day.agg(sf.count("*").alias("rides"), sf.sum("minutes").alias("minutes"), sf.sum("cents").alias("cents"))
    bulk.upsert(connection, "income", sums, keys=["district", "day"], add=["rides", "minutes", "cents"])


@on_start("stock")
def create_stock(connection: Connection) -> None:
    """Create the table: one row per station."""
    columns = "station VARCHAR(40) PRIMARY KEY, came BIGINT, went BIGINT"
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS stock ({columns})"))


@dataframe_handler("stock", types=["bikes.*"])
def move_bikes(events: EventFrames, connection: Connection) -> None:
    """Count arrivals and departures at each station separately: a ride may end in a later range than it begins."""
    went = events.of(RideBegun).select("station", sf.lit(0).alias("came"), sf.lit(1).alias("went"))
    came = events.of(RideEnded).select("station", sf.lit(1).alias("came"), sf.lit(0).alias("went"))
    moved = went.union(came).groupBy("station").agg(sf.sum("came").alias("came"), sf.sum("went").alias("went"))
    bulk.upsert(connection, "stock", moved, keys=["station"], add=["came", "went"])

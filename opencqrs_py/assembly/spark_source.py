"""``format("opencqrs")`` for a Spark session of the user's own."""

from __future__ import annotations

from functools import cache

from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.engines.spark.source import EventLogSource, Session
from opencqrs_py.processing.ports import EventSource

__all__ = ["SqlEventLogSource", "register_data_source"]


class SqlEventLogSource(EventLogSource):
    """Event stores on SQL databases as a Spark data source."""

    @staticmethod
    def open_source(url: str) -> EventSource:
        """Open the event store, once per process and URL."""
        return _opened(url)


def register_data_source(spark: Session) -> None:
    """Make ``spark.read.format("opencqrs")`` and ``spark.readStream.format("opencqrs")`` known to a session.

    Switches Spark's filter push-down for Python data sources on, which is off by default.

    Args:
        spark: The session. Its executors need this package installed.
    """
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(SqlEventLogSource)


@cache
def _opened(url: str) -> EventSource:
    return SqlEventStore(Database(url))

"""One group as one Structured Streaming query.

Runs on the driver. The query's rows are orders; each micro-batch maps them over the executors and brings the reports
back. Spark calls ``_round`` once per micro-batch on a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from opencqrs_py.engines.spark.orders import Order, Report, read_report, write_order
from opencqrs_py.engines.spark.signals import SignalLine
from opencqrs_py.engines.spark.worker import REPORT_SCHEMA, OrderHandler
from opencqrs_py.model.outcome import Origin, Trouble

__all__ = ["GroupQuery"]

_TRACEBACK = "Traceback (most recent call last):"


class GroupQuery:
    """The streaming query of a group.

    Args:
        spark: The session.
        group: The query's name.
        handler: What the executors do.
        done: Called on a thread of Spark's with the reports of a round.
        broken: Called, likewise, when Spark could not finish a round.
    """

    def __init__(
        self,
        spark: SparkSession,
        group: str,
        handler: OrderHandler,
        done: Callable[[Sequence[Report]], None],
        broken: Callable[[Trouble], None],
    ) -> None:
        self._spark = spark
        self._group = group
        self._handler = handler
        self._done = done
        self._broken = broken
        self._lock = Lock()
        self._line: SignalLine | None = None
        self._query: StreamingQuery | None = None

    @property
    def alive(self) -> bool:
        """Whether Spark still runs the query. Before the first round there is nothing that could have ended."""
        return self._query is None or bool(self._query.isActive)

    def send(self, orders: Sequence[Order]) -> None:
        """Start a round with these orders; the query is started, or started again, if it does not run."""
        with self._lock:
            if self._query is None or not self._query.isActive:
                self._restart()
            line = self._line
        if line is not None:
            line.send([write_order(order) for order in orders])

    def stop(self) -> None:
        """End the query; a round under way is cancelled."""
        with self._lock:
            if self._query is not None:
                with suppress(Py4JError, PySparkException, OSError):  # the JVM may be gone already
                    self._query.stop()
            if self._line is not None:
                self._line.close()

    def _restart(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = SignalLine()
        source = self._spark.readStream.format("socket")
        orders = source.option("host", "127.0.0.1").option("port", self._line.port).load()
        self._query = orders.writeStream.queryName(self._group).foreachBatch(self._round).start()

    def _round(self, orders: DataFrame, _batch: int) -> None:
        try:
            rows = orders.mapInArrow(self._handler, REPORT_SCHEMA).collect()
        except Exception as error:  # Spark's failures are ours to report; the query goes on
            self._broken(spark_trouble(error))
            return
        if rows:
            self._done([read_report(row[0]) for row in rows])


def spark_trouble(error: Exception) -> Trouble:
    """Return what a failed round comes to.

    A Python error that reached Spark was raised outside every handler and would be raised again; all else, such as a
    worker or an executor that died, may pass.
    """
    lasting = isinstance(error, PythonException)
    origin = Origin.FRAMEWORK if lasting else Origin.OUTAGE
    return Trouble(origin, permanent=lasting, error="Spark could not finish a round", message=_first_line(error))


def _first_line(error: Exception) -> str:
    """Return the reason without the JVM's stack."""
    text = error.getMessage() if isinstance(error, PySparkException) else str(error)
    if isinstance(error, PythonException) and (raised := _raised_last(text or "")):
        return raised[:300]
    lines = [line.strip(" :") for line in (text or type(error).__name__).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("at ")] or lines
    telling = [line for line in said if "Error" in line or "exited" in line or "lost" in line]
    return (telling or said)[0][:300]


def _raised_last(text: str) -> str:
    """Return the line of a Python traceback that says what was raised last; its other lines are source code."""
    _, _, last = text.rpartition(_TRACEBACK)
    return next((line.strip() for line in last.splitlines() if line.strip() and not line.startswith(" ")), "")

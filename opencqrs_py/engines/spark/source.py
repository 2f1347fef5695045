"""The event store as a Spark data source, for any Spark user: ``format("opencqrs")``, batch and streaming.

Runs on the driver, in a Python worker that Spark starts for planning. The class and its options are pickled.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NoReturn

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from opencqrs_py.engines.spark.source_readers import SCHEMA, BatchReader, FilteringReader, StreamReader, told_plainly
from opencqrs_py.engines.spark.source_scope import Scope, scope_of
from opencqrs_py.errors import EngineError
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.processing.ports import EventSource

Session = SparkSession  # so that the assembly can name it without importing PySpark

_STRUCT = f"struct<{SCHEMA.replace(', ', ',').replace(' ', ':')}>"


class EventLogSource(DataSource):
    """The event store as a data source.

    Options: ``url`` (of the store), ``subject`` (default ``/``), ``recursive`` (default ``true``), ``types`` (separated
    by commas), ``from`` and ``to`` (first and last position, or times), ``ranges`` (most parts read side by side) and
    ``maxEventsPerTrigger`` (most events of a micro-batch). What they mean exactly stands in
    ``docs/how-to/query-with-spark.md``. ``mapping.table`` and others of its kind name a table of another system, as the
    settings below ``event-store.mapping`` do.

    Rows: position (bigint, the store's global order), id, source, subject, type, time (RFC 3339, as sent),
    content_type, payload (the data as JSON), extensions (other attributes as JSON).
    """

    ranges: ClassVar[int] = 8
    """Most ranges that are read side by side, where no option says it."""

    push_filters: ClassVar[bool] = False
    """Whether the store checks what it can of a query's WHERE; see ``FilteringReader`` for when that is right."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in ``format(…)``."""
        return "opencqrs"

    @staticmethod
    @abstractmethod
    def open_source(url: str, mapping: TableMapping | None = None) -> EventSource:
        """Open the event store, or the table that a mapping names; on the driver and on executors.

        Raises:
            ExplainedError: If it can be seen from the URL that there is none.
        """

    def schema(self) -> str:
        """Return the columns; the options are checked here, so that a mistake shows at ``load()``."""
        with told_plainly():
            scope = self._scope()
            self.open_source(scope.url, scope.mapping)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``."""
        with told_plainly():
            _refuse_other(schema)
            reader = FilteringReader if self.push_filters else BatchReader
            return reader(self.open_source, self._scope())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 Spark's name
        """Return the reader for ``spark.readStream``."""
        with told_plainly():
            _refuse_other(schema)
            return StreamReader(self.open_source, self._scope())

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: FBT001 Spark's signature
        """Refuse ``df.write`` with OCQ-413: the data source only reads."""
        del schema, overwrite
        _refuse_writing()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: FBT001, N802 as above
        """Refuse ``df.writeStream`` likewise."""
        del schema, overwrite
        _refuse_writing()

    def _scope(self) -> Scope:
        return scope_of(self.options, self.ranges)


def _refuse_other(schema: StructType) -> None:
    if schema.simpleString() != _STRUCT:
        what = f"the columns are {SCHEMA}, got {schema.simpleString()}"
        fix = "leave .schema(…) out and select columns from what is loaded"
        raise EngineError("OCQ-407", what, 'format("opencqrs")', fix)


def _refuse_writing() -> NoReturn:
    with told_plainly():
        fix = "write Parquet files with Spark, and add them with opencqrs events import"
        raise EngineError("OCQ-413", "Spark cannot add events to an event store", 'format("opencqrs")', fix)

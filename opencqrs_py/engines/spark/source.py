"""The event store as a Spark data source, for any Spark user: ``format("opencqrs")``, batch and streaming.

``schema``, ``partitions`` and the offsets are asked for on the driver; ``read`` runs on executors, once per Spark
partition, and opens the store there. Readers are pickled: they hold the URL and the selection, nothing open.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from opencqrs_py.errors import EngineError
from opencqrs_py.model.selection import Selection
from opencqrs_py.processing.ports import EventSource

__all__ = ["EventLogSource", "Session"]

Session = SparkSession  # so that the assembly can name it without importing PySpark

SCHEMA = (
    "position bigint, id string, source string, subject string, type string, time string, "
    "content_type string, payload string, extensions string"
)
_ARROW = pa.schema([(part.split()[0], pa.int64() if "bigint" in part else pa.string()) for part in SCHEMA.split(", ")])
_ROWS_PER_BATCH = 5_000
_LEAST_PER_RANGE = 20_000  # positions: fewer are not worth a task of their own
_RANGES = 8


@dataclass
class Range(InputPartition):
    """Positions that one task reads: ``after + 1 .. upto``."""

    after: int
    upto: int


class EventLogSource(DataSource):
    """The event store as a data source.

    Options: ``url`` (of the store), ``subject`` (default ``/``), ``recursive`` (default ``true``), ``types`` (separated
    by commas), ``from`` and ``to`` (first and last position; ``to`` for batch reading only).

    Rows: position (bigint, the store's global order), id, source, subject, type, time (RFC 3339, as sent),
    content_type, payload (the data as JSON), extensions (other attributes as JSON).
    """

    @classmethod
    def name(cls) -> str:
        """Return what stands in ``format(…)``."""
        return "opencqrs"

    @staticmethod
    @abstractmethod
    def open_source(url: str) -> EventSource:
        """Open the event store; on the driver and on executors."""

    def schema(self) -> str:
        """Return the columns; the options are checked here, so that a mistake shows at ``load()``."""
        self._scope()
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``."""
        del schema
        return _Reader(type(self), self._scope())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 Spark's name
        """Return the reader for ``spark.readStream``."""
        del schema
        return _StreamReader(type(self), self._scope())

    def _scope(self) -> _Scope:
        url = self.options.get("url")
        if not url:
            fix = 'spark.read.format("opencqrs").option("url", "sqlite:////path/events.db")'
            raise EngineError("OCQ-410", "the option 'url' is missing", 'format("opencqrs")', fix)
        types = frozenset(t.strip() for t in self.options.get("types", "").split(",") if t.strip())
        recursive = self.options.get("recursive", "true").lower() == "true"
        selection = Selection(self.options.get("subject", "/"), recursive, types or None)
        return _Scope(url, selection, self._number("from", 1) - 1, self._number("to", None))

    def _number(self, option: str, default: Any) -> Any:
        text = self.options.get(option)
        if text is None:
            return default
        if not text.isdigit():
            what = f"the option '{option}' is a position, a whole number, got {text!r}"
            raise EngineError("OCQ-410", what, 'format("opencqrs")')
        return int(text)


@dataclass(frozen=True)
class _Scope:
    """What is read: from where, which events, between which positions (``after`` excluded, ``upto`` included)."""

    url: str
    selection: Selection
    after: int = 0
    upto: int | None = None


class _Reader(DataSourceReader):
    """Batch reading: everything up to the head, in ranges that are read side by side."""

    def __init__(self, source: type[EventLogSource], scope: _Scope) -> None:
        self._source = source
        self._scope = scope

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 Spark's name
        """Take in conditions on type and position; all others are left to Spark."""
        for condition in filters:
            narrower = _narrowed(self._scope, condition)
            if narrower is None:
                yield condition
            else:
                self._scope = narrower

    def partitions(self) -> Sequence[Range]:
        """Return the ranges. Runs on the driver."""
        head = self._source.open_source(self._scope.url).head()
        upto = head if self._scope.upto is None else min(head, self._scope.upto)
        return _ranges(self._scope.after, upto)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range. Runs on an executor."""
        return _batches(self._source, self._scope, partition)


class _StreamReader(DataSourceStreamReader):
    """Streaming: follows the head; an offset is a position."""

    def __init__(self, source: type[EventLogSource], scope: _Scope) -> None:
        self._source = source
        self._scope = scope

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 Spark's name
        """Return where a new query starts."""
        return {"position": self._scope.after}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 Spark's name
        """Return the head of the store; there is no other limit."""
        del limit
        return {"position": max(self._source.open_source(self._scope.url).head(), start["position"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Range]:
        """Return the ranges between two offsets."""
        return _ranges(start["position"], end["position"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range. Runs on an executor."""
        return _batches(self._source, self._scope, partition)


def _ranges(after: int, upto: int) -> list[Range]:
    size = max(_LEAST_PER_RANGE, -(-(upto - after) // _RANGES))
    return [Range(first, min(first + size, upto)) for first in range(after, upto, size)]


def _batches(source: type[EventLogSource], scope: _Scope, partition: Any) -> Iterator[pa.RecordBatch]:
    store, after = source.open_source(scope.url), partition.after
    while after < partition.upto:
        part = store.read(after, _ROWS_PER_BATCH, scope.selection)
        events = [event for event in part.events if event.position <= partition.upto]
        if events:
            columns = [pa.array(column) for column in zip(*events, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)
        after = max(part.upto, after + 1)


def _narrowed(scope: _Scope, condition: Filter) -> _Scope | None:
    """Return the scope with a condition taken in, or ``None`` if only Spark can check it."""
    match condition:
        case EqualTo(("type",), str(value)):
            narrower = _of_types(scope, {value})
        case In(("type",), values):
            narrower = _of_types(scope, set(values))
        case EqualTo(("position",), int(value)):
            narrower = _between(scope, value - 1, value)
        case GreaterThan(("position",), int(value)):
            narrower = _between(scope, value, None)
        case GreaterThanOrEqual(("position",), int(value)):
            narrower = _between(scope, value - 1, None)
        case LessThan(("position",), int(value)):
            narrower = _between(scope, 0, value - 1)
        case LessThanOrEqual(("position",), int(value)):
            narrower = _between(scope, 0, value)
        case _:
            return None
    return narrower


def _of_types(scope: _Scope, types: set[str]) -> _Scope:
    selection = scope.selection
    wanted = frozenset(types) if selection.types is None else selection.types & types
    return replace(scope, selection=replace(selection, types=wanted))


def _between(scope: _Scope, after: int, upto: int | None) -> _Scope:
    last = [bound for bound in (scope.upto, upto) if bound is not None]
    return replace(scope, after=max(scope.after, after), upto=min(last, default=None))

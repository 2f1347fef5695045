"""Readers of the data source: one for batches, one for streams.

``read`` runs on executors, once per range, and opens the store there; all else runs on the driver, in a Python worker
that Spark starts for planning (batch) or for as long as the query lives (stream). Readers are pickled: they hold how
to open a store and what to read, nothing open.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from opencqrs_py.engines.spark.source_filters import narrowed
from opencqrs_py.engines.spark.source_options import Scope
from opencqrs_py.engines.spark.source_ranges import Range, admitted, batches, cut, shorter
from opencqrs_py.errors import EngineError, ExplainedError
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.processing.ports import EventSource

__all__ = ["BatchReader", "FilteringReader", "Opener", "StreamReader", "told_plainly"]

Opener: TypeAlias = Callable[[str, TableMapping | None], EventSource]
"""Opens the event store at a URL, or the table that a mapping names there.

Called on the driver and on executors, once for each thing that is asked of the store.
"""


@runtime_checkable
class Renewable(Protocol):
    """What event sources also have whose log can be replaced by another one at the same place, as files can.

    They refuse what was changed. Python workers of Spark live on from query to query, and keep sources open.
    """

    def renew(self) -> None:
        """Begin again, at the start of a query, if the log was replaced."""
        ...

    def state(self) -> object:
        """Return what tells the log, as it was looked at last, from others; it is pickled."""
        ...

    def expect(self, state: Any) -> None:
        """See that the log is the one of a state, which may have grown, or raise an ``ExplainedError``."""
        ...


_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"  # PySpark looks at it when it sends an error to the JVM; the worker ends then


@contextmanager
def told_plainly(source: EventSource | None = None) -> Iterator[None]:
    """Let an error that is written for a person reach the person without the stack trace before it.

    Raises:
        EngineError: OCQ-412 instead of a driver's error, if it means that ``source`` does not answer.
    """
    try:
        yield
    except ExplainedError:
        os.environ[_HIDE_TRACEBACK] = "1"
        raise
    except Exception as error:
        if source is None or not source.is_outage(error):
            raise
        os.environ[_HIDE_TRACEBACK] = "1"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        fix = "read again when it answers; a stream continues from its checkpoint"
        where = 'format("opencqrs")'
        raise EngineError("OCQ-412", f"the event store does not answer ({reason})", where, fix) from error


class BatchReader(DataSourceReader):
    """Reads everything up to the head as it is when the query is planned, in ranges side by side.

    Args:
        open_source: Opens the store.
        scope: What is read.
    """

    def __init__(self, open_source: Opener, scope: Scope) -> None:
        self._open = open_source
        self._scope = scope

    def partitions(self) -> Sequence[Range]:
        """Return the ranges, at least one."""
        with _opened(self._open, self._scope, renewed=True) as source:
            end = self._scope.end(source, source.head())
            start = self._scope.start(source) if end > 0 else 0
            return cut(start, end, self._scope.ranges, _state(source)) or [Range(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range. Runs on an executor."""
        return _read(self._open, self._scope, partition)


class FilteringReader(BatchReader):
    """Reads in batches, and has the store check what it can of a query's WHERE.

    Only for data frames that are used in one query: Spark 4.3 plans the ranges once for all queries of a data frame,
    with the filters of the query that it planned last, and so gives the others too few events.

    Source:
        ``PythonScanBuilder.pushFilters`` and ``PythonDataSourceV2.setReadInfo`` of Spark 4.3; fixed for Spark 5 in
        SPARK-58551.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 Spark's name
        """Take in what the store can check, and return what Spark must check."""
        for condition in filters:
            found = narrowed(self._scope, condition)
            if found is not None:
                self._scope = found.scope
            if found is None or not found.exact:
                yield condition


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the head. An offset is ``{"position": n}``: everything up to ``n`` has been read.

    Stores show events in the order of their positions, so none is missed when its transaction commits late.

    Args:
        open_source: Opens the store.
        scope: What is read.
    """

    def __init__(self, open_source: Opener, scope: Scope) -> None:
        self._open = open_source
        self._scope = scope
        self._head = 0  # as it was seen last
        self._target: int | None = None  # where a query with Trigger.AvailableNow ends
        self._begun = False

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 Spark's name
        """Return where a new query starts."""
        with self._log() as source:
            return {"position": self._scope.start(source)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 Spark's name
        """Return how much a micro-batch may hold."""
        most = self._scope.events_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 Spark's name
        """Fix where the query ends."""
        with self._log() as source:
            self._target = source.head()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 Spark's name
        """Return where the next micro-batch ends; ``start`` when there is nothing to read.

        Raises:
            EngineError: OCQ-411, if the log ends before ``start``.
        """
        position = start["position"]
        with self._log() as source:
            self._head = head = source.head()
            if head < position and position > self._scope.start(source):
                raise shorter(position, head)
            end = max(position, self._scope.end(source, head if self._target is None else min(head, self._target)))
            if isinstance(limit, ReadMaxRows):
                end = admitted(source, self._scope.selection, Range(position, end), limit.max_rows)
        return {"position": end}

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 Spark's name
        """Return the head as it was seen last; with it, the query's progress shows how far behind it is."""
        return {"position": self._head} if self._head else None

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Range]:
        """Return the ranges between two offsets."""
        with self._log() as source:
            return cut(start["position"], end["position"], self._scope.ranges, _state(source))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range. Runs on an executor."""
        return _read(self._open, self._scope, partition)

    def _log(self) -> AbstractContextManager[EventSource]:
        renewed, self._begun = not self._begun, True
        return _opened(self._open, self._scope, renewed=renewed)


def _read(open_source: Opener, scope: Scope, partition: Any) -> Iterator[pa.RecordBatch]:
    with _opened(open_source, scope) as source:
        if isinstance(source, Renewable) and partition.state is not None:
            source.expect(partition.state)
        yield from batches(source, scope.selection, partition)


def _state(source: EventSource) -> object:
    return source.state() if isinstance(source, Renewable) else None


@contextmanager
def _opened(open_source: Opener, scope: Scope, *, renewed: bool = False) -> Iterator[EventSource]:
    with told_plainly():
        source = open_source(scope.url, scope.mapping)
        with told_plainly(source):
            if renewed and isinstance(source, Renewable):
                source.renew()
            yield source

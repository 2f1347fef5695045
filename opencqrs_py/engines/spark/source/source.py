"""The event store as a Spark data source, for any Spark user: ``format("opencqrs")``, batch and streaming.

``read`` runs on executors, once per range of positions, and opens the store there; all else runs on the driver, in a
Python worker that Spark starts for planning (batch) or for as long as the query lives (stream). The source, its options
and its readers are pickled: they describe how to open a store and what to read, and hold nothing open.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from opencqrs_py.engines.spark.source.columns import Available, ReadColumns
from opencqrs_py.engines.spark.source.ranges import Range, cut, steps_of
from opencqrs_py.engines.spark.source.scope import Scope, narrowed, scope_of
from opencqrs_py.errors import EngineError, ExplainedError, OtherLogError
from opencqrs_py.model.event import Event
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.processing.ports import EventSource

_FIRST_ROWS = 500  # events of the first batch, which shows how large they are
_MOST_ROWS = 10_000
_BATCH_BYTES = 16_000_000  # approximate size of a batch in memory
_FORMAT = 'format("opencqrs")'
_OTHER_LOG = (
    "name the event store that the checkpoint belongs to; or read this one from its beginning, "
    "with a new checkpoint folder"
)
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"  # PySpark reads it when it sends an error to the JVM; the worker ends then

Opener: TypeAlias = Callable[[str, TableMapping | None], EventSource]
"""Opens the event store at a URL, or the table that a mapping names there.

Called on the driver and on executors, once per use of the store.
"""

StreamOffset: TypeAlias = dict[str, Any]
"""How far a stream has read, as its checkpoint stores it in JSON; see ``StreamReader``."""

Session = SparkSession  # so that the assembly can name it without importing PySpark


class EventLogSource(DataSource):
    """The event store as a data source.

    Options: ``url`` (of the store), ``subject`` (default ``/``), ``recursive`` (default ``true``), ``types`` (separated
    by commas), ``from`` and ``to`` (first and last position, or times), ``schema`` (fields of the data that become
    columns) and ``fieldPrefix`` (what their names begin with), ``ranges`` (most parts read in parallel) and
    ``maxEventsPerTrigger`` (most events of a micro-batch). They are described in ``docs/how-to/query-with-spark.md``.
    ``mapping.table`` and others of its kind name a table of another system, as the settings below
    ``event-store.mapping`` do.

    Rows: position (BIGINT, the store's global order), id, source, subject, type, time (TIMESTAMP), content_type,
    payload (the data as VARIANT), extensions (other attributes as MAP<STRING,STRING>). With the option ``schema`` the
    fields that it names replace content_type and payload. ``.schema(…)`` selects some of all of these, and can request
    time, payload and extensions as STRING, as they are stored.
    """

    ranges: ClassVar[int] = 8
    """Most ranges that are read in parallel, unless an option sets it."""

    push_filters: ClassVar[bool] = False
    """Whether the store checks what it can of a query's WHERE; see ``FilteringReader`` for when that is correct."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(…)``."""
        return "opencqrs"

    @staticmethod
    @abstractmethod
    def open_source(url: str, mapping: TableMapping | None = None) -> EventSource:
        """Open the event store, or the table that a mapping names; on the driver and on executors.

        Raises:
            ExplainedError: If the URL shows that there is none.
        """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Check the options, so that an error is raised by ``load()``."""
        super().__init__(options)
        with told_plainly():
            self._scope = scope_of(self.options, self.ranges)
            self._available = Available(self._scope.fields, self._scope.field_prefix)
            self.open_source(self._scope.url, self._scope.mapping)

    def schema(self) -> StructType:
        """Return the columns of a data frame whose reader names none."""
        return self._available.usual()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``."""
        with told_plainly():
            reader = FilteringReader if self.push_filters else BatchReader
            return reader(self.open_source, self._scope, self._available.chosen(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 Spark's name
        """Return the reader for ``spark.readStream``."""
        with told_plainly():
            return StreamReader(self.open_source, self._scope, self._available.chosen(schema))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: FBT001 Spark's signature
        """Refuse ``df.write`` with OCQ-413: the data source only reads."""
        del schema, overwrite
        _refuse_writing()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: FBT001, N802 as above
        """Refuse ``df.writeStream`` likewise."""
        del schema, overwrite
        _refuse_writing()


def _refuse_writing() -> NoReturn:
    with told_plainly():
        fix = "write Parquet files with Spark, and add them with opencqrs events import"
        raise EngineError("OCQ-413", "Spark cannot add events to an event store", _FORMAT, fix)


@runtime_checkable
class Renewable(Protocol):
    """Further methods of event sources that keep what they have seen of the log.

    Spark's Python workers live on from query to query, and keep sources open.
    """

    def renew(self) -> None:
        """Start again, at the start of a query, with the current log."""
        ...


@runtime_checkable
class Replaceable(Renewable, Protocol):
    """Further methods of event sources whose log can be replaced by another one at the same place, as files can.

    They refuse a log that was changed since they were renewed.
    """

    def state(self) -> object:
        """Return the identity of the log as of the last check; it is pickled."""
        ...

    def expect(self, state: Any) -> None:
        """Check that the log is the one of a state, which may have grown, or raise an ``ExplainedError``."""
        ...


@runtime_checkable
class Columnar(Protocol):
    """Further methods of event sources that read single attributes, without an object for each event."""

    def read_columns(
        self, after: int, limit: int, selection: Selection, upto: int, columns: Sequence[str]
    ) -> tuple[int, Sequence[tuple[Any, ...]]]:
        """Read the selected events after ``after`` as rows of these attributes, the position first.

        Returns:
            The last position of the page, as ``Slice.upto``, and its rows.
        """
        ...


@contextmanager
def told_plainly(source: EventSource | None = None) -> Iterator[None]:
    """Show an error that is written for a person without the stack trace before it.

    Raises:
        EngineError: OCQ-412 instead of a driver's error, if it means that ``source`` is unavailable.
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
        fix = "read again when it is available; a stream continues from its checkpoint"
        raise EngineError("OCQ-412", f"the event store is unavailable ({reason})", _FORMAT, fix) from error


class _Reader:
    """What both readers share: how to open the store, what to read from it, and which columns to make."""

    def __init__(self, open_source: Opener, scope: Scope, columns: ReadColumns) -> None:
        self._open = open_source
        self._scope = scope
        self._columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range. Runs on an executor."""
        span: Any = partition
        with self._opened() as source:
            if isinstance(source, Replaceable) and span.state is not None:
                source.expect(span.state)
            yield from batches(source, self._scope.selection, span, self._columns)

    def _ranges(self, source: EventSource, after: int, upto: int) -> list[Range]:
        return cut(after, upto, self._scope.ranges, _state(source), steps_of(source, after, upto))

    @contextmanager
    def _opened(self, *, renewed: bool = False) -> Iterator[EventSource]:
        with told_plainly():
            source = self._open(self._scope.url, self._scope.mapping)
            with told_plainly(source):
                if renewed and isinstance(source, Renewable):
                    source.renew()
                yield source


class BatchReader(_Reader, DataSourceReader):
    """Reads everything up to the head at the time the query is planned, in parallel ranges."""

    def partitions(self) -> Sequence[Range]:
        """Return the ranges, at least one."""
        with self._opened(renewed=True) as source:
            end = self._scope.end(source, source.head())
            start = self._scope.start(source) if end > 0 else 0
            return self._ranges(source, start, end) or [Range(0, 0)]


class FilteringReader(BatchReader):
    """Reads in batches, and has the store check what it can of a query's WHERE.

    Only for data frames that are used in one query: Spark 4.3 plans the ranges once for all queries of a data frame,
    with the filters of the query that it planned last, and so returns too few events for the others.

    Source:
        ``PythonScanBuilder.pushFilters`` and ``PythonDataSourceV2.setReadInfo`` of Spark 4.3; fixed for Spark 5 in
        SPARK-58551.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 Spark's name
        """Accept the filters that the store can check, and return those that Spark must check."""
        for condition in filters:
            found = narrowed(self._scope, condition)
            if found is not None:
                self._scope = found.scope
            if found is None or not found.exact:
                yield condition


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the head. An offset is ``{"position": n, "log": mark}``: everything up to ``n`` has been read.

    Stores show events in the order of their positions, so none is missed when its transaction commits late. The mark is
    the store's fingerprint of the log up to ``n``. With it, a query that is started again, or finds new events,
    recognizes another log, or one that was restored. Offsets of older versions have none, nor has a start that the log
    has not reached yet.
    """

    def __init__(self, open_source: Opener, scope: Scope, columns: ReadColumns) -> None:
        super().__init__(open_source, scope, columns)
        self._head = 0  # as last seen
        self._target: int | None = None  # where a query with Trigger.AvailableNow ends
        self._begun = False
        self._verified = False

    def initialOffset(self) -> StreamOffset:  # noqa: N802 Spark's name
        """Return where a new query starts."""
        with self._log() as source:
            start = self._scope.start(source)
            return _offset(source, start) if start <= source.head() else {"position": start}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 Spark's name
        """Return how much a micro-batch may hold."""
        most = self._scope.events_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 Spark's name
        """Fix where the query ends."""
        with self._log() as source:
            self._target = source.head()

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:  # noqa: N802 Spark's name
        """Return where the next micro-batch ends; ``start`` when there is nothing to read.

        Raises:
            EngineError: OCQ-411, if the log is not the one to which ``start`` belongs, or ends before it.
        """
        position = start["position"]
        with self._log() as source:
            self._head = head = source.head()
            if head > position or not self._verified:
                self._verify(source, start)
            if head < position and position > self._scope.start(source):
                raise shorter(position, head)
            end = max(position, self._scope.end(source, head if self._target is None else min(head, self._target)))
            if isinstance(limit, ReadMaxRows):
                end = admitted(source, self._scope.selection, Range(position, end), limit.max_rows)
            return start if end == position else _offset(source, end)

    def reportLatestOffset(self) -> StreamOffset | None:  # noqa: N802 Spark's name
        """Return the head as last seen; with it, the query's progress shows how far behind it is."""
        return {"position": self._head} if self._head else None

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[Range]:
        """Return the ranges between two offsets.

        Raises:
            EngineError: OCQ-411, as by ``latestOffset``: a query that is started again plans its last one first.
        """
        with self._log() as source:
            if not self._verified:
                self._verify(source, end)
            return self._ranges(source, start["position"], end["position"])

    def _verify(self, source: EventSource, offset: StreamOffset) -> None:
        """Compare the log with an offset, if the offset identifies its log."""
        mark = offset.get("log")
        if mark is not None:
            source.verify(offset["position"], mark)
            self._verified = True

    @contextmanager
    def _log(self) -> Iterator[EventSource]:
        """Open the log; if the store or ``_verify`` finds that it is another one, the error advises about the query."""
        renewed, self._begun = not self._begun, True
        try:
            with self._opened(renewed=renewed) as source:
                yield source
        except OtherLogError as error:
            raise EngineError("OCQ-411", error.what, _FORMAT, _OTHER_LOG) from error


def _offset(source: EventSource, position: int) -> StreamOffset:
    return {"position": position, "log": source.fingerprint(position)}


def _state(source: EventSource) -> object:
    return source.state() if isinstance(source, Replaceable) else None


def batches(source: EventSource, selection: Selection, span: Range, columns: ReadColumns) -> Iterator[pa.RecordBatch]:
    """Read the selected events of a range.

    Yields:
        Batches of up to 10,000 events and about 16 MB, in the order of positions.

    Raises:
        EngineError: OCQ-411, if the log ends before the range does; OCQ-419, if an event has a value that a column
            cannot hold.
    """
    after, limit = span.after, _FIRST_ROWS
    while after < span.upto:
        after, rows = _page(source, after, limit, selection, span.upto, columns.read)
        limit = _MOST_ROWS
        if rows:
            batch, size = columns.batch(rows)
            limit = max(1, min(_MOST_ROWS, _BATCH_BYTES * len(rows) // size))
            yield batch


def _page(
    source: EventSource, after: int, limit: int, selection: Selection, upto: int, columns: Sequence[str]
) -> tuple[int, Sequence[tuple[Any, ...]]]:
    if not isinstance(source, Columnar):
        part = _following(source, after, limit, selection, upto)
        places = [Event._fields.index(name) for name in columns]
        return part.upto, [tuple(event[place] for place in places) for event in part.events]
    end, rows = source.read_columns(after, limit, selection, upto, columns)
    if end <= after:
        raise shorter(after + 1, source.head())
    return end, rows


def admitted(source: EventSource, selection: Selection, span: Range, most: int) -> int:
    """Return the last position up to which a range holds at most ``most`` selected events, by reading them.

    Raises:
        EngineError: OCQ-411, if the log ends before the range does.
    """
    after = span.after
    while most > 0 and after < span.upto and span.upto - after > most:
        part = _following(source, after, min(most, _MOST_ROWS), selection, span.upto)
        most -= len(part.events)
        after = part.upto
    return span.upto if most > 0 else after


def shorter(position: int, end: int) -> EngineError:
    """Return the error for a log that ends at ``end``, although ``position`` was read before."""
    what = f"the log ends at position {end}, but position {position} existed before: it is another log, or was restored"
    fix = "read the whole log again; a stream needs a new checkpoint folder for it"
    return EngineError("OCQ-411", what, _FORMAT, fix)


def _following(source: EventSource, after: int, limit: int, selection: Selection, upto: int) -> Slice:
    part = source.read(after, limit, selection, upto)
    if part.upto <= after:
        raise shorter(after + 1, source.head())
    return part

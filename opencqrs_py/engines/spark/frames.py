"""Data frames of the events of a range: executors read, upcast and decode them, with the parts that tasks have, too.

``SparkFrames`` and ``LocalFrames`` run on the driver, once per range. ``_RangeReader`` runs on executors, once per part
of a range; it is pickled, and contains names and the location of the recipe, nothing open.
"""

from __future__ import annotations

import sys
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import Accumulator, AccumulatorParam
from pyspark.accumulators import _accumulatorRegistry
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from opencqrs_py.engines.spark.frame_errors import error_of_failed_job, job_error, raised_for, worker_error
from opencqrs_py.engines.spark.frame_rows import DriverRows, ExecutorRows
from opencqrs_py.engines.spark.jobs import failures_of_jobs, is_cancelled
from opencqrs_py.engines.spark.session import Sessions, SessionSettings, active_session, is_gone
from opencqrs_py.engines.spark.source.ranges import cut
from opencqrs_py.engines.spark.tasks import SentRecipe, parts_of
from opencqrs_py.errors import HandlerSignatureError, UnavailableError
from opencqrs_py.model.event import Event
from opencqrs_py.processing.frames import FrameMaker, FrameProcessing, OpenedFrames
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.ranges import PositionRange
from opencqrs_py.processing.staging import FrameRows

_CANCELLED = "SPARK_JOB_CANCELLED"
_WITHOUT_COLUMN = "use a class without the field, or take the data as JSON text: events.as_stored()"


# --------------------------------------------------------------------------------------------------------- executors


class _Counts(AccumulatorParam[dict[Any, int]]):
    """Counts by part: a part that is read twice counts once."""

    def zero(self, value: dict[Any, int]) -> dict[Any, int]:
        del value
        return {}

    def addInPlace(self, value1: dict[Any, int], value2: dict[Any, int]) -> dict[Any, int]:  # noqa: N802 Spark's name
        value1.update(value2)
        return value1


def events_in(read: Mapping[tuple[str, int, int], int]) -> int:
    """Return how many events were read, given the rows of each class and part; ``as_stored`` has those of all."""
    stored = {(after, upto) for event_class, after, upto in read if not event_class}
    return sum(
        rows for (event_class, after, upto), rows in read.items() if not event_class or (after, upto) not in stored
    )


@dataclass
class _RangeReader:
    """Reads parts of a range on executors.

    Attributes:
        recipe: Builds the group's parts, or locates the recipe that does.
        event_class: ``module:Class`` whose fields are columns; empty for none.
        parts: Positions ``after, upto`` of each part.
        schema: The columns.
        counts: Gets how many events each part had.
    """

    recipe: SentRecipe[GroupProcessing]
    event_class: str
    parts: tuple[tuple[int, int], ...]
    schema: StructType
    counts: Accumulator[dict[Any, int]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the events of the parts whose numbers are given."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._part(number)

    def _part(self, number: int) -> Iterator[pa.RecordBatch]:
        after, upto = self.parts[number]
        processing: Any = None
        rows = 0
        try:
            processing = parts_of(self.recipe)
            event_class = _class_named(self.event_class) if self.event_class else None
            wanted = to_arrow_schema(self.schema, timezone="UTC")
            for table in processing.tables(event_class, after, upto):
                rows += len(table)
                yield from table.cast(wanted).to_batches()
        except Exception as error:
            raise raised_for(error, processing) from error
        self.counts.add({(self.event_class, after, upto): rows})


def _class_named(path: str) -> Any:
    module, _, name = path.partition(":")
    return reduce(getattr, name.split("."), __import__(module, fromlist=["_"]))


# ------------------------------------------------------------------------------------------------------------ driver


class _Frames(OpenedFrames):
    """What data frames on executors and those of a test share."""

    def __init__(self, processing: FrameProcessing, events: PositionRange, first: Event) -> None:
        super().__init__(first.position, events.upto)
        self._processing = processing
        self._frames: dict[type | None, DataFrame] = {}

    def of(self, event_class: type) -> DataFrame:
        return self._frame(event_class)

    def as_stored(self) -> DataFrame:
        return self._frame(None)

    def _frame(self, event_class: type | None) -> DataFrame:
        if event_class not in self._frames:
            place = self._processing.frames.bound.handler.place
            schema = schema_of(event_class, self._processing.frames.tables_of(event_class).schema, place)
            self._frames[event_class] = self._made(event_class, schema)
        return self._frames[event_class]

    @abstractmethod
    def _made(self, event_class: type | None, schema: StructType) -> DataFrame: ...


def schema_of(event_class: type | None, schema: pa.Schema, place: str) -> StructType:
    """Return the columns of a data frame for those of a table; raise OCQ-238 for one that Spark does not have."""
    for field in schema:
        if not _is_known(field):
            name = event_class.__name__ if event_class is not None else ""
            what = f"{name}.{field.name}: Spark has no column for {field.type}"
            raise HandlerSignatureError("OCQ-238", what, place, _WITHOUT_COLUMN)
    return from_arrow_schema(schema)


def _is_known(field: pa.Field) -> bool:
    """Return whether Spark has a type for a column; PySpark takes decimals of any size for decimals of Spark."""
    if pa.types.is_decimal256(field.type):
        return False
    if inner := field.type.num_fields:
        return all(_is_known(field.type.field(index)) for index in range(inner))
    try:
        from_arrow_schema(pa.schema([field]))
    except PySparkException:
        return False
    return True


class _ExecutorFrames(_Frames):
    def __init__(
        self,
        spark: SparkSession,
        session: Callable[[], SparkSession],
        recipe: SentRecipe[GroupProcessing],
        processing: FrameProcessing,
        events: PositionRange,
        first: Event,
    ) -> None:
        super().__init__(processing, events, first)
        self._spark = spark
        self._session = session
        self._recipe = recipe
        self._counts = spark.sparkContext.accumulator({}, _Counts())
        self._readers: list[_RangeReader] = []
        self._tag = f"opencqrs-range-{uuid.uuid4().hex}"  # of the jobs that the handler starts for this range

    @property
    def handled(self) -> int:
        return events_in(self._counts.value)

    @property
    def rows(self) -> FrameRows:
        return ExecutorRows(self._recipe, self._processing)

    def require_read(self) -> None:
        if is_cancelled(self._spark.sparkContext):
            raise UnavailableError("OCQ-420", "a Spark job was cancelled, and the handler caught the error")
        if self._readers:
            self._require_jobs()
        read = self._counts.value
        for reader in self._readers:
            unread = tuple(part for part in reader.parts if (reader.event_class, *part) not in read)
            if unread:
                self._read_by(replace(reader, parts=unread)).count()

    def _require_jobs(self) -> None:
        """Raise why a job of the handler has failed, unless that is up to the handler, which may have caught it."""
        for reason in failures_of_jobs(self._spark.sparkContext, self._tag):
            if (error := error_of_failed_job(reason)) is not None:
                raise error

    def close(self) -> None:
        if self._readers:
            with suppress(Py4JError, OSError, AttributeError):  # the JVM may be gone, or the session stopped
                self._spark.sparkContext.removeJobTag(self._tag)
        _accumulatorRegistry.pop(self._counts.aid, None)  # where PySpark keeps each one forever

    def _made(self, event_class: type | None, schema: StructType) -> DataFrame:
        slots = max(1, self._spark.sparkContext.defaultParallelism)
        parts = tuple((part.after, part.upto) for part in cut(self.first - 1, self.last, slots))
        path = "" if event_class is None else _path_of(event_class, self._processing.frames.bound.handler.place)
        reader = _RangeReader(self._recipe, path, parts, schema, self._counts)
        if not self._readers:
            self._spark.sparkContext.addJobTag(self._tag)
        self._readers.append(reader)
        return self._read_by(reader)

    def _read_by(self, reader: _RangeReader) -> DataFrame:
        numbers = self._session().range(0, len(reader.parts), 1, len(reader.parts))
        return numbers.mapInArrow(reader.__call__, reader.schema)


def session_of_group(spark: SparkSession) -> SparkSession:
    """Return a session with the settings, views and functions of another one; later changes are its own.

    Handlers of several groups run at once. In one session, a view replaces another one of the same name.
    """
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001 newSession drops settings


class SparkFrames(FrameMaker):
    """Makes data frames that executors read.

    Args:
        spark: The session.
        recipe: Builds the group's parts on executors, or locates the recipe that does.
        processing: The group.

    Raises:
        HandlerSignatureError: OCQ-238, if Spark has no column for a field of the handler's class.
    """

    def __init__(self, spark: SparkSession, recipe: SentRecipe[GroupProcessing], processing: FrameProcessing) -> None:
        handler = processing.frames.bound.handler
        schema_of(handler.mark.events, processing.frames.schema, handler.place)
        self._spark = spark
        self._session = cache(lambda: session_of_group(spark))
        self._recipe = recipe
        self._processing = processing

    def frames(self, events: PositionRange, first: Event) -> OpenedFrames:
        """Return the data frames of a range."""
        return _ExecutorFrames(self._spark, self._session, self._recipe, self._processing, events, first)

    def explained(self, error: BaseException) -> BaseException:
        """Return how an error of a call is classified."""
        if (of_worker := worker_error(error)) is not None:
            return of_worker
        if _CANCELLED in str(error) and isinstance(error, PySparkException | Py4JError):
            return UnavailableError("OCQ-420", "a Spark job was cancelled")
        if is_gone(self._spark, error):
            return UnavailableError("OCQ-420", f"Spark's JVM is gone ({type(error).__name__})")
        return job_error(error)


class _DriverFrames(_Frames):
    def __init__(
        self,
        spark: Callable[[], SparkSession],
        noted: Callable[[list[int]], None],
        processing: FrameProcessing,
        events: PositionRange,
        first: Event,
    ) -> None:
        super().__init__(processing, events, first)
        self._open = spark
        self._noted = noted
        self._positions: set[int] = set()

    @property
    def handled(self) -> int:
        return len(self._positions)

    @property
    def rows(self) -> FrameRows:
        return DriverRows(self._processing.group)

    def _made(self, event_class: type | None, schema: StructType) -> DataFrame:
        found = list(self._processing.tables(event_class, self.first - 1, self.last))
        for each in found:
            positions = each["position"].to_pylist()
            self._noted(positions)
            self._positions.update(positions)
        wanted = to_arrow_schema(schema, timezone="UTC")
        table = pa.concat_tables([each.cast(wanted) for each in found]) if found else wanted.empty_table()
        return self._open().createDataFrame(table, schema)


class LocalFrames(FrameMaker):
    """Makes data frames of what the driver has read, for tests: their event store is in memory.

    Args:
        spark: Returns the session.
        processing: The group.
        noted: Gets the positions of the events that the handler gets.
    """

    def __init__(
        self, spark: Callable[[], SparkSession], processing: FrameProcessing, noted: Callable[[list[int]], None]
    ) -> None:
        self._open = cache(lambda: session_of_group(spark()))
        self._processing = processing
        self._noted = noted

    def frames(self, events: PositionRange, first: Event) -> OpenedFrames:
        """Return the data frames of a range."""
        return _DriverFrames(self._open, self._noted, self._processing, events, first)

    def explained(self, error: BaseException) -> BaseException:
        """Return the error as it is: it was raised in this process."""
        return error


def _path_of(event_class: type, place: str) -> str:
    """Return the name by which workers import a class; raise OCQ-241 if they cannot."""
    module, name = event_class.__module__, event_class.__qualname__
    found: Any = sys.modules.get(module)
    try:
        found = reduce(getattr, name.split("."), found)
    except AttributeError:
        found = None
    if found is not event_class or module == "__main__":
        what = f"Spark's workers cannot import the class {name} of module {module}"
        raise HandlerSignatureError("OCQ-241", what, place, "write the class at the top level of a module")
    return f"{module}:{name}"


def local_session() -> SparkSession:
    """Return the session of this process; without one, a small local one is opened, and stays open."""
    existing = active_session()
    if existing is not None:
        return existing
    quick = {"spark.sql.shuffle.partitions": "1"}
    return Sessions(SessionSettings(master="local[1]", conf=quick, name="opencqrs tests")).open()

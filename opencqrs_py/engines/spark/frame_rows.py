"""The rows of the data frames that handlers write: how they get from tasks to the driver, or to where it finds them.

``ExecutorRows`` and ``DriverRows`` run on the driver, once per call of a handler. ``_RowTaker`` and what keeps rows run
on executors, once per task; they are pickled, and contain names and the location of the recipe, nothing open.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from typing_extensions import override

from opencqrs_py.engines.spark.frame_errors import STAGE, raised_for, worker_error
from opencqrs_py.engines.spark.tasks import KeptRecipe, SentRecipe, parts_of
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.staging import CollectedRows, FrameRows, RowStaging, Stage, StagedRows

MOST_ROWS, MOST_BYTES = 5_000, 2 << 20
"""Of a task, that are returned with its result."""

_RESULT = "rows binary, run string, count bigint"


# --------------------------------------------------------------------------------------------------------- executors


class _Keeper(Protocol):
    """Keeps the rows of a task that has many."""

    def keep(self, run: str, batches: Iterator[pa.RecordBatch]) -> int:
        """Keep the rows under the name of the task's run; return how many."""
        ...


@dataclass(frozen=True, slots=True)
class _InStage:
    """Keeps rows in a table of the database."""

    recipe: SentRecipe[GroupProcessing]
    stage: Stage

    def keep(self, run: str, batches: Iterator[pa.RecordBatch]) -> int:
        """Write the rows into the stage; raises ``RangeFailedError``."""
        processing: GroupProcessing | None = None
        try:
            processing = parts_of(self.recipe)
            return _staging(processing).stage(self.stage, run, batches)
        except Exception as error:
            raise raised_for(error, processing, STAGE) from error


def _staging(processing: GroupProcessing) -> RowStaging:
    tracker: object = processing.tracker
    if not isinstance(tracker, RowStaging):
        msg = f"the progress tracker of group '{processing.group}' differs between executors and driver"
        raise TypeError(msg)
    return tracker


@dataclass(frozen=True, slots=True)
class _InFile:
    """Keeps rows in a file that only this user can read, in a folder of this machine."""

    folder: str

    def keep(self, run: str, batches: Iterator[pa.RecordBatch]) -> int:
        """Write the rows into a file with the name of the run."""
        first = next(batches)
        handle = os.open(Path(self.folder, run), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        count = 0
        with open(handle, "wb") as file, pa.ipc.new_stream(file, first.schema) as writer:  # noqa: PTH123 - a handle
            for batch in chain([first], batches):
                writer.write_batch(batch)
                count += batch.num_rows
        return count


@dataclass(frozen=True, slots=True)
class _RowTaker:
    """Sends back the rows of a task if they are few; others are kept elsewhere."""

    keeper: _Keeper

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a single row with the rows as bytes, or with the name under which they are kept; none for no rows."""
        held: list[pa.RecordBatch] = []
        rows = size = 0
        rest = iter(batches)
        for batch in rest:
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows > MOST_ROWS or size > MOST_BYTES:
                run = uuid.uuid4().hex
                yield _result(b"", run, self.keeper.keep(run, chain(held, rest)))
                return
        if rows:
            yield _result(_packed(held), "", rows)


def _each_packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a row with each batch as bytes. Runs on executors."""
    for batch in batches:
        if batch.num_rows:
            yield _result(_packed([batch]), "", batch.num_rows)


def _result(rows: bytes, run: str, count: int) -> pa.RecordBatch:
    columns = [pa.array([rows], pa.binary()), pa.array([run], pa.string()), pa.array([count], pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["rows", "run", "count"])


def _packed(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


# ------------------------------------------------------------------------------------------------------------ driver


class DriverRows(FrameRows):
    """Has the driver fetch rows partition by partition, one after the other.

    Args:
        group: The group's name.
    """

    def __init__(self, group: str) -> None:
        self._group = group

    @property
    @override
    def group(self) -> str:
        return self._group

    @override
    def can_stage(self) -> bool:
        return False

    @override
    def collected(self, frame: DataFrame, stage: Stage | None) -> AbstractContextManager[CollectedRows]:
        return nullcontext(CollectedRows((), _one_by_one(frame)))


class ExecutorRows(DriverRows):
    """Has tasks store rows in a stage or, with a local master, in files; else the driver fetches them.

    Args:
        recipe: Builds the group's parts on executors, or locates the recipe that does.
        processing: The group.
    """

    def __init__(self, recipe: SentRecipe[GroupProcessing], processing: GroupProcessing) -> None:
        super().__init__(processing.group)
        self._recipe = recipe
        self._tracker: object = processing.tracker

    @override
    def can_stage(self) -> bool:
        return isinstance(self._tracker, RowStaging)

    @override
    @contextmanager
    def collected(self, frame: DataFrame, stage: Stage | None) -> Iterator[CollectedRows]:
        if stage is not None:
            yield _collected(frame, _InStage(self._recipe, stage))
        elif isinstance(self._recipe, KeptRecipe):
            folder = mkdtemp(prefix="rows-", dir=Path(self._recipe.file).parent)
            try:
                yield _collected(frame, _InFile(folder), Path(folder))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        else:
            yield CollectedRows((), _one_by_one(frame))


def _collected(frame: DataFrame, keeper: _Keeper, folder: Path | None = None) -> CollectedRows:
    """Compute a data frame; what tasks have kept is in a stage, or in files of a folder."""
    try:
        found: list[dict[str, Any]] = frame.mapInArrow(_RowTaker(keeper).__call__, _RESULT).toArrow().to_pylist()
    except Exception as error:
        if (cause := worker_error(error)) is None:
            raise
        raise cause from error
    kept = [StagedRows(result["run"], result["count"]) for result in found if result["run"]]
    returned = _unpacked(result["rows"] for result in found if not result["run"])
    if folder is None:
        return CollectedRows(tuple(kept), returned)
    return CollectedRows((), chain(returned, _read(folder / rows.run for rows in kept)))


def _one_by_one(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    results = frame.mapInArrow(_each_packed, _RESULT).toLocalIterator(prefetchPartitions=True)
    return _unpacked(result["rows"] for result in results)


def _unpacked(packed: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    for rows in packed:
        with pa.ipc.open_stream(pa.py_buffer(bytes(rows))) as batches:
            yield from batches


def _read(files: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    for file in files:
        with pa.OSFile(str(file)) as opened, pa.ipc.open_stream(opened) as batches:
            yield from batches
        file.unlink()

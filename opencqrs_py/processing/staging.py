"""Staging: rows of a data frame on their way into a table, where tasks store rows that are too many for the driver.

A handler's data frame is computed by tasks. A few rows are returned with a task's result. Larger numbers are stored
where the driver finds them: in a table of the read models' database, or in a file on the same machine. Each run of a
task stores them under its own name, and the driver takes only those of runs that Spark counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Protocol, runtime_checkable

RecordBatches = Any
"""A ``pyarrow.Table`` or ``RecordBatch``; the core works without pyarrow."""

KeptMoment = Callable[[date | str], date | str]
"""Converts a day, a moment or a text to what a column holds."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A table in which tasks store rows. Pickled with each task: it contains names, and functions of modules.

    Attributes:
        schema: Its schema; ``None``: where connections begin.
        name: Its name.
        definition: The statement that creates it unless it is there.
        columns: Names of the columns whose values ``c0``, ``c1``, … hold.
        types: Their types in SQL, where the dialect needs them.
        keys: The columns that must have a value.
        target: The final table of the rows, for messages.
        rounded: The columns that would round numbers which they cannot hold.
        short: The columns that hold UUIDs in 32 characters.
        moments: The columns whose days or moments are converted first, and what does so.
    """

    schema: str | None
    name: str
    definition: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    keys: tuple[str, ...]
    target: str
    rounded: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    moments: Mapping[str, KeptMoment] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows that one run of a task has stored in a stage: the run's name, and their number."""

    run: str
    count: int


@dataclass(frozen=True, slots=True)
class CollectedRows:
    """The rows of a data frame: those in a stage, and all others, a few thousand at a time."""

    staged: tuple[StagedRows, ...]
    tables: Iterator[RecordBatches]


class FrameRows(Protocol):
    """Fetches the rows of data frames for one call of a handler."""

    @property
    def group(self) -> str:
        """The group's name."""
        ...

    def can_stage(self) -> bool:
        """Return whether tasks can reach the database of the progress, and so can store rows in a stage."""
        ...

    def collected(self, frame: Any, stage: Stage | None) -> AbstractContextManager[CollectedRows]:
        """Have Spark compute a data frame; the block gets its rows.

        Args:
            frame: A ``pyspark.sql.DataFrame``.
            stage: Where tasks may store rows; ``None``: in files on this machine, or nowhere: then the driver fetches
                them partition by partition.

        Raises:
            OpenCqrsError: If a task could not store its rows, with the reason.
            PySparkException: As Spark raises it.
        """
        ...


@runtime_checkable
class RowStaging(Protocol):
    """A progress tracker in whose database tasks can store rows."""

    def stage(self, stage: Stage, run: str, tables: Iterable[RecordBatches]) -> int:
        """Write rows into a stage, which is created if necessary; return their number.

        Args:
            stage: The stage.
            run: The name of the run of the task.
            tables: The rows, a few thousand at a time.
        """
        ...


@runtime_checkable
class TakesFrameRows(Protocol):
    """A unit of work in which ``bulk.upsert`` takes data frames.

    Attributes:
        frame_rows: Fetches their rows; ``None`` if no handler of data frames is called.
    """

    frame_rows: FrameRows | None

"""Rows of a data frame on their way into a table: where tasks leave those that are too many for the driver.

A handler's data frame is computed by tasks. What few rows a task has come back with its result. More of them it leaves
where the driver finds them: in a table of the read models' database, or in a file of the same machine. Each run of a
task leaves them under a name of its own, and the driver takes those only whose runs Spark counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

Rows = Any
"""A ``pyarrow.Table`` or ``RecordBatch``; the core works without pyarrow."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A table in which tasks leave rows. Pickled with each task, so it holds names only.

    Attributes:
        schema: Its schema; ``None``: where connections begin.
        name: Its name.
        definition: The statement that creates it unless it is there.
        columns: Whose values its columns ``c0``, ``c1``, … hold.
        types: The types of these in SQL, where the dialect needs them.
        keys: Those of the columns that must have a value.
        target: The table that the rows go to, for messages.
    """

    schema: str | None
    name: str
    definition: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    keys: tuple[str, ...]
    target: str


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What one run of a task has left in a stage: the run's name, and how many rows."""

    run: str
    count: int


@dataclass(frozen=True, slots=True)
class CollectedRows:
    """The rows of a data frame: those that are in a stage, and all others, a few thousand at a time."""

    staged: tuple[StagedRows, ...]
    tables: Iterator[Rows]


class FrameRows(Protocol):
    """Brings the rows of the data frames of one call of a handler."""

    @property
    def group(self) -> str:
        """The group's name."""
        ...

    def can_stage(self) -> bool:
        """Return whether tasks reach the database of the progress, so that they can leave rows in a stage."""
        ...

    def collected(self, frame: Any, stage: Stage | None) -> AbstractContextManager[CollectedRows]:
        """Have Spark compute a data frame; the block gets its rows.

        Args:
            frame: A ``pyspark.sql.DataFrame``.
            stage: Where tasks may leave rows; ``None``: in files of this machine, or nowhere: then the driver fetches
                them partition by partition.

        Raises:
            OpenCqrsError: If a task could not leave its rows, with its reason.
            PySparkException: As Spark raises it.
        """
        ...


@runtime_checkable
class RowStaging(Protocol):
    """What a progress tracker does besides, if tasks can leave rows in its database."""

    def stage(self, stage: Stage, run: str, tables: Iterable[Rows]) -> int:
        """Write rows into a stage, which is created first if need be; return how many.

        Args:
            stage: Where.
            run: The name of the run of the task.
            tables: The rows, a few thousand at a time.
        """
        ...


@runtime_checkable
class TakesFrameRows(Protocol):
    """A unit of work in which ``bulk.upsert`` takes data frames.

    Attributes:
        frame_rows: Brings their rows; ``None`` if no handler of data frames is called.
    """

    frame_rows: FrameRows | None

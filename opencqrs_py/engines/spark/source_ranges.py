"""Ranges of positions: how a part of the log is cut up, and how a task reads one as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from opencqrs_py.errors import EngineError
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.processing.ports import EventSource

__all__ = ["SCHEMA", "Range", "admitted", "batches", "cut", "shorter"]

SCHEMA = (
    "position bigint, id string, source string, subject string, type string, time string, "
    "content_type string, payload string, extensions string"
)
_ARROW = pa.schema([(part.split()[0], pa.int64() if "bigint" in part else pa.string()) for part in SCHEMA.split(", ")])

_LEAST_PER_RANGE = 20_000  # positions: fewer are not worth a task of their own
_FIRST_ROWS = 500  # events of the first batch, which shows how large they are
_MOST_ROWS = 5_000
_BATCH_BYTES = 16_000_000  # what a batch is to take in memory, about


@dataclass
class Range(InputPartition):
    """Positions that one task reads: ``after + 1 .. upto``.

    Attributes:
        after: Position before the first one.
        upto: Last position.
        state: Of the log in which they were planned, if its source is ``Renewable``.
    """

    after: int
    upto: int
    state: object = None


def cut(after: int, upto: int, most: int, state: object = None) -> list[Range]:
    """Cut ``after + 1 .. upto`` of a log in some state into at most ``most`` ranges of the same length.

    Positions are what is shared out, since no store can say how many selected events lie between two of them. A range
    in a gap, or without a selected event, costs its task a look.
    """
    size = max(_LEAST_PER_RANGE, -(-(upto - after) // most))
    return [Range(first, min(first + size, upto), state) for first in range(after, upto, size)]


def batches(source: EventSource, selection: Selection, span: Range) -> Iterator[pa.RecordBatch]:
    """Read the selected events of a range.

    Yields:
        Batches of up to 5,000 events and about 16 MB, in the order of positions.

    Raises:
        EngineError: OCQ-411, if the log ends before the range does.
    """
    after, rows = span.after, _FIRST_ROWS
    while after < span.upto:
        part = _following(source, after, rows, selection, span.upto)
        rows = _MOST_ROWS
        if part.events:
            columns = zip(zip(*part.events, strict=True), _ARROW.types, strict=True)
            arrays = [pa.array(column, kind) for column, kind in columns]
            batch = pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
            rows = max(1, min(_MOST_ROWS, _BATCH_BYTES * len(part.events) // batch.nbytes))
            yield batch
        after = part.upto


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
    """Return the error that the log ends at ``end``, although ``position`` was read before."""
    what = f"the log ends at position {end}, but {position} was there before: it is another log, or was restored"
    fix = "read the whole log again; a stream needs a new checkpoint folder for it"
    return EngineError("OCQ-411", what, 'format("opencqrs")', fix)


def _following(source: EventSource, after: int, limit: int, selection: Selection, upto: int) -> Slice:
    part = source.read(after, limit, selection, upto)
    if part.upto <= after:
        raise shorter(after + 1, source.head())
    return part

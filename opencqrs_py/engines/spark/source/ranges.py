"""The ranges of a log that tasks read in parallel: cut so that each holds about as many events as the others.

Runs on the driver, when a query is planned. No store knows how many selected events lie between two positions without
reading them. But an index finds the events next to a position at once, so it shows where there are none (gaps), and
their density elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol, runtime_checkable

from pyspark.sql.datasource import InputPartition

_LEAST_PER_RANGE = 20_000  # events: fewer are not worth a separate task
_MOST_STEPS = 64  # parts of the log that are examined
_ROUNDS = 12  # of lookups; each costs a statement
_SAMPLE = 100  # events of a part, from which its number of events is estimated


@runtime_checkable
class Seekable(Protocol):
    """Further methods of event sources whose positions may have gaps, and whose index finds events by position."""

    def neighbours(self, positions: Sequence[int], nth: int = 1) -> list[tuple[int | None, int | None]]:
        """Return for each position the last event at or before it, and the ``nth`` one after it; ``None`` for none."""
        ...


@dataclass
class Range(InputPartition):
    """Positions that one task reads, ``after + 1 .. upto``, and the state of the log in which they were planned.

    The state is ``None`` if the log's source is not ``Replaceable``.
    """

    after: int
    upto: int
    state: object = None


class LogPart(NamedTuple):
    """A part of the log, ``after + 1 .. upto``, with the approximate number of its events."""

    after: int
    upto: int
    events: float


def cut(after: int, upto: int, most: int, state: object = None, steps: Sequence[LogPart] = ()) -> list[Range]:
    """Cut ``after + 1 .. upto`` of a log in some state into at most ``most`` ranges of about as many events each.

    Args:
        after: Position before the first one.
        upto: The last one.
        most: At least 1.
        state: What the ranges remember.
        steps: Parts in their order, with their numbers of events; without them each position counts as one. Omitted
            parts count as empty, but still belong to some range.
    """
    steps = steps or [LogPart(after, upto, max(0, upto - after))]
    size = max(_LEAST_PER_RANGE, -(-sum(step.events for step in steps) // most))
    bounds, done = [after], 0.0
    for step in steps:
        while done + step.events > size * len(bounds):
            part = (size * len(bounds) - done) / step.events
            bounds.append(min(step.upto, step.after + round(part * (step.upto - step.after))))
        done += step.events
    bounds = sorted({*bounds[:most], upto})
    return [Range(first, last, state) for first, last in pairwise(bounds) if first >= after]


def steps_of(source: object, after: int, upto: int) -> list[LogPart]:
    """Return how the events of ``after + 1 .. upto`` are spread, by a few queries of an index; empty without one."""
    if upto - after <= _LEAST_PER_RANGE or not isinstance(source, Seekable):
        return []
    return _weighed(source, _parts(source, after, upto))


def _parts(source: Seekable, after: int, upto: int) -> list[tuple[int, int]]:
    """Return parts that begin before an event and end with one, none of which is much longer than the others.

    Long ones are halved until they are short. What lies between the last event of a half and the first one of the other
    is a gap, and no longer counts.
    """
    ((_, first),) = source.neighbours([after])
    ((last, _),) = source.neighbours([upto])
    if first is None or last is None or first > upto or last <= after:
        return []
    parts = [(first - 1, last)]
    for _ in range(_ROUNDS):
        most = max(_LEAST_PER_RANGE, sum(end - start for start, end in parts) * 2 // _MOST_STEPS)
        long = [part for part in parts if part[1] - part[0] > most]
        if not long or len(parts) > _MOST_STEPS:
            break
        middles = [(start + end) // 2 for start, end in long]
        halves = dict(zip(long, zip(middles, source.neighbours(middles), strict=True), strict=True))
        parts = [half for part in parts for half in _halved(part, halves.get(part))]
    return parts


def _halved(part: tuple[int, int], found: tuple[int, tuple[int | None, int | None]] | None) -> list[tuple[int, int]]:
    if found is None:
        return [part]
    start, end = part
    middle, (last, first) = found
    left = [(start, min(last, middle))] if last is not None and last > start else []
    right = [(max(first, middle + 1) - 1, end)] if first is not None and first <= end else []
    return left + right


def _weighed(source: Seekable, parts: list[tuple[int, int]]) -> list[LogPart]:
    """Return parts with the estimated number of their events, from how far the first hundred of each reach."""
    if not parts:
        return []
    found = source.neighbours([start for start, _ in parts], _SAMPLE)
    return [LogPart(start, end, _guess(start, end, nth)) for (start, end), (_, nth) in zip(parts, found, strict=True)]


def _guess(start: int, end: int, nth: int | None) -> float:
    if nth is None or nth > end:
        return float(min(_SAMPLE, end - start))
    return (end - start) * _SAMPLE / (nth - start)

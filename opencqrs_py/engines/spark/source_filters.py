"""Filters of a query: what of its WHERE the event store checks, so that fewer events reach Spark.

Runs on the driver, in a Python worker that Spark starts for planning, once per query. Nothing has to pickle.

A filter that is taken in *exactly* is Spark's no more. One that only leaves out some of what it excludes stays with
Spark as well. Times are no bounds of positions, since events may be stored in another order than they happened in; and
stores do not look for ids. So filters on time, id, source and the payload are left to Spark alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from opencqrs_py.engines.spark.source_options import Scope
from opencqrs_py.model.selection import Selection

__all__ = ["Narrowed", "narrowed"]


class Narrowed(NamedTuple):
    """A scope with a filter taken in.

    Attributes:
        scope: What is left to read.
        exact: Whether the filter holds for all of it, so that Spark need not look again.
    """

    scope: Scope
    exact: bool = True


def narrowed(scope: Scope, condition: Filter) -> Narrowed | None:
    """Return the scope with a filter taken in, or ``None`` if only Spark can check it."""
    match condition:
        case EqualTo((column,), value) | EqualNullSafe((column,), value):
            return _one_of(scope, column, [value])
        case In((column,), values):
            return _one_of(scope, column, [value for value in values if value is not None])
        case StringStartsWith(("subject",), str(beginning)):
            return _below(scope, beginning)
        case _:
            return _compared(scope, condition)


def _one_of(scope: Scope, column: str, values: list[Any]) -> Narrowed | None:
    match column, values:
        case "type", [*types] if all(isinstance(t, str) for t in types):
            return Narrowed(_of_types(scope, types))
        case "subject", [str(subject)] if _is_ordinary(subject):
            return Narrowed(_of_subject(scope, Selection(subject, recursive=False)))
        case "position", [int(), *_]:
            return Narrowed(_between(scope, min(values) - 1, max(values)), exact=len(set(values)) == 1)
        case _:
            return None


def _compared(scope: Scope, condition: Filter) -> Narrowed | None:
    match condition:
        case GreaterThan(("position",), int(value)):
            return Narrowed(_between(scope, value, None))
        case GreaterThanOrEqual(("position",), int(value)):
            return Narrowed(_between(scope, value - 1, None))
        case LessThan(("position",), int(value)):
            return Narrowed(_between(scope, 0, value - 1))
        case LessThanOrEqual(("position",), int(value)):
            return Narrowed(_between(scope, 0, value))
        case _:
            return None


def _below(scope: Scope, beginning: str) -> Narrowed | None:
    """Take in a beginning of subjects, up to its last slash: ``/books/97`` reads ``/books`` and what is below it."""
    root = beginning.rpartition("/")[0].rstrip("/")
    return Narrowed(_of_subject(scope, Selection(root)), exact=False) if _is_ordinary(root) else None


def _is_ordinary(subject: str) -> bool:
    """Return whether every store can look for a subject; Spark looks for all others itself."""
    return subject == "/" or (subject.startswith("/") and not subject.endswith("/") and "//" not in subject)


def _of_types(scope: Scope, types: Iterable[str]) -> Scope:
    selection = scope.selection
    wanted = frozenset(types) if selection.types is None else selection.types & frozenset(types)
    return replace(scope, selection=replace(selection, types=wanted)) if wanted else _of_nothing(scope)


def _of_subject(scope: Scope, other: Selection) -> Scope:
    """Keep the events that both selections mean; of two subjects, one contains the other or they share nothing."""
    own = scope.selection
    if _contains(own, other):
        selection = replace(own, subject=other.subject, recursive=other.recursive)
        return replace(scope, selection=selection)
    if _contains(other, own):
        return scope
    return _of_nothing(scope)


def _contains(outer: Selection, inner: Selection) -> bool:
    """Return whether ``outer`` means all the subjects that ``inner`` means."""
    if outer.everything:
        return True
    if inner.everything or (inner.recursive and not outer.recursive):
        return False
    return inner.subject == outer.subject or (outer.recursive and inner.subject.startswith(outer.prefix))


def _between(scope: Scope, after: int, upto: int | None) -> Scope:
    last = [bound for bound in (scope.upto, upto) if bound is not None]
    return replace(scope, after=max(scope.after, after), upto=min(last, default=None))


def _of_nothing(scope: Scope) -> Scope:
    return replace(scope, upto=0)

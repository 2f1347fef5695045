"""Orders and reports: what driver and executors say to each other, as one line of JSON each.

Runs on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from opencqrs_py.model.outcome import Outcome
from opencqrs_py.model.progress import Cursor

__all__ = ["Order", "Report", "read_order", "read_report", "write_order", "write_report"]


@dataclass(frozen=True, slots=True)
class Order:
    """Work for one task: partitions of one group that share one reading of the log.

    Attributes:
        cursors: Where each of the partitions continues.
        seconds: Time after which no further step is begun.
    """

    cursors: tuple[Cursor, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """What came of an order: one outcome per cursor, in their order."""

    outcomes: tuple[Outcome, ...]


_ORDER = TypeAdapter(Order)
_REPORT = TypeAdapter(Report)


def write_order(order: Order) -> str:
    """Return the order as a line."""
    return _ORDER.dump_json(order).decode()


def read_order(line: str) -> Order:
    """Return the order that a line stands for."""
    return _ORDER.validate_json(line)


def write_report(report: Report) -> str:
    """Return the report as a line."""
    return _REPORT.dump_json(report).decode()


def read_report(line: str) -> Report:
    """Return the report that a line stands for."""
    return _REPORT.validate_json(line)

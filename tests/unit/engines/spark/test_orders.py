from __future__ import annotations

from opencqrs_py.engines.spark.orders import Order, Report, read_order, read_report, write_order, write_report
from opencqrs_py.model.outcome import Origin, Outcome, Trouble
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, Skip

CURSOR = Cursor(Partition(4, 3), epoch=2, stored=7, position=9, attempt=3, troubled=10, skip=True)


def test_an_order_survives_its_journey_as_one_line():
    order = Order((CURSOR, Cursor(Partition(4, 1), 1, 0, 0)), seconds=1.5)
    line = write_order(order)
    assert "\n" not in line
    assert read_order(line) == order


def test_a_report_with_a_traceback_survives_its_journey_as_one_line():
    trouble = Trouble(
        Origin.HANDLER, permanent=False, error="ValueError", message="a\nb ü", traceback="x\n  y", position=10
    )
    skip = Skip("g", CURSOR.partition, 9, "9", "s", "/ü", "lent", 3, "a\nb", "2026-01-01T00:00:00+00:00")
    report = Report((Outcome(CURSOR, handled=5, skips=(skip,), idle=True, trouble=trouble),))
    line = write_report(report)
    assert "\n" not in line
    assert read_report(line) == report

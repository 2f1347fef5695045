"""A made-up event log of a shop: four weeks of orders, the same every time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

__all__ = ["DAYS", "write_log"]

DAYS = 28
_FIRST = datetime(2026, 2, 2, tzinfo=UTC)  # a Monday
_ORDERS = (40, 44, 47, 52, 71, 96, 80)  # approximately, for each day of the week


def write_log(file: Path, first: int = 0, last: int = DAYS) -> None:
    """Write the events of the days ``first .. last - 1`` as CloudEvents, one per line."""
    lines = (json.dumps(event) for day in range(first, last) for event in _day(day))
    file.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _day(day: int) -> Iterator[dict[str, Any]]:
    draw = random.Random(day)  # noqa: S311 not for secrets
    midnight = _FIRST + timedelta(days=day)
    for number in range(draw.randint(-6, 6) + _ORDERS[day % 7]):
        order = f"{midnight:%m%d}-{number:03}"
        placed = midnight + timedelta(seconds=draw.randrange(20 * 3600))
        amount = round(draw.lognormvariate(3.4, 0.6), 2)
        yield _event(order, "shop.order-placed.v1", placed, customer=draw.randrange(200), amount=amount)
        later = placed + timedelta(minutes=draw.randrange(1, 200))
        if draw.random() < 0.9:
            yield _event(order, "shop.order-paid.v1", later, amount=amount)
        else:
            reason = draw.choice(["too slow", "too dear", "by mistake"])
            yield _event(order, "shop.order-cancelled.v1", later, reason=reason)


def _event(order: str, kind: str, time: datetime, **data: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": f"{order}-{kind.split('.')[1]}",
        "source": "urn:shop",
        "subject": f"/orders/{order}",
        "type": kind,
        "time": f"{time:%Y-%m-%dT%H:%M:%SZ}",
        "data": data,
    }

"""The log that ``replay.py`` handles, and the read model that must result from it.

Not a benchmark itself. Each event is a payment of an amount by an account; the read model has the number of payments
and their sum for each account. The events are made up or come from your own log. In the latter case the subject of an
event names the account, and a number in its data is the amount; type, order and all other data are unchanged.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from opencqrs_py.model.event import Event

__all__ = ["CREATE_TOTALS", "TYPE", "Totals", "made_up", "of_file", "totals_of"]

TYPE = "bank.paid.v1"
"""Type of the made-up events."""

ACCOUNTS = 1_000
"""How many accounts the made-up events belong to."""

CREATE_TOTALS = "CREATE TABLE totals (account TEXT PRIMARY KEY, events BIGINT NOT NULL, total BIGINT NOT NULL)"

Totals = dict[str, tuple[int, int]]
"""The read model: account to number of events and sum of amounts."""


def made_up(count: int, seed: int) -> Iterator[Event]:
    """Yield ``count`` events, the same for the same seed; about 60 characters of data each."""
    chance = Random(seed)
    for number in range(count):
        account = f"account-{chance.randrange(ACCOUNTS):04}"
        payload = f'{{"account":"{account}","amount":{chance.randrange(10_000)},"note":"invoice {number % 1000:06}"}}'
        yield _event(number, f"/accounts/{account}", TYPE, payload)


def of_file(file: Path) -> Iterator[Event]:
    """Yield the events of a log: one CloudEvent in JSON per line, compressed if the name ends in ``.gz``."""
    packed = file.suffix == ".gz"
    with gzip.open(file, "rt", encoding="utf-8") if packed else file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            event = json.loads(line)
            data = event.get("data") or {}
            account = "/".join(event["subject"].split("/")[:3])
            payload = json.dumps({**data, "account": account, "amount": _amount(data)})
            yield _event(number, event["subject"], event["type"], payload)


def totals_of(events: Iterable[Event], count: int | None = None) -> Totals:
    """Compute the read model of the first ``count`` events in the simplest way."""
    totals: dict[str, tuple[int, int]] = {}
    for event in islice(events, count):
        data = json.loads(event.payload or "")
        number, total = totals.get(data["account"], (0, 0))
        totals[data["account"]] = number + 1, total + data["amount"]
    return totals


def _event(number: int, subject: str, event_type: str, payload: str) -> Event:
    return Event(0, str(number), "urn:replay", subject, event_type, None, "application/json", payload, None)


def _amount(data: dict[str, Any]) -> int:
    """Return the first number of the data in hundredths, 0 if there is none."""
    numbers = (value for value in data.values() if isinstance(value, int | float) and not isinstance(value, bool))
    return round(100 * next(numbers, 0))

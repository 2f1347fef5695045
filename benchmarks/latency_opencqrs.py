"""The way of ``latency.py`` that uses our own event store and thread engine. Not a benchmark itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from opencqrs_py import Application, Observer, event_handling, on_start
from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.model.event import Event

__all__ = ["appending", "follow"]

CREATE = text("CREATE TABLE IF NOT EXISTS totals (account TEXT PRIMARY KEY, events BIGINT NOT NULL)")
UPSERT = text("INSERT INTO totals VALUES (:account, 1) ON CONFLICT (account) DO UPDATE SET events = totals.events + 1")


class Commits(Observer):
    """Records when events were committed."""

    latencies: Any

    def noticed(self, notice: object) -> None:
        """Raise, because a failure would distort the figures."""
        raise RuntimeError(notice)

    def advanced(self, *_: object) -> None:
        """Record the time after each step."""
        self.latencies.committed()


OBSERVER = Commits()


@on_start("totals")
def create(connection: Connection) -> None:
    """Create the read model."""
    connection.execute(CREATE)


@event_handling("totals", types=["paid"])
def pay(event: dict[str, Any], connection: Connection) -> None:
    """Write one payment."""
    connection.execute(UPSERT, {"account": event["account"]})
    OBSERVER.latencies.handled(event["at"])


@contextmanager
def appending(url: str) -> Iterator[Callable[[int, str, int], None]]:
    """Yield the function that appends one more event."""
    database = Database(url)
    store = SqlEventStore(database)

    def append(number: int, account: str, at: int) -> None:
        payload = json.dumps({"account": account, "at": at})
        store.append([Event(0, str(number), "bank", f"/{account}", "paid", None, "application/json", payload, None)])

    store.head()
    yield append
    database.close()


def follow(url: str, latencies: Any, ready: Callable[[], None]) -> None:
    """Run the thread engine until all events are handled."""
    OBSERVER.latencies = latencies
    settings = {"event-store.url": url, "event-handling.standard.processing.engine": "thread"}
    application = Application(settings, [create, pay], Path(__file__).parent)
    application.start(observer=OBSERVER)
    ready()
    latencies.complete.wait()
    application.stop()

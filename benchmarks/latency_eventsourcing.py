"""The way of ``latency.py`` that appends and follows with the public library ``eventsourcing``.

Not a benchmark itself. Its projection runner, woken by PostgreSQL's NOTIFY, calls the projection for each event, and
the view writes the read model and the tracking record in one transaction.

Install it with ``pip install eventsourcing 'psycopg[pool]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.application import Application
from eventsourcing.dispatch import singledispatchmethod
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import Tracking
from eventsourcing.postgres import PostgresTrackingRecorder
from eventsourcing.projection import Projection, ProjectionRunner
from psycopg.conninfo import conninfo_to_dict

__all__ = ["appending", "follow"]

CREATE = "CREATE TABLE IF NOT EXISTS totals (account TEXT PRIMARY KEY, events BIGINT NOT NULL)"
UPSERT = "INSERT INTO totals VALUES (%s, 1) ON CONFLICT (account) DO UPDATE SET events = totals.events + 1"


class Account(Aggregate):
    """An account."""

    def __init__(self, name: str) -> None:
        self.name = name

    @staticmethod
    def create_id(name: str) -> UUID:
        """Return the id of the account's aggregate."""
        return uuid5(NAMESPACE_URL, name)

    class Paid(Aggregate.Event):
        """A payment, with the moment of the call that appends it."""

        account: str
        at: int

    @event(Paid)
    def pay(self, account: str, at: int) -> None:
        """Record a payment; the aggregate itself keeps no sum."""


class Accounts(Application[UUID]):
    """The application whose events are handled."""


class View(PostgresTrackingRecorder):
    """The read model."""

    def pay(self, account: str, tracking: Tracking) -> None:
        """Write one payment and the tracking record in one transaction."""
        with self.datastore.transaction(commit=True) as cursor:
            self._insert_tracking(cursor, tracking)
            cursor.execute(UPSERT, (account,), prepare=True)


class Payments(Projection[Any]):
    """Passes payments to the view and skips everything else."""

    latencies: Any

    @singledispatchmethod
    def process_event(self, _domain_event: Any, tracking: Tracking) -> None:
        """Skip an event that is not a payment."""
        self.view.insert_tracking(tracking)

    @process_event.register
    def _pay(self, domain_event: Account.Paid, tracking: Tracking) -> None:
        self.view.pay(domain_event.account, tracking)
        self.latencies.handled(domain_event.at)
        self.latencies.committed()


@contextmanager
def appending(url: str) -> Iterator[Callable[[int, str, int], None]]:
    """Yield the function that saves one more event of an account."""
    with Accounts(env=_environment(url)) as app:
        accounts: dict[str, Account] = {}

        def append(_: int, name: str, at: int) -> None:
            account = accounts.get(name) or accounts.setdefault(name, Account(name))
            account.pay(name, at)
            app.save(account)

        yield append


def follow(url: str, latencies: Any, ready: Callable[[], None]) -> None:
    """Run the library's projection runner until all events are handled."""
    Payments.latencies = latencies
    runner = ProjectionRunner(
        application_class=Accounts, projection_class=Payments, view_class=View, env=_environment(url)
    )
    with runner:
        with runner.view.datastore.transaction(commit=True) as cursor:
            cursor.execute(CREATE)
        ready()
        while not latencies.complete.wait(0.1):
            runner.run_forever(timeout=0.001)


def _environment(url: str) -> dict[str, str]:
    parts = conninfo_to_dict(url)
    return {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": str(parts["dbname"]),
        "POSTGRES_HOST": str(parts.get("host", "")),
        "POSTGRES_PORT": str(parts.get("port", "5432")),
        "POSTGRES_USER": str(parts.get("user", "postgres")),
        "POSTGRES_PASSWORD": str(parts.get("password", "")),
    }

"""The way of ``replay.py`` that handles its log with the public library ``eventsourcing``.

Not a benchmark itself. The events are saved in the library's own form, with one aggregate per account. Its projection
runner then calls the projection for each event, and the view writes the read model and the tracking record in one
transaction. The runner needs subscriptions, which the library does not have on SQLite: there a loop selects its
notifications 1,000 at a time and passes them to the same projection.

Install it with ``pip install eventsourcing 'psycopg[pool]'``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.application import Application
from eventsourcing.dispatch import singledispatchmethod
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import Tracking
from eventsourcing.postgres import PostgresTrackingRecorder
from eventsourcing.projection import Projection, ProjectionRunner
from eventsourcing.sqlite import SQLiteTrackingRecorder
from sqlalchemy import create_engine, make_url, text

__all__ = ["replay"]

SAVED_AT_ONCE = 1_000
PATIENCE = 3_600.0
"""Longest time that the runner may take, in seconds."""

UPSERT = (
    "INSERT INTO totals (account, events, total) VALUES ({0}, 1, {0}) "
    "ON CONFLICT (account) DO UPDATE SET events = totals.events + 1, total = totals.total + excluded.total"
)


class Account(Aggregate):
    """An account."""

    def __init__(self, name: str) -> None:
        self.name = name

    @staticmethod
    def create_id(name: str) -> UUID:
        """Return the id of the account's aggregate."""
        return uuid5(NAMESPACE_URL, name)

    class Paid(Aggregate.Event):
        """A payment."""

        account: str
        amount: int

    @event(Paid)
    def pay(self, account: str, amount: int) -> None:
        """Record a payment; the aggregate itself keeps no sum."""


class Accounts(Application[UUID]):
    """The application whose events are handled."""


class PostgresView(PostgresTrackingRecorder):
    """The read model on PostgreSQL."""

    statement = UPSERT.format("%s")

    def pay(self, account: str, amount: int, tracking: Tracking) -> None:
        """Write one payment and the tracking record in one transaction."""
        with self.datastore.transaction(commit=True) as cursor:
            self._insert_tracking(cursor, tracking)
            cursor.execute(self.statement, (account, amount), prepare=True)


class SQLiteView(SQLiteTrackingRecorder):
    """The read model on SQLite."""

    statement = UPSERT.format("?")

    def pay(self, account: str, amount: int, tracking: Tracking) -> None:
        """Write one payment and the tracking record in one transaction."""
        with self.datastore.transaction(commit=True) as cursor:
            self._insert_tracking(cursor, tracking)
            cursor.execute(self.statement, (account, amount))


class Payments(Projection[Any]):
    """Passes payments to the view and skips everything else."""

    committed: Callable[[int], None]

    @singledispatchmethod
    def process_event(self, _domain_event: Any, tracking: Tracking) -> None:
        """Skip an event that is not a payment."""
        self.view.insert_tracking(tracking)

    @process_event.register
    def _pay(self, domain_event: Account.Paid, tracking: Tracking) -> None:
        self.view.pay(domain_event.account, domain_event.amount, tracking)
        type(self).committed(1)


def replay(url: str, watch: Any) -> None:
    """Save the first ``watch.total`` events of our table in the library's own form, then handle them."""
    Payments.committed = watch.add
    env = _environment(url)
    with Accounts(env=env) as app:
        _save(app, _payments(url, watch.total))
        last = app.recorder.max_notification_id()
        if not url.startswith("postgresql"):
            _by_hand(app, env)
            return
    runner = ProjectionRunner(application_class=Accounts, projection_class=Payments, view_class=PostgresView, env=env)
    with runner:
        runner.wait(last, timeout=PATIENCE)


def _by_hand(app: Accounts, env: dict[str, str]) -> None:
    view = app.factory.construct(env=env).tracking_recorder(SQLiteView)
    projection = Payments(view)
    position = 0
    while notifications := app.recorder.select_notifications(position + 1, limit=1_000):
        for notification in notifications:
            domain_event = app.mapper.to_domain_event(notification)
            projection.process_event(domain_event, Tracking(app.name, notification.id))
        position = notifications[-1].id


def _payments(url: str, count: int) -> Iterator[dict[str, Any]]:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    with create_engine(parsed).connect() as connection:
        read = text("SELECT payload FROM opencqrs_events ORDER BY position LIMIT :count")
        for (payload,) in connection.execute(read, {"count": count}).all():
            yield json.loads(payload)


def _save(app: Accounts, payments: Iterator[dict[str, Any]]) -> None:
    """Save the accounts first, so that their creation belongs to the warm-up."""
    all_payments = list(payments)
    accounts = {name: Account(name) for name in dict.fromkeys(data["account"] for data in all_payments)}
    for some in _chunks(iter(accounts.values())):
        app.save(*some)
    for part in _chunks(iter(all_payments)):
        for data in part:
            accounts[data["account"]].pay(data["account"], data["amount"])
        app.save(*(accounts[name] for name in dict.fromkeys(data["account"] for data in part)))


def _chunks(items: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(islice(items, SAVED_AT_ONCE)):
        yield chunk


def _environment(url: str) -> dict[str, str]:
    if url.startswith("sqlite"):
        return {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": make_url(url).database or ""}
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 not needed for SQLite

    parts = conninfo_to_dict(url)
    return {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": str(parts["dbname"]),
        "POSTGRES_HOST": str(parts.get("host", "")),
        "POSTGRES_PORT": str(parts.get("port", "5432")),
        "POSTGRES_USER": str(parts.get("user", "postgres")),
        "POSTGRES_PASSWORD": str(parts.get("password", "")),
    }

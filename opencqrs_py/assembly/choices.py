"""From the names in settings to the parts they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_origin

from opencqrs_py.adapters.memory import InMemoryProgressTracker, NoTransactions
from opencqrs_py.adapters.sql import Database, DatabaseTransactions, Engine, SchemaError, SqlProgressTracker
from opencqrs_py.assembly.conditions import tracking_of
from opencqrs_py.assembly.databases import DatabaseChoice, DatabaseRule
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.config import EffectiveGroup, RetryPolicy, Tracking
from opencqrs_py.errors import AssemblyError
from opencqrs_py.processing.ports import BackOff, ProgressTracker, Transactions
from opencqrs_py.processing.recovery import ExponentialBackOff, FixedBackOff, NoRetry
from opencqrs_py.processing.signatures import Kind, Signature

__all__ = [
    "back_off_for",
    "check_transaction",
    "open_database",
    "tracker_for",
    "transactions_on",
]


_DATABASES_OF = {"sqlite3": ("sqlite",), "psycopg": ("postgresql",), "pymysql": ("mariadb", "mysql")}


def open_database(
    choice: DatabaseChoice, injector: ContainerInjector, rule: DatabaseRule, event_database: Callable[[], Database]
) -> Database | None:
    """Return the read models' database, the event store's own when it is the same; ``None`` when there is none.

    Raises:
        ExplainedError: If it could not be decided which one it is, or if it is none that is supported.
        EventStoreError: OCQ-321 or OCQ-322, if it cannot have the schema that is set.
    """
    if choice.decision.error:
        raise choice.decision.error
    schema = rule.schema.value if rule.schema is not None else None
    if choice.url == rule.event_store.value and schema == rule.event_schema:
        return event_database()
    try:
        if choice.ref:
            return Database.of(injector.named(choice.ref, "database.ref", Engine), schema)
        return Database(choice.url, schema) if choice.url else None
    except SchemaError as error:
        if rule.schema is None:
            raise
        raise SchemaError(error.code, error.what, f"database.schema ({rule.schema.origin})", error.fix) from None


def transactions_on(database: Database | None) -> Transactions:
    """Return what opens the transactions that handlers write in."""
    return NoTransactions() if database is None else DatabaseTransactions(database)


def check_transaction(signature: Signature, place: str, *, there: bool, url: str = "") -> None:
    """Refuse a function that asks for the transaction when there is none, or for the connection of another driver.

    Args:
        signature: What the function asks for.
        place: How messages name it.
        there: Whether there are transactions.
        url: Of the database; empty when a provider makes its engine.

    Raises:
        AssemblyError: OCQ-524 or OCQ-525.
    """
    if signature.transactional and not there:
        what = "a connection or session is asked for, but there is no database"
        fix = "set database.url, or register a provider of a sqlalchemy.Engine"
        raise AssemblyError("OCQ-524", what, place, fix)
    kind = url.partition(":")[0].partition("+")[0]
    for argument in signature.arguments:
        driver = getattr(get_origin(argument.annotation) or argument.annotation, "__module__", "").partition(".")[0]
        if argument.kind is Kind.DRIVER and kind and kind not in _DATABASES_OF[driver]:
            what = f"'{argument.name}' asks for a connection of {driver}, but the database is {kind}"
            fix = "ask for sqlalchemy.Connection, or for the connection of the database's own driver"
            raise AssemblyError("OCQ-525", what, place, fix)


def tracker_for(settings: EffectiveGroup, database: Database | None, injector: ContainerInjector) -> ProgressTracker:
    """Return the group's progress tracker."""
    reference = settings.progress.tracker_ref
    if reference is not None:
        tracker: ProgressTracker = injector.named(reference, "progress.tracker-ref", ProgressTracker)
        return tracker
    if database is None or tracking_of(settings, database=True) is Tracking.IN_MEMORY:
        return InMemoryProgressTracker(transactions_on(database))
    return SqlProgressTracker(database)


def back_off_for(settings: EffectiveGroup) -> BackOff:
    """Return the waits between an event's attempts."""
    rule = settings.retry
    match rule.policy:
        case RetryPolicy.NONE:
            return NoRetry()
        case RetryPolicy.FIXED:
            return FixedBackOff(rule.initial_interval, rule.max_attempts)
        case RetryPolicy.EXPONENTIAL_BACKOFF:
            return ExponentialBackOff(
                initial=rule.initial_interval,
                multiplier=rule.multiplier,
                maximum=rule.max_interval,
                max_elapsed=rule.max_elapsed_time,
                max_attempts=rule.max_attempts,
                jitter=rule.jitter,
            )

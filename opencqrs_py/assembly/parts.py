"""Parts: each is made by its decision, built in or by a provider of the project."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import get_origin

from opencqrs_py.adapters.memory import InMemoryProgressTracker, NoTransactions
from opencqrs_py.adapters.sql import (
    Database,
    DatabaseTransactions,
    Engine,
    SchemaError,
    SqlControlStore,
    SqlProgressTracker,
    dialect_named,
)
from opencqrs_py.assembly.checked_parts import checked_clock, checked_source
from opencqrs_py.assembly.conditions import CONTROLLER, REGISTRATION, Decision, raise_together
from opencqrs_py.assembly.databases import DatabaseChoice, DatabaseRule
from opencqrs_py.assembly.discovery.discovered import Discovered
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.assembly.opened_stores import OpenedStores
from opencqrs_py.assembly.registration import ControllerRegistration
from opencqrs_py.assembly.replacements import CLOCK, EVENT_STORE, LOCKS, TRACKER, Part, provided
from opencqrs_py.assembly.setting_conflicts import unfit_for_frames
from opencqrs_py.config import EffectiveGroup, Tracking
from opencqrs_py.control.ports import ControlStore
from opencqrs_py.errors import AssemblyError, ExplainedError, RebuildError
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.processing.binding import BoundHandler, bind, of_reset
from opencqrs_py.processing.ports import (
    Clock,
    EventSource,
    LockRegistry,
    ProgressTracker,
    SystemClock,
    Transactions,
)
from opencqrs_py.processing.replays import ResetFunction
from opencqrs_py.processing.roles import ON_REPLAY_FINISHED, ON_RESET, Kind
from opencqrs_py.processing.signatures import Signature

CONTROLLERS = Part("a controller registration", CONTROLLER, ControllerRegistration, REGISTRATION)


def log_database_for(
    opened: OpenedStores,
    url: str,
    schema: str | None,
    mapping: TableMapping | None,
    event_database: Callable[[], Database],
) -> Database:
    """Return the event store's database; for a table of another system, one that leaves an SQLite file as it is."""
    return event_database() if mapping is None else opened.open(url, schema, read_only=True)


def open_database(
    choice: DatabaseChoice,
    injector: ContainerInjector,
    rule: DatabaseRule,
    event_database: Callable[[], Database],
    opened: OpenedStores,
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
        return opened.open(choice.url, schema) if choice.url else None
    except SchemaError as error:
        if rule.schema is None:
            raise
        raise SchemaError(error.code, error.what, f"database.schema ({rule.schema.origin})", error.fix) from None


def transactions_on(database: Database | None) -> Transactions:
    """Return what opens the transactions that handlers write in."""
    return NoTransactions() if database is None else DatabaseTransactions(database)


def transactions_beside(tracker: ProgressTracker, otherwise: Transactions) -> Transactions:
    """Return what opens transactions where the handlers of a tracker write, if its database is known."""
    return DatabaseTransactions(tracker.database) if isinstance(tracker, SqlProgressTracker) else otherwise


def check_transaction(signature: Signature, place: str, *, there: bool, url: Callable[[], str]) -> None:
    """Refuse a function that asks for the transaction when there is none, or for the connection of another driver.

    Messages name the function by its place. ``url`` returns that of the database, empty when a provider makes its
    engine; it is called only for a connection of a driver.

    Raises:
        AssemblyError: OCQ-524 or OCQ-525.
    """
    if signature.transactional and not there:
        fix = "set database.url, or register a provider of a sqlalchemy.Engine"
        raise AssemblyError("OCQ-524", "a connection or session is asked for, but there is no database", place, fix)
    for argument in signature.arguments:
        kind = url().partition(":")[0].partition("+")[0] if argument.kind is Kind.DRIVER else ""
        dialect = dialect_named(kind) if kind else None
        driver = getattr(get_origin(argument.annotation) or argument.annotation, "__module__", "").partition(".")[0]
        if dialect is not None and driver != dialect.driver_package:
            what = f"'{argument.name}' asks for a connection of {driver}, but the database is {kind}"
            fix = "ask for sqlalchemy.Connection, or for the connection of the database's own driver"
            raise AssemblyError("OCQ-525", what, place, fix)


def event_store_for(
    choice: Decision, injector: Callable[[], ContainerInjector], open_url: Callable[[], EventSource]
) -> EventSource:
    """Return the event store. What a provider's returns is checked."""
    store: EventSource | None = provided(choice, EVENT_STORE, injector()) if choice.error or choice.provider else None
    if store is None:  # not by its truth: an empty store may have a length
        return open_url()
    return checked_source(store, _place_of(choice))


def clock_for(choice: Decision, injector: ContainerInjector) -> Clock:
    """Return the clock by which waits end and failures are dated.

    Raises:
        AssemblyError: OCQ-547, if a provider's clock does not return times.
    """
    clock: Clock | None = provided(choice, CLOCK, injector)
    return SystemClock() if clock is None else checked_clock(clock, _place_of(choice))


def _place_of(choice: Decision) -> str:
    """Return the provider that was chosen, with the setting that names it, if one does."""
    provider = f"provider {choice.provider}"
    return f"{choice.setting}, {provider}" if choice.setting else provider


def control_store_on(database: Database | None, opened: OpenedStores) -> ControlStore | None:
    """Return the control tables of the progress' database, ``None`` if no other process can see it."""
    control = database.for_control() if database is not None else None
    if control is None:
        return None
    if control is not database:
        opened.add(control)
    return SqlControlStore(control, shared=control is database)


def tracker_on(database: Database | None) -> SqlProgressTracker | None:
    """Return the tracker of all groups whose progress is in the database; ``None`` without one."""
    return None if database is None else SqlProgressTracker(database)


def tracker_for(
    choice: Decision, database: Database | None, shared: SqlProgressTracker | None, injector: ContainerInjector
) -> ProgressTracker:
    """Return the group's progress tracker, which is ``shared`` if its progress is in the database."""
    tracker: ProgressTracker | None = provided(choice, TRACKER, injector)
    if tracker is not None:
        return tracker
    if shared is None or choice.choice == Tracking.IN_MEMORY:
        return InMemoryProgressTracker(transactions_on(database))
    return shared


def lock_registry_for(controller: Decision, injector: ContainerInjector) -> LockRegistry | None:
    """Return the group's locks, ``None`` if it uses none."""
    registry: LockRegistry | None = None
    if controller.setting != REGISTRATION:
        registry = provided(controller, LOCKS, injector)
    return registry


def registration_for(controller: Decision, injector: ContainerInjector) -> ControllerRegistration | None:
    """Return what makes the controllers of the group's partitions, ``None`` if they have none of the project's."""
    registration: ControllerRegistration | None = None
    if controller.setting == REGISTRATION:
        registration = provided(controller, CONTROLLERS, injector)
    return registration


def url_of_handlers(database: DatabaseChoice, tracking: Decision, tracker: Callable[[], ProgressTracker]) -> str:
    """Return the URL of the database that a group's handlers write to, perhaps masked; empty if it is not known."""
    if not tracking.provider:
        return database.url
    try:
        own = tracker()
    except ExplainedError:  # which is reported for the tracker
        return ""
    return str(own.database.url) if isinstance(own, SqlProgressTracker) else ""


def bound_handlers(
    discovered: Discovered,
    settings: EffectiveGroup,
    database: DatabaseChoice,
    tracking: Decision,
    tracker: Callable[[], ProgressTracker],
    rebuilding: bool = False,  # noqa: FBT001, FBT002 a provider gives it
) -> list[BoundHandler]:
    """Return the handlers of a group; in a rebuild those that write in its transaction."""
    has_transactions = bool(database.decision.choice != "none" or tracking.provider)
    url = partial(url_of_handlers, database, tracking, tracker)
    bound = []
    for handler in discovered.of_group(settings.name):
        bound.append(bind(handler, discovered.injector))
        if bound[-1].signature.in_frames:
            raise_together(unfit_for_frames(settings, handler.place))
        check_transaction(bound[-1].signature, handler.place, there=has_transactions, url=url)
    if not rebuilding:
        return bound
    participants = [each for each in bound if each.handler.participant is not None]
    if participants:
        what = f"group '{settings.name}' has participants, which would miss what a rebuild handles"
        raise RebuildError("OCQ-642", what, participants[0].handler.place, f"opencqrs groups reset {settings.name}")
    kept = [each for each in bound if each.signature.transactional]
    if settings.rebuild.run_all_handlers:
        return bound
    if not kept:
        what = f"no handler of group '{settings.name}' asks for the transaction, so it fills no tables"
        fix = "nothing has to be rebuilt; or set rebuild.run-all-handlers: true"
        raise RebuildError("OCQ-630", what, f"group {settings.name}", fix)
    return kept


def replay_ends(settings: EffectiveGroup, discovered: Discovered) -> list[ResetFunction]:
    """Return the calls of a group's ``@on_replay_finished`` functions; ``@on_reset`` functions are only checked."""
    injector = discovered.injector
    for each in discovered.functions_of(Declaration.ON_RESET, settings.name):
        of_reset(each.call, each.place, injector, ON_RESET)
    ends = discovered.functions_of(Declaration.ON_REPLAY_FINISHED, settings.name)
    return [of_reset(each.call, each.place, injector, ON_REPLAY_FINISHED) for each in ends]

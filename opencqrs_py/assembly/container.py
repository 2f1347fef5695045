"""The assembly container: dependency-injector holds every part; one container per application, one per group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dependency_injector import containers, providers

from opencqrs_py.adapters.sql import Database
from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.choices import (
    back_off_for,
    check_transaction,
    open_database,
    tracker_for,
    transactions_on,
)
from opencqrs_py.assembly.databases import DatabaseChoice, choose_database
from opencqrs_py.assembly.discovery import Discovered
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.assembly.reading import event_types_for, interceptors_for, reading_for, sequencing_of
from opencqrs_py.assembly.stores import open_event_store
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.processing.binding import BoundHandler, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.group import GroupProcessing
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.object_sequencing import SequencingByObject
from opencqrs_py.processing.ports import EventSource, ProgressTracker
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.sequencing import Sequencing

__all__ = ["ApplicationContainer", "GroupContainer", "add_groups", "assemble", "group_container"]


def _bound(discovered: Discovered, settings: EffectiveGroup, database: DatabaseChoice) -> list[BoundHandler]:
    has_transactions = bool(database.decision.choice != "none" or settings.progress.tracker_ref)
    bound = []
    for handler in discovered.of_group(settings.name):
        bound.append(bind(handler, discovered.injector))
        check_transaction(bound[-1].signature, handler.place, there=has_transactions, url=database.url)
    return bound


def _dispatcher(
    handlers: list[BoundHandler],
    types: EventTypes,
    reading: Reading,
    interceptors: Interceptors,
    sequencing: Sequencing,
) -> Dispatcher:
    if not isinstance(sequencing, SequencingByObject):
        return Dispatcher(handlers, types, reading, interceptors)
    dispatcher = Dispatcher(handlers, types, reading, interceptors, sequencing.belongs)
    sequencing.serve((dispatcher.wanted_types or frozenset()) - reading.upcast_types, dispatcher.handles)
    return dispatcher


def _processing(
    settings: EffectiveGroup,
    source: EventSource,
    tracker: ProgressTracker,
    dispatcher: Dispatcher,
    sequencing: Sequencing,
) -> GroupProcessing:
    return GroupProcessing(
        settings.name,
        source,
        tracker,
        dispatcher,
        subject=settings.fetch.subject,
        recursive=settings.fetch.recursive,
        sequencing=sequencing,
        partitions=settings.life_cycle.partitions,
        batch_size=settings.processing.batch_size,
    )


def _injector(discovered: Discovered) -> ContainerInjector:
    return discovered.injector


class GroupContainer(containers.DeclarativeContainer):
    """The parts of one processing group. Its slots are filled by the application's container."""

    settings: providers.Dependency[Any] = providers.Dependency()
    discovered: providers.Dependency[Any] = providers.Dependency()
    event_store: providers.Dependency[Any] = providers.Dependency()
    database_choice: providers.Dependency[Any] = providers.Dependency()
    database: providers.Dependency[Any] = providers.Dependency()
    events: providers.Dependency[Any] = providers.Dependency()

    injector = providers.ThreadSafeSingleton(_injector, discovered)
    tracker = providers.ThreadSafeSingleton(tracker_for, settings, database, injector)
    event_types = providers.ThreadSafeSingleton(event_types_for, events, discovered)
    reading = providers.ThreadSafeSingleton(reading_for, events, discovered)
    sequencing = providers.ThreadSafeSingleton(sequencing_of, settings, events, discovered, event_types, reading)
    interceptors = providers.ThreadSafeSingleton(interceptors_for, settings, discovered)
    back_off = providers.ThreadSafeSingleton(back_off_for, settings)
    handlers = providers.ThreadSafeSingleton(_bound, discovered, settings, database_choice)
    dispatcher = providers.ThreadSafeSingleton(_dispatcher, handlers, event_types, reading, interceptors, sequencing)
    processing = providers.ThreadSafeSingleton(_processing, settings, event_store, tracker, dispatcher, sequencing)


class ApplicationContainer(containers.DeclarativeContainer):
    """What the groups share, and the groups by name."""

    event_store_url: providers.Dependency[Any] = providers.Dependency()
    api_token: providers.Dependency[Any] = providers.Dependency()
    mapping: providers.Dependency[Any] = providers.Dependency()
    database_rule: providers.Dependency[Any] = providers.Dependency()
    discovered: providers.Dependency[Any] = providers.Dependency()
    events: providers.Dependency[Any] = providers.Dependency()

    event_database = providers.ThreadSafeSingleton(Database, event_store_url, database_rule.provided.event_schema)
    event_store = providers.ThreadSafeSingleton(
        open_event_store, event_store_url, api_token, event_database.provider, mapping
    )
    injector = providers.ThreadSafeSingleton(_injector, discovered)
    database_choice = providers.ThreadSafeSingleton(choose_database, database_rule, injector)
    database = providers.ThreadSafeSingleton(
        open_database, database_choice, injector, database_rule, event_database.provider
    )
    transactions = providers.ThreadSafeSingleton(transactions_on, database)
    groups = providers.Dict()


def assemble(blueprint: Blueprint) -> ApplicationContainer:
    """Return an ``ApplicationContainer`` without groups. Nothing is opened or imported before it is asked for."""
    return ApplicationContainer(
        event_store_url=providers.Object(blueprint.event_store_url),
        api_token=providers.Object(blueprint.api_token),
        mapping=providers.Object(blueprint.mapping),
        database_rule=providers.Object(blueprint.database),
        discovered=providers.Callable(blueprint.discover),
        events=providers.Object(blueprint.events),
    )


def add_groups(container: ApplicationContainer, settings: Iterable[EffectiveGroup]) -> None:
    """Give a container a ``GroupContainer`` for each of the groups."""
    groups = {group.name: group_container(container, group) for group in settings}
    container.groups.override(providers.Object(groups))


def group_container(container: ApplicationContainer, settings: EffectiveGroup) -> GroupContainer:
    """Return the parts of a group, which shares the databases of the application with all others of the process."""
    return GroupContainer(
        settings=providers.Object(settings),
        discovered=container.discovered,
        event_store=container.event_store,
        database_choice=container.database_choice,
        database=container.database,
        events=container.events,
    )

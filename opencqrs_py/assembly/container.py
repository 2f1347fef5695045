"""The assembly container: dependency-injector holds every part; one container per application, one per group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dependency_injector import containers, providers

from opencqrs_py.adapters.sql import Database, DatabaseTransactions, SqlEventStore
from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.choices import back_off_for, sequence_resolver_for, tracker_for
from opencqrs_py.assembly.discovery import Discovered
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.processing.dispatch import BoundHandler, Dispatcher, bind
from opencqrs_py.processing.group import GroupProcessing
from opencqrs_py.processing.ports import EventSource, ProgressTracker, SequenceResolver

__all__ = ["ApplicationContainer", "GroupContainer", "add_groups", "assemble"]


def _bound(discovered: Discovered, settings: EffectiveGroup) -> list[BoundHandler]:
    return [bind(h, discovered.injector) for h in discovered.handlers if h.mark.group == settings.name]


def _dispatcher(discovered: Discovered, handlers: list[BoundHandler]) -> Dispatcher:
    return Dispatcher(handlers, discovered.event_classes)


def _processing(
    settings: EffectiveGroup,
    source: EventSource,
    tracker: ProgressTracker,
    dispatcher: Dispatcher,
    sequence_of: SequenceResolver,
) -> GroupProcessing:
    return GroupProcessing(
        settings.name,
        source,
        tracker,
        dispatcher,
        subject=settings.fetch.subject,
        recursive=settings.fetch.recursive,
        sequence_of=sequence_of,
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
    database: providers.Dependency[Any] = providers.Dependency()

    injector = providers.ThreadSafeSingleton(_injector, discovered)
    tracker = providers.ThreadSafeSingleton(tracker_for, settings, database, injector)
    sequence_resolver = providers.ThreadSafeSingleton(sequence_resolver_for, settings, injector)
    back_off = providers.ThreadSafeSingleton(back_off_for, settings)
    handlers = providers.ThreadSafeSingleton(_bound, discovered, settings)
    dispatcher = providers.ThreadSafeSingleton(_dispatcher, discovered, handlers)
    processing = providers.ThreadSafeSingleton(
        _processing, settings, event_store, tracker, dispatcher, sequence_resolver
    )


class ApplicationContainer(containers.DeclarativeContainer):
    """What the groups share, and the groups by name."""

    event_store_url: providers.Dependency[Any] = providers.Dependency()
    database_url: providers.Dependency[Any] = providers.Dependency()
    discovered: providers.Dependency[Any] = providers.Dependency()

    event_database = providers.ThreadSafeSingleton(Database, event_store_url)
    event_store = providers.ThreadSafeSingleton(SqlEventStore, event_database)
    database = providers.ThreadSafeSingleton(Database, database_url)
    transactions = providers.ThreadSafeSingleton(DatabaseTransactions, database)
    groups = providers.Dict()


def assemble(blueprint: Blueprint) -> ApplicationContainer:
    """Return an ``ApplicationContainer`` without groups. Nothing is opened or imported before it is asked for."""
    container = ApplicationContainer(
        event_store_url=providers.Object(blueprint.event_store_url),
        database_url=providers.Object(blueprint.database_url),
        discovered=providers.Callable(blueprint.discover),
    )
    if blueprint.database_url == blueprint.event_store_url:
        container.database.override(container.event_database)
    return container


def add_groups(container: ApplicationContainer, settings: Iterable[EffectiveGroup]) -> None:
    """Give a container a ``GroupContainer`` for each of the groups."""
    groups = {
        group.name: GroupContainer(
            settings=providers.Object(group),
            discovered=container.discovered,
            event_store=container.event_store,
            database=container.database,
        )
        for group in settings
    }
    container.groups.override(providers.Object(groups))

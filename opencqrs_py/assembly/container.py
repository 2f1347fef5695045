"""The assembly container: dependency-injector holds every part; one container per application, one per group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from dependency_injector import containers, providers

from opencqrs_py.adapters.memory import InMemoryJobStore, InMemoryProgressTracker
from opencqrs_py.adapters.sql import (
    Connection,
    Database,
    SqlJobStore,
    SqlProgressTracker,
    SqlSelector,
)
from opencqrs_py.assembly.back_offs import back_off_for, parking_of
from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.checkpointing import checkpoint_rule_of
from opencqrs_py.assembly.code.fingerprint import CodeReader
from opencqrs_py.assembly.code.group_code import code_reader_for, group_code, resolver_fingerprint
from opencqrs_py.assembly.code.loaded_code import NO_CODE, LoadedCode
from opencqrs_py.assembly.conditions import decide_controller
from opencqrs_py.assembly.databases import DatabaseChoice, choose_database, choose_event_store
from opencqrs_py.assembly.discovery.discovered import Discovered
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.assembly.jobs.events import Bell, with_job_events
from opencqrs_py.assembly.opened_stores import OpenedStores
from opencqrs_py.assembly.parts import (
    bound_handlers,
    clock_for,
    control_store_on,
    event_store_for,
    lock_registry_for,
    log_database_for,
    open_database,
    registration_for,
    replay_ends,
    tracker_for,
    tracker_on,
    transactions_on,
)
from opencqrs_py.assembly.reading import (
    EventsRule,
    event_types_for,
    interceptors_for,
    mapped_types_of,
    reading_for,
    schedule_rule_of,
    sequencing_of,
)
from opencqrs_py.assembly.replacements import as_made, decide_back_off, decide_clock, decide_tracking, observers_of
from opencqrs_py.assembly.stores import open_event_store
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.config.choices import Tracking
from opencqrs_py.engines.checkpointing import make_checkpointing
from opencqrs_py.engines.parts import group_processing, make_dispatcher, make_replay_rule
from opencqrs_py.errors import AssemblyError
from opencqrs_py.jobs.ports import JobStore
from opencqrs_py.model.masking import remember
from opencqrs_py.model.naming import listed
from opencqrs_py.processing.calls import CallLimits
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.ports import (
    Clock,
    EventSource,
)


class GroupContainer(containers.DeclarativeContainer):
    """The parts of one processing group. Its slots are filled by the application's container."""

    settings: providers.Dependency[EffectiveGroup] = providers.Dependency()
    discovered: providers.Dependency[Discovered] = providers.Dependency()
    event_store: providers.Dependency[EventSource] = providers.Dependency()
    database_choice: providers.Dependency[DatabaseChoice] = providers.Dependency()
    database: providers.Dependency[Database | None] = providers.Dependency()
    database_tracker: providers.Dependency[SqlProgressTracker | None] = providers.Dependency()
    events: providers.Dependency[EventsRule] = providers.Dependency()
    clock: providers.Dependency[Clock] = providers.Dependency()
    code_reader: providers.Dependency[CodeReader] = providers.Dependency()
    rebuilding: providers.Dependency[bool] = providers.Dependency()

    tracking = providers.ThreadSafeSingleton(
        decide_tracking, settings, database_choice.provided.decision, discovered.provided.injector
    )
    controller = providers.ThreadSafeSingleton(decide_controller, settings, discovered.provided.injector, tracking)
    lock_registry = providers.ThreadSafeSingleton(lock_registry_for, controller, discovered.provided.injector)
    registration = providers.ThreadSafeSingleton(registration_for, controller, discovered.provided.injector)
    tracker = providers.ThreadSafeSingleton(
        tracker_for, tracking, database, database_tracker, discovered.provided.injector
    )
    event_types = providers.ThreadSafeSingleton(event_types_for, events, discovered)
    reading = providers.ThreadSafeSingleton(reading_for, events, discovered)
    sequencing = providers.ThreadSafeSingleton(sequencing_of, settings, events, discovered, event_types, reading)
    interceptors = providers.ThreadSafeSingleton(interceptors_for, settings, discovered)
    waiting = providers.ThreadSafeSingleton(decide_back_off, settings, discovered.provided.injector)
    back_off = providers.ThreadSafeSingleton(back_off_for, settings, waiting, discovered.provided.injector)
    handlers = providers.ThreadSafeSingleton(
        bound_handlers, discovered, settings, database_choice, tracking, tracker.provider, rebuilding
    )
    dispatcher = providers.ThreadSafeSingleton(
        make_dispatcher, handlers, event_types, reading, interceptors, sequencing
    )
    mapped_types = providers.ThreadSafeSingleton(mapped_types_of, events, dispatcher)
    resolver_code = providers.ThreadSafeSingleton(resolver_fingerprint, event_types, code_reader)
    code = providers.ThreadSafeSingleton(
        group_code, settings, discovered, handlers, dispatcher, event_types, sequencing, code_reader
    )
    finished = providers.ThreadSafeSingleton(replay_ends, settings, discovered)
    replays = providers.ThreadSafeSingleton(
        make_replay_rule,
        handlers,
        event_types,
        reading,
        interceptors,
        sequencing,
        dispatcher,
        finished,
        rebuilding=rebuilding,
        run_all_handlers=settings.provided.rebuild.run_all_handlers,
    )
    checkpointing = providers.ThreadSafeSingleton(
        make_checkpointing,
        settings.provided.name,
        handlers,
        event_types,
        reading,
        interceptors,
        sequencing,
        providers.Factory(checkpoint_rule_of, settings, tracking),
    )
    schedule = providers.ThreadSafeSingleton(
        schedule_rule_of, settings, discovered, event_types, reading, dispatcher.provided.handles
    )
    processing = providers.ThreadSafeSingleton(
        group_processing,
        settings.provided.name,
        event_store,
        tracker,
        dispatcher,
        subject=settings.provided.fetch.subject,
        recursive=settings.provided.fetch.recursive,
        sequencing=sequencing,
        partitions=settings.provided.life_cycle.partitions,
        batch_size=settings.provided.processing.batch_size,
        clock=clock,
        limits=providers.Factory(
            CallLimits,
            settings.provided.processing.handler_warn_after,
            settings.provided.processing.handler_timeout,
        ),
        parking=providers.Factory(parking_of, settings, back_off.provider),
        schedule=schedule,
        replays=replays,
        checkpointing=checkpointing,
    )


def job_store_on(database: Database | None, clock: Clock) -> JobStore:
    """Return the tables of jobs, which are in the database of the progress; without one they are kept in memory."""
    return InMemoryJobStore(clock) if database is None else SqlJobStore(database)


def discovered_with_events(
    blueprint: Blueprint, store: Callable[[], JobStore], database: Callable[[], DatabaseChoice], bell: Bell
) -> Discovered:
    """Return what was discovered, with a handler for each job that events start."""
    discovered = blueprint.discover()
    if not blueprint.job_triggers:
        return discovered
    choice = database().decision
    connection = Connection if choice.error is None and choice.choice != "none" else None
    return with_job_events(discovered, blueprint.job_triggers, store, connection, bell)


class ApplicationContainer(containers.DeclarativeContainer):
    """What the groups share, made from the application's blueprint."""

    blueprint: providers.Dependency[Blueprint] = providers.Dependency()
    of_blueprint = blueprint.provided
    database_rule = of_blueprint.database
    found: providers.Provider[Discovered] = of_blueprint.discover.call()
    injector: providers.Provider[ContainerInjector] = of_blueprint.injector.call()

    opened: providers.Dependency[OpenedStores] = providers.Dependency()
    event_database = providers.ThreadSafeSingleton(
        OpenedStores.open, opened, of_blueprint.event_store_url, of_blueprint.database.event_schema
    )
    log_database = providers.Callable(
        log_database_for,
        opened,
        of_blueprint.event_store_url,
        of_blueprint.database.event_schema,
        of_blueprint.mapping,
        event_database.provider,
    )
    event_store_of_url = providers.Callable(
        OpenedStores.add_source,
        opened,
        providers.Callable(
            open_event_store,
            of_blueprint.event_store_url,
            of_blueprint.api_token,
            log_database.provider,
            of_blueprint.mapping,
            of_blueprint.database.event_store.origin,
        ),
    )
    event_store_choice = providers.ThreadSafeSingleton(choose_event_store, database_rule, injector.provider)
    event_store = providers.ThreadSafeSingleton(
        event_store_for, event_store_choice, injector.provider, event_store_of_url.provider
    )
    clock_choice = providers.ThreadSafeSingleton(decide_clock, of_blueprint.clock_ref, injector)
    clock = providers.ThreadSafeSingleton(clock_for, clock_choice, injector)
    observers = providers.ThreadSafeSingleton(observers_of, injector)
    code_reader = providers.ThreadSafeSingleton(code_reader_for, of_blueprint.modules)
    database_choice = providers.ThreadSafeSingleton(choose_database, database_rule, found.provided.injector)
    database = providers.ThreadSafeSingleton(
        open_database, database_choice, found.provided.injector, database_rule, event_database.provider, opened
    )
    database_tracker = providers.ThreadSafeSingleton(tracker_on, database)
    transactions = providers.ThreadSafeSingleton(transactions_on, database)
    job_store = providers.ThreadSafeSingleton(job_store_on, database, clock)
    job_runners: providers.Provider[set[str]] = providers.ThreadSafeSingleton(set)
    job_selector = providers.ThreadSafeSingleton(SqlSelector, database)
    job_bell = providers.ThreadSafeSingleton(Bell)
    discovered = providers.Callable(
        discovered_with_events, blueprint, job_store.provider, database_choice.provider, job_bell
    )
    control_store = providers.ThreadSafeSingleton(control_store_on, database, opened)


def assemble(blueprint: Blueprint, opened: OpenedStores | None = None) -> ApplicationContainer:
    """Return the parts that groups share. Nothing is opened or imported before it is used.

    Args:
        blueprint: What the application is made from.
        opened: Receives what is opened by its URL; ``None`` if that stays open until the process ends.
    """
    return ApplicationContainer(
        blueprint=providers.Object(blueprint),
        opened=providers.Object(OpenedStores() if opened is None else opened),
    )


def group_containers(container: ApplicationContainer, groups: Iterable[EffectiveGroup]) -> Mapping[str, GroupContainer]:
    """Return the parts of each of the groups, by name."""
    return {group.name: group_container(container, group) for group in groups}


def group_container(container: ApplicationContainer, settings: EffectiveGroup) -> GroupContainer:
    """Return the parts of a group, which shares the databases of the application with all others of the process."""
    return GroupContainer(
        settings=providers.Object(settings),
        discovered=container.discovered,
        event_store=container.event_store,
        database_choice=container.database_choice,
        database=container.database,
        database_tracker=container.database_tracker,
        events=container.of_blueprint.events,
        clock=container.clock,
        code_reader=container.code_reader,
        rebuilding=container.of_blueprint.rebuilding,
    )


def renew(container: ApplicationContainer, groups: Iterable[GroupContainer]) -> None:
    """Forget what was made from the project's containers, so that it is made again; keep databases that a URL names.

    Progress in memory is kept, too: without it all events would be handled again.
    """
    to_reset = [
        provider
        for group in groups
        for name, provider in group.providers.items()
        if isinstance(provider, providers.ThreadSafeSingleton) and not (name == "tracker" and _is_in_memory(group))
    ]
    if container.database_choice().ref:
        container.database.reset()
        container.transactions.reset()
        container.control_store.reset()
        container.job_store.reset()
        container.job_selector.reset()
    container.database_tracker.reset()  # the next one looks for its tables
    container.observers.reset()
    for choice, part in (
        (container.event_store_choice, container.event_store),
        (container.clock_choice, container.clock),
    ):
        if choice().provider:
            part.reset()
    for provider in to_reset:
        provider.reset()


def _is_in_memory(group: GroupContainer) -> bool:
    """Return whether the progress of a group is in memory; not if it could not be decided where it is."""
    choice = as_made(group.tracking(), group.tracker)
    if choice.provider and not choice.error:
        return isinstance(group.tracker(), InMemoryProgressTracker)
    return choice.choice == Tracking.IN_MEMORY


@dataclass(frozen=True, slots=True)
class GroupRecipe:
    """Builds one group's parts in any process, by the same container as the driver's.

    Attributes:
        blueprint: What the application is made from.
        settings: The group's effective settings.
        handlers: Fingerprint of the group's handlers, as the process that made the recipe has found them.
        code: The project's code as that process has loaded it.
    """

    blueprint: Blueprint
    settings: EffectiveGroup
    handlers: tuple[str, ...] = ()
    code: LoadedCode = NO_CODE

    def __call__(self) -> GroupProcessing:
        """Assemble the parts. Called once per Spark worker and group.

        Raises:
            AssemblyError: OCQ-545, if this process has loaded other code than the one that made the recipe; OCQ-526,
                if it finds other handlers.
        """
        self.blueprint.discover()
        self.code.check()
        self._check_handlers()
        remember(self.blueprint.secrets)
        return group_container(assembled(self.blueprint), self.settings).processing()

    def _check_handlers(self) -> None:
        found = self.blueprint.discover().fingerprint(self.settings.name)
        if found == self.handlers:
            return
        there, here = set(self.handlers) - set(found), set(found) - set(self.handlers)
        differences = [f"not here: {listed(sorted(there))}"] if there else []
        differences += [f"only here: {listed(sorted(here))}"] if here else []
        what = f"a worker found different handlers of group '{self.settings.name}' than the process that started it"
        fix = "make modules declare the same in every process, whatever its variables, time or files"
        raise AssemblyError("OCQ-526", what, "; ".join(differences) or "in another order", fix)


@cache
def assembled(blueprint: Blueprint) -> ApplicationContainer:
    """Return the container of an application in this process: its groups and jobs share one pool of connections."""
    return assemble(blueprint, OpenedStores(blueprint.database.pool_size))

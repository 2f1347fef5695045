"""The run that fills a shadow: one group, with its own parts, beside the application that rebuilds it."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from dependency_injector import providers

from opencqrs_py.adapters.sql.shadows.rebuild_records import ended_elsewhere
from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer, assemble, group_containers, renew
from opencqrs_py.assembly.control import control_of
from opencqrs_py.assembly.launch import Launch
from opencqrs_py.assembly.layouts import Layouts
from opencqrs_py.assembly.lifecycle import STOP_PATIENCE, Lifecycle
from opencqrs_py.assembly.running import preparation
from opencqrs_py.assembly.shared_spark import SharedSpark
from opencqrs_py.config import Configuration, EffectiveGroup
from opencqrs_py.engines.leading import LostPartitions
from opencqrs_py.model.partition import WHOLE
from opencqrs_py.model.progress import PartitionStatus
from opencqrs_py.model.properties import locked_cached_property
from opencqrs_py.processing.pacing import Limit, PacedSource
from opencqrs_py.processing.ports import ProgressTracker, statuses_of


class ShadowRun:
    """Runs one group as another blueprint says. At the end of its block it stops, and closes what it has opened.

    Args:
        configuration: The settings.
        spark: The Spark of the application; the run has its own session, unless the program has given one.
        blueprint: What the parts are made from; it names the database of the shadow.
        group: The effective settings of the group.
    """

    def __init__(
        self, configuration: Configuration, spark: SharedSpark, blueprint: Blueprint, group: EffectiveGroup
    ) -> None:
        self._configuration = configuration
        self._blueprint = blueprint
        self._group = group
        self._is_lost = False
        pool_size = configuration.settings.database.pool_size
        self._life = Lifecycle(blueprint, pool_size, spark.another(), self._forget_parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._life.end()

    def prepare(self) -> None:
        """Call the ``@on_start`` functions of the group, in a transaction of their own."""
        preparation(self._blueprint, self._group.name, self._container.transactions)()

    def start(self) -> None:
        """Start the processors of the group; errors are those of ``Application.start``."""
        with self._life.starting(), self._life.opened():
            self._create()

    def stop(self) -> None:
        """Finish the events in hand, and release everything."""
        self._life.stop(STOP_PATIENCE)

    def check(self) -> None:
        """Raise what has ended an engine since the start; return if nothing has.

        Raises:
            RebuildError: OCQ-630, if another process has taken partitions over: this one has stopped claiming them.
        """
        if (processors := self._life.processors) is not None:
            processors.check()
        if self._is_lost:
            raise ended_elsewhere(self._group.name)

    def hasten(self) -> None:
        """Have progress be stored without delay."""
        if (processors := self._life.processors) is not None:
            processors.hasten(self._group.name)

    def limit(self, limit: Limit) -> None:
        """Read the log as far as a limit allows."""
        store = self._container.event_store
        store.override(providers.Object(PacedSource(store(), limit)))

    def has_events(self, after: int, until: int) -> bool:
        """Return whether the log has an event between two positions that may lead to one of the run's handlers."""
        positions: Iterator[int] = self._parts[self._group.name].processing().positions_of(WHOLE, after, until)
        return next(positions, None) is not None

    @property
    def tracker(self) -> ProgressTracker:
        """Where the progress of the shadow is."""
        found: ProgressTracker = self._parts[self._group.name].tracker()
        return found

    def statuses(self) -> list[PartitionStatus]:
        """Return how far each partition is; none before the first event."""
        return statuses_of(self.tracker, self._group.name)

    @locked_cached_property
    def _container(self) -> ApplicationContainer:
        return assemble(self._blueprint, self._life.stores)

    @locked_cached_property
    def _parts(self) -> dict[str, GroupContainer]:
        self._life.resources.use()
        return dict(group_containers(self._container, (self._group,)))

    def _create(self) -> None:
        groups, parts, container = (self._group,), self._parts, self._container
        launch = Launch(self._configuration, self._blueprint, container, parts, self._life.stores, self._life.spark)
        launch.check(groups, ())
        layouts = Layouts(groups, parts, container, control_of(groups, parts, container), rebuilds=True)
        self._life.processors = launch.processors(groups, (), LostPartitions(self._retire), None, layouts.started)

    def _retire(self) -> None:
        """Claim nothing again: the swap, or another process, has taken the partitions."""
        self._is_lost = True
        processors = self._life.processors
        if processors is not None and processors.coordinator is not None:
            processors.coordinator.retire()

    def _forget_parts(self) -> None:
        renew(self._container, self._parts.values())

"""What a start makes of an application's groups: their runs, an engine for each kind, and the processors."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.conditions import raise_together
from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer
from opencqrs_py.assembly.decisions import decisions
from opencqrs_py.assembly.nodes import is_led, node_name
from opencqrs_py.assembly.opened_stores import OpenedStores
from opencqrs_py.assembly.processors import Processors, StartedGroup
from opencqrs_py.assembly.running import engines_for, group_run, spark_engines, threads_of_driver
from opencqrs_py.assembly.setting_conflicts import unfit_for_parking
from opencqrs_py.assembly.shared_spark import SharedSpark
from opencqrs_py.assembly.unmatched import UnmatchedGroups
from opencqrs_py.config import Configuration, EffectiveGroup
from opencqrs_py.config import Engine as EngineName
from opencqrs_py.engines.job_parts import JobParts
from opencqrs_py.engines.leading import LostPartitions
from opencqrs_py.engines.runs import Engine, GroupRun
from opencqrs_py.errors import ExplainedError
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.notices import Observer, Observers

LayOut = Callable[[Collection[str]], Mapping[str, tuple[Partition, ...]]]
"""Returns the partitions of groups that are about to start, changed if their setting has changed."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Checks groups, and makes the processors of one start.

    Attributes:
        configuration: The settings.
        blueprint: What the application is made from.
        container: The parts that groups share.
        parts: Those of each group, by name.
        stores: Databases and event store that settings name by URL.
        spark: What groups and jobs run on.
        verbose: Whether Spark's own log is shown.
        until_caught_up: Whether the run ends when it has caught up, and so does not wait for ticks.
    """

    configuration: Configuration
    blueprint: Blueprint
    container: ApplicationContainer
    parts: Mapping[str, GroupContainer]
    stores: OpenedStores
    spark: SharedSpark
    verbose: bool = False
    until_caught_up: bool = False

    def check(self, groups: Sequence[EffectiveGroup], also: Sequence[ExplainedError]) -> None:
        """Raise together all that keeps groups from running, and other errors.

        Raises:
            ExplainedError: With all of them.
            EventStoreError: If an engine of the project cannot hold what handlers write and the progress together.
        """
        raise_together([*self._errors(groups), *also])
        choice, database = self.container.database_choice(), self.container.database()
        if choice.ref and database is not None:
            database.require_transactions(f"provider {choice.ref}, {choice.decision.setting or 'the only engine'}")

    def processors(
        self,
        chosen: Sequence[EffectiveGroup],
        others: Sequence[EffectiveGroup],
        observer: Observer,
        jobs: JobParts | None,
        lay_out: LayOut,
    ) -> Processors:
        """Return the processors of groups, not started yet.

        Args:
            chosen: The groups that start.
            others: Groups that may be started while the application runs, if they use leases and are valid.
            observer: Sees what happens.
            jobs: What runs jobs; ``None``: nothing does.
            lay_out: Returns the partitions of groups.
        """
        startable = [each for each in others if is_led(self.parts[each.name]) and not self._errors([each])]
        by_name = {each.name: each for each in (*chosen, *startable)}
        on_spark = all(each.processing.engine == EngineName.SPARK for each in by_name.values())
        handling = self._groups_in_frames(by_name) if on_spark else None
        meanwhile = None if handling is None else threads_of_driver(self.configuration.settings.spark) + handling
        self.stores.bound_connections(meanwhile)
        lost, coordinated = LostPartitions(), partial(self.stores.bound_connections, handling)
        engines = self._engines(by_name, (lost, observer), lay_out(by_name), coordinated)
        store, starting = self.container.control_store(), {each.name for each in chosen}
        groups = [
            StartedGroup(
                run=run,
                engine=engine,
                life_cycle=by_name[run.group].life_cycle,
                starts=run.group in starting,
                led=store is not None and is_led(self.parts[run.group]),
                locks=self.parts[run.group].lock_registry(),
                registration=self.parts[run.group].registration(),
            )
            for engine, its_runs in engines
            for run in its_runs
        ]
        node = self.configuration.settings.node
        if self.blueprint.rebuilding:  # no other process shares its partitions
            node = node.model_copy(update={"max_partitions": None})
        processors = Processors(groups, store, self.container.event_store(), node, self.container.clock(), jobs)
        if processors.coordinator is not None and not self.blueprint.rebuilding:
            lost.then = processors.coordinator.hasten
        return processors

    def _engines(
        self,
        groups: Mapping[str, EffectiveGroup],
        observers: Sequence[Observer],
        laid_out: Mapping[str, tuple[Partition, ...]],
        handed_over: Callable[[], None],
    ) -> list[tuple[Engine, list[GroupRun]]]:
        """Return an engine for each kind that groups ask for, with their runs."""
        runs = [
            (
                each,
                group_run(
                    self.blueprint,
                    each,
                    self.parts[name],
                    self.container,
                    laid_out[name],
                    ticks_at_once=self.until_caught_up,
                ),
            )
            for name, each in groups.items()
        ]
        owner = f"{node_name()}:{uuid.uuid4().hex[:8]}"
        spark = self.configuration.settings.spark
        on_spark = spark_engines(spark, lambda: self.spark.sessions(verbose=self.verbose), handed_over)
        return engines_for(runs, owner, self._observed(observers, runs), self.container.clock(), on_spark)

    def _observed(self, given: Sequence[Observer], runs: Sequence[tuple[EffectiveGroup, GroupRun]]) -> Observer:
        """Return what sees all that happens: some observers, those of the containers, and what warns of idle groups."""
        own = [] if self.blueprint.rebuilding else [UnmatchedGroups([run for _, run in runs])]
        return Observers([*own, *given, *self.container.observers()])

    def _groups_in_frames(self, names: Collection[str]) -> int:
        """Return of how many groups a thread of the driver of Spark calls the handler, with a transaction open."""
        found = self.blueprint.discover()
        return sum(any(handler.mark.in_frames for handler in found.declared_of(name)) for name in names)

    def _errors(self, groups: Sequence[EffectiveGroup]) -> list[ExplainedError]:
        made = decisions(self.configuration, self.container, groups, self.parts)
        errors = [decision.error for decision in made if decision.error]
        unfit = (error for one in groups for error in unfit_for_parking(one, self.parts[one.name].tracking()))
        return [*errors, *unfit]

"""From assembled groups to running engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.code.loaded_code import NO_CODE, loaded_code
from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer, GroupRecipe
from opencqrs_py.assembly.initial_positions import initial_position, starting_position
from opencqrs_py.assembly.parts import transactions_beside
from opencqrs_py.assembly.setting_conflicts import no_inbox, waits
from opencqrs_py.config import DriverHandles, EffectiveGroup
from opencqrs_py.config import Engine as EngineName
from opencqrs_py.config.choices import ENGINES, LiveDuringRebuild, Mode
from opencqrs_py.engines.runs import Engine, GroupRun
from opencqrs_py.errors import AssemblyError, ExplainedError, OnStartError
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.binding import Work, run_on_start
from opencqrs_py.processing.exceptions import message_of, raise_interrupt, type_name
from opencqrs_py.processing.group_records import RecordRule
from opencqrs_py.processing.loggers import enable_loggers
from opencqrs_py.processing.notices import Observer
from opencqrs_py.processing.packages import Registry
from opencqrs_py.processing.ports import Clock, EventSource, Transactions

if TYPE_CHECKING:
    from opencqrs_py.config.settings import SparkSettings
    from opencqrs_py.engines.spark.session import Sessions


_REGISTRY = Registry(
    ENGINES,
    "processing.engine",
    Engine,
    several="engines of the name",
    unusable="the engine {} cannot be created",
    takes="(runs, owner, observer, clock)",
    fix="return an Engine of opencqrs_py.engines.runs",
    error=AssemblyError,
    code="OCQ-533",
)


def group_run(
    blueprint: Blueprint,
    settings: EffectiveGroup,
    group: GroupContainer,
    container: ApplicationContainer,
    partitions: tuple[Partition, ...],
    *,
    ticks_at_once: bool = False,
) -> GroupRun:
    """Return what an engine needs to run a group, which has these partitions.

    See ``GroupRun`` for ``ticks_at_once``.

    Raises:
        AssemblyError: OCQ-604, if events are to wait and the group's tracker has no inbox.
    """
    source, processing = container.event_store(), group.processing()
    if waits(settings) and not processing.has_inbox:
        raise no_inbox(settings, "its progress tracker has none")
    return GroupRun(
        processing=processing,
        partitions=partitions,
        initial=partial(_start_of, blueprint, settings, source, group, container),
        back_off=group.back_off(),
        on_exhausted=settings.retry.on_exhausted,
        on_undecodable=settings.retry.on_undecodable,
        prepare=preparation(
            blueprint, settings.name, lambda: transactions_beside(processing.tracker, container.transactions())
        ),
        recipe=_recipe(blueprint, settings),
        record=record_rule(settings, group, container),
        most_at_once=settings.rebuild.max_tasks if blueprint.rebuilding else None,
        hold=settings.checkpointing.hold,
        rebuilding=blueprint.rebuilding,
        ticks_at_once=ticks_at_once,
    )


def _recipe(blueprint: Blueprint, settings: EffectiveGroup) -> GroupRecipe:
    """Return what builds a group in another process; of threads none does, so the code need not be read."""
    handlers = blueprint.discover().fingerprint(settings.name)
    here = settings.processing.engine.value == EngineName.THREAD.value
    return GroupRecipe(blueprint, settings, handlers, NO_CODE if here else loaded_code(blueprint.modules))


def record_rule(settings: EffectiveGroup, group: GroupContainer, container: ApplicationContainer) -> RecordRule:
    """Return how the record of a group is kept. Its code is read on first use."""
    handlers = container.discovered().of_group(settings.name)
    return RecordRule(
        settings.name,
        settings.fetch.initial_position,
        group.code,
        lambda: container.clock().now(),
        settings.progress.on_lost,
        settings.processing.on_changed_handlers,
        settings.life_cycle.partitions,
        pauses=settings.rebuild.live is LiveDuringRebuild.PAUSE,
        selection=(
            ("fetch.subject", settings.fetch.subject),
            ("fetch.recursive", str(settings.fetch.recursive).lower()),
            ("events.format", group.events().format.value),
            ("events.types", group.mapped_types()),
        ),
        can_rebuild=settings.processing.mode is not Mode.SCHEDULED
        and all(each.participant is None for each in handlers),
    )


SparkEngines = Callable[[Sequence[GroupRun], str, Observer, Clock], Engine]
"""Makes the engine of Spark; only this loads Spark."""


def engines_for(
    runs: Sequence[tuple[EffectiveGroup, GroupRun]],
    owner: str,
    observer: Observer,
    clock: Clock,
    on_spark: SparkEngines,
) -> list[tuple[Engine, list[GroupRun]]]:
    """Return an engine for each kind that groups ask for, with those groups.

    Raises:
        AssemblyError: OCQ-533, if an engine of another package cannot be used.
    """
    by_engine: dict[str, list[GroupRun]] = {}
    for settings, run in runs:
        by_engine.setdefault(settings.processing.engine.value, []).append(run)
    names = sorted(by_engine, key=lambda name: (name == EngineName.SPARK.value, name))
    return [(_engine(name, by_engine[name], owner, observer, clock, on_spark), by_engine[name]) for name in names]


def _engine(
    name: str, runs: Sequence[GroupRun], owner: str, observer: Observer, clock: Clock, on_spark: SparkEngines
) -> Engine:
    match name:
        case EngineName.THREAD.value:
            from opencqrs_py.engines.thread import ThreadEngine  # noqa: PLC0415 as that of Spark

            return ThreadEngine(runs, owner, observer, clock)
        case EngineName.SPARK.value:
            return on_spark(runs, owner, observer, clock)
        case _:
            entries = tuple(entry_points(group=ENGINES, name=name))
            made: Engine = _REGISTRY.make(entries, runs, owner, observer, clock)
            return made


DRIVER_TASKS = 2
"""How many tasks the driver of Spark runs itself while Spark is starting."""


def threads_of_driver(spark: SparkSettings) -> int:
    """Return how many threads of the driver handle events before Spark does."""
    return DRIVER_TASKS if spark.driver_handles is DriverHandles.WHILE_STARTING else 0


def spark_engines(
    spark: SparkSettings, sessions: Callable[[], Sessions], handed_over: Callable[[], None]
) -> SparkEngines:
    """Return what makes the engine of Spark as settings say; ``handed_over`` is called when Spark takes over."""

    def make(runs: Sequence[GroupRun], owner: str, observer: Observer, clock: Clock) -> Engine:
        from opencqrs_py.engines.spark.engine import Meanwhile, SparkEngine  # noqa: PLC0415 loads PySpark

        meanwhile = Meanwhile(threads_of_driver(spark), handed_over)
        return SparkEngine(runs, owner, sessions(), observer, clock, spark.max_tasks_per_group, meanwhile)

    return make


def _start_of(
    blueprint: Blueprint,
    settings: EffectiveGroup,
    source: EventSource,
    group: GroupContainer,
    container: ApplicationContainer,
) -> int:
    clock = container.clock()
    if blueprint.rebuilding:  # from where the group itself began; the log may be read with a limit before that
        return initial_position(settings.fetch.initial_position, source, clock)
    return starting_position(settings, source, group.tracker(), clock)


def preparation(blueprint: Blueprint, group: str, open_transactions: Callable[[], Transactions]) -> Callable[[], None]:
    """Return what runs the ``@on_start`` functions of a group, in one transaction."""
    discovered = blueprint.discover()
    starts = discovered.functions_of(Declaration.ON_START, group)

    def prepare() -> None:
        if not starts:
            return
        transactions = open_transactions()
        with transactions.begin(guarded=False) as unit:
            for start in starts:
                try:
                    run_on_start(start.call, start.place, discovered.injector, Work(group, Partition(1, 0), unit))
                except ExplainedError:
                    raise
                except BaseException as error:
                    raise_interrupt(error)
                    if transactions.is_outage(error):  # waited for, as later ones are
                        raise
                    what = f"@on_start of group '{group}' raised {type_name(error)}: {message_of(error)}"
                    raise OnStartError("OCQ-507", what, start.place) from error
                finally:
                    enable_loggers()

    return prepare

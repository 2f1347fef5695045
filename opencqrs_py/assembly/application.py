"""The application: everything that the command line does, as calls."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from opencqrs_py.assembly.blueprint import (
    Blueprint,
    UserModules,
    modules_in,
    modules_of,
    refuse_in_import,
)
from opencqrs_py.assembly.checked_parts import unchecked
from opencqrs_py.assembly.conditions import Decision, ignored_variables
from opencqrs_py.assembly.databases import NewDatabases, database_rule, missing_database, missing_files, take_new_tables
from opencqrs_py.assembly.decisions import below, decisions, discovery_decisions
from opencqrs_py.assembly.discovery.project import Scan, SkippedPath, read_project, sources_line
from opencqrs_py.assembly.group_names import groups_named, names_given
from opencqrs_py.assembly.jobs.events import event_triggers, events_of, group_of
from opencqrs_py.assembly.lifecycle import DONE_PATIENCE, STOP_PATIENCE, Lifecycle
from opencqrs_py.assembly.reading import events_rule
from opencqrs_py.assembly.shared_spark import SharedSpark
from opencqrs_py.assembly.status import GroupStatus, RunResult
from opencqrs_py.assembly.stores import mapping_of
from opencqrs_py.config import Configuration, ConfigurationWarning, EffectiveGroup, load
from opencqrs_py.errors import AssemblyError, ExplainedError
from opencqrs_py.model.naming import canonical, letters_and_digits, listed
from opencqrs_py.model.progress import PartitionStatus, Skip
from opencqrs_py.model.properties import locked_cached_property
from opencqrs_py.processing.loggers import enable_loggers
from opencqrs_py.processing.notices import NO_OBSERVER, Observer, Observers
from opencqrs_py.processing.ports import CountedSource

if TYPE_CHECKING:
    from opencqrs_py.assembly.awaiting import Watched
    from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer
    from opencqrs_py.assembly.control import Control
    from opencqrs_py.assembly.discovery.discovered import Discovered
    from opencqrs_py.assembly.health import Health
    from opencqrs_py.assembly.inbox import InboxControl
    from opencqrs_py.assembly.jobs.events import JobEvents
    from opencqrs_py.assembly.jobs.health import JobHealth
    from opencqrs_py.assembly.jobs.jobs import Jobs
    from opencqrs_py.assembly.jobs.parts import JobAssembly
    from opencqrs_py.assembly.launch import Launch
    from opencqrs_py.assembly.layouts import Layouts
    from opencqrs_py.assembly.overview import Overview
    from opencqrs_py.assembly.rebuilds.rebuilds import Rebuilds
    from opencqrs_py.assembly.resets import Resets
    from opencqrs_py.assembly.serving import Serving
    from opencqrs_py.config import LifeCycleSettings
    from opencqrs_py.control.records import GroupPartition
    from opencqrs_py.engines.job_runner import JobRunner
    from opencqrs_py.engines.spark.session import Session
    from opencqrs_py.jobs.runs import JobRun
    from opencqrs_py.model.job import JobId

_log = logging.getLogger("opencqrs.settings")
DEFAULT_TIMEOUT = 60.0  # seconds that a wait for progress lasts at most


class Application:
    """An application: settings, handlers, and the parts assembled from both.

    As a context manager it starts nothing. At the end of the block it stops, and closes what it has opened, including
    in-memory databases. It handles no signals: that is up to its host.

    Args:
        settings: A configuration that was loaded, or a mapping of properties (dotted keys or nested) that serve as
            defaults below environment variables.
        handlers: Modules, or decorated functions and classes of importable modules; or what was found in a project.
        project: Folder to which paths of database files are relative.
        spark: A Spark session of the program's own, for the groups that run on Spark. It is left open at the end.
            Without one, the session that is active in the process is used, else one is opened as settings say.
        log_warnings: Whether to log the initial ``configuration.warnings``, and which databases a start has created; no
            if the caller shows them.

    Raises:
        ConfigurationErrors: With all that is wrong in the settings.
        AssemblyError: OCQ-513, if a handler is in the program's main module.
        TypeError: If settings or handlers are given as something else, such as a path.
    """

    def __init__(
        self,
        settings: Configuration | Mapping[str, object] | None = None,
        handlers: UserModules | Sequence[ModuleType | Any] = (),
        project: Path | str = ".",
        spark: Session | None = None,
        *,
        log_warnings: bool = True,
    ) -> None:
        self.project = Path(project).resolve()
        _check_arguments(settings, handlers)
        loaded = settings if isinstance(settings, Configuration) else load(self.project, defaults=settings or {})
        self.configuration: Configuration = loaded
        modules = handlers if isinstance(handlers, UserModules) else modules_of(handlers)
        self.blueprint = Blueprint(
            modules,
            database_rule(loaded, self.project),
            events_rule(loaded),
            loaded.settings.event_store.api_token or "",
            mapping_of(loaded.settings.event_store.mapping, loaded.settings.event_store.url),
            loaded.secrets,
            loaded.settings.clock.ref,
            job_triggers=event_triggers(loaded),
        )
        self._scan: Scan | None = None
        spark_of_all = SharedSpark(loaded.settings.spark, self.blueprint, self.project.name, spark)
        pool_size = loaded.settings.database.pool_size
        self._life = Lifecycle(self.blueprint, pool_size, spark_of_all, self._forget_parts)
        self._reports_new_databases = log_warnings
        if log_warnings:
            _log_each(loaded.warnings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._life.end()

    @classmethod
    def from_project(
        cls,
        path: Path | str = ".",
        *,
        profiles: Sequence[str] = (),
        overrides: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        spark: Session | None = None,
        log_warnings: bool = True,
    ) -> Self:
        """Find the handlers and settings of a project folder.

        Args:
            path: The folder.
            profiles: Active profiles.
            overrides: ``key=value`` pairs that override everything else.
            environ: Environment variables; ``None`` for the process's own.
            spark: A Spark session of the program's own.
            log_warnings: As for ``Application``.
        """
        found = read_project(Path(path).resolve(), profiles=profiles, overrides=overrides, environ=environ)
        modules = modules_in(found.scan, found.named_at)
        application = cls(found.configuration, modules, found.folder, spark, log_warnings=log_warnings)
        application._scan = found.scan
        return application

    @locked_cached_property
    def container(self) -> ApplicationContainer:
        """The assembly container, still without groups: the event store can be used before all handlers are valid."""
        from opencqrs_py.assembly.container import assemble  # noqa: PLC0415 loads SQLAlchemy

        return assemble(self.blueprint, self._life.stores)

    @locked_cached_property
    def _container_without_modules(self) -> ApplicationContainer:
        """The container for reading progress without importing the user's modules."""
        from opencqrs_py.assembly.container import assemble  # noqa: PLC0415 loads SQLAlchemy

        return assemble(replace(self.blueprint, modules=UserModules(())), self._life.stores)

    @locked_cached_property
    def _group_containers(self) -> Mapping[str, GroupContainer]:
        from opencqrs_py.assembly.container import group_containers  # noqa: PLC0415 loads SQLAlchemy

        self._life.resources.use()
        groups = self.groups
        self.container.blueprint.override(self.blueprint)  # which is complete now
        return group_containers(self.container, groups)

    @locked_cached_property
    def groups(self) -> tuple[EffectiveGroup, ...]:
        """The effective settings of every group that has a handler, under the name that its handlers give it.

        Once the names are known, each setting is matched to its group, in any spelling.
        """
        if self._scan is not None:
            self._scan.check(self.project)
        found = self.blueprint.discover()
        known = set(map(_said, self.configuration.warnings))
        events = self._bind(found)
        _log_each(each for each in (*self.configuration.warnings, *found.warnings) if _said(each) not in known)
        of_handlers = (replace(self.configuration.group(name), name=name) for name in found.places)
        of_jobs = (
            group_of(each, self.configuration.group(each.group), enabled=self.configuration.job(each.job).enabled)
            for each in events
        )
        return (*of_handlers, *of_jobs)

    def _bind(self, found: Discovered) -> tuple[JobEvents, ...]:
        """Bind the settings to the groups and jobs of code; return which events start which jobs, in own groups."""
        jobs = {job.name: job.place for job in found.jobs}
        bound = self.configuration.for_code(found.places, jobs)
        triggers = event_triggers(bound)
        events = events_of(found.jobs, triggers)
        if events:
            bound = bound.for_code({**found.places, **{each.group: each.place for each in events}}, jobs)
        self.configuration, self.blueprint = bound, replace(self.blueprint, job_triggers=triggers)
        return events

    @property
    def event_store(self) -> Any:
        """The event store: the object of the project or package, if it is one of these."""
        return unchecked(self.checked_event_store)

    @property
    def checked_event_store(self) -> Any:
        """The event store as groups use it: wrong results of one of a project or package raise OCQ-354."""
        self._life.resources.renew()
        return self.container.event_store()

    def missing_files(self) -> dict[str, tuple[str, str]]:
        """Return the SQLite files that a start would create, by setting, each with the setting's origin."""
        return missing_files(self.blueprint.database, self.container.event_store_choice())

    def take_new_tables(self) -> dict[str, tuple[str, str]]:
        """Return the server databases in which this process has created tables, by setting; each is returned once."""
        return take_new_tables(self.blueprint.database, self.container.event_store_choice(), self._life.stores)

    def report_new_databases(self) -> None:
        """Have starts log which databases they have created, whatever ``log_warnings`` is."""
        self.container.event_store_choice()  # an error in modules is raised now, before the first line of the log
        self._reports_new_databases = True

    def new_databases(self) -> NewDatabases:
        """Return what logs the databases that are created from now on. It imports no modules of the project."""
        rule, store = self.blueprint.database, self._container_without_modules.event_store_choice()
        return NewDatabases(missing_files(rule, store), partial(take_new_tables, rule, store, self._life.stores))

    def missing_database(self) -> tuple[str, str, str] | None:
        """Return the SQLite file of the read models' database if it does not exist; also its setting and the origin."""
        return missing_database(self.blueprint.database, self._overview().container.database_choice())

    def conditions(self) -> list[Decision]:
        """Return what was chosen where settings leave a choice, with candidates and reasons, and where handlers are.

        What could not be decided is among them, with its error; a start would raise all such errors together.
        """
        self._life.resources.renew()
        ignored = ignored_variables(self.configuration.ignored)
        try:
            groups = self.groups
        except ExplainedError as error:
            return [*ignored, *discovery_decisions(self.blueprint.modules, self._scan, self.project, error)]
        found = discovery_decisions(self.blueprint.modules, self._scan, self.project, self.blueprint.discover())
        return [*self._decisions(groups), *self._job_decisions(), *self._recorded(groups), *ignored, *found]

    def _recorded(self, groups: Sequence[EffectiveGroup]) -> list[Decision]:
        """Return what the records of groups say; nothing before there are databases."""
        from opencqrs_py.assembly.recorded import record_decisions  # noqa: PLC0415 loads SQLAlchemy

        if self.missing_files():
            return []
        parts = self._group_containers
        return [each for one in groups for each in record_decisions(one, parts[one.name], self.container)]

    def _decisions(self, groups: Sequence[EffectiveGroup]) -> list[Decision]:
        return decisions(self.configuration, self.container, groups, self._group_containers)

    def _job_decisions(self) -> list[Decision]:
        return self._job_assembly().decisions() if self.blueprint.discover().jobs else []

    def start(
        self,
        groups: Sequence[str] = (),
        observer: Observer = NO_OBSERVER,
        *,
        verbose: bool = False,
        jobs: bool | None = None,
    ) -> None:
        """Start the processors, and what runs jobs.

        Args:
            groups: Names of the groups to start; empty for all with ``life-cycle.auto-start``.
            observer: Sees what happens.
            verbose: Whether Spark's own log is shown.
            jobs: Whether jobs are run; ``None``: if there are any, and no groups are named.

        Raises:
            AssemblyError: OCQ-501 in a module that discovery imports, OCQ-508 if there is nothing to start, OCQ-509 for
                a name that is not a group, OCQ-511 if it runs or is being started already, AssemblyErrors with all that
                could not be decided or does not exist yet.
            EngineError: If an engine cannot run on this machine.
            EventStoreError: If a group's progress does not fit its configuration, or a database cannot be used.
        """
        self._start(groups, observer, verbose=verbose, jobs=jobs)

    def _start(
        self,
        names: Sequence[str],
        observer: Observer,
        *,
        verbose: bool,
        jobs: bool | None,
        until_caught_up: bool = False,
    ) -> None:
        refuse_in_import()
        enable_loggers()
        with self._life.starting():  # what is checked before opened() is raised with nothing open
            _log.info("%s", sources_line(self.configuration, self.project))
            found = self.blueprint.discover()
            runs_jobs = bool(found.jobs) and (not names if jobs is None else jobs)
            found.make_handlers()  # a class that cannot be made is refused, whichever groups start
            chosen = self._chosen(names, may_be_none=runs_jobs)
            others = [] if names else [each for each in self.groups if each not in chosen]
            with self._life.opened(), self._reporting(observer) as reporting:
                launch = self._launch(verbose=verbose, until_caught_up=until_caught_up)
                self._create(launch, chosen, others, reporting, jobs=runs_jobs)

    def _create(
        self,
        launch: Launch,
        chosen: Sequence[EffectiveGroup],
        others: Sequence[EffectiveGroup],
        observer: Observer,
        *,
        jobs: bool,
    ) -> None:
        """Create what runs, and the HTTP server. Nothing is started yet."""
        serving = self._life.serving = self._made_serving()
        watching = observer if serving is None else Observers([serving.counting, observer])
        launch.check(chosen, [each.error for each in self._job_decisions() if each.error] if jobs else [])
        if chosen:
            self._require_event_store()
        counting = None if serving is None else serving.runs
        parts = self._job_assembly(verbose=launch.verbose).parts(observer=counting) if jobs else None
        if jobs or self.blueprint.job_triggers:
            self.container.job_store().prepare()  # not within a transaction in which an event starts a job
        processors = launch.processors(chosen, others, watching, parts, self.layouts.started)
        self._life.processors = processors
        if processors.jobs is not None:
            self.container.job_bell().ring = processors.jobs.wake
        self._complete_rebuilds(chosen)
        self._mention_others(chosen)

    @contextmanager
    def _reporting(self, observer: Observer) -> Iterator[Observer]:
        """Log which databases a start has created, also if it fails; yield the observer that does so at each claim."""
        if not self._reports_new_databases:
            yield observer
            return
        made = NewDatabases(self.missing_files(), self.take_new_tables)
        try:
            yield Observers([made, observer])
        finally:
            made.report()

    def _launch(self, *, verbose: bool, until_caught_up: bool) -> Launch:
        from opencqrs_py.assembly.launch import Launch  # noqa: PLC0415 loads SQLAlchemy

        parts = (self.container, self._group_containers, self._life.stores, self._life.spark)
        return Launch(self.configuration, self.blueprint, *parts, verbose, until_caught_up)

    def _require_event_store(self) -> None:
        """Raise once what is wrong with the event store. Outages and unforeseen errors are left to the partitions."""
        try:
            store = self.checked_event_store
            if isinstance(store, CountedSource):
                store.check()
            else:
                store.head()
        except Exception as error:
            if isinstance(error, ExplainedError) and not self.checked_event_store.is_outage(error):
                raise

    def _made_serving(self) -> Serving | None:
        """Return the HTTP server, ``None`` if none is wanted."""
        if self.configuration.settings.http.bind is None:
            return None
        from opencqrs_py.assembly.serving import Served, Serving  # noqa: PLC0415 only if it is wanted

        jobs = (lambda: self.jobs) if self.blueprint.discover().jobs else None
        served = Served(lambda: self._life.processors, self._overview, lambda: self.checked_event_store, jobs)
        return Serving(self.configuration, served)

    def _mention_others(self, chosen: Sequence[EffectiveGroup]) -> None:
        """Log which groups have progress in the databases of these, and no handler here."""
        from opencqrs_py.assembly.recorded import mention_others  # noqa: PLC0415 loads SQLAlchemy

        mention_others([group.name for group in chosen], self._group_containers)

    def _forget_parts(self) -> None:
        from opencqrs_py.assembly.container import renew  # noqa: PLC0415 loads SQLAlchemy

        renew(self.container, self._group_containers.values())

    def stop(self, patience: float = STOP_PATIENCE) -> None:
        """Finish the events in hand, for at most ``patience`` seconds in all, and release everything.

        Also closes what parts have opened outside of a run, and the connections to databases and to the event store
        that settings name; the next use opens them again. An in-memory database stays open, as closing would delete it.
        May be called from any thread, from ``atexit``, and again.

        Does nothing in a fork of the process that called ``start``: the processors are not the fork's.
        """
        self._life.stop(patience)

    def check(self) -> None:
        """Raise what has ended an engine, or what leads its partitions, since ``start``; return if nothing has.

        ``run`` does so itself. A program that calls ``start`` should call this regularly, such as at each liveness
        probe.

        Raises:
            AssemblyError: OCQ-511 in a fork of the process that has called ``start``, which cannot know.
        """
        self._life.refuse_fork(
            ", so it cannot be checked here", "call check() there; health() and status() look at all processes"
        )
        self._check()

    def _check(self) -> None:
        """Raise what has ended an engine of this process."""
        processors = self._life.running
        if processors is not None:
            processors.check()

    def run(
        self,
        groups: Sequence[str] = (),
        observer: Observer = NO_OBSERVER,
        *,
        until_caught_up: bool = False,
        verbose: bool = False,
        jobs: bool | None = None,
    ) -> RunResult:
        """Start the processors, and block until they are done, failed, or interrupted.

        Args:
            groups: As for ``start``.
            observer: Sees what happens.
            until_caught_up: End when every partition has reached the head of the store.
            verbose: Whether Spark's own log is shown.
            jobs: As for ``start``; with ``until_caught_up``, ``None`` means no; runs that are due are waited for then.

        Raises:
            KeyboardInterrupt: After a clean stop; ``last_result`` is how the run ended.
        """
        jobs = False if until_caught_up and jobs is None else jobs
        self._start(groups, observer, verbose=verbose, jobs=jobs, until_caught_up=until_caught_up)
        return self._life.stay(until_caught_up=until_caught_up)

    def keeping_resources(self) -> AbstractContextManager[None]:
        """Return a context manager that closes the project's resources at its end, instead of at a stop within it.

        After a ``run`` in it, ``status`` reuses what the run has opened.
        """
        return self._life.keeping_resources()

    @property
    def last_result(self) -> RunResult | None:
        """How the last ``run`` in this process has ended, also if it was interrupted; ``None`` if none has."""
        return self._life.last_result

    def status(self, groups: Sequence[str] = ()) -> list[GroupStatus]:
        """Return how far each group is, from any process.

        Groups that run in this process need no database for this, so they are known even while it is unavailable or the
        event store refuses; head and lags are then ``None`` if the event store has not answered.

        Args:
            groups: Names of the groups; empty for all.

        Raises:
            AssemblyError: OCQ-509 for a name that is not a group.
        """
        overview = self._overview(groups)
        chosen = groups_named(groups, overview.groups) if groups else overview.groups
        source = self.checked_event_store
        processors = self._life.running
        own = processors.load() if processors is not None else None
        look = overview.look(chosen, source, self._running(), own=own)
        return overview.recorded(overview.statuses(chosen, look, source))

    def health(self, groups: Sequence[str] = ()) -> Health:
        """Return whether all is well with groups and jobs, from any process.

        A group that is stopped on purpose is healthy; one that should run but that no process runs is not. Events that
        wait in the inbox, or were skipped, do not matter here: ``status`` has them.

        Args:
            groups: Names of the groups; empty for all, and all jobs.

        Raises:
            AssemblyError: OCQ-509 for a name that is not a group.
        """
        from opencqrs_py.assembly.health import Health, HealthRule  # noqa: PLC0415 only for this
        from opencqrs_py.assembly.overview import line_of_outage  # noqa: PLC0415 loads SQLAlchemy

        said = self.configuration.settings.health
        overview = self._overview(groups)
        chosen = groups_named(groups, overview.groups) if groups else overview.groups
        try:
            source = self.checked_event_store
            look = overview.look(chosen, source, self._running())
            health = overview.health(chosen, look, source, HealthRule(said.max_lag, said.stalled_after))
            return health if groups or health.unavailable else replace(health, jobs=self.job_health())
        except Exception as error:
            if (line := line_of_outage(error)) is None:
                raise
            return Health(unavailable=line)

    def job_health(self) -> tuple[JobHealth, ...]:
        """Return whether all is well with jobs, by name; nothing is imported or queried if there are none.

        Of jobs whose runs are recorded in memory, only the process that runs them can tell whether one does.
        """
        if self._scan is not None and not self._scan.may_have_jobs:
            return ()
        if not self.blueprint.discover().jobs:
            return ()
        from opencqrs_py.assembly.jobs.health import judged_job  # noqa: PLC0415 loads SQLAlchemy

        shared = self._runner() is None and self.container.control_store() is not None
        overdue_after = self.configuration.settings.health.stalled_after
        return tuple(
            judged_job(each, overdue_after, unowned=shared and not each.nodes) for each in self.jobs.statuses()
        )

    def _running(self) -> Mapping[GroupPartition, PartitionStatus]:
        processors = self._life.running
        return processors.running() if processors is not None else {}

    def await_position(
        self,
        group: str | Sequence[str],
        position: int | str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        *,
        source: str = "",
    ) -> int:
        """Wait until groups have stored their progress up to a position, whichever process runs them.

        Then their read models contain what handlers wrote for that event and all before it. An event that was skipped
        or waits in the inbox counts as done. May be called from many threads at once; asynchronous code calls it by
        ``asyncio.to_thread``.

        Args:
            group: Name of the group, or of several.
            position: Position of an event, which may not exist yet; or an event's id; ``None``: the newest event.
            timeout: Longest wait in seconds.
            source: Source of the event whose id is given, if events of several sources have it.

        Returns:
            The position.

        Raises:
            NotReachedError: OCQ-542 at once, if a partition that has not reached it has failed or is stopped, or no
                process runs it, and if its progress is beyond the end of the log, so belongs to another log; OCQ-543,
                if no event has the id.
            WaitTimedOutError: OCQ-536, if the time is over.
            AssemblyError: OCQ-509 for a name that is not a group, OCQ-544 if events of several sources have the id.
            ValueError: If the position is less than 0, or there is no group.
        """
        from opencqrs_py.assembly.awaiting import Awaiting  # noqa: PLC0415 loads SQLAlchemy

        names = [group] if isinstance(group, str) else list(group)
        if not names:
            raise ValueError("name a group to wait for")
        overview = self._overview(names)
        awaiting = Awaiting(overview, self.checked_event_store, self._watched, self._running, self._check)
        groups, target = groups_named(names, overview.groups), awaiting.target(position, source)
        awaiting.wait(groups, target, timeout, newest=0 if isinstance(position, int) else target)
        return target

    @locked_cached_property
    def _watched(self) -> Watched:
        from opencqrs_py.assembly.awaiting import Watched  # noqa: PLC0415 loads SQLAlchemy

        return Watched(self._hasten)

    def _hasten(self, group: str) -> None:
        """Have a group that runs in this process store its progress without delay: a caller waits for it."""
        processors = self._life.running
        if processors is not None:
            processors.hasten(group)

    def skipped(self) -> list[Skip]:
        """Return the events whose attempts were exhausted, by group and position, also those of earlier runs.

        Progress that is kept in memory has those of this process only; on Spark not even those, since its workers
        record them.
        """
        return self._overview().skipped()

    @property
    def control(self) -> Control:
        """What starts, stops and moves groups, whichever process runs them."""
        return self._overview().control()

    @property
    def inbox(self) -> InboxControl:
        """What shows and changes the events that wait in inboxes, whichever process runs their groups."""
        return self._overview().inbox(lambda: self.checked_event_store)

    @property
    def jobs(self) -> Jobs:
        """What lists, runs, pauses and cancels jobs, whichever process runs them."""
        self._life.resources.renew()
        self._named_in_code()
        return self._job_assembly().jobs(self._runner)

    def run_job(self, name: str, ids: Sequence[JobId] | None = None, timeout: float | None = None) -> JobRun:
        """Run a job on the caller's thread, whether or not the application runs, and return how the run ended.

        The rules for overlaps apply in all processes: the run may be skipped, or wait. It has its own transactions.

        Args:
            name: Name of the job, in any spelling.
            ids: Ids to run it for, at least one; ``None``: all that applies.
            timeout: Seconds to wait for runs that exclude it; ``None``: no limit.

        Raises:
            JobError: OCQ-667 for a name that is not a job.
            WaitTimedOutError: OCQ-664, if others have not ended in time; the run is cancelled then.
            ValueError: If there are no ids; TypeError, if one is neither a whole number nor a text.

        Source:
            J5 and J13.
        """
        runner = self._runner()
        if runner is not None:
            return runner.local.run(self.jobs.new_run(name, ids), timeout)
        from opencqrs_py.assembly.jobs.company import alone  # noqa: PLC0415 loads SQLAlchemy

        with self._life.spark.used(DONE_PATIENCE):
            jobs, parts = self.jobs, self._job_assembly().parts(only=name)
            with alone(parts, self.container.control_store(), self.configuration.settings.node) as local:
                return local.run(jobs.new_run(name, ids), timeout)

    def _named_in_code(self) -> None:
        """Bind the settings to the existing groups and jobs."""
        _ = self.groups

    def _runner(self) -> JobRunner | None:
        processors = self._life.running
        return processors.jobs if processors is not None else None

    def _job_assembly(self, *, verbose: bool = False) -> JobAssembly:
        from opencqrs_py.assembly.jobs.parts import JobAssembly  # noqa: PLC0415 loads SQLAlchemy

        sessions = partial(self._life.spark.sessions, verbose=verbose)
        return JobAssembly(self.blueprint, self.configuration, self.container, lambda: self._group_containers, sessions)

    @property
    def resets(self) -> Resets:
        """What moves the progress of groups to another position, whichever process runs them."""
        from opencqrs_py.assembly.resets import Resets  # noqa: PLC0415 loads SQLAlchemy

        self._life.resources.renew()
        self._complete_rebuilds(self.groups)
        return Resets(self.groups, self._group_containers, self.container, self.control)

    @property
    def layouts(self) -> Layouts:
        """What changes the partitions of groups, whichever process runs them."""
        from opencqrs_py.assembly.layouts import Layouts  # noqa: PLC0415 loads SQLAlchemy

        self._life.resources.renew()
        self._complete_rebuilds(self.groups)
        return Layouts(self.groups, self._group_containers, self.container, self.control)

    @property
    def rebuilds(self) -> Rebuilds:
        """What builds groups again beside the running ones, and swaps both."""
        from opencqrs_py.assembly.rebuilds.rebuilds import Rebuilds  # noqa: PLC0415 loads SQLAlchemy, as the next one
        from opencqrs_py.assembly.rebuilds.shadow_run import ShadowRun  # noqa: PLC0415

        self._life.resources.renew()
        groups = {group.name: group for group in self.groups}
        beside = partial(ShadowRun, self.configuration, self._life.spark)
        return Rebuilds(groups, self._group_containers, self.container, self.blueprint, beside, self.control)

    def _complete_rebuilds(self, chosen: Sequence[EffectiveGroup]) -> None:
        """Complete swaps of rebuilds whose process was killed."""
        database = self.container.database()
        if database is not None and database.dialect.swaps_in_steps:
            self.rebuilds.complete([group.name for group in chosen])

    def _overview(self, names: Sequence[str] = ()) -> Overview:
        """Return an overview of the groups; imports nothing if the files name all groups, including the caller's."""
        from opencqrs_py.assembly.container import group_containers  # noqa: PLC0415 loads SQLAlchemy
        from opencqrs_py.assembly.overview import Overview  # noqa: PLC0415 as above

        self._life.resources.renew()
        scan = self._scan
        known = scan is not None and scan.complete and scan.all_named and not self.blueprint.job_triggers
        if scan is None or "groups" in vars(self) or scan.containers or not known:
            return Overview(self.groups, self._group_containers, self.container)
        groups = [replace(self.configuration.group(name), name=name) for name in scan.groups]
        refs = (self.configuration.settings.database.ref, *(group.progress.tracker_ref for group in groups))
        if any(refs) or not {*map(canonical, names_given(names))} <= {canonical(group.name) for group in groups}:
            return Overview(self.groups, self._group_containers, self.container)
        container = self._container_without_modules
        return Overview(groups, group_containers(container, groups), container)

    def without_handlers(self, what: str, fix: str) -> AssemblyError:
        """Return the error OCQ-508 of a project without handlers; it names files with handlers that discovery skips."""
        passed = self._scan.passed_over if self._scan is not None else ()
        if passed:
            what += f", but files with handlers or jobs were passed over: {listed(map(self._reason, passed))}"
            fix = f"move the handlers to a file that discovery imports; or {fix}"
        return AssemblyError("OCQ-508", what, str(self.project), fix)

    def _reason(self, passed: SkippedPath) -> str:
        return f"{below(passed.path, self.project)} ({passed.why})"

    def _chosen(self, names: Sequence[str], *, may_be_none: bool = False) -> list[EffectiveGroup]:
        if not self.groups and not may_be_none:
            fix = 'decorate a function with @event_handling("…") in a module of the project'
            if self.blueprint.discover().jobs:
                fix = f"add --jobs to run the existing jobs; or {fix}"
            raise self.without_handlers("no handlers were found", fix)
        chosen = groups_named(names, self.groups) if names else [s for s in self.groups if _starts(s.life_cycle)]
        if not chosen and not may_be_none:
            fix = "name groups to start, or set life-cycle.auto-start: true"
            raise AssemblyError("OCQ-508", "no group starts automatically: auto-start is off for all", fix=fix)
        return chosen


def _check_arguments(settings: object, handlers: object) -> None:
    """Raise ``TypeError`` for values that are easily mistaken for settings or handlers."""
    if settings is not None and not isinstance(settings, Configuration | Mapping):
        raise TypeError(
            f"settings must be a mapping or a loaded Configuration, got {settings!r}; "
            "to open a folder with its settings and handlers, write Application.from_project(folder)"
        )
    if isinstance(handlers, UserModules):
        return
    if isinstance(handlers, str) or not isinstance(handlers, Iterable):
        raise TypeError(
            f"handlers must be a list of modules, functions and classes, got {handlers!r}; write handlers=[…]"
        )


def _log_each(warnings: Iterable[ConfigurationWarning]) -> None:
    """Log warnings, also if ``logging.config`` has disabled the logger since it was made."""
    enable_loggers()
    for warning in warnings:
        _log.warning("%s", warning)


def _said(warning: ConfigurationWarning) -> tuple[str, str]:
    """Return what a warning says; once code is known, its names are spelled as there."""
    return warning.code, letters_and_digits(warning.what)


def _starts(life_cycle: LifeCycleSettings) -> bool:
    """Return whether a group starts automatically; where the project has controllers, they decide."""
    return life_cycle.auto_start or life_cycle.controller_registration is not None

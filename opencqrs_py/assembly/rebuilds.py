"""Rebuilds of groups: new tables are filled beside those in use, and then both are swapped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dependency_injector import providers

from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.adapters.sql.shadows import Comparison, Shadows, Swap
from opencqrs_py.assembly.actor import actor
from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.databases import DatabaseRule, Said
from opencqrs_py.assembly.group_code import starts_fingerprint
from opencqrs_py.assembly.rebuild_checks import require_streaming
from opencqrs_py.assembly.rebuild_reach import Reach
from opencqrs_py.assembly.running import initial_position, preparation
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.config.value_types import AGO
from opencqrs_py.errors import AssemblyError, RebuildError
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.masking import mask_url
from opencqrs_py.model.naming import canonical, listed
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.progress import PartitionStatus
from opencqrs_py.model.rebuild import Fate, RebuildPhase, RebuildRecord, ShadowTable
from opencqrs_py.processing.group_records import GroupCode, same_code
from opencqrs_py.processing.pacing import Arrivals, Following, Limit, Pace, paced
from opencqrs_py.processing.ports import ProgressTracker
from opencqrs_py.processing.signatures import Kind

if TYPE_CHECKING:
    from opencqrs_py.assembly.application import Application
    from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer
    from opencqrs_py.assembly.control import Control

_log = logging.getLogger("opencqrs.control")
_PAUSE, _LONGEST_PAUSE = 0.02, 0.25  # seconds between two looks at how far the rebuild is
_NEAR_SECONDS = 2.0  # a head that was reached in less than that is near enough to swap
_STARTS, _SEQUENCING = "its @on_start functions", "the way its events are sequenced"
_EXAMPLES = 5  # rows of a table that are shown
DEFAULT_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class RebuildProgress:
    """How far a rebuild is.

    Attributes:
        group: Processing group.
        position: Up to which the slowest partition has handled events.
        head: Position of the newest event.
        events_per_second: How many events of the log it passes; ``None`` before the second look.
    """

    group: str
    position: int
    head: int
    events_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What a rebuild would do.

    Attributes:
        group: Processing group.
        engine: What would run it.
        events: How many positions of the log it would pass.
        tables: What is in the shadow. Of those that are left alone now, handlers may still write to some.
        handlers: The handlers that would be called.
        left_out: Those that would not be, as they do not ask for the transaction.
        refusals: Why it would be refused; empty if it would not be.
        max_events_per_second: How many events of the log it would pass in a second at most; ``None``: no limit.
        max_tasks: How many partitions, or tasks of Spark, it would have under way at once at most; ``None``: no limit.
    """

    group: str
    engine: str
    events: int
    tables: tuple[ShadowTable, ...]
    handlers: tuple[str, ...]
    left_out: tuple[str, ...]
    refusals: tuple[str, ...]
    max_events_per_second: int | None = None
    max_tasks: int | None = None


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """What a rebuild, or the way back, has come to.

    Attributes:
        group: Processing group.
        position: Up to which events are handled in the tables that are live now.
        tables: What has become of each table.
        seconds: How long readers of the tables waited at most.
        running: Whether a node that lives runs the group.
    """

    group: str
    position: int
    tables: tuple[ShadowTable, ...]
    seconds: float
    running: bool


Watcher = Callable[[RebuildProgress], None]


def _unwatched(_progress: RebuildProgress) -> None:
    pass


class Rebuilds:
    """Rebuilds groups while they run, from any process. Each step is logged by the logger ``opencqrs.control``.

    Args:
        groups: The groups, by name.
        parts: Their parts.
        container: The parts that they share.
        blueprint: What the application is made from.
        beside: Makes an application of one group from a blueprint.
        control: Has nodes claim a group again.
    """

    def __init__(
        self,
        groups: Mapping[str, EffectiveGroup],
        parts: Mapping[str, GroupContainer],
        container: ApplicationContainer,
        blueprint: Blueprint,
        beside: Callable[[Blueprint, EffectiveGroup], Application],
        control: Control,
    ) -> None:
        self._groups = groups
        self._parts = parts
        self._container = container
        self._blueprint = blueprint
        self._beside = beside
        self._control = control

    def records(self) -> dict[str, RebuildRecord]:
        """Return the last rebuild of each group that has had one."""
        found = {}
        for name in self._groups:
            try:
                record = self._shadows(name).record(name)
            except RebuildError:
                continue
            if record is not None:
                found[name] = record
        return found

    def plan(self, name: str) -> RebuildPlan:
        """Return what a rebuild would do. The tables are made, looked at and dropped again; no event is handled.

        Raises:
            AssemblyError: OCQ-509 for a name that is no group.
            RebuildError: OCQ-630, if the group cannot be rebuilt at all, or is being rebuilt.
            OnStartError: OCQ-507, if ``@on_start`` fails there.
        """
        group, shadows = self._chosen(name)
        require_streaming(group)
        self._require_none(group, shadows)
        code, live = self._code(group.name), self._live(group)
        record = self._opened(group, shadows, code)
        try:
            with self._shadow(group, shadows, record, live) as application:
                tables = self._made(application, group, shadows)
                left_out = self._left_out(group)
                called = [h.place for h in self._blueprint.discover().of_group(group.name) if h.place not in left_out]
                refusals = self._refusals(group, shadows, tables)
        finally:
            shadows.drop_shadow(group.name)
        events = max(0, self._container.event_store().head() - self._beginning(group, live))
        engine = group.processing.engine.value
        return RebuildPlan(
            group.name,
            engine,
            events,
            tuple(tables),
            tuple(called),
            left_out,
            tuple(refusals),
            group.rebuild.max_events_per_second,
            group.rebuild.max_tasks,
        )

    def rebuild(
        self,
        name: str,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        accept_unhandled: bool = False,
        watcher: Watcher = _unwatched,
    ) -> RebuildResult:
        """Build a group again beside the live one, on its engine in this process, and swap both when it has caught up.

        It may be called again after whatever has ended it: it continues, or completes what was begun.

        Args:
            name: The group, in any spelling.
            timeout: Longest time in seconds to get the locks of the swap.
            accept_unhandled: Whether to swap although handlers could not handle events that the live group has handled.
            watcher: Is shown how far it is.

        Raises:
            AssemblyError: OCQ-509 for a name that is no group.
            RebuildError: OCQ-630, if it cannot be rebuilt beside the live one; OCQ-635, if a handler fails there for
                good; OCQ-636, if events were skipped, or wait in the inbox, that the live group has handled.
            WaitTimedOutError: OCQ-536, if others held locks on the tables for too long; the shadow stays.
        """
        group, shadows = self._chosen(name)
        with self._caught_up(group, shadows, watcher) as reach:
            swap = self._swap_of(group, reach, accept_unhandled=accept_unhandled)
            with self._renewed(group.name) as running:
                swapped = shadows.swap(swap, timeout)
        shadows.drop_shadow(group.name)
        text = "group %s was rebuilt by %s: its tables are those up to position %d"
        _log.warning(text, group.name, actor(), swapped.position)
        return RebuildResult(group.name, swapped.position, swapped.tables, swapped.seconds, running)

    def compare(
        self, name: str, *, timeout: float = DEFAULT_TIMEOUT, examples: int = _EXAMPLES, watcher: Watcher = _unwatched
    ) -> Comparison:
        """Build the group again up to the head, and return which rows differ from the live ones. Nothing is swapped.

        Both are compared where they have handled the same events. If there is no such moment within the time, as events
        come in without a pause, the result says so. Args and errors are those of ``rebuild``.
        """
        group, shadows = self._chosen(name)
        with self._caught_up(group, shadows, watcher) as reach:
            until = time.monotonic() + timeout
            while True:
                reach.target(self._container.event_store().head())
                reach.hasten()
                found = shadows.compare(group.name, examples)
                if found.exact or time.monotonic() >= until:
                    return found
                time.sleep(_LONGEST_PAUSE)

    def undo(self, name: str, *, timeout: float = DEFAULT_TIMEOUT) -> RebuildResult:
        """Put the tables back that a swap has kept, with their progress, from which the group then continues.

        Raises:
            AssemblyError: OCQ-509 for a name that is no group.
            RebuildError: OCQ-630, if none are kept, or they cannot be put back.
            WaitTimedOutError: OCQ-536, if others held locks on the tables for too long.
        """
        group, shadows = self._chosen(name)
        shadows.complete(group.name)
        shadows.tidy(group.name)
        known = shadows.record(group.name)
        if known is None or not known.keeps_old:
            what = f"no old tables of group '{group.name}' are kept"
            raise RebuildError("OCQ-630", what, f"group {group.name}", "there is nothing to undo")
        with self._renewed(group.name) as running:
            swapped = shadows.undo(group.name, timeout)
        text = "the old tables of group %s were put back by %s: they are those up to position %d"
        _log.warning(text, group.name, actor(), swapped.position)
        return RebuildResult(group.name, swapped.position, swapped.tables, swapped.seconds, running)

    def drop_old(self, name: str) -> bool:
        """Drop the tables that a swap has kept; return whether there were any. Errors are those of ``undo``."""
        group, shadows = self._chosen(name)
        shadows.complete(group.name)
        shadows.tidy(group.name)
        known = shadows.record(group.name)
        if known is None or not known.keeps_old:
            return False
        shadows.drop_old(group.name)
        _log.warning("the old tables of group %s were dropped by %s", group.name, actor())
        return True

    def abort(self, name: str) -> bool:
        """Drop an unfinished shadow; return whether there was one. Errors are those of ``undo``."""
        group, shadows = self._chosen(name)
        shadows.complete(group.name)
        shadows.tidy(group.name)
        known = shadows.record(group.name)
        if not shadows.exists(group.name) and (known is None or not known.has_shadow):
            return False
        shadows.drop_shadow(group.name)
        _log.warning("the rebuild of group %s was given up by %s", group.name, actor())
        return True

    def complete(self, names: Sequence[str]) -> None:
        """Complete swaps that were broken off half-way; groups that cannot be rebuilt beside themselves have none."""
        for name in names:
            try:
                shadows = self._shadows(name)
            except RebuildError:
                continue
            shadows.complete(name)

    # Parts

    @contextmanager
    def _renewed(self, group: str) -> Iterator[bool]:
        """Swap in this block, and have nodes claim the group again; gives whether one that lives runs it.

        Asked before the swap: while it lasts, MariaDB's nodes do without the group.
        """
        yield self._control.can_run(group)
        self._control.renew(group)

    def _chosen(self, name: str) -> tuple[EffectiveGroup, Shadows]:
        group = next((group for known, group in self._groups.items() if canonical(known) == canonical(name)), None)
        if group is None:
            fix = f"use one of {listed(self._groups)}" if self._groups else "write a handler for it"
            raise AssemblyError("OCQ-509", f"no handler belongs to a group '{name}'", fix=fix)
        return group, self._shadows(group.name)

    def _shadows(self, name: str) -> Shadows:
        database, choice = self._container.database(), self._container.database_choice()
        tracker = self._parts[name].tracker()
        where = f"group {name}"
        if database is None or not isinstance(tracker, SqlProgressTracker) or tracker.database is not database:
            what = f"group '{name}' cannot be rebuilt beside itself: its progress is not in the database of its tables"
            raise RebuildError("OCQ-630", what, where, "keep progress in SQL: progress.tracking: sql")
        if choice.ref:
            what = f"the shadow of group '{name}' needs connections of its own, and a provider makes those there are"
            raise RebuildError("OCQ-630", what, choice.ref, "set database.url instead of database.ref")
        return database.dialect.shadows(database)

    def _code(self, name: str) -> GroupCode:
        code: GroupCode = self._parts[name].code()
        return code

    def _live(self, group: EffectiveGroup) -> GroupRecord | None:
        """Return the record of the live group, which must have begun."""
        tracker = self._parts[group.name].tracker()
        statuses = [one for one in tracker.statuses() if one.group == group.name]
        if not statuses:
            what = f"group '{group.name}' has never run, so there is nothing to rebuild beside it"
            raise RebuildError("OCQ-630", what, f"group {group.name}", "opencqrs run")
        records = tracker.records() if isinstance(tracker, SqlProgressTracker) else ()
        return next((one for one in records if one.group == group.name), None)

    def _layout(self, name: str) -> tuple[Partition, ...]:
        """Return the partitions that the live group has, which those of the shadow have to be."""
        found = {one.partition for one in self._parts[name].tracker().statuses() if one.group == name}
        whole = layout(len(found))
        if found != set(whole):
            what = f"the partitions of group '{name}' are being changed, or are not alike"
            fix = f"opencqrs groups partitions {name} {len(found)}, and then rebuild it"
            raise RebuildError("OCQ-630", what, f"group {name}", fix)
        return whole

    def _beginning(self, group: EffectiveGroup, live: GroupRecord | None) -> int:
        """Return the position after which the group began, wherever a new one would begin now.

        Raises:
            RebuildError: OCQ-630, if nobody knows: its record is of a version that kept none, and what settings say
                leads to another position now than it did then.
        """
        if live is not None and live.position is not None:
            return live.position
        setting = group.fetch.initial_position
        if setting == "head" or setting[:2].casefold() == AGO:
            what = f"nobody knows where group '{group.name}' began: '{setting}' leads to another event now than it did"
            fix = "set fetch.initial-position to the position after which it began, or reset it to where it is to begin"
            raise RebuildError("OCQ-630", what, f"group {group.name}", fix)
        return initial_position(group.fetch.initial_position, self._container.event_store(), self._container.clock())

    @staticmethod
    def _require_none(group: EffectiveGroup, shadows: Shadows) -> None:
        known = shadows.record(group.name)
        where = f"group {group.name}"
        if known is not None and known.keeps_old:
            what = f"the old tables of the last rebuild of group '{group.name}' are kept"
            fix = f"opencqrs groups rebuild {group.name} --drop-old, or --undo"
            raise RebuildError("OCQ-630", what, where, fix)
        if known is not None and known.phase is not RebuildPhase.ENDED:
            what = f"group '{group.name}' is being rebuilt"
            raise RebuildError(
                "OCQ-630", what, where, f"opencqrs groups rebuild {group.name} continues; --abort ends it"
            )

    def _opened(self, group: EffectiveGroup, shadows: Shadows, code: GroupCode) -> RebuildRecord:
        """Return the record of the shadow, which continues if the same handlers and settings have begun it."""
        shadows.complete(group.name)
        shadows.tidy(group.name)
        known = shadows.record(group.name)
        if known is not None and known.has_shadow and shadows.exists(group.name):
            changed = self._changed(group, shadows, code, known)
            if not changed:
                return known
            text = "group %s: %s changed since the rebuild began, so it begins again"
            _log.warning(text, group.name, listed(changed))
        else:
            self._require_none_kept(group, known)
        shadows.drop_shadow(group.name)
        conditions = self._conditions(group, shadows, code)
        return shadows.open(group.name, code.handlers, group.rebuild.tables, group.rebuild.shared_tables, conditions)

    def _changed(self, group: EffectiveGroup, shadows: Shadows, code: GroupCode, known: RebuildRecord) -> list[str]:
        """Return the names of what is not as it was when an unfinished rebuild began; empty if it may continue."""
        if not same_code(known.handlers, code.handlers):
            return ["its handlers"]
        if known.shared != group.rebuild.shared_tables:
            return ["rebuild.shared-tables"]
        looked = shadows.look(group.name, group.rebuild.tables, known.shared)
        if not {one.name for one in looked} >= set(group.rebuild.tables):
            return ["rebuild.tables"]
        now = self._conditions(group, shadows, code)
        return [
            name
            for name in known.changed(now)
            if name not in {_STARTS, _SEQUENCING} or not same_code(known.conditions[name], now[name])
        ]

    def _conditions(self, group: EffectiveGroup, shadows: Shadows, code: GroupCode) -> dict[str, str]:
        """Return what the tables of a rebuild depend on besides handlers and settings that the record has."""
        starts = [one.call for one in self._blueprint.discover().starts if one.group == group.name]
        return {
            "fetch.subject": group.fetch.subject,
            "fetch.recursive": str(group.fetch.recursive),
            "rebuild.run-all-handlers": str(group.rebuild.run_all_handlers),
            _STARTS: starts_fingerprint(group.name, starts, self._container.code_reader()),
            _SEQUENCING: code.sequencing,
            **shadows.columns_of(group.rebuild.tables),
        }

    def _require_none_kept(self, group: EffectiveGroup, known: RebuildRecord | None) -> None:
        if known is not None and known.keeps_old:
            what = f"the old tables of the last rebuild of group '{group.name}' are kept"
            fix = f"opencqrs groups rebuild {group.name} --drop-old, or --undo"
            raise RebuildError("OCQ-630", what, f"group {group.name}", fix)

    @contextmanager
    def _shadow(
        self, group: EffectiveGroup, shadows: Shadows, record: RebuildRecord, live: GroupRecord | None
    ) -> Iterator[Application]:
        """Open the application that fills the shadow."""
        url = shadows.url(record)
        rule = _moved(self._blueprint.database, url)
        blueprint = replace(self._blueprint, database=rule, rebuilding=True)
        settings = replace(
            group,
            fetch=replace(group.fetch, initial_position=str(self._beginning(group, live))),
            life_cycle=replace(
                group.life_cycle,
                auto_start=True,
                controller=None,
                controller_registration=None,
                lock_registry=None,
                partitions=len(self._layout(group.name)),
            ),
        )
        # The live file of SQLite is read beside the shadow, which needs a connection that keeps it as it is.
        with self._database().reading(apart=True), self._beside(blueprint, settings) as application:
            yield application

    def _database(self) -> Database:
        found: Database | None = self._container.database()
        if found is None:  # which _shadows has refused
            raise LookupError("there is no database")
        return found

    def _made(self, application: Application, group: EffectiveGroup, shadows: Shadows) -> list[ShadowTable]:
        """Make the tables of the shadow, and return them."""
        preparation(application.blueprint, group.name, application.container)()
        return shadows.look(group.name, group.rebuild.tables, group.rebuild.shared_tables)

    @staticmethod
    def _refusals(group: EffectiveGroup, shadows: Shadows, tables: Sequence[ShadowTable]) -> list[str]:
        """Return what stands in the way, if handlers write to all of the tables."""
        written = [replace(one, fate=Fate.SWAPPED) if one.fate is Fate.LEFT else one for one in tables]
        found = shadows.refusals(group.name, written)
        if not any(one.fate is not Fate.SHARED for one in tables):
            found.append("no table is there: @on_start makes none, and rebuild.tables names none")
        return found

    def _left_out(self, group: EffectiveGroup) -> tuple[str, ...]:
        if group.rebuild.run_all_handlers:
            return ()
        bound = self._parts[group.name].handlers()
        return tuple(one.handler.place for one in bound if not one.signature.transactional)

    def _calls_after_commits(self, group: EffectiveGroup) -> bool:
        """Return whether handlers make calls after commits, which a rebuild does not make again."""
        bound = self._parts[group.name].handlers()
        asked = (argument.kind for one in bound for argument in one.signature.arguments)
        return not group.rebuild.run_all_handlers and Kind.AFTER_COMMIT in asked

    @contextmanager
    def _caught_up(self, group: EffectiveGroup, shadows: Shadows, watcher: Watcher) -> Iterator[Reach]:
        """Fill the shadow until it is near the head; that continues until the end of the block."""
        require_streaming(group)
        code, live = self._code(group.name), self._live(group)
        record = self._opened(group, shadows, code)
        with self._shadow(group, shadows, record, live) as application:
            try:
                refused = self._refusals(group, shadows, self._made(application, group, shadows))
            except BaseException:
                self._drop_unfilled(application, group, shadows)
                raise
            if refused:
                self._drop_unfilled(application, group, shadows)
                raise _cannot(group.name, refused)
            pace, reach = self._paced(application, group, live), self._reach(application, group)
            application.start([group.name])
            try:
                self._fill(application, group, watcher, pace, reach)
                yield reach
            finally:
                application.stop()

    @staticmethod
    def _drop_unfilled(application: Application, group: EffectiveGroup, shadows: Shadows) -> None:
        filled = _statuses(application, group.name)
        application.stop()
        if not filled:
            shadows.drop_shadow(group.name)

    def _paced(self, application: Application, group: EffectiveGroup, live: GroupRecord | None) -> Pace | None:
        """Have the shadow's application read the log as fast as ``rebuild.max-events-per-second`` allows."""
        limit = group.rebuild.max_events_per_second
        if limit is None:
            return None
        known = [one.position for one in _statuses(application, group.name)]
        pace = Pace(limit, min(known, default=self._beginning(group, live)))
        _limit(application, pace)
        return pace

    def _reach(self, application: Application, group: EffectiveGroup) -> Reach:
        """Return how far it is; an application that leaves handlers out follows the live group from now on."""
        parts, own = self._parts[group.name], _tracker(application, group.name)
        following = None
        if self._left_out(group) or self._calls_after_commits(group):
            following = Following(0)
            _limit(application, following)

        def positions_of(partition: Partition, after: int, until: int) -> Iterator[int]:
            found: Iterator[int] = parts.processing().positions_of(partition, after, until)
            return found

        hasten = partial(application._hasten, group.name)  # noqa: SLF001 of this package
        return Reach(group.name, parts.tracker(), own, hasten, following, positions_of)

    def _fill(
        self, application: Application, group: EffectiveGroup, watcher: Watcher, pace: Pace | None, reach: Reach
    ) -> None:
        source, pause = self._container.event_store(), _PAUSE
        arrivals = None if pace is None else Arrivals(pace.per_second, source.head)
        target, since = reach.target(source.head()), time.monotonic()
        seen: tuple[float, int] | None = None
        while True:
            application.check()
            statuses = reach.statuses()
            position = min((one.position for one in statuses), default=0)
            now = time.monotonic()
            rate = None if seen is None or now <= seen[0] else (position - seen[1]) / (now - seen[0])
            seen = seen if seen is not None and now - seen[0] < 1 else (now, position)
            watcher(RebuildProgress(group.name, position, max(target, position), rate))
            if pace is not None and statuses:
                pace.reached(position)
            if arrivals is not None and (arriving := arrivals.too_many()) is not None:
                _warn_of_arrivals(group, arriving)
            if statuses and position >= target:
                if now - since < _NEAR_SECONDS:
                    break
                target, since = reach.target(source.head()), now
            reach.hasten()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if pace is not None:
            pace.lift()

    def _swap_of(self, group: EffectiveGroup, reach: Reach, *, accept_unhandled: bool) -> Swap:
        code = self._code(group.name)
        reached = partial(reach.reached, accept_unhandled=accept_unhandled)
        return Swap(group.name, code.handlers, code.sequencing, reached, frozenset(group.rebuild.tables))


def _limit(application: Application, limit: Limit) -> None:
    """Have an application read its log as far as a limit allows."""
    store = application.container.event_store
    store.override(providers.Object(paced(store(), limit)))


def _moved(rule: DatabaseRule, url: str) -> DatabaseRule:
    """Return the rule of a process that fills a shadow: events come from where they are."""
    store = rule.event_store
    if rule.event_schema is not None:  # which is that of the database no more
        sign = "&" if "?" in store.value else "?"
        store = replace(store, value=f"{store.value}{sign}opencqrs_schema={rule.event_schema}")
    shown = Said(url, mask_url(url), "opencqrs groups rebuild")
    return replace(rule, event_store=store, url=shown, ref=None, schema=None)


def _tracker(application: Application, name: str) -> ProgressTracker:
    return application._group_containers[name].tracker()  # noqa: SLF001 of this package


def _statuses(application: Application, name: str) -> list[PartitionStatus]:
    return [one for one in _tracker(application, name).statuses() if one.group == name]


def _warn_of_arrivals(group: EffectiveGroup, arriving: float) -> None:
    text = (
        "group %s: %.0f events arrive in a second, and its rebuild may handle %d, so it does not catch up: raise "
        "rebuild.max-events-per-second and type the command again, which continues; or wait until fewer arrive"
    )
    _log.warning(text, group.name, arriving, group.rebuild.max_events_per_second)


def _cannot(name: str, refused: Sequence[str]) -> RebuildError:
    what = f"group '{name}' cannot be rebuilt beside the live tables: {'; '.join(refused[:10])}"
    fix = (
        "change that, or name tables that the group does not write to in rebuild.shared-tables; or empty the tables in "
        "@on_reset, and reset the group"
    )
    return RebuildError("OCQ-630", what, f"group {name}", fix)

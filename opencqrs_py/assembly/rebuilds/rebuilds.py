"""Rebuilds of groups: new tables are filled beside those in use, and then both are swapped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from opencqrs_py.adapters.sql import SqlProgressTracker
from opencqrs_py.adapters.sql.shadows.comparison import Comparison
from opencqrs_py.adapters.sql.shadows.shadows import Shadows
from opencqrs_py.adapters.sql.shadows.swaps import Swap
from opencqrs_py.assembly.actor import actor
from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.code.group_code import UserCode, code_of_users
from opencqrs_py.assembly.group_names import group_named
from opencqrs_py.assembly.layouts import partitions_of
from opencqrs_py.assembly.rebuilds.checks import require_streaming
from opencqrs_py.assembly.rebuilds.filled_tables import shared_tables, tables_of
from opencqrs_py.assembly.rebuilds.shadow_build import (
    FilledShadow,
    OnProgress,
    RebuildProgress,
    ShadowBuild,
    old_tables_kept,
)
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.errors import RebuildError
from opencqrs_py.model.naming import listed
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.rebuild import RebuildPhase, RebuildRecord, ShadowTable

if TYPE_CHECKING:
    from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer
    from opencqrs_py.assembly.control import Control
    from opencqrs_py.assembly.rebuilds.shadow_run import ShadowRun

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("opencqrs.control")
_PAUSE = 0.25  # seconds between two comparisons
_EXAMPLES = 5  # rows of a table that are shown
DEFAULT_TIMEOUT = 60.0
_SHARED = (
    "group %s: others may fill its tables, too: %s. What they have written since the swap is not in the old tables: "
    "have them handle these events again"
)
_LACKING = (
    "group %s: the old tables lack %s, as they are put back without what was changed since the swap: add it again"
)
_TRIGGERS = (
    "group %s: the old tables come back without %s, which only the live ones have: if it was added by hand since the "
    "swap, add it again"
)


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
    """The result of a rebuild, or of its undo.

    Attributes:
        group: Processing group.
        position: Up to which events are handled in the tables that are live now.
        tables: The fate of each table.
        seconds: How long readers of the tables waited at most.
        running: Whether a live node runs the group.
        before: Its partitions before.
        after: Its partitions now. An undo brings back those that the old tables had.
    """

    group: str
    position: int
    tables: tuple[ShadowTable, ...]
    seconds: float
    running: bool
    before: tuple[Partition, ...] = ()
    after: tuple[Partition, ...] = ()


def _unwatched(_progress: RebuildProgress) -> None:
    pass


def _reached(
    build: ShadowBuild, filled: FilledShadow, live: Mapping[Partition, int], *, accept_unhandled: bool
) -> None:
    build.require_beginning(filled.record)
    filled.reach.reached(live, accept_unhandled=accept_unhandled)


def _own_tracker(group: str, own: str, ours: str) -> RebuildError:
    what = (
        f"group '{group}' cannot be rebuilt: it has its own progress tracker, on {own}, and a rebuild needs that of "
        f"the application, on {ours}"
    )
    fix = (
        f"handle its events again in the live tables: opencqrs groups reset {group} --to tail; or remove its tracker "
        f"and set database.url to {own}, which is then also that of the progress of groups without their own tracker"
    )
    return RebuildError("OCQ-630", what, f"group {group}", fix)


def _explaining(method: Callable[Concatenate[Rebuilds, P], T]) -> Callable[Concatenate[Rebuilds, P], T]:
    """Have a method explain that the database of the tables became unavailable, or what of it is missing.

    See ``Database.explained``.
    """

    @wraps(method)
    def explained(rebuilds: Rebuilds, /, *arguments: P.args, **named: P.kwargs) -> T:
        database = rebuilds._container.database()  # noqa: SLF001 its own part
        with nullcontext() if database is None else database.explained():
            return method(rebuilds, *arguments, **named)

    return explained


class Rebuilds:
    """Rebuilds groups while they run, from any process. Each step is logged by the logger ``opencqrs.control``.

    If connections are lost, the tables stay consistent, and the next call continues or completes the step.

    Args:
        groups: The groups, by name.
        parts: Their parts.
        container: The parts that they share.
        blueprint: What the application is made from.
        beside: Returns the run of one group, as a blueprint says.
        control: Has nodes claim a group again.
    """

    def __init__(
        self,
        groups: Mapping[str, EffectiveGroup],
        parts: Mapping[str, GroupContainer],
        container: ApplicationContainer,
        blueprint: Blueprint,
        beside: Callable[[Blueprint, EffectiveGroup], ShadowRun],
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
                record = self._shadows(name).rebuilds.last(name)
            except RebuildError:
                continue
            if record is not None:
                found[name] = record
        return found

    @_explaining
    def plan(self, name: str) -> RebuildPlan:
        """Return what a rebuild would do. The tables are made, inspected and dropped again; no event is handled.

        Raises:
            AssemblyError: OCQ-509 for a name that is not a group.
            RebuildError: OCQ-630, if the group cannot be rebuilt at all, or is being rebuilt.
            OnStartError: OCQ-507, if ``@on_start`` fails there.
        """
        group, shadows = self._chosen(name)
        require_streaming(group)
        self._require_none(group, shadows)
        build = self._build(group, shadows)
        tables, refusals, events = build.planned()
        left_out = build.left_out()
        called = [h.place for h in self._blueprint.discover().declared_of(group.name) if h.place not in left_out]
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

    @_explaining
    def rebuild(
        self,
        name: str,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        accept_unhandled: bool = False,
        watcher: OnProgress = _unwatched,
    ) -> RebuildResult:
        """Build a group again beside the live one, on its engine in this process, and swap both when it has caught up.

        It may be called again however it ended: it continues, or completes what was begun.

        Args:
            name: The group, in any spelling.
            timeout: Longest time in seconds to get the locks of the swap.
            accept_unhandled: Whether to swap although handlers could not handle events that the live group has handled.
            watcher: Receives how far it is.

        Raises:
            AssemblyError: OCQ-509 for a name that is not a group.
            RebuildError: OCQ-630, if it cannot be rebuilt beside the live one, or handlers have handled events but
                written to no table; OCQ-635, if a handler fails there permanently; OCQ-636, if events were skipped, or
                wait in the inbox, that the live group has handled.
            WaitTimedOutError: OCQ-536, if others held locks on the tables for too long; the shadow stays.
        """
        group, shadows = self._chosen(name)
        build = self._build(group, shadows)
        with build.filled(watcher) as filled:
            reached = partial(_reached, build, filled, accept_unhandled=accept_unhandled)
            named = frozenset(group.rebuild.tables)
            code, fills = build.code, self._fills(group, shadows)
            swap = Swap(filled.record, code.handlers, code.sequencing, reached, named, fills, filled.has_handled)
            with self._renewed(group.name) as running:
                swapped = shadows.swap(swap, timeout)
        known = partitions_of(self._parts[group.name].tracker(), group)
        shadows.drop_shadow(group.name)
        text = "group %s was rebuilt by %s: its tables are those up to position %d"
        _log.info(text, group.name, actor(), swapped.position)
        return RebuildResult(group.name, swapped.position, swapped.tables, swapped.seconds, running, known, known)

    @_explaining
    def compare(
        self,
        name: str,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        examples: int = _EXAMPLES,
        watcher: OnProgress = _unwatched,
    ) -> Comparison:
        """Build the group again up to where it is, and return which rows differ from the live ones. Nothing is swapped.

        Both are compared once they have handled the same events. If that does not happen in time, as events arrive
        without a pause, or live partitions are paused at different positions, the result says so. Args and errors are
        those of ``rebuild``.
        """
        group, shadows = self._chosen(name)
        with self._build(group, shadows).filled(watcher, follows=True) as filled:
            until, before = time.monotonic() + timeout, None
            while True:
                filled.reach.target(self._container.event_store().head())
                filled.reach.hasten()
                with shadows.rebuilds.explained(group.name, filled.record):
                    found = shadows.compare(group.name, examples)
                    shadows.rebuilds.require_current(filled.record)
                if found.exact or time.monotonic() >= until:
                    return found
                if before not in {None, tuple(found.live.items())}:
                    filled.reach.overtake()  # the live group moves, and gets to where the rebuild is
                before = tuple(found.live.items())
                time.sleep(_PAUSE)

    @_explaining
    def undo(self, name: str, *, timeout: float = DEFAULT_TIMEOUT) -> RebuildResult:
        """Put back the tables that a swap has kept, with their progress, from which the group then continues.

        Raises:
            AssemblyError: OCQ-509 for a name that is not a group.
            RebuildError: OCQ-630, if none are kept, or they cannot be put back; or if a table that the group fills,
                and which the swap has left alone, has rows now but had none then.
            WaitTimedOutError: OCQ-536, if others held locks on the tables for too long.
        """
        group, shadows = self._chosen(name)
        known = shadows.settled(group.name)
        if known is None or not known.keeps_old:
            what = f"no old tables of group '{group.name}' are kept"
            raise RebuildError("OCQ-630", what, f"group {group.name}", "there is nothing to undo")
        built = [each.name for each in known.relations if each.kind == "table"]
        if shared := shared_tables(f"group {group.name}", built, self._code()):
            _log.warning(_SHARED, group.name, listed(shared))
        if lacking := shadows.lacking(known, built, "old"):
            _log.warning(_LACKING, group.name, listed(lacking))
        if lacking := shadows.triggers_lacking(known, built, "old"):
            _log.warning(_TRIGGERS, group.name, listed(lacking))
        tracker = self._parts[group.name].tracker()
        before = partitions_of(tracker, group)
        with self._renewed(group.name) as running:
            swapped = shadows.undo(group.name, timeout, self._fills(group, shadows))
        text = "the old tables of group %s were put back by %s: they are those up to position %d"
        _log.info(text, group.name, actor(), swapped.position)
        after = partitions_of(tracker, group)
        if before != after:
            _log.info("group %s has its former partitions again: %s", group.name, listed(map(str, after)))
        return RebuildResult(group.name, swapped.position, swapped.tables, swapped.seconds, running, before, after)

    @_explaining
    def drop_old(self, name: str) -> bool:
        """Drop the tables that a swap has kept; return whether there were any. Errors are those of ``undo``."""
        group, shadows = self._chosen(name)
        known = shadows.settled(group.name)
        if known is None or not known.keeps_old:
            return False
        shadows.drop_old(group.name)
        _log.info("the old tables of group %s were dropped by %s", group.name, actor())
        return True

    @_explaining
    def abort(self, name: str) -> bool:
        """Drop an unfinished shadow; return whether there was one. Errors are those of ``undo``."""
        group, shadows = self._chosen(name)
        known = shadows.settled(group.name)
        if not shadows.exists(group.name) and (known is None or not known.has_shadow):
            return False
        shadows.drop_shadow(group.name)
        _log.info("the rebuild of group %s was aborted by %s", group.name, actor())
        return True

    @_explaining
    def complete(self, names: Sequence[str]) -> None:
        """Complete swaps that were broken off half-way; groups that cannot be rebuilt beside the live one have none."""
        for name in names:
            try:
                shadows = self._shadows(name)
            except RebuildError:
                continue
            shadows.complete(name)

    # Parts

    def _fills(self, group: EffectiveGroup, shadows: Shadows) -> frozenset[str]:
        """Return the live tables that the group's handlers fill, as far as their code shows it."""
        live = [name for name in shadows.live_tables() if name not in group.rebuild.shared_tables]
        return frozenset(tables_of(f"group {group.name}", live, self._code()))

    def _code(self) -> dict[str, UserCode]:
        """Return the code of all that may write to tables."""
        return code_of_users(self._blueprint.discover(), self._container.code_reader())

    @contextmanager
    def _renewed(self, group: str) -> Iterator[bool]:
        """Swap in this block, and have nodes claim the group again; yields whether a live node runs it.

        Called before the swap: while it lasts, nodes on MariaDB do not run the group.
        """
        yield self._control.can_run(group)
        self._control.renew(group)

    def _chosen(self, name: str) -> tuple[EffectiveGroup, Shadows]:
        group = group_named(name, self._groups.values())
        return group, self._shadows(group.name)

    def _shadows(self, name: str) -> Shadows:
        database, choice = self._container.database(), self._container.database_choice()
        tracker = self._parts[name].tracker()
        where = f"group {name}"
        if database is not None and isinstance(tracker, SqlProgressTracker) and tracker.database is not database:
            raise _own_tracker(name, tracker.database.label, database.label)
        if database is None or not isinstance(tracker, SqlProgressTracker):
            what = f"group '{name}' cannot be rebuilt: its progress is not in the database of its tables"
            raise RebuildError("OCQ-630", what, where, "keep progress in SQL: progress.tracking: sql")
        if choice.ref:
            what = f"the shadow of group '{name}' needs its own connections, but a provider makes the existing ones"
            raise RebuildError("OCQ-630", what, choice.ref, "set database.url instead of database.ref")
        return database.dialect.shadows(database)

    @staticmethod
    def _require_none(group: EffectiveGroup, shadows: Shadows) -> None:
        known = shadows.rebuilds.last(group.name)
        if known is not None and known.keeps_old:
            raise old_tables_kept(group.name)
        if known is not None and known.phase is not RebuildPhase.ENDED:
            what = f"group '{group.name}' is being rebuilt"
            fix = f"opencqrs groups rebuild {group.name} continues; --abort ends it"
            raise RebuildError("OCQ-630", what, f"group {group.name}", fix)

    def _build(self, group: EffectiveGroup, shadows: Shadows) -> ShadowBuild:
        parts = self._parts[group.name]
        return ShadowBuild(group, shadows, parts, self._container, self._blueprint, self._beside)

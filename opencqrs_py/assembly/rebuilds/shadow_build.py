"""The build of a group's shadow: its tables are made, and filled until they are near the head."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.shadows.contents import misnamed, note_seeded
from opencqrs_py.adapters.sql.shadows.shadows import Shadows
from opencqrs_py.adapters.sql.shadows.swaps import changed_meanwhile
from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.code.group_code import code_of_users, starts_fingerprint
from opencqrs_py.assembly.databases import DatabaseRule, SettingValue
from opencqrs_py.assembly.initial_positions import initial_position
from opencqrs_py.assembly.rebuilds.checks import require_streaming
from opencqrs_py.assembly.rebuilds.filled_tables import shared_tables
from opencqrs_py.assembly.rebuilds.reach import Reach
from opencqrs_py.assembly.resequencing import is_resequenced
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.config.value_types import AGO
from opencqrs_py.errors import OtherLogError, RebuildError
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.masking import mask_url
from opencqrs_py.model.naming import listed
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.rebuild import Fate, RebuildPhase, RebuildRecord, ShadowTable
from opencqrs_py.processing.group_records import GroupCode, same_code
from opencqrs_py.processing.pacing import ArrivalRate, Following, Pace
from opencqrs_py.processing.ports import GroupRecords, statuses_of
from opencqrs_py.processing.roles import Kind

if TYPE_CHECKING:
    from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer
    from opencqrs_py.assembly.rebuilds.shadow_run import ShadowRun

_log = logging.getLogger("opencqrs.control")
_PAUSE, _LONGEST_PAUSE = 0.02, 0.25  # seconds between two checks of the shadow's progress
_POLL_SECONDS = 1.0  # between two checks whether this process still fills it
_NEAR_SECONDS = 2.0  # a head that was reached in less than that is near enough to swap
_STARTS, _SEQUENCING = "its @on_start functions", "the way its events are sequenced"
_RESOLVER = "events.type-resolver-ref"
_RESOLVER_CODE = f"the function of {_RESOLVER}"
_CODE = {_STARTS, _SEQUENCING, _RESOLVER_CODE}  # conditions that are fingerprints
_BEGINNING = "its beginning"
_SHARED = (
    "group %s: others may fill its tables, too: %s. What they have written will not be in the new ones: look at "
    "--compare before a swap, or give each its own tables"
)
_TRIGGERS = (
    "group %s: the new tables are filled without %s, which only the swap adds: let @on_start make it if rows depend "
    "on it"
)


@dataclass(frozen=True, slots=True)
class RebuildProgress:
    """How far a rebuild is.

    Attributes:
        group: Processing group.
        position: Up to which the slowest partition has handled events.
        head: Position of the newest event.
        events_per_second: How many events of the log it passes; ``None`` before the second poll.
    """

    group: str
    position: int
    head: int
    events_per_second: float | None = None


OnProgress = Callable[[RebuildProgress], None]


@dataclass(frozen=True, slots=True)
class FilledShadow:
    """A shadow that is near the head, and is kept there.

    Attributes:
        record: The rebuild that has begun it.
        reach: How far it is.
        run: What fills it.
    """

    record: RebuildRecord
    reach: Reach
    run: ShadowRun

    @property
    def has_handled(self) -> bool:
        """Whether it has passed events for its handlers; positions also advance over other events."""
        position = max((one.position for one in self.reach.statuses()), default=0)
        return self.run.has_events(int(self.record.conditions[_BEGINNING]), position)


class ShadowBuild:
    """Builds the shadow of one group, on its engine in this process.

    Args:
        group: The group, as it is live.
        shadows: Those of its database.
        parts: The parts of the live group.
        container: The parts that all groups share.
        blueprint: What the application is made from.
        beside: Returns the run of one group, as a blueprint says.
    """

    def __init__(
        self,
        group: EffectiveGroup,
        shadows: Shadows,
        parts: GroupContainer,
        container: ApplicationContainer,
        blueprint: Blueprint,
        beside: Callable[[Blueprint, EffectiveGroup], ShadowRun],
    ) -> None:
        self._group = group
        self._shadows = shadows
        self._parts = parts
        self._container = container
        self._blueprint = blueprint
        self._beside = beside

    @property
    def code(self) -> GroupCode:
        """What the group's handlers and sequencing are identified by."""
        code: GroupCode = self._parts.code()
        return code

    def planned(self) -> tuple[list[ShadowTable], list[str], int]:
        """Make the tables, inspect them, and drop them again.

        Returns:
            The tables; why the rebuild would be refused; how many positions of the log it would pass.

        Raises:
            RebuildError: OCQ-630, if another process rebuilds the group meanwhile.
        """
        live = self._live()
        self._require_log()
        name, shadows = self._group.name, self._shadows
        record = self._opened(live)
        try:
            with shadows.rebuilds.explained(name, record), self._run(record, live) as run:
                tables, refusals = self._inspected(run, record)
        finally:
            if shadows.rebuilds.is_current(name, record):
                shadows.drop_shadow(name)
        return tables, refusals, max(0, self._container.event_store().head() - self._beginning(live))

    def left_out(self) -> tuple[str, ...]:
        """Return the places of handlers that are not called, as they do not ask for the transaction."""
        if self._group.rebuild.run_all_handlers:
            return ()
        bound = self._parts.handlers()
        return tuple(one.handler.place for one in bound if not one.signature.transactional)

    @contextmanager
    def filled(self, watcher: OnProgress, *, follows: bool = False) -> Iterator[FilledShadow]:
        """Fill the shadow until it is near the head; that continues until the end of the block.

        Args:
            watcher: Receives how far it is.
            follows: Whether it goes as far as the live group only, as it also does if handlers are left out.

        Raises:
            RebuildError: OCQ-630, if the group cannot be rebuilt beside the live one, or another process ends the
                rebuild meanwhile; OCQ-635, if a handler fails permanently.
            EventStoreError: OCQ-316, if the live group is beyond the end of the log.
        """
        require_streaming(self._group)
        live = self._live()
        self._require_log()
        name, shadows = self._group.name, self._shadows
        record = self._opened(live)
        with ExitStack() as opened:
            with shadows.rebuilds.explained(name, record):
                run = opened.enter_context(self._run(record, live))
            self._prepare(run, record)
            with shadows.rebuilds.explained(name, record):
                pace, reach = self._paced(run, live), self._reach(run, follows=follows)
                run.start()
                opened.callback(run.stop)
                self._fill(run, watcher, pace, reach, record)
            yield FilledShadow(record, reach, run)  # not explained: after its own swap the rebuild is over, too

    def require_beginning(self, record: RebuildRecord) -> None:
        """Refuse with OCQ-630 to swap if the group was reset to before the place from which the shadow was filled.

        Called while the live partitions are paused, so that no reset comes after it.
        """
        if record.changed({_BEGINNING: str(self._beginning(self._live()))}):
            raise changed_meanwhile(self._group.name, [_BEGINNING])

    # The live group

    def _live(self) -> GroupRecord | None:
        """Return the record of the live group, which must have begun."""
        name, tracker = self._group.name, self._parts.tracker()
        if not statuses_of(tracker, name):
            what = f"group '{name}' has never run, so there is nothing to rebuild beside it"
            raise RebuildError("OCQ-630", what, f"group {name}", "opencqrs run")
        records = tracker.records() if isinstance(tracker, GroupRecords) else ()
        return next((one for one in records if one.group == name), None)

    def _require_log(self) -> None:
        """Refuse with OCQ-316 if the live group is beyond the end of the log: the rebuild would never reach it."""
        name = self._group.name
        position = max(one.farthest for one in statuses_of(self._parts.tracker(), name))
        try:
            self._container.event_store().verify(position, "")
        except OtherLogError as error:
            raise OtherLogError(error.code, f"group '{name}': {error.what}", error.where, error.fix) from error

    def _layout(self) -> tuple[Partition, ...]:
        """Return the partitions that the live group has, which those of the shadow have to be."""
        name = self._group.name
        found = {one.partition for one in statuses_of(self._parts.tracker(), name)}
        whole = layout(len(found))
        if found != set(whole):
            what = f"the partitions of group '{name}' are being changed, or differ in size"
            fix = f"opencqrs groups partitions {name} {len(found)}, and then rebuild it"
            raise RebuildError("OCQ-630", what, f"group {name}", fix)
        return whole

    def _beginning(self, live: GroupRecord | None) -> int:
        """Return the position after which the group began, wherever a new one would begin now.

        Raises:
            RebuildError: OCQ-630, if it is unknown: its record is of a version without it, and the setting
                leads to another position now than it did then.
        """
        if live is not None and live.position is not None:
            return live.position
        name, setting = self._group.name, self._group.fetch.initial_position
        if setting == "head" or setting[:2].casefold() == AGO:
            what = f"it is unknown where group '{name}' began: '{setting}' now leads to another event than it did then"
            fix = "set fetch.initial-position to the position after which it began; or "
            fix += f"opencqrs groups reset {name} --to tail, and it begins there"
            raise RebuildError("OCQ-630", what, f"group {name}", fix)
        return initial_position(setting, self._container.event_store(), self._container.clock())

    # The place, and its tables

    def _opened(self, live: GroupRecord | None) -> RebuildRecord:
        """Return the record of the shadow, which continues if the same handlers and settings have begun it."""
        group, shadows = self._group, self._shadows
        begun = shadows.rebuilds.last(group.name)
        known = shadows.settled(group.name)
        if known is not None and known.has_shadow and shadows.exists(group.name):
            with shadows.rebuilds.explained(group.name, known):
                changed = self._changed(known, live)
            if not changed:
                return known
            text = "group %s: %s changed since the rebuild began, so it begins again"
            _log.warning(text, group.name, listed(changed))
        elif known is not None and known.keeps_old:
            completed = begun is not None and begun.phase is RebuildPhase.SWAPPING and not begun.undoes
            raise old_tables_kept(group.name, completed=completed)
        shadows.drop_shadow(group.name)
        settings, conditions = group.rebuild, self._conditions(live)
        with shadows.rebuilds.explained(group.name, shadows.rebuilds.last(group.name)):
            return shadows.open(group.name, self.code.handlers, settings.tables, settings.shared_tables, conditions)

    def _changed(self, known: RebuildRecord, live: GroupRecord | None) -> list[str]:
        """Return the names of what is not as it was when an unfinished rebuild began; empty if it may continue."""
        settings = self._group.rebuild
        if not same_code(known.handlers, self.code.handlers):
            return ["its handlers"]
        if known.shared != settings.shared_tables:
            return ["rebuild.shared-tables"]
        looked = self._shadows.look(self._group.name, settings.tables, known.shared)
        if not {one.name for one in looked} >= set(settings.tables):
            return ["rebuild.tables"]
        now = self._conditions(live)
        return [
            name for name in known.changed(now) if name not in _CODE or not same_code(known.conditions[name], now[name])
        ]

    def _conditions(self, live: GroupRecord | None) -> dict[str, str]:
        """Return what the tables of a rebuild depend on besides handlers and settings that the record has."""
        group = self._group
        starts = [one.call for one in self._blueprint.discover().functions_of(Declaration.ON_START, group.name)]
        return {
            "fetch.subject": group.fetch.subject,
            "fetch.recursive": str(group.fetch.recursive),
            "events.format": self._parts.events().format.value,
            "events.types": self._parts.mapped_types(),
            _RESOLVER: self._parts.events().type_resolver_ref or "",
            _RESOLVER_CODE: self._parts.resolver_code(),
            "rebuild.run-all-handlers": str(group.rebuild.run_all_handlers),
            "rebuild.tables": ", ".join(sorted(group.rebuild.tables)),
            _STARTS: starts_fingerprint(group.name, starts, self._container.code_reader()),
            _SEQUENCING: self.code.sequencing,
            _BEGINNING: str(self._beginning(live)),
            **self._shadows.structure_of(group.rebuild.tables),
        }

    def _made(self, run: ShadowRun, record: RebuildRecord) -> list[ShadowTable]:
        """Make the tables of the shadow, and return them."""
        group = self._group
        run.prepare()
        if not run.statuses():  # no handler was called yet
            note_seeded(self._shadows.url(record))
        return self._shadows.look(group.name, group.rebuild.tables, group.rebuild.shared_tables)

    def _inspected(self, run: ShadowRun, record: RebuildRecord) -> tuple[list[ShadowTable], list[str]]:
        """Make the tables of the shadow; return them, and why they cannot be swapped.

        Raises:
            RebuildError: OCQ-630, if the shadow is another process's by now.
        """
        tables = self._made(run, record)
        refusals = self._refusals(tables, record)
        self._shadows.rebuilds.require_current(record)
        return tables, refusals

    def _refusals(self, tables: Sequence[ShadowTable], record: RebuildRecord) -> list[str]:
        """Return the obstacles, if handlers write to all of the tables."""
        written = [replace(one, fate=Fate.SWAPPED) if one.fate is Fate.LEFT else one for one in tables]
        found = self._shadows.refusals(self._group.name, written)
        names = [one.name for one in tables if one.is_table]
        if lacking := self._shadows.lacking(record, names):
            text = "group %s: the new tables lack %s: let @on_start make it, or add it after the swap"
            _log.warning(text, self._group.name, listed(lacking))
        if lacking := self._shadows.triggers_lacking(record, names):
            _log.warning(_TRIGGERS, self._group.name, listed(lacking))
        code = code_of_users(self._blueprint.discover(), self._container.code_reader())
        if shared := shared_tables(f"group {self._group.name}", names, code):
            _log.warning(_SHARED, self._group.name, listed(shared))
        wrong = misnamed(self._shadows.url(record), record.shared)
        found += [f"{name} has the prefix of this package's tables" for name in wrong]
        if not any(one.fate is not Fate.SHARED for one in tables):
            found.append("there is no table: @on_start creates none, and rebuild.tables names none")
        return found

    def _prepare(self, run: ShadowRun, record: RebuildRecord) -> None:
        """Make the tables, and refuse with OCQ-630 what cannot be swapped."""
        try:
            with self._shadows.rebuilds.explained(self._group.name, record):
                _, refused = self._inspected(run, record)
        except BaseException:
            self._drop_unfilled(run, record)
            raise
        if refused:
            self._drop_unfilled(run, record)
            raise _cannot(self._group.name, refused)

    def _drop_unfilled(self, run: ShadowRun, record: RebuildRecord) -> None:
        """Drop the shadow if nothing was handled in it; one of another process is not ours to drop."""
        name = self._group.name
        drops = self._shadows.rebuilds.is_current(name, record) and not run.statuses()
        run.stop()
        if drops:
            self._shadows.drop_shadow(name)

    # The run that fills it

    @contextmanager
    def _run(self, record: RebuildRecord, live: GroupRecord | None) -> Iterator[ShadowRun]:
        group, url = self._group, self._shadows.url(record)
        rule = _moved(self._blueprint.database, url)
        blueprint = replace(self._blueprint, database=rule, rebuilding=True)
        settings = replace(
            group,
            fetch=replace(group.fetch, initial_position=str(self._beginning(live))),
            life_cycle=replace(
                group.life_cycle,
                auto_start=True,
                controller=None,
                controller_registration=None,
                lock_registry=None,
                max_partitions_per_node=None,
                partitions=len(self._layout()),
            ),
        )
        # The live file of SQLite is read beside the shadow, which needs a connection that keeps it as it is.
        with self._database().reading(apart=True), self._beside(blueprint, settings) as run:
            yield run

    def _database(self) -> Database:
        found: Database | None = self._container.database()
        if found is None:  # without which there are no shadows
            raise LookupError("there is no database")
        return found

    def _paced(self, run: ShadowRun, live: GroupRecord | None) -> Pace | None:
        """Have the run read the log as fast as ``rebuild.max-events-per-second`` allows."""
        limit = self._group.rebuild.max_events_per_second
        if limit is None:
            return None
        known = [one.position for one in run.statuses()]
        pace = Pace(limit, min(known, default=self._beginning(live)))
        run.limit(pace)
        return pace

    def _reach(self, run: ShadowRun, *, follows: bool) -> Reach:
        """Return how far it is; a run that ``follows`` the live group, or leaves handlers out, does so from now on."""
        parts, name = self._parts, self._group.name
        following, leaves_out = None, bool(self.left_out()) or self._calls_after_commits()
        if follows or leaves_out:
            following = Following(0)
            run.limit(following)

        def positions_of(partition: Partition, after: int, until: int) -> Iterator[int]:
            found: Iterator[int] = parts.processing().positions_of(partition, after, until)
            return found

        resequenced = is_resequenced(parts.tracker(), name, self.code.sequencing)
        known = (name, parts.tracker(), run.tracker, run.hasten, following, positions_of)
        return Reach(*known, writes_once=self._writes_once(), leaves_out=leaves_out, resequenced=resequenced)

    def _calls_after_commits(self) -> bool:
        """Return whether handlers make calls after commits, which a rebuild does not make again."""
        asked = (argument.kind for one in self._parts.handlers() for argument in one.signature.arguments)
        return not self._group.rebuild.run_all_handlers and Kind.AFTER_COMMIT in asked

    def _writes_once(self) -> bool:
        """Return whether handlers that a replay leaves out write to the tables."""
        once = (one for one in self._parts.handlers() if one.handler.mark.replay is False)
        return any(one.signature.transactional for one in once)

    def _fill(
        self, run: ShadowRun, watcher: OnProgress, pace: Pace | None, reach: Reach, record: RebuildRecord
    ) -> None:
        source, pause, name = self._container.event_store(), _PAUSE, self._group.name
        arrivals = None if pace is None else ArrivalRate(pace.per_second, source.head)
        since = next_poll = time.monotonic()
        target = reach.target(source.head())
        seen: tuple[float, int] | None = None
        while True:
            run.check()
            statuses = reach.statuses()
            position = min((one.position for one in statuses), default=0)
            now = time.monotonic()
            if now >= next_poll:
                self._shadows.rebuilds.require_current(record)
                next_poll = now + _POLL_SECONDS
            rate = None if seen is None or now <= seen[0] else (position - seen[1]) / (now - seen[0])
            seen = seen if seen is not None and now - seen[0] < 1 else (now, position)
            watcher(RebuildProgress(name, position, max(target, position), rate))
            if pace is not None and statuses:
                pace.reached(position)
            if arrivals is not None and (arriving := arrivals.too_many()) is not None:
                _warn_of_arrivals(self._group, arriving)
            if statuses and position >= target:
                if now - since < _NEAR_SECONDS:
                    break
                target, since = reach.target(source.head()), now
            reach.hasten()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if pace is not None:
            pace.lift()


def _moved(rule: DatabaseRule, url: str) -> DatabaseRule:
    """Return the rule of a process that fills a shadow: events come from where they are."""
    store = rule.event_store
    if rule.event_schema is not None:  # which is no longer that of the database
        sign = "&" if "?" in store.value else "?"
        store = replace(store, value=f"{store.value}{sign}opencqrs_schema={rule.event_schema}")
    shown = SettingValue(url, mask_url(url), "opencqrs groups rebuild")
    return replace(rule, event_store=store, url=shown, ref=None, schema=None)


def _warn_of_arrivals(group: EffectiveGroup, arriving: float) -> None:
    text = (
        "group %s: %.0f events arrive in a second, and its rebuild may handle %d, so it does not catch up: raise "
        "rebuild.max-events-per-second and run the command again, which continues; or wait until fewer arrive"
    )
    _log.warning(text, group.name, arriving, group.rebuild.max_events_per_second)


def _cannot(name: str, refused: Sequence[str]) -> RebuildError:
    what = f"group '{name}' cannot be rebuilt beside the live tables: {'; '.join(refused[:10])}"
    fix = (
        "change that, or name tables that the group does not write to in rebuild.shared-tables; or empty the tables in "
        "@on_reset, and reset the group"
    )
    return RebuildError("OCQ-630", what, f"group {name}", fix)


def old_tables_kept(name: str, *, completed: bool = False) -> RebuildError:
    """Return that a group is not rebuilt again before it is decided on its old tables.

    ``completed``: its last rebuild was interrupted in the swap, which has been completed now.
    """
    what = f"the old tables of the last rebuild of group '{name}' are kept"
    if completed:
        what = f"the swap of group '{name}' that was cut off is completed: it has the new tables, the old ones are kept"
    return RebuildError("OCQ-630", what, f"group {name}", f"opencqrs groups rebuild {name} --drop-old, or --undo")

"""What the records of groups say, for ``conditions``: where they began, what is lost, whether code has changed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from opencqrs_py.assembly.conditions import Decision
from opencqrs_py.assembly.running import record_rule
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.errors import BeginningNeededError, ExplainedError, ProgressLostError
from opencqrs_py.model.group_record import FoundGroup, GroupRecord, RecordedLayout
from opencqrs_py.model.naming import listed, nearest
from opencqrs_py.model.partition import layout
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.processing.group_records import RecordRule, Warned, changed_since, selected_since
from opencqrs_py.processing.ports import GroupRecords, ProgressTracker, statuses_of

if TYPE_CHECKING:
    from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer

BEGINNING, PROGRESS, HANDLERS = "fetch.initial-position", "progress", "handlers changed"
SELECTION = "selection changed"
PARTITIONS = "life-cycle.partitions"
_SHOWN = 8
_log = logging.getLogger("opencqrs.processing")
_RENAMED = (
    "group '%s' is new, and group '%s' has progress but no handler here. If it was renamed, events are "
    "handled again: stop, and write '%s' in the handlers, or rename it in the tables opencqrs_progress, "
    "opencqrs_groups and opencqrs_inbox"
)


def record_decisions(
    settings: EffectiveGroup, group: GroupContainer, container: ApplicationContainer
) -> list[Decision]:
    """Return what the record of a group says, and what a start would make of it. Nothing is written.

    What cannot be read, because a database is unavailable or a part is invalid, is left to other decisions.
    """
    try:
        tracker = group.tracker()
        if not isinstance(tracker, GroupRecords):
            reason = "its tracker keeps no records of groups: lost progress and changed handlers are not detected"
            return [Decision(settings.name, "group record", "none", reason)]
        record = next((each for each in tracker.records() if each.group == settings.name), None)
        if record is None:
            return []
        return list(_decided(settings, record_rule(settings, group, container), record, tracker))
    except ExplainedError:
        return []
    except Exception as error:
        if not group.tracker().is_outage(error):
            raise
        return [Decision(settings.name, "group record", "not known", one_line(error))]


def mention_others(names: Collection[str], parts: Mapping[str, GroupContainer]) -> None:
    """Log which groups have a record beside those of some groups, and no handler.

    They belong to other programs, or were removed or renamed. Where a group begins whose name is like one of these, it
    may be that one: then events are handled again, which is warned of. An unavailable tracker is skipped.
    """
    known: dict[str, GroupRecord] = {}
    for tracker in {id(each): each for each in (parts[name].tracker() for name in names)}.values():
        try:
            found = tracker.records() if isinstance(tracker, GroupRecords) else []
        except Exception as error:  # which the start itself will meet
            _log.debug("records of groups cannot be read: %s", one_line(error))
            continue
        known |= {record.group: record for record in found}
    others = sorted(known.keys() - parts.keys())
    closest = {name: nearest(name, others) for name in sorted({*names} - known.keys())}
    renamed = {name: other for name, other in closest.items() if other is not None}
    for name, other in renamed.items():
        _log.warning(_RENAMED, name, other, other, extra={"action": "renamed", "group": name})
    if rest := [each for each in others if each not in renamed.values()]:
        _log.info("groups with progress and without a handler here: %s", listed(rest))


def _decided(
    settings: EffectiveGroup, rule: RecordRule, record: GroupRecord, tracker: ProgressTracker
) -> Iterator[Decision]:
    name = settings.name
    statuses = statuses_of(tracker, name)
    positions, waiting = {each.partition: each.position for each in statuses}, any(each.parked for each in statuses)
    partitions = layout(settings.life_cycle.partitions) if record.layout is None else record.layout.partitions
    if {*positions} - {*partitions}:  # of another layout, which a start refuses
        yield _beginning(name, record, "")
        return
    error: ExplainedError | None = None
    warnings: Mapping[Warned, str] = {}
    kept = record
    try:
        judged = rule.kept(FoundGroup(record, positions, partitions, lambda: waiting), is_checked=True)
        warnings, kept = judged.warnings, judged.record
    except BeginningNeededError:
        yield Decision(name, PROGRESS, "gone", "progress.on-lost is initial: it begins again at the next start")
    except ExplainedError as refused:
        error = refused
    yield _beginning(name, record, warnings.get(Warned.SETTING, ""))
    if kept.selection is not None and kept.selection.differences:
        reason = selected_since(name, kept.selection, can_rebuild=rule.can_rebuild)
        yield Decision(name, SELECTION, f"position {kept.selection.since}", reason)
    if record.layout is not None and {*partitions} != {*layout(settings.life_cycle.partitions)}:
        yield _partitions(name, record.layout, settings.life_cycle.partitions)
    if error is not None:
        subject = PROGRESS if isinstance(error, ProgressLostError) else HANDLERS
        yield Decision(name, subject, "", error.what, error=error)
    elif (changed := kept.changed) is not None:
        reason = changed_since(name, changed.position, can_rebuild=rule.can_rebuild)
        seen = "at the next start" if kept is not record and record.changed != changed else f"since {changed.at}"
        yield Decision(name, HANDLERS, f"position {changed.position}", f"{reason} ({seen})")


def _partitions(group: str, recorded: RecordedLayout, setting: int) -> Decision:
    found = ", ".join(map(str, recorded.partitions[:_SHOWN])) + (", …" if len(recorded.partitions) > _SHOWN else "")
    reason = f"a command has set these since; they apply until the setting differs from {setting}"
    if recorded.setting != setting:
        reason = f"it was {recorded.setting} when the group got these; the next start follows the setting, {setting}"
        if setting in recorded.overridden:
            reason += ", unless a process with the newer value is running"
    return Decision(group, PARTITIONS, found, reason)


def _beginning(group: str, record: GroupRecord, ignored: str) -> Decision:
    if record.position is None:
        return Decision(group, BEGINNING, "not known", "an earlier version began the group")
    reason = f"the group began there, at position {record.position}, at {record.began_at}"
    return Decision(group, BEGINNING, record.setting or str(record.position), ignored or reason)

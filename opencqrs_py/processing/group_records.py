"""How the record of a group is kept: where it began, whether progress was lost, and whether its code has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

from opencqrs_py.errors import (
    BeginningNeededError,
    HandlersChangedError,
    ProgressLostError,
    RebuildUnderWayError,
    SequencesUncheckedError,
    SwapUnderWayError,
)
from opencqrs_py.model.choices import OnChangedHandlers, OnLost
from opencqrs_py.model.group_record import FoundGroup, GroupRecord, RecordedLayout, RecordedSelection, SettingTexts
from opencqrs_py.model.naming import counted
from opencqrs_py.model.rebuild import RebuildPhase, RebuildRecord
from opencqrs_py.model.times import in_milliseconds


class Warned(Enum):
    """What a claim warns about. All except the first and the last are logged once per process."""

    LOST = "lost"
    SETTING = "setting"
    SELECTION = "selection"
    HANDLERS = "handlers"
    OTHERS = "others"


@dataclass(frozen=True, slots=True)
class GroupCode:
    """Fingerprints of a group's code; empty where it is not known.

    Attributes:
        handlers: Fingerprint of its handlers, the event classes that they take, upcasters and interceptors.
        sequencing: Fingerprint of the code that decides about sequences and partitions.
    """

    handlers: str = ""
    sequencing: str = ""


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """What a claim writes into the record of a group.

    Attributes:
        record: The record; the one found if nothing is written.
        warnings: Warnings for people.
    """

    record: GroupRecord
    warnings: Mapping[Warned, str] = field(default_factory=dict)


def same_code(one: str, other: str) -> bool:
    """Return whether two fingerprints are of the same code, or cannot be compared."""
    return not one or not other or one == other or one.partition(":")[0] != other.partition(":")[0]


def require_swapped(group: str, rebuild: RebuildRecord | None) -> None:
    """Raise ``SwapUnderWayError``, OCQ-633, while the tables and progress of a group are being swapped."""
    if rebuild is not None and rebuild.phase is RebuildPhase.SWAPPING:
        what = f"the tables of group '{group}' are being swapped by a rebuild"
        fix = f"wait a moment; if it was interrupted, {_rebuild(group)} completes it, as does opencqrs run"
        raise SwapUnderWayError("OCQ-633", what, f"group {group}", fix)


@dataclass(frozen=True, slots=True)
class RecordRule:
    """How the record of a group is kept.

    Attributes:
        group: Processing group.
        setting: ``fetch.initial-position`` as written.
        code: Returns the fingerprints of its code; called at most once per claim.
        now: Returns the time.
        on_lost: What happens when progress is missing.
        on_changed: What happens when the handlers have changed.
        partitions: ``life-cycle.partitions``.
        said: What this process has warned about.
        pauses: Whether its code waits for a rebuild by the same code, instead of writing to tables that other code
            built.
        selection: The settings that decide which events it reads, and how; empty: they are not compared.
        can_rebuild: Whether the group can be rebuilt, so that messages may advise it; not a scheduled one, nor one with
            participants.
    """

    group: str
    setting: str
    code: Callable[[], GroupCode]
    now: Callable[[], datetime]
    on_lost: OnLost = OnLost.REFUSE
    on_changed: OnChangedHandlers = OnChangedHandlers.WARN
    partitions: int = 1
    said: set[Warned] = field(default_factory=set, compare=False)
    pauses: bool = True
    selection: SettingTexts = ()
    can_rebuild: bool = True

    def kept(self, found: FoundGroup, initial: int | None = None, *, is_checked: bool = False) -> KeptRecord:
        """Return what a claim records of a group; called in its transaction.

        Args:
            found: What the claim has found.
            initial: Position after which partitions without progress start; ``None`` if it has not been determined.
            is_checked: Whether the sequences of all events in the inbox were compared.

        Raises:
            SequencesUncheckedError: If they must be, because the record cannot show that they are unchanged.
            BeginningNeededError: If ``initial`` is needed, and is ``None``; the claim is made again with it.
            ProgressLostError: OCQ-317, if progress is gone.
            HandlersChangedError: OCQ-318 or OCQ-319, if code that must not change has; OCQ-631, if the group was
                rebuilt by other code.
            RebuildUnderWayError: OCQ-632 or OCQ-633, if the group is being rebuilt.
        """
        record, missing = found.record, found.missing
        if record is not None and record.rebuild is not None:
            self.check_rebuild(record, record.rebuild)
        if missing and record is not None and self.on_lost is OnLost.REFUSE:
            raise self._lost(found)
        if missing and initial is None:
            is_part = record is not None and bool(found.positions)
            raise BeginningNeededError(record.position if is_part and record is not None else None)
        if not is_checked:
            self._require_same_sequences(found)
        if record is None or not found.positions:
            return self._begun(found, initial)
        warnings = {Warned.LOST: self._lost_in_part(found, initial)} if missing else {}
        if self.setting != record.setting and record.setting:
            warnings[Warned.SETTING] = self._set_later(record)
        return self._compared(found, record, warnings)

    def check_rebuild(self, record: GroupRecord, rebuild: RebuildRecord) -> None:
        """Raise if a rebuild of the group prevents this code from running it; see ``kept``."""
        require_swapped(self.group, rebuild)
        if not rebuild.has_shadow and not rebuild.refused:
            return
        own = self.code().handlers
        if own and own in rebuild.refused:
            what = f"the tables of group '{self.group}' were built by other handlers, and this process has the old ones"
            fix = f"deploy the handlers that have built them; or opencqrs groups rebuild {self.group} with these"
            raise HandlersChangedError("OCQ-631", what, f"group {self.group}", fix)
        is_new = not same_code(record.handlers, own) and same_code(rebuild.handlers, own)
        if self.pauses and rebuild.has_shadow and is_new:
            what = f"group '{self.group}' waits for its rebuild by these handlers: the tables are still those of others"
            fix = f"let the rebuild end, or {_rebuild(self.group)} --abort; or set rebuild.live: continue"
            raise RebuildUnderWayError("OCQ-632", what, f"group {self.group}", fix)

    def _begun(self, found: FoundGroup, initial: int | None) -> KeptRecord:
        """Return the record of a group that begins now, or again, or that began under an older package version."""
        code, layout = self.code(), RecordedLayout(tuple(sorted(found.partitions)), self.partitions)
        selection = RecordedSelection(self.selection) if self.selection else None
        record = GroupRecord(self.group, "", None, self._at(), code.handlers, code.sequencing, (), layout, selection)
        if found.positions:
            return KeptRecord(record)
        lost = found.record is not None
        warning = f"progress of group '{self.group}' is gone: it begins again after position {initial}"
        return KeptRecord(
            replace(record, setting=self.setting, position=initial), {Warned.LOST: warning} if lost else {}
        )

    def _require_same_sequences(self, found: FoundGroup) -> None:
        """Raise if events wait that other code may have put there: older versions record none, or another one.

        No record can show whether code that cannot be read has changed.
        """
        recorded, own = "" if found.record is None else found.record.sequencing, self.code().sequencing
        if own and (not recorded or (same_code(recorded, own) and recorded != own)) and found.has_waiting():
            raise SequencesUncheckedError

    def _compared(self, found: FoundGroup, record: GroupRecord, warnings: dict[Warned, str]) -> KeptRecord:
        """Return the record of a known group after comparing its code."""
        code, position = self.code(), max(found.positions.values())
        kept = record.up_to(position)
        if kept.layout is None:
            kept = replace(kept, layout=RecordedLayout(tuple(sorted(found.partitions)), self.partitions))
        has_handled = position > (record.position or 0)  # or it was reset since
        kept = self._selected(kept, position if has_handled else None, warnings)
        if not same_code(record.sequencing, code.sequencing):
            waiting = found.has_waiting()
            if waiting or found.is_ahead or (has_handled and len(found.partitions) > 1):
                raise self._other_sequences(found, waiting=waiting)
        if has_handled and not same_code(record.handlers, code.handlers):
            if self.on_changed is OnChangedHandlers.REFUSE:
                raise self._other_handlers(position)
            claimed = found.positions if found.claimed is None else found.claimed
            others = tuple(sorted(found.positions.keys() - set(claimed)))
            kept = kept.with_handlers(code.handlers, position, self._at(), others)
            if self.on_changed is OnChangedHandlers.WARN:
                warnings[Warned.HANDLERS] = changed_since(self.group, position, can_rebuild=self.can_rebuild)
        elif code.handlers:
            kept = self._taken_over(kept, found, warnings)
        handlers, sequencing = code.handlers or kept.handlers, code.sequencing or kept.sequencing
        return KeptRecord(replace(kept, handlers=handlers, sequencing=sequencing), warnings)

    def _taken_over(self, record: GroupRecord, found: FoundGroup, warnings: dict[Warned, str]) -> GroupRecord:
        """Return the record after a claim by its handlers: earlier ones may have kept running beside them until now."""
        claimed = found.positions if found.claimed is None else found.claimed
        kept = record.taken_over({one: found.positions[one] for one in claimed if one in found.positions})
        before, now = record.changed, kept.changed
        if self.on_changed is OnChangedHandlers.IGNORE or before is None or now is None:
            return kept
        since, until = before.position, now.position
        if until > since:
            warnings[Warned.OTHERS] = went_on(self.group, since, until, can_rebuild=self.can_rebuild)
        return kept

    def _selected(self, record: GroupRecord, position: int | None, warnings: dict[Warned, str]) -> GroupRecord:
        """Return the record with the selection of the settings, which may change at a position."""
        known, now = record.selection, self.selection
        if not now:
            return record
        if known is not None and known.settings == now:
            return replace(record, selection=known.completed(now))
        if known is None or position is None:
            return replace(record, selection=RecordedSelection(now))
        known = known.completed(now)
        changed = known if known.settings == now else known.changed(now, position)
        if changed.since == position:
            warnings[Warned.SELECTION] = selected_since(self.group, changed, can_rebuild=self.can_rebuild)
        return replace(record, selection=changed)

    def _at(self) -> str:
        return in_milliseconds(self.now())

    def _set_later(self, record: GroupRecord) -> str:
        return (
            f"fetch.initial-position of group '{self.group}' is {self.setting}, but the group began at "
            f"{record.setting} (position {record.position}): the setting has no effect"
        )

    def _lost(self, found: FoundGroup) -> ProgressLostError:
        missing = found.missing
        which = "all progress" if not found.positions else f"the progress of partition {', '.join(map(str, missing))}"
        what = f"group '{self.group}' has begun, but {which} is gone"
        fix = (
            f"restore the rows from a backup; or {_reset(self.group)} to handle all events again (--to head or "
            "--to-position N to continue elsewhere); or set progress.on-lost: initial to begin again at "
            "fetch.initial-position"
        )
        return ProgressLostError("OCQ-317", what, "table opencqrs_progress", fix)

    def _lost_in_part(self, found: FoundGroup, initial: int | None) -> str:
        which = ", ".join(map(str, found.missing))
        return f"progress of group '{self.group}' partition {which} is gone: it begins again after position {initial}"

    def _other_handlers(self, position: int) -> HandlersChangedError:
        others = "up to which other handlers built its read model"
        what = f"handlers of group '{self.group}' changed since position {position}, {others}"
        setting = f"event-handling.groups[{self.group}].processing.on-changed-handlers=warn"
        fix = (
            f"to continue with the new ones, start once with --set '{setting}'; "
            f"{self._or_rebuild(' while the old handlers run')}or delete the read model and {_reset(self.group)} to "
            "handle all events again; or restore the earlier handlers"
        )
        return HandlersChangedError("OCQ-318", what, f"group {self.group}", fix)

    def _other_sequences(self, found: FoundGroup, *, waiting: bool) -> HandlersChangedError:
        why = f"it has {counted(len(found.partitions), 'partition')}"
        if waiting or found.is_ahead:
            why = "events wait in its inbox" if waiting else "some sequences are ahead of others since a merge"
        what = f"group '{self.group}' sequences its events differently than before, and {why}: order would be lost"
        fix = (
            f"restore the settings sequence.* and the sequence resolver or batch key; {self._or_rebuild()}"
            f"or {_reset(self.group)} to handle all events again, where @on_reset empties the read model"
        )
        return HandlersChangedError("OCQ-319", what, f"group {self.group}", fix)

    def _or_rebuild(self, when: str = "") -> str:
        return f"or {_rebuild(self.group)} to build the read model again{when}; " if self.can_rebuild else ""


def changed_since(group: str, position: int, *, can_rebuild: bool) -> str:
    """Return the warning that the handlers of a group have changed at a position."""
    rebuild = f"{_rebuild(group)} builds it again beside that, " if can_rebuild else ""
    return (
        f"handlers of group '{group}' changed since position {position}: the read model up to there was built by the "
        f"others; {rebuild}{_reset(group)} handles all events again"
    )


def went_on(group: str, since: int, until: int, *, can_rebuild: bool) -> str:
    """Return the warning that earlier handlers kept running, in processes beside those with the changed ones."""
    rebuild = f"{_rebuild(group)} builds it again beside that, " if can_rebuild else ""
    return (
        f"processes with the earlier handlers of group '{group}' kept running beside those with the changed ones, "
        f"which apply since position {until}, not {since}: up to there the earlier ones handled some partitions; "
        f"{rebuild}{_reset(group)} handles all events again"
    )


def selected_since(group: str, selection: RecordedSelection, *, can_rebuild: bool) -> str:
    """Return the warning that settings which select a group's events have changed at a position."""
    changed = [f"{key} was {before} and is {now}" for key, before, now in selection.differences]
    said = f"group '{group}' selects other events since position {selection.since}: {', '.join(changed)}"
    rebuild = f"{_rebuild(group)} builds its read model again from all, " if can_rebuild else ""
    return f"{said}. Events up to there are not read again: {rebuild}{_reset(group)} handles all events again"


def _rebuild(group: str) -> str:
    return f"opencqrs groups rebuild {group}"


def _reset(group: str) -> str:
    return f"opencqrs groups reset {group} --to tail"

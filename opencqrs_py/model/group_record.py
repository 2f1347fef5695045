"""The record of a whole group, beside the progress of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opencqrs_py.model.partition import Partition
from opencqrs_py.model.rebuild import RebuildRecord
from opencqrs_py.model.replay import Reset

_KEPT = 10  # changes of the handlers, or of the partitions, that are kept


@dataclass(frozen=True, slots=True)
class HandlersChange:
    """A claim by changed handlers.

    Attributes:
        position: Position up to which the earlier ones had handled events.
        at: ISO 8601 time of the claim.
        before: Fingerprint of the earlier ones.
        others: The partitions that the changed handlers have not claimed yet; the earlier ones may keep handling them.
    """

    position: int
    at: str
    before: str
    others: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedLayout:
    """The partitions that a group has, and why.

    Attributes:
        partitions: The partitions.
        setting: Value of ``life-cycle.partitions`` at that time; a command may have changed the partitions since.
        overridden: Its earlier value, for processes that still have it.
    """

    partitions: tuple[Partition, ...]
    setting: int
    overridden: tuple[int, ...] = ()

    def changed(self, partitions: Sequence[Partition], setting: int | None = None) -> RecordedLayout:
        """Return the layout after a change; ``setting`` is the new value of the setting, if that was the reason."""
        if setting is None or setting == self.setting:
            return replace(self, partitions=tuple(partitions))
        overridden = tuple(dict.fromkeys((*self.overridden, self.setting)))
        return RecordedLayout(tuple(partitions), setting, tuple(one for one in overridden if one != setting)[-_KEPT:])


SettingTexts = tuple[tuple[str, str], ...]
"""Settings by key, with their values as text."""


@dataclass(frozen=True, slots=True)
class RecordedSelection:
    """Which events a group reads, and how, by its settings.

    Attributes:
        settings: The settings that decide about it.
        since: Position at which they changed; ``None``: they never changed.
        before: The earlier ones.
    """

    settings: SettingTexts
    since: int | None = None
    before: SettingTexts = ()

    @property
    def differences(self) -> list[tuple[str, str, str]]:
        """The settings that changed, each with its earlier and its later text; only of those that both have."""
        before = dict(self.before)
        return [(key, before[key], now) for key, now in self.settings if before.get(key, now) != now]

    def changed(self, settings: SettingTexts, position: int) -> RecordedSelection:
        """Return the selection after a change at a position; a change that is reverted there leaves no trace."""
        before = self.before if self.since == position else self.settings
        return RecordedSelection(settings) if settings == before else RecordedSelection(settings, position, before)

    def completed(self, settings: SettingTexts) -> RecordedSelection:
        """Return the selection with the current settings where an earlier version of this package recorded none.

        A change leaves no trace if it was only that version's lack of a setting that a later one had recorded.
        """
        now = _completed(self.settings, settings)
        before = _completed(self.before, settings) if self.before else ()
        return RecordedSelection(now) if before == now else replace(self, settings=now, before=before)

    def up_to(self, position: int) -> RecordedSelection:
        """Return the selection of a group after a reset to a position, from where it reads again."""
        return self if self.since is None or self.since <= position else RecordedSelection(self.settings)


def _completed(known: SettingTexts, settings: SettingTexts) -> SettingTexts:
    texts = dict(known)
    return tuple((key, texts.get(key, value)) for key, value in settings)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """Where a group began, and the code that has built its read model.

    Attributes:
        group: Processing group.
        setting: ``fetch.initial-position`` at that time; empty if an older version of this package began the group.
        position: Position after which it began, or ``None`` if that is not known.
        began_at: ISO 8601 time of its beginning; if unknown, of its first claim by this version.
        handlers: Fingerprint of its handlers; empty if unknown.
        sequencing: Fingerprint of the code that decides about its sequences and partitions; empty if unknown.
        changes: The last changes of its handlers since it began.
        layout: Its partitions; ``None`` if not recorded yet.
        selection: Which events it reads; ``None`` if not recorded yet.
        rebuild: Its last rebuild; ``None`` if there was none. Written by rebuilds only.
    """

    group: str
    setting: str = ""
    position: int | None = None
    began_at: str = ""
    handlers: str = ""
    sequencing: str = ""
    changes: tuple[HandlersChange, ...] = ()
    layout: RecordedLayout | None = None
    selection: RecordedSelection | None = None
    rebuild: RebuildRecord | None = field(default=None, compare=False)

    @property
    def changed(self) -> HandlersChange | None:
        """The last change of the handlers; ``None`` if they never changed."""
        return self.changes[-1] if self.changes else None

    def up_to(self, position: int) -> GroupRecord:
        """Return the record without changes after a position to which the group was reset."""
        kept = tuple(each for each in self.changes if each.position <= position)
        selection = None if self.selection is None else self.selection.up_to(position)
        same = (kept, selection) == (self.changes, self.selection)
        return self if same else replace(self, changes=kept, selection=selection)

    def with_handlers(self, handlers: str, position: int, at: str, others: tuple[Partition, ...] = ()) -> GroupRecord:
        """Return the record after a change of handlers at a position; they have not claimed the ``others``.

        Handlers that have handled nothing leave no trace.
        """
        kept = self.changes
        before = self.handlers
        if kept and kept[-1].position == position:
            before, kept = kept[-1].before, kept[:-1]
        if before != handlers:
            kept = (*kept, HandlersChange(position, at, before, others))[-_KEPT:]
        return replace(self, handlers=handlers, changes=kept)

    def taken_over(self, claimed: Mapping[Partition, int]) -> GroupRecord:
        """Return the record after its handlers have claimed partitions at these positions.

        Partitions that they had not claimed since the last change were handled by the earlier ones, up to there.
        """
        last = self.changed
        if last is None:
            return self
        left = tuple(other for other in last.others if not any(map(other.overlaps, claimed)))
        taken = (at for one, at in claimed.items() if any(map(one.overlaps, last.others)))
        changed = replace(last, position=max(last.position, *taken, 0), others=left)
        return self if changed == last else replace(self, changes=(*self.changes[:-1], changed))


def begun_by(reset: Reset, known: GroupRecord | None, *, is_new: bool) -> GroupRecord | None:
    """Return the record of a group, which begins no later than the position of the reset; ``None`` if it gets none.

    If it is unknown where it began, it is only known after a reset to before the first event, or if it is new.

    Args:
        reset: The reset.
        known: Its record so far.
        is_new: Whether it has no progress.
    """
    begins = reset.position
    if known is None:
        return GroupRecord(reset.group, "", begins, reset.reset_at) if is_new or not begins else None
    if known.position is None:
        return known if begins else replace(known, position=0)
    return replace(known, position=min(known.position, begins))


def _nothing() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """What a claim finds of a group.

    Attributes:
        record: The record, or ``None``.
        positions: The stored positions of the partitions that have progress.
        partitions: All partitions of the group.
        has_waiting: Returns whether events wait in its inbox; to be called during the claim.
        is_ahead: Whether some of its sequences are ahead of their partition.
        claimed: The partitions that are claimed; ``None``: all of them.
    """

    record: GroupRecord | None
    positions: Mapping[Partition, int]
    partitions: Sequence[Partition]
    has_waiting: Callable[[], bool] = field(default=_nothing)
    is_ahead: bool = False
    claimed: Sequence[Partition] | None = None

    @property
    def missing(self) -> list[Partition]:
        """The partitions without progress."""
        return [each for each in self.partitions if each not in self.positions]

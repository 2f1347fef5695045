"""What is kept of a whole group, beside the progress of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opencqrs_py.model.partition import Partition
from opencqrs_py.model.rebuild import RebuildRecord

_KEPT = 10  # changes of the handlers, or of the partitions, that are kept


@dataclass(frozen=True, slots=True)
class HandlersChange:
    """A claim by other handlers than those before.

    Attributes:
        position: Position up to which the others had handled events.
        at: ISO 8601 time of the claim.
        before: Fingerprint of the others.
    """

    position: int
    at: str
    before: str


@dataclass(frozen=True, slots=True)
class RecordedLayout:
    """The partitions that a group has, and why.

    Attributes:
        partitions: The partitions.
        setting: What ``life-cycle.partitions`` was then; a command may have changed the partitions since.
        overridden: What it was before, for processes that still have an older value.
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


Settings = tuple[tuple[str, str], ...]
"""Settings by key, with their values as text."""


@dataclass(frozen=True, slots=True)
class RecordedSelection:
    """Which events a group reads, and how, as its settings say.

    Attributes:
        settings: The settings that decide about it.
        since: Position up to which others did; ``None``: they were always the same.
        before: Those others.
    """

    settings: Settings
    since: int | None = None
    before: Settings = ()

    def changed(self, settings: Settings, position: int) -> RecordedSelection:
        """Return the selection after a change at a position; one that is taken back there leaves no trace."""
        before = self.before if self.since == position else self.settings
        return RecordedSelection(settings) if settings == before else RecordedSelection(settings, position, before)

    def up_to(self, position: int) -> RecordedSelection:
        """Return the selection of a group that was reset to a position, and so reads again what comes after it."""
        return self if self.since is None or self.since <= position else RecordedSelection(self.settings)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """Where a group began, and which code has built its read model.

    Attributes:
        group: Processing group.
        setting: ``fetch.initial-position`` as it was then; empty if an older version of this package began the group.
        position: Position after which it began, or ``None`` if that is not known.
        began_at: ISO 8601 time of its beginning; of its first claim by this version if that is not known.
        handlers: Fingerprint of its handlers; empty if it is not known.
        sequencing: Fingerprint of what decides about its sequences and partitions; empty if it is not known.
        changes: How its handlers have changed since it began, the last ones.
        layout: Its partitions; ``None`` if they are not recorded yet.
        selection: Which events it reads; ``None`` if that is not recorded yet.
        rebuild: Its last rebuild; ``None`` if there was none. It is written by rebuilds only.
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
        """The last change of the handlers; ``None`` if all was handled by the same."""
        return self.changes[-1] if self.changes else None

    def up_to(self, position: int) -> GroupRecord:
        """Return the record without changes after a position: the group was reset to it, and handles that again."""
        kept = tuple(each for each in self.changes if each.position <= position)
        selection = None if self.selection is None else self.selection.up_to(position)
        same = (kept, selection) == (self.changes, self.selection)
        return self if same else replace(self, changes=kept, selection=selection)

    def with_handlers(self, handlers: str, position: int, at: str) -> GroupRecord:
        """Return the record after handlers have taken over from others at a position.

        Those that have handled nothing leave no trace.
        """
        kept = self.changes
        before = self.handlers
        if kept and kept[-1].position == position:
            before, kept = kept[-1].before, kept[:-1]
        if before != handlers:
            kept = (*kept, HandlersChange(position, at, before))[-_KEPT:]
        return replace(self, handlers=handlers, changes=kept)


def _nothing() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """What a claim finds of a group.

    Attributes:
        record: The record, or ``None``.
        positions: The stored positions of the partitions that have progress.
        partitions: All partitions of the group.
        has_waiting: Returns whether events wait in its inbox; to be asked during the claim.
        is_ahead: Whether some of its sequences are ahead of their partition.
    """

    record: GroupRecord | None
    positions: Mapping[Partition, int]
    partitions: Sequence[Partition]
    has_waiting: Callable[[], bool] = field(default=_nothing)
    is_ahead: bool = False

    @property
    def missing(self) -> list[Partition]:
        """The partitions without progress."""
        return [each for each in self.partitions if each not in self.positions]

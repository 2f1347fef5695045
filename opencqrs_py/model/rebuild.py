"""Rebuilds of groups: a second version of the tables, created beside the live ones, and what happens to both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class RebuildPhase(StrEnum):
    """The phase of a group's last rebuild."""

    BUILDING = "building"  # the shadow exists
    SWAPPING = "swapping"  # live tables and shadow are being swapped, or swapped back: to be completed first
    SWAPPED = "swapped"  # the old tables are kept
    ENDED = "ended"  # only its record is left


@dataclass(frozen=True, slots=True)
class SwappedRelation:
    """A table, view and so on that a swap has put in place; kind and name are those of a ``ShadowTable``."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class RebuildRecord:
    """The last rebuild of a group.

    Attributes:
        group: Processing group.
        phase: Its phase.
        handlers: Fingerprint of the handlers that build, or have built, the tables.
        refused: Fingerprints of handlers that must no longer run the group, since others have built its tables.
        relations: The tables, views and so on that were swapped.
        shared: Live tables that are visible in the shadow.
        undoes: Whether the phase ``SWAPPING`` belongs to an undo.
        started_at: ISO 8601 time.
        conditions: Fingerprints, by name, of what else the tables depend on, as of the beginning of the rebuild.
        filled: Tables with rows, of those that the group fills, that the swap left alone; ``None``: not known.
    """

    group: str
    phase: RebuildPhase
    handlers: str = ""
    refused: tuple[str, ...] = ()
    relations: tuple[SwappedRelation, ...] = ()
    shared: tuple[str, ...] = ()
    undoes: bool = False
    started_at: str = ""
    conditions: Mapping[str, str] = field(default_factory=dict)
    filled: tuple[str, ...] | None = None

    def changed(self, conditions: Mapping[str, str]) -> list[str]:
        """Return the names of recorded conditions that have changed."""
        return [name for name, now in conditions.items() if self.conditions.get(name, now) != now]

    def is_same(self, other: RebuildRecord) -> bool:
        """Return whether both records belong to the same rebuild."""
        return (self.group, self.started_at, self.handlers) == (other.group, other.started_at, other.handlers)

    @property
    def has_shadow(self) -> bool:
        """Whether there is a shadow that is not swapped yet."""
        return self.phase is RebuildPhase.BUILDING

    @property
    def keeps_old(self) -> bool:
        """Whether the old tables are kept."""
        return self.phase is RebuildPhase.SWAPPED


class Fate(StrEnum):
    """What happens to a table at the swap."""

    SWAPPED = "swapped"
    ADDED = "added"  # no live one exists
    LEFT = "left alone"  # nothing has written to it in the shadow
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class ShadowTable:
    """A table, view or sequence of the shadow.

    Attributes:
        name: Its name, in the shadow and live.
        kind: ``table``, ``view``, ``materialized view``, ``sequence``, ``type`` or ``function``.
        fate: What happens to it, as far as known: a table without writes so far is left alone.
        how: How it got into the shadow.
    """

    name: str
    kind: str
    fate: Fate
    how: str = "made by @on_start"

    @property
    def is_table(self) -> bool:
        """Whether it is a table, with rows of its own."""
        return self.kind == "table"

    @property
    def is_moved(self) -> bool:
        """Whether the swap puts it in place of a live one, or adds it."""
        return self.fate in (Fate.SWAPPED, Fate.ADDED)


@dataclass(frozen=True, slots=True)
class Difference:
    """How the rows of a table in the shadow differ from the live ones.

    Attributes:
        table: Name of the table.
        live: Number of live rows.
        shadow: Number of rows in the shadow.
        missing: Number of rows that are only live.
        added: Number of rows that are only in the shadow.
        examples: Some of the rows that differ, as texts; ``-`` before those that are live only, ``+`` before others.
        live_columns: Columns that only the live table has; the others are compared, by name.
        shadow_columns: Columns that only the table in the shadow has.
    """

    table: str
    live: int
    shadow: int
    missing: int
    added: int
    examples: tuple[str, ...] = field(default=())
    live_columns: tuple[str, ...] = field(default=())
    shadow_columns: tuple[str, ...] = field(default=())

    @property
    def differs(self) -> bool:
        """Whether there are rows that differ."""
        return bool(self.missing or self.added)

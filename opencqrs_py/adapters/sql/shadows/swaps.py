"""Swaps: what replaces a live read model, and when it must not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.connections import reason_of
from opencqrs_py.adapters.sql.shadows.rebuild_records import ended_elsewhere
from opencqrs_py.errors import RebuildError
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.naming import listed
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.rebuild import RebuildPhase, RebuildRecord, ShadowTable
from opencqrs_py.model.times import in_milliseconds


class BusyError(Exception):
    """The swap could not get its locks, or the shadow was not far enough; nothing was changed.

    Args:
        reason: Why.
        fix: What helps if this persists.
    """

    def __init__(self, reason: str, fix: str = "end long transactions on these tables") -> None:
        super().__init__(reason, fix)
        self.reason = reason
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Swap:
    """What a swap needs to know.

    Attributes:
        rebuild: The one that has built the shadow.
        handlers: Fingerprint of the handlers that have built the shadow, all of the group.
        sequencing: Fingerprint of what sequences its events.
        reached: Waits for the shadow to be where the live partitions are; raises ``BusyError`` if it is not.
        named: Tables that are swapped in any case.
        fills: Live tables that the group fills, as far as its code shows it.
        handled: Whether events were handled in the shadow, so that there is something to swap.
    """

    rebuild: RebuildRecord
    handlers: str
    sequencing: str
    reached: Callable[[Mapping[Partition, int]], None]
    named: frozenset[str] = frozenset()
    fills: frozenset[str] = frozenset()
    handled: bool = False

    @property
    def group(self) -> str:
        """Processing group."""
        return self.rebuild.group


@dataclass(frozen=True, slots=True)
class Swapped:
    """The result of a swap.

    Attributes:
        position: Up to which the group has handled events with the tables that are live now.
        tables: The fate of each table.
        seconds: How long readers of these tables had to wait at most.
    """

    position: int
    tables: tuple[ShadowTable, ...]
    seconds: float


def require_same_layout(group: str, live: Collection[Partition], shadow: Collection[Partition]) -> None:
    """Refuse with OCQ-630 to swap if the partitions of the live group have changed."""
    if live and set(live) != set(shadow):
        what = f"the partitions of group '{group}' have changed since the rebuild began"
        fix = f"opencqrs groups rebuild {group} --abort, and begin again"
        raise RebuildError("OCQ-630", what, f"group {group}", fix)


def require_building(swap: Swap, record: RebuildRecord) -> None:
    """Refuse with OCQ-630 to swap what another process has swapped since; called under the lock of the swap."""
    if not (record.has_shadow and record.is_same(swap.rebuild)):
        raise ended_elsewhere(swap.group)


def changed_meanwhile(group: str, changed: Sequence[str]) -> RebuildError:
    """Return the error for a shadow whose dependencies have changed since it began."""
    what = f"{listed(changed)} changed since the rebuild of group '{group}' began"
    return RebuildError("OCQ-630", what, f"group {group}", f"opencqrs groups rebuild {group}, which begins again")


def require_old(record: RebuildRecord) -> None:
    """Refuse with OCQ-630 to restore what another process has restored, or dropped; called under the same lock."""
    if not record.keeps_old:
        what = f"no old tables of group '{record.group}' are kept"
        raise RebuildError("OCQ-630", what, f"group {record.group}", "there is nothing to undo")


def obstructed(group: str, obstacles: Sequence[str], fix: str) -> RebuildError:
    """Return the error for tables that cannot be swapped."""
    what = f"group '{group}' cannot be rebuilt beside the live tables: {'; '.join(obstacles[:10])}"
    return RebuildError("OCQ-630", what, f"group {group}", fix)


def nothing_to_swap(group: str) -> RebuildError:
    """Return the error for a shadow to whose tables no handler has written, which would leave all of them as they are.

    The usual cause is a table of another group: handlers find it empty in the shadow, and so have nothing to write.
    """
    what = f"the handlers of group '{group}' wrote to no table in its rebuild, so there is nothing to swap"
    fix = (
        "name tables that they only read in rebuild.shared-tables, since others that @on_start creates are empty in a "
        "rebuild, and those to be swapped even if they stay empty in rebuild.tables; then run the same command again, "
        f"or opencqrs groups rebuild {group} --abort. The live tables are unchanged"
    )
    return RebuildError("OCQ-630", what, f"group {group}", fix)


def refused_by_database(group: str, error: DBAPIError | sqlite3.Error) -> RebuildError:
    """Return the error for a swap that the database refuses, for example because a name is taken."""
    what = f"the tables of group '{group}' cannot be swapped: {reason_of(error)}"
    fix = f"change that, and run the same command again; or opencqrs groups rebuild {group} --abort"
    return RebuildError("OCQ-630", what, f"group {group}", fix)


def filled_since(group: str, tables: Sequence[str]) -> RebuildError:
    """Return the error for an undo after which handlers would write again to tables that stay."""
    what = f"{listed(tables)} had no rows when the tables of group '{group}' were swapped, but now has some, which stay"
    what += ": the events since the swap would be handled again, and their rows stored twice"
    fix = "delete these rows if only this group writes them, and run the command again; if it never writes there, name "
    return RebuildError("OCQ-630", what, f"group {group}", f"{fix}it in rebuild.shared-tables")


def old_gone(group: str, place: str) -> RebuildError:
    """Return the error for old tables that cannot be restored because they were dropped by other means."""
    what = f"the old tables of group '{group}' are gone"
    return RebuildError("OCQ-630", what, place, f"opencqrs groups rebuild {group} --drop-old, and rebuild it")


def built_record(known: GroupRecord | None, swap: Swap) -> GroupRecord:
    """Return the record of a group whose tables were built by other handlers, from its own beginning."""
    at = in_milliseconds(datetime.now(UTC))
    record = known or GroupRecord(swap.group, "", None, at)
    return replace(record, handlers=swap.handlers, sequencing=swap.sequencing, changes=(), selection=None)


def swapped_record(swap: Swap, known: GroupRecord | None, before: RebuildRecord) -> RebuildRecord:
    """Return the record of a completed swap: the handlers before it must no longer run the group."""
    others = {*before.refused} if known is None else {*before.refused, known.handlers}
    others |= {each.before for each in (known.changes if known is not None else ())}
    refused = tuple(sorted(others - {"", swap.handlers}))
    return replace(before, phase=RebuildPhase.SWAPPED, handlers=swap.handlers, refused=refused)


def undone_record(before: RebuildRecord, old: GroupRecord | None) -> RebuildRecord:
    """Return the record of an undo: the handlers of the rebuild must not run with the old tables."""
    refused = () if old is None or not old.handlers or old.handlers == before.handlers else (before.handlers,)
    return replace(before, phase=RebuildPhase.ENDED, refused=refused, relations=(), undoes=False)

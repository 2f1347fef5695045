"""Obstacles to a rebuild, or to its swap."""

from __future__ import annotations

import re
from collections.abc import Sequence

from opencqrs_py.config import EffectiveGroup
from opencqrs_py.config.choices import Mode
from opencqrs_py.errors import RebuildError
from opencqrs_py.model.naming import counted
from opencqrs_py.model.progress import PartitionStatus, ProcessorState
from opencqrs_py.processing.ports import ParkingTracker, ProgressTracker, statuses_of

_SHOWN = 5

_OF_DATABASE = re.compile(r"\b(?:(?:Operational|Programming|Database)Error|Undefined[A-Z]\w+|RebuildWriteError)\b")
_MISSING = (
    "no such table",
    "no such column",
    "does not exist",
    "doesn't exist",
    "UndefinedTable",
    "not authorized",
    "is prohibited",
)


def require_streaming(group: EffectiveGroup) -> None:
    """Refuse to rebuild a scheduled group: its events wait for ticks, so its new tables would be swapped unfilled.

    Raises:
        RebuildError: OCQ-630.
    """
    if group.processing.mode is Mode.SCHEDULED:
        what = f"group '{group.name}' is scheduled: its events would wait in the inbox of the rebuild until a tick"
        fix = f"empty the tables in @on_reset, and opencqrs groups reset {group.name} --to tail"
        raise RebuildError("OCQ-630", what, f"group {group.name}", fix)


def require_sound(name: str, statuses: Sequence[PartitionStatus]) -> None:
    """Raise if a partition has failed, or fails for the lack of a table, which it will do again.

    An error of the project's own that says so may pass.

    Raises:
        RebuildError: OCQ-635.
    """
    for one in statuses:
        failure = one.failed_event
        said = one.error
        lacks = _OF_DATABASE.search(said) is not None and any(word in said for word in _MISSING)
        if not said or not (one.state is ProcessorState.FAILED or lacks):
            continue
        event = f" at event {failure.event_id!r}" if failure is not None and failure.event_id else ""
        what = f"in the rebuild of group '{name}' partition {one.partition} fails{event}: {said}"
        fix = (
            "name tables that migrations make in rebuild.tables, and those that the group only reads in "
            "rebuild.shared-tables; for other errors fix the handler. The live tables are unchanged"
        )
        raise RebuildError("OCQ-635", what, f"group {name}", fix)


def require_handled(name: str, live: ProgressTracker, rebuilt: ProgressTracker, reached: int) -> None:
    """Refuse to swap if handlers could not handle events in the rebuild that the live group has handled.

    Args:
        name: The group.
        live: Where the progress of the live group is.
        rebuilt: Where that of the rebuild is.
        reached: The farthest position of the live partitions; they have handled nothing after it.

    Raises:
        RebuildError: OCQ-636.
    """
    if not (unhandled := _unhandled(name, rebuilt)):
        return
    known = _unhandled(name, live)
    found = {position: why for position, why in unhandled.items() if position <= reached and position not in known}
    if not found:
        return
    shown = "; ".join(found[position] for position in sorted(found)[:_SHOWN]) + ("; …" if len(found) > _SHOWN else "")
    what = f"the rebuild of group '{name}' lacks {counted(len(found), 'event')} that the live tables may have: {shown}"
    fix = (
        f"fix the handler and run the same command again; or look at opencqrs groups rebuild {name} --compare, and "
        "swap with --accept-unhandled. The live tables are unchanged"
    )
    raise RebuildError("OCQ-636", what, f"group {name}", fix)


def waiting_again(name: str, live: ProgressTracker, rebuilt: ProgressTracker, reached: int) -> int:
    """Return how many events that the live group has handled wait in the inbox of the rebuild; as above."""
    known = _unhandled(name, live)
    return sum(position <= reached and position not in known for position in _waiting(name, rebuilt))


def _waiting(name: str, tracker: ProgressTracker) -> dict[int, str]:
    """Return the events that wait in the inbox of a group, by position, with why."""
    found: dict[int, str] = {}
    if any(one.parked for one in statuses_of(tracker, name)) and isinstance(tracker, ParkingTracker):
        for entry in tracker.entries(name):
            why = entry.errors[-1].error if entry.errors else "an earlier one of its sequence does"
            found[entry.position] = f"{entry.event_id!r} waits in the inbox ({why})"
    return found


def _unhandled(name: str, tracker: ProgressTracker) -> dict[int, str]:
    """Return the events of a group that were skipped, or wait in its inbox, by position, with why."""
    found = _waiting(name, tracker)
    if any(one.skipped for one in statuses_of(tracker, name)):
        for skip in tracker.skipped():
            if skip.group == name:
                found[skip.position] = f"{skip.event_id!r} was skipped ({skip.reason})"
    return found

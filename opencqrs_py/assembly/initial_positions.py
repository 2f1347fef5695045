"""The position after which a group without progress starts."""

from __future__ import annotations

from datetime import datetime, timedelta

from opencqrs_py.config import EffectiveGroup
from opencqrs_py.config.value_types import AGO, parse_duration
from opencqrs_py.errors import AssemblyError
from opencqrs_py.model.naming import canonical
from opencqrs_py.processing.ports import Clock, EventSource, ProgressTracker


def initial_position(setting: str, source: EventSource, clock: Clock) -> int:
    """Return the position at which a group without progress starts.

    Args:
        setting: ``tail`` (before the oldest event), ``head`` (after the newest), a position, or an ISO 8601 time:
            then the first event handled is the first with that time or a later one. A duration such as ``-P7D`` is the
            time so long before now.
        source: The event store.
        clock: Returns the current time.
    """
    match setting:
        case "tail":
            return 0
        case "head":
            return source.head()
        case digits if digits.isdigit():
            return int(digits)
        case ago if ago[:2].casefold() == AGO:
            return source.position_before(clock.now() - timedelta(seconds=parse_duration(ago[1:])))
        case _:
            return source.position_before(datetime.fromisoformat(setting))


def starting_position(settings: EffectiveGroup, source: EventSource, tracker: ProgressTracker, clock: Clock) -> int:
    """Return where partitions without progress start.

    Raises:
        AssemblyError: OCQ-528, if the group has no progress, but another spelling of its name has: it would handle
            everything again. OCQ-530, if it is to start at a position or time that does not exist yet.
    """
    known = dict.fromkeys(status.group for status in tracker.statuses())
    alike = [name for name in known if canonical(name) == canonical(settings.name)]
    if alike and settings.name not in alike:
        what = f"group '{settings.name}' has no progress, but '{alike[0]}' has: the same name in another spelling"
        rows = "its rows in opencqrs_progress, opencqrs_groups and opencqrs_inbox"
        fix = f"write '{alike[0]}' in the handlers; or rename {rows}, or delete them to start again"
        raise AssemblyError("OCQ-528", what, f"group {settings.name}", fix)
    setting = settings.fetch.initial_position
    position = initial_position(setting, source, clock)
    if _is_ahead(setting, position, source, clock):
        what = f"group '{settings.name}' is to start at {setting}, and the log ends at position {source.head():,}"
        fix = "write head to start with new events, tail for all existing ones"
        raise AssemblyError("OCQ-530", what, settings.place_of("fetch", "initial_position"), fix)
    return position


def _is_ahead(setting: str, position: int, source: EventSource, clock: Clock) -> bool:
    """Return whether a group would start at a position after the newest event, or at a time in the future."""
    if setting in ("tail", "head") or position < (head := source.head()):
        return False
    if setting.isdigit():
        return position > head
    return setting[:2].casefold() != AGO and datetime.fromisoformat(setting) > clock.now()

"""What stands in the way of a rebuild, or of its swap."""

from __future__ import annotations

from collections.abc import Sequence

from opencqrs_py.config import EffectiveGroup
from opencqrs_py.config.choices import Mode
from opencqrs_py.errors import RebuildError
from opencqrs_py.model.progress import PartitionStatus, ProcessorState

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

    Raises:
        RebuildError: OCQ-635.
    """
    for one in statuses:
        failure = one.failure
        said = one.error
        lacks = any(word in said for word in _MISSING)
        if not said or not (one.state is ProcessorState.FAILED or lacks):
            continue
        event = f" at event {failure.event_id!r}" if failure is not None and failure.event_id else ""
        what = f"in the rebuild of group '{name}' partition {one.partition} fails{event}: {said}"
        fix = (
            "name tables that migrations make in rebuild.tables, and those that the group only reads in "
            "rebuild.shared-tables; for other errors fix the handler. The live tables are as they were"
        )
        raise RebuildError("OCQ-635", what, f"group {name}", fix)

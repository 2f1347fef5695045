"""Groups whose events are sequenced differently now than when they were handled."""

from __future__ import annotations

from collections.abc import Sequence

from opencqrs_py.errors import ResetError
from opencqrs_py.model.partition import WHOLE
from opencqrs_py.model.progress import PartitionStatus
from opencqrs_py.model.replay import Reset
from opencqrs_py.processing.group_records import same_code
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.ports import GroupRecords, ParkingTracker, ProgressTracker


def is_resequenced(tracker: ProgressTracker, group: str, sequencing: str) -> bool:
    """Return whether the events of a group were in other partitions when they were handled, as far as is known."""
    records = tracker.records() if isinstance(tracker, GroupRecords) else ()
    return any(not same_code(one.sequencing, sequencing) for one in records if one.group == group)


def require_same_events(reset: Reset, statuses: Sequence[PartitionStatus], processing: GroupProcessing) -> None:
    """Refuse a reset after which it is unknown which events a partition has handled, as the others have not.

    Which partition an event belonged to is known to the earlier code alone.

    Raises:
        ResetError: OCQ-613, if there is an event that only some partitions can have handled.
        UnsequencedError: If the sequence of an event cannot be determined.
    """
    handled_by_all = min(map(_handled_to, statuses), default=0)
    farthest = max((one.farthest for one in statuses), default=0)
    until = farthest if reset.newest is None else min(farthest, reset.newest)
    if next(processing.positions_of(WHOLE, max(handled_by_all, reset.position), until), None) is None:
        return
    is_ahead = any(one.ahead is not None for one in statuses)
    where = "some of its sequences are ahead of others" if is_ahead else "its partitions are at different positions"
    group = reset.group
    what = f"group '{group}' cannot be reset: {where}, and its events are sequenced in another way now"
    fix = (
        "restore the settings sequence.* and the sequence resolver or batch key; let all partitions handle the same "
        f"events, or opencqrs groups partitions {group} 1; reset the group, and change them then"
    )
    raise ResetError("OCQ-613", what, f"group {group}", fix)


def never_handled(tracker: ProgressTracker, reset: Reset, statuses: Sequence[PartitionStatus]) -> set[int]:
    """Return the positions of events after a reset that wait in the inbox, or are new in a replay, of any partition."""
    entries = tracker.entries(reset.group) if isinstance(tracker, ParkingTracker) else ()
    waiting = {one.position for one in entries if not one.replaying}
    replays = ((one.position, one.replay) for one in statuses if one.replay is not None)
    return waiting.union(*([one for one in each.unhandled if one > position] for position, each in replays))


def _handled_to(status: PartitionStatus) -> int:
    """Return up to which position a partition has handled all events of its sequences."""
    return status.position if status.ahead is not None else status.farthest

"""How far a rebuild is, compared with the live group, which it must not overtake if that has more to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from opencqrs_py.adapters.sql.shadows.swaps import BusyError
from opencqrs_py.assembly.rebuilds.checks import require_handled, require_sound, waiting_again
from opencqrs_py.model.naming import counted
from opencqrs_py.model.partition import WHOLE, Partition
from opencqrs_py.model.progress import PartitionStatus
from opencqrs_py.processing.pacing import Following
from opencqrs_py.processing.ports import ProgressTracker, statuses_of

_log = logging.getLogger("opencqrs.control")
_REACH_SECONDS = 5.0  # that the live group pauses for the rebuild to handle the rest
_PAUSE = 0.005
_WAITING_AGAIN = (
    "group %s: %s in the inbox of the new tables, though the live group has handled them: all handlers are called for "
    "them there, including those that the rebuild leaves out"
)
PositionsOf = Callable[[Partition, int, int], Iterable[int]]


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the rebuild of a group is.

    If handlers are left out of the rebuild, such as one that sends mail, the live group calls them. An event that the
    rebuild alone had handled would never come to them, since the progress of the rebuild replaces the live
    one. So then the rebuild follows the live group, and is swapped where no event lies between both.

    Attributes:
        group: Processing group.
        live: Where the progress of the live group is.
        rebuilt: Where that of the rebuild is.
        hasten: Has the rebuild store its progress without delay.
        following: How far the rebuild may read, if it must not overtake the live group.
        positions_of: Returns the positions of a partition's events after a position, up to another one.
        writes_once: Whether a handler that a replay leaves out writes to the tables.
        leaves_out: Whether handlers are left out of the rebuild, so that it must not overtake any live partition.
        resequenced: Whether the live partitions have other events than those of the rebuild.
    """

    group: str
    live: ProgressTracker
    rebuilt: ProgressTracker
    hasten: Callable[[], None]
    following: Following | None
    positions_of: PositionsOf
    writes_once: bool = False
    leaves_out: bool = True
    resequenced: bool = False

    def statuses(self) -> list[PartitionStatus]:
        """Return how far the partitions of the rebuild are.

        Raises:
            RebuildError: OCQ-635, if one fails permanently.
        """
        found = statuses_of(self.rebuilt, self.group)
        require_sound(self.group, found)
        return found

    def target(self, head: int) -> int:
        """Return how far the rebuild may go now."""
        if self.following is None:
            return head
        live = (one.position for one in statuses_of(self.live, self.group))
        self.following.move(min(live, default=0) if self.leaves_out else max(live, default=0))
        limit = self.following.limit()
        return head if limit is None else min(head, limit)

    def overtake(self) -> None:
        """Let the rebuild go beyond the live group, unless handlers are left out of it."""
        if self.following is not None and not self.leaves_out:
            self.following.lift()

    def reached(self, live: Mapping[Partition, int], *, accept_unhandled: bool) -> None:
        """Wait for the rebuild to reach the position at which the live partitions are paused.

        Raises:
            BusyError: If it does not reach it now, but may later.
            RebuildError: OCQ-635, if a partition fails permanently; OCQ-636, if events were not handled again, unless
                that is accepted.
        """
        farthest = max(live.values(), default=0)
        self._go_to(live, farthest)
        handled = {**live, **self._ahead()}
        until = time.monotonic() + _REACH_SECONDS
        while True:
            own = {one.partition: one.position for one in self.statuses()}
            if own.keys() != live.keys():
                return  # which the swap itself refuses
            if all(own[partition] >= position for partition, position in handled.items()):
                break
            if time.monotonic() >= until:
                raise BusyError("the rebuild is behind the live group", "let it catch up")
            self.hasten()
            time.sleep(_PAUSE)
        self._require_replayed(own)
        known = (self.group, self.live, self.rebuilt, max(handled.values(), default=0))
        if not accept_unhandled:
            require_handled(*known)
        elif self.following is not None and (waiting := waiting_again(*known)):
            _log.warning(_WAITING_AGAIN, self.group, counted(waiting, "event waits", "events wait"))

    def _require_replayed(self, own: Mapping[Partition, int]) -> None:
        """Refuse to swap within a replay whose rest leaves out a handler that still has to fill the new tables."""
        replays = {one.partition: one.replay for one in statuses_of(self.live, self.group) if one.replay is not None}
        until = max((each.until for partition, each in replays.items() if each.until > own[partition]), default=None)
        if self.writes_once and until is not None:
            reason = f"the group handles events again up to {until}, without handlers with replay=False, which would "
            raise BusyError(f"{reason}leave rows out of the new tables", "let the replay end")

    def _ahead(self) -> dict[Partition, int]:
        """Return up to where live partitions have handled some sequences, which is beyond their positions."""
        return {one.partition: one.ahead.until for one in statuses_of(self.live, self.group) if one.ahead is not None}

    def _go_to(self, live: Mapping[Partition, int], farthest: int) -> None:
        """Let the rebuild go as far as the live group, unless left-out handlers would miss events that lie between."""
        if self.following is None:
            return
        statuses = statuses_of(self.live, self.group)
        own = {one.partition: one.position for one in statuses_of(self.rebuilt, self.group)}
        if self.resequenced:
            self._require_same_events(live, statuses, max((farthest, *own.values())))
        else:
            self._require_no_more(live, statuses, {one: max(farthest, own.get(one, 0)) for one in live})
        _warn_of_waiting(self.group, statuses)
        self.following.move(farthest)

    def _require_no_more(
        self, live: Mapping[Partition, int], statuses: Sequence[PartitionStatus], until: Mapping[Partition, int]
    ) -> None:
        """Refuse to swap while a live partition has events to handle."""
        for partition, position in sorted(live.items()):
            ahead = any(one.partition == partition and one.ahead is not None for one in statuses)
            if ahead or self._has_events(partition, position, until[partition]):
                reason = f"handlers that the rebuild leaves out have events to handle in partition {partition}"
                raise BusyError(reason, "let opencqrs run catch up, or wait for fewer events")

    def _require_same_events(
        self, live: Mapping[Partition, int], statuses: Sequence[PartitionStatus], until: int
    ) -> None:
        """Refuse to swap while it is unknown what was handled, as partitions with other events have handled it."""
        replays = {_beyond(one, until) for one in statuses}
        if any(one.ahead is not None for one in statuses):
            why = "some of its sequences are ahead of others"
        elif len(replays) > 1:
            why = "its partitions are in different replays"
        elif self._has_events(WHOLE, min(live.values(), default=0), until):
            why = "its partitions are at different positions"
        else:
            return
        reason = f"its events are sequenced in another way now, and {why}"
        raise BusyError(reason, "let the processes with the earlier sequencing catch up, or wait for fewer events")

    def _has_events(self, partition: Partition, after: int, until: int) -> bool:
        return next(iter(self.positions_of(partition, after, until)), None) is not None


def _beyond(status: PartitionStatus, position: int) -> tuple[int, tuple[int, ...]] | None:
    """Return what a partition handles again after a position, and which events are new there; ``None`` if nothing."""
    replay = status.replay
    if replay is None or replay.until <= position:
        return None
    return replay.until, tuple(one for one in replay.unhandled if one > position)


def _warn_of_waiting(group: str, statuses: Sequence[PartitionStatus]) -> None:
    if waiting := sum(count for one in statuses for _, count in one.parked):
        text = (
            "group %s: %s in the inbox of the live tables; handlers that the rebuild leaves out are not called for them"
        )
        _log.warning(text, group, f"{counted(waiting, 'event waits', 'events wait')}")

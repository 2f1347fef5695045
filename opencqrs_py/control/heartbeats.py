"""What heartbeats show of clocks: when nodes sent their last one, as the database's clock may be set back. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from opencqrs_py.control.records import ControlView, NodeRecord

_TOLERANCE = 0.1  # by which an answer of the database may be late, as a part of the duration of leases
_CLOCK_TOLERANCE = 10.0  # seconds by which clocks may differ


class Heartbeats:
    """Notes when each node was last seen to extend its leases.

    Leases end by the database's clock. If that is set back by an hour, those of a silent node
    would last for an hour longer. But a node whose leases have not moved for as long as they last has not extended
    them, so they have ended by its own clock, too.
    """

    def __init__(self) -> None:
        self._heard: dict[str, tuple[float, float]] = {}  # when leases end, as seen from here; and since when they do

    def corrected(self, view: ControlView, asked: float) -> ControlView:
        """Return the view with leases that last no longer than their duration after their last extension.

        Args:
            view: What the database says.
            asked: Time of the query, in seconds of a clock that is never set.
        """
        before, self._heard = self._heard, {}
        return replace(view, nodes=tuple(self._corrected(record, before, asked) for record in view.nodes))

    def _corrected(self, record: NodeRecord, before: dict[str, tuple[float, float]], asked: float) -> NodeRecord:
        id_, lasts, end = record.node.id, record.node.lease_seconds, asked + record.seconds_left
        if not record.alive or not lasts:
            return record
        known_end, since = before.get(id_, (end, asked))
        tolerance = _TOLERANCE * lasts
        if abs(end - known_end) > tolerance:
            was_set = record.seconds_left > lasts + tolerance  # the clock: no extension makes them last for longer
            known_end, since = end, since if was_set else asked
        self._heard[id_] = known_end, since
        left = min(record.seconds_left, lasts - (asked - since))
        return replace(record, seconds_left=left, alive=left > 0)


class ClockDifference:
    """Notes by how much this process's clock differs from the database's."""

    def __init__(self) -> None:
        self._noted = 0.0

    def noted(self, known: datetime, before: datetime, after: datetime) -> float | None:
        """Return how many seconds this process's clock is ahead, negative if it is slow; ``None`` if nothing is new.

        A difference is new if it is the first, has more than doubled, or has changed its direction: that of a clock
        that has stopped, or runs at another rate, changes at each query.

        Args:
            known: The time by the database's clock.
            before: The time before the query, by this process's clock.
            after: The time after it.
        """
        least, most = before.timestamp() - known.timestamp(), after.timestamp() - known.timestamp()
        ahead = min(max(self._noted, least), most)  # if the answer was slow, the noted difference may still be right
        differs = abs(ahead) > _CLOCK_TOLERANCE
        if abs(ahead - self._noted) <= max(_CLOCK_TOLERANCE, abs(self._noted) if differs else 0.0):
            return None
        self._noted = ahead
        return ahead if differs else None

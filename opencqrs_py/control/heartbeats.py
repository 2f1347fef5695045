"""When nodes sent their last heartbeat, by this process's clock: that of the database may be set back. Pure."""

from __future__ import annotations

from dataclasses import replace

from opencqrs_py.control.records import ControlView, NodeRecord

_TOLERANCE = 0.1  # by which an answer of the database may be late, as a part of the duration of leases


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

"""How far a rebuild has to be before it is swapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from opencqrs_py.adapters.sql.shadows import BusyError
from opencqrs_py.assembly import rebuild_reach
from opencqrs_py.assembly.rebuild_reach import Reach
from opencqrs_py.model.ahead import Ahead
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import PartitionStatus, ProcessorState

WHOLE, HALF = Partition(1, 0), Partition(2, 1)


class Tracker:
    """Shows one position after the other at each look, and the last one from then on."""

    def __init__(self, positions: Sequence[int], ahead: Ahead | None = None) -> None:
        self.positions = [*positions]
        self.ahead = ahead

    def statuses(self) -> list[PartitionStatus]:
        position = self.positions.pop(0) if len(self.positions) > 1 else self.positions[0]
        return [PartitionStatus("catalog", WHOLE, position, ProcessorState.RUNNING, ahead=self.ahead)]


def reach(live: Tracker, rebuilt: Tracker) -> Reach:
    known: dict[str, Any] = {"live": live, "rebuilt": rebuilt}
    return Reach("catalog", **known, hasten=lambda: None, following=None, positions_of=lambda *_: ())


def test_a_rebuild_reaches_what_merged_partitions_have_handled_beyond_their_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rebuild_reach, "_REACH_SECONDS", 0)
    live = Tracker([100], Ahead(((HALF, 250),)))
    reach(live, Tracker([250])).reached({WHOLE: 100}, accept_unhandled=False)
    with pytest.raises(BusyError, match="not as far as the live group"):
        reach(live, Tracker([249])).reached({WHOLE: 100}, accept_unhandled=False)


def test_a_rebuild_that_is_behind_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild_reach, "_PAUSE", 0)
    rebuilt = Tracker([90, 95, 100])
    reach(Tracker([100]), rebuilt).reached({WHOLE: 100}, accept_unhandled=False)
    assert rebuilt.positions == [100]

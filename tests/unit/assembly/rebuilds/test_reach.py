"""How far a rebuild must be before it is swapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from opencqrs_py.adapters.sql.shadows.shadows import BusyError
from opencqrs_py.assembly.rebuilds import reach as rebuild_reach
from opencqrs_py.assembly.rebuilds.reach import Reach
from opencqrs_py.model.ahead import Ahead
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.progress import PartitionStatus, ProcessorState
from opencqrs_py.model.replay import Replay, Reset
from opencqrs_py.processing.pacing import Following

WHOLE, HALF = Partition(1, 0), Partition(2, 1)


class Tracker:
    """A tracker that returns the next position at each query, and then repeats the last one."""

    def __init__(self, positions: Sequence[int], ahead: Ahead | None = None) -> None:
        self.positions = [*positions]
        self.ahead = ahead

    def statuses(self) -> list[PartitionStatus]:
        position = self.positions.pop(0) if len(self.positions) > 1 else self.positions[0]
        return [PartitionStatus("catalog", WHOLE, position, ProcessorState.RUNNING, ahead=self.ahead)]


def reach(live: Tracker, rebuilt: Tracker) -> Reach:
    known: dict[str, Any] = {"live": live, "rebuilt": rebuilt}
    return Reach("catalog", **known, hasten=lambda: None, following=None, positions_of=lambda *_: ())


def test_a_rebuild_must_reach_the_furthest_event_handled_by_merged_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rebuild_reach, "_REACH_SECONDS", 0)
    live = Tracker([100], Ahead(((HALF, 250),)))
    reach(live, Tracker([250])).reached({WHOLE: 100}, accept_unhandled=False)
    with pytest.raises(BusyError, match="is behind the live group"):
        reach(live, Tracker([249])).reached({WHOLE: 100}, accept_unhandled=False)


def test_the_swap_waits_for_a_rebuild_that_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild_reach, "_PAUSE", 0)
    rebuilt = Tracker([90, 95, 100])
    reach(Tracker([100]), rebuilt).reached({WHOLE: 100}, accept_unhandled=False)
    assert rebuilt.positions == [100]


class Halves:
    """A tracker with two partitions at two positions, each with or without a replay."""

    def __init__(self, positions: Sequence[int], replays: Sequence[Replay | None] = (None, None)) -> None:
        self.known = list(zip(layout(2), positions, replays, strict=True))

    def statuses(self) -> list[PartitionStatus]:
        running = ProcessorState.RUNNING
        return [
            PartitionStatus("catalog", one, position, running, replay=replay) for one, position, replay in self.known
        ]

    def positions(self) -> dict[Partition, int]:
        return {partition: position for partition, position, _ in self.known}


def resequenced(live: Halves, events: Sequence[int]) -> Following:
    """Let a rebuild reach partitions that were sequenced differently; return its new limit."""

    def positions_of(partition: Partition, after: int, until: int) -> list[int]:
        assert partition == WHOLE
        return [one for one in events if after < one <= until]

    known: dict[str, Any] = {"live": live, "rebuilt": Halves([9, 9]), "hasten": lambda: None}
    following = Following(0)
    reach = Reach("catalog", **known, following=following, positions_of=positions_of, resequenced=True)
    reach.reached(live.positions(), accept_unhandled=True)
    return following


def test_resequenced_partitions_are_swapped_if_no_event_lies_between_their_positions() -> None:
    assert resequenced(Halves([5, 9]), [5, 10]).limit() == 9
    for between in (6, 9):
        with pytest.raises(BusyError, match="sequenced in another way now"):
            resequenced(Halves([5, 9]), [between])


def test_resequenced_partitions_are_not_swapped_while_their_replays_end_at_different_positions() -> None:
    short, long = (Replay(Reset("catalog", 0), until) for until in (12, 15))
    assert resequenced(Halves([9, 9], [long, long]), []).limit() == 9
    over = Replay(Reset("catalog", 0), 9)
    assert resequenced(Halves([9, 9], [None, over]), []).limit() == 9
    for replays in ([short, long], [None, long]):
        with pytest.raises(BusyError, match="sequenced in another way now"):
            resequenced(Halves([9, 9], replays), [])

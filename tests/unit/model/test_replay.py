"""How a reset changes progress, and which events are replays."""

from __future__ import annotations

import pytest

from opencqrs_py import Reset
from opencqrs_py.errors import ResetError
from opencqrs_py.model.replay import Replay, replay_after


def reset(position: int) -> Reset:
    return Reset("books", position)


BEFORE = Replay(reset(0), 20)  # an unfinished replay


@pytest.mark.parametrize(
    ("to", "position", "before", "until"),
    [
        pytest.param(0, 10, None, 10, id="to-the-start"),
        pytest.param(9, 10, None, 10, id="back-by-one-event"),
        pytest.param(10, 10, None, None, id="to-the-current-position"),
        pytest.param(12, 10, None, None, id="ahead"),
        pytest.param(0, 0, None, None, id="nothing-handled-yet"),
        pytest.param(0, 5, BEFORE, 20, id="in-a-replay-the-later-end-applies"),
        pytest.param(8, 5, BEFORE, 20, id="ahead-within-a-replay"),
        pytest.param(20, 5, BEFORE, None, id="ahead-to-the-end-of-a-replay"),
        pytest.param(25, 5, BEFORE, None, id="ahead-of-a-replay"),
        pytest.param(0, 30, BEFORE, 30, id="after-the-end-of-a-replay-that-is-still-recorded"),
    ],
)
def test_a_reset_replays_the_events_handled_before(
    to: int, position: int, before: Replay | None, until: int | None
) -> None:
    found = replay_after(reset(to), position, before)
    assert (found and found.until) == until
    assert found is None or found.reset.position == to


@pytest.mark.parametrize(("to", "before", "until"), [(0, None, 7), (6, None, 7), (7, None, None), (0, BEFORE, 7)])
def test_a_replay_ends_at_the_newest_event_of_the_log(to: int, before: Replay | None, until: int | None) -> None:
    found = replay_after(Reset("books", to, newest=7), 10, before, [3, 9])
    assert (found and found.until) == until
    assert found is None or found.unhandled == tuple(one for one in (3,) if one > to)


def test_events_in_the_inbox_are_not_replays_even_in_a_second_reset() -> None:
    first = replay_after(reset(0), 10, None, [9, 4])
    assert first is not None
    assert first.unhandled == (4, 9)
    second = replay_after(reset(2), 5, first, [7, 11, 2])
    assert second is not None
    assert (second.until, second.unhandled) == (10, (7, 9))  # 4 was handled, 11 is after the end, 2 before the start


@pytest.mark.parametrize(
    ("position", "replaying", "boundary"),
    [(1, True, 4), (3, True, 4), (4, False, 5), (5, True, 9), (9, False, 10), (10, True, 11), (11, False, None)],
)
def test_the_event_at_the_old_position_is_a_replay_and_the_next_is_not(
    position: int, boundary: int | None, *, replaying: bool
) -> None:
    replay = Replay(reset(0), 10, (4, 9))
    assert replay.covers(position) is replaying
    assert replay.boundary(position) == boundary


def test_a_replay_survives_being_stored() -> None:
    replay = Replay(
        Reset("books", 3, {"since": "2024", "ä": [1]}, "new column", "2024-01-01T00:00:00+00:00"), 9, (4, 7)
    )
    assert replay.text.isascii()
    assert Replay.of("books", replay.text) == replay


def test_too_many_unhandled_events_are_refused() -> None:
    with pytest.raises(ResetError, match=r"OCQ-612.*19,999 events") as caught:
        replay_after(reset(0), 100_000, None, range(1, 20_000))
    assert "opencqrs inbox skip" in caught.value.fix  # purge removes only expired events

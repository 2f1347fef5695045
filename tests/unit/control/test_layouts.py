"""Which partitions a group gets, and how progress carries over to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.control.layouts import (
    Known,
    Log,
    StartLayout,
    at_start,
    carried_over,
    even,
    merge_of,
    split_of,
)
from opencqrs_py.errors import LayoutError, ResetError
from opencqrs_py.model.ahead import Ahead, ahead_of
from opencqrs_py.model.group_record import RecordedLayout
from opencqrs_py.model.partition import MOST_PARTITIONS, Partition, is_layout, layout
from opencqrs_py.model.progress import Cursor, FailureRecord
from opencqrs_py.model.replay import Replay, Reset

NO_LOG = Log(lambda _position: None)


def p(text: str) -> Partition:
    residue, modulus = map(int, text.split("/"))
    return Partition(modulus, residue)


def ps(text: str) -> tuple[Partition, ...]:
    return tuple(map(p, text.split()))


def standing(text: str) -> dict[Partition, Cursor]:
    """``0/2@10 1/2@20`` as cursors."""
    found = {}
    for each in text.split():
        partition, _, position = each.partition("@")
        found[p(partition)] = Cursor(p(partition), 3, int(position), int(position), fingerprint=f"at {position}")
    return found


def shown(cursors: dict[Partition, Cursor]) -> str:
    """Cursors with the progress ahead of them: ``0/1@10(1/2@20)``."""
    return " ".join(
        f"{cursor.partition}@{cursor.stored}"
        + (f"({' '.join(f'{one}@{until}' for one, until in cursor.ahead.parts)})" if cursor.ahead else "")
        for _, cursor in sorted(cursors.items())
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("0/1@7", "0/2 1/2", "0/2@7 1/2@7"),
        ("0/2@10 1/2@20", "0/1", "0/1@10(1/2@20)"),
        ("0/2@10 1/2@10", "0/1", "0/1@10"),
        ("0/2@10 1/2@20", "0/4 2/4 1/2", "0/4@10 2/4@10"),
        ("0/2@10 1/2@20", "0/3 1/3 2/3", "0/3@10(1/2@20) 1/3@10(1/2@20) 2/3@10(1/2@20)"),
        ("0/3@5 1/3@6 2/3@7", "0/6 1/6 2/6 3/6 4/6 5/6", "0/6@5 1/6@6 2/6@7 3/6@5 4/6@6 5/6@7"),
    ],
)
def test_new_partitions_continue_at_the_lowest_progress_of_their_sequences(before, after, expected):
    carried = carried_over(standing(before), ps(after), NO_LOG)
    assert shown(carried) == expected
    assert {cursor.epoch for cursor in carried.values()} == {4}


def test_splitting_a_merged_partition_restores_the_progress_of_its_halves():
    merged = carried_over(standing("0/2@10 1/2@20"), ps("0/1"), NO_LOG)
    assert shown(carried_over(merged, ps("0/2 1/2"), NO_LOG)) == "0/2@10 1/2@20"


def test_partitions_in_both_layouts_are_left_unchanged():
    assert list(carried_over(standing("0/2@10 1/2@20"), ps("0/4 2/4 1/2"), NO_LOG)) == list(ps("0/4 2/4"))


def test_the_fingerprint_of_the_log_is_kept_for_its_position():
    known = standing("0/2@10 1/2@20")
    assert carried_over(known, ps("0/1"), NO_LOG)[p("0/1")].fingerprint == "at 10"


def test_an_unreleased_partition_marks_the_partitions_that_replace_it():
    known = {one: Cursor(one, 1, 5, 5, unreleased=one.residue == 1) for one in layout(2)}
    carried = carried_over(known, ps("0/2 1/4 3/4"), NO_LOG)
    assert {str(one): cursor.unreleased for one, cursor in carried.items()} == {"1/4": True, "3/4": True}


def failure(position: int) -> FailureRecord:
    return FailureRecord(position, f"e{position}", "t", 2, 2, "first", "last", "2026-11-24T00:00:00.000+00:00")


def test_a_failure_moves_to_the_partition_of_its_event():
    cursor = Cursor(p("0/1"), 1, 5, 5).resuming(failure(6))
    carried = carried_over({p("0/1"): cursor}, ps("0/2 1/2"), Log({6: [3]}.get))
    assert [each.failure and each.failure.position for each in carried.values()] == [None, 6]


def test_a_failure_of_unknown_sequence_moves_to_all_partitions():
    cursor = Cursor(p("0/1"), 1, 5, 5).resuming(failure(6))
    carried = carried_over({p("0/1"): cursor}, ps("0/2 1/2"), NO_LOG)
    assert [each.failure and each.failure.position for each in carried.values()] == [6, 6]


def test_an_event_that_was_not_tried_has_no_failure_to_move():
    untried = replace(failure(6), attempts=0, retries=0, first_error="")
    cursor = Cursor(p("0/1"), 1, 5, 5).resuming(untried)

    def unknown(_: int) -> list[int]:
        raise LookupError("no sequence")

    carried = carried_over({p("0/1"): cursor}, ps("0/2 1/2"), Log(unknown))
    assert [each.failure for each in carried.values()] == [None, None]


def test_the_earlier_of_two_failures_is_kept():
    known = {
        p("0/2"): Cursor(p("0/2"), 1, 20, 20).resuming(failure(21)),
        p("1/2"): Cursor(p("1/2"), 1, 5, 5).resuming(failure(6)),
    }
    (carried,) = carried_over(known, ps("0/1"), Log({6: [1], 21: [0]}.get)).values()
    assert carried.failure is not None
    assert carried.failure.position == 6


RESET = Reset("group", 0)


@pytest.mark.parametrize(
    ("untils", "expected"),
    [
        ((None, None), None),
        ((50, 50), (50, ())),
        ((50, 60), (60, (52, 58))),  # of 0/2, whose replay ends at 50
        ((None, 60), (60, (32, 44, 52, 58))),  # its replay is over: events after its position are new
    ],
)
def test_a_merged_replay_records_the_events_that_were_never_handled(untils, expected):
    known = {
        one: Cursor(one, 1, 30 if until is None else 10, 10, replay=None if until is None else Replay(RESET, until))
        for one, until in zip(layout(2), untils, strict=True)
    }
    own = {p("0/2"): [2, 32, 44, 52, 58, 70], p("1/2"): [3, 33, 53]}

    def positions_of(partition, after, until):
        return [one for one in own[partition] if after < one <= until]

    (carried,) = carried_over(known, ps("0/1"), Log(lambda _: None, positions_of)).values()
    assert (carried.replay and (carried.replay.until, carried.replay.unhandled)) == expected


def test_a_merge_that_would_record_too_many_unhandled_events_is_refused():
    known = {
        p("0/2"): Cursor(p("0/2"), 1, 0, 0, replay=Replay(RESET, 100_000)),
        p("1/2"): Cursor(p("1/2"), 1, 0, 0, replay=Replay(RESET, 0)),
    }
    with pytest.raises(ResetError, match="OCQ-612"):
        carried_over(known, ps("0/1"), Log(lambda _: None, lambda _, after, until: range(after + 1, until + 1)))


LAYOUTS = st.one_of(
    st.integers(1, 9).map(layout),
    st.lists(st.integers(0, 7), max_size=5).map(
        lambda picks: _split_often(picks),  # noqa: PLW0108 defined below
    ),
)


def _split_often(picks):
    found = layout(1)
    for pick in picks:
        found = split_of(found, found[pick % len(found)])
    return found


@given(
    hashes=st.lists(st.integers(0, 5_039), min_size=1, max_size=40),
    steps=st.lists(st.one_of(st.tuples(st.integers(0, 20), st.integers(1, 12)), LAYOUTS), max_size=25),
)
def test_every_event_is_handled_once_and_in_order_through_any_change_of_layouts(hashes, steps):
    handled: list[int] = []
    known = {one: Cursor(one, 1, 0, 0) for one in layout(1)}

    def move(partition, to):
        cursor = known[partition]
        for position in range(cursor.stored + 1, min(to, len(hashes)) + 1):
            hash_ = hashes[position - 1]
            done = cursor.ahead is not None and cursor.ahead.covers(hash_, position)
            if hash_ % partition.modulus == partition.residue and not done:
                handled.append(position)
        known[partition] = Cursor(partition, cursor.epoch, max(cursor.stored, to), to, ahead=cursor.ahead)

    for step in steps:
        if isinstance(step[0], int):
            pick, count = step
            partition = sorted(known)[pick % len(known)]
            move(partition, known[partition].stored + count)
        else:
            assert is_layout(step)
            kept = {one: known[one] for one in step if one in known}
            known = {**kept, **carried_over(known, step, NO_LOG)}
    for partition in sorted(known):
        move(partition, len(hashes))
    assert sorted(handled) == list(range(1, len(hashes) + 1))
    for hash_ in set(hashes):
        own = [position for position in handled if hashes[position - 1] == hash_]
        assert own == sorted(own)


def test_parts_covered_by_other_parts_are_omitted():
    parts = [(p("1/2"), 20), (p("1/4"), 15), (p("3/4"), 25), (p("0/2"), 8), (p("1/2"), 18)]
    assert ahead_of(10, parts, p("0/1")) == Ahead(((p("1/2"), 20), (p("3/4"), 25)))
    assert ahead_of(25, parts, p("0/1")) is None
    assert ahead_of(10, parts, p("0/4")) is None


def test_progress_ahead_survives_serialization_and_ends_with_its_last_part():
    ahead = Ahead(((p("1/2"), 20), (p("2/4"), 30)))
    assert Ahead.of(ahead.text) == ahead
    assert ahead.until == 30
    assert ahead.after(20) == Ahead(((p("2/4"), 30),))
    assert ahead.after(30) is None
    assert ahead.after(5) is ahead
    assert [ahead.covers(hash_, 20) for hash_ in range(4)] == [False, True, True, True]
    assert [ahead.covers(hash_, 21) for hash_ in range(4)] == [False, False, True, False]


@pytest.mark.parametrize(
    ("known", "partition", "expected"),
    [("0/1", "0/1", "0/2 1/2"), ("0/2 1/2", "1/2", "0/2 1/4 3/4"), ("0/3 1/3 2/3", "2/3", "0/3 1/3 2/6 5/6")],
)
def test_a_split_gives_the_two_halves(known, partition, expected):
    assert set(split_of(ps(known), p(partition))) == set(ps(expected))


@pytest.mark.parametrize(
    ("known", "partition", "expected"),
    [("0/2 1/2", "1/2", "0/1"), ("0/2 1/4 3/4", "1/4", "0/2 1/2"), ("0/2 1/4 3/4", "3/4", "0/2 1/2")],
)
def test_a_merge_undoes_a_split(known, partition, expected):
    assert set(merge_of(ps(known), p(partition))) == set(ps(expected))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: split_of(ps("0/2 1/2"), p("0/4")), "there is no partition 0/4"),
        (lambda: merge_of(ps("0/2 1/2"), p("0/4")), "there is no partition 0/4"),
        (lambda: split_of(layout(MOST_PARTITIONS), p(f"0/{MOST_PARTITIONS}")), "cannot be split: it is one of 1,024"),
        (lambda: merge_of(ps("0/1"), p("0/1")), "partition 0/1 cannot be merged: it is the whole group"),
        (lambda: merge_of(ps("0/3 1/3 2/3"), p("0/3")), "its other half does not exist"),
        (lambda: merge_of(ps("0/2 1/4 3/4"), p("0/2")), "its other half 1/2 is split further"),
        (lambda: even(0), "0 is not a valid number of partitions: use 1 to 1,024"),
        (lambda: even(1_025), "1,025 is not a valid number of partitions"),
    ],
)
def test_an_impossible_change_is_refused_with_a_reason(change, message):
    with pytest.raises(LayoutError, match=message):
        change()


RECORDED = RecordedLayout(ps("0/2 1/4 3/4"), 2)


@pytest.mark.parametrize(
    ("setting", "known", "expected"),
    [
        pytest.param(4, Known((), None), StartLayout(layout(4)), id="a new group"),
        pytest.param(4, Known((), RECORDED), StartLayout(layout(4)), id="progress is lost"),
        pytest.param(2, Known(layout(2), None), StartLayout(layout(2)), id="not recorded yet"),
        pytest.param(4, Known(layout(2), None), StartLayout(layout(4), changes=True), id="not recorded, changed"),
        pytest.param(2, Known(ps("0/2 1/4 3/4"), RECORDED), StartLayout(RECORDED.partitions), id="a command wins"),
        pytest.param(
            8,
            Known(ps("0/2 1/4 3/4"), RECORDED),
            StartLayout(layout(8), changes=True),
            id="a changed setting overrides a command",
        ),
        pytest.param(
            2,
            Known(layout(8), RecordedLayout(layout(8), 8, (2,)), [8, 2]),
            StartLayout(layout(8), outdated=True),
            id="an older process does not revert a change",
        ),
        pytest.param(
            2,
            Known(layout(8), RecordedLayout(layout(8), 8, (2,)), [2]),
            StartLayout(layout(2), changes=True),
            id="an older setting applies again once no process has the other",
        ),
        pytest.param(
            3,
            Known(layout(8), RecordedLayout(layout(8), 8, (2,)), [8]),
            StartLayout(layout(3), changes=True),
            id="a rolling deployment",
        ),
    ],
)
def test_a_start_applies_the_setting_unless_a_later_command_overrides_it(setting, known, expected):
    assert at_start(setting, known) == expected


def test_a_changed_setting_is_recorded_and_a_command_is_not():
    recorded = RecordedLayout(layout(2), 2)
    split = recorded.changed(ps("0/2 1/4 3/4"))
    assert split == RecordedLayout(ps("0/2 1/4 3/4"), 2)
    assert split.changed(layout(8), 8) == RecordedLayout(layout(8), 8, (2,))
    assert split.changed(layout(8), 8).changed(layout(2), 2) == RecordedLayout(layout(2), 2, (8,))

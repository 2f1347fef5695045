"""How many tasks each group may start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.engines.spark.slots import shares

groups = st.sampled_from(["a", "b", "c", "d"])
counts = st.dictionaries(groups, st.integers(1, 10))


@pytest.mark.parametrize(
    ("waiting", "running", "slots", "most", "expected"),
    [
        ({}, {}, 4, None, {}),
        ({"a": 8}, {}, 2, None, {"a": 2}),  # alone it has them all
        ({"a": 1}, {}, 2, None, {"a": 1}),
        ({"a": 8}, {"a": 2}, 2, None, {}),
        ({"a": 8, "b": 1}, {}, 2, None, {"a": 1, "b": 1}),
        ({"a": 8, "b": 8}, {}, 8, None, {"a": 4, "b": 4}),
        ({"a": 8, "b": 8}, {"a": 3}, 8, None, {"a": 1, "b": 4}),
        ({"a": 8, "b": 1}, {"a": 3}, 4, None, {"b": 1}),
        ({"b": 1, "a": 1}, {}, 1, None, {"b": 1}),  # who has waited longest comes first
        ({"a": 8}, {}, 8, 3, {"a": 3}),
        ({"a": 8}, {"a": 2}, 8, 3, {"a": 1}),
        ({"a": 8}, {"b": 5}, 4, None, {}),  # executors were lost meanwhile
    ],
)
def test_free_slots_go_to_the_groups_with_the_fewest_tasks(waiting, running, slots, most, expected):
    assert shares(waiting, running, slots, most) == expected


@given(counts, counts, st.integers(0, 20), st.none() | st.integers(1, 5))
def test_no_slot_is_given_twice_or_left_to_a_group_that_waits(waiting, running, slots, most):
    given_now = shares(waiting, running, slots, most)
    after = {group: running.get(group, 0) + given_now.get(group, 0) for group in {*waiting, *running}}
    assert all(0 < count <= waiting[group] for group, count in given_now.items())
    assert sum(given_now.values()) == 0 or sum(after.values()) <= slots
    limit = slots if most is None else most
    unserved = [g for g in waiting if given_now.get(g, 0) < waiting[g] and after[g] < limit]
    assert not unserved or sum(after.values()) >= slots
    for group in given_now:
        others = [g for g in unserved if g != group]
        assert all(after[group] <= after[other] + 1 for other in others)

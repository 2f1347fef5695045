"""How many tasks each group may start, and when slow tasks occupying all slots are reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.engines.spark.slots import HELD_SECONDS, ActiveJob, HeldSlots, shares
from opencqrs_py.testing import FakeClock

groups = st.sampled_from(["a", "b", "c", "d"])
counts = st.dictionaries(groups, st.integers(1, 10))


@pytest.mark.parametrize(
    ("waiting", "running", "slots", "most", "expected"),
    [
        ({}, {}, 4, None, {}),
        ({"a": 8}, {}, 2, None, {"a": 2}),  # a single group gets all slots
        ({"a": 1}, {}, 2, None, {"a": 1}),
        ({"a": 8}, {"a": 2}, 2, None, {}),
        ({"a": 8, "b": 1}, {}, 2, None, {"a": 1, "b": 1}),
        ({"a": 8, "b": 8}, {}, 8, None, {"a": 4, "b": 4}),
        ({"a": 8, "b": 8}, {"a": 3}, 8, None, {"a": 1, "b": 4}),
        ({"a": 8, "b": 1}, {"a": 3}, 4, None, {"b": 1}),
        ({"b": 1, "a": 1}, {}, 1, None, {"b": 1}),  # the group that has waited longest comes first
        ({"a": 8}, {}, 8, 3, {"a": 3}),
        ({"a": 8}, {"a": 2}, 8, 3, {"a": 1}),
        ({"a": 8}, {"b": 5}, 4, None, {}),  # executors were lost meanwhile
    ],
)
def test_free_slots_go_to_the_groups_with_the_fewest_tasks(waiting, running, slots, most, expected):
    assert shares(waiting, running, slots, most) == expected


@given(counts, counts, st.integers(0, 20), st.none() | st.integers(1, 5))
def test_no_slot_is_assigned_twice_or_left_free_while_a_group_waits(waiting, running, slots, most):
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


class WatchedSlots:
    """Observed slots with their own clock, and jobs of one task each."""

    def __init__(self, slots: int = 2) -> None:
        self.clock = FakeClock()
        self.slots = slots
        self.held = HeldSlots(self.clock)
        self.tasks: list[tuple[str, float]] = []
        self.queued: list[str] = []
        self.waiting: dict[str, int] = {}
        self.looks = self.queries = 0

    def begin(self, group: str) -> None:
        self.tasks.append((group, self.clock.monotonic()))

    def log_line(self) -> str | None:
        since = min((since for _, since in self.tasks), default=0.0 if self.queued else float("inf"))
        return self.held.news(self.slots, since, self._look, self._waiting, {"archive"})

    def _look(self) -> list[ActiveJob]:
        self.looks += 1
        now = self.clock.monotonic()
        return [ActiveJob(group, 1, now - since) for group, since in self.tasks] + [
            ActiveJob(group, 0, 0.0) for group in self.queued
        ]

    def _waiting(self, _jobs: object) -> dict[str, int]:
        self.queries += 1
        return self.waiting


def test_slow_events_occupying_all_slots_while_partitions_wait_are_reported_once_after_ten_seconds():
    watched = WatchedSlots(3)
    watched.waiting = {"mail": 2, "news": 1}
    watched.begin("loans")
    watched.clock.advance(5)
    watched.begin("loans")
    watched.begin("audit")
    watched.clock.advance(HELD_SECONDS - 1)
    assert watched.log_line() is None
    watched.clock.advance(1)
    assert watched.log_line() == (
        "all 3 Spark slots are held by long tasks (loans 2 for 15 s, audit 1 for 10 s), while partitions wait "
        "(mail 2, news 1): limit a group with spark.max-tasks-per-group, abandon long calls with "
        "processing.handler-timeout, or give Spark more cores"
    )
    watched.clock.advance(3_600)
    assert watched.log_line() is None


def test_the_end_of_the_shortage_is_reported_and_so_is_a_later_one():
    watched = WatchedSlots(1)
    watched.waiting = {"mail": 1}
    watched.begin("loans")
    watched.clock.advance(HELD_SECONDS)
    assert (watched.log_line() or "").startswith("the only Spark slot is held by long tasks (loans 1 for 10 s)")
    watched.tasks.clear()
    watched.begin("mail")
    assert watched.log_line() == "long tasks no longer hold all Spark slots"
    assert watched.log_line() is None
    watched.clock.advance(HELD_SECONDS)
    assert "(mail 1 for 10 s)" in (watched.log_line() or "")


@pytest.mark.parametrize(
    ("slots", "slow", "fresh", "waiting"),
    [(2, 1, 0, {"mail": 1}), (2, 1, 1, {"mail": 1}), (2, 2, 0, {}), (0, 2, 0, {"mail": 1})],
    ids=["a slot is free", "a task has just begun", "nothing waits", "Spark has not started"],
)
def test_nothing_is_reported_unless_slow_tasks_occupy_all_slots_and_partitions_wait(slots, slow, fresh, waiting):
    watched = WatchedSlots(slots)
    watched.waiting = waiting
    for _ in range(slow):
        watched.begin("loans")
    watched.clock.advance(HELD_SECONDS)
    for _ in range(fresh):
        watched.begin("loans")
    assert watched.log_line() is None


def test_lost_executors_do_not_hide_the_shortage():
    watched = WatchedSlots(1)
    watched.waiting = {"mail": 1}
    watched.begin("loans")
    watched.begin("loans")
    watched.clock.advance(HELD_SECONDS)
    assert "loans 2 for 10 s" in (watched.log_line() or "")


def test_waiting_partitions_are_counted_only_while_slow_tasks_occupy_all_slots():
    watched = WatchedSlots()
    watched.begin("loans")
    watched.begin("loans")
    watched.log_line()
    assert watched.queries == 0


def test_spark_is_queried_once_a_second_and_only_when_a_task_was_sent_long_ago():
    watched = WatchedSlots()
    watched.begin("loans")
    watched.clock.advance(HELD_SECONDS - 0.5)
    watched.log_line()
    assert watched.looks == 0
    watched.clock.advance(0.5)
    watched.log_line()
    watched.clock.advance(0.5)
    watched.log_line()
    assert watched.looks == 1
    watched.clock.advance(0.5)
    watched.log_line()
    assert watched.looks == 2


@pytest.mark.parametrize(
    ("running", "queued", "expected"),
    [
        (["job:nightly", "job:nightly"], ["loans"], "job:nightly 2 for 10 s"),
        (["loans", "archive"], [], "loans 1 for 10 s, archive 1 for 10 s"),
        (["", "loans"], [], "other jobs 1 for 10 s, loans 1 for 10 s"),
        (["archive", "archive"], [], None),  # whose tasks leave their slots in turn
        (["loans"], ["mail"], None),  # a task that Spark does not run holds no slot
        ([], ["loans", "mail"], None),  # as while executors start
    ],
)
def test_holders_are_what_spark_runs_of_any_kind(running, queued, expected):
    watched = WatchedSlots()
    watched.waiting, watched.queued = {"mail": 1}, queued
    for group in running:
        watched.begin(group)
    watched.clock.advance(HELD_SECONDS)
    found = watched.log_line()
    assert found is None if expected is None else f"held by long tasks ({expected}), while" in found

"""The contract of job stores, as far as it is about the children of runs, which handle parts of a page side by side."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace
from datetime import timedelta

import pytest

from opencqrs_py.jobs.ports import JobStore
from opencqrs_py.jobs.runs import JobRun, LastRuns, RunPosition, RunStatus
from opencqrs_py.processing.ports import Transactions
from opencqrs_py.testing.contracts.calls import begun, returned
from opencqrs_py.testing.contracts.job_records import (
    AFTER,
    BEFORE,
    JOB,
    MOMENT,
    NOON,
    RUNNING,
    SECONDS,
    STILL_WAITS,
    JobStores,
    ended,
    put,
)

CHILDREN = tuple(
    replace(RUNNING, id=f"{RUNNING.id}/{number}", parent=RUNNING.id, owner="job of Spark", ids=(number, number + 1))
    for number in (1, 3)
)


class JobChildrenContract(JobStores):
    """What a run relies on if several tasks handle its pages at once."""

    def test_children_appear_in_no_list(self, store: JobStore) -> None:
        put(store, RUNNING, ended(1, 1))
        assert store.spread(RUNNING, CHILDREN)
        with store.open([JOB]) as book:
            assert list(book.runs) == [RUNNING]
        assert list(store.look().runs) == [RUNNING]
        assert [run.id for run in store.history()] == ["run 1", RUNNING.id]
        assert [run.id for run in store.history(JOB)] == ["run 1", RUNNING.id]
        assert store.last_runs() == {JOB: LastRuns(ended(1, 1), ended(1, 1))}
        assert store.purge(JOB, NOON + timedelta(days=1)) == 0
        assert [store.find(child.id) for child in CHILDREN] == list(CHILDREN)

    def test_only_the_owner_of_a_run_can_spread_take_and_gather(self, store: JobStore) -> None:
        former, again = replace(RUNNING, token=6), replace(RUNNING, id="another")
        put(store, RUNNING, again)
        assert not store.spread(former, CHILDREN)
        assert store.find(CHILDREN[0].id) is None
        assert store.spread(RUNNING, CHILDREN)
        assert store.take_children(former, "another job") is None
        assert not store.gather(former, AFTER)
        assert store.gather(again, AFTER)
        assert store.take_children(again, "another job") == []
        assert [store.find(child.id) for child in CHILDREN] == list(CHILDREN)
        assert store.find(RUNNING.id) == RUNNING

    def test_taken_children_continue_after_what_was_recorded_last(self, store: JobStore, another: JobStore) -> None:
        put(store, RUNNING)
        assert store.spread(RUNNING, CHILDREN)
        assert another.advance(CHILDREN[1], AFTER)
        found = store.take_children(RUNNING, "another job")
        taken_ones = [replace(child, owner="another job", token=child.token + 1) for child in CHILDREN]
        assert found == [taken_ones[0], replace(taken_ones[1], position=AFTER)]
        assert not any(another.advance(child, RunPosition(after=9)) for child in CHILDREN)
        assert another.advance(found[0], BEFORE)
        assert store.find(found[0].id) == replace(found[0], position=BEFORE)

    def test_the_progress_of_children_is_gathered(self, store: JobStore) -> None:
        put(store, RUNNING)
        assert store.spread(RUNNING, CHILDREN)
        reported = replace(RUNNING, done=5)
        goes_on = replace(CHILDREN[1], position=RunPosition(after=6))
        assert store.gather(reported, BEFORE, [goes_on])
        assert store.find(RUNNING.id) == replace(reported, position=BEFORE)
        assert store.take_children(RUNNING, "job") == [replace(goes_on, token=goes_on.token + 1, owner="job")]
        assert store.gather(reported, AFTER)
        assert store.take_children(RUNNING, "job") == []
        assert not store.advance(CHILDREN[0], AFTER)

    def test_a_former_copy_of_a_child_gathers_nothing(self, store: JobStore, another: JobStore) -> None:
        put(store, RUNNING)
        assert store.spread(RUNNING, CHILDREN)
        copy = another.take_over(CHILDREN[0])
        assert copy is not None
        assert another.advance(copy, AFTER)
        assert store.gather(RUNNING, BEFORE, [replace(CHILDREN[0], position=BEFORE)])
        assert store.find(copy.id) == replace(copy, position=AFTER)

    @pytest.mark.parametrize("status", [RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED])
    def test_children_of_an_ended_run_commit_nothing(
        self, store: JobStore, another: JobStore, status: RunStatus
    ) -> None:
        other = replace(RUNNING, id="another")
        put(store, RUNNING, other)
        assert store.spread(RUNNING, CHILDREN)
        assert store.spread(other, [replace(CHILDREN[0], id="another/1", parent=other.id)])
        with another.open([JOB]) as book:
            book.put(next(run for run in book.runs if run.id == RUNNING.id).ended(status, NOON))
        assert not any(store.advance(child, AFTER) for child in CHILDREN)
        assert [store.find(child.id) for child in CHILDREN] == [None, None]
        assert store.find("another/1") is not None

    def test_ending_a_run_waits_for_open_commits_of_its_children(
        self, store: JobStore, another: JobStore, joined: Transactions
    ) -> None:
        put(store, RUNNING)
        assert store.spread(RUNNING, CHILDREN)

        def end() -> None:
            with another.open([JOB]) as book:
                book.put(book.runs[0].ended(RunStatus.CANCELLED, NOON))

        with joined.begin() as unit:
            assert store.advance(CHILDREN[0], AFTER, unit)
            ending = begun(self.at_last, another, end)
            wait([ending], MOMENT)
            assert not ending.done()
        returned(ending, SECONDS, STILL_WAITS)
        assert not store.advance(CHILDREN[0], AFTER)

    @pytest.mark.parametrize(
        "take",
        [
            lambda store: store.take_children(RUNNING, "another job")[0],
            lambda store: store.take_over(CHILDREN[0]),
        ],
        ids=["take_children", "take_over"],
    )
    def test_a_taken_child_continues_after_what_its_owner_commits_meanwhile(
        self, store: JobStore, another: JobStore, joined: Transactions, take: Callable[[JobStore], JobRun]
    ) -> None:
        put(store, RUNNING)
        assert store.spread(RUNNING, CHILDREN)
        with joined.begin() as unit:
            assert store.advance(CHILDREN[0], AFTER, unit)
            taking = begun(self.at_last, another, lambda: take(another))
            wait([taking], MOMENT)
            assert not taking.done()
        child = returned(taking, SECONDS, STILL_WAITS)
        assert (child.token, child.position) == (CHILDREN[0].token + 1, AFTER)
        assert store.find(child.id) == child
        assert not store.advance(CHILDREN[0], RunPosition(after=9))

    def test_of_two_copies_of_a_task_the_later_one_owns_the_child(self, store: JobStore, another: JobStore) -> None:
        put(store, RUNNING)
        first = CHILDREN[0]
        assert store.spread(RUNNING, CHILDREN)
        assert store.advance(first, BEFORE)
        copy = another.take_over(first)
        assert copy == replace(first, token=first.token + 1, position=BEFORE)
        assert not store.advance(first, AFTER)
        assert another.advance(copy, AFTER)
        assert store.take_children(RUNNING, "another job") is not None
        assert another.take_over(first) is None
        assert another.take_over(replace(first, id="nobody")) is None

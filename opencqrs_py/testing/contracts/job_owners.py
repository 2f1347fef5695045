"""The contract of job stores, as far as it is about the owners of runs: each run has one owner at a time."""

from __future__ import annotations

from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from opencqrs_py.errors import FencedError, JobError
from opencqrs_py.jobs.ports import JobStore
from opencqrs_py.jobs.runs import JobRun, RunPosition, RunStatus
from opencqrs_py.processing.ports import Transactions
from opencqrs_py.testing.contracts.calls import begun, returned
from opencqrs_py.testing.contracts.job_records import (
    AFTER,
    BEFORE,
    FULL,
    JOB,
    MOMENT,
    NOON,
    ODD,
    RUNNING,
    SECONDS,
    STILL_WAITS,
    JobStores,
    RolledBackError,
    put,
    put_taken,
    roll_back,
    taken,
)


class JobOwnersContract(JobStores):
    """What the owners of runs rely on, and the nodes that take runs over."""

    def test_an_owner_records_its_progress_and_nothing_else(self, store: JobStore, another: JobStore) -> None:
        put(store, FULL)
        stale = replace(RUNNING, id=FULL.id, token=FULL.token, done=3, total=9)
        assert another.advance(stale, AFTER)
        assert store.find(FULL.id) == replace(FULL, position=AFTER, done=3, total=9)
        assert another.advance(stale, AFTER)
        assert another.report(replace(stale, done=4, total=None))
        assert store.find(FULL.id) == replace(FULL, position=AFTER, done=4, total=None)

    @pytest.mark.parametrize(
        "recorded",
        [
            None,
            taken(RUNNING),
            replace(RUNNING, token=8),
            replace(RUNNING, token=6),
            replace(RUNNING, status=RunStatus.QUEUED),
            replace(RUNNING, status=RunStatus.CANCELLED, ended_at=NOON),
        ],
    )
    def test_a_run_of_another_owner_is_not_changed(self, store: JobStore, recorded: JobRun | None) -> None:
        store.prepare()
        if recorded is not None:
            put(store, recorded)
        assert not store.advance(RUNNING, AFTER)
        assert not store.report(replace(RUNNING, done=1))
        assert not store.report_wait(RUNNING, "no answer", 30)
        assert store.find(RUNNING.id) == recorded

    def test_an_owner_records_that_it_waits_and_why(self, store: JobStore, another: JobStore) -> None:
        put(store, RUNNING)
        begun = store.look().now
        assert another.report(replace(RUNNING, done=3))
        assert another.report_wait(RUNNING, ODD, 30)
        known = store.find(RUNNING.id)
        assert known is not None
        assert known.waits_until is not None
        assert begun <= known.waits_until - timedelta(seconds=30) <= store.look().now
        assert known == replace(RUNNING, done=3, error=ODD, waits_until=known.waits_until)

    def test_a_wait_of_a_run_that_is_asked_to_end_is_not_recorded(self, store: JobStore, another: JobStore) -> None:
        cancelled = replace(RUNNING, cancelled_at=NOON, reason="enough", actor="Ann")
        put(store, cancelled)
        assert not another.report_wait(RUNNING, "no answer", 30)
        assert store.find(RUNNING.id) == cancelled

    def test_progress_can_be_recorded_in_a_transaction(
        self, store: JobStore, another: JobStore, joined: Transactions
    ) -> None:
        put(store, RUNNING)
        with joined.begin() as unit:
            assert store.advance(RUNNING, AFTER, unit)
            assert another.find(RUNNING.id) == RUNNING
        assert another.find(RUNNING.id) == replace(RUNNING, position=AFTER)

    def test_progress_is_rolled_back_with_its_transaction(self, store: JobStore, joined: Transactions) -> None:
        put(store, RUNNING)
        with pytest.raises(RolledBackError), joined.begin() as unit:
            roll_back(store.advance(RUNNING, AFTER, unit))
        assert store.find(RUNNING.id) == RUNNING

    def test_progress_in_a_transaction_of_another_database_is_refused(
        self, store: JobStore, other_transactions: Transactions | None
    ) -> None:
        if other_transactions is None:
            pytest.skip("transactions of another database are not given")
        put(store, RUNNING)
        with other_transactions.begin() as unit, pytest.raises(JobError, match="OCQ-670"):
            store.advance(RUNNING, AFTER, unit)
        assert store.find(RUNNING.id) == RUNNING

    def test_an_owner_that_has_lost_its_run_rolls_back(
        self, store: JobStore, another: JobStore, joined: Transactions
    ) -> None:
        put(store, RUNNING, replace(RUNNING, id="mine"))
        with another.open([JOB]) as book:
            book.put(taken(RUNNING))

        def proceed() -> None:
            with joined.begin() as unit:
                assert store.advance(replace(RUNNING, id="mine"), AFTER, unit)
                if not store.advance(RUNNING, AFTER, unit):
                    raise FencedError

        with pytest.raises(FencedError):
            proceed()
        assert store.find("mine") == replace(RUNNING, id="mine")
        assert store.find(RUNNING.id) == taken(RUNNING)

    def test_a_run_taken_while_its_transaction_is_open_is_committed_once(
        self, store: JobStore, another: JobStore, joined: Transactions
    ) -> None:
        put(store, RUNNING)
        outcomes: list[bool] = []  # whether it was taken, and whether the owner has recorded what it has done

        def proceed() -> None:
            with joined.begin() as unit:
                assert unit.connection is not None
                outcomes.append(self.is_done(another, lambda: put_taken(another)))
                outcomes.append(store.advance(RUNNING, AFTER, unit))
                if not outcomes[1]:
                    raise FencedError

        with suppress(FencedError):
            proceed()
        is_taken, advanced = outcomes
        assert advanced is not is_taken
        expected = taken(RUNNING) if is_taken else replace(RUNNING, position=AFTER)
        assert store.find(RUNNING.id) == expected

    def test_the_new_owner_of_a_run_continues_after_what_the_old_owner_commits_meanwhile(
        self, store: JobStore, another: JobStore, joined: Transactions
    ) -> None:
        put(store, replace(RUNNING, position=BEFORE))
        with joined.begin() as unit:
            assert store.advance(replace(RUNNING, done=5), AFTER, unit)
            heir = begun(self.at_last, another, lambda: put_taken(another))
            wait([heir], MOMENT)
            assert not heir.done()
        started = returned(heir, SECONDS, STILL_WAITS)
        assert started == store.find(RUNNING.id) == replace(taken(RUNNING), position=AFTER, done=5)

    def test_progress_recorded_while_a_run_is_taken_reaches_the_new_owner_or_is_refused(
        self, store: JobStore, another: JobStore
    ) -> None:
        put(store, replace(RUNNING, position=BEFORE))
        with another.open([JOB]) as book:
            (read,) = book.runs
            owner = begun(store.advance, RUNNING, AFTER)
            wait([owner], MOMENT)
            book.put(taken(read))
            book.put(replace(book.runs[0], status=RunStatus.RUNNING, owner="node 2", token=read.token + 2))
            (started,) = book.runs
        recorded = returned(owner, SECONDS, STILL_WAITS)
        assert started.position == (AFTER if recorded else BEFORE)
        assert store.find(RUNNING.id) == started
        assert store.advance(started, RunPosition(after=9))

    def test_progress_recorded_while_a_run_is_cancelled_is_kept_with_the_request_to_cancel(
        self, store: JobStore, another: JobStore
    ) -> None:
        put(store, replace(RUNNING, position=BEFORE))
        with another.open([JOB]) as book:
            (read,) = book.runs
            owner = begun(store.advance, replace(RUNNING, done=5), AFTER)
            wait([owner], MOMENT)
            wished = replace(read, cancelled_at=NOON, reason="too late", actor="Zoë")
            book.put(wished)
        assert returned(owner, SECONDS, STILL_WAITS)
        assert store.find(RUNNING.id) == replace(wished, position=AFTER, done=5)
        assert store.advance(replace(RUNNING, done=6), RunPosition(after=9))
        assert store.find(RUNNING.id) == replace(wished, position=RunPosition(after=9), done=6)

    def test_an_ended_run_keeps_the_progress_recorded_last(self, store: JobStore, another: JobStore) -> None:
        put(store, replace(RUNNING, position=BEFORE))
        with another.open([JOB]) as book:
            (read,) = book.runs
            owner = begun(store.advance, RUNNING, AFTER)
            wait([owner], MOMENT)
            book.put(read.ended(RunStatus.CANCELLED, NOON, "it did not end"))
        recorded = returned(owner, SECONDS, STILL_WAITS)
        found = store.find(RUNNING.id)
        assert found is not None
        assert (found.status, found.position) == (RunStatus.CANCELLED, AFTER if recorded else BEFORE)
        assert not store.advance(RUNNING, RunPosition(after=9))

    def test_the_end_of_an_attempt_sets_the_position_itself(self, store: JobStore) -> None:
        put(store, replace(RUNNING, position=BEFORE))
        assert store.advance(RUNNING, AFTER)
        again = RunPosition(failed=(), only=(4,))
        with store.open([JOB]) as book:
            (read,) = book.runs
            assert read.position == AFTER
            book.put(replace(taken(read), position=again))
            assert book.runs[0].position == again
        assert store.find(RUNNING.id) == replace(taken(RUNNING), position=again)

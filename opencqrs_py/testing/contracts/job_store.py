"""The contract of job stores: what is recorded of jobs and runs, and that decisions about a job follow each other."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from opencqrs_py.jobs.ports import JobBook, JobStore
from opencqrs_py.jobs.runs import JobRecord, JobRun, LastRuns, RunPosition, RunStatus
from opencqrs_py.processing.ports import Transactions
from opencqrs_py.testing.contracts.calls import begun, returned
from opencqrs_py.testing.contracts.job_children import JobChildrenContract
from opencqrs_py.testing.contracts.job_owners import JobOwnersContract
from opencqrs_py.testing.contracts.job_records import (
    FULL,
    JOB,
    LONG,
    MOMENT,
    NOON,
    ODD,
    OTHER,
    QUEUED,
    REQUESTED,
    RUNNING,
    SECONDS,
    STILL_WAITS,
    RolledBackError,
    cancelled,
    ended,
    put,
    roll_back,
)


class JobStoreContract(JobOwnersContract, JobChildrenContract):
    """What the desk of jobs, and the owners of runs, rely on.

    Give ``store``, which is empty; ``another``, which sees the same as a second process would; and, if a run can be
    recorded in one, ``transactions`` of the same database, and ``other_transactions`` of another one.
    """

    # Looks

    def test_a_new_store_is_empty(self, store: JobStore) -> None:
        view = store.look()
        assert (dict(view.records), view.runs) == ({}, ())
        assert (store.find("run"), store.history(), store.last_runs(), store.purge(JOB, NOON)) == (None, [], {}, 0)

    def test_the_clock_of_the_store_is_in_utc_and_never_goes_back(self, store: JobStore) -> None:
        before = store.look().now
        store.prepare()
        store.prepare()
        with store.open([JOB]) as book:
            now = book.now
        assert before <= now <= store.look(()).now
        assert abs(datetime.now(UTC) - now) < timedelta(hours=1)
        assert now.utcoffset() == timedelta()

    def test_a_look_shows_only_the_named_jobs(self, store: JobStore) -> None:
        put(store, QUEUED, replace(QUEUED, id="2", job=OTHER))
        assert set(store.look().records) == {JOB, OTHER}
        seen = store.look([OTHER])
        assert (dict(seen.records), [run.id for run in seen.runs]) == ({OTHER: JobRecord(OTHER)}, ["2"])
        for names in ([], ["nobody"]):
            seen = store.look(names)
            assert (dict(seen.records), seen.runs) == ({}, ())

    def test_runs_are_listed_in_the_order_of_their_requests(self, store: JobStore) -> None:
        late, ids = replace(QUEUED, id="0", requested_at=NOON + timedelta(seconds=1)), ["b", "Z", "é", "a", "😀"]
        put(store, late, *(replace(QUEUED, id=id_) for id_ in ids))
        expected = [*sorted(ids), "0"]
        assert [run.id for run in store.look().runs] == expected
        assert [run.id for run in store.history()] == expected[::-1]
        with store.open([JOB]) as book:
            assert [run.id for run in book.runs] == expected

    # Decisions

    @pytest.mark.parametrize("run", [FULL, QUEUED, replace(FULL, ids=(1, -(2**60))), replace(QUEUED, ids=())])
    def test_a_run_is_stored_unchanged(self, store: JobStore, another: JobStore, run: JobRun) -> None:
        put(store, run)
        assert another.find(run.id) == run
        assert another.look().runs == (run,)
        assert another.history() == [run]
        with another.open([JOB]) as book:
            assert list(book.runs) == [run]

    @pytest.mark.parametrize("status", [RunStatus.RUNNING, RunStatus.RETRYING, RunStatus.QUEUED, RunStatus.FAILED])
    def test_a_known_run_is_changed_as_a_whole(self, store: JobStore, another: JobStore, status: RunStatus) -> None:
        changed = replace(FULL, status=status, ended_at=NOON if status is RunStatus.FAILED else None)
        put(store, REQUESTED)
        with another.open([JOB]) as book:
            assert book.put(changed) == changed
        assert store.find(FULL.id) == changed
        if status in (RunStatus.RETRYING, RunStatus.QUEUED):
            put(another, replace(REQUESTED, token=FULL.token + 1))
            assert store.find(FULL.id) == replace(REQUESTED, token=FULL.token + 1)

    @pytest.mark.parametrize("ids", [(1, 2), ("1", "2"), (), None])
    def test_ids_keep_their_type(self, store: JobStore, ids: tuple[int, ...] | tuple[str, ...] | None) -> None:
        position = RunPosition(ids[0] if ids else None, failed=ids or (), only=ids)
        put(store, replace(RUNNING, ids=ids))
        assert store.advance(RUNNING, position)
        found = store.find(RUNNING.id)
        assert found is not None
        assert (found.ids, found.position) == (ids, position)

    @pytest.mark.parametrize(
        "record",
        [
            JobRecord(JOB, "cron '0 0 * * *' Europe/Berlin", NOON, NOON + timedelta(milliseconds=1), "Zoë", ODD, NOON),
            JobRecord(JOB, schedule="fixed-delay 5 s"),
        ],
    )
    def test_a_record_is_stored_unchanged(self, store: JobStore, another: JobStore, record: JobRecord) -> None:
        with store.open([JOB]) as book:
            assert book.records[JOB] == JobRecord(JOB)
            book.put_record(record)
            assert book.records[JOB] == record
        assert another.look().records[JOB] == record
        with another.open([JOB]) as book:
            assert book.records[JOB] == record
            book.put_record(JobRecord(JOB))
        assert store.look().records[JOB] == JobRecord(JOB)

    def test_a_change_is_visible_within_its_block_at_once(self, store: JobStore) -> None:
        put(store, QUEUED)
        with store.open([JOB, OTHER]) as book:
            assert set(book.records) == {JOB, OTHER}
            new = replace(QUEUED, id="new", requested_at=NOON - timedelta(seconds=1))
            book.put(new)
            assert list(book.runs) == [new, QUEUED]
            book.put(QUEUED.ended(RunStatus.SKIPPED, NOON))
            assert list(book.runs) == [new]
        assert store.look().runs == (new,)

    def test_a_block_sees_only_runs_of_the_named_jobs(self, store: JobStore) -> None:
        put(store, QUEUED, replace(QUEUED, id="2", job=OTHER), ended(3, 1))
        with store.open([OTHER]) as book:
            assert [run.id for run in book.runs] == ["2"]
        with store.open([]) as book:
            assert (list(book.runs), dict(book.records)) == ([], {})

    def test_a_block_that_raises_writes_nothing_and_ends(self, store: JobStore, another: JobStore) -> None:
        put(store, QUEUED)

        def put_all(book: JobBook) -> bool:
            book.put(QUEUED.ended(RunStatus.SKIPPED, NOON))
            book.put(replace(QUEUED, id="new"))
            book.put_record(JobRecord(JOB, "other"))
            return True

        def seen() -> tuple[list[JobRun], JobRecord]:
            with another.open([JOB]) as book:
                return list(book.runs), book.records[JOB]

        with pytest.raises(RolledBackError), store.open([JOB]) as book:
            roll_back(put_all(book))
        found = returned(begun(seen), SECONDS, "open() waits for a block that has raised")
        assert found == ([QUEUED], JobRecord(JOB))
        assert another.history() == [QUEUED]
        assert another.look().records[JOB] == JobRecord(JOB)

    def test_a_second_caller_waits_for_the_first_and_sees_what_it_wrote(
        self, store: JobStore, another: JobStore
    ) -> None:
        put(store, QUEUED)

        def seen() -> list[JobRun]:
            with another.open([JOB, OTHER]) as book:
                return list(book.runs)

        with store.open([OTHER, JOB]) as book:
            second = begun(self.at_last, another, seen)
            wait([second], MOMENT)
            assert not second.done()
            book.put(QUEUED.ended(RunStatus.SKIPPED, NOON))
        assert returned(second, SECONDS, STILL_WAITS) == []

    def test_a_look_waits_for_no_open_block_and_sees_nothing_of_it(self, store: JobStore, another: JobStore) -> None:
        put(store, QUEUED)
        with store.open([JOB]) as book:
            book.put(QUEUED.ended(RunStatus.SKIPPED, NOON))
            book.put_record(JobRecord(JOB, "other"))
            for names in ([JOB], None):
                seen = returned(begun(another.look, names), SECONDS, "look() waits for an open block")
                assert (dict(seen.records), list(seen.runs)) == ({JOB: JobRecord(JOB)}, [QUEUED])
        assert list(another.look().runs) == []

    def test_no_concurrent_decision_is_lost(self, store: JobStore, another: JobStore) -> None:
        def count(number: int) -> None:
            own = (store, another)[number % 2]

            def add() -> None:
                with own.open([JOB, OTHER][:: 1 if number % 3 else -1]) as book:
                    before = book.records[JOB]
                    book.put_record(replace(before, reason=str(int(before.reason or 0) + 1)))

            for _ in range(5):
                self.at_last(own, add)

        for each in [begun(count, number) for number in range(4)]:
            returned(each, LONG, STILL_WAITS)
        assert store.look().records[JOB].reason == "20"

    @pytest.mark.parametrize(
        "recorded", [QUEUED, RUNNING, ended(1, 1), replace(ended(1, 1), job=OTHER)], ids=lambda run: run.status
    )
    def test_a_recorded_run_is_not_begun_again_as_a_new_one(self, store: JobStore, recorded: JobRun) -> None:
        put(store, recorded)
        new = replace(RUNNING, id=recorded.id, job=JOB, requested_at=NOON + timedelta(seconds=1))
        with store.open([JOB]) as book:
            known = any(run.id == recorded.id for run in book.runs)
            if not known:
                assert set(book.recorded([recorded.id, "new"])) == {recorded.id}
                book.put(new)
                book.put(replace(new, id="new"))
            assert set(book.recorded([recorded.id, "new", "none"])) == {recorded.id, *([] if known else ["new"])}
            assert set(book.recorded([])) == set()
        if not known:
            assert list(book.known) == [recorded.id]
            assert store.find(recorded.id) == recorded
            assert store.find("new") is not None

    @pytest.mark.parametrize(
        ("recorded", "ahead", "is_replaced"),
        [
            (QUEUED.ended(RunStatus.COALESCED, NOON, into="another"), True, True),
            (QUEUED.ended(RunStatus.SKIPPED, NOON, "it was missed"), True, True),
            (QUEUED.ended(RunStatus.SKIPPED, NOON, "it was missed"), False, False),
            (QUEUED.ended(RunStatus.CANCELLED, NOON, "not needed"), True, False),
            (ended(1, 1), True, False),
            (replace(ended(1, 1), status=RunStatus.SKIPPED), True, False),
        ],
        ids=["coalesced", "skipped", "by this clock", "cancelled", "succeeded", "skipped after its begin"],
    )
    def test_a_run_replaces_one_that_started_nothing_while_the_clock_was_ahead(
        self, store: JobStore, recorded: JobRun, *, ahead: bool, is_replaced: bool
    ) -> None:
        now = store.look(()).now
        moment = now.replace(microsecond=0) + timedelta(hours=1 if ahead else -1)
        recorded = replace(recorded, requested_at=moment)
        put(store, recorded)
        new = replace(RUNNING, id=recorded.id, requested_at=NOON)
        with store.open([JOB]) as book:
            assert set(book.recorded([new.id])) == (set() if is_replaced else {new.id})
            book.put(new)
        assert list(book.known) == ([] if is_replaced else [recorded.id])
        assert store.find(recorded.id) == (new if is_replaced else recorded)

    @pytest.mark.parametrize("names", [["x", "X", "x "], ["ä", "a", "A", "Ä"], ["j" * 490, "j" * 489 + "k"]])
    def test_names_and_ids_are_compared_character_by_character(self, store: JobStore, names: list[str]) -> None:
        put(store, *(replace(QUEUED, id=f"{name}@1", job=name) for name in names))
        for name in names:
            assert [run.id for run in store.look([name]).runs] == [f"{name}@1"]
            assert [run.id for run in store.history(name)] == [f"{name}@1"]
            assert (store.find(f"{name}@1") or QUEUED).job == name

    def test_many_runs_are_written_and_found(self, store: JobStore) -> None:
        runs = [
            replace(QUEUED, id=str(n), ids=tuple(range(n)), requested_at=NOON + timedelta(seconds=n))
            for n in range(1_100)
        ]
        put(store, *runs)
        assert store.look().runs == tuple(runs)
        assert [run.id for run in store.history(limit=2)] == ["1099", "1098"]
        newest = [str(n) for n in range(1_099, 999, -1)]
        assert [run.id for run in store.history()] == [run.id for run in store.history(JOB)] == newest
        put(store, *(run.ended(RunStatus.COALESCED, NOON, into="other") for run in runs[1:]))
        assert store.look().runs == (runs[0],)

    def test_a_run_with_very_many_ids_is_stored(self, store: JobStore) -> None:
        run = replace(RUNNING, ids=tuple(f"größe {n}" for n in range(20_000)))
        put(store, run)
        assert store.find(run.id) == run
        position = RunPosition(run.ids[-1] if run.ids else None, only=run.ids)
        assert store.advance(run, position)
        assert (store.find(run.id) or QUEUED).position == position

    # Requests

    def test_a_request_is_stored_unchanged_but_for_the_time_of_the_stores_clock(
        self, store: JobStore, another: JobStore
    ) -> None:
        before = store.look().now
        assert store.request(REQUESTED)
        (found,) = another.look().runs
        assert before <= found.requested_at <= another.look().now
        assert replace(found, requested_at=NOON) == REQUESTED

    @pytest.mark.parametrize("recorded", [RUNNING, replace(ended(1, 1), id=RUNNING.id), replace(RUNNING, job=OTHER)])
    def test_a_second_request_with_the_same_id_changes_nothing(self, store: JobStore, recorded: JobRun) -> None:
        put(store, recorded)
        assert not store.request(replace(QUEUED, reason="again"))
        assert store.find(RUNNING.id) == recorded

    def test_of_concurrent_requests_with_the_same_id_one_is_new(self, store: JobStore, another: JobStore) -> None:
        store.prepare()
        another.prepare()

        def ask(number: int) -> bool:
            own = (store, another)[number % 2]
            return self.at_last(own, lambda: own.request(replace(QUEUED, actor=str(number))))

        asked = [begun(ask, number) for number in range(4)]
        assert sorted(returned(each, LONG, STILL_WAITS) for each in asked) == [False, False, False, True]

    def test_a_request_can_be_made_in_a_transaction(
        self, store: JobStore, another: JobStore, joined: Transactions
    ) -> None:
        store.prepare()
        with joined.begin() as unit:
            assert store.request(REQUESTED, unit)
            assert another.look().runs == ()
        assert [replace(run, requested_at=NOON) for run in another.look().runs] == [REQUESTED]

    def test_a_request_is_rolled_back_with_its_transaction(self, store: JobStore, joined: Transactions) -> None:
        store.prepare()
        with pytest.raises(RolledBackError), joined.begin() as unit:
            roll_back(store.request(QUEUED, unit))
        assert store.look().runs == ()
        assert store.request(QUEUED)

    def test_a_duplicate_request_does_not_end_the_transaction(self, store: JobStore, joined: Transactions) -> None:
        put(store, RUNNING)
        with joined.begin() as unit:
            assert store.request(replace(QUEUED, id="1"), unit)
            assert not store.request(QUEUED, unit)
            assert not store.request(replace(QUEUED, id="1"), unit)
            assert store.request(replace(QUEUED, id="2"), unit)
        assert sorted(run.id for run in store.look().runs) == ["1", "2", RUNNING.id]
        assert store.find(RUNNING.id) == RUNNING

    # History

    def test_history_shows_the_newest_first(self, store: JobStore) -> None:
        put(store, *(ended(n, 1, (JOB, OTHER)[n % 2]) for n in range(6)))
        assert [run.id for run in store.history()] == [f"run {n}" for n in (5, 4, 3, 2, 1, 0)]
        assert [run.id for run in store.history(limit=2)] == ["run 5", "run 4"]
        assert [run.id for run in store.history(OTHER, 2)] == ["run 5", "run 3"]
        assert store.history("nobody") == []

    def test_the_last_run_that_began_and_ended_is_known(self, store: JobStore) -> None:
        runs = [ended(1, 9), ended(2, 7), ended(3, 11, began=False), ended(4, 5, OTHER), ended(5, 9)]
        put(store, *runs, replace(RUNNING, requested_at=NOON + timedelta(hours=1)))
        put(store, replace(QUEUED, id="6", job="new"), ended(7, 1, "skipped", began=False))
        assert store.last_runs() == {JOB: LastRuns(runs[4], runs[4]), OTHER: LastRuns(runs[3], runs[3])}

    @pytest.mark.parametrize("outcome", [RunStatus.SUCCEEDED, RunStatus.FAILED])
    def test_the_last_outcome_stays_known_while_later_runs_are_cancelled(
        self, store: JobStore, outcome: RunStatus
    ) -> None:
        known, later = replace(ended(2, 3), status=outcome), [cancelled(n, n) for n in (4, 5, 6)]
        put(store, ended(1, 2), known, ended(3, 9, began=False), *later, cancelled(7, 7, OTHER))
        last = {JOB: LastRuns(later[-1], known), OTHER: LastRuns(cancelled(7, 7, OTHER), None)}
        assert store.last_runs() == last
        assert store.purge(JOB, NOON + timedelta(hours=1)) == 4
        assert store.purge(OTHER, NOON + timedelta(hours=1)) == 0
        assert store.last_runs() == last

    def test_an_outcome_and_a_cancelled_run_of_the_same_time_are_distinguished(self, store: JobStore) -> None:
        put(store, ended(1, 5), ended(2, 5), cancelled(3, 5))
        assert store.last_runs() == {JOB: LastRuns(cancelled(3, 5), ended(2, 5))}
        assert store.purge(JOB, NOON + timedelta(hours=1)) == 1
        assert store.last_runs() == {JOB: LastRuns(cancelled(3, 5), ended(2, 5))}

    def test_purging_removes_runs_that_ended_before_a_time_except_the_last(self, store: JobStore) -> None:
        put(store, ended(1, 1), ended(2, 5), ended(3, 6, began=False), ended(4, 6), ended(5, 7), ended(6, 1, OTHER))
        put(store, QUEUED, replace(RUNNING, id="running"), ended(7, 6, began=False), ended(0, 0, OTHER))
        assert store.purge(JOB, NOON + timedelta(minutes=6)) == 2
        left = ["run 0", "run 3", "run 4", "run 5", "run 6", "run 7", QUEUED.id, "running"]
        assert sorted(run.id for run in store.history()) == sorted(left)
        assert store.purge(JOB, NOON + timedelta(hours=1)) == 3
        assert sorted(run.id for run in store.history(JOB)) == sorted(["run 5", QUEUED.id, "running"])
        assert store.purge(JOB, NOON + timedelta(hours=1)) == 0
        assert sorted(run.id for run in store.history(OTHER)) == ["run 0", "run 6"]
        assert set(store.last_runs()) == {JOB, OTHER}
        assert store.purge(OTHER, NOON + timedelta(hours=1)) == 1

    def test_purging_removes_all_old_runs_of_a_job_that_never_ran(self, store: JobStore) -> None:
        put(store, *(ended(n, 1, began=False) for n in range(30)))
        assert store.purge(JOB, NOON + timedelta(minutes=1)) == 0
        assert store.purge(JOB, NOON + timedelta(minutes=2)) == 30
        assert store.history() == []

    def test_an_error_of_a_job_is_not_an_outage(self, store: JobStore) -> None:
        assert not store.is_outage(ValueError("no"))

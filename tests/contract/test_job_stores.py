"""The contract of job stores, kept by each of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text

from opencqrs_py.adapters.memory import InMemoryJobStore, NoTransactions
from opencqrs_py.adapters.sql import Database, DatabaseTransactions, SqlJobStore, jobs
from opencqrs_py.adapters.sql.dialects.faults import DatabaseAwayError, DatabaseBusyError
from opencqrs_py.jobs.desk import Ending, JobDesk, Worker
from opencqrs_py.jobs.ports import JobBook, JobStore
from opencqrs_py.jobs.rules import JobRule, Meeting, Ticking
from opencqrs_py.jobs.runs import JobRecord, JobRun, RunPosition, RunStatus
from opencqrs_py.jobs.sitting import MOST_DEATHS, tick_id
from opencqrs_py.model.choices import Overlap, OverlapScope
from opencqrs_py.model.job import Trigger
from opencqrs_py.processing.inbox.schedules import FixedRate
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.testing.contracts import JobStoreContract
from opencqrs_py.testing.contracts.job_records import (
    AFTER,
    BEFORE,
    FULL,
    JOB,
    NOON,
    OTHER,
    QUEUED,
    RUNNING,
    cancelled,
    ended,
    put,
    put_taken,
    taken,
)

SECONDS = 60  # longest wait for another thread
Noted = Callable[[Callable[[str, Any], None]], AbstractContextManager[None]]
POSTGRESQL = pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
SERVERS = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("postgresql", "mariadb")]
)


class RepeatedTicks:
    """What the desk does when ticks repeat, as the clock was ahead and has been corrected."""

    @pytest.mark.release(kind=("postgresql", "mariadb"))
    @pytest.mark.parametrize(
        ("overlap", "requests", "statuses"),
        [
            (Overlap.SKIP, ["late"], ["running"]),
            (Overlap.QUEUE, ["early", "late"], ["running", "queued"]),
            (Overlap.CANCEL, ["early"], ["running"]),
        ],
        ids=lambda value: value.value if isinstance(value, Overlap) else "",
    )
    @pytest.mark.parametrize("replaces", [False, True], ids=["same schedule", "another schedule"])
    def test_a_repeated_tick_whose_run_has_ended_decides_about_no_other_run(
        self, store: JobStore, overlap: Overlap, requests: list[str], statuses: list[str], *, replaces: bool
    ) -> None:
        desk, tick = desk_and_tick(store, overlap)
        put(store, tick_run(tick))
        for request in requests:
            store.request(replace(QUEUED, id=request))
            if request == "early":
                attend(desk, frozenset())
        with store.open([JOB]) as book:
            book.put_record(JobRecord(JOB, "before" if replaces else "hourly", tick))
        attend(desk)
        found = [run for each in requests if (run := store.find(each)) is not None]
        assert [run.status.value for run in found] == statuses
        assert {(run.reason, run.cancelled_at) for run in found} == {("", None)}
        assert store.find(tick_run(tick).id) == tick_run(tick)

    @pytest.mark.release(kind=("postgresql", "mariadb"))
    @pytest.mark.parametrize("ended", [[0], [0, 1], [0, 3], [0, 1, 2, 3]], ids=str)
    def test_missed_ticks_are_coalesced_into_the_newest_whose_run_has_not_ended(
        self, store: JobStore, ended: list[int]
    ) -> None:
        desk, newest = desk_and_tick(store)
        ticks = [newest - timedelta(hours=number) for number in range(4)]
        put(store, *(tick_run(ticks[number]) for number in ended))
        with store.open([JOB]) as book:
            book.put_record(JobRecord(JOB, "hourly", ticks[-1]))
        new = [tick for number, tick in enumerate(ticks) if number not in ended]
        assert [run.scheduled_at for run in attend(desk)] == new[:1]
        coalesced = [run for run in store.history() if run.status is RunStatus.COALESCED]
        assert sorted(run.id for run in coalesced) == sorted(tick_run(tick).id for tick in new[1:])
        assert {run.into for run in coalesced} <= {tick_run(tick).id for tick in new[:1]}

    @pytest.mark.release(kind=("postgresql", "mariadb"))
    @pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE])
    @pytest.mark.parametrize("status", [RunStatus.QUEUED, RunStatus.RUNNING])
    def test_missed_ticks_are_coalesced_into_the_open_run_of_the_newest_tick(
        self, store: JobStore, overlap: Overlap, status: RunStatus
    ) -> None:
        desk, newest = desk_and_tick(store, overlap)
        ticks = [newest - timedelta(hours=number) for number in range(4)]
        of_newest = replace(RUNNING if status is RunStatus.RUNNING else QUEUED, id=tick_id(JOB, newest))
        put(store, replace(of_newest, trigger=Trigger.SCHEDULE, scheduled_at=newest))
        with store.open([JOB]) as book:
            book.put_record(JobRecord(JOB, "hourly", ticks[-1]))
        attend(desk)
        coalesced = {run.id: run.into for run in store.history() if run.status is RunStatus.COALESCED}
        assert coalesced == {tick_id(JOB, tick): of_newest.id for tick in ticks[1:]}
        found = store.find(of_newest.id)
        assert found is not None
        assert found.status is RunStatus.RUNNING


def desk_and_tick(store: JobStore, overlap: Overlap = Overlap.SKIP) -> tuple[JobDesk, datetime]:
    """Return a desk with an hourly job, and its tick of a minute ago."""
    ticking = Ticking(FixedRate(3_600, 3_600), "hourly")
    rules = {JOB: JobRule(JOB, ticking, Meeting(overlap))}
    return JobDesk(store, rules), store.look(()).now.replace(microsecond=0) - timedelta(minutes=1)


def tick_run(tick: datetime) -> JobRun:
    """Return the run of a tick, which has succeeded."""
    run = replace(RUNNING, id=tick_id(JOB, tick), trigger=Trigger.SCHEDULE, scheduled_at=tick)
    return run.ended(RunStatus.SUCCEEDED, NOON)


def attend(desk: JobDesk, ticks_of: frozenset[str] = frozenset({JOB})) -> list[JobRun]:
    return desk.attend(Worker("here", "here", frozenset({"here"}), 9, ticks_of, lambda: {"here"}))


class TestInMemoryJobStore(RepeatedTicks, JobStoreContract):
    @pytest.fixture
    def store(self) -> InMemoryJobStore:
        return InMemoryJobStore()


@pytest.mark.few(  # runs are one column, whatever they are
    "test_names_and_ids_are_compared_character_by_character", kind=("postgresql", "mariadb")
)
class TestSqlJobStore(RepeatedTicks, JobStoreContract):
    @pytest.fixture
    def store(self, database: Database) -> SqlJobStore:
        return SqlJobStore(database)

    @pytest.fixture
    def another(self, open_database: Callable[[], Database]) -> SqlJobStore:
        return SqlJobStore(open_database())

    @pytest.fixture
    def transactions(self, database: Database) -> DatabaseTransactions:
        return DatabaseTransactions(database)

    @pytest.fixture
    def other_transactions(self, tmp_path: Path) -> Iterator[DatabaseTransactions]:
        other = Database(f"sqlite:///{tmp_path / 'other.db'}")
        yield DatabaseTransactions(other)
        other.close()


def sent_by(noted_statements: Noted, call: Callable[[], object]) -> list[str]:
    """Return the first words of the statements of a call, but for those that begin a transaction."""
    sent: list[str] = []
    with noted_statements(lambda statement, _values: sent.append(statement.split()[0])):
        call()
    return [word for word in sent if word not in {"BEGIN", "START", "PRAGMA"}]


@pytest.fixture
def store(database: Database) -> SqlJobStore:
    return SqlJobStore(database)


@pytest.fixture
def another(open_database: Callable[[], Database]) -> SqlJobStore:
    return SqlJobStore(open_database())


@pytest.fixture
def transactions(database: Database) -> DatabaseTransactions:
    return DatabaseTransactions(database)


# Tables


def test_a_look_creates_nothing(store: SqlJobStore, database: Database, noted_statements: Noted) -> None:
    assert len(sent_by(noted_statements, store.look)) == 2
    store.look([JOB])
    store.look([])
    store.find("run")
    store.history()
    store.last_runs()
    store.purge(JOB, NOON)
    with database.reading() as connection:
        assert inspect(connection).get_table_names() == []
    assert abs(datetime.now(UTC) - store.look().now) < timedelta(minutes=5)


def test_the_first_use_creates_the_tables_with_their_indexes(
    store: SqlJobStore, another: SqlJobStore, database: Database
) -> None:
    store.prepare()
    another.prepare()
    with database.reading() as connection:
        assert sorted(inspect(connection).get_table_names()) == [
            "opencqrs_job_runs",
            "opencqrs_jobs",
            "opencqrs_schema",
        ]
        indexes = {index["name"] for index in inspect(connection).get_indexes("opencqrs_job_runs")}
    assert indexes == {f"opencqrs_job_runs_{name}" for name in ("open", "newest", "of_job", "ran", "children")}


def test_rows_of_jobs_deleted_by_hand_are_created_again(store: SqlJobStore, database: Database) -> None:
    put(store, QUEUED)
    with database.writing() as connection:
        connection.execute(text("DELETE FROM opencqrs_jobs"))
    with store.open([JOB]) as book:
        assert book.runs == [QUEUED]
    assert store.look().records == {JOB: JobRecord(JOB)}


def test_values_that_a_newer_package_added_to_a_row_are_ignored(store: SqlJobStore, database: Database) -> None:
    put(store, FULL)
    with database.writing() as connection:
        for table, column in (("jobs", "details"), ("job_runs", "details"), ("job_runs", "position")):
            (found,) = connection.execute(text(f"SELECT {column} FROM opencqrs_{table}")).scalars()
            newer = json.dumps({**json.loads(found), "newer": 1})
            connection.execute(text(f"UPDATE opencqrs_{table} SET {column} = :newer"), {"newer": newer})
    assert store.look().runs == (FULL,)


def test_a_position_stored_by_an_older_package_is_read(store: SqlJobStore, database: Database) -> None:
    older = RunPosition(5, items=3, failed=(2,), only=(2, 5), error="2: no")
    put(store, replace(RUNNING, position=replace(older, gone=1, unmet=2, rest="a limit")))
    with database.writing() as connection:
        (found,) = connection.execute(text("SELECT position FROM opencqrs_job_runs")).scalars()
        kept = {name: value for name, value in json.loads(found).items() if name not in {"gone", "unmet", "rest"}}
        connection.execute(text("UPDATE opencqrs_job_runs SET position = :kept"), {"kept": json.dumps(kept)})
    assert store.look().runs == (replace(RUNNING, position=older),)


# Costs


def test_a_look_takes_one_statement_however_many_jobs_there_are(store: SqlJobStore, noted_statements: Noted) -> None:
    for number in range(30):
        put(store, replace(QUEUED, id=str(number), job=f"job {number}"))
    for names in (None, [f"job {number}" for number in range(30)]):
        assert sent_by(noted_statements, lambda names=names: store.look(names)) == ["SELECT"]
    assert len(store.look().runs) == 30


BOUND = {"postgresql": (["SELECT"], []), "mariadb": (["SET"], ["SET"])}
"""What it costs on a server to have it end a decision in which this process is frozen, before and after."""


def of_decision(kind: str, *statements: str) -> list[str]:
    """Return the statements of a decision, including those that limit its time."""
    before, after = BOUND.get(kind, ([], []))
    return [*before, *statements, *after]


def test_a_decision_takes_two_statements_and_one_for_each_changed_row(
    kind: str, store: SqlJobStore, noted_statements: Noted
) -> None:
    jobs = [JOB, OTHER]
    put(store, QUEUED, replace(QUEUED, id="other", job=OTHER))

    def decide(*changes: JobRun | JobRecord) -> list[str]:
        def decided() -> None:
            with store.open(jobs) as book:
                for change in changes:
                    book.put_record(change) if isinstance(change, JobRecord) else book.put(change)

        return sent_by(noted_statements, decided)

    def held(*more: str) -> list[str]:
        return of_decision(kind, "SELECT", "SELECT", *more)

    assert decide() == held()
    assert decide(QUEUED, JobRecord(JOB)) == held()
    assert decide(replace(QUEUED, reason="a"), RUNNING) == held("UPDATE")
    assert decide(replace(RUNNING, cancelled_at=NOON), JobRecord(OTHER, "text")) == held("UPDATE", "UPDATE")
    new = replace(QUEUED, id="new")
    assert decide(new, replace(RUNNING, id="new")) == held("INSERT")
    assert decide(RUNNING.ended(RunStatus.SUCCEEDED, NOON)) == held("UPDATE", "DELETE")  # of its children


def test_taking_a_run_from_its_owner_takes_one_more_statement(
    kind: str, store: SqlJobStore, noted_statements: Noted
) -> None:
    put(store, RUNNING)

    def take() -> None:
        with store.open([JOB]) as book:
            book.put(taken(RUNNING))
            book.put(replace(book.runs[0], status=RunStatus.RUNNING, token=9, owner="node 2"))

    assert sent_by(noted_statements, take) == of_decision(kind, "SELECT", "SELECT", "SELECT", "UPDATE")


def test_each_call_of_an_owner_takes_one_statement(
    store: SqlJobStore, transactions: DatabaseTransactions, noted_statements: Noted
) -> None:
    put(store, RUNNING)
    assert sent_by(noted_statements, lambda: store.advance(RUNNING, AFTER)) == ["UPDATE"]
    assert sent_by(noted_statements, lambda: store.report(RUNNING)) == ["UPDATE"]
    assert sent_by(noted_statements, lambda: store.request(replace(QUEUED, id="new"))) == ["INSERT"]
    with transactions.begin() as unit:
        assert sent_by(noted_statements, lambda: store.advance(RUNNING, BEFORE, unit)) == ["UPDATE"]
        assert sent_by(noted_statements, lambda: store.request(replace(QUEUED, id="newer"), unit)) == ["INSERT"]
    assert sent_by(noted_statements, lambda: store.find("new")) == ["SELECT"]
    assert sent_by(noted_statements, lambda: store.history(JOB)) == ["SELECT"]


def test_reading_the_last_runs_takes_two_statements(store: SqlJobStore, noted_statements: Noted) -> None:
    put(store, *(ended(number, number, f"job {number % 7}") for number in range(70)))
    put(store, *(cancelled(number, number, f"job {number % 7}") for number in range(70, 74)))
    assert sent_by(noted_statements, store.last_runs) == ["SELECT", "SELECT"]
    last = store.last_runs().values()
    assert {each.ended.id for each in last} == {f"run {number}" for number in range(67, 74)}
    assert {each.outcome.id for each in last if each.outcome} == {f"run {number}" for number in range(63, 70)}


def test_more_jobs_than_fit_into_a_statement_take_several(store: SqlJobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, *(ended(number, number, f"job {number % 7}") for number in range(70)))
    whole = store.last_runs()
    monkeypatch.setattr(jobs, "_MOST_NAMED", 3)
    assert store.last_runs() == whole


def test_runs_are_purged_in_portions(
    database: Database, monkeypatch: pytest.MonkeyPatch, noted_statements: Noted
) -> None:
    monkeypatch.setattr(jobs, "_MOST_REMOVED", 10)
    store = SqlJobStore(database)
    put(store, *(ended(number, number) for number in range(36)))
    sent = sent_by(noted_statements, lambda: store.purge(JOB, NOON + timedelta(hours=1)))
    assert sent.count("DELETE") == 4
    assert [run.id for run in store.history()] == ["run 35"]


# Locks


@pytest.mark.release(kind="mariadb")  # as on PostgreSQL
def test_the_record_of_a_wait_gives_up_when_another_transaction_holds_the_run(
    store: SqlJobStore, another: SqlJobStore, transactions: DatabaseTransactions
) -> None:
    put(store, RUNNING)
    with transactions.begin() as unit:
        assert store.advance(RUNNING, RunPosition(5), unit)
        with pytest.raises(Exception, match=r".") as failed:
            another.report_wait(RUNNING, "no answer", 0.1)
    assert another.is_outage(failed.value)
    assert another.report_wait(RUNNING, "no answer", 0.1)


# Answers that are lost


class _Lossy(SqlJobStore):
    """A store whose answer to a commit is lost."""

    loses = False

    @contextmanager
    def open(self, jobs: Collection[str]) -> Iterator[JobBook]:
        with super().open(jobs) as book:
            yield book
        if self.loses:
            raise DatabaseAwayError("OCQ-304", "the answer was lost")


@pytest.mark.release(kind="postgresql")  # as on MariaDB
def test_the_desk_recognises_its_own_records_after_a_lost_response(database: Database) -> None:
    store = _Lossy(database)
    rules = {JOB: JobRule(JOB, meeting=Meeting(scope=OverlapScope.PER_ID), back_off=FixedBackOff(60.0007))}
    desk, endings = JobDesk(store, rules), [Ending(RunPosition(), error="no", permanent=each) for each in (False, True)]

    def attend(node: str, by: JobDesk) -> list[JobRun]:
        return by.attend(Worker(node, node, frozenset({node, "here"}), 9, frozenset(), lambda: {node, "here"}))

    for run in ("one", "two"):
        store.request(replace(QUEUED, id=run, ids=(run,)))
    mine = attend("here", desk)
    for number in range(MOST_DEATHS):
        store.request(replace(QUEUED, id=f"run {number}", ids=(number,)))
        attend(f"dead {number}", JobDesk(store, rules))
    store.loses = True
    for run, ending in zip(mine, endings, strict=True):
        with pytest.raises(DatabaseAwayError):
            desk.finish(run, ending)
    with pytest.raises(DatabaseAwayError):
        attend("here", desk)
    store.loses = False
    ended = [desk.finish(run, ending) for run, ending in zip(mine, endings, strict=True)]
    assert [run.status for run in ended if run is not None] == [RunStatus.RETRYING, RunStatus.FAILED]
    attend("here", desk)
    told = [(run.id, run.status.value, run.deaths) for run in desk.recovered()]
    assert sorted(told) == [("run 0", "failed", 3), ("run 1", "retrying", 2), ("run 2", "retrying", 1)]


# Waits


def test_reading_jobs_and_runs_does_not_wait_for_a_decision(store: SqlJobStore, another: SqlJobStore) -> None:
    put(store, QUEUED, ended(1, 1))
    with store.open([JOB]) as book:
        book.put(QUEUED.ended(RunStatus.SKIPPED, NOON))
        with ThreadPoolExecutor(1) as threads:
            for look in (another.look, another.history, another.last_runs, lambda: another.find(QUEUED.id)):
                assert threads.submit(look).result(SECONDS)
        assert another.look().runs == (QUEUED,)


def held_for_too_long(holder: SqlJobStore, waiting: SqlJobStore) -> BaseException | None:
    with holder.open([JOB]), ThreadPoolExecutor(1) as threads:
        return threads.submit(put, waiting, QUEUED).exception(SECONDS)


@pytest.mark.release(kind=("postgresql", "mariadb"), same=True)
@pytest.mark.parametrize("same", [False, True], ids=["processes", "threads"])
def test_a_decision_that_waits_too_long_for_another_is_an_outage(
    store: SqlJobStore, another: SqlJobStore, monkeypatch: pytest.MonkeyPatch, *, same: bool
) -> None:
    put(store, replace(QUEUED, id="1"))
    another.prepare()
    monkeypatch.setattr(jobs, "_PATIENCE", 0.05)
    error = held_for_too_long(store, store if same else another)
    assert isinstance(error, DatabaseBusyError)
    assert error.code == "OCQ-305"
    assert another.is_outage(error)
    put(another, QUEUED)
    assert {run.id for run in store.look().runs} == {"1", QUEUED.id}


@pytest.mark.release  # as the test above, by a row
@SERVERS
def test_a_run_locked_too_long_by_its_owner_is_an_outage_and_not_taken(
    store: SqlJobStore, another: SqlJobStore, transactions: DatabaseTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, RUNNING)
    another.prepare()
    monkeypatch.setattr(jobs, "_PATIENCE", 0.05)
    with transactions.begin() as unit:
        assert store.advance(RUNNING, AFTER, unit)
        with ThreadPoolExecutor(1) as threads:
            error = threads.submit(put_taken, another).exception(SECONDS)
    assert isinstance(error, DatabaseBusyError)
    assert store.find(RUNNING.id) == replace(RUNNING, position=AFTER)


@pytest.mark.release  # as a node, in test_control_tables.py
@SERVERS
def test_a_process_frozen_in_a_decision_is_disconnected_and_its_connections_are_reset(
    store: SqlJobStore, another: SqlJobStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(database.dialect), "standing_seconds", 1.0)
    put(store, QUEUED)

    def decided() -> None:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            with suppress(DatabaseAwayError):
                put(another, replace(QUEUED, reason="by another"))
                return

    def freeze() -> None:
        with store.open([JOB]) as book, ThreadPoolExecutor(1) as threads:
            threads.submit(decided).result(SECONDS)
            book.put(replace(QUEUED, reason="by the frozen one"))

    with pytest.raises(DatabaseAwayError):
        freeze()
    assert store.look().runs == (replace(QUEUED, reason="by another"),)
    limits = {"postgresql": "SHOW idle_in_transaction_session_timeout", "mariadb": "SELECT @@idle_transaction_timeout"}
    put(store, replace(QUEUED, reason="again"))
    with database.reading() as connection:
        assert str(connection.execute(text(limits[database.dialect.name])).scalar_one()) == "0"


@SERVERS
def test_decisions_about_other_jobs_do_not_wait_for_each_other(store: SqlJobStore, another: SqlJobStore) -> None:
    others = [replace(QUEUED, id=str(number), job=f"{JOB}{number}") for number in range(3)]
    put(store, QUEUED, *others)
    with store.open([JOB]) as book:
        put(another, *(run.ended(RunStatus.SKIPPED, NOON) for run in others))
        book.put(replace(QUEUED, reason="a"))
    assert store.look().runs == (replace(QUEUED, reason="a"),)


@SERVERS
def test_requests_do_not_wait_for_decisions(store: SqlJobStore, another: SqlJobStore) -> None:
    put(store, QUEUED)
    with store.open([JOB]):
        assert another.request(replace(QUEUED, id="new"))
        assert not another.request(QUEUED)


@POSTGRESQL
def test_under_a_stricter_default_isolation_a_decision_sees_what_it_has_waited_for(
    url: str, store: SqlJobStore, another: SqlJobStore
) -> None:
    put(another, QUEUED, replace(RUNNING, id="2", position=BEFORE))
    strict = Database(f"{url}{'&' if '?' in url else '?'}options=-c%20default_transaction_isolation%3Dserializable")
    waiting = SqlJobStore(strict)

    def seen() -> list[JobRun]:
        with waiting.open([JOB]) as book:
            return list(book.runs)

    with ThreadPoolExecutor(1) as threads:
        with another.open([JOB]) as book:
            second = threads.submit(JobStoreContract().at_last, waiting, seen)
            wait([second], 0.2)
            assert not second.done()
            book.put(QUEUED.ended(RunStatus.SKIPPED, NOON))
        assert [run.id for run in second.result(SECONDS)] == ["2"]
    strict.close()


# Transactions


def test_a_request_in_a_transaction_of_another_database_has_a_separate_one(store: SqlJobStore, tmp_path: Path) -> None:
    put(store, RUNNING)
    other = Database(f"sqlite:///{tmp_path / 'other.db'}")
    with DatabaseTransactions(other).begin() as unit:
        assert store.request(QUEUED, unit) is False
        assert store.request(replace(QUEUED, id="new"), unit)
    other.close()
    assert store.find(RUNNING.id) == RUNNING
    assert store.find("new") is not None


def test_a_request_without_a_database_has_a_separate_transaction(store: SqlJobStore) -> None:
    with NoTransactions().begin() as unit:
        assert store.request(QUEUED, unit)
    assert [run.id for run in store.look().runs] == [QUEUED.id]


def test_a_separately_opened_transaction_of_the_same_database_is_joined(
    store: SqlJobStore, open_database: Callable[[], Database]
) -> None:
    put(store, RUNNING)
    with DatabaseTransactions(open_database()).begin() as unit:
        assert store.advance(RUNNING, AFTER, unit)
        assert store.request(replace(QUEUED, id="new"), unit)
        assert store.find(RUNNING.id) == RUNNING
    assert store.find(RUNNING.id) == replace(RUNNING, position=AFTER)
    assert store.find("new") is not None


@SERVERS
def test_an_owner_whose_session_is_killed_records_nothing(
    store: SqlJobStore, another: SqlJobStore, database: Database, transactions: DatabaseTransactions
) -> None:
    put(store, RUNNING)

    def cut_off() -> None:
        with transactions.begin() as unit:
            assert store.advance(RUNNING, AFTER, unit)
            assert unit.end_session()

    with pytest.raises(Exception) as caught:  # noqa: PT011 the driver's own
        cut_off()
    assert database.is_outage(caught.value)
    assert put_taken(another) == store.find(RUNNING.id) == taken(RUNNING)


def test_a_value_that_a_database_refuses_is_an_error_and_not_a_duplicate_run(store: SqlJobStore) -> None:
    store.prepare()
    with pytest.raises(Exception) as caught:  # noqa: PT011 the driver's own
        store.request(replace(QUEUED, token=2**70))
    assert not store.is_outage(caught.value)
    assert store.history() == []

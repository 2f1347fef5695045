"""JobTest and ``assert_idempotent``: jobs that must not pass as correct."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from threading import get_ident
from typing import Any
from uuid import uuid4

import pytest
from dependency_injector import containers, providers
from sqlalchemy import Connection, Select, column, make_url, select, table, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from opencqrs_py import AfterCommit, JobContext, JobPage, job, on_start
from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.snapshots import table_rows
from opencqrs_py.errors import EventStoreError, JobError, NonTransientError
from opencqrs_py.model.job import Trigger
from opencqrs_py.testing import JobTest, assert_idempotent


@job("wrong")
def wrong() -> None:
    raise ValueError("always")


@job("once")
def fails_once(context: JobContext, connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (n INTEGER)"))
    if context.attempt == 1:
        raise ValueError("at first")
    connection.execute(text("INSERT INTO seen VALUES (1)"))


@job("outage")
def outage() -> None:
    raise OperationalError("SELECT 1", {}, Exception("server closed the connection"), connection_invalidated=True)


@job("other")
def other() -> None: ...


@pytest.mark.parametrize("given", [wrong, fails_once])
def test_a_job_that_raises_is_not_reported_as_idempotent(given: object) -> None:
    with pytest.raises(ValueError, match=r"always|at first"):
        assert_idempotent(given)  # type: ignore[arg-type]


def test_a_run_raises_the_error_of_the_job_even_if_another_attempt_follows() -> None:
    test = JobTest(fails_once)
    with pytest.raises(ValueError, match="at first"):
        test.run()
    test.expect_statuses("retrying").advance(3_600).expect_statuses("succeeded").expect_rows(
        "SELECT n FROM seen", [(1,)]
    )


@pytest.mark.parametrize(
    ("overlap", "status"),
    [("skip", "skipped, run sends:0001 has not ended"), ("queue", "queued, because it waits for other runs to end")],
)
def test_a_run_skipped_or_queued_because_another_awaits_its_next_attempt_fails_the_test(
    overlap: str, status: str
) -> None:
    fails = [True]

    @job("sends")
    def sends() -> None:
        if fails:
            raise ValueError(fails.pop())

    test = JobTest(sends, settings={"overlap": overlap, "retry.initial-interval": "PT30S"})
    with pytest.raises(ValueError, match="True"):
        test.run()
    message = (
        rf"^job 'sends' did not run: run sends:0002 is {status}; the next attempt of run sends:0001 is due in 30 s: "
    )
    with pytest.raises(AssertionError, match=message + r"reach it with advance\(30\)$"):
        test.run()
    test.advance(30).expect_statuses("succeeded", "skipped" if overlap == "skip" else "succeeded")


def test_a_run_that_the_test_cancels_does_not_fail_it() -> None:
    JobTest(wrong).cancel().run().expect_statuses("cancelled")


@job("ticks")
def fails_at_noon(context: JobContext) -> None:
    assert context.scheduled_at is not None
    if context.scheduled_at.hour == 12 and context.attempt < 3:
        raise LookupError("noon")


HOURLY = {"triggers.fixed-rate": "1h", "retry.policy": "fixed", "retry.initial-interval": "1m"}


def test_a_failed_tick_fails_the_test_after_all_time_has_passed() -> None:
    test = JobTest(fails_at_noon, settings=HOURLY | {"retry.max-attempts": 1}).advance(11.5 * 3_600)
    with pytest.raises(LookupError, match="noon"):
        test.advance(2 * 3_600)
    assert [run.status.value for run in test.runs][-3:] == ["succeeded", "failed", "succeeded"]
    assert test.clock.monotonic() == 13.5 * 3_600
    test.advance(3_600)


def test_a_tick_retried_meanwhile_fails_the_test_only_if_the_retry_fails() -> None:
    JobTest(fails_at_noon, settings=HOURLY).advance(12.5 * 3_600)
    test = JobTest(fails_at_noon, settings=HOURLY).advance(11.5 * 3_600)
    with pytest.raises(LookupError, match="noon"):
        test.advance(1_800)
    test.advance(30)  # no tick is due
    with pytest.raises(LookupError, match="noon"):
        test.advance(30)
    test.advance(3_000)
    assert {run.status.value for run in test.runs} == {"succeeded"}


def ids_of_rows() -> Select[Any]:
    return select(column("n")).select_from(table("seen"))


@job("adds", input=ids_of_rows)
def adds(context: JobContext, connection: Connection) -> None:
    connection.execute(text("UPDATE seen SET times = times + 1"))


@on_start("jobs")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (n INTEGER, times INTEGER)"))


@pytest.mark.parametrize("ids", [(), (77,)])
def test_a_job_that_had_nothing_to_do_is_not_reported_as_idempotent(ids: tuple[int, ...]) -> None:
    test = JobTest(adds, tables).run()
    with pytest.raises(AssertionError, match=r"^job 'adds' was not tested: its input selected nothing; first add rows"):
        assert_idempotent(test, *ids)
    with test.connection() as connection:
        connection.execute(text("INSERT INTO seen VALUES (77, 0)"))
    with pytest.raises(AssertionError, match=r"^job 'adds' is not idempotent"):
        assert_idempotent(test, *ids)


def unsettled() -> Select[Any]:
    return ids_of_rows().where(column("times") == 0)


def unsettled_in_pages(page: JobPage, connection: Connection) -> list[int]:
    return list(connection.execute(unsettled().where(column("n") > (page.after or 0)).limit(page.limit)).scalars())


def with_two_rows(given: Callable[..., Any], settings: dict[str, Any]) -> JobTest:
    @job("settles", input=given)
    def settles(context: JobContext, connection: Connection) -> None:
        test.clock.advance(2)
        connection.execute(text("UPDATE seen SET times = 1 WHERE n = :n"), [{"n": each} for each in context.ids])

    test = JobTest(settles, tables, settings=settings).run()
    with test.connection() as connection:
        connection.execute(text("INSERT INTO seen VALUES (1, 0), (2, 0)"))
    return test


INPUTS = [unsettled, unsettled_in_pages, ids_of_rows]
TOO_FEW = [{"max-items-per-run": 1}, {"max-items-per-run": 1, "transaction": "run"}, {"time-budget": "1s", "limit": 1}]
ENOUGH = [{"max-items-per-run": 2}, {"max-items-per-run": 2, "transaction": "run"}, {"time-budget": "3s", "limit": 1}]


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("settings", TOO_FEW)
def test_a_run_ended_by_a_limit_is_reported_as_not_tested(given: Callable[..., Any], settings: dict[str, Any]) -> None:
    untested = (
        r"^job 'settles' was not tested: a run has not handled everything: it.+; the rest is for the next run; "
        r"increase max-items-per-run or time-budget in the test$"
    )
    with pytest.raises(AssertionError, match=untested):
        assert_idempotent(with_two_rows(given, settings))


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("settings", ENOUGH)
def test_a_run_that_reaches_a_limit_with_its_last_item_counts_as_complete(
    given: Callable[..., Any], settings: dict[str, Any]
) -> None:
    test = assert_idempotent(with_two_rows(given, settings))
    test.expect_rows("SELECT n, times FROM seen", [(1, 1), (2, 1)])


def test_a_job_without_a_table_to_compare_is_not_reported_as_idempotent() -> None:
    with pytest.raises(AssertionError, match=r"^job 'other' was not tested: its database has no table"):
        assert_idempotent(other)


@job("copies")
def copies(connection: Connection) -> None:
    connection.execute(text("INSERT INTO seen SELECT n + 1, times FROM seen WHERE n < 2"))


@pytest.mark.parametrize("settings", [{}, {"triggers.startup": True}])
def test_a_job_without_an_input_that_changed_nothing_is_not_reported_as_idempotent(settings: dict[str, Any]) -> None:
    test = JobTest(copies, tables, settings=settings)
    with pytest.raises(AssertionError, match=r"^job 'copies' was not tested: its first run changed nothing; first add"):
        assert_idempotent(test)
    with test.connection() as connection:
        connection.execute(text("INSERT INTO seen VALUES (1, 0)"))
    with pytest.raises(AssertionError, match=r"^job 'copies' is not idempotent"):
        assert_idempotent(test)


@job("fills")
def fills(connection: Connection) -> None:
    connection.execute(text("INSERT INTO seen SELECT 1, 0 WHERE NOT EXISTS (SELECT 1 FROM seen)"))


@pytest.mark.parametrize("settings", [{}, {"triggers.startup": True}])
def test_a_job_without_an_input_is_tested_by_its_first_run(settings: dict[str, Any]) -> None:
    assert_idempotent(JobTest(fills, tables, settings=settings)).expect_rows("SELECT n FROM seen", [(1,)])


@job("mails")
def mails(context: JobContext, after_commit: AfterCommit) -> None:
    after_commit(send)


def send() -> None:
    raise ConnectionError("no mail server")


def test_a_call_after_the_commit_that_raises_fails_the_test() -> None:
    test = JobTest(mails, settings={"triggers.fixed-rate": "PT1M"})
    for act in (test.run, lambda: test.advance(60)):
        with pytest.raises(ConnectionError, match="no mail server") as raised:
            act()
        assert raised.value.__notes__ == ["raised by a call after the commit"]
        assert raised.traceback[-1].name == "send"
    test.advance(0)
    assert {run.status.value for run in test.runs} == {"succeeded"}


@job("cleans")
def cleans() -> None:
    pytest.fail("it would clean everything")


def test_a_run_for_ids_of_a_job_without_input_fails() -> None:
    message = r"^\[OCQ-660\] the run is for 2 ids, but job 'cleans' has no input and takes no ids\n"
    with pytest.raises(JobError, match=message):
        JobTest(cleans).run(7, 8)


class Letters:
    open = True


def opened() -> Iterator[Letters]:
    letters = Letters()
    yield letters
    letters.open = False


class Container(containers.DeclarativeContainer):
    letters = providers.Resource(opened)


seen: list[Letters] = []


@job("writes")
def writes(letters: Letters) -> None:
    seen.append(letters)


def test_a_resource_is_closed_with_the_test() -> None:
    seen.clear()
    test = JobTest(writes, Container).run()
    assert seen[0].open
    test.close()
    assert not seen[0].open


@job("repeats")
def repeats(context: JobContext, connection: Connection) -> None:
    connection.execute(text("INSERT INTO elsewhere.seen VALUES (1)"))


@job("forks")
def forks(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE forked (n INTEGER)"))
    child = os.fork()
    if not child:
        sys.exit(3)
    connection.execute(text("INSERT INTO forked VALUES (:n)"), {"n": os.waitpid(child, 0)[1] >> 8})


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # fork in a process with threads
def test_a_process_forked_by_a_job_exits_with_its_own_code() -> None:
    assert JobTest(forks).run().tables() == {"forked": ["(3,)"]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"start": date(2026, 1, 1)},
            "start takes a datetime such as datetime(2026, 1, 1, tzinfo=UTC), got datetime.d",
        ),
        ({"start": "2026-01-01T00:00:00Z"}, "got '2026-01-01T00:00:00Z'"),
        ({"database": Path("a.db")}, 'database takes a URL such as "sqlite:///library.db", a Database or an engine of'),
    ],
)
def test_options_of_another_type_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        JobTest(other, **options)


def test_time_does_not_go_back() -> None:
    test = JobTest(other)
    with pytest.raises(ValueError, match="time does not go back, got -1"):
        test.advance(-1)
    test.advance(0).expect_statuses()


def test_a_query_of_the_test_whose_table_is_missing_is_named() -> None:
    with pytest.raises(EventStoreError, match=r"the query SELECT n FROM sen cannot be run \(no such table: sen\)"):
        JobTest(other).run().expect_rows("SELECT n FROM sen", [])


@pytest.mark.postgresql
def test_changes_in_another_schema_are_compared(fresh_url: Callable[[str], str]) -> None:
    test = JobTest(repeats, database=fresh_url("postgresql"))
    with test.connection() as connection:
        connection.execute(text("CREATE SCHEMA elsewhere"))
        connection.execute(text("CREATE TABLE elsewhere.seen (n INTEGER)"))
        connection.execute(text("CREATE TABLE here (n INTEGER)"))
        connection.execute(text("CREATE SCHEMA closed CREATE TABLE secret (n INTEGER)"))
    with pytest.raises(AssertionError, match=r"(?s)^job 'repeats' is not idempotent.*\ntable elsewhere.seen\n"):
        assert_idempotent(test)
    assert test.tables() == {"here": [], "elsewhere.seen": ["(1,)", "(1,)"], "closed.secret": []}


@pytest.mark.postgresql
def test_tables_that_the_user_may_not_read_are_left_out(fresh_url: Callable[[str], str]) -> None:
    url, role = make_url(fresh_url("postgresql")), f"reader_{uuid4().hex}"
    test = JobTest(repeats, database=url.render_as_string(hide_password=False))
    with test.connection() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'none'"))
        connection.execute(
            text("CREATE SCHEMA elsewhere CREATE TABLE seen (n INTEGER) CREATE TABLE secret (n INTEGER)")
        )
        connection.execute(text("CREATE SCHEMA closed CREATE TABLE secret (n INTEGER)"))
        connection.execute(text(f"GRANT USAGE ON SCHEMA elsewhere TO {role}"))
        connection.execute(text(f"GRANT SELECT ON elsewhere.seen, closed.secret TO {role}"))
    reader = Database(url.set(username=role, password="none").render_as_string(hide_password=False))
    try:
        assert table_rows(reader) == {"elsewhere.seen": []}
    finally:
        reader.close()
        with test.connection() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))


def test_a_permanent_outage_in_a_job_is_raised_to_the_test() -> None:
    with pytest.raises(OperationalError):
        JobTest(outage).run()


def test_jobs_may_exclude_other_given_jobs() -> None:
    test = JobTest(other, outage, name="other", settings={"exclusive-with": ["outage"]}).run()
    test.expect_statuses("succeeded")


def test_runs_are_listed_in_the_order_of_their_requests() -> None:
    test = JobTest(other)
    for _ in range(11):
        test.run()
    assert [run.id for run in test.runs] == [f"other:{n:04}" for n in range(1, 12)]


@pytest.mark.parametrize(("ids", "error"), [((None,), TypeError), ((True,), TypeError), ((1.5,), TypeError)])
def test_an_invalid_id_is_refused(ids: tuple[object, ...], error: type[Exception]) -> None:
    with pytest.raises(error, match="is not an id: ids are whole numbers and texts"):
        JobTest(other).run(*ids)  # type: ignore[arg-type]


def broken() -> list[int]:
    raise LookupError("no such list")


@job("selects", input=broken)
def selects(context: JobContext) -> None: ...


class Base(DeclarativeBase): ...


class Needy(Base):
    __tablename__ = "needy"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


def one() -> list[int]:
    return [1]


@job("flushes", input=one)
def flushes(context: JobContext, session: Session) -> None:
    session.add(Needy(id=1))


@on_start("jobs")
def needy(connection: Connection) -> None:
    Base.metadata.create_all(connection)


@pytest.mark.parametrize("transaction", ["run", "page", "item"])
@pytest.mark.parametrize(
    ("given", "error", "what"),
    [
        (selects, LookupError, "no such list"),
        (flushes, IntegrityError, "NOT NULL constraint failed"),
    ],
)
def test_a_run_that_fails_outside_of_the_job_fails_the_test(
    given: Callable[..., None], error: type[Exception], what: str, transaction: str
) -> None:
    test = JobTest(given, needy, settings={"transaction": transaction})
    with pytest.raises(error, match=what):
        test.run()
    assert isinstance(test.error, error)
    test.expect_statuses("retrying")


@job("commits", input=one)
def commits(context: JobContext, connection: Connection) -> None:
    connection.execute(text("INSERT INTO one VALUES (1)"))


@pytest.mark.postgresql
@pytest.mark.parametrize("transaction", ["run", "page", "item"])
def test_a_run_whose_commit_fails_fails_the_test(fresh_url: Callable[[str], str], transaction: str) -> None:
    test = JobTest(commits, database=fresh_url("postgresql"), settings={"transaction": transaction})
    with test.connection() as connection:
        connection.execute(text("CREATE TABLE one (n INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
        connection.execute(text("INSERT INTO one VALUES (1)"))
    with pytest.raises(IntegrityError, match="duplicate key"):
        test.run()
    test.expect_statuses("retrying").close()


@job("unreachable", input=outage)
def unreachable(context: JobContext) -> None: ...


def test_a_permanent_outage_in_an_input_is_raised_to_the_test() -> None:
    with pytest.raises(OperationalError, match="server closed the connection"):
        JobTest(unreachable).run()


EVERY_MINUTE = {"triggers.fixed-rate": "PT1M"}


def test_a_failed_run_fails_the_test_even_if_the_run_of_a_tick_follows() -> None:
    @job("slow")
    def slow(context: JobContext) -> None:
        if context.trigger is Trigger.MANUAL:
            test.clock.advance(60)
            raise NonTransientError("by hand")

    test = JobTest(slow, settings=EVERY_MINUTE | {"overlap": "queue"})
    with pytest.raises(NonTransientError, match="by hand"):
        test.run()
    statuses = {run.trigger: run.status.value for run in test.runs}
    assert statuses == {Trigger.MANUAL: "failed", Trigger.SCHEDULE: "succeeded"}


def test_a_later_tick_does_not_affect_whether_a_job_was_tested() -> None:
    def new() -> Select[Any]:
        return ids_of_rows().where(column("times") == 0)

    @job("marks", input=new)
    def marks(context: JobContext, connection: Connection) -> None:
        connection.execute(text("UPDATE seen SET times = 1"))
        test.clock.advance(60)

    test = JobTest(marks, tables, settings=EVERY_MINUTE | {"overlap": "queue"}).run()
    with test.connection() as connection:
        connection.execute(text("INSERT INTO seen VALUES (77, 0)"))
    assert_idempotent(test)
    assert [run.trigger for run in test.runs].count(Trigger.MANUAL) == 3
    assert test.runs[-1].position.items == 0


def slow_job(settings: dict[str, Any]) -> JobTest:
    @job("slow")
    def slow() -> None:
        test.clock.advance(7)

    test = JobTest(slow, settings={"triggers.fixed-rate": "5s", "overlap": "queue"} | settings)
    return test


@pytest.mark.parametrize("misfire", ["run-once", "catch-up", "skip"])
def test_a_job_that_takes_longer_than_its_interval_ends_with_the_time_of_advance(misfire: str) -> None:
    test = slow_job({"misfire": misfire}).advance(1)
    assert test.clock.monotonic() == 7
    test.advance(23)
    assert [run.started_at.second for run in test.runs if run.started_at] == [0, 7, 14, 21, 28]
    assert test.clock.monotonic() == 35
    assert test.advance(0).clock.monotonic() == 42


@pytest.mark.parametrize("misfire", ["run-once", "catch-up", "skip"])
def test_a_requested_run_of_a_job_that_takes_longer_than_its_interval_ends(misfire: str) -> None:
    test = slow_job({"misfire": misfire, "queue-size": 2}).run()
    assert [run.status.value for run in test.runs if run.trigger is Trigger.MANUAL] == ["succeeded"]
    assert test.clock.monotonic() < 35


def test_a_requested_run_begins_after_all_ticks_that_wait() -> None:
    @job("slow", input=one)
    def slow(context: JobContext) -> None:
        test.clock.advance(7)

    settings = {"triggers.fixed-rate": "5s", "misfire": "catch-up", "overlap": "queue", "queue-size": 100}
    test = JobTest(slow, settings=settings)
    test.advance(60).run(1)
    assert [run.status.value for run in test.runs if run.trigger is Trigger.MANUAL] == ["succeeded"]


@pytest.mark.parametrize("act", [JobTest.run, lambda test: test.advance(1)])
def test_an_endless_retry_without_waits_fails_the_test(
    act: Callable[[JobTest], JobTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencqrs_py.testing.job_testing._MOST_RUNS", 50)
    endless = {"retry.policy": "fixed", "retry.initial-interval": "0s", "retry.max-attempts": "infinite"}
    with pytest.raises(
        AssertionError, match=r"^more than 50 runs in [01] s: move the clock by less at a time, or limit"
    ):
        act(JobTest(wrong, settings=EVERY_MINUTE | endless))


AT_START = {"triggers.startup": True}


@pytest.mark.parametrize(
    ("settings", "after_4_s", "after_5_s"),
    [
        ({}, ["startup succeeded"], ["startup succeeded"]),
        ({"triggers.initial-delay": "5s"}, ["startup queued"], ["startup succeeded"]),
        ({"enabled": False}, [], []),
        (
            {"triggers.fixed-rate": "5s"},  # as in an application, the first tick meets the run of the start
            ["startup succeeded", "schedule skipped"],
            ["startup succeeded", "schedule skipped", "schedule succeeded"],
        ),
        (
            {"triggers.fixed-rate": "5s", "triggers.initial-delay": "5s"},
            ["startup queued"],
            ["startup succeeded", "schedule skipped"],
        ),
        (
            {"triggers.fixed-rate": "5s", "overlap": "queue"},
            ["startup succeeded", "schedule succeeded"],
            ["startup succeeded", "schedule succeeded", "schedule succeeded"],
        ),
    ],
)
def test_the_first_advance_is_the_start_that_starts_a_run(
    settings: dict[str, Any], after_4_s: list[str], after_5_s: list[str]
) -> None:
    test = JobTest(other, settings=AT_START | settings)
    for seconds, expected in ((4, after_4_s), (1, after_5_s), (0, after_5_s)):
        test.advance(seconds)
        assert [f"{run.trigger} {run.status}" for run in test.runs] == expected


def test_a_requested_run_does_not_start_the_run_of_the_start() -> None:
    test = JobTest(other, settings=AT_START).run()
    assert [run.trigger for run in test.runs] == [Trigger.MANUAL]
    test.advance(0).run()
    assert [run.trigger for run in test.runs] == [Trigger.MANUAL, Trigger.STARTUP, Trigger.MANUAL]


def test_a_failed_run_of_the_start_fails_the_test() -> None:
    with pytest.raises(ValueError, match="always"):
        JobTest(wrong, settings=AT_START).advance(0)


@pytest.mark.parametrize(
    ("overlap", "begun", "skipped"),
    [("skip", [0, 10, 20], 3), ("queue", [0, 7, 14, 21], 0), ("cancel", [0, 7, 14, 21], 0)],
)
def test_a_tick_that_passes_while_the_job_runs_meets_that_run(overlap: str, begun: list[int], skipped: int) -> None:
    test = slow_job({"overlap": overlap}).advance(25)
    assert [run.started_at.second for run in test.runs if run.started_at] == begun
    assert [run.status.value for run in test.runs].count("skipped") == skipped


def test_a_job_that_is_always_late_may_be_run_again() -> None:
    test = slow_job({"overlap": "skip"}).run().run()
    assert [f"{run.trigger} {run.status}" for run in test.runs if run.started_at] == [
        "schedule succeeded",
        "manual succeeded",
        "manual succeeded",
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"misfire-grace": "2s"}, "misfire-grace of job other has no effect unless misfire is skip"),
        ({"queue-size": 3}, "queue-size of job other has no effect unless overlap is queue"),
        ({"queue-size": 3, "overlap": "queue"}, ""),
    ],
)
def test_settings_without_effect_are_logged_as_by_an_application(
    settings: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    JobTest(other, settings=settings)
    assert [record.getMessage().partition("\n")[0] for record in caplog.records] == [f"[OCQ-126] {said}"] * bool(said)


WITHOUT_EFFECT = {
    "triggers.events.types": ["lent"],
    "triggers.events.ids": "subject",
    "exclusive-with": ["wrong"],
    "overlap": "cancel",
    "cancel-grace": "0s",
    "history.keep": "1m",
}


def test_settings_of_what_a_test_does_not_have_are_accepted() -> None:
    test = JobTest(other, wrong, name="other", settings=WITHOUT_EFFECT).advance(3_600).run()
    test.advance(3_600).expect_statuses("succeeded")


def test_a_job_for_spark_runs_on_the_thread_of_the_test() -> None:
    def numbers() -> list[int]:
        return [1, 2]

    @job("spread", input=numbers)
    def spread(context: JobContext) -> None:
        threads.append(get_ident())

    threads: list[int] = []
    JobTest(spread, settings={"processing.engine": "spark", "limit": 1}).run()
    assert threads == [get_ident()] * 2

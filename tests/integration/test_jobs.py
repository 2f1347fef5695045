"""Jobs of whole applications: their triggers, several processes, and processes that are killed. On real databases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import text
from support.relay import relayed

from opencqrs_py import Application, InboxFilter
from opencqrs_py.adapters.sql import Database, SqlJobStore
from opencqrs_py.assembly.actor import actor
from opencqrs_py.assembly.resets import ResetTarget
from opencqrs_py.errors import AssemblyErrors, JobError
from opencqrs_py.jobs.runs import JobRun, RunStatus
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.job import Trigger

pytestmark = pytest.mark.release(url="sqlite")

KINDS = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.release]),
]

JOBS = """
import os
import threading
import time
from pathlib import Path

from opencqrs_py import JobContext, job
from sqlalchemy import Connection, column, select, table, text

HERE = Path(__file__).parent
items = table("items", column("id"), column("times"))


def await_file(name: str) -> None:
    while not (HERE / name).exists():
        threading.Event().wait(0.02)


@job("note")
def note(context: JobContext, connection: Connection) -> None:
    for each in context.ids or ("all",):
        row = {"run": context.run, "id": str(each), "thread": str(threading.get_ident())}
        connection.execute(text("INSERT INTO noted VALUES (:run, :id, :thread)"), row)


@job("pages", input=lambda: select(items.c.id))
def pages(context: JobContext, connection: Connection) -> None:
    for each in context.ids:
        connection.execute(text("UPDATE items SET times = times + 1 WHERE id = :id"), {"id": each})
    (HERE / f"page-{context.ids[0]}-{os.getpid()}").touch()
    if context.ids[0] > 2:
        await_file("go")


@job("slow")
def slow(context: JobContext) -> None:
    (HERE / "slow").touch()
    while not (HERE / "go").exists():
        context.raise_if_cancelled()
        threading.Event().wait(0.02)
"""

MAIN = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1])))
import jobs_of_test
from opencqrs_py import Application, InboxFilter
application = Application({settings!r}, [jobs_of_test], sys.argv[1])
application.{call}
"""

LEASE = {
    "event-handling.standard.life-cycle.lease.duration": "1500ms",
    "event-handling.standard.life-cycle.lease.heartbeat": "300ms",
}


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "jobs_of_test.py").write_text(JOBS)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("jobs_of_test")
    sys.modules.pop("jobs_of_test", None)


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    url = fresh_url(request.param)
    with closing(Database(url)) as database, database.writing() as connection:
        connection.execute(text("CREATE TABLE noted (run VARCHAR(200), id VARCHAR(50), thread VARCHAR(50))"))
        connection.execute(text("CREATE TABLE items (id INTEGER PRIMARY KEY, times INTEGER NOT NULL)"))
        for number in range(1, 7):
            connection.execute(text("INSERT INTO items VALUES (:id, 0)"), {"id": number})
    return url


def made(url: str, jobs: ModuleType, folder: Path, **settings: object) -> Application:
    return Application({"event-store.url": url, **LEASE, **settings}, [jobs], folder)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with closing(Database(url)) as database, database.reading() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def until(condition: Callable[[], Any], patience: float = 120.0) -> Any:
    """Return the value of a condition as soon as it is true."""
    end = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come true"
        threading.Event().wait(0.02)
    return found


def ended(application: Application, job: str, count: int = 1) -> list[JobRun]:
    """Return the runs of a job, oldest first, when so many have ended."""

    def found() -> list[JobRun]:
        runs = [run for run in application.jobs.runs(job) if not run.is_open]
        return runs[::-1] if len(runs) >= count else []

    return until(found)


def test_j4_the_start_of_a_process_runs_a_startup_job_once(url, jobs, tmp_path):
    for number in (1, 2):
        with made(url, jobs, tmp_path, **{"jobs.note.triggers.startup": True}) as application:
            application.start()
            assert {run.status for run in ended(application, "note", number)} == {RunStatus.SUCCEEDED}
    assert len(rows(url, "SELECT * FROM noted")) == 2


def test_j5_j13_a_run_requested_in_code_runs_on_the_thread_of_the_caller(url, jobs, tmp_path):
    with made(url, jobs, tmp_path) as application:
        run = application.run_job("note", ["a", "b"])
        assert (run.status, run.attempt) == (RunStatus.SUCCEEDED, 1)
        mine = str(threading.get_ident())
        assert rows(url, "SELECT id, thread FROM noted ORDER BY id") == [("a", mine), ("b", mine)]
        application.start()
        again = application.run_job("note")
        assert rows(url, f"SELECT id, thread FROM noted WHERE run = '{again.id}'") == [("all", mine)]


def test_j5_j11_a_run_is_skipped_while_another_process_runs_the_job(url, jobs, tmp_path):
    with made(url, jobs, tmp_path) as first, made(url, jobs, tmp_path) as second:
        first.start()
        asked = first.jobs.request("slow")
        until((tmp_path / "slow").exists)
        skipped = second.run_job("slow")
        assert (skipped.status, asked.id in skipped.reason) == (RunStatus.SKIPPED, True)
        (tmp_path / "go").touch()
        assert first.jobs.wait(asked.id, 120).status is RunStatus.SUCCEEDED


@pytest.mark.postgresql
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_j5_a_wait_for_a_run_of_another_process_survives_an_outage(url, jobs, tmp_path, caplog):
    with relayed(url) as (relay, through), made(url, jobs, tmp_path) as runs, made(through, jobs, tmp_path) as waits:
        runs.start()
        asked = waits.jobs.request("slow")
        until((tmp_path / "slow").exists)
        with ThreadPoolExecutor(1) as threads:
            waited = threads.submit(waits.jobs.wait, asked.id, 120)
            relay.stop()
            until(lambda: f"the wait for run {asked.id} continues" in caplog.text)
            (tmp_path / "go").touch()
            ended(runs, "slow")
            relay.start()
            assert waited.result(120).status is RunStatus.SUCCEEDED


def test_j6_an_event_starts_a_run_for_its_id_once_even_across_restarts(url, jobs, tmp_path):
    settings = {"jobs.note.triggers.events.types": "shop.*", "jobs.note.triggers.events.ids": "data.order"}
    line = '{{"id": "{0}", "source": "s", "type": "{1}", "subject": "/o", "data": {{"order": "{0}"}}}}'
    with made(url, jobs, tmp_path, **settings) as application:
        application.start()  # which begins at the head
        application.await_position("job:note", timeout=120)
        application.event_store.append(
            [parse_event(line.format("o1", "shop.paid")), parse_event(line.format("x", "other"))]
        )
        until(lambda: rows(url, "SELECT id FROM noted"))
    with made(url, jobs, tmp_path, **settings) as application:
        application.event_store.append([parse_event(line.format("o2", "shop.paid"))])
        application.start()
        until(lambda: len(rows(url, "SELECT id FROM noted")) == 2)
        assert not application.inbox.entries(InboxFilter())
    assert rows(url, "SELECT id FROM noted ORDER BY id") == [("o1",), ("o2",)]


@pytest.mark.release  # rare
def test_a_variable_lets_an_event_start_a_job_whose_name_it_cannot_spell(url, jobs, tmp_path, monkeypatch):
    (tmp_path / "dotted_jobs.py").write_text(JOBS.replace('@job("note")', '@job("note.v2")'))
    monkeypatch.setenv("OPENCQRS__JOBS__NOTE_V2__TRIGGERS__EVENTS__TYPES", "shop.*")
    monkeypatch.setenv("OPENCQRS__JOBS__NOTE_V2__TRIGGERS__EVENTS__IDS", "id")
    line = '{"id": "o1", "source": "s", "type": "shop.paid", "subject": "/o", "data": {}}'
    with made(url, __import__("dotted_jobs"), tmp_path) as application:
        application.event_store.head()  # used before the jobs are known
        application.start()
        application.await_position("job:note.v2", timeout=120)
        application.event_store.append([parse_event(line)])
        until(lambda: rows(url, "SELECT id FROM noted"))
    sys.modules.pop("dotted_jobs")
    assert rows(url, "SELECT id FROM noted") == [("o1",)]


def test_events_that_are_handled_again_after_a_reset_start_runs_again(url, jobs, tmp_path):
    """Their earlier runs were still listed: nothing ran, although the reset said that events are handled again."""
    settings = {"jobs.note.triggers.events.types": "shop.*", "jobs.note.triggers.events.ids": "id"}
    line = '{{"id": "{0}", "source": "s", "type": "shop.paid", "subject": "/o", "data": {{}}}}'
    with made(url, jobs, tmp_path, **settings) as application:
        application.start()
        application.await_position("job:note", timeout=120)
        application.event_store.append([parse_event(line.format("o1"))])
        until(lambda: rows(url, "SELECT id FROM noted"))
        for times in (2, 3):
            application.resets.reset("job:note", ResetTarget(to="tail"))
            until(lambda times=times: len(rows(url, "SELECT id FROM noted")) == times)
        application.event_store.append([parse_event(line.format("o2"))])
        until(lambda: rows(url, "SELECT id FROM noted WHERE id = 'o2'"))
        assert rows(url, "SELECT id FROM noted ORDER BY id") == [("o1",), ("o1",), ("o1",), ("o2",)]
        again = sorted(run.id.split("-", 1)[0] for run in application.jobs.runs("note"))
    assert again == ["note@event:1"] * 3 + ["note@event:2"]


def test_j18_two_processes_run_each_tick_once(url, jobs, tmp_path):
    every = {"jobs.note.triggers.fixed-rate": "200ms", "jobs.note.misfire": "catch-up"}  # however slow the machine is
    settings = {**every, "jobs.note.overlap": "queue", "jobs.note.queue-size": 100}
    with made(url, jobs, tmp_path, **settings) as first, made(url, jobs, tmp_path, **settings) as second:
        first.start()
        second.start()
        ended(first, "note", 4)
        first.stop()
        runs = ended(second, "note", 8)
    ticks = sorted(run.scheduled_at for run in runs)
    gaps = {round((after - before).total_seconds() * 1000) for before, after in pairwise(ticks)}
    assert gaps == {200}
    succeeded = {run.id for run in runs if run.status is RunStatus.SUCCEEDED}
    noted = [run for (run,) in rows(url, "SELECT run FROM noted")]
    assert len(noted) == len(set(noted))
    assert succeeded <= set(noted)


def test_j21_a_stop_releases_a_run_which_continues_at_the_next_start_where_it_was(url, jobs, tmp_path):
    settings = {"jobs.pages.limit": 2}
    application = made(url, jobs, tmp_path, **settings)
    application.start()
    asked = application.jobs.request("pages")
    until(lambda: list(tmp_path.glob("page-3-*")))
    application.stop(patience=0.1)  # while its second page is in hand
    (found,) = application.jobs.runs("pages")
    assert found.position.after == 2
    if not url.startswith("sqlite"):  # where the page holds the write lock, and the run is let go with its process
        assert (found.status, found.owner) == (RunStatus.RETRYING, "")
    (tmp_path / "go").touch()
    with made(url, jobs, tmp_path, **settings) as again:
        again.start()
        done = again.jobs.wait(asked.id, 120)
    assert (done.status, done.position.items) == (RunStatus.SUCCEEDED, 6)
    assert rows(url, "SELECT DISTINCT times FROM items") == [(1,)]
    application.stop()


def test_a_continued_run_counts_the_ids_that_the_input_returned_to_neither_process(url, jobs, tmp_path):
    settings = {"jobs.pages.limit": 2}
    with closing(Database(url)) as database:
        run = JobRun("of events", "pages", Trigger.EVENT, datetime.now(UTC), ids=(7, 1, 8, 3, 9))
        assert SqlJobStore(database).request(run)
    application = made(url, jobs, tmp_path, **settings)
    application.start()
    until(lambda: list(tmp_path.glob("page-3-*")))
    application.stop(patience=0.1)  # while its second page is in hand
    (tmp_path / "go").touch()
    with made(url, jobs, tmp_path, **settings) as again:
        again.start()
        done = again.jobs.wait(run.id, 120)
    assert (done.status, done.reason) == (RunStatus.SUCCEEDED, "the input did not return 3 ids of its events")
    assert rows(url, "SELECT id FROM items WHERE times = 1 ORDER BY id") == [(1,), (3,)]
    application.stop()


def test_a_run_whose_process_was_killed_continues_in_another_and_repeats_nothing(url, jobs, tmp_path):
    settings = {"event-store.url": url, **LEASE, "jobs.pages.limit": 2}
    script = tmp_path / "main.py"
    script.write_text(MAIN.format(settings=settings, call="run()"))
    process = subprocess.Popen([sys.executable, script, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with made(url, jobs, tmp_path, **{"jobs.pages.limit": 2}) as application:
        try:
            asked = application.jobs.request("pages")
            until(lambda: list(tmp_path.glob(f"page-3-{process.pid}")))
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        (tmp_path / "go").touch()
        application.start()
        done = application.jobs.wait(asked.id, 120)
    assert (done.status, done.attempt, done.deaths, done.position.items) == (RunStatus.SUCCEEDED, 2, 1, 6)
    assert rows(url, "SELECT DISTINCT times FROM items") == [(1,)]


@pytest.mark.release  # as a run of a process, and the unit tests of the desk
@pytest.mark.parametrize(
    ("by", "overlap"),
    [("a process that runs jobs", "queue"), ("the next caller", "skip"), ("the next caller", "cancel")],
)
def test_a_run_here_whose_process_was_killed_continues_in_another_and_repeats_nothing(url, jobs, tmp_path, by, overlap):
    settings = {"jobs.pages.limit": 2, "jobs.pages.overlap": overlap}
    script = tmp_path / "main.py"
    call = "run_job('pages', [1, 2, 3, 4, 5, 6])"
    script.write_text(MAIN.format(settings={"event-store.url": url, **LEASE, **settings}, call=call))
    process = subprocess.Popen([sys.executable, script, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with made(url, jobs, tmp_path, **settings) as application:
        if by == "a process that runs jobs":
            application.start()
        try:
            until(lambda: list(tmp_path.glob(f"page-3-{process.pid}")))
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        (tmp_path / "go").touch()
        (left,) = application.jobs.runs("pages")
        if by == "the next caller":
            until(lambda: left.owner not in application.container.control_store().view().alive)
            own = application.run_job("pages", [12])
            assert (own.status, own.ids) == (RunStatus.SUCCEEDED, (12,))
        done = application.jobs.wait(left.id, 120)
    assert (done.status, done.attempt, done.deaths, done.position.items) == (RunStatus.SUCCEEDED, 2, 1, 6)
    assert rows(url, "SELECT DISTINCT times FROM items") == [(1,)]


def test_a_run_taken_over_by_another_process_commits_nothing_more(url, jobs, tmp_path):
    if url.startswith("sqlite"):
        pytest.skip("a page holds the file: nobody takes its run over meanwhile")
    with made(url, jobs, tmp_path, **{"jobs.pages.limit": 2}) as application, closing(Database(url)) as database:
        application.start()
        asked = application.jobs.request("pages")
        until(lambda: list(tmp_path.glob("page-3-*")))
        with database.writing() as connection:
            taken = f"UPDATE {database.prefix}opencqrs_job_runs SET token = token + 1 WHERE run_id = :run"
            connection.execute(text(taken), {"run": asked.id})
        with database.writing() as deciding:  # no process continues a run while the row of its job is locked
            held = f"UPDATE {database.prefix}opencqrs_jobs SET details = details WHERE job = 'pages'"
            deciding.execute(text(held))
            (tmp_path / "go").touch()
            until(lambda: not application._runner().runs.active)
            assert rows(url, "SELECT count(*) FROM items WHERE times = 1") == [(2,)]
        assert application.jobs.wait(asked.id, 120).position.items == 6
    assert rows(url, "SELECT DISTINCT times FROM items") == [(1,)]


def test_j11_a_cancelled_run_ends_and_records_who_cancelled_it(url, jobs, tmp_path):
    with made(url, jobs, tmp_path) as application:
        application.start()
        asked = application.jobs.request("slow")
        until((tmp_path / "slow").exists)
        application.jobs.cancel("slow", reason="not today", by="ada")
        done = application.jobs.wait(asked.id, 120)
    assert (done.status, done.reason) == (RunStatus.CANCELLED, "cancelled by ada: not today")


@pytest.mark.release  # as one of a process that runs jobs
def test_j11_a_cancelled_run_ends_in_a_process_that_runs_nothing_else(url, jobs, tmp_path):
    with made(url, jobs, tmp_path) as application, made(url, jobs, tmp_path) as other, ThreadPoolExecutor(1) as threads:
        try:
            run = threads.submit(application.run_job, "slow")
            until((tmp_path / "slow").exists)
            other.jobs.cancel("slow", reason="not today", by="ada")
            done = run.result(60)
        finally:
            (tmp_path / "go").touch()
    assert (done.status, done.reason) == (RunStatus.CANCELLED, "cancelled by ada: not today")


@pytest.mark.release  # as a cancelled run
def test_j12_a_new_run_cancels_one_of_a_process_that_runs_nothing_else(url, jobs, tmp_path):
    cancels = {"jobs.slow.overlap": "cancel"}
    with (
        made(url, jobs, tmp_path, **cancels) as application,
        made(url, jobs, tmp_path, **cancels) as other,
        ThreadPoolExecutor(2) as threads,
    ):
        try:
            first = threads.submit(application.run_job, "slow")
            until((tmp_path / "slow").exists)
            second = threads.submit(other.run_job, "slow")
            assert first.result(60).status is RunStatus.CANCELLED
        finally:
            (tmp_path / "go").touch()
        assert second.result(60).status is RunStatus.SUCCEEDED


@pytest.mark.parametrize("store", ["sqlite:///file:{}/log?vfs=memdb&uri=true", "file://{}/log.ndjson"])
@pytest.mark.parametrize("second", ["run_job", "start"])
def test_runs_recorded_only_in_memory_are_not_taken_from_each_other(store, second, monkeypatch, tmp_path):
    head, _, slow = JOBS.partition('@job("note")')[0], *JOBS.partition('@job("slow")')[1:]
    (tmp_path / "job_without_database.py").write_text(f'{head}@job("slow"){slow}')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "job_without_database", raising=False)
    jobs = __import__("job_without_database")
    (tmp_path / "log.ndjson").touch()
    settings = {"event-store.url": store.format(tmp_path), "event-handling.standard.processing.engine": "thread"}
    with Application(settings, [jobs], tmp_path) as application, ThreadPoolExecutor(2) as threads:
        try:
            first = threads.submit(application.run_job, "slow")
            until((tmp_path / "slow").exists)
            if second == "start":
                application.start(jobs=True)
            else:
                skipped = threads.submit(application.run_job, "slow")
                assert skipped.result(60).status is RunStatus.SKIPPED
            assert not first.done()
        finally:
            (tmp_path / "go").touch()
        assert first.result(60).status is RunStatus.SUCCEEDED


def test_a_paused_job_skips_its_ticks_and_still_runs_on_request(url, jobs, tmp_path):
    with made(url, jobs, tmp_path, **{"jobs.note.triggers.fixed-rate": "100ms"}) as application:
        application.jobs.pause("note", "holiday", by="ada")
        application.start()
        skipped = ended(application, "note")[0]
        assert (skipped.status, skipped.reason) == (RunStatus.SKIPPED, "the job is paused by ada: holiday")
        assert application.run_job("note").status is RunStatus.SUCCEEDED
        application.jobs.resume("note")
        until(lambda: [run for run in application.jobs.runs("note") if run.scheduled_at and run.started_at])


def test_pausing_a_paused_job_and_resuming_an_active_one_change_nothing_and_say_so(url, jobs, tmp_path, caplog):
    caplog.set_level("INFO", "opencqrs.jobs")
    with made(url, jobs, tmp_path) as application:
        paused = application.jobs.pause("note", "holiday", by="ada")
        assert application.jobs.pause("note", "repairs", by="bob") == paused
        assert application.jobs.pause("slow", by="ada") == application.jobs.pause("slow")
        resumed = application.jobs.resume("note")
        assert application.jobs.resume("note") == resumed
    said = [message for message in caplog.messages if message.startswith("[job ")]
    assert said == [
        "[job note] paused by ada",
        "[job note] is already paused by ada: holiday",
        "[job slow] paused by ada",
        "[job slow] is already paused by ada",
        f"[job note] resumed by {actor()}",
        "[job note] is not paused",
    ]


@pytest.mark.release  # as the unit tests of the desk
def test_the_schedule_of_the_process_started_last_applies(url, jobs, tmp_path):
    hourly = {"jobs.note.triggers.fixed-rate": "1h"}
    quick = {"jobs.note.triggers.fixed-rate": "200ms"}
    with made(url, jobs, tmp_path, **hourly) as first, made(url, jobs, tmp_path, **quick) as second:
        first.start()
        ended(first, "note")
        second.start()
        ended(first, "note", 4)
        second.stop()
        until(lambda: first.jobs.statuses()[0].record.schedule == "every 3600 s")


def test_j20_jobs_are_listed_with_their_runs_and_nodes(url, jobs, tmp_path):
    with made(url, jobs, tmp_path, **{"node.name": "n1", "jobs.note.triggers.cron": "0 3 * * *"}) as application:
        application.start()
        application.run_job("note")
        note, pages, slow = application.jobs.statuses()
        until(lambda: application.jobs.statuses()[0].record)
    assert [note.job.name, pages.job.name, slow.job.name] == ["note", "pages", "slow"]
    assert (note.rule.ticking.text, note.nodes, note.last.status) == ("0 3 * * * (UTC)", ("n1",), RunStatus.SUCCEEDED)
    assert (slow.last, slow.open, slow.nodes) == (None, (), ("n1",))


def test_all_errors_of_jobs_are_reported_together_at_the_start(make_module, tmp_path):
    module = make_module(
        "from opencqrs_py import Event, job\n"
        "@job('a')\ndef a(event: Event) -> None: ...\n"
        "@job('b')\ndef b(wrong: int) -> None: ...\n"
    )
    with Application({}, [module], tmp_path) as application, pytest.raises(AssemblyErrors) as raised:
        application.start()
    assert "a job runs without any event and cannot have event" in str(raised.value)
    assert "parameter 'wrong: int' cannot be filled" in str(raised.value)


def test_an_unknown_job_name_is_refused_with_the_nearest_one(url, jobs, tmp_path):
    with made(url, jobs, tmp_path) as application, pytest.raises(JobError, match="did you mean pages"):
        application.run_job("page")

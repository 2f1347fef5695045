"""Metrics and logs of jobs, while processes run them."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from threading import Event, current_thread
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event
from sqlalchemy.engine import Engine

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.assembly import serving
from opencqrs_py.assembly.jobs.health import judged_job
from opencqrs_py.assembly.jobs.jobs import Jobs
from opencqrs_py.cli.jobs import _print_statuses
from opencqrs_py.errors import EventStoreError
from opencqrs_py.jobs import execution
from opencqrs_py.jobs.runs import RunStatus
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.testing.clock import FakeClock
from opencqrs_py.web.cached_queries import CachedQuery

CODE = """
from opencqrs_py import Event, JobContext, event_handling, job
from opencqrs_py.errors import UnavailableError

@event_handling("group", types=["*"])
def handle(event: Event) -> None:
    pass

for number in range({jobs}):
    def call(context: JobContext) -> None:
        if "poison" in context.ids:
            raise ValueError("poison")
        if context.run.endswith("outage"):
            raise UnavailableError("OCQ-420", "no archive")
    call.__name__ = f"job_{{number}}"
    job(f"job-{{number}}", input=lambda: ["a", "b"])(call)
"""
LOOKING = {"opencqrs-look", "opencqrs-jobs-look"}
LONG = 60.0
LOOKS = 10_000
Make = Callable[..., Application]


@pytest.fixture
def make(make_module, tmp_path, monkeypatch) -> Iterator[Make]:
    """Makes an application with jobs, which takes a new look for each request over HTTP."""
    monkeypatch.setattr(serving, "CachedQuery", lambda look, name: CachedQuery(look, name, kept=0.0))
    made: list[Application] = []

    def make(jobs: int = 1, **settings: object) -> Application:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        standard = {"event-handling.standard.processing.engine": "thread", "jobs.standard.retry.policy": "none"}
        given = {"http.bind": 0, **standard, **settings}
        made.append(Application(given, [make_module(CODE.format(jobs=jobs))], folder))
        return made[-1]

    yield make
    for application in made:
        application.stop()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def database(request) -> dict[str, object]:
    """The settings of each database."""
    url = "sqlite:///read.db" if request.param == "sqlite" else request.getfixturevalue("fresh_url")("postgresql")
    return {"database.url": url}


def metrics(application):
    """Return the value of each sample of jobs, by its name and the values of its labels."""
    host, _, port = application._life.serving.url.removeprefix("http://").rpartition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=LONG)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    found = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    return {
        (key[0].removeprefix("opencqrs_job_"), *key[1:]): value
        for key, value in found.items()
        if key[0].startswith("opencqrs_job_")
    }


def wait_until(condition):
    for _ in range(LOOKS):
        if condition():
            return
        time.sleep(0.001)
    pytest.fail("it was never so")


def test_jobs_are_reported_while_the_event_store_refuses(make, monkeypatch):
    def refuse(_served: object) -> None:
        raise EventStoreError("OCQ-332", "the store does not accept the API token", "here", "set it")

    monkeypatch.setattr(serving.Served, "look", refuse)
    made = make()
    made.start()
    wait_until(lambda: metrics(made).get(("paused", "job-0")) == 0)


def test_hanging_databases_delay_metrics_once_and_not_for_groups_and_jobs_each(make, monkeypatch):
    left, clock, calls = Event(), FakeClock(), []

    class Hanging(CachedQuery):
        def begin(self):
            awaited, name = super().begin(), self._thread.name
            calls.append(name)

            def wait(patience: float) -> object:
                calls.append((name, patience))
                clock.advance(patience)
                return awaited(0.0)

            return wait

    monkeypatch.setattr(serving, "CachedQuery", Hanging)
    monkeypatch.setattr(serving, "time", SimpleNamespace(time=time.time, monotonic=clock.monotonic))
    monkeypatch.setattr(serving.Served, "look", lambda _: left.wait(LONG))
    monkeypatch.setattr(Jobs, "statuses", lambda _: left.wait(LONG))
    made = make()
    made.start()
    assert not [key for key in metrics(made) if "job-0" in key]
    left.set()
    groups, jobs = "opencqrs-look", "opencqrs-jobs-look"
    assert calls == [groups, jobs, (groups, 4.0), (jobs, 0.0)]


@pytest.mark.release(database="sqlite")
def test_runs_are_counted_by_the_process_that_ended_them_and_job_states_by_all(make, database):
    made = make(**database, **{"jobs.job-0.triggers.cron": "0 3 1 1 *"})
    made.start()
    for ids in (None, ["a"], ["poison"]):
        made.jobs.wait(made.jobs.request("job-0", ids).id, LONG)
    wait_until(lambda: metrics(made)["run_seconds_count", "job-0"] == 3)
    made.jobs.pause("job-0")
    found = metrics(made)
    assert found["runs_total", "job-0", "succeeded"] == 3
    assert found["items_total", "job-0"] == 3  # "poison" is none of the ids that the input yields
    assert found["last_success_timestamp_seconds", "job-0"] > 1_700_000_000
    assert found["next_tick_timestamp_seconds", "job-0"] > found["last_success_timestamp_seconds", "job-0"]
    assert found["paused", "job-0"] == 1
    assert [found["open_runs", "job-0", status] for status in ("queued", "running", "retrying")] == [0, 0, 0]
    with Application(made.configuration, made.blueprint.modules, made.project) as other:
        other.start(jobs=False)
        queued = other.jobs.runs("job-0")
        seen = metrics(other)
    assert len(queued) == 3
    assert seen["runs_total", "job-0", "succeeded"] == 0
    same = ("last_success_timestamp_seconds", "next_tick_timestamp_seconds", "paused")
    assert {name: seen[name, "job-0"] for name in same} == {name: found[name, "job-0"] for name in same}


@pytest.mark.release(database="sqlite")
def test_a_run_that_waits_for_a_database_is_shown_as_waiting_with_the_error(make, database, monkeypatch, capsys):
    monkeypatch.setattr(execution, "OUTAGE_BACK_OFF", FixedBackOff(LONG))
    made = make(**database)
    made.start()
    asked = made.jobs.request("job-0", key="outage")
    wait_until(lambda: made.jobs.find(asked.id).error)
    found = metrics(made)
    assert [found["open_runs", "job-0", state] for state in ("running", "waiting")] == [0, 1]
    (status,) = made.jobs.statuses()
    _print_statuses([status], "")
    shown = capsys.readouterr().out
    assert "waiting" in shown
    assert "job-0: UnavailableError: no archive" in shown
    assert judged_job(status, LONG, unowned=False).state == "waiting"
    made.jobs.cancel("job-0", reason="enough", by="ada")
    ended = made.jobs.wait(asked.id, LONG)
    assert (ended.status, ended.reason, ended.attempt) == (RunStatus.CANCELLED, "cancelled by ada: enough", 1)
    assert ended.error.startswith("UnavailableError: no archive")


@pytest.mark.release(database="sqlite")
def test_statements_of_a_request_do_not_grow_with_jobs(make, database, monkeypatch):
    sent: list[str] = []
    fetch = Database.fetch

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if current_thread().name in LOOKING:
            sent.append(statement)

    def fetched(database: Database, statement: str, *values: object) -> object:
        note(None, None, statement)
        return fetch(database, statement, *values)

    monkeypatch.setattr(Database, "fetch", fetched)
    event.listen(Engine, "before_cursor_execute", note)
    try:
        counts = []
        for jobs in (1, 5):
            made = make(jobs, **database)
            made.start()
            for number in range(jobs):
                made.jobs.wait(made.jobs.request(f"job-{number}").id, LONG)
            metrics(made)
            sent.clear()
            assert len([key for key in metrics(made) if key[0] == "paused"]) == jobs
            counts.append(len(sent))
            made.stop()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert counts[0] == counts[1]
    assert sum("opencqrs_job" in each for each in sent) == 3, sent  # a look, and two for the runs that ended last


def warned(caplog):
    return [each for each in caplog.messages if "has taken" in each]


def test_a_run_that_exceeds_its_budget_is_warned_of_while_it_runs(make_module, tmp_path, caplog):
    entered, left = Event(), Event()
    module = make_module(
        """
from opencqrs_py import job
entered = left = None

@job("slow")
def slow() -> None:
    entered.set()
    assert left.wait(60)
"""
    )
    module.entered, module.left = entered, left
    with Application({"jobs.slow.time-budget": "60s"}, [module], tmp_path) as made:
        clock = FakeClock()
        made.container.clock.override(clock)
        made.start()
        run = made.jobs.request("slow")
        assert entered.wait(LONG)
        for warnings in (1, 2):
            clock.advance(90)
            made._runner().wake()
            wait_until(lambda warnings=warnings: len(warned(caplog)) == warnings)
        clock.advance(500)
        left.set()
        made.jobs.wait(run.id, LONG)
    assert [each.partition(", ")[0] for each in warned(caplog)] == [
        f"[job slow] run {run.id} has taken {minutes} min {seconds} s so far" for minutes, seconds in ((1, 30), (3, 0))
    ]

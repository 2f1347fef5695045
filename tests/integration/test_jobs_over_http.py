"""Jobs that are listed and started over HTTP, with the token."""

from __future__ import annotations

import http.client
import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event
from threading import enumerate as threads

import pytest
from support.relay import relayed

from opencqrs_py import Application
from opencqrs_py.adapters.memory import InMemoryJobStore
from opencqrs_py.assembly.jobs import serving as serving_jobs
from opencqrs_py.assembly.jobs.rows import job_row, run_row
from opencqrs_py.model.masking import remember

CODE = """
from opencqrs_py import Event, JobContext, event_handling, job

@event_handling("group", types=["*"])
def handle(event: Event) -> None:
    pass

@job("send reminders/all")
def remind(context: JobContext) -> None:
    if "poison" in context.ids:
        raise ValueError("no hunter22")
"""
RUNS = "/jobs/Send%20Reminders%2Fall/runs"
TOKEN = "t0ken-of-the-test"
IN_MEMORY = {"event-store.url": "file:events.ndjson"}
LONG = 60.0
LOOKS = 10_000
Make = Callable[..., Application]


@pytest.fixture
def make(make_module, tmp_path) -> Iterator[Make]:
    """Starts an application with a job, on a free port of loopback; it runs jobs only if requested."""
    made: list[Application] = []

    def make(*, jobs: bool = False, code: str = CODE, **settings: object) -> Application:
        standard = {"event-handling.standard.processing.engine": "thread", "jobs.standard.retry.policy": "none"}
        given = {"http.bind": 0, "http.token": TOKEN, **standard, **settings}
        (tmp_path / "events.ndjson").touch()
        made.append(Application(given, [make_module(code)], tmp_path))
        made[-1].start(jobs=jobs)
        return made[-1]

    yield make
    for application in made:
        application.stop()


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def database(request) -> dict[str, object]:
    """The settings of each place in which runs are recorded."""
    if request.param == "memory":
        return IN_MEMORY
    url = "sqlite:///read.db" if request.param == "sqlite" else request.getfixturevalue("fresh_url")("postgresql")
    return {"database.url": url}


def asked(application, path=RUNS, method="POST", body=None, token=TOKEN, **headers):
    """Return status, headers and text of an answer."""
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    host, _, port = application._life.serving.url.removeprefix("http://").rpartition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=LONG)) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read().decode()


def wait_until(condition):
    for _ in range(LOOKS):
        if condition():
            return
    pytest.fail("it was never so")


def test_j8_a_run_can_be_requested_in_any_spelling_and_is_returned_as_the_command_shows_it(make, database):
    made = make(**database)
    status, headers, text = asked(made, body=b'{"ids": ["4711", 7]}')
    run = json.loads(text)
    assert (status, headers["Content-Type"]) == (202, "application/json")
    assert run == json.loads(json.dumps(run_row(made.jobs.find(run["run"]), made.jobs.now)))
    said = {name: run[name] for name in ("job", "trigger", "status", "ids", "actor")}
    expected = {"job": "send reminders/all", "trigger": "http", "status": "queued", "ids": ["4711", 7], "actor": "http"}
    assert said == expected
    for_all = json.loads(asked(made)[2])
    assert for_all["ids"] is None
    listed = json.loads(asked(made, method="GET")[2])
    assert {each["run"] for each in listed} == {run["run"], for_all["run"]}


def test_a_requested_run_is_begun_by_a_process_that_runs_jobs(make, database):
    made = make(jobs=True, **database)
    run = json.loads(asked(made)[2])["run"]
    wait_until(lambda: json.loads(asked(made, method="GET")[2])[0]["status"] == "succeeded")
    assert made.jobs.find(run).status == "succeeded"


def test_jobs_are_listed_as_the_command_lists_them(make, database):
    made = make(**database, **{"jobs.send reminders/all.triggers.cron": "0 3 * * *"})
    status, _, text = asked(made, "/jobs", "GET")
    (row,) = json.loads(text)
    assert status == 200
    assert row == json.loads(json.dumps([job_row(each) for each in made.jobs.statuses()]))[0]
    assert (row["job"], row["schedule"]) == ("send reminders/all", "0 3 * * * (UTC)")


def test_a_request_repeated_with_its_key_returns_the_same_run(make, database):
    made = make(**database)
    first = json.loads(asked(made, body=b'{"ids": [1]}', Idempotency_Key="order 1")[2])
    again = asked(made, body=b'{"ids": [1]}', Idempotency_Key="order 1")
    assert (again[0], json.loads(again[2])) == (202, first)
    assert json.loads(asked(made, body=b'{"ids": [1]}', Idempotency_Key="Order 1")[2])["run"] != first["run"]
    assert json.loads(asked(made, body=b'{"ids": [1]}')[2])["run"] != first["run"]
    for body in (b'{"ids": [2]}', b'{"ids": ["1"]}', b""):
        status, _, text = asked(made, body=body, Idempotency_Key="order 1")
        assert status == 422
        assert text.startswith(
            "run 'send reminders/all:key:order 1' exists already, and is for other ids; use a new key"
        )
    assert len(made.jobs.runs()) == 3


def test_many_concurrent_requests_with_one_key_make_one_run(make, database):
    made = make(**database)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: asked(made, Idempotency_Key="once"), range(8)))
    assert {status for status, _, _ in answers} == {202}
    assert len({json.loads(text)["run"] for _, _, text in answers}) == len(made.jobs.runs()) == 1


@pytest.mark.few  # the others are refused in unit tests
@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"token": None}, 401, "send the token of http.token:"),
        ({"token": "another"}, 401, "send the token of http.token:"),
        ({"token": None, "method": "GET"}, 401, "send the token"),
        ({"token": None, "method": "GET", "path": "/jobs"}, 401, "send the token"),
        ({"token": None, "path": "/jobs/nothing/runs"}, 401, "send the token"),
        ({"token": None, "body": b"x" * 65_537}, 413, "at most 65,536 are allowed"),
        ({"body": b"x" * 65_537}, 413, "at most 65,536 are allowed"),
        ({"body": b'{"id": 1}'}, 400, "unknown key 'id'"),
        ({"path": f"{RUNS}?id=4711"}, 400, "no parameters are read from the address; ids belong in the body"),
        ({"path": "/jobs?limit=1", "method": "GET"}, 400, "no parameters"),
        ({"path": "/jobs/send%20reminder%2Fall/runs"}, 404, "there is no job 'send reminder/all'; did you mean send r"),
        ({"path": "/jobs/x%0Ay/runs"}, 404, "there is no job 'x y'; jobs: send reminders/all"),
        ({"path": "/jobs/%FF/runs", "method": "GET"}, 404, "there is no job"),
        ({"path": "/jobs/send%20reminders%2Fall"}, 404, "not found; there is "),
        ({"path": "/jobs//runs"}, 404, "not found; there is "),
        ({"path": "/jobs"}, 405, "method not allowed"),
        ({"method": "PUT"}, 405, "method not allowed"),
        ({"Idempotency_Key": "x" * 65}, 400, "Idempotency-Key takes 1 to 64"),
    ],
)
def test_a_refused_request_gets_one_line_and_records_no_run(make, changes, status, says):
    made = make()
    found, headers, text = asked(made, **{"path": RUNS, **changes})
    assert (found, text.count("\n")) == (status, 1)
    assert says in text
    assert headers.get("WWW-Authenticate") == ('Bearer realm="opencqrs"' if status == 401 else None)
    assert made.jobs.runs() == []


@pytest.mark.parametrize(("path", "method"), [(RUNS, "POST"), (RUNS, "GET"), ("/jobs", "GET")])
def test_without_a_configured_token_every_request_is_refused(make, path, method):
    made = make(**{"http.token": None})
    status, _, text = asked(made, path, method, token="None")
    assert status == 403
    assert text == "jobs need a token, and none is set: set http.token\n"
    assert made.jobs.runs() == []


def test_a_project_without_jobs_has_no_paths_for_jobs(make, caplog):
    with caplog.at_level(logging.INFO):
        made = make(code=CODE.partition("@job")[0])
    assert asked(made)[0] == asked(made, "/jobs", "GET")[0] == 404
    (line,) = (each for each in caplog.messages if each.startswith("answering on"))
    assert "/jobs" not in line
    assert not [thread for thread in threads() if thread.name == "opencqrs-asked"]


def test_the_token_is_in_no_log_and_no_response(make, caplog):
    remember(["hunter22"])
    with caplog.at_level(logging.DEBUG):
        made = make(jobs=True)
        texts = [asked(made, body=b'{"ids": ["poison"]}')[2]]
        wait_until(lambda: json.loads(asked(made, method="GET")[2])[0]["status"] == "failed")
        for method, path in (("GET", RUNS), ("GET", "/jobs"), ("GET", "/metrics"), ("GET", "/status"), ("POST", "/x")):
            texts.append(asked(made, path, method)[2])
        texts.append(asked(made, token=f"{TOKEN}x")[2])
    assert "no ***" in texts[1]
    assert not any(secret in text for secret in (TOKEN, "hunter22") for text in texts)
    assert TOKEN not in caplog.text + "".join(str(vars(record)) for record in caplog.records)


@pytest.mark.postgresql
def test_during_an_outage_a_run_is_refused_and_can_be_requested_again(make, fresh_url):
    with relayed(fresh_url("postgresql")) as (relay, url):
        made = make(**{"database.url": url})
        first = json.loads(asked(made, Idempotency_Key="k")[2])
        relay.stop()
        for method, path in (("POST", RUNS), ("GET", RUNS), ("GET", "/jobs")):
            status, headers, text = asked(made, path, method, Idempotency_Key="k")
            assert (status, headers["Retry-After"]) == (503, "1")
            assert text.startswith("unavailable: ")
            assert ("the same Idempotency-Key" in text) == (method == "POST")
        relay.start()
        wait_until(lambda: asked(made, Idempotency_Key="k")[0] == 202)
        assert [run.id for run in made.jobs.runs()] == [first["run"]]


def test_a_hanging_database_delays_neither_other_requests_nor_the_stop(make, monkeypatch):
    left = Event()
    monkeypatch.setattr(serving_jobs, "_PATIENCE", 0.01)
    monkeypatch.setattr(InMemoryJobStore, "request", lambda *_: left.wait(LONG))
    made = make(**IN_MEMORY)
    for _ in range(40):  # more than requests at once
        status, _, text = asked(made)
        assert (status, text.startswith("unavailable: the databases have not answered within 0.01 s")) == (503, True)
    assert asked(made, "/health/live", "GET")[0] == 200
    made.stop()
    left.set()

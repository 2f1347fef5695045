"""What a process that runs processors answers over HTTP to probes and Prometheus."""

from __future__ import annotations

import http.client
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, current_thread
from threading import enumerate as threads
from types import ModuleType, SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event
from sqlalchemy.engine import Engine
from support.relay import relayed

from opencqrs_py import Application, NonTransientError
from opencqrs_py.assembly import serving
from opencqrs_py.assembly.rows import group_rows
from opencqrs_py.errors import AssemblyError, EventStoreError
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.masking import remember
from opencqrs_py.web.cached_queries import CachedQuery

HANDLERS = """
from opencqrs_py import Event, NonTransientError, event_handling
from sqlalchemy import Connection

for number in range({groups}):
    def handler(event: Event, connection: Connection) -> None:
        if event.id == "{poison}":
            raise NonTransientError("no hunter22")
    handler.__name__ = f"handler_{{number}}"
    event_handling(f"group-{{number}}", types=["*"])(handler)
"""
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "watch-in-production.md"
LONG = 60.0
LOOKS = 10_000
LOOKING = {"opencqrs-look", "opencqrs-status"}
Make = Callable[..., Application]


@pytest.fixture
def make(make_module, tmp_path) -> Iterator[Make]:
    """Makes an application with events, which listens on a free port of loopback."""
    made: list[Application] = []

    def make(groups: int = 1, poison: str = "", **settings: object) -> Application:
        handlers: ModuleType = make_module(HANDLERS.format(groups=groups, poison=poison))
        folder = tmp_path / str(len(made))
        folder.mkdir()
        given = {"http.bind": 0, "event-handling.standard.processing.engine": "thread", **settings}
        made.append(Application(given, [handlers], folder))
        lines = (f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/x/{n}", "data": {{}}}}' for n in range(50))
        made[-1].event_store.append(map(parse_event, lines))
        return made[-1]

    yield make
    for application in made:
        application.stop()


@pytest.fixture
def patient_probes(monkeypatch) -> None:
    """Lets the databases take as long as a busy machine makes them."""
    monkeypatch.setattr(serving, "_PROBE_SECONDS", LONG)


@pytest.fixture
def looks_are_not_kept(monkeypatch) -> None:
    """Takes a new look for each request."""
    monkeypatch.setattr(serving, "CachedQuery", lambda look, name: CachedQuery(look, name, kept=0.0))


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The statements that looks have sent; processors and heartbeats, in threads of their own, do not count."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if current_thread().name in LOOKING:
            sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield sent
    event.remove(Engine, "before_cursor_execute", note)


def asked(application, path, method="GET"):
    """Return status and text of an answer."""
    host, _, port = application._life.serving.url.removeprefix("http://").rpartition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=LONG)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()


OF_THE_HEAD = {("opencqrs_event_store_head_position",), ("opencqrs_partition_lag_events", "group-0", "0/1")}


OF_A_PARTITION = ("position", "lag", "lag_events", "lag_seconds")


def metrics(application):
    """Return the value of each sample, by its name and the values of its labels."""
    status, text = asked(application, "/metrics")
    assert status == 200
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def wait_until(condition):
    for _ in range(LOOKS):
        if condition():
            return
    pytest.fail("it was never so")


@pytest.mark.usefixtures("looks_are_not_kept", "patient_probes")
@pytest.mark.parametrize("engine", ["thread", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_running_process_is_alive_and_ready_and_serves_metrics_and_status(engine, make, request):
    if engine == "spark":
        request.getfixturevalue("spark")
    made = make(**{"event-handling.standard.processing.engine": engine, "node.name": "blue"})
    made.start()
    wait_until(lambda: metrics(made).get(("opencqrs_events_handled_total", "group-0", "0/1")) == 50)
    assert asked(made, "/health/live") == (200, "alive\n")
    assert asked(made, "/health/ready") == (200, "ready: has 1 partition\n")
    found = metrics(made)
    assert found["opencqrs_event_store_head_position",] == 50
    assert found["opencqrs_databases_reachable",] == found["opencqrs_partitions_held",] == 1
    assert found["opencqrs_nodes_alive",] == 1
    assert found["opencqrs_node_start_time_seconds",] > 1_700_000_000
    assert {key[1] for key in found if key[0] == "opencqrs_node_info"} == {"blue"}
    of_partition = {key[0].removeprefix("opencqrs_"): value for key, value in found.items() if "group-0" in key[1:]}
    assert of_partition.pop("partition_last_progress_timestamp_seconds") > 1_700_000_000
    if engine == "spark":
        assert of_partition.pop("spark_tasks") in (0, 1)
        assert found["opencqrs_spark_slots",] in (0, 2)  # the driver may have been faster than Spark
        assert 0 <= found["opencqrs_spark_events_handled_by_driver_total",] <= 50
    assert of_partition == {
        "partition_state": 1,
        "partition_position": 50,
        "partition_lag_events": 0,
        "partition_held": 1,
        "partition_attempts": 0,
        "partition_claims_total": 1,
        "events_handled_total": 50,
        "events_skipped_total": 0,
        "attempts_failed_total": 0,
        "partition_failures_total": 0,
        "partition_outages_total": 0,
        "parked_events": 0,
    }


def test_exactly_the_documented_metrics_are_served(make):
    made = make()
    made.start()
    wait_until(lambda: any(name == "opencqrs_events_handled_total" for name, *_ in metrics(made)))
    documented = re.findall(r"^\| `(opencqrs_(?!spark_|job_)\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert sorted(documented) == sorted({name for name, *_ in metrics(made) if not name.endswith("_created")})


@pytest.mark.usefixtures("looks_are_not_kept")
def test_the_status_equals_that_of_the_command(make):
    made = make(groups=2)
    made.start()
    wait_until(lambda: all(status.lag == 0 and status.partitions for status in made.status()))
    status, text = asked(made, "/status")
    assert status == 200
    found, known = json.loads(text), group_rows(made.status())
    assert [group["group"] for group in found] == ["group-0", "group-1"]
    for here, there in zip(found, known, strict=True):
        for one, other in zip(here.pop("partitions"), there.pop("partitions"), strict=True):
            assert one.keys() == other.keys()
            for key in ("partition", "position", "state", "owner", "owned_since", "wanted", "lag_seconds"):
                assert one[key] == other[key]
            assert one["updated_at"] is not None
        assert here == there
    (partition,) = json.loads(asked(made, "/status")[1])[0]["partitions"]
    assert partition["events_per_second"] == 0.0


@pytest.mark.release  # the load is in metrics and status, above
@pytest.mark.spark
@pytest.mark.usefixtures("looks_are_not_kept", "spark")
def test_another_process_sees_the_load_of_a_node_on_spark(make):
    made = make(**{"event-handling.standard.processing.engine": "spark", "node.name": "blue"})
    made.start()
    (own,) = json.loads(asked(made, "/status")[1])[0]["spark"]
    assert own.keys() == {"node", "tasks", "slots", "executors", "handled_by_driver"}
    with Application(made.configuration, made.blueprint.modules, made.project) as other:
        seen = [own]
        wait_until(lambda: (seen.append(group_rows(other.status())[0]["spark"][0]), seen[-1]["slots"])[1] == 2)
        assert (seen[-1]["node"], seen[-1]["executors"]) == ("blue", None)
        made.stop()
        assert group_rows(other.status())[0]["spark"] == []


def test_by_default_no_server_listens(make):
    made = make(**{"http.bind": None})
    made.start()
    assert made._life.serving is None
    assert not [thread for thread in threads() if thread.name in {"opencqrs-http", "opencqrs-look"}]


def test_after_the_stop_no_server_listens(make):
    made = make()
    made.start()
    url = made._life.serving.url
    made.stop()
    assert not [thread for thread in threads() if thread.name in {"opencqrs-http", "opencqrs-look", "opencqrs-status"}]
    with pytest.raises(ConnectionRefusedError), closing(http.client.HTTPConnection(url.removeprefix("http://"))) as one:
        one.request("GET", "/health/live")


def test_a_port_in_use_is_an_error_of_the_start_that_names_the_setting(make):
    first = make()
    first.start()
    address = first._life.serving.url.removeprefix("http://")
    second = make(**{"http.bind": address})
    with pytest.raises(AssemblyError) as raised:
        second.start()
    assert raised.value.code == "OCQ-538"
    assert raised.value.what == f"nothing can listen on {address}: address already in use"
    assert raised.value.where == "http.bind (default given in code)"
    first.stop()
    second.start()
    assert asked(second, "/health/live")[0] == 200


def test_without_the_client_of_prometheus_the_start_is_refused_with_what_to_install(make, monkeypatch):
    monkeypatch.delitem(sys.modules, "opencqrs_py.web.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(AssemblyError) as raised:
        make().start()
    assert (raised.value.code, raised.value.fix) == ("OCQ-539", "pip install 'opencqrs-py[http]'")


@pytest.mark.release(path="/health/ready")
@pytest.mark.usefixtures("looks_are_not_kept")
@pytest.mark.parametrize("path", ["/metrics", "/health/ready"])
def test_statements_of_a_request_do_not_grow_with_groups_and_partitions(path, make, statements):
    sent = []
    for groups, partitions in ((1, 1), (5, 20)):
        made = make(groups, **{"event-handling.standard.life-cycle.partitions": partitions})
        made.start()
        wait_until(lambda made=made: all(status.lag == 0 and status.partitions for status in made.status()))
        asked(made, path)  # the first one makes sure that the tables exist
        statements.clear()
        asked(made, path)
        sent.append(statements.copy())
        made.stop()
    assert len(sent[0]) == len(sent[1]), sent
    assert 1 <= len(sent[0]) <= 4


def test_simultaneous_requests_share_one_look(make, monkeypatch):
    looks = []
    original = serving.Served.look
    monkeypatch.setattr(serving.Served, "look", lambda served: looks.append(1) or original(served))
    monkeypatch.setattr(serving, "CachedQuery", lambda look, name: CachedQuery(look, name, now=lambda: 0.0))
    made = make()
    made.start()
    for path in ("/metrics", "/health/ready", "/metrics", "/health/ready"):
        asked(made, path)
    assert len(looks) == 1


@pytest.mark.usefixtures("looks_are_not_kept", "patient_probes")
def test_a_failed_partition_is_reported_without_secrets(make):
    remember(["hunter22"])
    made = make(poison="7")
    made.start()
    wait_until(lambda: metrics(made).get(("opencqrs_partition_state", "group-0", "0/1", "failed")) == 1)
    found = metrics(made)
    assert found["opencqrs_partition_failures_total", "group-0", "0/1"] == 1
    assert found["opencqrs_attempts_failed_total", "group-0", "0/1"] == 1
    assert found["opencqrs_partition_attempts", "group-0", "0/1"] == 1
    assert found["opencqrs_partition_lag_events", "group-0", "0/1"] == 43
    assert asked(made, "/health/ready")[0] == asked(made, "/health/live")[0] == 200
    text = asked(made, "/status")[1]
    assert "no ***" in text
    assert "hunter22" not in text


@pytest.mark.usefixtures("patient_probes")
def test_a_node_without_partitions_is_ready_as_it_stands_by(make):
    first = make()
    first.start()
    second = Application(
        {"http.bind": 0, "event-handling.standard.processing.engine": "thread"}, first.blueprint.modules, first.project
    )
    second.start()
    try:
        assert asked(second, "/health/ready") == (200, "ready: stands by\n")
    finally:
        second.stop()


@pytest.mark.parametrize(
    ("processors", "says"),
    [
        (None, "not ready: it is starting\n"),
        (SimpleNamespace(started=False, stopping=False, check=lambda: None), "not ready: it is starting\n"),
        (SimpleNamespace(started=True, stopping=True, check=lambda: None), "not ready: it is stopping\n"),
        (
            SimpleNamespace(started=True, stopping=False, check=lambda: None, coordinator=SimpleNamespace(view=None)),
            "not ready: the leases of this node have ended, and it cannot reach the database to take new ones\n",
        ),
    ],
)
def test_a_process_that_cannot_handle_events_is_alive_and_not_ready(processors, says, make):
    made = make()
    made.start()
    running, made._life.processors = made._life.processors, processors
    try:
        assert asked(made, "/health/ready") == (503, says)
        assert asked(made, "/health/live") == (200, "alive\n")
    finally:
        made._life.processors = running


def test_a_process_whose_threads_have_ended_is_not_alive(make):
    def check():
        raise NonTransientError("the coordination has ended")

    made = make()
    made.start()
    running, made._life.processors = made._life.processors, SimpleNamespace(check=check)
    try:
        assert asked(made, "/health/live") == (503, "dead: NonTransientError: the coordination has ended\n")
    finally:
        made._life.processors = running


@pytest.mark.postgresql
@pytest.mark.usefixtures("looks_are_not_kept")
def test_while_the_database_is_stopped_or_hangs_a_process_is_alive_and_not_ready(make, fresh_url):
    with relayed(fresh_url("postgresql")) as (relay, url):
        made = make(**{"database.url": url, "event-store.url": url})
        made.start()
        wait_until(lambda: asked(made, "/health/ready")[0] == 200)
        assert metrics(made).keys() >= OF_THE_HEAD
        relay.stop()
        status, text = asked(made, "/health/ready")
        assert (status, text.startswith("not ready: [OCQ-304] ")) == (503, True)
        assert asked(made, "/health/live") == (200, "alive\n")
        found = metrics(made)
        assert found["opencqrs_databases_reachable",] == 0
        assert not found.keys() & OF_THE_HEAD, "an alert that is based on them would end"
        status, text = asked(made, "/status")  # its own partitions answer for themselves
        assert (status, lags_in(text)) == (200, [("group-0", None, None, [(50, None, None, None)])])
        relay.start()
        wait_until(lambda: asked(made, "/health/ready")[0] == 200)
        found = metrics(made)
        assert found["opencqrs_databases_reachable",] == 1
        assert found.keys() >= OF_THE_HEAD


@pytest.mark.usefixtures("looks_are_not_kept", "patient_probes")
def test_while_the_event_store_refuses_partitions_are_still_served(make, monkeypatch):
    made = make()
    made.start()
    wait_until(lambda: metrics(made).get(("opencqrs_partition_position", "group-0", "0/1")) == 50)

    def refuse(_store: object) -> int:
        raise EventStoreError("OCQ-332", "the store does not accept the API token", "here", "set it")

    monkeypatch.setattr(type(made.event_store), "head", refuse)
    status, text = asked(made, "/health/ready")
    assert (status, text.startswith("not ready: [OCQ-332] ")) == (503, True)
    found = metrics(made)
    assert found["opencqrs_databases_reachable",] == 0
    assert found["opencqrs_partition_position", "group-0", "0/1"] == 50
    assert not found.keys() & OF_THE_HEAD
    status, text = asked(made, "/status")
    assert (status, lags_in(text)) == (200, [("group-0", None, None, [(50, None, None, None)])])
    (seen,) = made.status()
    assert (seen.head, seen.lag) == (None, None)


def lags_in(text):
    """Return head and lags of each group in a status, and the position and lags of its partitions."""
    return [
        (
            row["group"],
            row["head"],
            row["lag"],
            [tuple(each[key] for key in OF_A_PARTITION) for each in row["partitions"]],
        )
        for row in json.loads(text)
    ]


def test_hanging_databases_delay_neither_probes_nor_the_stop(make, monkeypatch):
    left = Event()
    monkeypatch.setattr(serving.Served, "look", lambda _: left.wait(LONG))
    monkeypatch.setattr(serving, "_READ_SECONDS", 0.01)
    made = make()
    made.start()
    assert asked(made, "/health/ready") == (503, "not ready: the databases have not answered within 0.8 s\n")
    assert asked(made, "/health/live")[0] == 200
    assert metrics(made)["opencqrs_databases_reachable",] == 0
    assert asked(made, "/status") == (503, "no status: the databases have not answered within 0.01 s\n")
    made.stop()
    left.set()


def test_the_address_is_logged(make, caplog):
    with caplog.at_level(logging.INFO):
        made = make()
        made.start()
        url = made._life.serving.url
    assert f"answering on {url}: /health/live, /health/ready, /metrics, /status" in caplog.messages
    assert url.startswith("http://127.0.0.1:")

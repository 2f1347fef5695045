"""The Python API: everything that the command line does, as calls."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Barrier, Event, current_thread
from threading import enumerate as threads
from types import ModuleType
from unittest.mock import Mock

import pytest
from sqlalchemy import make_url
from support.observers import Watching
from support.sqlite import is_open, opened_connections, rows_of

from opencqrs_py import Application, Observer
from opencqrs_py.assembly import launch
from opencqrs_py.assembly.processors import Processors
from opencqrs_py.assembly.status import RunResult
from opencqrs_py.engines.coordination import Coordinator
from opencqrs_py.errors import AssemblyError
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.notices import Notice

HANDLERS = """
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("seen")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)"))

@event_handling("seen", types=["*"])
def see(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO seen VALUES (:id)"), {"id": event.id})

@event_handling("other", types=["*"])
def other(event: Event, connection: Connection) -> None: ...
"""

SLOW = """other(event: Event, connection: Connection) -> None:
    entered.set()
    left.wait(60)

from threading import Event as Signal
entered, left = Signal(), Signal()
"""

THREAD = {"event-handling.standard.processing.engine": "thread"}


@pytest.fixture
def handlers(make_module) -> ModuleType:
    return make_module(HANDLERS)


def add_events(application: Application, count: int = 100) -> None:
    lines = (f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/x/{n}", "data": {{}}}}' for n in range(count))
    application.event_store.append(map(parse_event, lines))


def seen(tmp_path) -> int:
    return rows_of(tmp_path / "opencqrs.db", "SELECT count(*) FROM seen")[0][0]


@pytest.mark.parametrize("models", ["opencqrs.db", "models.db"])
def test_a_new_sqlite_file_is_reported_once(handlers, tmp_path, caplog, models):
    def reported(*, log_warnings: bool = True) -> list[str]:
        caplog.clear()
        settings = {**THREAD, "database.url": f"sqlite:///{models}"}
        Application(settings, [handlers], tmp_path, log_warnings=log_warnings).run(until_caught_up=True)
        return sorted(record.getMessage() for record in caplog.records if record.levelname == "WARNING")

    made = {"opencqrs.db": "event-store.url, built-in default"}
    made[models] = "database.url, default given in code"
    assert reported() == [
        f"created a new, empty SQLite database: {tmp_path / name} ({said})" for name, said in sorted(made.items())
    ]
    assert reported() == []
    (tmp_path / "opencqrs.db").unlink()
    assert reported(log_warnings=False) == []


SERVERS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
SPARK = {
    "event-handling.standard.processing.engine": "spark",
    "spark.master": "local[1]",
    "spark.driver-handles": "never",
}
JOB = """
from opencqrs_py import job

@job("idle")
def idle() -> None: ...
"""


def masked(url: str) -> str:
    return make_url(url).render_as_string()


def place_of(url: str, schema: str = "") -> str:
    """Return how a database on a server is called, with the schema of our tables, which PostgreSQL always has."""
    if url.startswith("postgresql"):
        return f"{masked(url)}, schema {schema or 'public'}"
    return f"{masked(url)}, database {schema}" if schema else masked(url)


@pytest.fixture
def reported(caplog) -> Callable[[Application], list[str]]:
    """Runs an application until it has caught up, or starts and stops it, and returns its warnings of new databases."""

    def reported(application: Application, *, start: bool = False) -> list[str]:
        caplog.clear()
        if start:
            application.start()
            application.stop()
        else:
            assert not application.run(until_caught_up=True).failed
        said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        return sorted(line for line in said if line.startswith("created "))

    return reported


@pytest.mark.release(kind="mariadb", schema="Our_log")
@pytest.mark.parametrize("schema", ["", "Our_log"])
@pytest.mark.parametrize("kind", SERVERS)
def test_new_tables_on_a_server_are_reported_once_by_the_start_that_creates_them(
    handlers, tmp_path, fresh_url, reported, kind, schema
):
    url = fresh_url(kind)
    settings = {**THREAD, "event-store.url": url, **({"database.schema": schema} if schema else {})}
    line = f"created new, empty tables in {place_of(url, schema)} (event-store.url, default given in code)"
    first = Application(settings, [handlers.other], tmp_path)
    assert reported(first) == [line]
    assert reported(first) == []
    assert reported(Application(settings, [handlers.other], tmp_path)) == []


@pytest.mark.release(kind="mariadb")
@pytest.mark.release(engine=SPARK)
@pytest.mark.parametrize("engine", [THREAD, pytest.param(SPARK, marks=pytest.mark.spark)], ids=["thread", "spark"])
@pytest.mark.parametrize("kind", SERVERS)
def test_new_tables_of_read_models_on_a_server_are_reported_with_their_setting(
    handlers, tmp_path, fresh_url, reported, kind, engine
):
    log, models, wrong_log = fresh_url(kind), fresh_url(kind), fresh_url(kind)

    def started(log: str) -> list[str]:
        settings = {**engine, "event-store.url": log, "database.url": models}
        with Application(settings, [handlers.other], tmp_path) as application:
            return reported(application)

    made = {log: "event-store.url", models: "database.url"}
    assert started(log) == sorted(
        f"created new, empty tables in {place_of(url)} ({key}, default given in code)" for url, key in made.items()
    )
    assert started(log) == []
    assert started(wrong_log) == [
        f"created new, empty tables in {place_of(wrong_log)} (event-store.url, default given in code)"
    ]


@pytest.mark.release(kind="mariadb")
@pytest.mark.parametrize("kind", SERVERS)
def test_of_two_concurrent_starts_one_reports_the_new_tables(handlers, tmp_path, fresh_url, caplog, kind):
    log, models = fresh_url(kind), fresh_url(kind)
    settings = {**THREAD, "event-store.url": log, "database.url": models}
    both = Barrier(2, timeout=60)

    def start() -> None:
        application = Application(settings, [handlers.other], tmp_path)
        both.wait()
        application.run(until_caught_up=True)

    with ThreadPoolExecutor() as threads:
        for started in [threads.submit(start) for _ in range(2)]:
            started.result()
    lines = {line for line in caplog.messages if line.startswith("created ")}
    assert lines == {
        f"created new, empty tables in {place_of(log)} (event-store.url, default given in code)",
        f"created new, empty tables in {place_of(models)} (database.url, default given in code)",
    }


@pytest.mark.parametrize("kind", SERVERS)
def test_tables_that_existed_before_a_start_are_not_reported(handlers, tmp_path, fresh_url, reported, kind):
    settings = {**THREAD, "event-store.url": fresh_url(kind)}
    application = Application(settings, [handlers.other], tmp_path)
    add_events(application, 1)
    assert reported(application) == []


@pytest.mark.parametrize("kind", SERVERS)
def test_a_failed_start_still_reports_the_new_tables(handlers, tmp_path, fresh_url, caplog, kind):
    url = fresh_url(kind)
    application = Application({**THREAD, "event-store.url": url}, [handlers.other], tmp_path)
    application._mention_others = Mock(side_effect=AssemblyError("OCQ-508", "nothing starts"))
    with pytest.raises(AssemblyError):
        application.start()
    assert f"created new, empty tables in {place_of(url)} (event-store.url, default given in code)" in caplog.messages


@pytest.mark.parametrize("kind", ["sqlite", *SERVERS])
def test_a_start_that_only_runs_jobs_reports_the_new_database(make_module, tmp_path, fresh_url, reported, kind):
    place = tmp_path / "jobs.db" if kind == "sqlite" else fresh_url(kind)
    settings = {"event-store.url": f"sqlite:///{place}" if kind == "sqlite" else place}
    what = f"a new, empty SQLite database: {place}" if kind == "sqlite" else f"new, empty tables in {place_of(place)}"
    job = make_module(JOB)
    line = f"created {what} (event-store.url, default given in code)"
    assert reported(Application(settings, [job], tmp_path), start=True) == [line]
    assert reported(Application(settings, [job], tmp_path), start=True) == []


def test_an_application_is_made_of_modules_and_settings(handlers, tmp_path):
    application = Application({**THREAD, "event-handling.groups.seen.life-cycle.partitions": 2}, [handlers], tmp_path)
    add_events(application)
    result = application.run(until_caught_up=True)
    assert not result.failed
    assert {(group, str(partition)) for group, partition in result.handled} == {
        ("seen", "0/2"),
        ("seen", "1/2"),
        ("other", "0/1"),
    }
    assert sum(result.handled.values()) == 200
    assert [(s.group, s.head, s.lag) for s in application.status()] == [("seen", 100, 0), ("other", 100, 0)]
    assert seen(tmp_path) == 100
    application.stop()


@pytest.mark.release  # as in test_group_names.py
@pytest.mark.spark
def test_single_handlers_run_on_spark_wherever_their_module_is(handlers, tmp_path):
    application = Application({"spark.master": "local[1]", "spark.driver-handles": "never"}, [handlers.see], tmp_path)
    add_events(application)
    assert not application.run(until_caught_up=True).failed
    assert [s.group for s in application.status()] == ["seen"]
    application.stop()
    assert seen(tmp_path) == 100


@pytest.mark.parametrize("engine", ["thread", "spark"])
def test_a_second_thread_cannot_start_an_application_that_is_starting(handlers, tmp_path, monkeypatch, engine):
    application = Application({"event-handling.standard.processing.engine": engine}, [handlers], tmp_path)
    begun, ends = Event(), Event()
    started = []

    class Engine:
        def assign(self, group: str, partitions: object) -> None: ...

        def assigned(self) -> tuple[()]:
            return ()

        def start(self) -> None:
            started.append(self)
            begun.set()
            assert ends.wait(60)

        def stop(self, patience: float) -> None: ...

        def partitions(self) -> tuple[()]:
            return ()

    monkeypatch.setattr(launch, "engines_for", lambda runs, *_: [(Engine(), [run for _, run in runs])])
    with ThreadPoolExecutor() as threads:
        first = threads.submit(application.start)
        assert begun.wait(60)
        with pytest.raises(AssemblyError, match="another thread is starting the application"):
            application.start()
        ends.set()
        first.result()
    with pytest.raises(AssemblyError, match="running already"):
        application.start()
    application.stop()
    application.start()
    application.stop()
    assert len(started) == 2


@pytest.mark.parametrize(("interrupted", "most"), [(True, 1.0), (False, 30.0)])
def test_an_interrupted_run_stops_sooner_than_a_completed_one(handlers, tmp_path, monkeypatch, interrupted, most):
    application = Application(THREAD | {"event-handling.standard.progress.tracking": "in-memory"}, [handlers], tmp_path)
    patiences = []

    class Engine:
        def assign(self, group: str, partitions: object) -> None: ...

        def assigned(self) -> tuple[()]:
            return ()

        def start(self) -> None: ...

        def check(self) -> None:
            if interrupted:
                raise KeyboardInterrupt

        def stop(self, patience: float) -> None:
            patiences.append(patience)

        def partitions(self) -> tuple[()]:
            return ()

    monkeypatch.setattr(launch, "engines_for", lambda runs, *_: [(Engine(), [run for _, run in runs])])
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        application.run(until_caught_up=True)
    (patience,) = patiences  # left by earlier engines
    assert patience <= most
    assert (patience > 1.0) is not interrupted


SKIPPING_AND_FAILING = """
from opencqrs_py import Event, event_handling, job

@event_handling("skips", types=["*"])
def skip(event: Event) -> None:
    if event.id in {"0", "1"}:
        raise ValueError(event.id)

@event_handling("stops", types=["*"])
def stop(event: Event) -> None:
    if event.id == "1":
        raise ValueError(event.id)

@event_handling("waits", types=["*"])
def wait(event: Event) -> None:
    raise ValueError(event.id)

@job("fails")
def fail() -> None:
    raise ValueError("the attic is locked")
"""


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ["thread", "spark"])
def test_a_run_that_has_ended_reports_its_partitions_as_stopped_or_failed(engine, make_module, tmp_path):
    settings = {
        "event-handling.standard.processing.engine": engine,
        "event-handling.standard.retry.policy": "none",
        "event-handling.groups.skips.retry.on-exhausted": "skip",
        "event-handling.groups.stops.retry.on-exhausted": "stop",
    }
    application = Application(THREAD | settings, [make_module(SKIPPING_AND_FAILING)], tmp_path)
    add_events(application, 3)
    result = application.run(["skips", "stops"], until_caught_up=True, jobs=False)
    assert {p.group: p.state.value for p in result.partitions} == {"skips": "stopped", "stops": "failed"}
    assert result.failed


@pytest.mark.parametrize("failing", [True, False])
def test_an_interrupted_run_reports_skips_and_failures(failing, make_module, tmp_path, monkeypatch):
    settings = {
        "event-handling.standard.retry.policy": "none",
        "event-handling.groups.skips.retry.on-exhausted": "skip",
        "event-handling.groups.stops.retry.on-exhausted": "stop",
        "event-handling.groups.waits.retry": {"policy": "fixed", "initial-interval": "1h"},
        "jobs.fails": {"triggers.startup": True, "retry.policy": "none"},
    }
    at_end = {"skips": (3, False), "stops": (1, True), "waits": (0, True)}
    groups = ["skips", "stops", "waits"] if failing else ["waits"]
    wanted = {group: at_end[group] for group in groups}
    application = Application(THREAD | settings, [make_module(SKIPPING_AND_FAILING)], tmp_path)
    add_events(application, 3)

    def interrupt(processors: Processors) -> None:
        at = {p.group: (p.cursor.position, p.failure is not None) for p in processors.partitions()}
        if at == wanted and (processors.jobs is None or processors.jobs.runs.failed):
            raise KeyboardInterrupt

    monkeypatch.setattr(Processors, "check", interrupt)
    assert application.last_result is None
    with pytest.raises(KeyboardInterrupt):
        application.run(groups, jobs=failing)
    result = application.last_result
    assert result is not None
    assert (result.stopped, result.failed, result.failed_runs, result.skipped) == (True, failing, failing, 2 * failing)
    assert {(p.group, p.state.value) for p in result.partitions} == {
        (group, "failed" if group == "stops" else "stopped") for group in groups
    }
    monkeypatch.setattr(Processors, "start", interrupt_at_once)
    with pytest.raises(KeyboardInterrupt):
        application.run(groups)
    assert application.last_result is None  # the second run has not come to that


def interrupt_at_once(_: Processors) -> None:
    raise KeyboardInterrupt


def test_a_restart_continues_where_the_stop_left_off(handlers, tmp_path):
    application = Application(THREAD, [handlers], tmp_path)
    add_events(application)
    application.start(["seen"])
    with pytest.raises(AssemblyError, match="running already"):
        application.start()
    application.stop()
    application.stop()
    assert not application.run(["seen"], until_caught_up=True).failed
    assert seen(tmp_path) == 100


def add_and_run(application: Application) -> None:
    add_events(application, 3)
    application.run(until_caught_up=True)


def run_and_read_status(application: Application) -> None:
    application.run(until_caught_up=True)
    assert application.status()
    assert application.skipped() == []
    application.stop()


def start_and_stop(application: Application) -> None:
    application.start()
    assert application.event_store.head() == 3
    application.stop()


def fail_to_start(application: Application) -> None:
    with pytest.raises(AssemblyError, match="OCQ-509"):
        application.start(["nowhere"])
    application.stop()


@pytest.mark.few
@pytest.mark.parametrize("use", [add_and_run, run_and_read_status, start_and_stop, fail_to_start])
@pytest.mark.parametrize("databases", [{}, {"database.url": "sqlite:///read.db"}], ids=["one", "two"])
def test_a_stop_leaves_no_connection_to_a_database_open(databases, use, handlers, tmp_path):
    application = Application({**THREAD, **databases}, [handlers], tmp_path)
    with opened_connections() as opened:
        add_events(application, 3)
        use(application)
        assert opened
        assert not any(map(is_open, opened))
        use(application)  # a closed database can be used again
    assert not any(map(is_open, opened))


def test_reading_progress_without_modules_opens_a_database_once(tmp_path):
    (tmp_path / "handlers.py").write_text(HANDLERS)
    application = Application.from_project(tmp_path, environ={})
    with opened_connections() as opened:
        application.status()
        number = len(opened)
        application.status()
        assert len(opened) == number
        application.stop()
    assert "handlers" not in sys.modules
    assert not any(map(is_open, opened))


def test_a_stop_keeps_a_database_in_memory(handlers, databases_closed, tmp_path):
    url = "sqlite:///file:/kept-by-a-stop?vfs=memdb&uri=true"
    application = Application({**THREAD, "event-store.url": url}, [handlers.see], tmp_path)
    add_events(application, 3)
    application.run(until_caught_up=True)
    assert [(s.head, s.lag) for s in application.status()] == [(3, 0)]


class Stopped(Observer):
    """Notes that a partition was stopped."""

    def __init__(self) -> None:
        self.has_stopped = Event()

    def stopped(self, group: str, partition: Partition) -> None:
        self.has_stopped.set()


class Failing(Observer):
    """Raises when a partition was stopped."""

    def stopped(self, group: str, partition: Partition) -> None:
        raise ValueError("no such board")


def test_an_error_of_an_observer_notified_of_the_last_stop_is_logged(handlers, tmp_path, caplog):
    application = Application(THREAD, [handlers.see], tmp_path)
    add_events(application, 3)
    application.run(until_caught_up=True, observer=Failing())
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "0/1] ValueError: no such board, as it stopped" in record.getMessage()
    assert 'raise ValueError("no such board")' in record.getMessage()


def test_a_stop_leaves_the_database_open_for_a_handler_it_did_not_wait_for(make_module, tmp_path):
    module = make_module(HANDLERS.replace("other(event: Event, connection: Connection) -> None: ...", SLOW))
    application, observer = Application(THREAD, [module.other], tmp_path), Stopped()
    add_events(application, 1)
    with opened_connections() as opened:
        application.start(observer=observer)
        assert module.entered.wait(60)
        application.stop(patience=0)
        assert any(map(is_open, opened))
        module.left.set()
        assert observer.has_stopped.wait(60)
        application.stop()
    assert not any(map(is_open, opened))


def test_a_connection_that_a_pending_claim_opens_after_a_stop_is_closed_when_it_ends(handlers, tmp_path, monkeypatch):
    entered, left, reconcile = Event(), Event(), Coordinator.reconcile

    def slow(coordinator: Coordinator) -> None:
        if current_thread().name == "opencqrs-coordination":
            entered.set()
            assert left.wait(60)
            application.container.database().fetch("SELECT 1")
        reconcile(coordinator)

    monkeypatch.setattr(Coordinator, "reconcile", slow)
    application = Application(
        {**THREAD, "event-handling.standard.life-cycle.lease.heartbeat": "0.1s"}, [handlers], tmp_path
    )
    add_events(application, 1)
    with opened_connections() as opened:
        application.start()
        assert entered.wait(60)
        application.stop()
        assert not any(map(is_open, opened))
        closing = next(each for each in threads() if each.name == "opencqrs-disconnect")
        number = len(opened)
        left.set()
        closing.join(60)
        assert len(opened) > number
    assert not any(map(is_open, opened))


class AwayError(Exception):
    """The store does not answer."""


def test_a_running_application_reports_its_progress_during_an_outage(handlers, tmp_path, monkeypatch):
    application = Application(THREAD, [handlers], tmp_path)
    add_events(application)
    application.run(until_caught_up=True)
    store = application.event_store

    def away() -> int:
        raise AwayError

    monkeypatch.setattr(store, "head", away)
    monkeypatch.setattr(store, "is_outage", lambda error: isinstance(error, AwayError))
    with pytest.raises(AwayError):
        application.status()
    application.start(["seen"])
    try:
        found = application.status()
        assert [(s.group, s.head, s.lag) for s in found] == [("seen", None, None), ("other", None, None)]
        assert {each.position for s in found for each in s.partitions} == {100}
    finally:
        application.stop()


class Waiting(Observer):
    """Notes that a start waits."""

    def __init__(self) -> None:
        self.waits = Event()

    def noticed(self, notice: Notice) -> None:
        self.waits.set()


@pytest.mark.parametrize("engine", ["thread", "spark"])
def test_a_stop_ends_a_start_that_is_waiting_for_the_store(engine, handlers, tmp_path, monkeypatch):
    settings = {"event-handling.standard.processing.engine": engine}
    application, observer = Application(settings, [handlers], tmp_path), Waiting()
    store = application.event_store

    def away(*_: object) -> str:
        raise AwayError

    monkeypatch.setattr(store, "fingerprint", away)
    monkeypatch.setattr(store, "is_outage", lambda error: isinstance(error, AwayError))
    with ThreadPoolExecutor() as threads:
        starting = threads.submit(application.start, observer=observer)
        assert observer.waits.wait(60)
        application.stop()
        starting.result(60)


def test_a_run_stopped_by_another_thread_says_so_with_its_result(make_module, tmp_path):
    module = make_module(HANDLERS.replace("other(event: Event, connection: Connection) -> None: ...", SLOW))
    application = Application(THREAD, [module], tmp_path)
    add_events(application, 20)
    with ThreadPoolExecutor() as threads:
        run = threads.submit(application.run, until_caught_up=True)
        assert module.entered.wait(60)
        processors = application._life.processors
        assert processors is not None
        stopping = threads.submit(application.stop)
        while not processors.stopping:  # else all may be handled before it begins
            module.left.wait(0.01)
        module.left.set()
        stopping.result(60)
        result = run.result(60)
    assert result.stopped
    assert {status.group for status in result.partitions} == {"seen", "other"}
    assert result.handled.keys() == {(status.group, status.partition) for status in result.partitions}
    assert not Application(THREAD, [module], tmp_path).run(until_caught_up=True).stopped


@pytest.mark.parametrize("engine", ["thread", "spark"])
def test_a_stop_right_before_the_processors_begin_leaves_nothing_running(engine, handlers, tmp_path, monkeypatch):
    settings = {"event-handling.standard.processing.engine": engine}
    application, begin = Application(settings, [handlers], tmp_path), Processors.start
    add_events(application, 1)

    def after_a_stop(processors: Processors) -> None:
        with ThreadPoolExecutor() as threads:
            threads.submit(application.stop).result(60)
        begin(processors)

    with monkeypatch.context() as patched, opened_connections() as opened:
        patched.setattr(Processors, "start", after_a_stop)
        application.start()
        assert not any(map(is_open, opened))
    store = application.container.control_store()
    assert store is not None
    assert [record for record in store.view().nodes if record.alive] == []
    application.stop()  # closes the connections opened for that check
    assert list(rows_of(tmp_path / "opencqrs.db", "SELECT group_name FROM opencqrs_progress")) == []


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ["thread", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_stop_during_the_preparation_of_a_start_is_not_ignored(engine, handlers, tmp_path, monkeypatch):
    settings = {"event-handling.standard.processing.engine": engine}
    application, launch = Application(settings, [handlers], tmp_path), Application._launch
    add_events(application, 1)

    def after_a_stop(self: Application, *given: object, **named: object) -> object:
        with ThreadPoolExecutor() as threads:
            threads.submit(application.stop).result(60)
        return launch(self, *given, **named)

    with monkeypatch.context() as patched, opened_connections() as opened:
        patched.setattr(Application, "_launch", after_a_stop)
        assert application.run(until_caught_up=True).stopped
        assert not any(map(is_open, opened))
    assert list(rows_of(tmp_path / "opencqrs.db", "SELECT name FROM sqlite_master WHERE name = 'seen'")) == []
    assert not application.run(until_caught_up=True).stopped
    assert list(rows_of(tmp_path / "opencqrs.db", "SELECT count(*) FROM seen")) == [(1,)]


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ["thread", pytest.param("spark", marks=pytest.mark.spark)])
def test_an_observer_is_notified_of_each_claimed_and_released_partition(engine, handlers, tmp_path):
    settings = {
        "event-handling.standard.processing.engine": engine,
        "spark.master": "local[1]",
        "spark.driver-handles": "never",
    }
    application = Application(settings, [handlers.see], tmp_path)
    add_events(application, 3)
    for position in (0, 3):
        observer = Watching()
        application.run(observer=observer, until_caught_up=True)
        assert observer.moments == [("claimed", "seen", "0/1", position), ("stopped", "seen", "0/1")]


def test_a_second_application_takes_over_and_the_first_ends(handlers, tmp_path):
    first, second = (Application(THREAD, [handlers], tmp_path) for _ in range(2))
    add_events(first, 1)
    first.start(["seen"])
    second.run(["seen"], until_caught_up=True)
    add_events(first, 2)
    second.run(["seen"], until_caught_up=True)
    first.stop()
    assert seen(tmp_path) == 2


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("tail", 100), ("head", 0), ("90", 10), ("2026-01-01T00:00:00Z", 0)],
)
def test_a_group_without_progress_starts_at_its_configured_position(handlers, tmp_path, setting, expected):
    settings = {**THREAD, "event-handling.standard.fetch.initial-position": setting}
    application = Application(settings, [handlers.see], tmp_path)
    add_events(application)
    application.run(until_caught_up=True)
    assert seen(tmp_path) == expected


def test_handlers_of_the_main_module_are_refused_and_not_ignored(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(f"{HANDLERS}\nfrom opencqrs_py import Application\nApplication({{}}, [see])\n")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "[OCQ-513] handlers of the program's main module cannot be found by other processes" in done.stderr


def test_a_module_unknown_to_python_is_refused_with_a_fix(tmp_path):
    with pytest.raises(AssemblyError, match=r"OCQ-513\] the module 'made_by_hand' was not imported(?s:.*)sys\.modules"):
        Application({}, [ModuleType("made_by_hand")], tmp_path)


BROKEN = """
from opencqrs_py import Event, event_handling

@event_handling("broken", types=["*"])
def handle(event: Event) -> None:
    if event.id == "late":
        raise ValueError("no")
"""


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_partition_that_fails_while_the_run_stops_has_failed(make_module, tmp_path, monkeypatch, partitions):
    settings = {**THREAD, "event-handling.standard.retry.policy": "none"}
    settings["event-handling.standard.retry.on-exhausted"] = "stop"
    settings["event-handling.groups.broken.life-cycle.partitions"] = partitions
    failed, taken = Event(), Processors.result

    class Failing(Observer):
        def noticed(self, notice: Notice) -> None:
            failed.set()

    def result_before_a_late_event(processors: Processors) -> RunResult:
        found = taken(processors)
        assert not found.failed
        late = '{"id": "late", "source": "s", "type": "t", "subject": "/x/1", "data": {}}'
        application.event_store.append([parse_event(late)])
        assert failed.wait(60)
        return found

    monkeypatch.setattr(Processors, "result", result_before_a_late_event)
    with Application(settings, [make_module(BROKEN)], tmp_path) as application:
        add_events(application, 3)
        result = application.run(observer=Failing(), until_caught_up=True)
        assert result.failed
        assert sum(result.handled.values()) == 3

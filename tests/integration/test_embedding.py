"""An application inside of another program: as a context manager, from any thread, and at the end of the process."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import ModuleType

import pytest
from support.engines import ENGINES
from support.observers import Watching
from support.sqlite import is_open, opened_connections, rows_of

from opencqrs_py import Application, Observer
from opencqrs_py.assembly.shared_spark import SharedSpark
from opencqrs_py.errors import AssemblyError
from opencqrs_py.jobs.runs import RunStatus
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.outcome import Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import ProcessorState
from opencqrs_py.testing import caught_up

HANDLERS = """
import asyncio
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("seen")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)"))

@event_handling("seen", types=["*"])
async def see(event: Event, connection: Connection) -> None:
    await asyncio.sleep(0)
    connection.execute(text("INSERT INTO seen VALUES (:id)"), {"id": event.id})
"""
THREAD = {"event-handling.standard.processing.engine": "thread"}


@pytest.fixture
def handlers(make_module) -> ModuleType:
    return make_module(HANDLERS)


def add_events(application: Application, count: int = 10) -> None:
    lines = (f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/x/{n}", "data": {{}}}}' for n in range(count))
    application.event_store.append(map(parse_event, lines))


def seen(folder: Path) -> int:
    return rows_of(folder / "opencqrs.db", "SELECT count(*) FROM seen")[0][0]


def wait_for(observer: Watching, count: int) -> None:
    observer.wait_for(lambda: sum(outcome.handled for _, _, outcome in observer.steps) == count)


# As a context manager


def test_entering_the_block_starts_and_opens_nothing(handlers, tmp_path):
    application = Application(THREAD, [handlers], tmp_path)
    with opened_connections() as opened, application as entered:
        assert entered is application
    assert opened == []
    assert not (tmp_path / "opencqrs.db").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_end_of_the_block_stops_and_closes_what_was_opened(handlers, tmp_path, engine):
    settings = {
        "event-handling.standard.processing.engine": engine,
        "spark.master": "local[1]",
        "spark.driver-handles": "never",
    }
    observer = Watching()
    with opened_connections() as opened, Application(settings, [handlers], tmp_path) as application:
        add_events(application)
        application.start(observer=observer)
        wait_for(observer, 10)
    assert observer.moments[-1] == ("stopped", "seen", "0/1")
    assert not any(map(is_open, opened))
    assert seen(tmp_path) == 10


def test_an_error_in_the_block_is_raised_after_the_stop(handlers, tmp_path):
    observer = Watching()

    def host() -> None:
        with Application(THREAD, [handlers], tmp_path) as application:
            application.start(observer=observer)
            raise LookupError("of the host")

    with pytest.raises(LookupError, match="of the host"):
        host()
    assert observer.moments[-1] == ("stopped", "seen", "0/1")


def test_a_database_in_memory_is_closed_with_the_block(handlers, tmp_path):
    url = "sqlite:///file:/closed-with-the-block?vfs=memdb&uri=true"
    with Application({**THREAD, "event-store.url": url}, [handlers], tmp_path) as application:
        add_events(application)
        application.run(until_caught_up=True)
        assert application.event_store.head() == 10
    with Application({**THREAD, "event-store.url": url}, [handlers], tmp_path) as another:
        assert another.event_store.head() == 0


def test_a_stop_before_the_end_of_the_block_and_after_it_changes_nothing(handlers, tmp_path):
    with Application(THREAD, [handlers], tmp_path) as application:
        application.stop()
        application.start()
        application.stop()
        application.stop()
    application.stop()
    assert {each.state for each in application.status()[0].partitions} == {ProcessorState.STOPPED}
    application.stop()


class Faulty(Observer):
    """Ends the thread of a partition."""

    def stopped(self, group: str, partition: Partition) -> None:
        raise LookupError("of an observer")

    def advanced(self, group: str, partition: Partition, outcome: Outcome) -> None:
        raise LookupError("of an observer")


def test_the_host_can_get_the_error_that_ended_an_engine(handlers, tmp_path):
    with Application(THREAD, [handlers], tmp_path) as application:
        application.check()
        add_events(application)
        application.start(observer=Faulty())

        def ask() -> None:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                application.check()

        with pytest.raises(LookupError, match="of an observer"):
            ask()
        application.stop()
        application.check()


# On other threads, and next to an event loop


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ENGINES)
def test_it_starts_and_stops_in_the_thread_pool_of_a_running_event_loop(handlers, tmp_path, engine):
    settings = {
        "event-handling.standard.processing.engine": engine,
        "spark.master": "local[1]",
        "spark.driver-handles": "never",
    }
    observer = Watching()

    async def host() -> None:
        application = Application(settings, [handlers], tmp_path)
        add_events(application)
        await asyncio.to_thread(application.start, observer=observer)
        await asyncio.to_thread(wait_for, observer, 10)
        await asyncio.to_thread(application.stop)

    asyncio.run(host())
    assert seen(tmp_path) == 10


def test_it_starts_and_stops_on_the_thread_of_a_running_event_loop(handlers, tmp_path):
    observer = Watching()

    async def host() -> None:
        with Application(THREAD, [handlers], tmp_path) as application:
            add_events(application)
            application.start(observer=observer)
            await asyncio.to_thread(wait_for, observer, 10)

    asyncio.run(host())
    assert seen(tmp_path) == 10


def test_it_is_started_on_one_thread_and_stopped_on_another(handlers, tmp_path):
    application = Application(THREAD, [handlers], tmp_path)
    for call in (application.start, application.stop):
        with ThreadPoolExecutor(1) as threads:
            threads.submit(call).result(60)
    assert {each.state for each in application.status()[0].partitions} == {ProcessorState.STOPPED}
    application.stop()


def test_a_start_from_several_threads_at_once_starts_once_and_refuses_the_others(handlers, tmp_path):
    application, together = Application(THREAD, [handlers], tmp_path), Barrier(8)
    add_events(application)

    def start(_number: int) -> str:
        together.wait(60)
        try:
            application.start()
        except AssemblyError as error:
            return error.code
        return ""

    with ThreadPoolExecutor(8) as threads:
        answers = sorted(threads.map(start, range(8)))
    caught_up(application)
    application.stop()
    assert answers == ["", *["OCQ-511"] * 7]
    assert seen(tmp_path) == 10


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ENGINES)
def test_signal_handlers_of_the_host_are_kept(handlers, tmp_path, engine):
    settings = {
        "event-handling.standard.processing.engine": engine,
        "spark.master": "local[1]",
        "spark.driver-handles": "never",
    }
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def of_the_host(number: int, frame: object) -> None: ...

    before = {number: signal.signal(number, of_the_host) for number in numbers}
    hook = sys.excepthook
    try:
        with Application(settings, [handlers], tmp_path) as application:
            add_events(application)
            application.start()
            assert {signal.getsignal(number) for number in numbers} == {of_the_host}
            application.stop()
            application.run(until_caught_up=True)
        assert {signal.getsignal(number) for number in numbers} == {of_the_host}
        assert signal.set_wakeup_fd(-1) == -1
        assert sys.excepthook is hook
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


JOBS = """
from opencqrs_py import job

meanwhile = []

@job("long")
def long() -> None:
    for each in meanwhile:
        each()

@job("short")
def short() -> None:
    pass
"""


class Sessions:
    """Sessions of Spark that open none, and record when they are closed."""

    def __init__(self) -> None:
        self.closed: list[float] = []

    def close(self, patience: float) -> None:
        self.closed.append(patience)


def run_short(application: Application) -> None:
    with ThreadPoolExecutor(1) as another:
        assert another.submit(application.run_job, "short").result().status is RunStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("meanwhile", "closed_after_the_job"),
    [
        ([run_short], True),
        ([lambda application: application.start(["seen"])], False),
        ([lambda application: application.start(["seen"]), Application.stop], True),
    ],
    ids=["another job", "a start", "a start and a stop"],
)
def test_a_session_is_open_until_the_last_job_or_run_that_uses_it_ends(
    handlers, make_module, tmp_path, monkeypatch, meanwhile, closed_after_the_job
):
    monkeypatch.setattr(SharedSpark, "_made", lambda _self, **_: Sessions())
    jobs, closed = make_module(JOBS), []

    def use() -> None:
        sessions = application._life.spark.sessions(verbose=False)
        for each in meanwhile:
            each(application)
            assert application._life.spark.sessions(verbose=False) is sessions
        closed.append(sessions.closed)
        assert sessions.closed == []

    with Application(THREAD, [handlers, jobs], tmp_path) as application:
        jobs.meanwhile.append(use)
        assert application.run_job("long").status is RunStatus.SUCCEEDED
        assert len(closed[0]) == closed_after_the_job
    assert len(closed[0]) == 1


# At the end of the process

HOST = """
import atexit, os, sys, time
from opencqrs_py import Application, Observer
from opencqrs_py.model.cloudevents import parse_event
import host_handlers

application = Application({settings}, [host_handlers], {folder!r})
lines = (f'{{{{"id": "{{n}}", "source": "s", "type": "t", "subject": "/x", "data": {{{{}}}}}}}}' for n in range(10))
application.event_store.append(map(parse_event, lines))
"""
WAIT = """
while application.status()[0].lag:
    pass
"""
NODES = "SELECT count(*) FROM opencqrs_nodes"


def hosted(
    folder: Path, ends: str, handlers: str = HANDLERS, store: str = "", starts: str = "application.start()\n"
) -> subprocess.CompletedProcess[str]:
    """Run a program that embeds the application."""
    (folder / "host_handlers.py").write_text(handlers)
    settings = THREAD | ({"event-store.url": store} if store else {})
    (folder / "host.py").write_text(HOST.format(settings=settings, folder=str(folder)) + starts + ends)
    command = [sys.executable, "-W", "error", "host.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_a_stop_at_process_exit_releases_everything(tmp_path):
    done = hosted(tmp_path, f"{WAIT}\natexit.register(application.stop)\natexit.register(application.stop)\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert seen(tmp_path) == 10
    assert rows_of(tmp_path / "opencqrs.db-control.db", NODES) == [(0,)]
    assert rows_of(tmp_path / "opencqrs.db", "SELECT DISTINCT state FROM opencqrs_progress") == [("stopped",)]


@pytest.mark.release  # as one that stops it
def test_a_process_that_does_not_stop_the_application_still_ends(tmp_path):
    done = hosted(tmp_path, WAIT)
    assert (done.returncode, done.stderr) == (0, "")
    assert seen(tmp_path) == 10


@pytest.mark.release  # as the unit tests of a stop
def test_a_stop_at_process_exit_does_not_wait_for_a_handler_that_never_returns(tmp_path):
    hangs = HANDLERS.replace("await asyncio.sleep(0)", "IN_HAND.set()\n    await asyncio.sleep(1e6)")
    hangs += "\nfrom threading import Event as Signal\nIN_HAND = Signal()\n"
    done = hosted(tmp_path, "atexit.register(application.stop)\nassert host_handlers.IN_HAND.wait(60)\n", hangs)
    assert done.returncode == 0
    assert seen(tmp_path) == 0


def test_a_fork_does_not_stop_the_groups_of_its_parent(tmp_path):
    """As a worker of a web server that has loaded the application before it was forked."""
    ends = """
child = os.fork()
if child == 0:
    application.stop()
    with application:
        pass
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
while application.status()[0].lag:
    pass
print([(each.owner != "", each.state.value) for each in application.status()[0].partitions])
application.stop()
"""
    done = hosted(tmp_path, ends)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[(True, 'running')]\n", "")
    assert seen(tmp_path) == 10


@pytest.mark.release  # as its stop
def test_a_fork_cannot_check_the_groups_of_its_parent(tmp_path):
    """As the liveness probe of a worker that gunicorn has forked with ``--preload``."""
    ends = f"""{WAIT}
child = os.fork()
if child == 0:
    try:
        application.check()
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
application.check()
application.stop()
"""
    done = hosted(tmp_path, ends)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "[OCQ-511] the application was started in the process from which this one was forked, "
        "so it cannot be checked here\n"
        "  fix:   call check() there; health() and status() look at all processes\n"
    )


REPORTS = """
(asked, ask), (reported, report) = os.pipe(), os.pipe()
if os.fork() == 0:
    os.read(asked, 1)
    try:
        status = application.status()[0]
        owners = [each.owner for each in status.partitions]
        health, reached = application.health().groups[0].lag, application.await_position("seen")
        said = [status.head, status.lag, health, reached, owners]
    except Exception as error:
        said = [str(error)]
    try:
        application.start()
    except Exception as error:
        said += [str(error)]
    os.write(report, repr(said).encode())
    os._exit(0)
more = '{"id": "more-%d", "source": "s", "type": "t", "subject": "/x", "data": {}}'
application.event_store.append([parse_event(more % number) for number in range(10)])
"""
ASKED = """
owners = [each.owner for each in application.status()[0].partitions]
os.write(ask, b" ")
said = eval(os.read(reported, 10_000))
application.stop()
"""
STARTED_BY_PARENT = (
    "[OCQ-511] the application was started in the process from which this one was forked\n"
    "  fix:   start it only after the fork, or make another Application here\n"
)


@pytest.mark.release  # rare: on a server, which forks may use
@pytest.mark.postgresql
def test_a_fork_reports_the_progress_of_its_parent(postgresql_url, tmp_path):
    """As the view ``health`` of a worker that gunicorn has forked with ``--preload``."""
    ends = f"{ASKED}assert said[:5] == [20, 0, 0, 20, owners], said\nprint(said[5])"
    done = hosted(tmp_path, WAIT + REPORTS + WAIT + ends, store=postgresql_url)
    assert (done.returncode, done.stdout, done.stderr) == (0, STARTED_BY_PARENT, "")


@pytest.mark.release  # as in test_forks.py
def test_a_fork_does_not_open_an_sqlite_file_that_its_parent_has_open(tmp_path):
    """SQLite would wait there for locks of threads that do not exist, or read what the parent overwrites."""
    writes = HANDLERS.replace("await asyncio.sleep(0)", "IN_HAND.set()\n    await asyncio.to_thread(FREED.wait)")
    writes += "\nfrom threading import Event as Signal\nIN_HAND, FREED = Signal(), Signal()\n"
    writes += "import concurrent.futures.thread\n"  # whose hooks for forks are not to come while the process forks
    ends = f"assert host_handlers.IN_HAND.wait(60)\n{REPORTS.partition('more =')[0]}"
    ends += f"""
os.write(ask, b" ")
print(*eval(os.read(reported, 10_000)), sep="\\n")
host_handlers.FREED.set()
{WAIT}application.stop()
"""
    done = hosted(tmp_path, ends, writes)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "[OCQ-353] the process from which this one was forked has the SQLite database open, so it cannot be used here\n"
        f"  where: {tmp_path / 'opencqrs.db'}\n"
        "  fix:   open it only after the fork (gunicorn: without --preload), start processes by spawn, or use "
        "PostgreSQL\n" + STARTED_BY_PARENT
    )
    assert seen(tmp_path) == 10


@pytest.mark.release  # as in test_forks.py
def test_a_fork_uses_an_sqlite_file_not_in_use_when_it_is_forked(tmp_path):
    """As a worker of gunicorn with ``--preload``, if the application is used at import, but started in each worker."""
    ends = """
application.status()
for worker in range(3):
    child = os.fork()
    if child == 0:
        line = '{"id": "worker-%d", "source": "s", "type": "t", "subject": "/x", "data": {}}' % worker
        application.event_store.append([parse_event(line)])
        application.start()
        while application.status()[0].lag:
            pass
        application.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
status = application.status()[0]
print(status.head, status.lag)
application.stop()
"""
    done = hosted(tmp_path, ends, starts="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "13 0\n", "")
    assert seen(tmp_path) == 13


ON_SPARK = """
from opencqrs_py import Event, event_handling

@event_handling("handed-in", types=["*"])
def handle(event: Event) -> None: ...
"""


@pytest.mark.spark
def test_an_application_runs_on_a_given_spark_session_and_leaves_it_open(spark, make_module, tmp_path):
    settings = {"spark.master": "spark://no-such-host.invalid:7077", "spark.driver-handles": "never"}
    with Application(settings, [make_module(ON_SPARK)], tmp_path, spark) as application:
        lines = (f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/x", "data": {{}}}}' for n in range(20))
        application.event_store.append(map(parse_event, lines))
        result = application.run(until_caught_up=True)
    assert [status.position for status in result.partitions] == [20]
    assert spark.range(3).count() == 3


class Collecting(Observer):
    """Notes how many objects Python's collector is kept from looking at, when handlers have run."""

    def __init__(self) -> None:
        self.frozen: set[int] = set()

    def advanced(self, _group: str, _partition: Partition, _outcome: Outcome) -> None:
        self.frozen.add(gc.get_freeze_count())


def test_a_run_does_not_change_the_garbage_collector_of_the_program(handlers, tmp_path):
    """Objects frozen and unfrozen are no longer counted, so their garbage would accumulate run by run."""
    before, seen = gc.get_freeze_count(), Collecting()
    with Application(THREAD, [handlers], tmp_path) as application:
        add_events(application)
        application.run(observer=seen, until_caught_up=True)
    assert max(seen.frozen) <= before  # fewer, if some that were frozen before are no longer used

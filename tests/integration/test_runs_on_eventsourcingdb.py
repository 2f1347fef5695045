"""``opencqrs run`` on an EventSourcingDB: wrong tokens, restarts, a lost disk, SIGKILL; on both engines."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest
from support.output import without_times
from support.patience import patient
from support.zygote import Zygote

from opencqrs_py.testing.eventsourcingdb import EventSourcingDbStandIn

SECONDS = 120  # longest wait for another process
HANDLERS = """
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("books")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS books (number INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER)"))

@event_handling("books")
def add(raw: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO books (n) VALUES (:n)"), raw.data)
"""
PARTITIONS = ("--set", "event-handling.groups.books.life-cycle.partitions=2")
ENGINES = [pytest.param("thread", id="thread"), pytest.param("spark", id="spark", marks=pytest.mark.spark)]


@pytest.fixture
def server() -> Iterator[EventSourcingDbStandIn]:
    with EventSourcingDbStandIn(heartbeat=0.05) as server:
        yield server


class Project:
    """A project folder with one group, and the command in a separate process."""

    def __init__(self, folder: Path, server: EventSourcingDbStandIn, zygote: Zygote) -> None:
        self.folder = folder
        self._zygote = zygote
        (folder / "handlers.py").write_text(HANDLERS)
        store = f"event-store: {{url: '{server.url}', api-token: {server.api_token}}}"
        (folder / "application.yaml").write_text(f"opencqrs: {{{store}, database: {{url: 'sqlite:///books.db'}}}}\n")

    def start(self, *arguments: str, engine: str = "thread") -> subprocess.Popen[str]:
        """Start ``opencqrs`` with arguments."""
        command = patient(*arguments)
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, **_setting(engine)},
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, engine: str = "thread") -> tuple[int, str]:
        """Run ``opencqrs`` with arguments; return its exit code and all that it has printed."""
        ran = self._zygote.opencqrs(self.folder, arguments, _setting(engine))
        return ran.code, without_times(ran.err + ran.out)


def _setting(engine: str) -> dict[str, str]:
    return {"OPENCQRS__EVENT_HANDLING__STANDARD__PROCESSING__ENGINE": engine}


@pytest.fixture
def project(tmp_path: Path, server: EventSourcingDbStandIn, zygote: Zygote) -> Project:
    return Project(tmp_path, server, zygote)


@pytest.mark.release(engine="spark", arguments=())
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("arguments", [(), ("--until-caught-up",)])
def test_a_wrong_token_gives_one_message_for_all_partitions(
    project: Project, server: EventSourcingDbStandIn, engine: str, arguments: tuple[str, ...]
) -> None:
    server.api_token = "another"
    code, said = project.run("run", *arguments, *PARTITIONS, engine=engine)
    assert code == 2
    assert said.splitlines()[1:] == [
        "[OCQ-332] EventSourcingDB does not accept the API token (unauthorized)",
        f"  where: {server.url}",
        "  fix:   set event-store.api-token to the token that the server was started with",
    ]


@pytest.mark.release(engine="spark", arguments=())
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("arguments", [(), ("--until-caught-up",)])
def test_another_server_at_the_url_gives_one_message_for_all_partitions(
    project: Project, monkeypatch: pytest.MonkeyPatch, engine: str, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr("opencqrs_py.testing.eventsourcingdb.server._Handler.version_string", lambda _: "nginx")
    code, said = project.run("run", *arguments, *PARTITIONS, engine=engine)
    assert code == 2
    assert said.count("[OCQ-") == said.count("  fix: ") == 1
    assert (
        "[OCQ-334] the response does not come from EventSourcingDB (status 200, application/x-ndjson, Server: nginx)"
        in said
    )
    assert "fix:   correct event-store.url; a proxy in front of EventSourcingDB must pass on its header Server" in said
    assert "Traceback" not in said


# ---------------------------------------------------------------------------------------------------------- running


def write(server: EventSourcingDbStandIn, *numbers: int) -> None:
    server.log.write(
        [{"source": "urn:s", "subject": f"/books/{n % 7}", "type": "com.example.t", "data": {"n": n}} for n in numbers]
    )


def rows(project: Project) -> list[int]:
    """Return the numbers of the events that were handled, in the order of handling."""
    path = project.folder / "books.db"
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=SECONDS)) as database:
        try:
            return [n for (n,) in database.execute("SELECT n FROM books ORDER BY number")]
        except sqlite3.OperationalError:  # the table is not there yet
            return []


class Running:
    """``opencqrs run`` in a separate process, and its output."""

    def __init__(self, project: Project, engine: str) -> None:
        self.project = project
        self.process = project.start("run", engine=engine)
        self.said: list[str] = []
        assert self.process.stdout is not None
        self._reader = Thread(target=lambda: self.said.extend(self.process.stdout or ()), daemon=True)
        self._reader.start()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds, as seen from outside."""
        until = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, "".join(self.said)
            assert time.monotonic() < until, "".join(self.said)
            time.sleep(0.05)

    def has_handled(self, *numbers: int) -> None:
        """Wait until just these events were handled, each once."""
        self.wait_for(lambda: len(rows(self.project)) >= len(numbers))
        assert sorted(rows(self.project)) == sorted(numbers)

    def stop(self, number: int = signal.SIGINT) -> int:
        """End the process by a signal; return its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@pytest.fixture
def start(project: Project) -> Iterator[Callable[[str], Running]]:
    started: list[Running] = []

    def start(engine: str) -> Running:
        started.append(Running(project, engine))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.stop(signal.SIGKILL)


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_restart_loses_no_event(
    start: Callable[[str], Running], server: EventSourcingDbStandIn, engine: str
) -> None:
    write(server, *range(50))
    running = start(engine)
    running.has_handled(*range(50))
    for graceful in (False, True):
        server.stop(graceful=graceful)
        server.start()
        count = len(server.log.read("/", {"recursive": True}))
        write(server, *range(count, count + 25))
        running.has_handled(*range(count + 25))
    assert running.stop() == 130
    assert "Traceback" not in "".join(running.said)


@pytest.mark.release  # as a log that is replaced between two runs, and the contract of the store
@pytest.mark.parametrize(
    ("engine", "more"), [("thread", 30), ("thread", 100), pytest.param("spark", 30, marks=pytest.mark.spark)]
)
def test_a_server_that_loses_its_disk_stops_the_partition(
    start: Callable[[str], Running], server: EventSourcingDbStandIn, engine: str, more: int
) -> None:
    write(server, *range(50))
    running = start(engine)
    running.has_handled(*range(50))
    server.stop()
    server.log.forget()
    server.start()
    write(server, *range(1_000, 1_000 + more))
    running.wait_for(lambda: "is not the one that the progress belongs to" in "".join(running.said))
    running.stop()
    assert sorted(rows(running.project)) == list(range(50)), "no event of the other log"
    assert "Traceback" not in "".join(running.said)


@pytest.mark.release  # as on other stores
@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_run_is_continued_without_loss_or_repetition(
    start: Callable[[str], Running], server: EventSourcingDbStandIn, engine: str
) -> None:
    write(server, *range(3_000))
    running = start(engine)
    running.wait_for(lambda: len(rows(running.project)) > 0)
    running.stop(signal.SIGKILL)
    write(server, *range(3_000, 3_020))
    code, said = running.project.run("run", "--until-caught-up", engine=engine)
    assert code == 0, said
    assert sorted(rows(running.project)) == list(range(3_020))


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize(
    ("engine", "kept", "more"),
    [("thread", 0, 100), ("thread", 30, 40), pytest.param("spark", 30, 40, marks=pytest.mark.spark)],
)
def test_a_log_replaced_between_two_runs_is_refused_at_the_start(
    project: Project, server: EventSourcingDbStandIn, engine: str, kept: int, more: int
) -> None:
    write(server, *range(50))
    assert project.run("run", "--until-caught-up", engine=engine)[0] == 0
    server.log.forget(kept)
    write(server, *range(1_000, 1_000 + more))
    code, said = project.run("run", "--until-caught-up", engine=engine)
    assert code not in {0, 130}
    assert "[OCQ-316]" in said
    assert "event 49 had the hash" in said
    assert "rebuild the group" in said
    assert "Traceback" not in said
    assert sorted(rows(project)) == list(range(50))


@pytest.mark.parametrize(
    ("statements", "handled"),
    [
        (("DROP TABLE books", "DELETE FROM opencqrs_progress", "DELETE FROM opencqrs_groups"), [*range(30), 100]),
        (("UPDATE opencqrs_progress SET log_fingerprint = '', position = 30",), [*range(50), 100]),
    ],
    ids=["rebuild", "continue"],
)
def test_the_fixes_that_the_message_for_a_shorter_log_names_work(
    project: Project, server: EventSourcingDbStandIn, statements: tuple[str, ...], handled: list[int]
) -> None:
    write(server, *range(50))
    assert project.run("run", "--until-caught-up")[0] == 0
    server.log.forget(30)
    _, said = project.run("run", "--until-caught-up")
    assert "delete its read model and its rows of opencqrs_progress and opencqrs_groups; or, to continue" in said
    assert "set position there to the newest event's id plus 1 if it is beyond it" in said
    with closing(sqlite3.connect(project.folder / "books.db")) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    write(server, 100)
    code, said = project.run("run", "--until-caught-up")
    assert code == 0, said
    assert rows(project) == handled

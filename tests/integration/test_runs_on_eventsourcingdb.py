"""``opencqrs run`` on an EventSourcingDB: wrong tokens, restarts, a lost disk, SIGKILL; on both engines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
ENGINES = [pytest.param("thread", id="thread"), pytest.param("spark", id="spark", marks=pytest.mark.spark)]


@pytest.fixture
def server() -> Iterator[EventSourcingDbStandIn]:
    with EventSourcingDbStandIn(heartbeat=0.05) as server:
        yield server


class Project:
    """A project folder with one group, and the command in a process of its own."""

    def __init__(self, folder: Path, server: EventSourcingDbStandIn) -> None:
        self.folder = folder
        (folder / "handlers.py").write_text(HANDLERS)
        store = f"event-store: {{url: '{server.url}', api-token: {server.api_token}}}"
        (folder / "application.yaml").write_text(f"opencqrs: {{{store}, database: {{url: 'sqlite:///books.db'}}}}\n")

    def start(self, *arguments: str, engine: str = "thread") -> subprocess.Popen[str]:
        """Start ``opencqrs`` with arguments."""
        engine_setting = {"OPENCQRS__EVENT_HANDLING__STANDARD__PROCESSING__ENGINE": engine}
        command = [sys.executable, "-m", "opencqrs_py", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, **engine_setting},
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, engine: str = "thread") -> tuple[int, str]:
        """Run ``opencqrs`` with arguments; return its exit code and all that it has printed."""
        process = self.start(*arguments, engine=engine)
        said, _ = process.communicate(timeout=SECONDS)
        return process.returncode, said


@pytest.fixture
def project(tmp_path: Path, server: EventSourcingDbStandIn) -> Project:
    return Project(tmp_path, server)


def test_a_wrong_token_is_one_message_without_a_trace(project: Project, server: EventSourcingDbStandIn) -> None:
    server.api_token = "another"
    code, said = project.run("run", "--until-caught-up")
    assert code in {1, 2}
    assert "[OCQ-332] EventSourcingDB does not accept the API token" in said
    assert "Traceback" not in said
    assert "could not go on" in said, "the processor's own words stand there, too"

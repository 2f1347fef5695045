"""A project folder, and the command line as a person types it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.engines import ENGINES
from support.output import without_times
from support.patience import patient
from support.zygote import Ran, Zygote

HANDLERS = """
from dataclasses import dataclass
from opencqrs_py import Event, event_handling, event_type, on_start
from sqlalchemy import Connection, text

@event_type("library.book-lent.v1")
@dataclass(frozen=True)
class BookLent:
    isbn: str

@on_start("catalog")
@on_start("audit")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS lent (isbn VARCHAR(20) PRIMARY KEY, n INTEGER NOT NULL)"))
    connection.execute(text("CREATE TABLE IF NOT EXISTS audit (id VARCHAR(20) PRIMARY KEY, position INTEGER NOT NULL)"))

@event_handling("catalog")
def lend(event: BookLent, connection: Connection) -> None:
    book = {"isbn": event.isbn}
    if not connection.execute(text("UPDATE lent SET n = n + 1 WHERE isbn = :isbn"), book).rowcount:
        connection.execute(text("INSERT INTO lent VALUES (:isbn, 1)"), book)

@event_handling("audit", types=["library.*"])
def audit(raw: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO audit VALUES (:id, :position)"), {"id": raw.id, "position": raw.position})
"""

SETTINGS = """
opencqrs:
  event-store: {url: "sqlite:///events.db"}
  database: {url: "sqlite:///read.db"}
  spark: {master: "local[2]", driver-handles: never}
  event-handling:
    groups:
      catalog: {life-cycle: {partitions: 4}}
"""


@dataclass
class Project:
    """A project folder."""

    folder: Path
    zygote: Zygote
    environment: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(dedent(text), encoding="utf-8")

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "opencqrs_py", *arguments]

    def patient_command(self, *arguments: str) -> list[str]:
        """Return a command that a signal lets stop in order however long that takes, as on a busy machine."""
        return patient(*arguments)

    def opencqrs(self, *arguments: str, stdin: str | None = None, **environment: str) -> Ran:
        ran = self.zygote.opencqrs(self.folder, arguments, {**self.environment, **environment}, stdin=stdin)
        return replace(ran, err=without_times(ran.err))

    def write_events(self, count: int, name: str = "events.ndjson") -> None:
        lines = (event_line(number) for number in range(count))
        self.write(name, "".join(f"{line}\n" for line in lines))


def event_line(number: int, **changes: Any) -> str:
    isbn = f"isbn-{number % 7}"
    event = {
        "specversion": "1.0",
        "id": str(number),
        "source": "urn:library",
        "subject": f"/books/{isbn}",
        "type": "library.book-lent.v1" if number % 3 else "library.book-returned.v1",
        "time": "2026-01-05T09:00:00Z",
        "data": {"isbn": isbn},
    }
    return json.dumps(event | changes)


@pytest.fixture
def project(tmp_path: Path, zygote: Zygote) -> Project:
    made = Project(tmp_path, zygote)
    made.write("handlers.py", HANDLERS)
    made.write("application.yaml", SETTINGS)
    return made


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, project: Project) -> str:
    """The setting for an engine; the commands of the test's project run Spark on the Java that runs."""
    if request.param == "spark":
        project.environment.update(request.getfixturevalue("java"))
    return f"event-handling.standard.processing.engine={request.param}"


@pytest.fixture(name="event_line")
def event_line_fixture() -> Callable[..., str]:
    """Return the function that writes one event of the library as a line."""
    return event_line

"""Groups are rebuilt from the command line while processes run them, readers read, and processes are killed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from opencqrs_py.adapters.sql import Database

HANDLERS = """
from dataclasses import dataclass
from pathlib import Path
from opencqrs_py import event_handling, event_type, on_start
from sqlalchemy import Connection, text

GATE = Path(__file__).with_name("gate")

@event_type("library.book-lent.v1")
@dataclass(frozen=True)
class BookLent:
    isbn: str

@on_start("catalog")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS lent (isbn VARCHAR(20) PRIMARY KEY, n INTEGER NOT NULL)"))

@event_handling("catalog")
def lend(event: BookLent, connection: Connection) -> None:
    book = {"isbn": event.isbn}
    if not connection.execute(text("UPDATE lent SET n = n + 1 WHERE isbn = :isbn"), book).rowcount:
        connection.execute(text("INSERT INTO lent VALUES (:isbn, 1)"), book)
"""
SETTINGS = """
opencqrs:
  event-store: {{url: "sqlite:///events.db"}}
  database: {{url: "{url}"}}
  spark: {{master: "local[2]", driver-handles: never}}
  event-handling:
    standard: {{life-cycle: {{lease: {{duration: 3s, heartbeat: 0.2s}}}}}}
    groups: {{catalog: {{life-cycle: {{partitions: 2}}, processing: {{batch-size: 20}}}}}}
"""
LOOKS = 150  # more than any machine needs; each is a command
KINDS = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
REBUILD = ("groups", "rebuild", "catalog")


def lines(start: int, end: int) -> str:
    """Return events of seven books, all of which are lent."""
    known = {"specversion": "1.0", "source": "urn:library", "type": "library.book-lent.v1"}
    events = (
        {**known, "id": str(n), "subject": f"/books/{n % 7}", "data": {"isbn": f"isbn-{n % 7}"}}
        for n in range(start, end)
    )
    return "".join(f"{json.dumps(event)}\n" for event in events)


class World:
    """A project whose read model can be read, and runs of it in the background."""

    def __init__(self, project: Any, url: str) -> None:
        self.project = project
        located = url.replace("sqlite:///", f"sqlite:///{project.folder}/")
        self.engine = create_engine(Database(located).url, poolclass=NullPool)
        self.running: list[subprocess.Popen[str]] = []
        self.count = 0
        project.write("handlers.py", HANDLERS)
        project.write("application.yaml", SETTINGS.format(url=url))
        project.environment["OPENCQRS__EVENT_HANDLING__STANDARD__PROCESSING__ENGINE"] = "thread"
        self.add(700)

    def add(self, count: int) -> None:
        self.project.write("events.ndjson", lines(self.count, self.count + count))
        self.count += count
        assert self.project.opencqrs("events", "import", "events.ndjson").code == 0

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        with (self.project.folder / f"run-{len(self.running)}.log").open("w") as log:
            command = self.project.command(*(arguments or ("run",)))
            environment = {**os.environ, **self.project.environment}
            kept = {"cwd": self.project.folder, "stdout": log, "stderr": log, "text": True, "env": environment}
            self.running.append(subprocess.Popen(command, **kept))
        return self.running[-1]

    def log(self, number: int) -> str:
        return (self.project.folder / f"run-{number}.log").read_text()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def lent(self) -> dict[str, int]:
        return dict(self.rows("SELECT isbn, n FROM lent"))

    def statuses(self) -> list[dict[str, Any]]:
        (status,) = self.project.opencqrs("status", "--format", "json").json
        partitions: list[dict[str, Any]] = status["partitions"]
        return partitions

    def rebuild(self, *options: str) -> Any:
        return self.project.opencqrs(*REBUILD, *options)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(LOOKS):
            if condition():
                return
            self.project.opencqrs("nodes")  # which takes a while
        pytest.fail("\n".join(self.log(number) for number in range(len(self.running))))

    def wait_for_all(self) -> None:
        self.wait_until(lambda: {(o["position"], o["state"]) for o in self.statuses()} == {(self.count, "running")})


class Reader:
    """Reads the table continuously, each time on a new connection, and collects errors."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stop = Event()
        self._thread = Thread(target=self._read)
        self.reads = 0
        self.wrong: list[Any] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        least = 0
        while not self._stop.is_set():
            try:
                ((books, loans),) = self._world.rows("SELECT count(*), coalesce(sum(n), 0) FROM lent")
            except SQLAlchemyError as error:
                self.wrong.append(str(error))
                return
            self.reads += 1
            if books != 7 or loans < least:
                self.wrong.append((books, loans, least))
            least = max(least, int(loans))


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, project: Any) -> Iterator[World]:
    url = "sqlite:///read.db" if request.param == "sqlite" else request.getfixturevalue("fresh_url")(request.param)
    world = World(project, url)
    yield world
    for process in world.running:
        process.kill()
        process.wait()
    world.engine.dispose()


def counts(number: int) -> dict[str, int]:
    return {f"isbn-{n}": len(range(n, number, 7)) for n in range(7)}


@pytest.mark.release(world=("mariadb", "sqlite"))
def test_readers_see_complete_tables_while_a_running_group_is_rebuilt(world: World) -> None:
    world.start()
    world.wait_for_all()
    with Reader(world) as reader:
        rebuilding = world.start(*REBUILD, "--format", "json")
        while rebuilding.poll() is None:
            world.add(21)
        world.wait_for_all()
        before = reader.reads
        world.wait_until(lambda: reader.reads > before)
    assert rebuilding.returncode == 0, world.log(1)
    assert reader.wrong == []
    assert "taken over" not in world.log(1)  # the swap ends its own run
    assert "could not continue" not in world.log(0) + world.log(1)
    assert world.lent() == counts(world.count)
    assert world.running[0].poll() is None
    undone = world.rebuild("--undo", "--format", "json")
    assert (undone.code, undone.json["state"], undone.json["running"]) == (0, "undone", True)
    world.wait_for_all()
    assert world.running[0].poll() is None
    assert world.lent() == counts(world.count)


@pytest.mark.release(world="mariadb")
@pytest.mark.release(world="sqlite")
@pytest.mark.release  # integration/test_killed_swaps.py kills at each statement
def test_a_rebuild_whose_process_is_killed_continues(world: World) -> None:
    world.start()
    world.wait_for_all()
    rebuilding = world.start(*REBUILD, "--compare", "--timeout", "1m")
    world.wait_until(lambda: _shadow_positions(world) > 0 or rebuilding.poll() is not None)
    rebuilding.kill()
    rebuilding.wait()
    assert "[catalog] is being rebuilt since" in world.project.opencqrs("status", "--details").out
    done = world.rebuild()
    assert done.code == 0, done.err
    assert "old tables are kept until --drop-old or --undo" in world.project.opencqrs("status", "--details").out
    assert f"catalog was rebuilt, up to position {world.count}: lent\n" in done.err
    world.wait_for_all()
    assert world.lent() == counts(world.count)


def _shadow_positions(world: World) -> int:
    try:
        ((phase,),) = world.rows("SELECT phase FROM opencqrs_rebuilds WHERE group_name = 'catalog'")
    except (SQLAlchemyError, ValueError):
        return 0
    return int(phase == "building")


@pytest.mark.release  # as without old processes, below
def test_processes_with_old_handlers_keep_the_tables_current_and_leave_them_after_the_swap(world: World) -> None:
    world.start()
    world.wait_for_all()
    changed = HANDLERS.replace("VALUES (:isbn, 1)", "VALUES (:isbn, 1001)")
    (world.project.folder / "handlers.py").write_text(changed)
    world.rebuild("--compare")
    world.start()  # with the new handlers: it waits
    world.wait_until(lambda: "OCQ" in world.log(2 - 1) or "waits for its rebuild" in world.log(1))
    world.add(7)
    world.wait_for_all()
    assert world.lent() == counts(world.count)  # by the old one
    assert world.rebuild().code == 0
    world.wait_until(lambda: "by other handlers, and this process has the old ones" in world.log(0))
    world.add(7)
    world.wait_for_all()
    assert world.lent() == {isbn: n + 1000 for isbn, n in counts(world.count).items()}
    assert [process.poll() for process in world.running] == [None, None]
    world.running[0].kill()
    (world.project.folder / "handlers.py").write_text(HANDLERS)
    refused = world.project.opencqrs("run", "--until-caught-up")
    assert refused.code == 2
    assert "[OCQ-631]" in refused.err


def test_without_old_processes_new_handlers_wait_for_the_rebuild_or_use_the_old_tables_as_configured(
    project: Any,
) -> None:
    world = World(project, "sqlite:///read.db")
    assert project.opencqrs("run", "--until-caught-up").code == 0
    (project.folder / "handlers.py").write_text(HANDLERS.replace("VALUES (:isbn, 1)", "VALUES (:isbn, 1001)"))
    assert world.rebuild("--compare").code == 0
    world.add(7)
    waiting = project.opencqrs("run", "--until-caught-up")
    assert waiting.code == 1
    assert "[catalog 0/2] [OCQ-632] group 'catalog' waits for its rebuild by these handlers" in waiting.out
    assert "group 'catalog' waits for its rebuild by these handlers" in waiting.err
    assert "opencqrs groups rebuild catalog --abort; or set rebuild.live: continue" in waiting.err
    assert "as a command asked" not in waiting.err
    assert world.lent() == counts(700)
    setting = ("--set", "event-handling.groups.catalog.rebuild.live=continue")
    continued = project.opencqrs("run", "--until-caught-up", *setting)
    assert continued.code == 0
    assert "handlers of group 'catalog' changed since position 700" in continued.err
    assert world.lent() == counts(707)
    assert world.rebuild().code == 0
    assert world.lent() == {isbn: count + 1000 for isbn, count in counts(707).items()}
    world.engine.dispose()


def test_each_mistake_is_explained(project: Any) -> None:
    world = World(project, "sqlite:///read.db")
    never = world.rebuild()
    assert (never.code, never.out) == (2, "")
    assert "[OCQ-630] group 'catalog' has never run" in never.err
    assert world.project.opencqrs("groups", "rebuild", "nobody").code == 2
    both = world.rebuild("--undo", "--abort")
    assert both.code == 2
    assert "--undo and --abort exclude each other" in both.err
    unfit = world.rebuild("--compare", "--accept-unhandled")
    assert unfit.code == 2
    assert "--accept-unhandled is for the swap, which --compare does not make" in unfit.err
    assert "catalog: no old tables are kept" in world.rebuild("--drop-old").err
    assert "catalog: it is not being rebuilt" in world.rebuild("--abort").err
    world.engine.dispose()


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "rebuild.md"


def test_the_page_shows_what_the_commands_print(project: Any) -> None:
    handlers = HANDLERS.replace("lent", "loans").replace("library.book-loans", "library.book-lent")
    handlers = handlers.replace("BookLent:\n    isbn", "BookLent:\n    isbn").replace(
        "isbn VARCHAR(20)", "isbn VARCHAR(9)"
    )
    project.write("handlers.py", handlers)
    project.write("application.yaml", SETTINGS.format(url="sqlite:///read.db"))
    project.environment["OPENCQRS__EVENT_HANDLING__STANDARD__PROCESSING__ENGINE"] = "thread"
    known = {"specversion": "1.0", "source": "s", "type": "library.book-lent.v1"}
    books = [1, 2, 3, 1, 2, 3, 1, 2]
    events = (
        {**known, "id": str(n), "subject": f"/{isbn}", "data": {"isbn": str(isbn)}} for n, isbn in enumerate(books)
    )
    project.write("events.ndjson", "".join(f"{json.dumps(event)}\n" for event in events))
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    assert project.opencqrs("run", "--until-caught-up").code == 0
    engine = create_engine(f"sqlite:///{project.folder}/read.db")
    with engine.begin() as connection:
        connection.execute(text("UPDATE loans SET n = 9 WHERE isbn = '2'"))
    engine.dispose()
    console = re.compile(r"^```console\n\$ opencqrs (.+?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    shown = dict(console.findall(PAGE.read_text("utf-8")))
    assert len(shown) == 3
    for line in sorted(shown, key=lambda line: ("--dry-run" not in line, "--compare" not in line)):
        printed = [row for row in project.opencqrs(*line.split()).err.splitlines() if not row.startswith("settings")]
        # Lines that are not on the page; the last ones come on a slow machine.
        ours = re.compile("the tables of group|group catalog was|catalog: no process|catalog: [08] of 8")
        assert [row for row in printed if not ours.match(row)] == shown[line].splitlines()


@pytest.mark.release  # wording
def test_a_dry_run_shows_the_limits(project: Any) -> None:
    world = World(project, "sqlite:///read.db")
    assert project.opencqrs("run", "--until-caught-up").code == 0
    project.environment["OPENCQRS__EVENT_HANDLING__STANDARD__REBUILD__MAX_EVENTS_PER_SECOND"] = "10"
    shown = world.rebuild("--dry-run")
    assert "\n  at most 10 events a second, so at least 1 min 10 s\n" in shown.err
    assert "partitions at once" not in shown.err
    project.environment["OPENCQRS__EVENT_HANDLING__STANDARD__REBUILD__MAX_TASKS"] = "2"
    plan = world.rebuild("--dry-run", "--format", "json").json
    assert (plan["max_events_per_second"], plan["max_tasks"]) == (10, 2)
    assert "\n  at most 2 partitions at once\n" in world.rebuild("--dry-run").err
    world.engine.dispose()


@pytest.mark.release
@pytest.mark.spark
def test_on_spark_the_command_rebuilds_in_tasks(world: World, request: pytest.FixtureRequest) -> None:
    project = world.project
    project.environment.update(request.getfixturevalue("java"))
    assert project.opencqrs("run", "--until-caught-up").code == 0
    with world.engine.begin() as connection:
        connection.execute(text("UPDATE lent SET n = 99 WHERE isbn = 'isbn-3'"))
    project.environment["OPENCQRS__EVENT_HANDLING__STANDARD__PROCESSING__ENGINE"] = "spark"
    done = world.rebuild("--format", "json")
    assert done.code == 0, done.err
    assert (done.json["position"], done.json["state"]) == (700, "swapped")
    assert world.lent() == counts(700)

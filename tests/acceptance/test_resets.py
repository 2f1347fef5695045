"""Groups are reset from the command line, while processes run them and while none does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

pytestmark = pytest.mark.release(world="sqlite")

HANDLERS = """
import time
from dataclasses import dataclass
from pathlib import Path
from opencqrs_py import ProcessingContext, Reset, event_handling, event_type, on_replay_finished, on_reset, on_start
from sqlalchemy import Connection, text

FAILING, BLOCKED = Path(__file__).with_name("failing"), Path(__file__).with_name("blocked")

@event_type("library.book-lent.v1")
@dataclass(frozen=True)
class BookLent:
    isbn: str

@on_start("catalog")
def tables(connection: Connection) -> None:
    for table in ("lent (isbn VARCHAR(20), position INTEGER, replaying INTEGER)", "mail (position INTEGER)",
                  "resets (name VARCHAR(20), position INTEGER, reason VARCHAR(99), ticket INTEGER)"):
        connection.execute(text(f"CREATE TABLE IF NOT EXISTS {table}"))

@event_handling("catalog")
def lend(event: BookLent, context: ProcessingContext, connection: Connection) -> None:
    row = {"isbn": event.isbn, "position": context.position, "replaying": int(context.replaying)}
    connection.execute(text("INSERT INTO lent VALUES (:isbn, :position, :replaying)"), row)
    while BLOCKED.exists():
        time.sleep(0.01)

@event_handling("catalog", replay=False)
def remind(event: BookLent, context: ProcessingContext, connection: Connection) -> None:
    connection.execute(text("INSERT INTO mail VALUES (:position)"), {"position": context.position})

def note(name: str, reset: Reset, connection: Connection) -> None:
    ticket = (reset.context or {}).get("ticket")
    row = {"name": name, "position": reset.position, "reason": reset.reason, "ticket": ticket}
    connection.execute(text("INSERT INTO resets VALUES (:name, :position, :reason, :ticket)"), row)

@on_reset("catalog")
def empty(reset: Reset, connection: Connection) -> None:
    connection.execute(text("DELETE FROM lent WHERE position > :position"), {"position": reset.position})
    note("reset", reset, connection)
    if FAILING.exists():
        raise ValueError("no such printer")

@on_replay_finished("catalog")
def announce(reset: Reset, connection: Connection) -> None:
    note("finished", reset, connection)
"""
SETTINGS = """
opencqrs:
  event-store: {{url: "sqlite:///events.db"}}
  database: {{url: "{url}"}}
  event-handling:
    standard: {{processing: {{engine: thread}}, life-cycle: {{lease: {{duration: 3s, heartbeat: 1s}}}}}}
    groups: {{catalog: {{life-cycle: {{partitions: 4}}}}}}
"""
LOOKS = 600  # more than any machine needs; each is a command


class World:
    """A project whose read model can be read, and runs of it in the background."""

    def __init__(self, project: Any, url: str) -> None:
        self.project = project
        self.engine = create_engine(url.replace("sqlite:///", f"sqlite:///{project.folder}/"))
        self.running: list[subprocess.Popen[str]] = []
        project.write("handlers.py", HANDLERS)
        project.write("application.yaml", SETTINGS.format(url=url))
        project.write_events(30)
        project.opencqrs("events", "import", "events.ndjson")

    def start(self) -> None:
        log = (self.project.folder / f"run-{len(self.running)}.log").open("w")
        with log:
            command = self.project.command("run")
            self.running.append(subprocess.Popen(command, cwd=self.project.folder, stdout=log, stderr=log, text=True))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def statuses(self) -> list[dict[str, Any]]:
        (status,) = self.project.opencqrs("status", "--format", "json").json
        partitions: list[dict[str, Any]] = status["partitions"]
        return partitions

    def wait_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(LOOKS):
            if condition():
                return
        logs = (self.project.folder / f"run-{number}.log" for number in range(len(self.running)))
        pytest.fail("\n".join(log.read_text() for log in logs))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def world(request: pytest.FixtureRequest, project: Any) -> Iterator[World]:
    url = "sqlite:///read.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("fresh_url")("postgresql")
    world = World(project, url)
    yield world
    for process in world.running:
        process.kill()
        process.wait()
    world.engine.dispose()


def positions(world: World, table: str = "lent") -> list[int]:
    return sorted(position for (position,) in world.rows(f"SELECT position FROM {table}"))


WANTED = [number + 1 for number in range(30) if number % 3]


def test_a_group_that_two_processes_run_is_reset_and_they_continue(world: World) -> None:
    world.start()
    world.start()
    world.wait_until(lambda: [one["position"] for one in world.statuses()] == [30] * 4)
    nodes = ("nodes", "--format", "json")
    world.wait_until(lambda: sum(one["state"] == "alive" for one in world.project.opencqrs(*nodes).json) == 2)
    options = ("--to-position", "9", "--reason", "due dates", "--context", '{"ticket": 17}')
    reset = world.project.opencqrs("groups", "reset", "Catalog", *options)
    assert (reset.code, reset.out) == (0, "")
    assert reset.err == "catalog was reset to position 9 of 30: events up to position 30 are handled again\n"
    world.wait_until(
        lambda: {(o["position"], bool(o["replay"]), o["state"]) for o in world.statuses()} == {(30, False, "running")}
    )
    assert positions(world) == WANTED
    assert positions(world, "mail") == WANTED
    assert {row[1] > 9 for row in world.rows("SELECT * FROM lent WHERE position > 9")} == {True}
    assert world.rows("SELECT DISTINCT replaying FROM lent WHERE position > 9") == [(1,)]
    assert sorted(world.rows("SELECT * FROM resets")) == [
        ("finished", 9, "due dates", 17),
        ("reset", 9, "due dates", 17),
    ]
    assert {(one["state"], one["wanted"], one["replay"]) for one in world.statuses()} == {("running", "started", None)}
    assert [process.poll() for process in world.running] == [None, None]


@pytest.mark.release  # wording
def test_a_reset_ahead_reports_what_is_left_out_even_of_a_replay(world: World) -> None:
    assert world.project.opencqrs("run", "--until-caught-up").code == 0
    world.project.opencqrs("groups", "reset", "catalog", "--to-position", "4")
    foreseen = world.project.opencqrs("groups", "reset", "catalog", "--to-position", "9", "--dry-run")
    left_out = "catalog: events after 4, up to 9, that it still had to handle {} left out\n"
    assert left_out.format("would be") in foreseen.err
    reset = world.project.opencqrs("groups", "reset", "catalog", "--to-position", "9")
    assert left_out.format("are") in reset.err
    ahead = world.project.opencqrs("groups", "reset", "catalog", "--to", "head", "--format", "json")
    assert (ahead.json["omitted_after"], ahead.json["position"]) == (9, 30)


def test_after_a_reset_without_a_process_the_next_run_continues_there(world: World) -> None:
    assert world.project.opencqrs("run", "--until-caught-up").code == 0
    reset = world.project.opencqrs("groups", "reset", "catalog", "--to", "tail", "--format", "json")
    assert (reset.code, reset.json["position"], reset.json["head"]) == (0, 0, 30)
    assert reset.json["until"] == dict.fromkeys(["0/4", "1/4", "2/4", "3/4"], 30)
    assert (reset.json["running"], reset.json["done"]) == (False, True)
    assert reset.json["omitted_after"] is None
    waiting = world.statuses()
    assert {(one["position"], one["replay"]["until"], one["replay"]["percent"]) for one in waiting} == {(0, 30, 0.0)}
    assert "0 % of 0 to 30" in world.project.opencqrs("status").out
    world.project.write("more.ndjson", "".join(f"{line}\n" for line in _lines(30, 40)))
    world.project.opencqrs("events", "import", "more.ndjson")
    assert world.project.opencqrs("run", "--until-caught-up").code == 0
    assert positions(world) == positions(world, "mail") == [number + 1 for number in range(40) if number % 3]
    assert sorted(world.rows("SELECT DISTINCT replaying FROM lent WHERE position <= 30")) == [(1,)]
    assert sorted(world.rows("SELECT DISTINCT replaying FROM lent WHERE position > 30")) == [(0,)]


def wanted(world: World) -> set[str]:
    return {one["wanted"] for one in world.statuses()}


@contextmanager
def waiting_reset(world: World) -> Iterator[subprocess.Popen[bytes]]:
    """Begin a reset that waits for handlers, which do not return while there is a file ``blocked``."""
    world.start()
    world.wait_until(lambda: {(one["position"], one["state"]) for one in world.statuses()} == {(30, "running")})
    (world.project.folder / "blocked").touch()
    world.project.write("more.ndjson", "".join(f"{line}\n" for line in _lines(30, 33)))
    world.project.opencqrs("events", "import", "more.ndjson")
    command = world.project.command("groups", "reset", "catalog", "--to", "tail")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=world.project.folder, **quiet) as waiting:
        world.wait_until(lambda: wanted(world) == {"paused"})
        yield waiting


@pytest.mark.release  # integration/test_layout_changes.py repeats a killed change
def test_a_reset_killed_while_it_waits_and_repeated_leaves_the_group_running(world: World) -> None:
    with waiting_reset(world) as waiting:
        waiting.kill()
    (world.project.folder / "blocked").unlink()
    assert wanted(world) == {"paused"}
    assert world.project.opencqrs("groups", "reset", "catalog", "--to", "tail").code == 0
    world.wait_until(lambda: {(one["position"], one["wanted"]) for one in world.statuses()} == {(33, "started")})
    assert positions(world) == [number + 1 for number in range(33) if number % 3]


@pytest.mark.release  # integration/test_layout_changes.py has a change that waits
def test_a_group_stopped_while_a_reset_waits_stays_stopped(world: World) -> None:
    with waiting_reset(world) as waiting:
        world.project.opencqrs("groups", "stop", "catalog", "--no-wait")
        (world.project.folder / "blocked").unlink()
        assert waiting.wait() == 0
    assert wanted(world) == {"stopped"}
    assert {one["position"] for one in world.statuses()} == {0}


def _lines(start: int, end: int) -> Iterator[str]:
    for number in range(start, end):
        isbn = f"isbn-{number % 7}"
        kind = "lent" if number % 3 else "returned"
        known = {"specversion": "1.0", "id": str(number), "source": "urn:library", "subject": f"/books/{isbn}"}
        yield json.dumps({**known, "type": f"library.book-{kind}.v1", "data": {"isbn": isbn}})


@pytest.mark.release  # integration/test_resets_and_rebuilds.py
def test_a_function_that_raises_leaves_everything_unchanged(world: World) -> None:
    world.start()
    world.wait_until(lambda: [one["position"] for one in world.statuses()] == [30] * 4)
    Path(world.project.folder / "failing").touch()
    reset = world.project.opencqrs("groups", "reset", "catalog", "--to", "tail")
    assert reset.code == 2
    assert "[OCQ-614] @on_reset of group 'catalog' raised ValueError: no such printer" in reset.err
    assert "handlers.py" in reset.err
    assert "Traceback" not in reset.err
    assert positions(world) == WANTED
    assert world.rows("SELECT * FROM resets") == []
    world.wait_until(lambda: {(o["state"], o["wanted"]) for o in world.statuses()} == {("running", "started")})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "name one place to reset to"),
        (("--to", "tail", "--to-position", "3"), "name one place to reset to"),
        (("--to-position", "31"), "position 31 is not in the log, whose newest event is at 30"),
        (("--to-event", "none"), "there is no event 'none'"),
        (("--to-time", "yesterday"), "--to-time"),
        (("--to", "tail", "--context", "{a: 1}"), "it is not JSON"),
    ],
)
@pytest.mark.few
def test_a_mistake_is_explained_and_changes_nothing(project: Any, options: tuple[str, ...], said: str) -> None:
    world = World(project, "sqlite:///read.db")
    assert project.opencqrs("run", "--until-caught-up").code == 0
    reset = project.opencqrs("groups", "reset", "catalog", *options)
    world.engine.dispose()
    assert (reset.code, reset.out) == (2, "")
    assert said in reset.err
    assert "Traceback" not in reset.err
    assert {(one["position"], one["replay"] is None) for one in world.statuses()} == {(30, True)}


def test_the_target_of_a_reset_is_an_event_a_time_or_the_head(project: Any) -> None:
    world = World(project, "sqlite:///read.db")
    world.engine.dispose()
    assert project.opencqrs("run", "--until-caught-up").code == 0
    places = {("--to-event", "12"): 12, ("--to-time", "2026-01-05T09:00:00Z"): 0, ("--to", "head"): 30}
    for options, position in places.items():
        looked = project.opencqrs("groups", "reset", "catalog", *options, "--dry-run", "--format", "json").json
        assert (looked["position"], looked["done"]) == (position, False)
        assert {one["position"] for one in world.statuses()} == {30}
    unknown = project.opencqrs("groups", "reset", "loans", "--to", "tail")
    assert (unknown.code, "[OCQ-509] no handler belongs to a group 'loans'" in unknown.err) == (2, True)


def test_progress_in_memory_cannot_be_reset(project: Any) -> None:
    world = World(project, "sqlite:///read.db")
    world.engine.dispose()
    memory = ("--set", "event-handling.standard.progress.tracking=in-memory")
    reset = project.opencqrs("groups", "reset", "catalog", "--to", "tail", *memory)
    assert reset.code == 2
    assert "[OCQ-613] the progress of group 'catalog' cannot be reset: it is in the memory of the process" in reset.err

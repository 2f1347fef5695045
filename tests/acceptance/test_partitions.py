"""The partitions of a group change while processes run it, events come in and processes die."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from opencqrs_py.adapters.sql import Database

pytestmark = pytest.mark.release(world="sqlite")

HANDLERS = """
from dataclasses import dataclass
from opencqrs_py import NonTransientError, ProcessingContext, event_handling, event_type, on_start
from sqlalchemy import Connection, text

@event_type("library.book-lent.v1")
@dataclass(frozen=True)
class BookLent:
    isbn: str

@on_start("catalog")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS lent (isbn VARCHAR(20), position INTEGER)"))

@event_handling("catalog")
def lend(event: BookLent, context: ProcessingContext, connection: Connection) -> None:
    row = {"isbn": event.isbn, "position": context.position}
    newest = connection.execute(text("SELECT MAX(position) FROM lent WHERE isbn = :isbn"), row).scalar()
    if newest is not None and newest >= context.position:
        raise NonTransientError(f"{event.isbn} was at {newest} already")
    connection.execute(text("INSERT INTO lent VALUES (:isbn, :position)"), row)
"""
SETTINGS = """
opencqrs:
  event-store: {{url: "sqlite:///events.db"}}
  database: {{url: "{url}"}}
  event-handling:
    standard: {{processing: {{engine: thread, batch-size: 7}}, life-cycle: {{lease: {{duration: 3s, heartbeat: 1s}}}}}}
    groups: {{catalog: {{life-cycle: {{partitions: {partitions}}}}}}}
"""
LOOKS = 600  # more than any machine needs; each is a command
TRIES = 10  # of a change, while processes take over
EVENTS = 60


class World:
    """A project whose read model can be read, and runs of it in the background."""

    def __init__(self, project: Any, url: str) -> None:
        self.project = project
        self.url = url
        self.database = Database(url.replace("sqlite:///", f"sqlite:///{project.folder}/"))
        self.running: list[subprocess.Popen[str]] = []
        self.written = 0
        project.write("handlers.py", HANDLERS)
        self.configure(4)
        self.append()

    def configure(self, partitions: int) -> None:
        self.project.write("application.yaml", SETTINGS.format(url=self.url, partitions=partitions))

    def append(self) -> None:
        lines = (
            f'{{"id": "{number}", "source": "s", "type": "library.book-lent.v1", "subject": "/books/{number % 17}", '
            f'"data": {{"isbn": "{number % 17}"}}}}'
            for number in range(self.written, self.written + EVENTS)
        )
        self.project.write("more.ndjson", "\n".join(lines))
        assert self.project.opencqrs("events", "import", "more.ndjson").code == 0
        self.written += EVENTS

    def start(self, *options: str) -> subprocess.Popen[str]:
        with (self.project.folder / f"run-{len(self.running)}.log").open("w") as log:
            command = self.project.command("run", *options)
            run = subprocess.Popen(command, cwd=self.project.folder, stdout=log, stderr=log, text=True)
        self.running.append(run)
        return run

    def log(self, number: int) -> str:
        found: str = (self.project.folder / f"run-{number}.log").read_text()
        return found

    def statuses(self) -> list[dict[str, Any]]:
        (status,) = self.project.opencqrs("status", "--format", "json").json
        partitions: list[dict[str, Any]] = status["partitions"]
        return partitions

    def changed(self, *change: str) -> Any:
        """Change the partitions, again if that meets the claim of a process that takes over, as the error advises."""
        for _ in range(TRIES):
            ran = self.project.opencqrs("groups", *change)
            if "another process has changed or claimed partitions" not in ran.err:
                break
        return ran

    def layout(self) -> set[str]:
        return {one["partition"] for one in self.statuses()}

    def wait_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(LOOKS):
            if condition():
                return
        pytest.fail("\n".join(map(self.log, range(len(self.running)))))

    def wait_for_nodes(self, count: int) -> None:
        nodes = ("nodes", "--format", "json")
        self.wait_until(lambda: sum(one["state"] == "alive" for one in self.project.opencqrs(*nodes).json) == count)

    def wait_for_all(self) -> None:
        """Wait until every event is handled, and see that each was handled once."""
        self.wait_until(
            lambda: {(one["position"], one["state"]) for one in self.statuses()} == {(self.written, "running")}
        )
        handled = Counter(position for (position,) in self.database.fetch("SELECT position FROM lent"))
        assert handled == Counter(range(1, self.written + 1))


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.release]),
    ]
)
def world(request: pytest.FixtureRequest, project: Any) -> Iterator[World]:
    url = "sqlite:///read.db"
    if request.param != "sqlite":
        url = request.getfixturevalue("fresh_url")(request.param)
    world = World(project, url)
    yield world
    for process in world.running:
        process.kill()
        process.wait()
    world.database.close()


CHANGES = [
    (("partitions", "catalog", "6"), {f"{one}/6" for one in range(6)}),
    (("split", "catalog:5/6"), {*(f"{one}/6" for one in range(5)), "5/12", "11/12"}),
    (("partitions", "Catalog", "3"), {f"{one}/3" for one in range(3)}),
    (("partitions", "catalog", "2"), {"0/2", "1/2"}),
    (("merge", "catalog:1/2"), {"0/1"}),
    (("partitions", "catalog", "4"), {f"{one}/4" for one in range(4)}),
]


@pytest.mark.release  # integration/test_layout_changes.py
def test_no_event_is_handled_twice_or_lost_while_the_partitions_change(world: World) -> None:
    world.start()
    world.start()
    world.wait_for_nodes(2)
    for change, expected in CHANGES:
        world.append()
        changed = world.changed(*change)
        assert changed.code == 0, changed.err
        assert changed.err.startswith("catalog has ")  # logged messages are not printed as well
        assert "of them new:\n  catalog:" in changed.err
        assert world.layout() == expected
        if len(expected) == 1:
            world.running[0].kill()
    world.append()
    world.wait_for_all()


@pytest.mark.release  # wording
def test_a_command_that_changes_nothing_also_says_that_a_process_runs_the_group(world: World) -> None:
    looks = (
        ("partitions", "catalog", "3", "--dry-run"),
        ("partitions", "catalog", "4"),  # as many as there are
        ("split", "catalog:0/4", "--dry-run"),
        ("reset", "catalog", "--to", "tail", "--dry-run"),
    )
    world.start()
    world.wait_for_all()
    for look in looks:
        assert world.project.opencqrs("groups", *look, "--format", "json").json["running"] is True
    assert world.project.opencqrs("groups", "stop", "catalog").code == 0
    for look in looks:
        assert world.project.opencqrs("groups", *look, "--format", "json").json["running"] is False


CONTINUED = "catalog: no process runs it; the next opencqrs run continues there\n"
STARTED = "catalog: it is stopped; opencqrs groups start catalog lets it continue there\n"
STARTED_ALONE = "catalog: the new partitions are stopped; opencqrs groups start {} lets them continue there\n"


@pytest.mark.release  # wording; below for a group that starts by command
def test_a_change_of_a_stopped_group_names_the_command_that_continues_it(world: World) -> None:
    def told(*command: str) -> str:
        ran = world.project.opencqrs("groups", *command)
        assert ran.code == 0, ran.err
        return str(ran.err)

    reset = ("reset", "catalog", "--to", "tail")
    assert world.project.opencqrs("run", "--until-caught-up").code == 0
    assert told(*reset).endswith(CONTINUED)
    told("stop", "catalog")
    assert told(*reset).endswith(STARTED)
    for change in ("partitions", "Catalog", "2"), ("split", "catalog:0/2"), ("merge", "catalog:0/4"):
        assert told(*change).endswith(STARTED)
    assert "stopped" not in told(*reset, "--dry-run")
    told("start", "catalog")
    assert told("partitions", "catalog", "4").endswith(CONTINUED)
    told("stop", "catalog:0/4", "catalog:1/4")
    assert told("split", "catalog:0/4").endswith(STARTED_ALONE.format("catalog:0/8 catalog:4/8"))
    told("start", "catalog:0/8", "catalog:4/8")
    assert {one["partition"] for one in world.statuses() if one["wanted"] == "stopped"} == {"1/4"}
    assert told("split", "catalog:2/4").endswith(CONTINUED)
    assert told(*reset).endswith(CONTINUED)


def test_a_reset_of_a_group_that_starts_only_by_command_names_the_command(world: World) -> None:
    assert world.project.opencqrs("run", "--until-caught-up").code == 0
    by_command = ("--set", "event-handling.groups.catalog.life-cycle.auto-start=false")
    ran = world.project.opencqrs("groups", "reset", "catalog", "--to", "tail", *by_command)
    assert ran.err.endswith(STARTED)


@pytest.mark.release
def test_without_a_process_the_next_one_continues_with_the_new_partitions(world: World) -> None:
    assert world.project.opencqrs("run", "--until-caught-up").code == 0
    world.append()
    dry = world.project.opencqrs("groups", "partitions", "catalog", "3", "--dry-run")
    assert dry.err == (
        "catalog would have 3 partitions (4 before), 3 of them new:\n"
        "  catalog:0/3 continues after 60\n  catalog:1/3 continues after 60\n  catalog:2/3 continues after 60\n"
    )
    assert len(world.layout()) == 4
    changed = world.project.opencqrs("groups", "partitions", "catalog", "3", "--format", "json").json
    assert changed == {
        "group": "catalog",
        "before": ["0/4", "1/4", "2/4", "3/4"],
        "partitions": ["0/3", "1/3", "2/3"],
        "new": {f"{one}/3": {"position": 60, "ahead_until": None} for one in range(3)},
        "running": False,
        "done": True,
    }
    again = world.project.opencqrs("groups", "partitions", "catalog", "3")
    assert again.err == "catalog has 3 partitions already: nothing was changed\n"
    world.start()
    world.wait_for_all()


@pytest.mark.release  # integration/test_layout_changes.py
def test_a_changed_setting_is_followed_and_an_older_process_does_not_change_it_back(world: World) -> None:
    world.start()
    world.wait_for_nodes(1)
    world.configure(6)
    world.start()
    world.wait_for_nodes(2)
    world.wait_until(lambda: len(world.layout()) == 6)
    assert "life-cycle.partitions of group catalog was 4 and is 6 now: the partitions are changed" in world.log(1)
    world.configure(4)  # a restart of the older one
    world.start()
    world.wait_for_nodes(3)
    world.append()
    world.wait_for_all()
    assert len(world.layout()) == 6
    assert (
        "life-cycle.partitions of group catalog is 4 here; another process has set 6 since, which counts"
        in world.log(2)
    )
    world.running[1].kill()
    world.running[1].wait()
    world.wait_for_nodes(2)
    world.append()
    world.start()  # a rollback: no process that lives has 6
    world.wait_until(lambda: len(world.layout()) == 4)
    world.wait_for_all()


@pytest.mark.release
def test_a_layout_set_by_a_command_survives_restarts_until_the_setting_changes(world: World) -> None:
    assert world.project.opencqrs("run", "--until-caught-up").code == 0
    assert world.project.opencqrs("groups", "split", "catalog:0/4").code == 0
    world.append()
    assert world.project.opencqrs("run", "--until-caught-up").code == 0
    assert world.layout() == {"1/4", "2/4", "3/4", "0/8", "4/8"}
    found = {one["subject"]: one for one in world.project.opencqrs("conditions", "--format", "json").json}
    assert found["life-cycle.partitions"]["choice"] == "1/4, 2/4, 3/4, 0/8, 4/8"
    why = "a command has set these since; they apply until the setting differs from 4"
    assert found["life-cycle.partitions"]["reason"] == why
    world.configure(2)
    assert "it was 4 when the group got these; the next start follows" in world.project.opencqrs("conditions").out
    world.start()
    world.wait_until(lambda: world.layout() == {"0/2", "1/2"})
    world.wait_for_all()


@pytest.mark.release
def test_a_stopped_partition_stays_stopped_when_it_is_split(world: World) -> None:
    world.start()
    world.wait_for_all()
    assert world.project.opencqrs("groups", "stop", "catalog:1/4").code == 0
    assert world.project.opencqrs("groups", "split", "catalog:1/4").code == 0
    assert {one["partition"] for one in world.statuses() if one["wanted"] == "stopped"} == {"1/8", "5/8"}
    assert world.project.opencqrs("groups", "start", "catalog").code == 0
    world.append()
    world.wait_for_all()

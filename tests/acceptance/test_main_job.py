"""The main job, typed as a person types it, on both engines."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from sqlalchemy import text
from support.engines import ENGINES
from support.sqlite import rows_of

from opencqrs_py.adapters.sql import Database

EVENTS = 2_000


KINDS = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]


def rows(url: str, statement: str) -> list[tuple]:
    database = Database(url)
    with database.reading() as connection:
        found = [tuple(row) for row in connection.execute(text(statement))]
    database.close()
    return found


def expected_lent() -> dict[str, int]:
    return Counter(f"isbn-{number % 7}" for number in range(EVENTS) if number % 3)


def handled(said: str) -> int:
    """Return the number of events handled, from the output of a run; the column is missing when Spark had no work."""
    heading, *lines = said.strip().splitlines()
    return sum(int(line.split()[-1].replace(",", "")) for line in lines) if "handled" in heading else 0


EXPECTED = (
    "[catalog",
    "[audit",
    "settings: ",
    "created a new, empty SQLite database",
    "created new, empty tables",
    "starting Spark",
)
"""What the lines begin with that a run prints when all is well."""


class Typed:
    """The commands of the job, with one event store and one read model."""

    def __init__(self, project, engine: str, store: str, read: str) -> None:
        self.project = project
        chosen = f"event-handling.standard.processing.engine={engine}"
        places = (f"event-store.url={store}", f"database.url={read}", chosen)
        self.settings = [word for place in places for word in ("--set", place)]
        self.read = read

    def run(self) -> str:
        """Run all groups to the end of the log; return the output."""
        ran = self.project.opencqrs("run", "--until-caught-up", *self.settings)
        told = [line for line in ran.err.splitlines() if not line.startswith(EXPECTED)]
        assert (ran.code, told) == (0, [])
        return ran.out

    def check(self) -> None:
        """See that each event was handled exactly once, and that the progress is kept."""
        assert dict(rows(self.read, "SELECT isbn, n FROM lent")) == expected_lent()
        assert rows(self.read, "SELECT count(*), sum(position) FROM audit") == [(EVENTS, EVENTS * (EVENTS + 1) // 2)]
        said = self.project.opencqrs("status", "--format", "json", *self.settings)
        status = {s["group"]: s for s in said.json}
        assert {group: (s["head"], s["lag"], len(s["partitions"])) for group, s in status.items()} == {
            "audit": (EVENTS, 0, 1),
            "catalog": (EVENTS, 0, 4),
        }


@pytest.mark.release(engine="spark", kind=("sqlite", "mariadb"))
@pytest.mark.release(engine="thread", kind="postgresql")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.release(engine="thread", kind="mariadb")  # nothing of Spark there, and the SQL is the contract's
def test_import_and_run_can_be_repeated_and_show_no_output_of_spark_or_the_jvm(project, engine, kind, fresh_url):
    store, read = fresh_url(kind), fresh_url(kind)
    project.write_events(EVENTS)
    imported = project.opencqrs(
        "events", "import", "events.ndjson", "--format", "json", "--set", f"event-store.url={store}"
    )
    assert (imported.code, imported.json["events"], imported.json["added"]) == (0, EVENTS, EVENTS)

    job = Typed(project, engine, store, read)
    assert handled(job.run()) == EVENTS + sum(expected_lent().values())
    job.check()
    assert handled(job.run()) == 0
    job.check()


def test_read_models_in_a_deleted_database_are_rebuilt(project):
    project.write_events(EVENTS)
    project.opencqrs("events", "import", "events.ndjson")
    thread = "event-handling.standard.processing.engine=thread"
    for _ in range(2):
        run = project.opencqrs("run", "--until-caught-up", "--set", thread)
        assert run.code == 0, run.err
        assert dict(rows(f"sqlite:///{project.folder / 'read.db'}", "SELECT isbn, n FROM lent")) == expected_lent()
        for file in project.folder.glob("read.db*"):
            file.unlink()


def test_a_second_start_does_not_even_open_spark(project):
    project.write_events(50)
    project.opencqrs("events", "import", "events.ndjson")
    thread = "event-handling.standard.processing.engine=thread"
    assert project.opencqrs("run", "--until-caught-up", "--set", thread).code == 0
    again = project.opencqrs("run", "--until-caught-up", JAVA_HOME="/nowhere", PATH="/nowhere")
    assert again.code == 0, again.err


def test_one_group_can_run_alone(project):
    project.write_events(30)
    project.opencqrs("events", "import", "events.ndjson")
    thread = "event-handling.standard.processing.engine=thread"
    assert project.opencqrs("run", "--until-caught-up", "--group", "audit", "--set", thread).code == 0
    partitions = {s["group"]: len(s["partitions"]) for s in project.opencqrs("status", "--format", "json").json}
    assert partitions == {"audit": 1, "catalog": 0}


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_of_one_group_shows_that_group_only(project, engine):
    project.write_events(30)
    project.opencqrs("events", "import", "events.ndjson")
    chosen = f"event-handling.standard.processing.engine={engine}"
    run = project.opencqrs("run", "--until-caught-up", "--group", "audit", "--set", chosen)
    assert run.code == 0, run.err
    assert {line.split()[0] for line in run.out.splitlines()[1:]} == {"audit"}
    assert "catalog" not in run.out + run.err


def test_auto_start_off_leaves_a_group_out_unless_it_is_named(project):
    project.write_events(30)
    project.opencqrs("events", "import", "events.ndjson")
    settings = [
        "--set",
        "event-handling.standard.processing.engine=thread",
        "--set",
        "event-handling.groups.audit.life-cycle.auto-start=false",
    ]
    assert project.opencqrs("run", "--until-caught-up", *settings).code == 0
    assert [s["lag"] for s in project.opencqrs("status", "--format", "json").json if s["group"] == "audit"] == [30]
    assert project.opencqrs("run", "--until-caught-up", "--group", "audit", *settings).code == 0
    assert [s["lag"] for s in project.opencqrs("status", "--format", "json").json] == [0, 0]


def test_init_creates_a_project_that_runs(project):
    made = project.opencqrs("init", "fresh")
    assert made.code == 0
    settings = (project.folder / "fresh" / "application.yaml").read_text().splitlines()
    assert settings[0] == "# yaml-language-server: $schema=application.schema.json"
    assert "properties" in json.loads((project.folder / "fresh" / "application.schema.json").read_text())
    fresh = type(project)(project.folder / "fresh", project.zygote)
    assert fresh.opencqrs("events", "import", "events.ndjson").code == 0
    run = fresh.opencqrs("run", "--until-caught-up", "--set", "event-handling.standard.processing.engine=thread")
    assert run.code == 0, run.err
    books = rows_of(fresh.folder / "library.db", "SELECT isbn, lent FROM books ORDER BY isbn")
    assert books == [("978-0008471286", 1), ("978-0132350884", 0)]
    assert project.opencqrs("init", "fresh").code == 2

"""A handler that ends its process is found: its partition fails, names the event, and the others continue."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, text

DEADLY = """
import os, pathlib, signal

@event_handling("audit", types=["library.*"], order=-1)
def crash(raw: Event, connection: Connection) -> None:
    if raw.position == 8 and pathlib.Path(__file__).with_name("deadly").exists():
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def url(request: pytest.FixtureRequest, project: Any) -> str:
    handlers = (project.folder / "handlers.py").read_text()
    project.write("handlers.py", handlers + DEADLY)
    project.write("deadly", "")
    project.write_events(40)
    project.opencqrs("events", "import", "events.ndjson")
    if request.param == "sqlite":
        return f"sqlite:///{project.folder}/read.db"
    url: str = request.getfixturevalue("fresh_url")("postgresql")
    settings = (project.folder / "application.yaml").read_text()
    project.write("application.yaml", settings.replace("sqlite:///read.db", url))
    return url


def partitions(project: Any, *arguments: str) -> dict[str, dict[str, Any]]:
    statuses = project.opencqrs("status", *arguments, "--format", "json").json
    return {f"{status['group']} {p['partition']}": p for status in statuses for p in status["partitions"]}


def rows(url: str) -> list[int]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [row[0] for row in connection.execute(text("SELECT position FROM audit ORDER BY position"))]
    engine.dispose()
    return found


@pytest.mark.release(engine="spark")
@pytest.mark.release(url="sqlite")
def test_an_event_that_crashes_processes_is_named_and_held_until_its_group_is_restarted(project, engine, url):
    chosen = ("--set", engine)
    if engine.endswith("thread"):  # on Spark only a worker ends
        assert [project.opencqrs("run", "--until-caught-up", *chosen).code for _ in range(4)] == [-9] * 4
    run = project.opencqrs("run", "--until-caught-up", *chosen)
    assert run.code == 1
    assert "[OCQ-236] HandlerCrashError: 3 processes have ended while they handled this event" in run.err
    assert "fix:   fix its handler, then: opencqrs groups restart audit:0/1" in run.err
    found = partitions(project, *chosen)
    audit = found.pop("audit 0/1")
    assert {p["position"] for p in found.values()} == {40}
    assert (audit["position"], audit["next_attempt_at"]) == (7, None)
    assert audit["state"] in {"failed", "unowned"}  # the latter, if a busy machine ended it before it could leave
    assert audit["last_error"]["event_id"] == "7"
    assert "OCQ-236" in audit["last_error"]["message"]
    assert rows(url) == list(range(1, 8))

    (project.folder / "deadly").unlink()
    assert project.opencqrs("run", "--until-caught-up", *chosen).code == 1  # the group was not restarted
    assert rows(url) == list(range(1, 8))
    assert project.opencqrs("groups", "restart", "audit", *chosen).code == 0
    assert project.opencqrs("run", "--until-caught-up", *chosen).code == 0
    assert rows(url) == list(range(1, 41))

"""A handler that never returns: it causes a warning, and is abandoned where a timeout is set."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, text
from support.engines import ENGINES

HANGING = """
import pathlib, threading

@event_handling("audit", types=["library.*"], order=-1)
def hang(raw: Event, connection: Connection) -> None:
    if raw.position == 8 and pathlib.Path(__file__).with_name("fails").exists():
        raise ValueError("not yet")
    if raw.position == 8 and pathlib.Path(__file__).with_name("hangs").exists():
        threading.Event().wait(WAIT)
"""
STANDARD = "event-handling.standard"
TIMEOUT = ("--set", f"{STANDARD}.processing.handler-timeout=500ms")
TRIED_TWICE = ("--set", f"{STANDARD}.retry.max-attempts=1", "--set", f"{STANDARD}.retry.initial-interval=100ms")
SERVERS = [pytest.param(each, marks=getattr(pytest.mark, each)) for each in ("postgresql", "mariadb")]


@pytest.fixture
def hangs(project: Any) -> Any:
    def write(seconds: str = "None") -> None:
        handlers = (project.folder / "handlers.py").read_text()
        project.write("handlers.py", handlers + HANGING.replace("WAIT", seconds))
        project.write("hangs", "")
        project.write_events(40)
        project.opencqrs("events", "import", "events.ndjson")

    return write


@pytest.fixture
def on_server(request: pytest.FixtureRequest, project: Any) -> str:
    url: str = request.getfixturevalue("fresh_url")(request.param)
    settings = (project.folder / "application.yaml").read_text()
    project.write("application.yaml", settings.replace("sqlite:///read.db", url))
    return url


def rows(url: str) -> list[int]:
    engine = create_engine(url.replace("mariadb://", "mysql+pymysql://"))
    with engine.connect() as connection:
        found = [row[0] for row in connection.execute(text("SELECT position FROM audit ORDER BY position"))]
    engine.dispose()
    return found


ALL_BUT_8 = [position for position in range(1, 41) if position != 8]


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("on_server", SERVERS, indirect=True)
def test_a_call_that_times_out_is_an_error_of_its_event(project, engine, on_server, hangs):
    hangs()
    run = project.opencqrs("run", "--until-caught-up", "--set", engine, *TIMEOUT, *TRIED_TWICE)
    assert run.code == 3, run.err
    assert "event 7 at position 8" in run.err
    assert "failed on attempt 1 ([OCQ-229] HandlerTimeoutError: the handler has not returned for" in run.err
    assert "Stack of its thread (most recent call last):" in run.err
    assert "handlers.py" in run.err
    assert "threading.Event().wait(None)" in run.err
    assert "failed on attempt 2" in run.err
    assert "Py4J" not in run.err
    assert "Traceback" not in run.err
    assert rows(on_server) == ALL_BUT_8
    (skip,) = project.opencqrs("events", "skipped", "--set", engine, "--format", "json").json
    assert (skip["event_id"], skip["attempts"]) == ("7", 2)
    assert "OCQ-229" in skip["reason"]


WAITING = {
    "scheduled": ("--set", f"{STANDARD}.processing.mode=scheduled"),
    "parked": ("--set", f"{STANDARD}.retry.on-exhausted=park", "--set", f"{STANDARD}.retry.policy=none"),
}


@pytest.mark.release  # contract/test_waiting_groups.py
@pytest.mark.parametrize("on_server", SERVERS[:1], indirect=True)
@pytest.mark.parametrize("waiting", WAITING)
def test_a_call_for_an_event_of_the_inbox_that_times_out_is_an_attempt(project, engine, on_server, hangs, waiting):
    hangs()
    settings = ("--set", engine, *TIMEOUT, *WAITING[waiting])
    if waiting == "parked":  # before its attempt in the inbox
        project.write("fails", "")
        assert project.opencqrs("run", "--until-caught-up", *settings).code == 3
        (project.folder / "fails").unlink()
        project.opencqrs("inbox", "retry", "--all")
    run = project.opencqrs("run", "--until-caught-up", *settings)
    assert run.code == 3, run.err
    waits = {one["position"]: one for one in project.opencqrs("inbox", "list", "--format", "json").json}
    assert sorted([*rows(on_server), *waits]) == list(range(1, 41))
    assert "OCQ-229" in waits[8]["last_error"]
    assert waits[8]["attempts"] == (2 if waiting == "parked" else 1)
    (project.folder / "hangs").unlink()
    project.opencqrs("inbox", "retry", "--all")
    run = project.opencqrs("run", "--until-caught-up", *settings)
    assert (run.code, rows(on_server)) == (0, list(range(1, 41)))


@pytest.mark.parametrize("on_server", SERVERS[:1], indirect=True)
@pytest.mark.release  # unit/engines/test_hung_calls.py
def test_of_a_hanging_list_only_the_event_that_hangs_alone_is_skipped(project, engine, on_server, hangs):
    hangs()
    listed = HANGING.replace("raw: Event", "raws: list[Event]").replace("    if ", "    for raw in raws:\n     if ")
    handlers = (project.folder / "handlers.py").read_text().replace(HANGING.replace("WAIT", "None"), "")
    project.write("handlers.py", handlers + listed.replace("WAIT", "None"))
    run = project.opencqrs(
        "run", "--until-caught-up", "--set", engine, *TIMEOUT, "--set", f"{STANDARD}.retry.policy=none"
    )
    assert run.code == 3, run.err
    assert "could not continue at one of 40 events, from event 0 at position 1" in run.err
    assert "no attempt is used, and each of its events is handled alone next" in run.err
    assert rows(on_server) == ALL_BUT_8
    skips = project.opencqrs("events", "skipped", "--set", engine, "--format", "json").json
    assert [skip["event_id"] for skip in skips] == ["7"]


@pytest.mark.release  # unit/engines/spark/test_turns.py
def test_the_work_of_a_task_before_a_hanging_call_is_counted_and_logged(project, hangs, request):
    """The event at position 2 is parked in the task in which the call for position 8 hangs."""
    project.environment.update(request.getfixturevalue("java"))
    hangs()
    handlers = (project.folder / "handlers.py").read_text()
    failing = "    if raw.position == 2:\n        raise ValueError('never')\n    if raw.position == 8"
    project.write("handlers.py", handlers.replace("    if raw.position == 8", failing, 1))
    chosen = ("--set", f"{STANDARD}.retry.policy=none", "--set", "spark.driver-handles=never")
    parks = ("--set", f"{STANDARD}.retry.on-exhausted=park", "--set", f"{STANDARD}.sequence.resolution=per_subject")
    run = project.opencqrs("run", "--until-caught-up", *TIMEOUT, *chosen, *parks)
    assert run.code == 3, run.err
    for position in (2, 8):
        assert f"[audit 0/1] event {position - 1} at position {position} (" in run.err
    assert run.err.count("the event is parked, and its sequence waits for it") == 2
    written = len(rows(f"sqlite:///{project.folder}/read.db"))
    (audit,) = [line.split() for line in run.out.splitlines() if line.startswith("audit")]
    assert (int(audit[-2]), int(audit[-1])) == (written, 40 - written)


@pytest.mark.parametrize("on_server", SERVERS[:1], indirect=True)
@pytest.mark.release  # unit/engines/test_hung_calls.py
def test_progress_in_memory_moves_past_a_call_that_times_out(project, on_server, hangs):
    hangs()
    chosen = ("--set", f"{STANDARD}.processing.engine=thread", "--set", f"{STANDARD}.progress.tracking=in_memory")
    run = project.opencqrs("run", "--until-caught-up", *chosen, *TIMEOUT, *TRIED_TWICE)
    assert run.code == 3, run.err
    assert rows(on_server) == ALL_BUT_8


def test_if_the_transaction_cannot_be_ended_the_process_ends_and_names_event_and_handler(project, hangs):
    hangs()
    chosen = ("--set", f"{STANDARD}.processing.engine=thread", *TIMEOUT)
    run = project.opencqrs("run", *chosen)
    assert run.code == 1, run.err
    assert "[OCQ-414] group 'audit' partition 0/1: event 7 at position 8" in run.err
    assert "the handler has not returned for" in run.err
    assert "and its transaction cannot be ended" in run.err
    assert "where: " in run.err
    assert "(hang)" in run.err
    (project.folder / "hangs").unlink()
    again = project.opencqrs("run", "--until-caught-up", *chosen)
    assert again.code == 0, again.err
    assert rows(f"sqlite:///{project.folder}/read.db") == list(range(1, 41))


@pytest.mark.release  # as above, where another event is parked in the same task
def test_on_spark_only_the_worker_of_a_hanging_call_ends(project, hangs, request):
    project.environment.update(request.getfixturevalue("java"))
    hangs()
    run = project.opencqrs("run", "--until-caught-up", *TIMEOUT, *TRIED_TWICE)
    assert run.code == 3, run.err
    assert rows(f"sqlite:///{project.folder}/read.db") == ALL_BUT_8


REPEATING = ("--set", "spark.master=local[2,4]")
SPECULATING = (*REPEATING, "--set", "spark.conf.spark.speculation=true")


@pytest.mark.parametrize("master", [REPEATING, SPECULATING])
@pytest.mark.release  # unit/engines/spark/test_task_runs.py
def test_a_call_that_times_out_in_a_repeated_spark_task_is_an_error_of_its_event(project, hangs, request, master):
    project.environment.update(request.getfixturevalue("java"))
    hangs()
    run = project.opencqrs("run", "--until-caught-up", *TIMEOUT, *TRIED_TWICE, *master)
    assert run.code == 3, run.err
    assert "failed on attempt 1 ([OCQ-229] HandlerTimeoutError: the handler has not returned for" in run.err
    assert rows(f"sqlite:///{project.folder}/read.db") == ALL_BUT_8


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.release  # unit/engines/test_hung_calls.py
def test_a_call_that_takes_long_is_warned_of(project, engine, hangs):
    hangs("1.5")  # on Spark in a separate JVM, whose standard error is shown
    chosen = ("--set", f"{STANDARD}.processing.engine={engine}")
    run = project.opencqrs(
        "run", "--until-caught-up", *chosen, "--set", f"{STANDARD}.processing.handler-warn-after=300ms"
    )
    assert run.code == 0, run.err
    assert "[audit 0/1] event 7 at position 8" in run.err
    assert "has been with its handler for 0." in run.err
    assert "threading.Event().wait(1.5)" in run.err
    assert rows(f"sqlite:///{project.folder}/read.db") == list(range(1, 41))

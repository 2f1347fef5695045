"""Reading one's writes: ``opencqrs await``, from another process than the one that runs the groups."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.release(library="sqlite")

THREAD = ("--set", "event-handling.standard.processing.engine=thread")
LOOKS = 600  # more than any machine needs; each is a command
SECONDS = 120  # longest wait for a process
POISON = """
from opencqrs_py import Event, NonTransientError, event_handling

@event_handling("audit", types=["library.*"])
def audit(raw: Event) -> None:
    raise NonTransientError("no paper")
"""


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def library(request: pytest.FixtureRequest, project: Any) -> Any:
    """A project with events, on each database."""
    if request.param != "sqlite":
        url = request.getfixturevalue("fresh_url")(request.param)
        settings = (project.folder / "application.yaml").read_text()
        project.write("application.yaml", settings.replace("sqlite:///read.db", url))
    project.write_events(40)
    project.opencqrs("events", "import", "events.ndjson")
    return project


@pytest.fixture
def on_sqlite(project: Any) -> Any:
    project.write_events(40)
    project.opencqrs("events", "import", "events.ndjson")
    return project


@pytest.fixture
def start(project: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command in the background; it is killed afterwards if it still runs."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = project.command(*arguments, *THREAD)
        started.append(subprocess.Popen(command, cwd=project.folder, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def append(project: Any, event_id: str, source: str) -> None:
    """Append a loan of a book."""
    named = ("--id", event_id, "--source", source, "--subject", f"/books/{event_id}")
    data = ("--type", "library.book-lent.v1", "--data", '{"isbn": "isbn-1"}')
    assert project.opencqrs("events", "append", *named, *data).code == 0


def wait_for_nodes(project: Any, count: int) -> None:
    """Wait until as many processes live, each of which has some of the five partitions."""

    def shares() -> list[int]:
        nodes = project.opencqrs("nodes", *THREAD, "--format", "json").json
        alive = [node["groups"] for node in nodes if node["state"] == "alive"]
        return [sum(group["partitions"] for group in groups.values()) for groups in alive]

    assert any(len(found := shares()) == count and all(found) and sum(found) == 5 for _ in range(LOOKS))


@pytest.mark.release  # unit/assembly/test_awaiting.py
def test_a_group_that_no_process_runs_is_not_waited_for(library):
    never = library.opencqrs("await", "catalog", *THREAD)
    assert (never.code, never.out) == (1, "")
    assert "[OCQ-542] group 'catalog' does not reach position 40: no process runs it" in never.err
    assert library.opencqrs("run", "--until-caught-up", *THREAD).code == 0
    done = library.opencqrs("await", "catalog", "audit", *THREAD)
    assert (done.code, done.err) == (0, "catalog, audit: done up to position 40\n")
    beyond = library.opencqrs("await", "catalog", "--position", "41", *THREAD)
    assert beyond.code == 1
    assert "no process runs it" in beyond.err


@pytest.mark.release(library="mariadb")
def test_an_appended_event_is_in_the_read_model_after_the_wait(library, start):
    start("run")
    wait_for_nodes(library, 1)
    for number in range(40, 43):
        append(library, f"lent-{number}", "urn:library")
        done = library.opencqrs("await", "catalog", "audit", "--event", f"lent-{number}", *THREAD, "--format", "json")
        assert done.code == 0, done.err
        assert {name: done.json[name] for name in ("groups", "position")} == {
            "groups": ["catalog", "audit"],
            "position": number + 1,
        }
        positions = [
            partition["position"]
            for group in library.opencqrs("status", *THREAD, "--format", "json").json
            for partition in group["partitions"]
        ]
        assert min(positions) >= number + 1


@pytest.mark.release  # unit/assembly/test_awaiting.py
def test_killing_the_process_ends_the_wait_with_the_reason(library, start):
    run = start("run")
    wait_for_nodes(library, 1)
    assert library.opencqrs("await", "audit", *THREAD).code == 0  # so it has its partition
    waiting = start("await", "audit", "--position", "1000")
    run.kill()
    _, said = waiting.communicate(timeout=SECONDS)
    assert waiting.returncode == 1
    assert (
        "[OCQ-542] group 'audit' does not reach position 1000: partition 0/1: the process that ran it has ended" in said
    )


@pytest.mark.release  # test_several_processes.py takes over
def test_a_wait_continues_when_another_process_takes_over(library, start):
    runs = [start("run"), start("run")]
    wait_for_nodes(library, 2)
    waiting = start("await", "audit", "catalog", "--position", "41")
    runs[0].kill()
    wait_for_nodes(library, 1)
    library.write_events(41)
    library.opencqrs("events", "import", "events.ndjson")
    _, said = waiting.communicate(timeout=SECONDS)
    assert waiting.returncode == 0, said


def test_a_failed_partition_ends_the_wait_with_its_error(on_sqlite, start):
    handlers = (on_sqlite.folder / "handlers.py").read_text()
    kept = handlers[: handlers.index('@event_handling("audit"')].replace('@on_start("audit")\n', "")
    on_sqlite.write("handlers.py", kept)
    on_sqlite.write("poison.py", POISON)
    start("run")
    waits = (on_sqlite.opencqrs("await", "audit", *THREAD) for _ in range(LOOKS))
    failed = next(ran for ran in waits if "no process runs it" not in ran.err)
    assert failed.code == 1
    assert "[OCQ-542] group 'audit' does not reach position 40: partition 0/1: it has failed at event 0" in failed.err
    assert "NonTransientError: no paper" in failed.err
    assert "opencqrs groups restart audit:0/1" in failed.err


def test_a_stopped_group_ends_the_wait(on_sqlite):
    assert on_sqlite.opencqrs("groups", "stop", "audit", *THREAD).code == 0
    stopped = on_sqlite.opencqrs("await", "audit", *THREAD)
    assert stopped.code == 1
    assert "does not reach position 40: it is stopped" in stopped.err
    assert "opencqrs groups start audit" in stopped.err


@pytest.mark.release  # unit/assembly/test_awaiting.py
def test_a_wait_that_times_out_ends_with_4_and_reports_the_progress(on_sqlite, start):
    start("run")
    wait_for_nodes(on_sqlite, 1)
    assert on_sqlite.opencqrs("await", "audit", *THREAD).code == 0
    late = on_sqlite.opencqrs("await", "audit", "--position", "50", "--timeout", "0s", *THREAD)
    assert late.code == 4
    assert "[OCQ-536] group 'audit' has not stored position 50 after 0 s: partition 0/1 is at 40 (running)" in late.err


def test_an_event_is_given_by_its_id_and_if_ambiguous_by_its_source(on_sqlite):
    assert on_sqlite.opencqrs("run", "--until-caught-up", *THREAD).code == 0
    known = on_sqlite.opencqrs("await", "audit", "--event", "7", *THREAD, "--format", "json")
    assert known.json["position"] == 8
    unknown = on_sqlite.opencqrs("await", "audit", "--event", "none", *THREAD)
    assert unknown.code == 1
    assert "[OCQ-543] the event store has no event with the id 'none'" in unknown.err
    assert "sqlite:///events.db" in unknown.err
    append(on_sqlite, "7", "urn:other")
    ambiguous = on_sqlite.opencqrs("await", "audit", "--event", "7", *THREAD)
    assert ambiguous.code == 2
    said = "[OCQ-544] 2 sources have an event with the id '7': 'urn:library' (position 8), 'urn:other' (position 41)"
    assert said in ambiguous.err
    named = on_sqlite.opencqrs("await", "audit", "--event", "7", "--source", "urn:library", *THREAD)
    assert named.code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("audit", "--position", "1", "--event", "1"), "exclude each other"),
        (("audit", "--head", "--event", "1"), "exclude each other"),
        (("audit", "--source", "s"), "--source belongs to --event"),
        (("other",), "[OCQ-509] no handler belongs to a group 'other'"),
        ((), "Missing argument 'GROUP...'"),
    ],
)
def test_wrong_use_is_explained(on_sqlite, arguments, said):
    wrong = on_sqlite.opencqrs("await", *arguments, *THREAD)
    assert wrong.code == 2
    assert said in wrong.err

"""Several processes of one project share its partitions, take over, and obey commands."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

THREAD = ("--set", "event-handling.standard.processing.engine=thread")
LOOKS = 600  # more than any machine needs; each is a command


class Processes:
    """Runs of a project in the background."""

    def __init__(self, project: Any) -> None:
        self.project = project
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        log = (self.project.folder / f"run-{len(self.running)}.log").open("w")
        command = self.project.patient_command("run", *THREAD, *arguments)
        with log:
            self.running.append(subprocess.Popen(command, cwd=self.project.folder, stdout=log, stderr=log, text=True))
        return self.running[-1]

    def said(self, number: int) -> str:
        text: str = (self.project.folder / f"run-{number}.log").read_text()
        return text

    def shares(self) -> list[int]:
        """Return how many partitions each node that lives has."""
        nodes = self.project.opencqrs("nodes", *THREAD, "--format", "json").json
        return [
            sum(group["partitions"] for group in node["groups"].values()) for node in nodes if node["state"] == "alive"
        ]

    def partitions(self) -> list[dict[str, Any]]:
        statuses = self.project.opencqrs("status", *THREAD, "--format", "json").json
        return [partition for status in statuses for partition in status["partitions"]]

    def seen(self, *keys: str) -> set[tuple[Any, ...]]:
        """Return the values of some keys in the status of all partitions."""
        return {tuple(partition[key] for key in keys) for partition in self.partitions()}

    def wait_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(LOOKS):
            if condition():
                return
        pytest.fail("\n".join(self.said(number) for number in range(len(self.running))))


@pytest.fixture
def processes(project: Any) -> Iterator[Processes]:
    project.write_events(40)
    project.opencqrs("events", "import", "events.ndjson")
    made = Processes(project)
    yield made
    for process in made.running:
        process.kill()
        process.wait()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def on_each_database(request: pytest.FixtureRequest, project: Any) -> None:
    if request.param == "postgresql":
        url = request.getfixturevalue("fresh_url")("postgresql")
        settings = (project.folder / "application.yaml").read_text()
        project.write("application.yaml", settings.replace("sqlite:///read.db", url))


@pytest.mark.release(on_each_database=("sqlite", "mariadb"))
@pytest.mark.usefixtures("on_each_database")
def test_two_processes_share_partitions_and_one_takes_over_when_the_other_is_killed(processes):
    first = processes.start()
    processes.wait_until(lambda: processes.shares() == [5])
    processes.start()
    processes.wait_until(lambda: sorted(processes.shares()) == [2, 3])
    processes.wait_until(lambda: len(processes.shares()) == 2 and "others are with" in processes.said(1))
    processes.wait_until(lambda: processes.seen("state", "wanted") == {("running", "started")})
    assert None not in {value for row in processes.seen("owner", "owned_since", "lease_until") for value in row}
    first.kill()
    first.wait()
    processes.wait_until(lambda: processes.shares() == [5])
    nodes = processes.project.opencqrs("nodes", *THREAD)
    assert "dead" in nodes.out
    assert processes.running[1].poll() is None


@pytest.mark.release
def test_groups_are_stopped_and_started_while_two_processes_run(processes):
    project = processes.project
    processes.start()
    processes.start()
    processes.wait_until(lambda: sorted(processes.shares()) == [2, 3])
    stopped = project.opencqrs("groups", "stop", "catalog", "audit:0/1", *THREAD)
    assert (stopped.code, stopped.err) == (0, "catalog, audit:0/1: stopped\n")
    assert {(p["state"], p["wanted"], p["owner"]) for p in processes.partitions()} == {("stopped", "stopped", None)}
    listed = project.opencqrs("groups", "list", *THREAD, "--format", "json").json
    assert {(row["group"], row["wanted"], len(row["owners"])) for row in listed} == {
        ("audit", "stopped", 0),
        ("catalog", "stopped", 0),
    }
    assert project.opencqrs("groups", "start", "catalog", *THREAD).code == 0
    processes.wait_until(lambda: sorted(processes.shares()) == [2, 2])
    assert project.opencqrs("groups", "restart", "catalog:1/4", *THREAD).code == 0
    released = project.opencqrs("groups", "release", "catalog:2/4", "--for", "1h", *THREAD)
    assert (released.code, released.err) == (0, "catalog:2/4: taken over by another node\n")


@pytest.mark.release
def test_a_partition_that_no_other_process_can_run_is_not_released(processes):
    processes.start()
    processes.wait_until(lambda: processes.shares() == [5])
    released = processes.project.opencqrs("groups", "release", "catalog:2/4", *THREAD)
    assert released.code == 2
    assert "[OCQ-540] no other live node can run catalog:2/4, so no node would run it" in released.err
    assert processes.shares() == [5]


def test_the_wanted_state_survives_processes(processes):
    project = processes.project
    stopped = project.opencqrs("groups", "stop", "audit", *THREAD)
    assert stopped.code == 0
    assert "recorded; no process runs it" in stopped.err
    run = project.opencqrs("run", "--until-caught-up", *THREAD)
    assert run.code == 0
    assert "group audit is stopped" in run.err
    assert {p["position"] > 0 for p in processes.partitions()} == {True}
    started = project.opencqrs("groups", "start", "audit", *THREAD)
    assert started.code == 0
    assert project.opencqrs("run", "--until-caught-up", *THREAD).code == 0
    assert {p["position"] for p in processes.partitions()} == {40}


def test_until_caught_up_waits_for_partitions_of_another_process(processes):
    processes.start()
    processes.wait_until(lambda: processes.shares() == [5])
    run = processes.project.opencqrs("run", "--until-caught-up", *THREAD)
    assert run.code == 0
    assert {p["position"] for p in processes.partitions()} == {40}


@pytest.mark.release
def test_a_group_limited_to_one_process_is_refused_in_a_second(processes):
    alone = ("--set", "event-handling.standard.life-cycle.controller=application_context")
    processes.start(*alone)
    processes.wait_until(lambda: processes.shares() == [5])
    second = processes.project.opencqrs("run", *THREAD, *alone)
    assert second.code == 2
    assert "is to run in this process alone, but node" in second.err
    assert "Traceback" not in second.err
    assert processes.shares() == [5]


@pytest.mark.release  # unit/engines/test_coordination.py
def test_a_stopped_process_releases_its_partitions(processes):
    first = processes.start()
    processes.wait_until(lambda: processes.shares() == [5] and len(processes.partitions()) == 5)
    first.send_signal(signal.SIGTERM)
    first.wait()
    assert processes.shares() == []
    assert {p["owner"] for p in processes.partitions()} == {None}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("stop", "catalogue"), 2, "no handler belongs to a group 'catalogue'"),
        (("start", "catalog:9/4"), 2, "'catalog:9/4' is not a partition"),
        (
            ("release", "catalog"),
            2,
            "'catalog' is not a partition\n  fix:   name one partition: catalog:0/4, catalog:1/4",
        ),
        (("stop", "catalog", "--timeout", "soon"), 2, "--timeout"),
        (("stop",), 2, "Missing argument"),
        (
            ("stop", "catalog", "--set", "event-handling.standard.progress.tracking=in-memory"),
            2,
            "group 'catalog' does not use leases",
        ),
    ],
)
def test_a_wrong_command_is_explained(project, arguments, code, says):
    ran = project.opencqrs("groups", *arguments)
    assert ran.code == code
    assert says in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.release  # wording
def test_a_wait_that_times_out_ends_with_4_and_names_what_it_waits_for(processes):
    first = processes.start()
    processes.wait_until(lambda: processes.shares() == [5])
    first.send_signal(signal.SIGSTOP)
    stopped = processes.project.opencqrs("groups", "stop", "audit", "--timeout", "1ms", *THREAD)
    first.send_signal(signal.SIGCONT)
    assert stopped.code == 4
    assert "[OCQ-536] still waiting for audit 0/1 to be stopped" in stopped.err

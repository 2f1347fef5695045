"""Several processes of one project that share by the lock registry of the how-to, and take over when one is killed."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.release(processes="sqlite")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "lead-by-locks.md"
THREAD = ("--set", "event-handling.standard.processing.engine=thread")
HEARTBEAT = ("--set", "event-handling.standard.life-cycle.lease.heartbeat=200ms")
LOOKS = 200  # more than any machine needs; each is a command
CONTAINER = """
from advisory_locks import AdvisoryLocks
from dependency_injector import containers, providers

class Locks(containers.DeclarativeContainer):
    locks = providers.Singleton(AdvisoryLocks, {url!r})
"""


def shown(name: str) -> str:
    (text,) = re.findall(
        rf'^```python title="{re.escape(name)}"\n(.*?)^```$', PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return str(text)


class Processes:
    """Runs of a project in the background."""

    def __init__(self, project: Any) -> None:
        self.project = project
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = self.project.patient_command("run", *THREAD, *HEARTBEAT, *arguments)
        with self._log(len(self.running)).open("w") as log:
            self.running.append(subprocess.Popen(command, cwd=self.project.folder, stdout=log, stderr=log, text=True))
        return self.running[-1]

    def share(self, number: int) -> str:
        """Return the partitions that a process has reported last."""
        said = re.findall(r" (has partitions: .+|stands by: .+)", self._log(number).read_text())
        return str(said[-1]) if said else ""

    def wait_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(LOOKS):
            if condition():
                return
            self.positions()
        pytest.fail("\n".join(self._log(number).read_text() for number in range(len(self.running))))

    def positions(self) -> set[int]:
        statuses = self.project.opencqrs("status", *THREAD, "--format", "json").json
        return {partition["position"] for status in statuses for partition in status["partitions"]}

    def _log(self, number: int) -> Path:
        path: Path = self.project.folder / f"run-{number}.log"
        return path


EVERY = "has partitions: catalog 4 of 4, audit 1 of 1"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def processes(request: pytest.FixtureRequest, project: Any) -> Iterator[Processes]:
    """A project with file locks and SQLite, or with advisory locks and PostgreSQL."""
    if request.param == "sqlite":
        project.write("file_locks.py", shown("file_locks.py"))
    else:
        url = request.getfixturevalue("fresh_url")("postgresql")
        settings = (project.folder / "application.yaml").read_text()
        project.write("application.yaml", settings.replace("sqlite:///read.db", url))
        project.write("advisory_locks.py", shown("advisory_locks.py"))
        project.write("locks.py", CONTAINER.format(url=url))
    project.write_events(40)
    project.opencqrs("events", "import", "events.ndjson")
    made = Processes(project)
    yield made
    for process in made.running:
        process.kill()
        process.wait()


@pytest.mark.release  # integration/test_lock_registries.py
def test_one_process_has_all_partitions_and_another_takes_over_when_it_is_killed(processes):
    first = processes.start()
    processes.wait_until(lambda: processes.share(0) == EVERY)
    processes.start()
    processes.wait_until(lambda: processes.positions() == {40})
    processes.wait_until(lambda: processes.share(1) == "stands by: other processes have all locks")
    first.kill()
    first.wait()
    processes.wait_until(lambda: processes.share(1) == EVERY)
    assert processes.running[1].poll() is None


@pytest.mark.release
def test_processes_share_partitions_and_those_of_a_stopped_process_go_to_the_other(processes):
    most = ("--set", "event-handling.groups.catalog.life-cycle.max-partitions-per-node=2")
    first = processes.start(*most)
    processes.wait_until(lambda: processes.share(0) == "has partitions: catalog 2 of 4, audit 1 of 1")
    processes.start(*most)
    processes.wait_until(lambda: processes.share(1) == "has partitions: catalog 2 of 4, audit 0 of 1")
    processes.wait_until(lambda: processes.positions() == {40})
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 130
    processes.wait_until(lambda: processes.share(1) == "has partitions: catalog 2 of 4, audit 1 of 1")


@pytest.mark.release
def test_a_second_process_that_needs_all_partitions_is_refused(processes):
    alone = ("--set", "event-handling.standard.life-cycle.controller=application_context")
    processes.start(*alone)
    processes.wait_until(lambda: processes.share(0) == EVERY)
    second = processes.project.opencqrs("run", *THREAD, *alone)
    assert second.code == 2
    assert "[OCQ-534] group 'audit' is to run in this process alone, but another process has the lock" in second.err
    assert "Traceback" not in second.err


def test_groups_cannot_be_stopped_by_another_process(processes):
    refused = processes.project.opencqrs("groups", "stop", "catalog", *THREAD)
    assert refused.code == 2
    assert "[OCQ-535] group 'catalog' does not use leases" in refused.err

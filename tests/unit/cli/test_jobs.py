"""``opencqrs jobs run`` while the database is unavailable."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opencqrs_py.adapters.memory.jobs import InMemoryJobStore
from opencqrs_py.assembly.jobs.jobs import Jobs, KnownJobs
from opencqrs_py.cli.jobs import run_command
from opencqrs_py.cli.options import ProjectOptions
from opencqrs_py.control.records import ControlView
from opencqrs_py.jobs.runs import JobRun, RunStatus


class Ended(InMemoryJobStore):
    """A store whose runs have succeeded at once, and which returns nothing else."""

    def find(self, run: str) -> JobRun | None:
        found, now = super().find(run), datetime.now(UTC)
        return found and replace(found, status=RunStatus.SUCCEEDED, started_at=now, ended_at=now)

    def look(self, *_: object) -> Any:
        raise ConnectionError("connection lost")

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)


def run_while(error: Exception | None, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    """Request a run while the control tables raise an error, or show no process."""

    def view() -> ControlView:
        if error is not None:
            raise error
        return ControlView()

    job: Any = SimpleNamespace(name="report")
    jobs = Jobs(KnownJobs([job], {}, Ended(), view, lambda: None, {}))
    monkeypatch.setattr(ProjectOptions, "opened", lambda _: SimpleNamespace(jobs=jobs))
    return CliRunner().invoke(run_command, ["report", *options], standalone_mode=False)


@pytest.mark.parametrize("options", [(), ("--wait",), ("--wait", "--format", "json")], ids=["", "wait", "json"])
def test_an_outage_after_the_request_of_a_run_does_not_end_the_command(monkeypatch, options) -> None:
    ran = run_while(ConnectionError("connection lost"), monkeypatch, *options)
    assert (ran.exception, ran.return_value) == (None, 0)
    assert "no process runs jobs" not in ran.output


def test_a_request_of_a_run_that_no_process_can_begin_says_so(monkeypatch) -> None:
    ran = run_while(None, monkeypatch, "--wait")
    assert (ran.return_value, "no process runs jobs now" in ran.output) == (0, True)


def test_any_other_error_of_the_control_tables_ends_the_command(monkeypatch) -> None:
    assert isinstance(run_while(PermissionError("no"), monkeypatch).exception, PermissionError)

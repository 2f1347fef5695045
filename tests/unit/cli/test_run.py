"""The output at the end of ``opencqrs run``."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from opencqrs_py.assembly.status import GroupStatus, RunResult
from opencqrs_py.cli.output import messages
from opencqrs_py.cli.run import _interrupted, _show
from opencqrs_py.cli.signals import INTERRUPTED, signals
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import PartitionStatus, ProcessorState


@pytest.mark.parametrize(
    ("cut_off", "last"),
    [
        ((), "stopped; each partition continues from here:"),
        (
            ["books 0/2", "books 1/2"],
            "books 0/2, books 1/2 had not stopped; events that were not committed are handled again",
        ),
    ],
)
def test_an_interrupted_run_names_the_partitions_that_had_not_stopped(
    cut_off: Sequence[str], last: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "said", False)
    status = PartitionStatus("books", Partition(1, 0), 3, ProcessorState.STOPPED)
    application: Any = SimpleNamespace(status=lambda _: [GroupStatus("books", 5, (status,))], last_result=None)
    assert _interrupted(application, (), cut_off=cut_off, as_json=False) == INTERRUPTED
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1].split() == ["books", "0/1", "3", "2", "stopped"]
    assert shown.err.splitlines()[-1] == last


FAILED = PartitionStatus("books", Partition(1, 0), 3, ProcessorState.FAILED)


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (None, {}),
        (RunResult((), {}, skipped=2, stopped=True), {"skipped": 2}),
        (RunResult((), {}, expired=2, stopped=True), {"expired": 2}),
        (RunResult((), {}, failed_runs=1, stopped=True), {"failed": True, "failed_runs": 1}),
        (RunResult((FAILED,), {}, stopped=True), {"failed": True}),
    ],
)
def test_the_json_of_an_interrupted_run_counts_skipped_events_and_failures(
    result: RunResult | None,
    shown: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "said", False)
    application: Any = SimpleNamespace(status=lambda _: [], last_result=result)
    assert _interrupted(application, (), as_json=True) == INTERRUPTED
    found = json.loads(capsys.readouterr().out)
    counts = {"skipped": 0, "expired": 0, "parked": 0, "failed_runs": 0}
    assert found == {"interrupted": True, "failed": False, **counts, "groups": [], **shown}


def test_an_interrupted_run_reports_skipped_events_and_failed_job_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "said", False)
    result = RunResult((FAILED,), {}, skipped=2, expired=1, failed_runs=1, stopped=True)
    application: Any = SimpleNamespace(status=lambda _: [GroupStatus("books", 5, (FAILED,))], last_result=result)
    assert _interrupted(application, (), as_json=False, typed=" --project there") == INTERRUPTED
    assert capsys.readouterr().err.splitlines() == [
        "stopped; each partition continues from here:",
        "2 events skipped in this run: opencqrs events skipped --project there",
        "1 event expired in this run, and was removed from the inbox unhandled (schedule.expires-after)",
        "1 run of a job failed: opencqrs jobs runs --project there",
    ]


@pytest.mark.parametrize(
    ("head", "lag", "line"),
    [
        (5, 2, "[books 0/1] 3 of 5, lag 2, running"),
        (None, None, "[books 0/1] 3, newest event unknown, running"),
    ],
)
def test_the_last_lines_of_a_run_say_where_partitions_are(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, head: int | None, lag: int | None, line: str
) -> None:
    monkeypatch.setattr(messages, "line_of", lambda _: "")
    status = PartitionStatus("books", Partition(1, 0), 3, ProcessorState.RUNNING)
    with caplog.at_level(logging.INFO):
        _show([GroupStatus("books", head, (status,))], {})
    assert [(each.message, each.lag) for each in caplog.records] == [(line, lag)]  # type: ignore[attr-defined]


def test_an_error_pending_a_retry_at_a_stop_does_not_count_as_a_failure() -> None:
    backing_off = PartitionStatus("books", Partition(1, 0), 3, ProcessorState.STOPPED, error="ValueError: 1")
    assert RunResult((backing_off,), {}).failed
    assert not RunResult((backing_off,), {}, stopped=True).failed

"""Text from outside is printed verbatim, without interpreting rich markup."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

import pytest

from opencqrs_py.assembly.control import NodeStatus
from opencqrs_py.assembly.health import GroupHealth, Health
from opencqrs_py.assembly.jobs.rows import run_row
from opencqrs_py.assembly.status import GroupStatus
from opencqrs_py.cli import groups, health, jobs, nodes
from opencqrs_py.cli.events.listings import print_table
from opencqrs_py.cli.output import print_line
from opencqrs_py.cli.tables import print_groups
from opencqrs_py.control.records import Node, ProcessIdentity
from opencqrs_py.jobs.runs import JobRun, RunStatus, Trigger
from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import layout
from opencqrs_py.model.progress import PartitionStatus, ProcessorState

ODD = ["/a:b:c", "urn:book:1", "run:key:7", "x[bold]y", "[1]", "[/]", r"a\[red]", "a\\"]


def event(text: str) -> None:
    print_table([Event(1, "1", "s", text, text, None, "application/json", "{}", None)])


def message(text: str) -> None:
    print_line(f"run {text} succeeded")


def run(text: str) -> None:
    jobs._print_runs([JobRun(text, "mail", Trigger.MANUAL, datetime(2026, 1, 5, tzinfo=UTC), reason=text)])


def node(text: str) -> None:
    found = Node(text, text, ProcessIdentity("boot", "pids", 1, "1"), {})
    nodes._print_table([NodeStatus(found, True, 5.0, {}, {})])  # noqa: FBT003 alive


def partition(text: str) -> None:
    (whole,) = layout(1)
    print_groups([GroupStatus(text, 9, (PartitionStatus(text, whole, 9, ProcessorState.RUNNING, owner=text),))], {})


def group(text: str) -> None:
    (whole,) = layout(1)
    groups._print_table([GroupStatus(text, 9, (PartitionStatus(text, whole, 9, ProcessorState.RUNNING, owner=text),))])


def healthy(text: str) -> None:
    health._print_groups(Health((GroupHealth(text, "running", 0, 1),)))


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("printed", [event, message, run, node, partition, group, healthy])
def test_names_and_ids_are_printed_verbatim(printed, text, capsys):
    printed(text)
    captured = capsys.readouterr()
    words = (captured.out + captured.err).split()
    assert text in words
    assert not [word for word in words if "\\" in word and word != text]


def test_the_command_that_reruns_a_failed_job_is_quoted_for_the_shell(capsys):
    at, ids = datetime(2026, 1, 5, tzinfo=UTC), (7, "it's late", "a;b")
    failed = JobRun("1", "mail", Trigger.MANUAL, at, status=RunStatus.FAILED, ids=ids)
    jobs._print_run(failed, run_row(failed, lambda: at), " --project 'my shop'")
    *_, last = capsys.readouterr().out.splitlines()
    typed = shlex.split(last.removeprefix("next: opencqrs jobs run "))
    assert typed == ["mail", "--id", "7", "--id", "it's late", "--id", "a;b", "--project", "my shop"]

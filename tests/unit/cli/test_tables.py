"""The tables of ``opencqrs status`` and ``opencqrs nodes``: what they show about Spark and the inbox."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opencqrs_py.assembly.control import NodeStatus
from opencqrs_py.assembly.status import GroupStatus, NodeLoad
from opencqrs_py.cli.groups import _print_table as _print_groups
from opencqrs_py.cli.nodes import _as_json, _print_table
from opencqrs_py.cli.tables import print_groups, spark_size
from opencqrs_py.control.records import Node, ProcessIdentity, Runnable, TaskLoad
from opencqrs_py.model.inbox import InboxStatus
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.progress import PartitionStatus, ProcessorState

BUSY = NodeLoad("host:1", TaskLoad({"loans": 2, "audit": 1}, 4, 2, 1_200), "a")
IDLE = NodeLoad("host:2", TaskLoad({"loans": 0, "audit": 0}, 1, 1), "b")


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (TaskLoad({}), "starting"),
        (TaskLoad({}, 2), "2 slots"),
        (TaskLoad({}, 1, 0), "1 slot on 0 executors"),
        (TaskLoad({}, 8, 1), "8 slots on 1 executor"),
    ],
)
def test_the_size_of_spark_is_shown_in_words(load, expected):
    assert spark_size(load) == expected


def test_each_node_on_spark_has_a_line_with_the_tasks_of_the_shown_groups(capsys):
    print_groups([GroupStatus("loans", 9, (), nodes_on_spark=(IDLE, BUSY))], {})
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines == [
        "Spark of node host:1: 4 slots on 2 executors; tasks: loans 2; the driver has handled 1,200 events itself",
        "Spark of node host:2: 1 slot on 1 executor; tasks: none",
    ]


def test_without_spark_no_line_about_it_is_shown(capsys):
    print_groups([GroupStatus("loans", 9, ())], {})
    assert "Spark" not in capsys.readouterr().out


def node(name: str, load: TaskLoad | None, *, alive: bool = True) -> NodeStatus:
    process = ProcessIdentity("boot", "pids", 1, "1")
    return NodeStatus(
        Node(name, name, process, {"loans": Runnable(2)}, load=load), alive, 5.0, {"loans": 1}, {"loans": 2}
    )


def test_nodes_show_the_size_of_spark_if_a_live_one_uses_it(capsys):
    _print_table([node("a:1", TaskLoad({}, 8, 2)), node("b:1", None), node("c:1", TaskLoad({}, 4), alive=False)])
    title, *rows = capsys.readouterr().out.splitlines()
    assert "Spark" in title
    assert ["8 slots on 2 executors" in row for row in rows] == [True, False, False]
    assert [" - " in row for row in rows] == [False, True, True]
    _print_table([node("b:1", None)])
    assert "Spark" not in capsys.readouterr().out


def test_the_json_of_a_node_has_the_size_of_its_spark():
    assert _as_json(node("a:1", TaskLoad({}, 8, 2, 5)))["spark"] == {
        "slots": 8,
        "executors": 2,
        "handled_by_driver": 5,
    }
    assert _as_json(node("b:1", None))["spark"] is None
    assert _as_json(node("c:1", TaskLoad({}, 4), alive=False))["spark"] is None


def test_a_column_for_parked_events_is_shown_if_there_are_any(capsys):
    waiting = ((InboxStatus.PENDING, 1_200), (InboxStatus.EXHAUSTED, 1))
    first, second = (PartitionStatus("loans", partition, 9, ProcessorState.RUNNING) for partition in layout(2))
    print_groups([GroupStatus("loans", 9, (first, replace(second, parked=waiting)))], {})
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["parked", "0", "1,201"]
    print_groups([GroupStatus("loans", 9, (first, second))], {})
    assert "parked" not in capsys.readouterr().out


@pytest.mark.parametrize("partitions", [(), (PartitionStatus("loans", Partition(1, 0), 9, ProcessorState.RUNNING),)])
def test_a_lag_that_is_not_known_is_a_dash(capsys, partitions):
    print_groups([GroupStatus("loans", None, partitions)], {})
    assert capsys.readouterr().out.splitlines()[1].split()[3] == "-"
    _print_groups([GroupStatus("loans", None, partitions)])
    assert capsys.readouterr().out.split()[-1] == "-"

"""What Prometheus is told of Spark, and of the inbox."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from opencqrs_py.control.records import TaskLoad
from opencqrs_py.web.counting import Counting
from opencqrs_py.web.metrics import Figures, PartitionFigures, exposition


def samples(load: TaskLoad | None) -> dict[tuple[str, str], float]:
    """Return the values of all metrics of Spark, by name and group."""
    content, _ = exposition(Figures("host:1", "1", 0.0, on_spark=load), Counting(), "")
    families = text_string_to_metric_families(content.decode())
    found = [sample for family in families for sample in family.samples if sample.name.startswith("opencqrs_spark")]
    return {(each.name.removeprefix("opencqrs_spark_"), each.labels.get("group", "")): each.value for each in found}


def test_tasks_slots_executors_and_what_the_driver_has_handled_are_metrics_of_the_process():
    assert samples(TaskLoad({"loans": 2, "audit": 0}, 8, 3, 60)) == {
        ("tasks", "loans"): 2,
        ("tasks", "audit"): 0,
        ("slots", ""): 8,
        ("executors", ""): 3,
        ("events_handled_by_driver_total", ""): 60,
    }


def test_every_metric_of_spark_is_documented_and_nothing_else():
    page = Path(__file__).parents[3] / "docs" / "how-to" / "watch-in-production.md"
    documented = re.findall(r"^\| `opencqrs_spark_(\w+)` \|", page.read_text("utf-8"), re.MULTILINE)
    assert sorted(documented) == sorted({name for name, _ in samples(TaskLoad({"loans": 2}, 8, 3, 60))})


def test_a_local_master_has_no_number_of_executors():
    assert ("executors", "") not in samples(TaskLoad({}, 2))


def test_a_process_that_runs_nothing_on_spark_has_no_metrics_of_it():
    assert samples(None) == {}


def test_events_that_wait_in_the_inbox_are_counted_by_group_and_status():
    waiting = [{"pending": 2, "exhausted": 0}, {"pending": 1, "exhausted": 1}, None]
    seen = [PartitionFigures("loans", f"{n}/3", 9, 0, "running", parked=parked) for n, parked in enumerate(waiting)]
    content, _ = exposition(Figures("host:1", "1", 0.0, partitions=seen), Counting(), "")
    families = text_string_to_metric_families(content.decode())
    found = [sample for family in families for sample in family.samples if sample.name == "opencqrs_parked_events"]
    assert [(each.labels, each.value) for each in found] == [
        ({"group": "loans", "status": "exhausted"}, 1),
        ({"group": "loans", "status": "pending"}, 3),
    ]

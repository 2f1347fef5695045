"""Metrics for Prometheus: counters of this process, and the status of all partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from opencqrs_py.control.records import TaskLoad
from opencqrs_py.web.counting import Counting, RunCounting
from opencqrs_py.web.job_metrics import JobFigures, job_metrics

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

_LABELS = ("group", "partition")
_COUNTERS = {
    "claims": ("partition_claims", "Times that this process has claimed the partition."),
    "handled": ("events_handled", "Events that handlers of this process have handled."),
    "skipped": ("events_skipped", "Events that this process has skipped."),
    "failed_attempts": ("attempts_failed", "Attempts of events that have failed in this process."),
    "failures": ("partition_failures", "Times that an error has stopped the partition in this process."),
    "outages": ("partition_outages", "Polls of the partition that found a database or the event store unavailable."),
}


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """A partition, as last read.

    Attributes:
        group: Processing group.
        partition: Its partition, ``0/2``.
        position: Stored progress.
        lag: Positions between it and the newest event; ``None`` if that is not known.
        state: What its processor does.
        attempts: Attempts made of the event that fails; 0 when none does.
        progressed_at: When progress was last stored, in seconds since 1970; ``None`` if that is not known.
        held: Whether this process has it.
        parked: Events of it that wait in the inbox, by what they wait for; ``None`` if that is not known.
    """

    group: str
    partition: str
    position: int
    lag: int | None
    state: str
    attempts: int = 0
    progressed_at: float | None = None
    held: bool = False
    parked: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """This process, and what it knows of all partitions.

    Attributes:
        node: Its name.
        version: Version of the package.
        started_at: When it was started, in seconds since 1970.
        reachable: Whether all databases answer.
        head: Position of the newest event; ``None`` if it is not known.
        nodes: Live nodes; ``None`` if that is not known, as no group uses leases.
        partitions: All partitions that are known.
        on_spark: What this process has in hand on Spark; ``None`` if it runs no group there.
        jobs: All jobs.
    """

    node: str
    version: str
    started_at: float
    reachable: bool = False
    head: int | None = None
    nodes: int | None = None
    partitions: Sequence[PartitionFigures] = field(default_factory=tuple)
    on_spark: TaskLoad | None = None
    jobs: Sequence[JobFigures] = field(default_factory=tuple)


def exposition(figures: Figures, counting: Counting, accept: str, runs: RunCounting | None = None) -> tuple[bytes, str]:
    """Return all metrics as text, and its media type.

    Args:
        figures: What was seen.
        counting: What was counted.
        accept: Media types that the reader accepts: the format of Prometheus, or OpenMetrics.
        runs: What was counted of runs of jobs; ``None``: nothing.
    """
    registry = CollectorRegistry()
    registry.register(cast("Collector", _Collected(figures, counting, runs or RunCounting())))
    encode, content_type = choose_encoder(accept)
    content: bytes = encode(registry)
    return content, content_type


class _Collected:
    """Collects what was seen and counted; a ``Collector`` by its method."""

    def __init__(self, figures: Figures, counting: Counting, runs: RunCounting) -> None:
        self._figures = figures
        self._counting = counting
        self._runs = runs

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        yield from self._of_process()
        yield from self._of_partitions()
        if self._figures.on_spark is not None:
            yield from _of_spark(self._figures.on_spark)
        yield from self._counters()
        yield from job_metrics(self._figures.jobs, self._runs.counts())

    def _of_process(self) -> Iterator[Metric]:
        figures = self._figures
        info = GaugeMetricFamily(
            "opencqrs_node_info", "This process: its name as a node, and its version.", labels=("node", "version")
        )
        info.add_metric((figures.node, figures.version), 1)
        yield info
        held = sum(each.held for each in figures.partitions)
        for name, text, value in (
            ("node_start_time_seconds", "When this process was started, since 1970.", figures.started_at),
            ("databases_reachable", "Whether databases and event store answer: 1 or 0.", figures.reachable),
            ("partitions_held", "Partitions that this process has, by lease if their group uses leases.", held),
            ("nodes_alive", "Nodes that hold their leases.", figures.nodes),
            ("event_store_head_position", "Position of the newest event.", figures.head),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"opencqrs_{name}", text, value=value)

    def _of_partitions(self) -> Iterator[Metric]:
        seen = self._figures.partitions
        state = GaugeMetricFamily(
            "opencqrs_partition_state", "1 for the state that the partition is in.", labels=(*_LABELS, "state")
        )
        for each in seen:
            state.add_metric((each.group, each.partition, each.state), 1)
        yield state
        for name, text, values in (
            ("position", "Everything up to this position is done.", [each.position for each in seen]),
            ("lag_events", "Positions between the partition and the newest event.", [each.lag for each in seen]),
            ("held", "Whether this process has the partition: 1 or 0.", [each.held for each in seen]),
            ("attempts", "Attempts made of the event that fails; 0 when none does.", [each.attempts for each in seen]),
            (
                "last_progress_timestamp_seconds",
                "When progress was last stored, since 1970.",
                [each.progressed_at for each in seen],
            ),
        ):
            family = GaugeMetricFamily(f"opencqrs_partition_{name}", text, labels=_LABELS)
            for each, value in zip(seen, values, strict=True):
                if value is not None:
                    family.add_metric((each.group, each.partition), value)
            yield family
        yield _of_inbox(seen)

    def _counters(self) -> Iterator[Metric]:
        counts = self._counting.counts()
        for field_name, (name, text) in _COUNTERS.items():
            family = CounterMetricFamily(f"opencqrs_{name}", text, labels=_LABELS)
            for key, each in counts.items():
                family.add_metric(key, each[field_name])
            yield family


def _of_inbox(seen: Sequence[PartitionFigures]) -> Metric:
    text = "Events of the group that wait in the inbox, by what they wait for."
    family = GaugeMetricFamily("opencqrs_parked_events", text, labels=("group", "status"))
    counts: Counter[tuple[str, str]] = Counter()
    for each in seen:
        counts.update({(each.group, status): count for status, count in (each.parked or {}).items()})
    for key in sorted(counts):
        family.add_metric(key, counts[key])
    return family


def _of_spark(load: TaskLoad) -> Iterator[Metric]:
    tasks = GaugeMetricFamily(
        "opencqrs_spark_tasks", "Tasks of the group that this process has in hand on Spark.", labels=("group",)
    )
    for group, count in load.tasks.items():
        tasks.add_metric((group,), count)
    yield tasks
    yield GaugeMetricFamily("opencqrs_spark_slots", "Tasks that Spark runs at once for this process.", load.slots)
    if load.executors is not None:
        text = "Executors that the cluster has given to this process."
        yield GaugeMetricFamily("opencqrs_spark_executors", text, load.executors)
    text = "Events that this process handled itself before Spark took over."
    yield CounterMetricFamily("opencqrs_spark_events_handled_by_driver", text, load.handled_by_driver)

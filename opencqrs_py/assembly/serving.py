"""What a process that runs processors serves over HTTP: whether it is alive and ready, metrics, status, and jobs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, TypeVar

from opencqrs_py.assembly.answers import json_answer, reason_of
from opencqrs_py.assembly.jobs.jobs import Jobs, JobStatus
from opencqrs_py.assembly.jobs.serving import JOBS_PATH, JobsBranch
from opencqrs_py.assembly.nodes import node_name
from opencqrs_py.assembly.overview import Overview, Snapshot
from opencqrs_py.assembly.processors import Processors
from opencqrs_py.assembly.rates import Rates
from opencqrs_py.assembly.rows import group_rows
from opencqrs_py.assembly.status import GroupStatus
from opencqrs_py.config.configuration import Configuration
from opencqrs_py.config.value_types import address_of
from opencqrs_py.control.records import GroupPartition
from opencqrs_py.errors import AssemblyError
from opencqrs_py.model.inbox import InboxStatus
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.naming import counted
from opencqrs_py.processing.exceptions import one_line, raise_interrupt
from opencqrs_py.processing.ports import EventSource
from opencqrs_py.web.cached_queries import CachedQuery
from opencqrs_py.web.counting import Counting, RunCounting
from opencqrs_py.web.server import Answer, Branch, HttpServer, Route, text_answer

_log = logging.getLogger("opencqrs.http")

_PROBE_SECONDS = 0.8  # that a probe waits for the databases: Kubernetes gives it a second
_READ_SECONDS = 4.0  # the same for readers of metrics
_END_SECONDS = 0.2  # that a query in progress gets
_SETTING = "http.bind"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Served:
    """The sources of answers, called for each request.

    Attributes:
        processors: Returns what runs; ``None`` before the start and after the end.
        overview: Returns an overview of all groups.
        source: Returns the event store.
        jobs: Returns the jobs; ``None`` if the project has none.
    """

    processors: Callable[[], Processors | None]
    overview: Callable[[], Overview]
    source: Callable[[], EventSource]
    jobs: Callable[[], Jobs] | None = None

    def look(self) -> Snapshot:
        """Read what is known of all groups, by a number of statements that does not grow with them."""
        processors, overview = self.processors(), self.overview()
        if processors is None:
            return overview.look(overview.groups, self.source(), {})
        return overview.look(overview.groups, self.source(), processors.running(), own=processors.load())


class Serving:
    """The HTTP server of a running application. Each database is queried at most once a second.

    Args:
        configuration: The settings, with ``http.bind``.
        served: What is answered about.

    Raises:
        AssemblyError: OCQ-539, if the package that writes metrics is missing.
    """

    def __init__(self, configuration: Configuration, served: Served) -> None:
        self.counting = Counting()
        self.runs = RunCounting()
        self._exposition = _exposition(configuration)
        self._configuration = configuration
        self._served = served
        self._rates = Rates()
        self._started_at = time.time()
        self._brief = CachedQuery(served.look, "opencqrs-look")
        self._full = CachedQuery(self._measured, "opencqrs-status")
        self._looks: list[CachedQuery[Any]] = [self._brief, self._full]
        self._of_jobs: CachedQuery[list[JobStatus]] | None = None
        self._branches: list[JobsBranch] = []
        jobs = served.jobs
        if jobs is not None:
            self._of_jobs = CachedQuery(lambda: jobs().statuses(), "opencqrs-jobs-look")
            self._looks.append(self._of_jobs)
            self._branches.append(JobsBranch(jobs, self._of_jobs, configuration.settings.http.token))
        self._server: HttpServer | None = None

    def start(self) -> None:
        """Begin to answer.

        Raises:
            AssemblyError: OCQ-538, if the address is in use, or this machine does not have it.
        """
        routes = {
            "/health/live": self._live,
            "/health/ready": self._ready,
            "/metrics": self._metrics,
            "/status": self._status,
        }
        self._server = _listening(self._configuration, routes, self._branches)
        for look in self._looks:
            look.start()
        for branch in self._branches:
            branch.start()
        self._server.start()
        paths = (*routes, *(JOBS_PATH for _ in self._branches))
        _log.info("answering on %s: %s", self._server.url, ", ".join(paths))

    @property
    def url(self) -> str:
        """Its address; empty before the start."""
        return self._server.url if self._server is not None else ""

    def stop(self) -> None:
        """Stop answering. Takes less than a second, even while a database hangs."""
        for patience in (0.0, _END_SECONDS):
            for look in self._looks:
                look.stop(patience)
            for branch in self._branches:
                branch.stop(patience)
        if self._server is not None:
            self._server.stop()

    def _live(self, _accept: str) -> Answer:
        """Answer whether the threads live that drive partitions and keep leases; regardless of databases."""
        processors = self._served.processors()
        try:
            if processors is not None:
                processors.check()
        except BaseException as error:
            raise_interrupt(error)
            return text_answer(HTTPStatus.SERVICE_UNAVAILABLE, f"dead: {scrubbed(one_line(error))}")
        return text_answer(HTTPStatus.OK, "alive")

    def _ready(self, _accept: str) -> Answer:
        """Answer whether the process runs processors, or stands by, and reaches its databases."""
        processors = self._served.processors()
        reason = _why_not_ready(processors) or self._why_unreachable()
        if reason or processors is None:
            return text_answer(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")
        count = len(processors.running())
        said = f"has {counted(count, 'partition')}" if count else "stands by"
        return text_answer(HTTPStatus.OK, f"ready: {said}")

    def _why_unreachable(self) -> str:
        try:
            return self._brief.get(_PROBE_SECONDS).outage
        except Exception as error:
            return reason_of(error, _PROBE_SECONDS)

    def _metrics(self, accept: str) -> Answer:
        from opencqrs_py.web.metrics import Figures  # noqa: PLC0415 loads the client of Prometheus

        node = self._configuration.settings.node.name or node_name()
        known: dict[str, Any] = {}
        reads: list[Callable[[float], dict[str, Any]]] = [_then(self._of_groups, self._brief)]
        if self._of_jobs is not None:
            reads.append(_then(_figures_of_jobs, self._of_jobs))
        end = time.monotonic() + _READ_SECONDS
        for read in reads:
            try:
                known |= read(max(0.0, end - time.monotonic()))
            except Exception as error:  # the counters, and what else can be read, are available anyway
                _log.debug("metrics without a read of the databases: %s", reason_of(error, _READ_SECONDS))
        figures = Figures(node, version("opencqrs-py"), self._started_at, **known)
        content, content_type = self._exposition(figures, self.counting, accept, self.runs)
        return Answer(HTTPStatus.OK, content, content_type)

    def _of_groups(self, look: Snapshot) -> dict[str, Any]:
        return {
            "reachable": not look.outage,
            "head": look.head,
            "partitions": self._partitions(look),
            "on_spark": None if look.own is None else look.own.load,
            "nodes": len(look.view.alive) or None,  # none: no group uses leases, or the database is unavailable
        }

    def _partitions(self, look: Snapshot) -> list[Any]:
        from opencqrs_py.web.metrics import PartitionFigures  # noqa: PLC0415 as above

        overview = self._served.overview()
        return [
            PartitionFigures(
                group=status.group,
                partition=str(each.partition),
                position=each.position,
                lag=status.lag_at(each.position),
                state=each.state.value,
                attempts=each.attempt,
                progressed_at=None if each.updated_at is None else datetime.fromisoformat(each.updated_at).timestamp(),
                held=GroupPartition(status.group, each.partition) in look.running,
                parked=None if look.outage else {one.value: dict(each.parked).get(one, 0) for one in InboxStatus},
            )
            for status in overview.statuses(overview.groups, look)
            for each in status.partitions
        ]

    def _status(self, _accept: str) -> Answer:
        try:
            rows = group_rows(self._full.get(_READ_SECONDS))
        except Exception as error:
            return text_answer(HTTPStatus.SERVICE_UNAVAILABLE, f"no status: {reason_of(error, _READ_SECONDS)}")
        return json_answer(rows)

    def _measured(self) -> list[GroupStatus]:
        overview, look = self._served.overview(), self._served.look()
        statuses = overview.recorded(overview.statuses(overview.groups, look, self._served.source()))
        return self._rates.measured(statuses, time.monotonic())


def _then(figures: Callable[[T], dict[str, Any]], query: CachedQuery[T]) -> Callable[[float], dict[str, Any]]:
    """Begin a query; return what waits for its result, and returns the figures."""
    awaited = query.begin()
    return lambda patience: figures(awaited(patience))


def _figures_of_jobs(statuses: Sequence[JobStatus]) -> dict[str, Any]:
    from opencqrs_py.assembly.jobs.figures import figures_of  # noqa: PLC0415 loads the client of Prometheus

    return {"jobs": figures_of(statuses)}


def _exposition(configuration: Configuration) -> Callable[..., tuple[bytes, str]]:
    try:
        from opencqrs_py.web.metrics import exposition  # noqa: PLC0415 loads the client of Prometheus
    except ModuleNotFoundError as error:
        what = f"{_SETTING} is set, and the package {error.name} is missing, which writes the metrics"
        fix = "pip install 'opencqrs-py[http]'"
        raise AssemblyError("OCQ-539", what, _place(configuration), fix) from None
    return exposition


def _listening(configuration: Configuration, routes: Mapping[str, Route], branches: Sequence[Branch]) -> HttpServer:
    bind = str(configuration.settings.http.bind)
    try:
        return HttpServer(*address_of(bind), routes, branches)
    except OSError as error:
        reason = error.strerror or one_line(error)
        what = f"nothing can listen on {bind}: {reason[:1].lower()}{reason[1:]}"
        fix = "stop the process that uses the port, or choose another one; port 0 takes any free port"
        raise AssemblyError("OCQ-538", what, _place(configuration), fix) from None


def _place(configuration: Configuration) -> str:
    return f"{_SETTING} ({configuration.value(_SETTING).origin})"


def _why_not_ready(processors: Processors | None) -> str:
    if processors is None or not processors.started:
        return "it is starting"
    if processors.stopping:
        return "it is stopping"
    if processors.coordinator is not None and processors.coordinator.view is None:
        return "the leases of this node have ended, and it cannot reach the database to take new ones"
    return ""

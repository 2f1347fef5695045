"""A Spark whose jobs run in this process; a Spark for all tests; and a Java for one Spark after the other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event as Signal
from types import SimpleNamespace
from unittest.mock import patch

from py4j.protocol import Py4JNetworkError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark.java import find_java
from opencqrs_py.engines.spark.session import Sessions as OpenedSessions
from opencqrs_py.engines.spark.session import SessionSettings
from opencqrs_py.engines.spark.tasks import Permit


@contextmanager
def running_java() -> Iterator[dict[str, str]]:
    """Run a Java for programs that open a Spark, one after the other; yield the variables by which they find it."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "process_group": 0}
    with patch.dict(os.environ, JAVA_HOME=str(find_java(os.environ).home), SPARK_LOCAL_IP="127.0.0.1"):
        gateway = launch_gateway(popen_kwargs=quiet)
    found = gateway.java_parameters
    try:
        yield {"PYSPARK_GATEWAY_PORT": str(found.port), "PYSPARK_GATEWAY_SECRET": found.auth_token}
    finally:
        gateway.close()
        with gateway.proc as java:  # which ends with its standard input
            java.stdin.close()


@contextmanager
def running_session() -> Iterator[SparkSession]:
    """Open a Spark in this process, with two workers that stay."""
    quick = {"spark.sql.shuffle.partitions": "1", "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true"}
    sessions = OpenedSessions(SessionSettings(master="local[2]", conf=quick, name="tests"))
    try:
        yield sessions.open()
    finally:
        sessions.close()


class Context:
    """A Spark context whose jobs run on the thread that collects them."""

    defaultParallelism = 2  # noqa: N815 Spark's name

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.cancelled: list[str] = []
        self.tags: list[str] = []
        self.before: list[Callable[[], None]] = []  # what happens to the next jobs before their tasks run
        self.after: list[Callable[[], None]] = []  # and after them
        self.on_cancel: Callable[[], None] = lambda: None
        self.active = 0
        self.looked = Signal()

    def setJobGroup(self, group: str, _description: str, *, interruptOnCancel: bool) -> None:  # noqa: N802, N803 Spark's
        assert interruptOnCancel
        self.groups.append(group)

    def addJobTag(self, tag: str) -> None:  # noqa: N802 Spark's name
        self.tags.append(tag)

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802 Spark's name
        self.cancelled.append(tag)
        self.on_cancel()

    def parallelize(self, lines: list[str], slices: int) -> SimpleNamespace:
        assert len(lines) == slices

        def collect(handler: Callable[[str], str]) -> list[str]:
            if self.before:
                self.before.pop(0)()
            results = [handler(line) for line in lines]
            if self.after:
                self.after.pop(0)()
            return results

        return SimpleNamespace(map=lambda handler: SimpleNamespace(collect=lambda: collect(handler)))

    def statusTracker(self) -> SimpleNamespace:  # noqa: N802 Spark's name
        self.looked.set()
        stage = SimpleNamespace(numActiveTasks=self.active)
        return SimpleNamespace(getActiveStageIds=lambda: [1], getStageInfo=lambda _: stage)


class Sessions:
    """Sessions with that context."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.gone = False

    will_start = ""

    def require_authentication(self) -> None: ...

    def open(self) -> SimpleNamespace:
        return SimpleNamespace(sparkContext=self.context)

    def handed_over(self, recipe: object) -> object:
        return recipe

    def check(self) -> None:
        if self.gone:
            raise Py4JNetworkError

    def permit(self) -> Permit:
        return Permit()

    def close(self, patience: float) -> None: ...

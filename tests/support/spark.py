"""A Spark whose jobs run in this process; a Spark for all tests; and a Java for one Spark after the other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from threading import Event as Signal
from types import SimpleNamespace
from unittest.mock import patch

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark.java import find_java
from opencqrs_py.engines.spark.session import Sessions as OpenedSessions
from opencqrs_py.engines.spark.session import SessionSettings
from opencqrs_py.engines.spark.tasks import Permit

SECONDS = 60
"""To wait at most; nothing here takes long."""


class RunningJava:
    """A Java for programs that open a Spark, one after the other.

    Attributes:
        variables: By which they find it.
    """

    def __init__(self, gateway: JavaGateway) -> None:
        found = gateway.java_parameters
        self.variables = {"PYSPARK_GATEWAY_PORT": str(found.port), "PYSPARK_GATEWAY_SECRET": found.auth_token}
        self._jvm = gateway.jvm

    def stop_leftover(self) -> bool:
        """Stop the Spark that a program has left running; return whether there was one."""
        contexts = getattr(getattr(self._jvm.org.apache.spark, "SparkContext$"), "MODULE$")
        active = contexts.getActive()
        if not active.isDefined():
            return False
        active.get().stop()
        return True


@contextmanager
def running_java() -> Iterator[RunningJava]:
    """Run a Java for programs that open a Spark, one after the other."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "process_group": 0}
    with patch.dict(os.environ, JAVA_HOME=str(find_java(os.environ).home), SPARK_LOCAL_IP="127.0.0.1"):
        gateway = launch_gateway(popen_kwargs=quiet)
    try:
        yield RunningJava(gateway)
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

    defaultParallelism = 7  # noqa: N815 Spark's name
    slots = 2
    master = "spark://nobody:7077"

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.cancelled: list[str] = []
        self.tags: list[str] = []
        self.pools: list[str] = []
        self.descriptions: list[str] = []
        self.described = Condition()
        self.before: list[Callable[[], None]] = []  # called for the next jobs before their tasks run
        self.after: list[Callable[[], None]] = []  # and after them
        self.on_cancel: Callable[[], None] = lambda: None
        self.active = 0
        self.executors = 0
        self.jobs: list[int] = []  # that run
        self.looked = Signal()
        self.counted = Signal()  # the slots
        self.conf: dict[str, str] = {}
        self.errors_of_runs: list[str] = []  # of the one task of each job, which it repeats

    def getConf(self) -> dict[str, str]:  # noqa: N802 Spark's name
        return self.conf

    def setJobGroup(self, group: str, description: str, *, interruptOnCancel: bool) -> None:  # noqa: N802, N803 Spark's
        assert interruptOnCancel
        self.groups.append(group)
        with self.described:
            self.descriptions.append(description)
            self.described.notify_all()

    def descriptions_when(self, jobs: int) -> list[str]:
        """Wait until a number of jobs were started, and return their descriptions."""
        with self.described:
            assert self.described.wait_for(lambda: len(self.descriptions) >= jobs, SECONDS)
            return list(self.descriptions)

    def addJobTag(self, tag: str) -> None:  # noqa: N802 Spark's name
        self.tags.append(tag)

    def removeJobTag(self, tag: str) -> None:  # noqa: N802 Spark's name
        assert tag in self.tags

    def setLocalProperty(self, key: str, value: str) -> None:  # noqa: N802 Spark's name
        assert key == "spark.scheduler.pool"
        self.pools.append(value)

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

    @property
    def _jsc(self) -> SimpleNamespace:
        memory = SimpleNamespace(size=lambda: 1 + self.executors)  # the driver's
        profiles = SimpleNamespace(defaultResourceProfile=lambda: "default")
        errors = [SimpleNamespace(isDefined=lambda: True, get=lambda text=text: text) for text in self.errors_of_runs]
        runs = [SimpleNamespace(errorMessage=lambda error=error: error) for error in errors]
        listed = SimpleNamespace(size=lambda: len(runs), apply=runs.__getitem__)
        none = SimpleNamespace(isDefined=lambda: False)
        stage = SimpleNamespace(numActiveTasks=lambda: self.active, firstTaskLaunchedTime=lambda: none)
        spark = SimpleNamespace(
            statusTracker=lambda: SimpleNamespace(getJobIdsForTag=lambda tag: [self.tags.index(tag)]),
            statusStore=lambda: SimpleNamespace(
                taskList=lambda _stage, _attempt, _most: listed,
                lastStageAttempt=lambda _stage: stage,
                job=lambda _job: SimpleNamespace(jobGroup=lambda: none),
            ),
            getExecutorMemoryStatus=lambda: memory,
            resourceProfileManager=lambda: profiles,
            maxNumConcurrentTasks=self._count_slots,
        )
        return SimpleNamespace(sc=lambda: spark)

    def _count_slots(self, profile: str) -> int:
        self.counted.set()
        return self.slots if profile == "default" else 0

    def statusTracker(self) -> SimpleNamespace:  # noqa: N802 Spark's name
        self.looked.set()
        stage = SimpleNamespace(numActiveTasks=self.active)
        return SimpleNamespace(
            getActiveStageIds=lambda: [1],
            getStageInfo=lambda _: stage,
            getActiveJobsIds=lambda: list(self.jobs),
            getJobInfo=lambda _: SimpleNamespace(stageIds=[1]),
        )


class Sessions:
    """Sessions with that context."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.gone = False
        self.begun = Signal()

    will_start = ""

    def require_authentication(self) -> None: ...

    def is_gone(self, error: BaseException) -> bool:
        return isinstance(error, Py4JError | OSError) or (isinstance(error, AttributeError) and self.gone)

    def open(self) -> SimpleNamespace:
        return SimpleNamespace(sparkContext=self.context)

    @contextmanager
    def used(self) -> Iterator[SimpleNamespace]:
        yield self.open()

    def begin(self, opened: Callable[[object], None]) -> None:
        self.opened = opened
        self.begun.set()

    def finish(self, session: object) -> None:
        """End the opening that has begun, with a session or an error."""
        assert self.begun.wait(SECONDS)
        self.opened(session)

    def handed_over(self, recipe: object) -> object:
        return recipe

    def restore(self) -> None: ...

    def check(self) -> None:
        if self.gone:
            raise Py4JNetworkError

    def permit(self) -> Permit:
        return Permit()

    def close(self, patience: float) -> None: ...

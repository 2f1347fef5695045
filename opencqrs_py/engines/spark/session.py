"""The Spark session: opened quietly, on a Java that is there, with Python workers like the driver.

Runs on the driver, once per engine.
"""

from __future__ import annotations

import logging
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark.java import find_java
from opencqrs_py.engines.spark.launching import QuietErrors, interrupts_deferred, own_process_group
from opencqrs_py.errors import EngineError

__all__ = ["SessionSettings", "Sessions"]

_QUIET_LOGS = Path(__file__).with_name("log4j2-quiet.properties")
_PACKAGE_PARENT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class SessionSettings:
    """How to open a session.

    Attributes:
        master: Spark master URL, such as ``local[*]`` or ``spark://host:7077``.
        conf: Further Spark settings; they win over ours.
        name: Application name.
        sources: The user's Python files, which travel to a cluster's executors, each with its place there.
        verbose: Whether Spark's own log is shown.
    """

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    name: str = "opencqrs"
    sources: Sequence[tuple[Path, str]] = ()
    verbose: bool = False


class Sessions:
    """Opens one session, and closes it unless it was there before.

    Args:
        settings: How to open it.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._session: SparkSession | None = None
        self._owned = False
        self._folder: TemporaryDirectory[str] | None = None

    def open(self) -> SparkSession:
        """Return the session that is active in this process, else a new one.

        Raises:
            EngineError: OCQ-401 without a Java, OCQ-402 if Spark does not start.
        """
        if self._session is None:
            existing = SparkSession.getActiveSession()
            self._owned = existing is None
            self._session = existing or self._start()
            self._ship_sources(self._session)
        return self._session

    def check(self) -> None:
        """Ask the JVM for a sign of life.

        Raises:
            Py4JError: If there is none; also ``OSError``.
        """
        if self._session is not None and self._session.sparkContext._jsc.sc().isStopped():  # noqa: SLF001 the only way
            msg = "the Spark context was stopped"
            raise Py4JError(msg)

    def close(self) -> None:
        """Stop the session if it was started here."""
        if self._session is not None and self._owned:
            with suppress(Py4JError, OSError):  # the JVM may be gone already
                self._session.stop()
        self._session = None
        if self._folder is not None:
            self._folder.cleanup()

    def _start(self) -> SparkSession:
        java = find_java(os.environ)
        os.environ["JAVA_HOME"] = str(java.home)
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        if self._local:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.master(self._settings.master).appName(self._settings.name)
        for key, value in {**self._defaults(), **self._settings.conf}.items():
            builder = builder.config(key, value)
        with interrupts_deferred(), own_process_group(), QuietErrors(active=not self._settings.verbose):
            try:
                self._session = session = builder.getOrCreate()
            except Exception as error:
                raise _not_started(error, self._settings.master, str(java.home)) from error
        if not self._settings.verbose:
            session.sparkContext.setLogLevel("OFF")
            _hush(session)
        return session

    @property
    def _local(self) -> bool:
        return self._settings.master.startswith("local")

    def _defaults(self) -> dict[str, str]:
        conf = {
            "spark.executorEnv.PYTHONPATH": str(_PACKAGE_PARENT),
            "spark.scheduler.mode": "FAIR",
            "spark.task.maxFailures": "1",  # a failed round is ours to repeat, from the progress in the database
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
            "spark.sql.streaming.numRecentProgressUpdates": "1",
            "spark.sql.streaming.stopTimeout": "2s",
            "spark.sql.shuffle.partitions": "1",
        }
        if self._local:
            conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        if not self._settings.verbose:
            logs = f"-Dlog4j2.configurationFile={_QUIET_LOGS.as_uri()}"
            conf["spark.driver.extraJavaOptions"] = logs
            conf["spark.log.level"] = "OFF"
        return conf

    def _ship_sources(self, session: SparkSession) -> None:
        """Send the user's modules along when the executors run elsewhere."""
        if str(session.sparkContext.master).startswith("local") or not self._settings.sources:
            return
        self._folder = TemporaryDirectory(prefix="opencqrs-")
        archive = Path(self._folder.name, "opencqrs_project.zip")
        with zipfile.ZipFile(archive, "w") as packed:
            for file, place in self._settings.sources:
                packed.write(file, place)
        session.sparkContext.addPyFile(str(archive))


def _not_started(error: Exception, master: str, java: str) -> EngineError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    fix = "run 'opencqrs doctor', or 'opencqrs run --verbose' to see Spark's own log"
    return EngineError("OCQ-402", f"Spark did not start ({reason[:300]})", f"spark.master {master}, Java {java}", fix)


def _hush(session: SparkSession) -> None:
    """Keep PySpark from printing stack traces of its own when the JVM goes away; the engine says what happened."""
    server: Any = session.sparkContext._accumulatorServer  # noqa: SLF001 the only way
    server.handle_error = lambda _request, _client: None
    logging.getLogger().addFilter(lambda record: record.msg != "Exception while sending command.")

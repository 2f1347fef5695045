"""The start of a Spark session: its settings, and a JVM on an available Java that is quiet, with Python workers.

Runs on the driver.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark.class_archive import ClassArchive, class_archive
from opencqrs_py.engines.spark.cluster_addresses import LaunchSettings
from opencqrs_py.engines.spark.java import find_java
from opencqrs_py.engines.spark.launching import (
    by_socket_files,
    cause_in,
    jvm_of_others,
    launched_jvm,
    launching,
    settings_by_file,
    value_before_launch,
)
from opencqrs_py.engines.spark.masters import (
    NEEDS_AUTHENTICATION,
    SECURE_CLUSTER,
    SECURE_LOCAL,
    is_local,
    not_registered,
    refuse_unauthenticated,
    require_master,
)
from opencqrs_py.errors import EngineError
from opencqrs_py.model.masking import scrubbed

_QUIET_LOGS = Path(__file__).with_name("log4j2-quiet.properties")
_PACKAGE_PARENT = Path(__file__).resolve().parents[3]
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_ZONE = "spark.sql.session.timeZone"
_OF_DRIVERS_JVM = (
    "spark.driver.defaultJavaOptions",
    _DRIVER_OPTIONS,
    "spark.driver.extraClassPath",
    "spark.driver.memory",
)

logger = logging.getLogger("opencqrs.processing")


@dataclass(frozen=True)
class SessionSettings:
    """How to open a session.

    Attributes:
        master: Spark master URL, such as ``local[*]`` or ``spark://host:7077``.
        conf: Further Spark settings; they override ours.
        name: Application name.
        sources: The user's Python files, which are sent to a cluster's executors, each with its place there.
        roots: Folders on this machine from which these files are imported.
        verbose: Whether Spark's own log is shown.
        allow_unauthenticated: Whether a Spark that does not authenticate connecting programs may be used.
        moves_rows: Whether rows travel through the driver's JVM, as those of data frames do.
    """

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: str = "opencqrs"
    sources: Sequence[tuple[Path, str]] = ()
    roots: Sequence[str] = ()
    verbose: bool = False
    allow_unauthenticated: bool = False
    moves_rows: bool = True

    @property
    def used_master(self) -> str:
        """The master that is used."""
        return self.conf.get("spark.master", self.master)

    @property
    def is_on_this_machine(self) -> bool:
        """Whether everything runs on this machine."""
        return self.used_master.startswith("local")

    def require_master(self) -> None:
        """Refuse, before anything is launched, a master that cannot be reached: OCQ-350 or OCQ-351."""
        launch = None if jvm_of_others() else LaunchSettings(self._said, os.environ, _find_spark_home())
        require_master(self.used_master, launch)

    def require_authentication(self) -> None:
        """Refuse with OCQ-404, before anything is launched, a Spark that will not authenticate programs."""
        if not self.allow_unauthenticated:
            refuse_unauthenticated(self.used_master, _before_launch("spark.authenticate", self.spark_conf()))

    def spark_conf(self) -> dict[str, str]:
        """Return the settings with which Spark is started."""
        conf = {"spark.master": self.master, "spark.app.name": self.name, **self._defaults(), **self.conf}
        if not self.verbose:  # ours, then the configured options, which take precedence
            quiet = f"-Dlog4j2.configurationFile={_QUIET_LOGS.as_uri()}"
            conf[_DRIVER_OPTIONS] = f"{quiet} {self._said(_DRIVER_OPTIONS) or ''}".rstrip()
        return conf

    def _defaults(self) -> dict[str, str]:
        conf = {
            "spark.executorEnv.PYTHONPATH": str(_PACKAGE_PARENT),
            "spark.scheduler.mode": "FAIR",
            "spark.python.task.killTimeout": "200ms",  # of a worker whose task was cancelled; it cannot exit cleanly
            "spark.task.maxFailures": "1",  # this engine repeats a failed task, from the progress in the database
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        if self._said(_ZONE) is None:
            conf[_ZONE] = "UTC"  # else days and hours would be those of the machine's time zone
        conf |= SECURE_LOCAL if is_local(self.used_master) else SECURE_CLUSTER
        if self.allow_unauthenticated and (self._said("spark.authenticate") or "").strip().lower() != "true":
            conf.pop(NEEDS_AUTHENTICATION, None)
        if self.is_on_this_machine:
            conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        if not self.verbose:
            conf["spark.log.level"] = "OFF"
        return conf

    def _said(self, key: str) -> str | None:
        """Return the value that a setting has without our defaults."""
        return _before_launch(key, self.conf)


def _before_launch(key: str, conf: Mapping[str, str]) -> str | None:
    return value_before_launch(key, conf, os.environ, _find_spark_home())


def start_session(settings: SessionSettings) -> SparkSession:
    """Start a session, and the JVM that it needs unless one runs.

    Raises:
        EngineError: OCQ-401 without a Java, OCQ-402 if Spark does not start; OCQ-350 to OCQ-352, if the master does not
            accept it.
    """
    settings.require_master()
    java = find_java(os.environ)
    logger.info("starting Spark (%s)", settings.used_master)
    os.environ["JAVA_HOME"] = str(java.home)
    _choose_python(settings.used_master)
    if settings.is_on_this_machine:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = {**(by_socket_files() if settings.is_on_this_machine else {}), **settings.spark_conf()}
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    said = (_before_launch(key, conf) for key in _OF_DRIVERS_JVM)
    spark = Path(_find_spark_home())
    archive = class_archive(java, spark, pyspark.__version__, said, os.environ) if launches() else None
    of_archive = () if archive is None else archive.options()
    # If no rows pass through the JVM, optimizing only takes cores from handlers.
    compiler = () if settings.moves_rows else ("-XX:TieredStopAtLevel=1",)
    if not settings.verbose:
        logging.getLogger().addFilter(_is_news)
    session: SparkSession | None = None
    with launching(quiet=not settings.verbose, java_options=(*compiler, *of_archive)) as launch:
        try:
            with settings_by_file(conf):  # the context would pass them as arguments to a JVM that it launches
                SparkContext._ensure_initialized()  # noqa: SLF001 the only way
            session = builder.getOrCreate()
            if not settings.verbose:
                session.sparkContext.setLogLevel("OFF")
                _hush(session)
            if archive is not None and of_archive:
                _look_after(archive, session)
        except Exception as error:
            if session is not None:  # its JVM has ended since
                with suppress(Exception):
                    session.stop()
            raise _not_started(error, settings.used_master, str(java.home), launch.refusal()) from error
    return session


def launches() -> bool:
    """Return whether the start of a session launches a JVM now."""
    return SparkContext._gateway is None  # noqa: SLF001 the only way


def _choose_python(master: str) -> None:
    """Have workers on this machine run this Python; elsewhere the one that ``PYSPARK_PYTHON`` names, if any."""
    named = os.environ.get("PYSPARK_PYTHON", "")
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if named and not is_local(master):
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if named and Path(named) != Path(sys.executable):
        logger.warning("PYSPARK_PYTHON=%s is not used: workers of a local master run %s", named, sys.executable)


def _look_after(archive: ClassArchive, session: SparkSession) -> None:
    process = launched_jvm()
    with suppress(OSError):  # of the archive: Spark runs without
        system: Any = session.sparkContext._jvm.System  # type: ignore[union-attr] # noqa: SLF001 the only way
        if process is not None:
            archive.after_launch(system.getProperty("java.vm.info"), system.getProperty("java.class.path"), process)


def _not_started(error: Exception, master: str, java: str, refusal: str) -> EngineError:
    reason = scrubbed(refusal or _reason(error))[:300]
    submitted = "PYSPARK_SUBMIT_ARGS" if os.environ.get("PYSPARK_SUBMIT_ARGS") else ""
    fix = "look at Spark's own log: opencqrs run --verbose"
    if refusal.startswith("UnknownHostException"):
        fix = "give this machine's own name an address, as in /etc/hosts, or set SPARK_LOCAL_IP to its address"
    elif unusable := _fix_of_folders(os.environ):
        fix = unusable
    elif refusal:
        places = ", ".join(filter(None, (submitted, "spark.conf", "SPARK_SUBMIT_OPTS")))
        fix = f"correct it where options of Spark and Java are set: in {places} or JAVA_TOOL_OPTIONS"
    elif asked := not_registered(master, reason):
        return asked
    elif submitted:
        fix = f"correct {submitted}, if it is wrong, or {fix}"
    return EngineError("OCQ-402", f"Spark did not start ({reason})", f"spark.master {master}, Java {java}", fix)


def _fix_of_folders(environ: Mapping[str, str]) -> str:
    """Return how to correct variables that name folders in which Spark does not start; empty if they name none."""
    home = environ.get("SPARK_HOME")
    if home and not os.access(Path(home, "bin", "spark-submit"), os.X_OK):
        return f"unset SPARK_HOME: {home} has no bin/spark-submit that can be run"
    folders = [folder for folder in environ.get("SPARK_LOCAL_DIRS", "").split(",") if folder]
    if folders and not any(map(_is_writable, map(Path, folders))):
        return f"correct or unset SPARK_LOCAL_DIRS: Spark cannot write to {', '.join(folders)}"
    return ""


def _is_writable(folder: Path) -> bool:
    """Return whether Spark can make folders in a folder, or this folder itself."""
    try:
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        with TemporaryDirectory(dir=there):
            return True
    except OSError:
        return False


def _reason(error: Exception) -> str:
    """Return the last cause that Java names, without its package; else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return cause_in(lines) or lines[0]


def _hush(session: SparkSession) -> None:
    """Prevent PySpark from printing what the engine reports: that the JVM is gone, and errors that handlers get."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 another kind of logger under these names would fail

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    server: Any = session.sparkContext._accumulatorServer  # noqa: SLF001 the only way
    server.handle_error = lambda _request, _client: None


def _is_news(record: logging.LogRecord) -> bool:
    """Return ``False`` for py4j's record, with a trace, that the JVM is gone: also while Spark starts."""
    message = record.msg  # may be anything, such as a data frame, whose comparison has no truth value
    return not isinstance(message, str) or message != "Exception while sending command."

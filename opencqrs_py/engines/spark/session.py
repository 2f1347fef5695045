"""The Spark session: opened quietly, on an available Java, with Python workers like the driver.

Runs on the driver, once per engine.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Condition, RLock, Thread, current_thread, main_thread
from typing import Any, TypeAlias

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from opencqrs_py.engines.runs import Recipe
from opencqrs_py.engines.spark.class_archive import ClassArchive, class_archive
from opencqrs_py.engines.spark.cluster_addresses import LaunchSettings
from opencqrs_py.engines.spark.connect import ACTIVE, ended, refuse_connect, require_usable
from opencqrs_py.engines.spark.java import Java, find_java
from opencqrs_py.engines.spark.launching import (
    by_socket_files,
    cause_in,
    end_jvms,
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
from opencqrs_py.engines.spark.opened_sessions import OPENED
from opencqrs_py.engines.spark.tasks import ALWAYS, KeptRecipes, Parts, Permit, SentRecipe
from opencqrs_py.errors import EngineError
from opencqrs_py.model.masking import scrubbed

Session: TypeAlias = SparkSession

_QUIET_LOGS = Path(__file__).with_name("log4j2-quiet.properties")
_PACKAGE_PARENT = Path(__file__).resolve().parents[3]
_CLOSE_SECONDS = 30.0
_SIGNAL_SECONDS = 0.1  # within which an interrupt that another thread gets ends a wait for the session
_CLOSE_SECONDS_ON_OTHERS = (
    120.0  # a session left there prevents other programs from opening one; a busy machine takes long
)
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_ZONE = "spark.sql.session.timeZone"
_OF_DRIVERS_JVM = (
    "spark.driver.defaultJavaOptions",
    _DRIVER_OPTIONS,
    "spark.driver.extraClassPath",
    "spark.driver.memory",
)

logger = logging.getLogger("opencqrs.processing")

_closing: list[Thread] = []  # that open sessions which are to be stopped at once


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


class Sessions:
    """Opens one session, and closes it unless it existed before. Users in one process share it; the last closes it.

    Args:
        settings: How to open it.
        given: The session to use instead; it is never closed.
    """

    def __init__(self, settings: SessionSettings, given: SparkSession | None = None) -> None:
        self._settings = settings
        self._given = given
        self._session: SparkSession | None = None
        self._opening: Thread | None = None
        self._closed = False
        self._launches = False  # a JVM, and not only a session on a running one
        self._folder: TemporaryDirectory[str] | None = None
        self._kept = KeptRecipes()
        self._being_opened = RLock()
        self._uses = 0
        self._unused = Condition()

    def require_master(self) -> None:
        """Refuse, before anything is launched or claimed, a master that cannot be reached: OCQ-350 or OCQ-351."""
        if self._found() is None:
            require_master(self._master, self._launch)

    def require_authentication(self) -> None:
        """Refuse, before anything is launched, a session that will not authenticate the programs that connect to it.

        The session may be opened much later; ``open`` checks it again.

        Raises:
            EngineError: OCQ-404; OCQ-416 or OCQ-417, if it cannot run groups at all.
        """
        existing = self._found()
        if existing is not None:
            self._require_authentication_of(existing, existing=True)
        elif SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # noqa: SLF001 the only way
            said = value_before_launch("spark.authenticate", self._conf(), os.environ, _find_spark_home())
            if not self._settings.allow_unauthenticated:
                refuse_unauthenticated(self._master, said)

    @property
    def will_start(self) -> str:
        """The master on which ``open`` will start a session; empty if one exists already."""
        return "" if self._exists() else self._master

    def open(self) -> SparkSession:
        """Return the session that was passed in, else the one that is active in this process, else a new one.

        On the main thread a new one is opened on another thread and waited for: there PySpark would handle Ctrl-C
        itself, and an interrupt in the middle of a call of Java ends in pages of stack traces.

        Raises:
            EngineError: OCQ-401 without a Java, OCQ-402 if Spark does not start, OCQ-404 if it has no authentication;
                OCQ-350 to OCQ-352, if the master does not accept it; OCQ-416 or OCQ-417, if the existing one cannot
                run groups.
        """
        if current_thread() is main_thread() and not self._exists():
            return self._opened_elsewhere()
        with self._being_opened:
            return self._opened()

    def _opened_elsewhere(self) -> SparkSession:
        opened: SimpleQueue[SparkSession | BaseException] = SimpleQueue()
        was_closed = self._closed

        def open_it() -> None:
            try:
                opened.put(self.open())
            except BaseException as error:
                opened.put(error)
            if self._closed and not was_closed:  # the waiting caller was interrupted
                self._stop(_CLOSE_SECONDS)

        self._opening = Thread(target=open_it, name="opencqrs-session", daemon=True)
        self._opening.start()
        while (session := _taken(opened)) is None:  # a signal that another thread gets does not end a wait
            pass
        if isinstance(session, BaseException):
            raise session
        return session

    @contextmanager
    def used(self) -> Iterator[SparkSession]:
        """Open the session if necessary, and use it: ``close`` waits for the end of the block, within its patience.

        Raises:
            EngineError: As ``open`` does.
        """
        with self._unused:
            self._uses += 1
        try:
            yield self.open()
        finally:
            with self._unused:
                self._uses -= 1
                self._unused.notify_all()
                left_open = self._closed and not self._uses
            if left_open:  # it was opened after the close, or the close stopped waiting
                self._stop(_CLOSE_SECONDS)

    def _opened(self) -> SparkSession:
        if self._session is None:
            session, existing = self._joined()
            try:
                self._require_authentication_of(session, existing=existing)
            except EngineError:
                self._stop(_CLOSE_SECONDS)
                raise
            self._share_sources(session)
            return session
        return self._session

    def _joined(self) -> tuple[SparkSession, bool]:
        """Use the existing session, or start one; return it, and whether it existed."""
        while True:
            OPENED.await_stops()  # one that is half closed would still seem to exist
            with OPENED.starting:
                existing = None if OPENED.is_stopping else self._found()
                if existing is None and not OPENED.is_stopping:
                    self._session = session = self._start()
                    OPENED.started(session, self)
                    return session, False
                if existing is not None and (existing is self._given or OPENED.joined(existing, self)):
                    self._session = existing
                    return existing, True

    def begin(self, opened: Callable[[SparkSession | Exception], None]) -> None:
        """Open the session on a separate thread, which calls ``opened`` with it, or with the error.

        Nothing is called if the sessions are closed in the meantime.

        Raises:
            EngineError: As ``open`` does, where it is known before the launch: OCQ-350, OCQ-351, OCQ-401.
        """
        if not self._exists():
            require_master(self._master, self._launch)
            find_java(os.environ)
        self._closed = False
        self._opening = Thread(target=self._open_for, args=(opened,), name="opencqrs-session", daemon=True)
        self._opening.start()

    def _exists(self) -> bool:
        """Return whether a session can be used at once. One that is being stopped only seems to exist.

        Raises:
            EngineError: OCQ-416 or OCQ-417, if it cannot run groups.
        """
        if self._session is not None:
            return True
        closing = _is_closing()  # first: what is found may be half closed although the stop has ended since
        found = self._found()
        return found is not None and (found is self._given or not closing)

    def _found(self) -> SparkSession | None:
        """Return the existing session, ``None`` if one has to be opened.

        Raises:
            EngineError: OCQ-416 or OCQ-417, if it cannot run groups.
        """
        if self._given is not None:
            require_usable(self._given)
            return self._given
        refuse_connect(self._conf(), os.environ)
        if self._session is not None or _is_closing():
            return active_session()
        try:
            session = active_session()
        except (Py4JError, OSError) as error:  # its JVM is gone
            raise ended(ACTIVE) from error
        if session is not None:
            require_usable(session, ACTIVE)
        return session

    def _open_for(self, opened: Callable[[SparkSession | Exception], None]) -> None:
        try:
            session: SparkSession | Exception = self.open()
        except Exception as error:
            session = error
        if not self._closed:
            opened(session)
        elif isinstance(session, SparkSession):
            self._stop(_CLOSE_SECONDS)

    def check(self) -> None:
        """Ping the JVM; raise ``Py4JError`` or ``OSError`` if it does not answer."""
        if self._session is not None:
            _require_life(self._session)

    def is_gone(self, error: BaseException) -> bool:
        """Return whether an error means that the JVM is gone, or that the session was stopped."""
        return self._session is not None and is_gone(self._session, error)

    def handed_over(self, recipe: Recipe[Parts]) -> SentRecipe[Parts]:
        """Return what is sent to tasks instead of a recipe. The session must be open.

        With a local master that is the name of a file, and no secret. Executors of a cluster can read no file of this
        machine: they are sent the recipe, encrypted unless Spark is configured otherwise.
        """
        context = self.open().sparkContext
        if not is_local(str(context.master)):
            return recipe
        folder = Path(context._temp_dir)  # noqa: SLF001 which the JVM deletes, even if this process is killed
        return self._kept.keep(recipe, folder)

    def restore(self) -> None:
        """Restore the handed-over files for the next task, in case the temporary folder was cleaned.

        Raises:
            OSError: If that cannot be done.
        """
        self._kept.restore()

    def permit(self) -> Permit:
        """Return what workers need to begin a chunk. The session must be open."""
        context = self.open().sparkContext
        return Permit.in_folder(context._temp_dir) if is_local(str(context.master)) else ALWAYS  # noqa: SLF001 as above

    def close(self, patience: float = _CLOSE_SECONDS) -> None:
        """Stop the session if it was started here. After ``patience`` seconds that continues in the background.

        One that is being opened is stopped when it is open, or the JVM that it launches ends. On a JVM that existed
        before, each is waited for longer: there it would outlive this process, and prevent others from opening one.
        """
        self._closed = True
        until = time.monotonic() + patience
        with self._unused:
            self._unused.wait_for(lambda: not self._uses, patience)
        patience = max(0.0, until - time.monotonic())
        if jvm_of_others():
            patience = max(patience, _CLOSE_SECONDS_ON_OTHERS)
        if self._opening is not None and self._opening.is_alive():
            _closing[:] = [*(thread for thread in _closing if thread.is_alive()), self._opening]
            if self._launches:
                end_jvms(0)
            if jvm_of_others():
                self._opening.join(patience)
        else:
            self._stop(patience)

    def _stop(self, patience: float) -> None:
        self._kept.remove()
        session, self._session = self._session, None
        folder, self._folder = self._folder, None
        if session is not None and (stopping := OPENED.leave(session, self, folder)) is not None:
            stopping.join(patience)

    def _start(self) -> SparkSession:
        require_master(self._master, self._launch)
        java = find_java(os.environ)
        os.environ["JAVA_HOME"] = str(java.home)
        self._choose_python()
        if self._on_this_machine:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf = {**(by_socket_files() if self._on_this_machine else {}), **self._conf()}
        builder = SparkSession.builder
        for key, value in conf.items():
            builder = builder.config(key, value)
        self._launches = SparkContext._gateway is None  # noqa: SLF001 the only way
        archive = self._class_archive(java) if self._launches else None
        of_archive = () if archive is None else archive.options()
        options = (*self._compiler_options(), *of_archive)
        if not self._settings.verbose:
            logging.getLogger().addFilter(_is_news)
        with launching(quiet=not self._settings.verbose, java_options=options) as launch:
            try:
                with settings_by_file(conf):  # the context would pass them as arguments to a JVM that it launches
                    SparkContext._ensure_initialized()  # noqa: SLF001 the only way
                self._session = session = builder.getOrCreate()
            except Exception as error:
                raise _not_started(error, self._master, str(java.home), launch.refusal()) from error
        if not self._settings.verbose:
            session.sparkContext.setLogLevel("OFF")
            _hush(session)
        if archive is not None and of_archive:
            _look_after(archive, session)
        return session

    def _compiler_options(self) -> tuple[str, ...]:
        """Return how the JVM compiles: if no rows pass through it, optimizing only takes cores from handlers."""
        return () if self._settings.moves_rows else ("-XX:TieredStopAtLevel=1",)

    def _class_archive(self, java: Java) -> ClassArchive | None:
        spark = _find_spark_home()
        said = (value_before_launch(key, self._conf(), os.environ, spark) for key in _OF_DRIVERS_JVM)
        return class_archive(java, Path(spark), pyspark.__version__, said, os.environ)

    def _choose_python(self) -> None:
        """Have workers on this machine run this Python; elsewhere the one that ``PYSPARK_PYTHON`` names, if any."""
        named = os.environ.get("PYSPARK_PYTHON", "")
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        if named and not is_local(self._master):
            return
        os.environ["PYSPARK_PYTHON"] = sys.executable
        if named and Path(named) != Path(sys.executable):
            logger.warning("PYSPARK_PYTHON=%s is not used: workers of a local master run %s", named, sys.executable)

    def _require_authentication_of(self, session: SparkSession, *, existing: bool) -> None:
        if not self._settings.allow_unauthenticated:
            context = session.sparkContext
            refuse_unauthenticated(str(context.master), context.getConf().get("spark.authenticate"), existing=existing)

    @property
    def _master(self) -> str:
        return self._settings.conf.get("spark.master", self._settings.master)

    @property
    def _launch(self) -> LaunchSettings | None:
        """What a JVM would find that is launched here; ``None`` if another program has launched it."""
        return None if jvm_of_others() else LaunchSettings(self._said, os.environ, _find_spark_home())

    @property
    def _on_this_machine(self) -> bool:
        return self._master.startswith("local")

    def _conf(self) -> dict[str, str]:
        named = {"spark.master": self._settings.master, "spark.app.name": self._settings.name}
        conf = {**named, **self._defaults(), **self._settings.conf}
        if not self._settings.verbose:
            conf[_DRIVER_OPTIONS] = self._options_with_quiet_logs()
        return conf

    def _options_with_quiet_logs(self) -> str:
        """Return the options of the driver's Java: ours, then the configured ones, which take precedence."""
        return f"-Dlog4j2.configurationFile={_QUIET_LOGS.as_uri()} {self._said(_DRIVER_OPTIONS) or ''}".rstrip()

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
        conf |= SECURE_LOCAL if is_local(self._master) else SECURE_CLUSTER
        if self._settings.allow_unauthenticated and not self._authenticates:
            conf.pop(NEEDS_AUTHENTICATION, None)
        if self._on_this_machine:
            conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        if not self._settings.verbose:
            conf["spark.log.level"] = "OFF"
        return conf

    @property
    def _authenticates(self) -> bool:
        """Whether the settings have Spark authenticate the programs that connect to it."""
        return (self._said("spark.authenticate") or "").strip().lower() == "true"

    def _said(self, key: str) -> str | None:
        """Return the value that a setting has without our defaults."""
        return value_before_launch(key, self._settings.conf, os.environ, _find_spark_home())

    def _share_sources(self, session: SparkSession) -> None:
        """Have workers find the user's modules, which functions in data frames refer to."""
        if str(session.sparkContext.master).startswith("local"):
            _find_modules_in(self._settings.roots, session.sparkContext)
        elif self._settings.sources:
            self._ship_sources(session)

    def _ship_sources(self, session: SparkSession) -> None:
        """Send the user's modules along, because the executors run elsewhere."""
        self._folder = TemporaryDirectory(prefix="opencqrs-")
        # Spark's file server requires no secret, so the name is one.
        archive = Path(self._folder.name, f"opencqrs_project_{secrets.token_hex(16)}.zip")
        with zipfile.ZipFile(archive, "w") as packed:
            for file, place in self._settings.sources:
                packed.write(file, place)
        session.sparkContext.addPyFile(str(archive))


def _find_modules_in(roots: Sequence[str], context: SparkContext) -> None:
    """Have workers on this machine look for modules in folders, too, after the folder in which they run.

    Each task makes paths of these names, below the folder of Spark's files if they are relative. PYTHONPATH would apply
    from the start of a worker: a project file with the name of a Python module would prevent it from starting.
    """
    known: list[str] | None = getattr(context, "_python_includes", None)  # addPyFile does not accept a folder
    if known is not None:
        known += [root for root in dict.fromkeys(map(os.path.abspath, filter(None, roots))) if root not in known]


def active_session() -> SparkSession | None:
    """Return the running session of this process, whichever thread opened it; ``None`` if there is none."""
    session = SparkSession.getActiveSession()  # of this thread
    if session is None and SparkContext._active_spark_context is not None:  # noqa: SLF001 the only way
        session = SparkSession.builder.getOrCreate()
    return session


def is_gone(session: SparkSession, error: BaseException) -> bool:
    """Return whether an error means that the JVM is gone, or that the session was stopped.

    PySpark then removes a session's attributes, so its own calls fail with ``AttributeError``. Each of these errors may
    have another reason, so the JVM is queried.
    """
    if not isinstance(error, Py4JError | OSError | AttributeError):
        return False
    try:
        _require_life(session)
    except (Py4JError, OSError, AttributeError):
        return True
    return False


def _require_life(session: SparkSession) -> None:
    parts = session.sparkContext._jsc  # noqa: SLF001 the only way; ``None`` after a stop
    if parts is None or parts.sc().isStopped():
        raise Py4JError("the Spark context was stopped")


def python_of_workers() -> str:
    """Start a small local Spark, and return the Python version of its workers.

    Raises:
        EngineError: OCQ-401 or OCQ-402, if it does not start.
    """
    sessions = Sessions(SessionSettings(master="local[1]", name="opencqrs doctor"))
    try:
        one = sessions.open().sparkContext.parallelize([0], 1)
        return str(one.map(lambda _: platform.python_version()).collect()[0])
    finally:
        sessions.close()


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


def _is_closing() -> bool:
    """Return whether a session is being stopped, or will be as soon as it is open."""
    return OPENED.is_stopping or any(thread.is_alive() for thread in _closing)


def _taken(queue: SimpleQueue[SparkSession | BaseException]) -> SparkSession | BaseException | None:
    with suppress(Empty):
        return queue.get(timeout=_SIGNAL_SECONDS)
    return None

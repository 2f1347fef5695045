"""The Spark session of a process: found or started, shared by its users, and closed by the last of them.

Runs on the driver, once per engine.
"""

from __future__ import annotations

import os
import platform
import secrets
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition, RLock, Thread, current_thread, main_thread
from typing import TypeAlias

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from opencqrs_py.engines.runs import Recipe
from opencqrs_py.engines.spark.connect import ACTIVE, ended, refuse_connect, require_usable
from opencqrs_py.engines.spark.java import find_java
from opencqrs_py.engines.spark.launching import end_jvms, jvm_of_others
from opencqrs_py.engines.spark.masters import is_local, refuse_unauthenticated
from opencqrs_py.engines.spark.opened_sessions import OPENED
from opencqrs_py.engines.spark.session_start import SessionSettings as SessionSettings  # noqa: PLC0414 for users
from opencqrs_py.engines.spark.session_start import launches, start_session
from opencqrs_py.engines.spark.tasks import ALWAYS, KeptRecipes, Parts, Permit, SentRecipe
from opencqrs_py.errors import EngineError

Session: TypeAlias = SparkSession

_CLOSE_SECONDS = 30.0
_SIGNAL_SECONDS = 0.1  # within which an interrupt that another thread gets ends a wait for the session
# A session left there prevents other programs from opening one; a busy machine takes long.
_CLOSE_SECONDS_ON_OTHERS = 120.0
_closing: list[Thread] = []  # that open sessions which are to be stopped at once


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
            self._settings.require_master()

    def require_authentication(self) -> None:
        """Refuse, before anything is launched, a session that will not authenticate the programs that connect to it.

        The session may be opened much later; ``open`` checks it again.

        Raises:
            EngineError: OCQ-404; OCQ-416 or OCQ-417, if it cannot run groups at all.
        """
        existing = self._found()
        if existing is not None:
            self._require_authentication_of(existing, existing=True)
        elif launches() and "PYSPARK_GATEWAY_PORT" not in os.environ:
            self._settings.require_authentication()

    @property
    def will_start(self) -> str:
        """The master on which ``open`` will start a session; empty if one exists already."""
        return "" if self._exists() else self._settings.used_master

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
        opened, was_closed = Future[SparkSession](), self._closed

        def open_it() -> None:
            try:
                opened.set_result(self.open())
            except BaseException as error:
                opened.set_exception(error)
            if self._closed and not was_closed:  # the waiting caller was interrupted
                self._stop(_CLOSE_SECONDS)

        self._opening = Thread(target=open_it, name="opencqrs-session", daemon=True)
        self._opening.start()
        while not opened.done():  # a signal that another thread gets does not end a wait
            wait([opened], _SIGNAL_SECONDS)
        return opened.result()

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
                    self._launches = launches()
                    self._session = session = start_session(self._settings)
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
            self._settings.require_master()
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
        refuse_connect(self._settings.spark_conf(), os.environ)
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

    def _require_authentication_of(self, session: SparkSession, *, existing: bool) -> None:
        if not self._settings.allow_unauthenticated:
            context = session.sparkContext
            refuse_unauthenticated(str(context.master), context.getConf().get("spark.authenticate"), existing=existing)

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


def _is_closing() -> bool:
    """Return whether a session is being stopped, or will be as soon as it is open."""
    return OPENED.is_stopping or any(thread.is_alive() for thread in _closing)

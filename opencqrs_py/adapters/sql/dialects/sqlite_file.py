"""The file of a SQLite database: its writer, how transactions begin, and whether it is still the same file."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock, get_ident
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy import URL, Connection
from typing_extensions import override

from opencqrs_py.adapters.forks import FILES_OF_PARENT
from opencqrs_py.adapters.sql.connections import WRITING
from opencqrs_py.adapters.sql.dialects.dialect import Dialect
from opencqrs_py.adapters.sql.dialects.faults import URL_SETTINGS, DatabaseBusyError
from opencqrs_py.adapters.sql.dialects.file_guard import FileGuard
from opencqrs_py.errors import DatabaseFileError, DatabaseFileGoneError, EventStoreError, NonTransientError

logger = logging.getLogger("opencqrs.processing")

CONTROL_SUFFIX = "-control.db"
"""What the name of the file with the control tables has after that of the database."""

READING = "opencqrs_reading"  # execution option: no transaction
_QUIET_SECONDS = 0.1  # that a reader waits for a writer of the same process
_PAUSE_SECONDS = 0.005  # between two attempts, where SQLite does not wait
_BESIDE = ("-wal", "-shm")
_SEEN = "opencqrs_files"  # in the ``info`` of a pooled connection: the files beside the database that it has open
_SHORTER = "have handlers do slow work outside of their transaction"
_LINKED = (
    "the SQLite database %s has %s names (hard links): what is committed under one of them may be missing, or be "
    "overwritten, under another, since each name has its own -wal file; use one name, and delete the others"
)
_MOUNTED = (
    "the SQLite database %s is mounted as a single file, without the -wal file beside it, which has the last commits: "
    "other containers do not see them, and they are lost with this one; mount the folder of the database"
)
_RESTART = "or stop this process; the next start uses the file that exists then"


class SqliteFile(FileGuard):
    """The write lock of the threads of a database file, and the file itself. Safe for several threads.

    SQLite does not notice that its file was deleted or that another one was moved over it: it continues with the
    unlinked file, and everything that is written there is lost when the process ends. A check takes about a microsecond
    a file. The file is named as in the database's URL.
    """

    def __init__(self, name: str | None, dialect: Dialect) -> None:
        self._dialect = dialect
        self._free = Lock()
        self._holder: int | None = None
        self._name = name
        self._path: Path | None = None
        self._identity: _Identity | None = None
        self._beside: tuple[Path, ...] = ()
        self._unusable: Callable[[], DatabaseFileError] | None = None  # why; other connections would not notice that

    @property
    @override
    def outlives_connections(self) -> bool:
        return self._identity is not None  # one in memory does not

    @override
    @contextmanager
    def turn(self, patience: float | None = None) -> Iterator[None]:
        """Acquire the write lock of this process.

        Raises:
            NonTransientError: If this thread has it already.
            DatabaseBusyError: OCQ-305, if another thread keeps it too long.
        """
        seconds = self._dialect.patience if patience is None else patience
        if self._holder == get_ident():
            msg = "a transaction is open on this thread already: write through its connection or session"
            raise NonTransientError(msg)
        if not self._free.acquire(timeout=seconds):
            what = f"another thread has been writing for {seconds:g} seconds"
            raise DatabaseBusyError("OCQ-305", what, self._name or "SQLite in memory", _SHORTER)
        self._holder = get_ident()
        try:
            yield
        finally:
            self._holder = None
            self._free.release()

    @property
    @override
    def has_turn(self) -> bool:
        return self._holder == get_ident()

    @override
    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Acquire the write lock, with a short wait; a thread that holds it already, or does not get it, reads anyway.

        SQLite's driver releases the interpreter at each row and each statement, so two busy threads would pass it back
        and forth, and both take twice the time.
        """
        if self._holder == get_ident() or not self._free.acquire(timeout=_QUIET_SECONDS):
            yield
            return
        self._holder = get_ident()
        try:
            yield
        finally:
            self._holder = None
            self._free.release()

    @override
    def follow(self, connection: Connection) -> None:
        if self._name is None or self._identity is not None:
            return
        resolved = main_file(connection)
        self._path = path_of(self._name)  # by its own name, a link that leads to another file later is noticed, too
        self._beside = tuple(Path(resolved + suffix) for suffix in _BESIDE)
        (self._identity,) = _identities((self._path,)) if resolved else (None,)
        if self._identity is None:  # a database in memory, which may have a name nevertheless
            self._name = None
        else:
            self.identity = _text_of(self._identity)
            _warn_of_other_places(Path(resolved), self._identity)

    @override
    def require(self, identity: str) -> None:
        if not identity or identity == self.identity:
            return
        if self._identity is not None and self._path is not None:
            raise _another(self._path)
        if self._name is None:
            return
        path = path_of(self._name)
        try:
            (found,) = _identities((path,))
        except OSError:  # the database gets it as well, and explains it
            return
        if found is None:
            raise _gone(path)
        if _text_of(found) != identity:
            raise _another(path)

    @override
    def check(self, connection: Connection | None = None) -> None:
        if self._path is None or self._identity is None:
            if FILES_OF_PARENT and self._name is not None:
                self._refuse_that_of_parent()
            return
        try:
            found = os.stat(self._path)  # noqa: PTH116 path.stat() takes twice the time, and each commit waits for it
        except (FileNotFoundError, NotADirectoryError):
            raise _gone(self._path) from None
        except OSError:  # the database gets it as well, and explains it
            return
        if self._unusable is not None:
            raise self._unusable()
        if (found.st_dev, found.st_ino) != self._identity:
            raise _another(self._path)
        if connection is not None:
            beside = _identities(self._beside)
            if connection.info.setdefault(_SEEN, beside) != beside:
                self._compare(connection.info[_SEEN], beside)

    @override
    def forget(self) -> None:
        self._path = self._identity = self._unusable = None
        self.identity = ""

    @override
    def leave_to_parent(self) -> None:
        if self._holder != get_ident():  # else it is forked within a transaction, which ends in both processes
            self._free, self._holder = Lock(), None
        if self._identity in FILES_OF_PARENT and self._path is not None:
            self._unusable = partial(_of_parent, self._path)

    def _refuse_that_of_parent(self) -> None:
        """Raise in a fork if the parent has the file open, before SQLite opens it here."""
        path = path_of(self._name or "")
        with suppress(OSError):  # the database gets it as well, and explains it
            if not FILES_OF_PARENT.isdisjoint(_identities((path,))):
                raise _of_parent(path)

    def _compare(self, seen: list[_Identity | None], found: list[_Identity | None]) -> None:
        """Compare the files beside it that a connection has open with those that are there; some come later."""
        for number, path in enumerate(self._beside):
            if seen[number] is None:
                seen[number] = found[number]
            elif seen[number] != found[number]:
                self._unusable = partial(_lost, path)
                raise self._unusable()


class FileToRead(SqliteFile):
    """A file that is opened for reading only, so SQLite does not create it. Safe for several threads.

    Raises:
        EventStoreError: OCQ-304 before its first use, if there is no file.
    """

    @override
    def check(self, connection: Connection | None = None) -> None:
        if self._identity is None and self._name is not None and not path_of(self._name).exists():
            what = f"the database cannot be reached (there is no file {path_of(self._name)})"
            fix = f"fix {URL_SETTINGS}: it must name an SQLite file; one that is only read is not created"
            raise EventStoreError("OCQ-304", what, path_of(self._name).as_posix(), fix)
        super().check(connection)


_Identity = tuple[int, int]
warned: set[_Identity] = set()  # in this process


def _warn_of_other_places(path: Path, identity: _Identity) -> None:
    """Warn of a file that may be in use elsewhere with other files beside it, where SQLite keeps the last commits."""
    if identity in warned:
        return
    warned.add(identity)
    try:
        seen, folder = path.stat(), path.parent.stat()
    except OSError:  # the database gets it as well, and explains it
        return
    if seen.st_nlink > 1:
        logger.warning(_LINKED, path, seen.st_nlink)
    elif seen.st_dev != folder.st_dev:
        logger.warning(_MOUNTED, path)


def _identities(paths: Sequence[Path]) -> list[_Identity | None]:
    """Return what identifies each of the files, ``None`` for one that is not there."""
    found: list[_Identity | None] = []
    for path in paths:
        try:
            seen = os.stat(path)  # noqa: PTH116 as above
        except (FileNotFoundError, NotADirectoryError):
            found.append(None)
        else:
            found.append((seen.st_dev, seen.st_ino))
    return found


def _text_of(identity: _Identity) -> str:
    return "{}:{}".format(*identity)


def _gone(path: Path) -> DatabaseFileGoneError:
    what = "the file of the SQLite database was deleted or moved away while it is in use"
    return DatabaseFileGoneError("OCQ-326", what, str(path), f"restore the file, {_RESTART}")


def _another(path: Path) -> DatabaseFileError:
    what = "another file is in the place of the SQLite database that is in use"
    return DatabaseFileError("OCQ-326", what, str(path), f"restore the original file, {_RESTART}")


def _lost(path: Path) -> DatabaseFileError:
    what = "a file that belongs to the SQLite database was deleted or replaced while it is in use"
    return DatabaseFileError("OCQ-326", what, str(path), "stop all processes that use the database, then start again")


def _of_parent(path: Path) -> DatabaseFileError:
    what = "the process from which this one was forked has the SQLite database open, so it cannot be used here"
    fix = "open it only after the fork (gunicorn: without --preload), start processes by spawn, or use PostgreSQL"
    return DatabaseFileError("OCQ-353", what, str(path), fix)


def make_with_rights_of(live: Path, file: Path) -> None:
    """Make an empty file beside a database, if there is none, with no more permissions than the database has.

    SQLite does the same with the files that it keeps beside a database; any other that it makes, all may read as far as
    the process's umask says.
    """
    try:
        seen = live.stat()
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:  # it is there; or SQLite meets what is wrong, and says so
        return
    os.close(handle)
    if os.name == "posix":
        with suppress(OSError):  # only root may give a file away
            os.chown(file, seen.st_uid, seen.st_gid)
    file.chmod(stat.S_IMODE(seen.st_mode))


def path_of(name: str) -> Path:
    """Return the full path of the file that a URL names, also by a URI."""
    return Path(unquote(urlsplit(name).path) if name.startswith("file:") else name).absolute()


def opens_read_only(url: URL) -> bool:
    """Return whether a URL has SQLite open its file for reading only."""
    return url.query.get("mode") == "ro"


def main_file(connection: Connection) -> str:
    """Return the path of the database file, as SQLite has resolved it."""
    driver: Any = connection.connection.dbapi_connection
    return str(driver.execute("PRAGMA database_list").fetchone()[2])


def use_write_ahead_log(connection: sqlite3.Connection, patience: float) -> None:
    """Switch the journal mode; SQLite does not wait for another process that switches it, too."""
    until = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if result_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def begin_on_engine_of_others(connection: Connection) -> None:
    """Begin a transaction; the engine's pool may hold earlier connections, so each one is checked."""
    driver: Any = connection.connection.dbapi_connection
    if driver.in_transaction:  # begun by a listener of the engine's maker, which knows no writers
        driver.rollback()
    if "opencqrs" not in connection.info:
        connection.info["opencqrs"] = True
        driver.isolation_level = None
        driver.execute(f"PRAGMA busy_timeout={Dialect.patience * 1000:.0f}")
        use_write_ahead_log(driver, Dialect.patience)
    begin(connection)


def begin(connection: Connection) -> None:
    """Begin a transaction on a connection of ours: one that may write takes the write lock at once."""
    patience = connection.info.pop(WRITING, None)
    if connection.get_execution_options().get(READING, False):
        return
    usual = Dialect.patience
    if patience in (None, usual):
        connection.exec_driver_sql("BEGIN" if patience is None else "BEGIN IMMEDIATE")
        return
    connection.exec_driver_sql(f"PRAGMA busy_timeout={patience * 1000:.0f}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={usual * 1000:.0f}")


def result_code(error: BaseException | None) -> int:
    """Return the primary result code of an error of SQLite; 0 for another one."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF

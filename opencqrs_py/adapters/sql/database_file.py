"""The file of an SQLite database that is in use, and the two beside it, which must stay where they are.

SQLite does not notice that its file was deleted or that another one was moved over it: it continues with the one that
no name leads to any more, and everything that is written there is lost when the process ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from opencqrs_py.errors import DatabaseFileError, DatabaseFileGoneError

__all__ = ["DatabaseFile"]

_BESIDE = ("-wal", "-shm")
_SEEN = "opencqrs_files"  # in the ``info`` of a pooled connection: the files beside that it has open
_RESTART = "or stop this process; the next start uses the file that is there then"

_Identity = tuple[int, int]


class DatabaseFile:
    """Notices that a name does not lead to the file any more that connections have open. Safe for several threads.

    A look takes about a microsecond a file.

    Args:
        name: The file's name as the database's URL has it; ``None`` for databases that are no files.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._path: Path | None = None
        self._identity: _Identity | None = None
        self._beside: tuple[Path, ...] = ()
        self._lost: Path | None = None  # a file beside it; other connections would not notice that

    @property
    def is_followed(self) -> bool:
        """Whether there is a file, as the first connection has shown; a database in memory has none."""
        return self._identity is not None

    def follow(self, connection: Connection) -> None:
        """Take note of the file that the first connection has opened."""
        if self._name is None or self._identity is not None:
            return
        driver: Any = connection.connection.dbapi_connection
        resolved = driver.execute("PRAGMA database_list").fetchone()[2]
        # By its own name, a link that leads to another file later is noticed, too.
        self._path = Path(resolved if self._name.startswith("file:") else self._name).absolute()
        self._beside = tuple(Path(resolved + suffix) for suffix in _BESIDE)
        self._identity = _identity_of(self._path) if resolved else None
        if self._identity is None:  # a database in memory, which may have a name all the same
            self._name = None

    def check(self, connection: Connection | None = None) -> None:
        """Raise if the file is not in its place.

        Args:
            connection: A connection that has read something; then the files beside it are looked at as well. They
                stay the same for as long as it is open.

        Raises:
            DatabaseFileGoneError: OCQ-342, if no file is there.
            DatabaseFileError: OCQ-342, if another file is there, or a file beside it is gone or another one.
        """
        if self._path is None or self._identity is None:
            return
        try:
            found = _identity_of(self._path)
        except OSError:  # the database meets it as well, and explains it
            return
        if found is None:
            what = "the file of the SQLite database was deleted or moved away while it is in use"
            raise DatabaseFileGoneError("OCQ-342", what, str(self._path), f"put the file back, {_RESTART}")
        if self._lost is not None:
            raise _lost(self._lost)
        if found != self._identity:
            what = "another file is in the place of the SQLite database that is in use"
            raise DatabaseFileError("OCQ-342", what, str(self._path), f"put back the file that was there, {_RESTART}")
        if connection is not None:
            self._check_beside(connection)

    @contextmanager
    def checked(self, connection: Connection) -> Iterator[None]:
        """Check at the end of a block that is about to commit, and when the database raises in it."""
        try:
            yield
        except DBAPIError:
            self.check(connection)
            raise
        self.check(connection)

    def forget(self) -> None:
        """Forget the file, since all connections are closed; the next one decides which file is followed."""
        self._path = self._identity = self._lost = None

    def _check_beside(self, connection: Connection) -> None:
        seen: dict[Path, _Identity | None] = connection.info.setdefault(_SEEN, {})
        for path in self._beside:
            found = _identity_of(path)
            known = seen.get(path)
            if known is None:
                seen[path] = found
            elif found != known:
                self._lost = path
                raise _lost(path)


def _lost(path: Path) -> DatabaseFileError:
    what = "a file that belongs to the SQLite database was deleted or replaced while it is in use"
    fix = "stop all processes that use the database, then start again"
    return DatabaseFileError("OCQ-342", what, str(path), fix)


def _identity_of(path: Path) -> _Identity | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino

"""The Spark sessions that were opened in this process, and their users: the last user stops a session."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from threading import RLock, Thread
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession


@dataclass(eq=False)
class _Use:
    """The users of a session, and the folders from which it serves files to executors until it is stopped."""

    users: set[Hashable] = field(default_factory=set)
    folders: list[TemporaryDirectory[str]] = field(default_factory=list)


class OpenedSessions:
    """Knows the users of each session. Safe for several threads.

    Attributes:
        starting: Held while a user looks for a session and starts one if there is none, so that two share one.
    """

    def __init__(self) -> None:
        self.starting = RLock()
        self._uses: WeakKeyDictionary[SparkContext, _Use] = WeakKeyDictionary()
        self._stopping: list[Thread] = []
        self._lock = RLock()

    @property
    def is_stopping(self) -> bool:
        """Whether a session is being stopped, which still seems to exist."""
        with self._lock:
            return any(thread.is_alive() for thread in self._stopping)

    def await_stops(self) -> None:
        """Wait for the sessions that are being stopped."""
        with self._lock:
            stopping = tuple(self._stopping)
        for thread in stopping:
            thread.join()

    def started(self, session: SparkSession, user: Hashable) -> None:
        """Note that a user has started a session."""
        with self._lock:
            self._uses.setdefault(session.sparkContext, _Use()).users.add(user)

    def joined(self, session: SparkSession, user: Hashable) -> bool:
        """Note that a user also uses a session, if it was opened here; return ``False`` if it is being stopped."""
        with self._lock:
            if self.is_stopping:
                return False
            if (use := self._uses.get(session.sparkContext)) is not None:
                use.users.add(user)
            return True

    def leave(self, session: SparkSession, user: Hashable, folder: TemporaryDirectory[str] | None) -> Thread | None:
        """Note that a user has left a session; return the thread that stops it, if this was the last user.

        A session that was not opened here, or that the user does not share, is left alone. The folder, from which it
        serves files of the user, is removed once none needs them.
        """
        with self._lock:
            use = self._uses.get(session.sparkContext)
            if use is None or user not in use.users:
                if folder is not None:
                    folder.cleanup()
                return None
            use.users.discard(user)
            if folder is not None:
                use.folders.append(folder)
            if use.users:
                return None
            del self._uses[session.sparkContext]
            stopping = Thread(target=_stop, args=(session, use.folders), name="opencqrs-session", daemon=True)
            stopping.start()
            self._stopping = [thread for thread in self._stopping if thread.is_alive()]
            self._stopping.append(stopping)
            return stopping


def _stop(session: SparkSession, folders: list[TemporaryDirectory[str]]) -> None:
    with suppress(Py4JError, OSError):  # the JVM may be gone already
        session.stop()
    for folder in folders:
        folder.cleanup()


OPENED = OpenedSessions()
"""The sessions of this process."""

"""The Spark of an application: what its groups and jobs share until the last of them ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from opencqrs_py.assembly.blueprint import Blueprint

if TYPE_CHECKING:
    from opencqrs_py.config.settings import SparkSettings
    from opencqrs_py.engines.spark.session import Session, Sessions


class SharedSpark:
    """Opens sessions of Spark as settings say, once for all groups and jobs of an application.

    Groups that were started together are one user, and so is each job that runs on its own; the last closes it.

    Args:
        settings: The section ``spark``.
        blueprint: Has the user's modules, which travel to the executors.
        name: The application's name on Spark's own pages.
        given: The program's own session, which is used as it is, ignoring settings of master and session.
    """

    def __init__(self, settings: SparkSettings, blueprint: Blueprint, name: str, given: Session | None = None) -> None:
        self._given = given
        self._settings = settings
        self._blueprint = blueprint
        self._name = name
        self._sessions: Sessions | None = None
        self._users: set[object] = set()
        self._lock = Lock()  # held briefly, around the two above

    def another(self) -> SharedSpark:
        """Return what opens a separate session with the same settings; a given session stays the same."""
        return SharedSpark(self._settings, self._blueprint, self._name, self._given)

    def sessions(self, *, verbose: bool) -> Sessions:
        """Return what opens the session, after a check of the master that settings name.

        Args:
            verbose: Whether Spark's own log is shown; only the first caller's value applies.
        """
        sessions = self._sessions or self._made(verbose=verbose)  # without the lock, as the check may take long
        with self._lock:
            self._sessions = self._sessions or sessions  # those of another thread that was faster
            return self._sessions

    def enter(self, user: object) -> None:
        """Keep the session open until this user leaves."""
        with self._lock:
            self._users.add(user)

    def leave(self, user: object, patience: float) -> None:
        """Close the session unless it has other users; a user may leave again, or without having entered.

        Args:
            user: What was given to ``enter``.
            patience: Most seconds to wait for what runs in the session.
        """
        with self._lock:
            self._users.discard(user)
            if self._users:
                return
            sessions, self._sessions = self._sessions, None
        if sessions is not None:
            sessions.close(patience)

    @contextmanager
    def used(self, patience: float) -> Iterator[None]:
        """Keep the session open until the end of the block, which leaves it with this patience."""
        user = object()
        self.enter(user)
        try:
            yield
        finally:
            self.leave(user, patience)

    def _made(self, *, verbose: bool) -> Sessions:
        from opencqrs_py.engines.spark.masters import require_form  # noqa: PLC0415 as below
        from opencqrs_py.engines.spark.session import Sessions, SessionSettings  # noqa: PLC0415 loads PySpark

        spark, modules = self._settings, self._blueprint.modules
        if self._given is None:
            require_form(spark.master)
        settings = SessionSettings(
            master=spark.master,
            conf=spark.conf,
            name=self._name,
            sources=modules.shipped(),
            roots=modules.roots,
            verbose=verbose,
            allow_unauthenticated=spark.allow_unauthenticated,
            moves_rows=any(handler.mark.in_frames for handler in self._blueprint.discover().declared),
        )
        sessions = Sessions(settings, self._given)
        sessions.require_authentication()
        sessions.require_master()
        return sessions

"""The guard of a database's file."""

# ruff: noqa: ARG002 -- a server has no file, so nothing is to do

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from sqlalchemy import Connection


class FileGuard:
    """The guard of a database file: it does nothing if the database is a server. See ``SqliteFile``."""

    @property
    def outlives_connections(self) -> bool:
        """Whether the database survives when all connections to it are closed."""
        return True

    def turn(self, patience: float | None = None) -> AbstractContextManager[None]:
        """Return a block in which no other thread of this process writes, if the database has one writer at a time.

        Args:
            patience: Seconds to wait for it; ``None``: 60.
        """
        return nullcontext()

    @property
    def has_turn(self) -> bool:
        """Whether this thread is in such a block."""
        return False

    def quiet(self) -> AbstractContextManager[None]:
        """Return a block for a long read, in which no other thread writes if that would slow both down."""
        return nullcontext()

    identity = ""
    """What identifies the file that is open; empty if there is none."""

    def require(self, identity: str) -> None:
        """Raise if the file that is open, or would be opened, is not the one with this ``identity``.

        A claim applies to one file. Without this check a process that starts later would mistake a copy for it. An
        empty identity matches any file.

        Raises:
            DatabaseFileGoneError: OCQ-326, if the file is missing.
            DatabaseFileError: OCQ-326, if another file is there.
        """

    def follow(self, connection: Connection) -> None:
        """Remember the file that the first connection has opened."""

    def check(self, connection: Connection | None = None) -> None:
        """Raise if the file is not in its place.

        With a connection that has read something, the files beside it are checked as well. They stay the same for as
        long as it is open.

        Raises:
            DatabaseFileGoneError: OCQ-326, if the file is missing.
            DatabaseFileError: OCQ-326, if another file is there, or a file beside it is missing or another one; OCQ-353
                in a fork, if its parent has the file open.
        """

    def forget(self) -> None:
        """Forget the file, since all connections are closed."""

    def leave_to_parent(self) -> None:
        """In a fork: let its threads write, since the parent's threads, which may have been writing, do not exist.

        A file that the parent has open cannot be used there.
        """

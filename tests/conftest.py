"""Servers that several test folders use."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

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

"""How all tests run: with a Java that starts fast, in several processes at once; and servers that folders share."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from opencqrs_py.model.masking import forget

FreshUrl = Callable[[str], str]

SERVERS = Path(__file__).parents[1] / "benchmarks" / "servers.py"

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Spark of a test lives for seconds: compiling its code twice and collecting garbage in threads take half of them."""

for _name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_name, QUICK_JAVA)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which suites run all that they know instead of their quick lanes."""
    parser.addoption("--all", action="store_true", help="run whole suites instead of their quick lanes (hours)")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell how long the tests of each folder took, added up over the processes that ran at once."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds["/".join(report.location[0].split("/")[:2])] += report.duration
    if told := ", ".join(f"{folder} {taken:.0f} s" for folder, taken in seconds.most_common()):
        terminalreporter.write_line(f"time of the tests: {told}")


@pytest.fixture(autouse=True)
def secrets_are_forgotten() -> Iterator[None]:
    """Lets no message lack a word that was the password of another test."""
    yield
    forget()


@pytest.fixture(scope="session", autouse=True)
def interrupts_reach_programs() -> None:
    """Lets Ctrl-C end programs that tests start, even where the tests run in the background, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
def postgresql_server(servers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL server that lives as long as the tests."""
    server = servers.start_postgresql(tmp_path_factory.mktemp("postgresql"))
    yield server.get_uri()
    server.cleanup()


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

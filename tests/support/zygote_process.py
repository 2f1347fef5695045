"""Runs commands, each in a process forked from one in which everything is loaded.

A request is a line of JSON: ``arguments``, ``folder``, ``environment``, ``input`` (a file), ``into`` (a folder for
``out`` and ``err``) and ``prepare``, Python that is executed before. The answer is a line with the exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("cli", "assembly", "engines", "adapters", "config", "control", "jobs", "web")
"""Those of ours that are loaded, with all that is in them."""

LIBRARIES = (
    *("rich.console", "rich.progress", "rich.table", "rich.text"),
    *("sqlalchemy.dialects.sqlite.pysqlite", "sqlalchemy.dialects.postgresql.psycopg"),
    *("sqlalchemy.dialects.mysql.pymysql", "encodings.ascii", "encodings.utf_8_sig"),
)
"""What commands load when they come to it."""

FAILED = 70  # no exit code of ours
SECONDS = 600
"""How long a command may take; then a signal ends it."""


def carry_out(request: dict[str, Any]) -> None:
    """Run a command in this process and end it."""
    signal.alarm(SECONDS)
    os.chdir(request["folder"])
    sys.path.insert(0, request["folder"])  # as with python -m
    os.environ.update(request["environment"])
    os.dup2(os.open(request["input"], os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{request['into']}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    code: object = FAILED
    try:
        exec(request["prepare"], {})
        importlib.import_module("opencqrs_py.cli.main").main(request["arguments"])
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    atexit._run_exitfuncs()  # coverage's, too; os._exit does not
    os._exit(code if isinstance(code, int) else FAILED)


def modules() -> Iterator[str]:
    """Return the names of all that is loaded."""
    yield from LIBRARIES
    for name in PACKAGES:
        package = importlib.import_module(f"opencqrs_py.{name}")
        yield from (found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))


def warm_up() -> None:
    """Load all that commands need, and read settings once, since their index is made only then."""
    for name in modules():
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as empty:
        importlib.import_module("opencqrs_py.config").load(Path(empty), environ={})


def serve() -> None:
    """Handle requests one after the other until there are no more."""
    warm_up()
    if "coverage" in sys.modules and (measured := sys.modules["coverage"].Coverage.current()):
        measured.save()  # else each fork would save it again
    gc.collect()
    gc.freeze()  # else the first garbage collection of a fork would copy the memory that it shares with us
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            carry_out(json.loads(line))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()

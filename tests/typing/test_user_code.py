"""What type checkers say of users' code: nothing where it is right, something where it is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from opencqrs_py.assembly.blueprint import import_modules
from opencqrs_py.assembly.discovery.discovery import discover
from opencqrs_py.processing.binding import bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.reading import Reading, Upcasters

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def lines_found(file: str) -> set[int]:
    """Return the lines of a file in which ``mypy --strict`` finds an error."""
    command = [sys.executable, "-m", "mypy", "--strict", str(HERE / file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return {int(line) for line in re.findall(rf"{file}:(\d+): error: ", done.stdout)}


def test_handlers_as_users_write_them_pass_the_type_checker() -> None:
    assert lines_found("user_code.py") == set()


def test_wrong_handlers_are_rejected_by_the_type_checker() -> None:
    text = (HERE / "wrong_code.py").read_text("utf-8").splitlines()
    assert lines_found("wrong_code.py") == {n for n, line in enumerate(text, 1) if line.endswith("# wrong")}


def test_the_valid_handlers_can_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    (module,) = import_modules(["user_code"], [HERE])
    monkeypatch.delitem(sys.modules, "user_code")
    found = discover([module])
    assert set(found.groups) == {"catalog", "columns", "fast", "audit", "statistics", "reminders"}
    bound = [bind(handler, found.injector) for handler in found.make_handlers()]
    interceptors = Interceptors(found.interceptors, found.injector)
    dispatcher = Dispatcher(
        bound, found.event_classes, Reading(Upcasters(found.upcasters, found.injector)), interceptors
    )
    assert dispatcher.wants("library.book-passed.v1")

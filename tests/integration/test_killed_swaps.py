"""Processes are killed during a swap or an undo: the tables left are complete, and the next process continues."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from support.rebuilding import HANDLERS, KINDS, NEW, OLD, WRONG, World

from opencqrs_py.model.rebuild import RebuildPhase

KILLED = """
import importlib, json, os, signal, sys
from opencqrs_py import Application
from opencqrs_py.adapters.sql.shadows.shadows import Shadows

settings, folder, module, way, left = json.loads(sys.argv[1])
sys.path.insert(0, os.path.join(folder, "code"))
SENDING = {"execute", "commit", "rollback"}

def seen(frame, event, call):
    global left
    code = frame.f_code
    if event == "c_return":  # SQLite
        sent = call.__name__ in SENDING and type(call.__self__).__module__ == "sqlite3"
    else:
        of_driver = "/psycopg/" in code.co_filename or "/pymysql/" in code.co_filename
        sent = event == "return" and code.co_name in SENDING and of_driver
    if sent:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

patiently = Shadows._patiently

def watched(self, group, attempt, timeout):
    sys.setprofile(seen)
    return patiently(self, group, attempt, timeout)

Shadows._patiently = watched
with Application(settings, [importlib.import_module(module)], folder) as application:
    getattr(application.rebuilds, way)("catalog")
sys.setprofile(None)
print(-left)
"""
"""Ends itself after the nth statement, or commit, of the swap."""


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path, make_module: Callable[[str], ModuleType]) -> World:
    """A group that has handled 98 events, and one row of whose table has become wrong."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("fresh_url")(request.param)
    made = World(url, tmp_path, request.param)
    made.module = make_module(HANDLERS)
    made.add(98)
    made.run()
    made.send(WRONG)
    return made


def killed(world: World, way: str, after: int) -> int:
    """Run it in a process that ends itself then; return how many places it has passed if it has come to its end."""
    assert world.module is not None
    given = json.dumps([world.settings, str(world.folder), world.module.__name__, way, after])
    done = subprocess.run([sys.executable, "-c", KILLED, given], capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGKILL:
        return 0
    assert done.returncode == 0, done.stderr
    return after + int(done.stdout)


def phase(world: World) -> RebuildPhase:
    with world.application() as application:
        return application.rebuilds.records()["catalog"].phase


def places(stride: int) -> range:
    """Return after how many statements the process is killed; more than there are."""
    return range(stride // 2 + 1, 10_000, stride)


FEW, MANY = 80, pytest.param(5, marks=pytest.mark.release)


@pytest.mark.release(world=("sqlite", "mariadb"))  # where test_rebuilds.py ends processes at the steps of a swap
@pytest.mark.parametrize("stride", [FEW, MANY])
def test_a_process_killed_during_the_swap_leaves_the_old_tables_or_the_new_ones(world: World, stride: int) -> None:
    for after in places(stride):
        has_ended = killed(world, "rebuild", after)
        world.run()  # which completes the swap, or runs the old tables
        is_swapped = phase(world) is RebuildPhase.SWAPPED
        assert (world.positions(), world.lent()) == ({98}, NEW if is_swapped else OLD), after
        with world.application() as application:
            if not is_swapped:
                assert application.rebuilds.rebuild("catalog").position == 98
            assert world.lent() == NEW
            if has_ended:
                break
            application.rebuilds.undo("catalog")
        assert world.lent() == OLD
        assert (world.is_there("shadow"), world.is_there("old")) == (False, False)
    world.add(7, start=98)
    world.run()
    assert world.lent() == {book: count + 1 for book, count in NEW.items()}
    assert after > stride


@pytest.mark.release  # as during the swap
@pytest.mark.parametrize("stride", [FEW, MANY])
def test_a_process_killed_during_an_undo_leaves_the_new_tables_or_the_old_ones(world: World, stride: int) -> None:
    for after in places(stride):
        with world.application() as application:
            application.rebuilds.rebuild("catalog")
        has_ended = killed(world, "undo", after)
        world.run()
        is_swapped = phase(world) is RebuildPhase.SWAPPED
        assert (world.positions(), world.lent()) == ({98}, NEW if is_swapped else OLD), after
        with world.application() as application:
            if is_swapped:
                application.rebuilds.undo("catalog")
            assert not application.rebuilds.drop_old("catalog")
        assert world.lent() == OLD
        assert (world.is_there("shadow"), world.is_there("old")) == (False, False)
        if has_ended:
            break
    world.add(7, start=98)
    world.run()
    assert world.lent() == {book: count + 1 for book, count in OLD.items()}
    assert after > stride

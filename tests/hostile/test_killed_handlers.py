"""Handlers that end their process: the next run completes the read model exactly once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest
from attacks.attack import DATABASES, KINDS, Attack, End, Firing
from harness.arena import Arena
from harness.engines import engine_settings, found_of, run_application, run_by_hand
from harness.lanes import Combination
from harness.oracle import Verdict, judge

pytestmark = pytest.mark.filterwarnings("ignore")  # attacks may leave things open

ENDS = {
    "os._exit": "os._exit(7)",
    "os.abort": "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.abort()",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "exec": "os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(9)'])",
}
PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import {module}
from opencqrs_py import Application
Application({settings!r}, [{module}], {folder!r}).run(until_caught_up=True)
"""
MOMENTS = ["before", "after"]
CASES = [(end, DATABASES[n % 3], KINDS[n % 4], MOMENTS[n % 2]) for n, end in enumerate(ENDS)]


def _cases(config: pytest.Config) -> list[tuple[str, str, str, str]]:
    return [*product(ENDS, DATABASES, KINDS, MOMENTS)] if config.getoption("--all") else CASES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marked = [
        pytest.param(*case, marks=[] if case[1] == "sqlite" else [getattr(pytest.mark, case[1])])
        for case in _cases(metafunc.config)
    ]
    metafunc.parametrize(("end", "database", "kind", "moment"), marked)


def test_a_handler_that_ends_its_process_loses_and_duplicates_nothing(
    arena: Arena, end: str, database: str, kind: str, moment: str
) -> None:
    attack = Attack(name=end, firing=Firing.ONCE, **{moment: ENDS[end]})
    (target,) = arena.targets([Combination(attack, database, "thread", kind)])
    settings = engine_settings([target], "thread")
    program = PROGRAM.format(folder=str(target.folder), module=target.module, settings=settings)
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=300, check=False)
    assert killed.returncode != 0
    left = judge(replace(found_of(target), failed=True, states=("failed",), report="event e5"))
    assert left == Verdict(End.STOPPED)  # nothing lost, nothing ahead of the progress
    run = run_by_hand if moment == "after" else lambda target: run_application([target], "thread")[target.group]
    assert judge(run(target)) == Verdict(End.RIGHT)

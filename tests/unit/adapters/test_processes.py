"""Whether a process of this machine has provably ended."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from opencqrs_py.adapters import processes
from opencqrs_py.adapters.processes import has_ended, machine_ms, this_process

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux' /proc")


def test_a_live_process_has_not_ended():
    assert not has_ended(this_process())


def test_this_process_is_identified_by_boot_namespace_number_and_start():
    found = this_process()
    assert found.pid == os.getpid()
    assert found.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found.namespace.startswith("pid:[")
    assert found.started.isdigit()


@pytest.mark.parametrize("reaped", [True, False])
def test_a_killed_process_has_ended_even_before_its_parent_reaps_it(reaped):
    with _child() as child:
        identity = _identity(child)
        assert not has_ended(identity)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | (0 if reaped else os.WNOWAIT))
        assert has_ended(identity)


def test_a_process_hidden_from_proc_has_ended_only_if_its_pid_is_unused(tmp_path, monkeypatch):
    (tmp_path / "self").symlink_to("/proc/self")  # as with hidepid=2, under which processes of other users are hidden
    with _child() as child:
        identity = _identity(child)
        monkeypatch.setattr(processes, "_PROC", tmp_path)
        assert not has_ended(identity)
        child.kill()
        child.wait()
        assert has_ended(identity)


def test_a_hidden_process_of_another_user_has_not_provably_ended(tmp_path, monkeypatch):
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError(pid)

    (tmp_path / "self").symlink_to("/proc/self")
    identity = this_process()
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    monkeypatch.setattr(os, "kill", refuse)
    assert not has_ended(identity)


def test_a_process_whose_pid_was_reused_has_ended():
    assert has_ended(replace(this_process(), started="1"))


@pytest.mark.parametrize(
    "changed", [{"boot": "another"}, {"namespace": "pid:[1]"}, {"boot": ""}, {"namespace": ""}, {"started": ""}]
)
def test_a_process_on_another_machine_has_not_provably_ended(changed):
    assert not has_ended(replace(this_process(), pid=2**22 + 1, **changed))


def test_a_process_that_cannot_be_inspected_has_not_provably_ended(monkeypatch):
    def refuse(pid: int) -> None:
        raise PermissionError(pid)

    monkeypatch.setattr(processes, "_stat", refuse)
    assert not has_ended(replace(processes.ProcessIdentity("", "", 1, ""), boot="x"))
    identity = processes.ProcessIdentity(processes.boot_id(), str(Path("/proc/self/ns/pid").readlink()), 1, "1")
    assert not has_ended(identity)


def test_a_process_name_with_parentheses_and_spaces_is_parsed(tmp_path, monkeypatch):
    fields = ["S", *("0" for _ in range(18)), "4711"]
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "stat").write_text(f"17 (a) b (c) {' '.join(fields)} 0\n")
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert processes._stat(17) == ("S", "4711")


def test_the_machine_clock_is_independent_of_the_time_of_day(monkeypatch):
    before = machine_ms()
    monkeypatch.setattr("time.time_ns", lambda: 0)
    assert machine_ms() >= before > 0


def test_without_a_boot_id_the_machine_clock_is_the_time_of_day(monkeypatch):
    monkeypatch.setattr(processes, "boot_id", lambda: "")
    monkeypatch.setattr("time.time_ns", lambda: 5_000_000)
    assert machine_ms() == 5


def _child() -> subprocess.Popen[bytes]:
    """Start a process that runs until its input ends, and wait until it does."""
    code = "import sys; sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(1)
    return child


def _identity(child: subprocess.Popen[bytes]) -> processes.ProcessIdentity:
    state = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return replace(this_process(), pid=child.pid, started=state[19])

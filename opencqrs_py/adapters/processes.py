"""Processes of this machine: what identifies them, and whether one has provably ended.

Linux shows this below ``/proc``. On other systems nothing can be proved, and claims of a process end by timeout.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

from opencqrs_py.control.records import ProcessIdentity

_PROC = Path("/proc")
_ENDED = ("Z", "X", "x")  # states of a process that is dead and waits for its parent
_STATE, _STARTED = 0, 19  # in /proc/PID/stat, after the name in parentheses


@cache
def boot_id() -> str:
    """Return the identity of the machine's boot; empty if it is not known."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def machine_ms() -> int:
    """Return the milliseconds of a clock that all processes of the machine share, also while it sleeps.

    It never goes back within one boot. Where the machine has no boot id, it is the time of day.
    """
    if boot_id() and hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return time.time_ns() // 1_000_000


def this_process() -> ProcessIdentity:
    """Return what identifies this process."""
    pid = os.getpid()
    return ProcessIdentity(boot_id(), _namespace(), pid, (_stat(pid) or ("", ""))[1])


def has_ended(process: ProcessIdentity) -> bool:
    """Return whether a process has provably ended: it belonged to this boot and PID namespace, and no longer exists."""
    known = process.boot and process.namespace and process.started
    if not known or (process.boot, process.namespace) != (boot_id(), _namespace()):
        return False
    try:
        found = _stat(process.pid)
    except OSError:  # which proves nothing
        return False
    return found is None or found[0] in _ENDED or found[1] != process.started


def _namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, str] | None:
    """Return state and start time of a process, ``None`` if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        if not _PROC.joinpath("self/stat").exists():
            return "", ""
        _require_none(pid)
        return None
    fields = text.rpartition(")")[2].split()
    return fields[_STATE], fields[_STARTED]


def _require_none(pid: int) -> None:
    """Raise ``PermissionError`` if such a process exists after all: ``/proc`` may hide it (``hidepid=2``)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return
    raise PermissionError(pid)

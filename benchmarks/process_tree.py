"""The descendants of a process, read from Linux's ``/proc``: Java, and its Python workers.

Not a benchmark itself; the benchmarks share it. On other systems it finds no processes.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["processes_below"]


def processes_below(parent: int) -> set[int]:
    """Return the ids of all descendants of a process."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    there = {parent}
    while more := {process for process, above in parents.items() if above in there} - there:
        there |= more
    return there - {parent}

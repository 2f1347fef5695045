"""The processes that a process has begun, as Linux tells of them: Java, and the Python workers below it.

Not a benchmark itself; shared by those beside it. Elsewhere than on Linux there are none.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["processes_below"]


def processes_below(parent: int) -> set[int]:
    """Return the ids of the processes below one, those that they have begun themselves included."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    there = {parent}
    while more := {process for process, above in parents.items() if above in there} - there:
        there |= more
    return there - {parent}

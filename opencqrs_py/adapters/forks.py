"""What a forked process inherits from its parent and must not use: open connections, and locks that no thread releases.

Two processes that send on one connection get each other's answers, and write within each other's transactions. SQLite
notes in the memory of a process which of its threads has which lock on which open file. In a fork these notes are
wrong: a process that opens the file again there waits for threads that do not exist, or reads what the parent
overwrites.
"""

from __future__ import annotations

import os
import stat
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet


class Inherited(ABC):
    """Something that holds connections."""

    def close_before_fork(self) -> None:  # noqa: B027 few have to
        """In the parent: close idle connections, if a fork could not open its own beside them."""

    @abstractmethod
    def leave_to_parent(self) -> None:
        """In a fork: no longer use the parent's connections, and do not close them; the next use opens new ones."""


_inherited: WeakSet[Inherited] = WeakSet()
_of_parent: list[object] = []
_HANDLES = 1024  # that are tried if the system does not list them

FILES_OF_PARENT: set[tuple[int, int]] = set()
"""Device and inode of each file that the parent had open when this process was forked; empty in any other process."""


def leave_to_parent_in_forks(holder: Inherited) -> None:
    """Have the methods of an object called at each fork from now on."""
    _inherited.add(holder)


def keep_open(*of_parent: object) -> None:
    """Prevent the parent's connections from being closed, as happens to many objects on garbage collection."""
    _of_parent.extend(of_parent)


def _close_before_fork() -> None:
    for each in tuple(_inherited):
        each.close_before_fork()


def _leave_to_parent() -> None:
    if not _inherited and "sqlite3" not in sys.modules:
        return
    FILES_OF_PARENT.update(_open_files())
    for each in tuple(_inherited):
        each.leave_to_parent()


def _open_files() -> set[tuple[int, int]]:
    found = set()
    try:
        handles = [int(each.name) for each in Path("/dev/fd").iterdir()]
    except OSError:  # in a jail without it
        handles = list(range(_HANDLES))
    for handle in handles:
        with suppress(OSError):
            seen = os.fstat(handle)
            if stat.S_ISREG(seen.st_mode):
                found.add((seen.st_dev, seen.st_ino))
    return found


if hasattr(os, "register_at_fork"):  # where processes can fork
    os.register_at_fork(before=_close_before_fork, after_in_child=_leave_to_parent)

"""What a forked process has of its parent and must not use: open connections, and locks that no thread releases there.

Two processes that send on one connection get each other's answers, and write within each other's transactions.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """Something that holds connections."""

    def leave_to_parent(self) -> None:
        """In a fork: use what the parent has opened no longer, and close none of it; the next use opens new ones."""
        ...


_inherited: WeakSet[Inherited] = WeakSet()
_of_parent: list[object] = []


def leave_to_parent_in_forks(holder: Inherited) -> None:
    """Have ``leave_to_parent`` of something called in each process that is forked from now on."""
    _inherited.add(holder)


def keep_open(*of_parent: object) -> None:
    """Keep what the parent has opened from being closed, as many things are when nothing refers to them any more."""
    _of_parent.extend(of_parent)


def _leave_to_parent() -> None:
    for each in tuple(_inherited):
        each.leave_to_parent()


if hasattr(os, "register_at_fork"):  # where processes can fork
    os.register_at_fork(after_in_child=_leave_to_parent)

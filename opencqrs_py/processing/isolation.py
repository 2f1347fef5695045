"""Isolation: after a crash, a process handles one marked event at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Turns:
    """Lets one thread at a time handle a marked event, so that a crash counts against the event that caused it.

    Partitions that continue after a crash each mark the event that they are handling. With two marks at once, a crash
    would count against both events, and three crashes caused by one group's handler would block partitions of other
    groups.

    Args:
        patience: Most seconds to wait for the current holder. A slower one is not waited for again, so one slow call
            delays no other partition.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._changed = Condition()
        self._holder: object | None = None
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many threads are waiting."""
        return self._waiting

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait until no other marked event is being handled, and exclude others for the duration of the block."""
        mine = object()
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._holder is None, self._patience)
            finally:
                self._waiting -= 1
            self._holder = mine
        try:
            yield
        finally:
            with self._changed:
                if self._holder is mine:  # else the next thread has stopped waiting
                    self._holder = None
                    self._changed.notify()


OF_PROCESS = Turns(patience=1.0)

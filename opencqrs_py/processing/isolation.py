"""The turns of the events that a process handles alone after a crash: one of them is in hand at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Turns:
    """One turn at a time, so that the end of the process counts against the event by which it ended.

    The partitions of a process that continue after a crash each mark the event that they have in hand. With two marks
    at once, a process that ends would count against both events, and three crashes by one group's handler would hold
    up partitions of others.

    Args:
        patience: Most seconds to wait for the turn of another. Who takes longer is not waited for again: one slow call
            holds up no other partition.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._changed = Condition()
        self._holder: object | None = None
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many threads wait for their turn."""
        return self._waiting

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn, and have it for the duration of the context."""
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
                if self._holder is mine:  # else the next one has waited long enough
                    self._holder = None
                    self._changed.notify()


OF_PROCESS = Turns(patience=1.0)

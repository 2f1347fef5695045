"""Slots: how many connections to one server the threads of a process use at once, and which threads wait for one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event as Signal
from threading import Lock, current_thread, get_ident

from opencqrs_py.adapters.sql.dialects.faults import DatabaseBusyError

_PATIENCE = 60.0  # seconds for which a thread waits for a connection
_FIX = "increase database.pool-size, or have handlers do slow work outside of their transaction"


@dataclass(eq=False, slots=True)
class Slot:
    """The right of a thread to use a connection; ``lasting`` for a transaction, which a handler may keep open."""

    lasting: bool
    thread: int = field(default_factory=get_ident)
    name: str = field(default_factory=lambda: current_thread().name)
    since: float = field(default_factory=time.monotonic)


class Slots:
    """Limits how many connections the threads of a process use at once. Waiting threads get one in their order.

    Transactions leave one connection to short reads: what a handler reads within its transaction needs a second
    connection, and would wait forever if transactions held them all. A thread that holds two already never waits, nor
    one that holds the only connection that there is: it gets one beyond the bound.

    Args:
        most: How many connections, at least 1.
        label: How messages name the database.
        patience: Seconds for which a thread waits.
    """

    def __init__(self, most: int, label: str, patience: float = _PATIENCE) -> None:
        self.most = most
        self._label = label
        self._patience = patience
        self._taken: list[Slot] = []
        self._waiting: deque[tuple[Slot, Signal]] = deque()
        self._lock = Lock()

    @contextmanager
    def one(self, *, lasting: bool) -> Iterator[Slot]:
        """Open a block in which this thread may use a connection; raises as ``take``."""
        slot = self.take(lasting=lasting)
        try:
            yield slot
        finally:
            self.free(slot)

    def take(self, *, lasting: bool) -> Slot:
        """Return the right to use a connection, which the caller frees.

        Raises:
            DatabaseBusyError: OCQ-347, if none became free in time.
        """
        slot = Slot(lasting)
        with self._lock:
            if self._fits(slot):
                self._taken.append(slot)
                return slot
            given = Signal()
            self._waiting.append((slot, given))
        try:
            if given.wait(self._patience):
                return slot
        except BaseException:  # an interrupt
            if self._withdraw(slot, given):
                self.free(slot)
            raise
        if self._withdraw(slot, given):
            return slot
        raise self._exhausted()

    def free(self, slot: Slot) -> None:
        """Give the slot to another thread. Idempotent, also across threads."""
        with self._lock:
            if slot in self._taken:
                self._taken.remove(slot)
                if self._waiting:
                    self._give_out()

    def _give_out(self) -> None:
        for waiting in tuple(self._waiting):
            slot, given = waiting
            if self._fits(slot):
                self._waiting.remove(waiting)
                slot.since = time.monotonic()
                self._taken.append(slot)
                given.set()

    def _fits(self, slot: Slot) -> bool:
        if not self._taken:
            return True
        held = sum(one.thread == slot.thread for one in self._taken)
        if held >= min(2, self.most):
            return True
        if len(self._taken) >= self.most:
            return False
        return held > 0 or not slot.lasting or self._lasting() < max(1, self.most - 1)

    def _lasting(self) -> int:
        return sum(one.lasting for one in self._taken)

    def _withdraw(self, slot: Slot, given: Signal) -> bool:
        """Stop waiting; return whether the slot was assigned in the meantime."""
        with self._lock:
            if given.is_set():
                return True
            self._waiting.remove((slot, given))
            return False

    def _exhausted(self) -> DatabaseBusyError:
        with self._lock:
            oldest = min(self._taken, key=lambda one: one.since, default=None)
        what = f"no connection became free for {self._patience:g} s: all {self.most} of this process are in use"
        if oldest is not None:
            what += f", one for {time.monotonic() - oldest.since:.0f} s by thread {oldest.name}"
        return DatabaseBusyError("OCQ-347", what, self._label, _FIX)

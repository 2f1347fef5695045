"""Isolation: after a crash, a process handles one marked event at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Condition

from opencqrs_py.model.outcome import Outcome
from opencqrs_py.model.progress import Cursor


class OneMarkedEvent:
    """Lets one thread at a time handle a marked event, so that a crash counts against the event that caused it.

    Partitions that continue after a crash each mark the event that they are handling. With two marks at once, a crash
    would count against both events, and three crashes caused by one group's handler would block partitions of other
    groups.

    Args:
        patience: Most seconds to wait for one holder. A thread that has waited so long handles its event beside that
            of the holder; the others wait for this thread instead.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._changed = Condition()
        self._holder: object | None = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait until no other marked event is being handled, and exclude others for the duration of the block."""
        mine = object()
        with self._changed:
            self._wait()
            self._holder = mine
            self._changed.notify_all()  # the others' patience with this holder begins
        try:
            yield
        finally:
            with self._changed:
                if self._holder is mine:  # else another thread has stopped waiting for this one
                    self._holder = None
                    self._changed.notify_all()

    def _wait(self) -> None:
        """Wait for the end of each holder that there is meanwhile, or until one takes longer than the patience.

        Each thread that stops waiting is the next holder for the others, so the Nth waiting thread may wait N times the
        patience, also during a stop.
        """
        while (holder := self._holder) is not None:
            if not self._changed.wait_for(lambda: self._holder is not holder, self._patience):
                return


OF_PROCESS = OneMarkedEvent(patience=1.0)


def one_less_isolated(cursor: Cursor, done: Outcome) -> Outcome:
    """Return the outcome of a step with one event fewer to be handled alone, if one was handled."""
    return replace(done, cursor=replace(done.cursor, isolate=cursor.isolate - (done.failure is None)))

"""Isolation of marked events, with a count of the threads that wait, and a patience that ends on request."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition

from typing_extensions import override

from opencqrs_py.processing.isolation import OneMarkedEvent


class _PatientCondition(Condition):
    """A condition whose time limits are over only on request."""

    def __init__(self) -> None:
        super().__init__()
        self.lapses = self.waiting = 0

    @override
    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        begun = self.lapses
        self.waiting += 1
        super().wait_for(lambda: predicate() or self.lapses > begun)
        self.waiting -= 1
        return predicate()


class PatientMarkedEvents(OneMarkedEvent):
    """Lets one thread at a time handle a marked event."""

    def __init__(self) -> None:
        super().__init__(patience=60)
        self._changed: _PatientCondition = _PatientCondition()

    @property
    def waiting(self) -> int:
        """How many threads are waiting."""
        with self._changed:
            return self._changed.waiting

    def lapse(self) -> None:
        """End the patience of the threads that are waiting now."""
        with self._changed:
            self._changed.lapses += 1
            self._changed.notify_all()

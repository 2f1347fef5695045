"""The surroundings of the core: time, waits, sequence ids, locks, and dependencies of handlers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

from typing_extensions import override

from opencqrs_py.model.event import Event


class Clock(Protocol):
    """Time. Real in production, moved by hand in tests."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...

    def now(self) -> datetime:
        """Return the time of day in UTC, with its time zone."""
        ...


class SystemClock(Clock):
    """The machine's time."""

    @override
    def monotonic(self) -> float:
        return time.monotonic()

    @override
    def now(self) -> datetime:
        return datetime.now(UTC)


class SequenceResolver(Protocol):
    """Derives the sequence id of an event: events of a sequence are handled in order."""

    def __call__(self, event: Event, /) -> str:
        """Return the sequence id of an undecoded event."""
        ...


class BackOff(Protocol):
    """How long to wait before each further attempt."""

    def waits(self) -> Iterator[float]:
        """Yield the seconds to wait before attempts 2, 3, … of one event; at the end its attempts are exhausted."""
        ...


class Lock(Protocol):
    """A claim that at most one process holds, as long as it renews it.

    A node calls all methods of all its locks from one thread. What they raise is logged, and tried again later.
    """

    def acquire(self, timeout: float) -> bool:
        """Take the lock, waiting for at most ``timeout`` seconds; return whether it is held now.

        It is held until it is released, but at least for ``life-cycle.lease.duration`` from now. Not called while it is
        held. A node does not wait: it passes a ``timeout`` of 0.
        """
        ...

    def renew(self) -> bool:
        """Extend the lock for as long as ``acquire`` does; return whether it is still held.

        ``False`` if it was lost in the meantime, even if it is free.
        """
        ...

    def release(self) -> None:
        """Release the lock; no effect if it is not held. It may be acquired again."""
        ...


@runtime_checkable
class LockRegistry(Protocol):
    """Knows the locks that processes share."""

    def obtain(self, name: str) -> Lock:
        """Return the lock of that name, not yet acquired; the same name means the same lock in every process.

        A partition's is ``[group=<group>, partition=<residue>]``, as OpenCQRS names it.
        """
        ...


class Injector(Protocol):
    """Provides the dependencies of handlers."""

    def provides(self, wanted: object) -> bool:
        """Return whether there is a provider for the annotated type."""
        ...

    def provide(self, wanted: object) -> Any:
        """Return an object of the annotated type; called for each call of a handler."""
        ...

    def stands_in(self, wanted: object) -> bool:
        """Return whether a test provides the annotated type: then it is passed to parameters that wiring would fill."""
        del wanted
        return False

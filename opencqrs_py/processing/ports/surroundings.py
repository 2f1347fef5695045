"""What surrounds the core: time, waits, sequence ids, locks, and what handlers are given."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

from opencqrs_py.model.event import Event


class Clock(Protocol):
    """Time. Real in production, moved by hand in tests."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        ...


class SystemClock(Clock):
    """The machine's time."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.now(UTC)


class SequenceResolver(Protocol):
    """Derives from an event what must be handled in order."""

    def __call__(self, event: Event, /) -> str:
        """Return the sequence id of an undecoded event."""
        ...


class BackOff(Protocol):
    """How long to wait before each further attempt."""

    def waits(self) -> Iterator[float]:
        """Yield the waits in seconds of one event's attempts 2, 3, …; the end means: give the event up."""
        ...


class Lock(Protocol):
    """A claim that at most one process holds, for as long as it renews it.

    A node calls all methods of all its locks from one thread. What they raise is logged, and tried again later.
    """

    def acquire(self, timeout: float) -> bool:
        """Take the lock, waiting for at most ``timeout`` seconds; return whether it is held now.

        It is held until it is released, or for at least ``life-cycle.lease.duration`` from now. Not called while it is
        held. A node does not wait: ``timeout`` is 0 then.
        """
        ...

    def renew(self) -> bool:
        """Hold the lock for as long as after ``acquire`` again; return whether it is still held.

        ``False`` if it was lost meanwhile, even if it is free.
        """
        ...

    def release(self) -> None:
        """Give the lock up; nothing happens if it is not held. It may be acquired again."""
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
    """Gives handlers what else they ask for."""

    def provides(self, wanted: object) -> bool:
        """Return whether something of the annotated type can be had."""
        ...

    def provide(self, wanted: object) -> Any:
        """Return it; asked for at each call of a handler."""
        ...

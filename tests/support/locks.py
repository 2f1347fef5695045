"""A lock registry in memory, which can fail, answer late, and lose its locks."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock as Mutex
from time import monotonic


class Locks:
    """Who holds which lock until when. Several registries may share one."""

    def __init__(self, now: Callable[[], float] = monotonic, seconds: float = 10.0) -> None:
        self.now = now
        self.seconds = seconds
        self.holders: dict[str, tuple[object, float]] = {}
        self.mutex = Mutex()

    def holder(self, name: str) -> object:
        """Return the holder of a lock, ``None`` without one."""
        holder, until = self.holders.get(name, (None, 0.0))
        return holder if self.now() < until else None


class Registry:
    """What one process sees of the locks.

    ``before`` is called before each call of a lock, with its method and name: to note it, raise, or let time pass.
    """

    def __init__(self, locks: Locks) -> None:
        self.locks = locks
        self.before: Callable[[str, str], object] = lambda method, name: None

    def obtain(self, name: str) -> OneLock:
        self.before("obtain", name)
        return OneLock(self, name)


class OneLock:
    """One lock of a registry."""

    def __init__(self, registry: Registry, name: str) -> None:
        self.registry = registry
        self.name = name

    def acquire(self, timeout: float) -> bool:
        self.registry.before("acquire", self.name)
        with self.registry.locks.mutex:
            return self._take() if self.registry.locks.holder(self.name) is None else False

    def renew(self) -> bool:
        self.registry.before("renew", self.name)
        with self.registry.locks.mutex:
            return self._take() if self.registry.locks.holder(self.name) is self else False

    def release(self) -> None:
        self.registry.before("release", self.name)
        with self.registry.locks.mutex:
            if self.registry.locks.holder(self.name) is self:
                del self.registry.locks.holders[self.name]

    def _take(self) -> bool:
        locks = self.registry.locks
        locks.holders[self.name] = (self, locks.now() + locks.seconds)
        return True

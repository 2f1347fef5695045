"""Errands: calls that may take long, on a few separate threads, so that none of them holds up its caller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Any, TypeVar, cast

T = TypeVar("T")


class ErrandTimeoutError(Exception):
    """An errand did not complete in time. If it had begun, it continues; if not, it never begins."""


class _Errand:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.result: tuple[Any] | Exception | None = None


class Errands:
    """Does errands one after the other on each of its threads, which end with the process.

    Args:
        name: Name of its threads.
        threads: Number of threads: at most that many hanging databases can be queried.
    """

    def __init__(self, name: str, threads: int = 2) -> None:
        self._changed = Condition()
        self._waiting: deque[_Errand] = deque()
        self._stopped = False
        self._threads = [Thread(target=self._run, name=name, daemon=True) for _ in range(threads)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, patience: float) -> None:
        """Begin no further errands, and wait for those in progress, for at most ``patience`` seconds each."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(patience)

    def do(self, call: Callable[[], T], patience: float) -> T:
        """Return what a call returns.

        Args:
            call: The errand.
            patience: Longest wait in seconds, until it has begun and ended.

        Raises:
            ErrandTimeoutError: If it takes longer, or no more errands are done.
            Exception: What the call has raised.
        """
        errand = _Errand(call)
        with self._changed:
            if not self._stopped:
                self._waiting.append(errand)
            self._changed.notify_all()
            self._changed.wait_for(lambda: errand.result is not None or self._stopped, patience)
            if errand in self._waiting:
                self._waiting.remove(errand)
            result = errand.result
        if result is None:
            raise ErrandTimeoutError
        if isinstance(result, Exception):
            raise result
        return cast("T", result[0])

    def _run(self) -> None:
        while (errand := self._next()) is not None:
            try:
                result: tuple[Any] | Exception = (errand.call(),)
            except Exception as error:  # raised where the result is requested
                result = error
            with self._changed:
                errand.result = result
                self._changed.notify_all()

    def _next(self) -> _Errand | None:
        """Wait for an errand and return it; ``None`` if no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._stopped)
            return None if self._stopped else self._waiting.popleft()

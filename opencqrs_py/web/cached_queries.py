"""Query results that one thread reads and keeps for a moment, so that more requests do not burden a database."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import Condition, Thread
from typing import Generic, TypeVar

T = TypeVar("T")

KEPT_SECONDS = 1.0


class QueryTimeoutError(Exception):
    """A query did not complete in time; it continues, and a later request may get its result."""


class CachedQuery(Generic[T]):
    """The last result of a query. Safe for several threads; queries run on a separate thread, one at a time.

    Args:
        look: Runs the query, which may take long.
        name: Name of the thread.
        kept: Seconds for which a result, or the error that was raised, is reused.
        now: Returns the seconds of a clock that never goes back.
    """

    def __init__(
        self,
        look: Callable[[], T],
        name: str,
        kept: float = KEPT_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._kept = kept
        self._now = now
        self._changed = Condition()
        self._result: tuple[T] | Exception | None = None
        self._at = 0.0
        self._count = 0
        self._wanted = False
        self._stopped = False
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, patience: float) -> None:
        """Stop, and wait for a query in progress, for at most ``patience`` seconds."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(patience)

    def get(self, patience: float) -> T:
        """Return a result that is not older than ``kept``, or newer than the request.

        Args:
            patience: Longest wait in seconds.

        Raises:
            QueryTimeoutError: If the query takes longer, or the thread has stopped.
            Exception: What the query has raised.
        """
        return self.begin()(patience)

    def begin(self) -> Callable[[float], T]:
        """Begin a query unless its last result is recent enough; return what waits for the result, as ``get`` does."""
        with self._changed:
            count = self._count
            if self._result is None or self._now() - self._at >= self._kept:
                self._wanted, count = True, count + 1
                self._changed.notify_all()
        return partial(self._awaited, count)

    def _awaited(self, count: int, patience: float) -> T:
        """Wait until that many queries have ended; return the last result."""
        with self._changed:
            self._changed.wait_for(lambda: self._count >= count or self._stopped, patience)
            if self._count < count:
                raise QueryTimeoutError
            result = self._result
        if isinstance(result, Exception):
            raise result
        assert result is not None  # noqa: S101 for the type checker
        return result[0]

    def _run(self) -> None:
        while self._is_wanted():
            try:
                result: tuple[T] | Exception = (self._look(),)
            except Exception as error:  # raised where the result is requested
                result = error
            with self._changed:
                self._result, self._at = result, self._now()
                self._count += 1
                self._wanted = False  # callers that asked during the query get its result
                self._changed.notify_all()

    def _is_wanted(self) -> bool:
        """Wait until a query is wanted; return whether one still is."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._stopped)
            self._wanted = False
            return not self._stopped

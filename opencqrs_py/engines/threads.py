"""Threads that make calls one after the other, as many as there are calls in progress."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import TypeAlias

_Calls: TypeAlias = "SimpleQueue[tuple[str, Callable[[], object]]]"

_IDLE_SECONDS = 30.0


class Threads:
    """Runs each call at once, on an idle thread or a new one.

    Unlike with the standard library's executor, a process ends without waiting for a call that never returns, and
    threads that have been idle for long end, so that an owner need not close anything.

    Args:
        idle_seconds: After this time without a call a thread ends.
    """

    def __init__(self, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._idle: list[_Calls] = []

    def run(self, name: str, call: Callable[[], object]) -> None:
        """Begin a call, which must not raise, on a thread that has this name for its duration."""
        try:
            calls = self._idle.pop()
        except IndexError:
            calls = SimpleQueue()
            Thread(target=self._serve, args=(calls,), daemon=True).start()
        calls.put((name, call))

    def _serve(self, calls: _Calls) -> None:
        while (made := self._next(calls)) is not None:
            current_thread().name, call = made
            call()
            del call, made  # which may hold large objects
            current_thread().name = "opencqrs-idle"
            self._idle.append(calls)

    def _next(self, calls: _Calls) -> tuple[str, Callable[[], object]] | None:
        """Wait for the next call of a thread; return ``None`` if it has been idle for too long."""
        try:
            return calls.get(timeout=self._idle_seconds)
        except Empty:
            try:
                self._idle.remove(calls)
            except ValueError:  # it was just chosen for a call
                return calls.get()
            return None

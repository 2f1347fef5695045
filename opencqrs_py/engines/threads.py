"""Threads that make calls one after the other, as many as there are calls in progress."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import TypeAlias

_Calls: TypeAlias = "SimpleQueue[tuple[str, Callable[[], object]]]"


class Threads:
    """Runs each call at once, on an idle thread or a new one.

    Unlike with the standard library's executor, a process ends without waiting for a call that never returns.
    """

    def __init__(self) -> None:
        self._idle: list[_Calls] = []

    def run(self, name: str, call: Callable[[], object]) -> None:
        """Begin a call, which must not raise, on a thread that has this name meanwhile."""
        try:
            calls = self._idle.pop()
        except IndexError:
            calls = SimpleQueue()
            Thread(target=self._serve, args=(calls,), daemon=True).start()
        calls.put((name, call))

    def _serve(self, calls: _Calls) -> None:
        while True:
            current_thread().name, call = calls.get()
            call()
            del call  # which may hold much
            current_thread().name = "opencqrs-idle"
            self._idle.append(calls)

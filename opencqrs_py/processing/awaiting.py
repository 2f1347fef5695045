"""Awaiting: runs what ``async`` functions have only begun, on one event loop per thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from contextvars import copy_context
from inspect import isawaitable
from typing import Any

__all__ = ["finish"]


class _Loop:
    """The event loop of a thread; closed when the thread ends and its local values are dropped."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()

    def __del__(self) -> None:
        self.runner.close()


_of_thread = threading.local()


def finish(result: Any) -> Any:
    """Return ``result``, or what it comes to when it is awaitable.

    Also when a plain decorator hides that a function is ``async``. The loop stays open between two calls of a
    thread, so clients that belong to a loop can be kept.
    """
    if result is None or not isawaitable(result):
        return result
    loop = getattr(_of_thread, "loop", None)
    if loop is None:
        loop = _of_thread.loop = _Loop()
    return loop.runner.run(_awaited(result), context=copy_context())  # an interceptor may have set a variable


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result

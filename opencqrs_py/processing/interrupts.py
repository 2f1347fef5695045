"""Interrupts: the one kind of exception that is never an event's error."""

from __future__ import annotations

from threading import current_thread, main_thread
from typing import Any

__all__ = ["raise_interrupt"]

_MEMBERS: Any = BaseExceptionGroup.__dict__["exceptions"]  # of the class itself: a child may have its own


def raise_interrupt(error: BaseException) -> None:
    """Raise ``error`` again if it is a real interrupt, alone or in a group; else return.

    Python delivers signals to the main thread only. A ``KeyboardInterrupt`` that is raised on another thread comes
    from somebody's code, and is an error like any other. So is every other ``BaseException``: a panic of a Rust
    extension, ``SystemExit``, ``CancelledError``, ``GeneratorExit``.

    Raises:
        KeyboardInterrupt: If there is one, on the main thread.

    Source:
        Decision K6.
    """
    if current_thread() is not main_thread():
        return
    kind = type(error)  # not isinstance, which asks the error itself for its class
    if issubclass(kind, KeyboardInterrupt):
        raise error
    if issubclass(kind, BaseExceptionGroup) and _interrupted(error):
        raise KeyboardInterrupt from error


def _interrupted(group: BaseException) -> bool:
    open_groups = [group]
    while open_groups:
        for one in _MEMBERS.__get__(open_groups.pop()):
            if issubclass(type(one), KeyboardInterrupt):
                return True
            if issubclass(type(one), BaseExceptionGroup):
                open_groups.append(one)
    return False

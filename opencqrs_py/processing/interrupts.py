"""Interrupts: the one kind of exception that is never an event's error."""

from __future__ import annotations

from threading import current_thread, main_thread

from opencqrs_py.processing.exception_groups import leaves

__all__ = ["raise_interrupt"]


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
    for one in leaves(error):
        if issubclass(type(one), KeyboardInterrupt):
            raise one if one is error else KeyboardInterrupt from error

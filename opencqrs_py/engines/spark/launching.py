"""Launching a JVM beside this process: who gets which signal, and what of its start is shown.

Runs on the driver, while the session is opened.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread
from types import FrameType, SimpleNamespace
from typing import Any

import pyspark.java_gateway

__all__ = ["QuietErrors", "interrupts_deferred", "own_process_group"]

# What the JVM says at every start and nobody can change.
_START_NOISE = (
    "WARNING: Using incubator modules",
    "WARNING: package sun.security.action not in java.base",
    "Setting default log level to",
    "To adjust logging level use",
    "Setting Spark log level to",
    "NOTE: Picked up JDK_JAVA_OPTIONS",
    "Picked up JAVA_TOOL_OPTIONS",
)


@contextmanager
def own_process_group() -> Iterator[None]:
    """Have a JVM that is started here lead a process group of its own.

    Ctrl-C and whatever else a terminal or a supervisor sends to the whole group is ours to obey; the JVM and the Python
    workers then end in order. The JVM ends with this process in any case, whose end of its standard input it reads.
    PySpark offers no setting for this; it calls ``signal.signal`` in the new process, and that is where we step in.
    """

    def lead(number: int, handler: Any) -> Any:
        os.setpgid(0, 0)
        return signal.signal(number, handler)

    gateway: Any = pyspark.java_gateway
    before = gateway.signal
    gateway.signal = SimpleNamespace(signal=lead, SIGINT=signal.SIGINT, SIG_IGN=signal.SIG_IGN)
    try:
        yield
    finally:
        gateway.signal = before


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Put an interrupt off until the block is done: a JVM that is left half started would never end.

    A second interrupt is not put off.

    Raises:
        KeyboardInterrupt: At the end of the block, if there was one.
    """
    if current_thread() is not main_thread():  # signals can be set by the main thread only
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    seen: list[int] = []

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def remember(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        restore()

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, remember)
    try:
        yield
    finally:
        restore()
    if seen:
        raise KeyboardInterrupt


class QuietErrors:
    """While a JVM is started, its standard error goes through a thread that drops the noise of every start.

    The JVM keeps the pipe, so that what handlers print on executors of a local master still reaches the terminal.
    """

    def __init__(self, *, active: bool) -> None:
        self._active = active
        self._saved = -1

    def __enter__(self) -> None:
        if not self._active:
            return
        sys.stderr.flush()
        self._saved = os.dup(2)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        Thread(target=_forward, args=(reading, os.dup(self._saved)), name="opencqrs-jvm", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        if self._active:
            os.dup2(self._saved, 2)
            os.close(self._saved)


def _forward(reading: int, writing: int) -> None:
    with os.fdopen(reading, "rb", buffering=0) as lines, os.fdopen(writing, "wb", buffering=0) as terminal:
        rest = b""
        while part := lines.read(65_536):
            *whole, rest = (rest + part).split(b"\n")
            kept = [line for line in whole if not line.decode(errors="replace").startswith(_START_NOISE)]
            terminal.write(b"".join(line + b"\n" for line in kept))
        terminal.write(rest)

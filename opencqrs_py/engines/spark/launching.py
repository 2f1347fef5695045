"""Launching a JVM beside this process: who gets which signal, what of its start is shown, and when it ends.

Runs on the driver, while the session is opened. PySpark offers no setting for any of this; it calls ``Popen``, and that
is where we step in.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread, current_thread, main_thread
from typing import Any

import pyspark.java_gateway
from pyspark import SparkContext
from pyspark.sql import SparkSession

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
_END_SECONDS = 0.5  # that the end of a JVM is waited for

_jvms: list[subprocess.Popen[bytes]] = []


@contextmanager
def launching(*, quiet: bool) -> Iterator[None]:
    """Have PySpark launch its JVM in a process group of its own; if the block fails, end it.

    Ctrl-C and whatever else a terminal or a supervisor sends to the whole group is ours to obey. The JVM ends with this
    process in any case, whose end of its standard input it reads.

    Args:
        quiet: Whether what every JVM says at its start is left out. All else that it writes to standard error, such as
            what handlers print on executors of a local master, is shown for as long as we show messages ourselves.
    """
    before, launched = signal.getsignal(signal.SIGINT), len(_jvms)

    def launch(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        reading, writing = os.pipe()
        options |= {"stderr": writing, "preexec_fn": None} | ({"process_group": 0} if os.name == "posix" else {})
        with _interrupts_deferred():
            _jvms.append(subprocess.Popen(command, **options))  # noqa: S603 PySpark's command
        os.close(writing)
        Thread(target=_forward, args=(reading, _START_NOISE if quiet else ()), name="opencqrs-jvm", daemon=True).start()
        return _jvms[-1]

    gateway: Any = pyspark.java_gateway
    popen, gateway.Popen = gateway.Popen, launch
    try:
        yield
    except BaseException:
        if len(_jvms) > launched:
            _forget_jvm()
            end_jvms()
        raise
    finally:
        gateway.Popen = popen
        if current_thread() is main_thread():
            signal.signal(signal.SIGINT, before)  # PySpark sets a handler of its own


@atexit.register
def end_jvms(patience: float = _END_SECONDS) -> None:
    """End the JVMs that were launched here, with their Python workers.

    Args:
        patience: Seconds to wait for that; what a JVM has not done by then, such as to delete its files, it does alone.
    """
    for jvm in _jvms if os.name == "posix" else ():
        with suppress(ProcessLookupError, PermissionError):
            if jvm.poll() is None:
                os.killpg(jvm.pid, signal.SIGTERM)
    until = time.monotonic() + patience
    for jvm in _jvms:
        with suppress(subprocess.TimeoutExpired):
            jvm.wait(max(0.0, until - time.monotonic()))
    _jvms.clear()


def _forget_jvm() -> None:
    """Let PySpark launch another JVM next time, even if this one has answered already."""
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001 the only way
    SparkSession._instantiatedSession = None  # noqa: SLF001 the only way


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Put an interrupt off until the block is done: a process that nobody knows of would never be ended.

    Raises:
        KeyboardInterrupt: At the end of the block, if there was one.
    """
    if current_thread() is not main_thread():  # signals can be set by the main thread only
        yield
        return
    seen: list[signal.Signals] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, lambda number, _frame: seen.append(signal.Signals(number)))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in seen:
        signal.raise_signal(number)


def _forward(reading: int, noise: tuple[str, ...]) -> None:
    with os.fdopen(reading, "rb", buffering=0) as lines:
        rest = b""
        while part := lines.read(65_536):
            *whole, rest = (rest + part).split(b"\n")
            kept = [line for line in whole if not line.decode(errors="replace").startswith(noise)]
            _write(b"".join(line + b"\n" for line in kept))
        _write(rest)


def _write(text: bytes) -> None:
    with suppress(OSError):  # nobody reads any more; the JVM must not wait for them
        while text:
            text = text[os.write(2, text) :]

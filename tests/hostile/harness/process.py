"""The process that attacks run in, restored afterwards."""

from __future__ import annotations

import decimal
import gc
import locale
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

__all__ = ["restored"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def restored() -> Iterator[None]:
    """Restore what attacks change in the whole process."""
    attributes = [
        (sys, ("stdout", "stderr", "excepthook", "path")),
        (threading, ("excepthook",)),
        (time, ("time", "sleep", "monotonic")),
        (orjson, ("loads",)),
        (logging.Logger, ("handle",)),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, names in attributes for name in names]
    path, modules, folder, environment = list(sys.path), dict(sys.modules), Path.cwd(), dict(os.environ)
    signals = {number: signal.getsignal(number) for number in _SIGNALS}
    limits = sys.getrecursionlimit(), sys.get_int_max_str_digits()
    thresholds, spoken, mask, context = (
        gc.get_threshold(),
        locale.setlocale(locale.LC_ALL),
        _umask(),
        decimal.getcontext(),
    )
    context = context.copy()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        sys.path[:] = path
        sys.modules.update({name: module for name, module in modules.items() if name not in sys.modules})
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for number, handler in signals.items():
            signal.signal(number, handler)
        sys.setrecursionlimit(limits[0])
        sys.set_int_max_str_digits(limits[1])
        gc.enable()
        gc.set_threshold(*thresholds)
        locale.setlocale(locale.LC_ALL, spoken)
        os.umask(mask)
        decimal.setcontext(context)
        logging.disable(logging.NOTSET)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask

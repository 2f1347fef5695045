"""The collector of garbage, which waits while Python's parser runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_waits() -> Iterator[None]:
    """Have the collector wait while Python's parser runs, as it does for the source of a class, or a line of an error.

    On Python 3.11 the parser fails with a SystemError if a finalizer parses something meanwhile, as it does if it fails
    and a hook or a log shows its line.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()

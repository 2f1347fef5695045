"""The garbage collector, which waits while Python's parser runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_waits() -> Iterator[None]:
    """Have the collector wait while Python's parser runs, as for the source of a class, or the line of an error.

    On Python 3.11 the parser fails with a SystemError if a finalizer parses something in the meantime, which happens if
    the finalizer fails and a hook or a log shows its line.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()

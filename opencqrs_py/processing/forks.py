"""A process that a handler forks: it ends when the call of the handler ends, and handles nothing itself."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from contextlib import suppress
from types import FrameType
from typing import NoReturn

_log = logging.getLogger("opencqrs.processing")
_PACKAGE = __name__.partition(".")[0]

FORKED: list[FrameType] = []
"""The calls of this package within which this process was forked, innermost first; empty in any other process."""


def end_if_forked(error: BaseException | None = None, *, depth: int = 1) -> None:
    """End this process if it was forked in a function of the project that has just ended.

    Such a process has its parent's events and connections: it would handle these events again, and its statements would
    interleave with those of the parent. It ends without closing anything, as by ``os._exit``, with the code that
    ``sys.exit`` was given. Check ``FORKED`` first where this would be called for each event.

    Args:
        error: What the function has raised.
        depth: How many calls above this one the function was called.
    """
    if FORKED and sys._getframe(depth) in FORKED:  # noqa: SLF001 the only way
        _end(error)


def _end(error: BaseException | None) -> NoReturn:
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    try:
        _log.warning(
            "process %d was forked in a handler or another function of the project, and returned from it; it ends here "
            "with code %d, because it must not repeat its parent's work: end such a process with os._exit, or start it "
            "with multiprocessing",
            os.getpid(),
            code,
        )
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # handlers may have closed them
                stream.flush()
    finally:
        os._exit(code)


def _note_calls() -> None:
    FORKED.clear()
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 as above
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
            FORKED.append(frame)
        frame = frame.f_back


if hasattr(os, "register_at_fork"):  # where processes can fork
    os.register_at_fork(after_in_child=_note_calls)

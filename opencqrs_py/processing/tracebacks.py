"""Tracebacks without this package's own frames: what a handler's author wants to see."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

__all__ = ["own_frames"]

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


def own_frames(error: BaseException) -> str:
    """Format an exception with its causes, leaving out the frames of this package.

    Empty when no frame is left: then the error arose in this package or below it.
    """
    formatted = traceback.TracebackException.from_exception(error)
    kept = _strip(formatted)
    return "".join(formatted.format()).rstrip() if kept else ""


def _strip(formatted: traceback.TracebackException) -> int:
    frames = [frame for frame in formatted.stack if not frame.filename.startswith(_PACKAGE)]
    formatted.stack = traceback.StackSummary.from_list(frames)
    causes = (formatted.__cause__, formatted.__context__)
    return len(frames) + sum(_strip(cause) for cause in causes if cause is not None)

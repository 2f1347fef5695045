"""What a failed test shows: differences, and errors from the first line of the user's own code on."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


def from_users_frame(error: BaseException) -> BaseException:
    """Have the traceback begin in the user's code, if it passes through it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


def difference(expected: Any, found: Any) -> str:
    """Return how what was found differs from what was expected, as lines."""
    if not isinstance(expected, list):
        return f"  expected: {expected!r}\n  found:    {found!r}"
    lines = difflib.ndiff([repr(each) for each in expected], [repr(each) for each in found])
    kept = [line for line in lines if not line.startswith("?")]
    return "\n".join(["  - expected, + found", *(f"  {line}" for line in kept)])

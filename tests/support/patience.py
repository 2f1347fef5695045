"""Commands that stop in order on a machine of any speed."""

from __future__ import annotations

import sys

_PATIENT = "from opencqrs_py.cli import main, signals; signals.END_SECONDS = 600; main()"


def patient(*arguments: str) -> list[str]:
    """Return a command of ``opencqrs`` that a signal lets stop in order, however long that takes."""
    return [sys.executable, "-c", _PATIENT, *arguments]

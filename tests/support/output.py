"""What commands print, for tests that compare it."""

from __future__ import annotations

import re


def without_times(text: str) -> str:
    """Return standard error as on a terminal, where lines do not begin with the time."""
    return re.sub(r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", "", text)

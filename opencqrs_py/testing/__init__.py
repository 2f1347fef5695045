"""What to test with: ``HandlerTest``, ``JobTest``, a clock moved by hand, and in ``contracts`` a class for each port.

Names are imported on first use: the pytest plugin, which is in this package, must load nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from opencqrs_py.testing.clock import FakeClock
from opencqrs_py.testing.waiting import caught_up

if TYPE_CHECKING:
    from opencqrs_py.testing.handling import HandlerTest
    from opencqrs_py.testing.job_testing import JobTest, assert_idempotent

__all__ = ["FakeClock", "HandlerTest", "JobTest", "assert_idempotent", "caught_up"]

_HOMES = {
    "HandlerTest": "opencqrs_py.testing.handling",
    "JobTest": "opencqrs_py.testing.job_testing",
    "assert_idempotent": "opencqrs_py.testing.job_testing",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(home), name)

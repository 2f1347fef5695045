"""What to test with: ``HandlerTest``, ``caught_up``, a clock moved by hand, and in ``contracts`` a class for each port.

``HandlerTest`` is imported when it is first used: the pytest plugin, which stands beside it, must load nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opencqrs_py.testing.clock import FakeClock
from opencqrs_py.testing.waiting import caught_up

if TYPE_CHECKING:
    from opencqrs_py.testing.handling import HandlerTest

__all__ = ["FakeClock", "HandlerTest", "caught_up"]


def __getattr__(name: str) -> Any:
    if name != "HandlerTest":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from opencqrs_py.testing.handling import HandlerTest  # noqa: PLC0415 see above

    return HandlerTest

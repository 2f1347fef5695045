"""Events of the inbox that wait too long: a back-off of the project that fails is named."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from typing import Any

import pytest

from opencqrs_py import InMemoryProgressTracker
from opencqrs_py.errors import AssemblyError
from opencqrs_py.processing.inbox.late_entries import LateEntries
from opencqrs_py.processing.ports import BackOff


class Odd(BackOff):
    def __init__(self, wrong: Any) -> None:
        self.wrong = wrong

    def waits(self) -> Iterator[float]:
        yield 1.0
        if isinstance(self.wrong, Exception):
            raise self.wrong
        yield self.wrong


@pytest.mark.parametrize("wrong", [nan, inf, -1, "2", KeyError("x")])
def test_a_failing_custom_back_off_is_named(wrong: Any) -> None:
    inbox: Any = InMemoryProgressTracker()
    with pytest.raises(AssemblyError, match=r"OCQ-546\] the back-off Odd failed: (Value|Key)Error: "):
        LateEntries(inbox, "books", Odd(wrong), each=True)

"""A pytest fixture and a marker that set properties above every other source.

Switch it on in the ``conftest.py`` at the top of your tests: ``pytest_plugins = ["opencqrs_py.testing.plugin"]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from opencqrs_py.config import pinned

__all__ = ["SetProperty", "opencqrs_properties"]

_MARKER = "opencqrs_properties"


class SetProperty(Protocol):
    """Sets one property until the end of the test."""

    def __call__(self, key: str, value: object) -> None:
        """Let ``key`` (dotted, with or without the leading ``opencqrs.``) have ``value``."""
        ...


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", f"{_MARKER}(properties): settings that win over all others in this test")


@pytest.fixture(autouse=True)
def opencqrs_properties(request: pytest.FixtureRequest) -> Iterator[SetProperty]:
    """Set what the test's markers say, outer ones first; a test that asks for the fixture can set more.

    Example:
        ``@pytest.mark.opencqrs_properties({"event-handling.standard.processing.engine": "thread"})``
    """
    with ExitStack() as stack:
        for mark in reversed(list(request.node.iter_markers(_MARKER))):
            stack.enter_context(pinned(*mark.args))
        yield lambda key, value: stack.enter_context(pinned({key: value}))

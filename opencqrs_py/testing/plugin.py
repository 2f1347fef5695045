"""Fixtures for pytest, and a marker: settings above every other source, and tests of handlers.

Switch it on in the ``conftest.py`` at the top of your tests: ``pytest_plugins = ["opencqrs_py.testing.plugin"]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from opencqrs_py.config import pinned

if TYPE_CHECKING:
    from opencqrs_py.testing.handling import HandlerTest


_MARKER = "opencqrs_properties"


class SetProperty(Protocol):
    """Sets one property until the end of the test."""

    def __call__(self, key: str, value: object) -> None:
        """Let ``key`` (dotted, with or without the leading ``opencqrs.``) have ``value``."""
        ...


class MakeHandlerTest(Protocol):
    """Makes a ``HandlerTest`` that is closed at the end of the test."""

    def __call__(self, *handlers: Any, **options: Any) -> HandlerTest:
        """Take what ``HandlerTest`` takes."""
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


@pytest.fixture
def opencqrs_handler_test() -> Iterator[MakeHandlerTest]:
    """Make a ``HandlerTest``, as often as the test asks, and close it at the end."""
    from opencqrs_py.testing.handling import HandlerTest  # noqa: PLC0415 loads SQLAlchemy

    with ExitStack() as stack:

        def make(*handlers: Any, **options: Any) -> HandlerTest:
            made = HandlerTest(*handlers, **options)
            stack.callback(made.close)
            return made

        yield make

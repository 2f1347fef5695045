"""Fixtures for pytest, and a marker: settings above every other source, and tests of handlers.

Switch it on in the ``conftest.py`` at the top of your tests: ``pytest_plugins = ["opencqrs_py.testing.plugin"]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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


@pytest.fixture(autouse=True, scope="module")
def _opencqrs_properties_of_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set what the markers of a module say, before fixtures of that scope load settings."""
    with _marked(request):
        yield


@pytest.fixture(autouse=True, scope="class")
def _opencqrs_properties_of_class(
    request: pytest.FixtureRequest, _opencqrs_properties_of_module: None
) -> Iterator[None]:
    """Set what the markers of a class and of those around it say, before fixtures of that scope load settings."""
    with _marked(request):
        yield


@pytest.fixture(autouse=True)
def opencqrs_properties(request: pytest.FixtureRequest, _opencqrs_properties_of_class: None) -> Iterator[SetProperty]:
    """Set what the test's markers say, outer ones first; a test that asks for the fixture can set more.

    Example:
        ``@pytest.mark.opencqrs_properties({"event-handling.standard.processing.engine": "thread"})``
    """
    with _marked(request) as stack:
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


@contextmanager
def _marked(request: pytest.FixtureRequest) -> Iterator[ExitStack]:
    """Set what the markers of a test, class or module say, and of what is around it, outer ones first."""
    with ExitStack() as stack:
        for mark in reversed(list(request.node.iter_markers(_MARKER))):
            stack.enter_context(pinned(*mark.args))
        yield stack

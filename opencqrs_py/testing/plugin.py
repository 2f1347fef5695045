"""Fixtures for pytest, and a marker: settings that override every other source, and tests of handlers.

Switch it on in the ``conftest.py`` at the top of your tests: ``pytest_plugins = ["opencqrs_py.testing.plugin"]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
        """Set ``key`` (dotted, with or without the leading ``opencqrs.``) to ``value``."""
        ...


class MakeHandlerTest(Protocol):
    """Makes a ``HandlerTest`` that is closed at the end of the test."""

    def __call__(self, *handlers: Any, **options: Any) -> HandlerTest:
        """Create one with the arguments of ``HandlerTest``."""
        ...


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", f"{_MARKER}(properties): settings that override all others in this test")


@pytest.fixture(autouse=True, scope="module")
def _opencqrs_properties_of_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Apply the markers of a module, before fixtures of that scope load settings."""
    with _marked(request):
        yield


@pytest.fixture(autouse=True, scope="class")
def _opencqrs_properties_of_class(
    request: pytest.FixtureRequest, _opencqrs_properties_of_module: None
) -> Iterator[None]:
    """Apply the markers of a class and of its outer classes, before fixtures of that scope load settings."""
    with _marked(request):
        yield


@pytest.fixture(autouse=True)
def opencqrs_properties(request: pytest.FixtureRequest, _opencqrs_properties_of_class: None) -> Iterator[SetProperty]:
    """Apply the test's markers, outer ones first; a test that takes the fixture can set more.

    Example:
        ``@pytest.mark.opencqrs_properties({"event-handling.standard.processing.engine": "thread"})``
    """
    with _marked(request) as stack:
        yield lambda key, value: stack.enter_context(pinned({key: value}))


@pytest.fixture
def opencqrs_handler_test() -> Iterator[MakeHandlerTest]:
    """Create a ``HandlerTest`` for each call, and close it at the end."""
    from opencqrs_py.testing.handling import HandlerTest  # noqa: PLC0415 loads SQLAlchemy

    with ExitStack() as stack:

        def make(*handlers: Any, **options: Any) -> HandlerTest:
            made = HandlerTest(*handlers, **options)
            stack.callback(made.close)
            return made

        yield make


@contextmanager
def _marked(request: pytest.FixtureRequest) -> Iterator[ExitStack]:
    """Apply the markers of a test, class or module and of what surrounds it, outer ones first."""
    with ExitStack() as stack:
        for mark in reversed(list(request.node.iter_markers(_MARKER))):
            stack.enter_context(pinned(_properties_of(mark)))
        yield stack


def _properties_of(mark: pytest.Mark) -> Mapping[str, object]:
    """Return the properties of a marker; fail the test without a trace if it was not given one ``dict`` of them."""
    if len(mark.args) == 1 and not mark.kwargs and isinstance(mark.args[0], Mapping):
        return mark.args[0]
    given = ", ".join([*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())])
    example = f'@pytest.mark.{_MARKER}({{"event-handling.standard.processing.engine": "thread"}})'
    pytest.fail(f"{_MARKER} takes one dict, such as {example}, got {given or 'no argument'}", pytrace=False)

"""Exceptions: what, where, fix; and they cross process borders."""

from __future__ import annotations

import pickle

import pytest

from opencqrs_py import errors
from opencqrs_py.errors import (
    AssemblyError,
    AssemblyErrors,
    ConfigurationError,
    ConfigurationErrors,
    EventFormatError,
    ExplainedError,
    HandlerSignatureError,
    NonTransientError,
    OpenCqrsError,
    SeveralErrors,
)

FIRST = ConfigurationError("OCQ-101", "no such key", "application.yaml:3:5", "leave it out")
SECOND = ConfigurationError("OCQ-102", "not a number", "OPENCQRS_X", "write a number")


def example(name: str) -> OpenCqrsError:
    cls: type[OpenCqrsError] = getattr(errors, name)
    if issubclass(cls, SeveralErrors):
        return cls((AssemblyError("OCQ-501", "no module", "handlers.py:1"), FIRST))
    return cls("OCQ-999", "what", "where", "fix") if issubclass(cls, ExplainedError) else cls("message")


ALL = [example(name) for name in errors.__all__]


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_every_exception_survives_pickling(error: OpenCqrsError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert {k: str(v) for k, v in vars(copy).items()} == {k: str(v) for k, v in vars(error).items()}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ExplainedError("OCQ-1", "it broke"), "[OCQ-1] it broke"),
        (ExplainedError("OCQ-1", "it broke", "here"), "[OCQ-1] it broke\n  where: here"),
        (ExplainedError("OCQ-1", "it broke", fix="do so"), "[OCQ-1] it broke\n  fix:   do so"),
        (ExplainedError("OCQ-1", "it broke", "here", "do so"), "[OCQ-1] it broke\n  where: here\n  fix:   do so"),
    ],
)
def test_an_explained_error_says_what_where_and_fix(error: ExplainedError, text: str) -> None:
    assert str(error) == text


def test_configuration_errors_appear_together_and_the_first_gives_the_facts() -> None:
    together = ConfigurationErrors((FIRST, SECOND))
    assert str(together) == f"{FIRST}\n{SECOND}"
    assert (together.code, together.what, together.where, together.fix) == FIRST.args
    assert together.errors == (FIRST, SECOND)


def test_configuration_errors_are_at_least_one() -> None:
    with pytest.raises(ValueError, match="at least one error"):
        ConfigurationErrors(())


def test_errors_of_the_assembly_appear_together_and_are_at_least_one() -> None:
    together = AssemblyErrors((AssemblyError("OCQ-501", "no module"), HandlerSignatureError("OCQ-201", "no hint")))
    assert str(together) == "[OCQ-501] no module\n[OCQ-201] no hint"
    with pytest.raises(ValueError, match="at least one error"):
        AssemblyErrors(())


def test_an_event_that_is_none_is_not_tried_again() -> None:
    assert issubclass(EventFormatError, NonTransientError)
    assert not issubclass(HandlerSignatureError, NonTransientError)

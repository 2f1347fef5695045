"""Exceptions: what, where and fix; and pickling."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import opencqrs_py
from opencqrs_py import errors
from opencqrs_py.cli.events import imports
from opencqrs_py.config.problems import Code
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
def test_an_explained_error_shows_what_where_and_fix(error: ExplainedError, text: str) -> None:
    assert str(error) == text


def test_configuration_errors_are_shown_together_with_the_attributes_of_the_first() -> None:
    together = ConfigurationErrors((FIRST, SECOND))
    assert str(together) == f"{FIRST}\n{SECOND}"
    assert (together.code, together.what, together.where, together.fix) == FIRST.args
    assert together.errors == (FIRST, SECOND)


def test_configuration_errors_need_at_least_one_error() -> None:
    with pytest.raises(ValueError, match="at least one error"):
        ConfigurationErrors(())


def test_assembly_errors_are_shown_together_and_need_at_least_one_error() -> None:
    together = AssemblyErrors((AssemblyError("OCQ-501", "no module"), HandlerSignatureError("OCQ-201", "no hint")))
    assert str(together) == "[OCQ-501] no module\n[OCQ-201] no hint"
    with pytest.raises(ValueError, match="at least one error"):
        AssemblyErrors(())


def test_an_invalid_event_is_not_retried() -> None:
    assert issubclass(EventFormatError, NonTransientError)
    assert not issubclass(HandlerSignatureError, NonTransientError)


def _decides_by_code(node: ast.AST) -> bool:
    """Return whether ``node`` compares an error's code, uses it as a key, or checks its prefix."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"startswith", "get"}:
        looked_at = node.func.value if node.func.attr == "startswith" else next(iter(node.args), None)
        return isinstance(looked_at, ast.Attribute) and looked_at.attr == "code"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "compile":
        constants = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
        return any(isinstance(one, str) and re.search(r"OCQ-[0-9]", one) for one in constants)
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Attribute) and node.slice.attr == "code"
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    is_code = any(isinstance(side, ast.Attribute) and side.attr == "code" for side in sides)
    return is_code and any(_is_own_code(each) for side in sides for each in ast.walk(side))


def _is_own_code(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == Code.__name__ and node.attr in Code.__members__
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("OCQ-")


@pytest.mark.parametrize(
    ("source", "decides"),
    [
        ("error.code == 'OCQ-340'", True),
        ("error.code not in ('OCQ-321', 'OCQ-322')", True),
        ("fixes[error.code]", True),
        ("fixes.get(error.code, '')", True),
        ("error.code.startswith('OCQ-64')", True),
        ("re.compile(r'Error|OCQ-634')", True),
        (r"re.compile(r'OCQ-\d{3}')", False),
        ("error.code in {Code.PROFILE, Code.PLACEHOLDER}", True),
        ("answer.code == Code.GONE", False),
        ("raise type(error)(error.code, what)", False),
    ],
)
def test_a_decision_by_error_code_is_detected(source: str, *, decides: bool) -> None:
    assert any(map(_decides_by_code, ast.walk(ast.parse(source)))) is decides


def test_decisions_are_made_by_the_type_of_an_error_and_not_its_code() -> None:
    package = Path(opencqrs_py.__file__).parent
    files = (file for file in package.rglob("*.py") if "contracts" not in file.parts)
    found = [
        f"{file.relative_to(package)}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if _decides_by_code(node)
    ]
    assert found == []


def test_an_import_explains_an_event_error_with_any_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def events(_path: Path) -> Iterator[object]:
        raise EventFormatError("OCQ-299", "odd", "a.ndjson:1")
        yield

    monkeypatch.setattr(imports, "events_of_file", events)
    with pytest.raises(EventFormatError, match=r"OCQ-299\] odd(?s:.*)fix the line and import again"):
        next(imports._events_of("a.ndjson"))

"""The decorators that discovery knows."""

from __future__ import annotations

from inspect import isfunction

from opencqrs_py.model.declarations import Declaration
from opencqrs_py.processing import decorators


def test_every_decorator_has_a_declaration() -> None:
    functions = {name for name, value in vars(decorators).items() if isfunction(value) and name[0] != "_"}
    written = {name for name in functions if getattr(decorators, name).__module__ == decorators.__name__}
    assert written == {name for each in Declaration for name in each.value.names}

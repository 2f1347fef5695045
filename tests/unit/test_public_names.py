"""The names that users import from the package itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import opencqrs_py

HOMES = {
    f"opencqrs_py.{home}": {name for name, other in opencqrs_py._HOMES.items() if other == home}
    for home in opencqrs_py._HOMES.values()
}


@pytest.mark.parametrize("name", opencqrs_py.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(opencqrs_py, name) is not None
    assert name in dir(opencqrs_py)


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'opencqrs_py' has no attribute 'nothing'"):
        opencqrs_py.nothing  # noqa: B018


def test_type_checkers_and_python_import_each_name_from_the_same_module() -> None:
    tree = ast.parse(Path(opencqrs_py.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        node.module: {name.name for name in node.names} for node in block.body if isinstance(node, ast.ImportFrom)
    }
    assert imported == HOMES
    assert sorted(opencqrs_py.__all__) == sorted(opencqrs_py._HOMES)


def test_every_logger_is_below_the_packages_logger_and_documented() -> None:
    package = Path(opencqrs_py.__file__).parent
    page = (package.parent / "docs/how-to/run-in-production.md").read_text("utf-8")
    calls = [
        call
        for file in package.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "logging.getLogger" and call.args
    ]
    names = {ast.literal_eval(call.args[0]) for call in calls}
    assert len(names) > 5
    assert {name for name in names if not f"{name}.".startswith("opencqrs.") or f"`{name}`" not in page} == set()

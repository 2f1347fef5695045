"""Wrong settings, handlers and group names passed to an application."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opencqrs_py import Application
from opencqrs_py.assembly.group_names import names_given, unknown_group
from opencqrs_py.errors import ConfigurationErrors


def handle(event: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"settings": "."}, "settings must be a mapping or a loaded Configuration, got '.'; to open a folder with its"),
        ({"settings": Path("shop")}, "got PosixPath('shop'); to open a folder with its settings and handlers, write"),
        ({"settings": "application.yaml"}, "Application.from_project(folder)"),
        ({"handlers": handle}, "handlers must be a list of modules, functions and classes, got <function handle"),
        ({"handlers": "shop.handlers"}, "got 'shop.handlers'; write handlers=[…]"),
        ({"handlers": ["shop.handlers"]}, "must be modules, functions or classes, got 'shop.handlers'; import it"),
    ],
)
def test_wrong_arguments_of_an_application_are_refused_with_the_right_form(
    arguments: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError) as caught:
        Application(project=tmp_path, **arguments)
    assert says in str(caught.value)


def test_a_file_as_project_folder_is_refused(tmp_path: Path) -> None:
    (file := tmp_path / "handlers.py").touch()
    with pytest.raises(ConfigurationErrors) as caught:
        Application.from_project(file)
    assert str(caught.value).splitlines() == [
        "[OCQ-102] the project folder is a file",
        f"  where: {file}",
        "  fix:   name the folder that it is in",
    ]


@pytest.mark.parametrize(
    ("known", "fix"), [(["books", "other"], "use one of books, other"), ([], "write a handler for it")]
)
def test_an_unknown_group_is_refused_with_the_known_groups(known: list[str], fix: str) -> None:
    error = unknown_group("boks", known)
    assert (error.code, error.what, error.fix) == ("OCQ-509", "no handler belongs to a group 'boks'", fix)


def test_a_single_string_is_not_a_list_of_groups() -> None:
    assert names_given(["books"]) == ["books"]
    with pytest.raises(TypeError, match=r"group names must be a list: write \['books'\]"):
        names_given("books")

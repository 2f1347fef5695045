from __future__ import annotations

from pathlib import Path

import pytest

from opencqrs_py.assembly.sources import find_modules, literal_groups


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path


def write(project: Path, name: str, text: str) -> None:
    file = project / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


HANDLER = 'from opencqrs_py import event_handling\n@event_handling("{}")\ndef f(e: dict) -> None: ...\n'


def names(project: Path) -> list[str]:
    return [module.name for module in find_modules(project)]


def test_a_module_that_imports_the_package_is_found(project):
    write(project, "handlers.py", HANDLER.format("catalog"))
    write(project, "script.py", "raise SystemExit")
    assert names(project) == ["handlers"]


def test_a_module_counts_when_it_imports_one_that_does(project):
    write(project, "marks.py", "from opencqrs_py import event_handling\nstatistics = event_handling('statistics')\n")
    write(project, "handlers.py", "from marks import statistics\n@statistics\ndef f(e: dict) -> None: ...\n")
    assert names(project) == ["handlers", "marks"]


def test_packages_are_searched_to_the_bottom_and_relative_imports_followed(project):
    write(project, "shop/__init__.py", "")
    write(project, "shop/marks.py", "from opencqrs_py import event_handling\n")
    write(project, "shop/deep/__init__.py", "")
    write(project, "shop/deep/handlers.py", "from ..marks import event_handling\n")
    assert names(project) == ["shop.deep.handlers", "shop.marks"]


def test_the_src_folder_is_a_root_too(project):
    write(project, "src/shop/__init__.py", HANDLER.format("a"))
    (module,) = find_modules(project)
    assert (module.name, module.root) == ("shop", project / "src")


@pytest.mark.parametrize(
    "place",
    [
        "tests/__init__.py",
        "test_handlers.py",
        "conftest.py",
        "setup.py",
        ".hidden/__init__.py",
        "venv/lib/x.py",
        "data/h.py",
    ],
)
def test_what_is_no_part_of_the_project_is_left_alone(project, place):
    write(project, place, HANDLER.format("a"))
    if place.startswith(".hidden"):
        (project / ".hidden" / "__init__.py").unlink()
    assert names(project) == []


def test_a_file_with_a_syntax_error_counts_if_it_names_the_package(project):
    write(project, "handlers.py", "from opencqrs_py import event_handling\ndef (\n")
    write(project, "other.py", "def (\n")
    assert names(project) == ["handlers"]


def test_group_names_are_read_without_importing(project):
    text = HANDLER.format("books") + "raise RuntimeError('must not be run')\n"
    write(project, "a.py", text)
    write(project, "b.py", 'import opencqrs_py\n@opencqrs_py.event_handling(group="audit")\ndef f(): ...\n')
    write(project, "c.py", 'from opencqrs_py import on_start\n@on_start(" books ")\ndef f(): ...\n')
    assert literal_groups(find_modules(project)) == ("audit", "books")


def test_a_missing_folder_holds_nothing(tmp_path):
    assert find_modules(tmp_path / "nowhere") == []

from __future__ import annotations

from pathlib import Path

import pytest

from opencqrs_py.assembly.discovery.project import scan_project
from opencqrs_py.errors import AssemblyError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path


def write(project: Path, name: str, text: str) -> None:
    file = project / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


HANDLER = 'from opencqrs_py import event_handling\n@event_handling("{}")\ndef f(e: dict) -> None: ...\n'


def names(project: Path) -> list[str]:
    return [module.name for module in scan_project(project).modules]


def test_a_module_that_imports_the_package_is_found(project):
    write(project, "handlers.py", HANDLER.format("catalog"))
    write(project, "script.py", "raise SystemExit")
    assert names(project) == ["handlers"]


def test_a_module_is_found_if_it_imports_one_that_imports_the_package(project):
    write(project, "marks.py", "from opencqrs_py import event_handling\nstatistics = event_handling('statistics')\n")
    write(project, "handlers.py", "from marks import statistics\n@statistics\ndef f(e: dict) -> None: ...\n")
    assert names(project) == ["handlers", "marks"]


def test_packages_are_searched_recursively_and_relative_imports_followed(project):
    write(project, "shop/__init__.py", "")
    write(project, "shop/marks.py", "from opencqrs_py import event_handling\n")
    write(project, "shop/deep/__init__.py", "")
    write(project, "shop/deep/handlers.py", "from ..marks import event_handling\n")
    assert names(project) == ["shop.deep.handlers", "shop.marks"]


@pytest.mark.parametrize("statement", ["from . import handles", "from .. import handles", "from shop import handles"])
def test_a_file_that_uses_a_decorator_of_its_own_package_is_found(project, statement):
    write(project, "shop/__init__.py", "from opencqrs_py import event_handling as handles\n")
    place = "shop/deep" if ".." in statement else "shop"
    write(project, f"{place}/loans.py", f"{statement}\n@handles('loans')\ndef f(e: dict) -> None: ...\n")
    assert names(project) == ["shop", f"{place}.loans".replace("/", ".")]


def test_the_src_folder_is_also_a_root(project):
    write(project, "src/shop/__init__.py", HANDLER.format("a"))
    (module,) = scan_project(project).modules
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
    ],
)
def test_files_that_are_not_part_of_the_project_are_ignored(project, place):
    write(project, place, HANDLER.format("a"))
    if place.startswith(".hidden"):
        (project / ".hidden" / "__init__.py").unlink()
    assert names(project) == []


def test_a_file_with_a_syntax_error_is_found_if_it_names_the_package(project):
    write(project, "handlers.py", "from opencqrs_py import event_handling\ndef (\n")
    write(project, "other.py", "def (\n")
    assert names(project) == ["handlers"]


def test_group_names_are_read_without_importing(project):
    text = HANDLER.format("books") + "raise RuntimeError('must not be run')\n"
    write(project, "a.py", text)
    write(project, "b.py", 'import opencqrs_py\n@opencqrs_py.event_handling(group="audit")\ndef f(): ...\n')
    write(project, "c.py", 'from opencqrs_py import on_start\n@on_start(" books ")\ndef f(): ...\n')
    assert list(scan_project(project).groups) == ["books", "audit"]


def test_a_handler_of_data_frames_is_found_and_names_its_group(project):
    text = "from opencqrs_py import dataframe_handler\n@dataframe_handler('popular', types=['*'])\ndef f(e): ...\n"
    write(project, "frames.py", text)
    write(project, "handlers.py", HANDLER.format("books"))
    scanned = scan_project(project)
    assert [module.name for module in scanned.modules] == ["frames", "handlers"]
    assert list(scanned.groups) == ["popular", "books"]


def test_a_missing_folder_has_no_modules(tmp_path):
    assert scan_project(tmp_path / "nowhere").modules == ()


def skipped_in(project: Path, **given: list[str]) -> dict[str, str]:
    return {str(each.path.relative_to(project)): each.why for each in scan_project(project, **given).skipped}


def test_folders_need_no_init_file(project):
    write(project, "billing/handlers.py", HANDLER.format("billing"))
    write(project, "billing/deep/more.py", HANDLER.format("more"))
    write(project, "src/shop/handlers.py", HANDLER.format("shop"))
    assert names(project) == ["billing.deep.more", "billing.handlers", "shop.handlers"]


def test_each_file_is_one_module_even_below_a_src_folder_that_is_a_package(project):
    write(project, "src/__init__.py", "")
    write(project, "src/handlers.py", HANDLER.format("a"))
    assert names(project) == ["src.handlers"]


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ("import opencqrs_py as oc\n@oc.event_handling('a')\ndef f(e: dict): ...", True),
        ("from opencqrs_py import *\n@event_handling('a')\ndef f(e: dict): ...", True),
        ("from our_platform import event_handling\n@event_handling('a')\ndef f(e: dict): ...", True),
        ("from opencqrs_py import event_type\n@event_type('a')\nclass A: ...", True),
        ("from dependency_injector import containers\nclass C(containers.DeclarativeContainer): ...", True),
        ("from opencqrs_py import Application\nApplication.from_project('.').run()", False),
        ("from opencqrs_py.adapters.sql import Database\nDatabase('sqlite://')", False),
        ("event_type = 'a'\non_start = 1", False),
    ],
)
def test_a_file_is_found_if_it_uses_a_decorator_or_containers(project, source, counts):
    write(project, "one.py", source)
    assert names(project) == (["one"] if counts else [])
    assert list(skipped_in(project)) == ([] if counts else ["one.py"])


def test_files_and_folders_that_are_not_imported_are_listed_with_the_reason(project):
    write(project, "handlers.py", HANDLER.format("a"))
    write(project, "tool.py", "print('no handlers')")
    write(project, "test_it.py", HANDLER.format("a"))
    write(project, "tests/more.py", HANDLER.format("a"))
    write(project, ".venv/x.py", HANDLER.format("a"))
    write(project, "env/pyvenv.cfg", "")
    write(project, "examples/shop/application.yaml", "")
    write(project, "examples/shop/handlers.py", HANDLER.format("a"))
    write(project, "scripts/old.py", HANDLER.format("a"))
    write(project, "old_one.py", HANDLER.format("a"))
    (project / "again").symlink_to(project / "handlers.py")
    assert skipped_in(project, exclude=["scripts", "old_*"]) == {
        ".venv": "it is hidden",
        "env": "a virtual environment",
        "examples/shop": "a separate project: it has settings",
        "old_one.py": "discovery.exclude names it",
        "scripts": "discovery.exclude names it",
        "test_it.py": "it is hidden, a test or setup.py",
        "tests": "tests",
        "tool.py": "it uses no decorator of opencqrs_py and no dependency_injector, and imports no file that does",
    }


def test_a_symlinked_folder_is_searched_once(project):
    write(project, "shop/handlers.py", HANDLER.format("a"))
    (project / "linked").symlink_to(project / "shop")
    (project / "shop" / "circle").symlink_to(project / "shop")
    assert len(names(project)) == 1
    assert "a link to a folder that is scanned" in skipped_in(project).values()


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("scripts", ["handlers", "shop.old.handlers"]),
        ("scripts/", ["handlers", "shop.old.handlers"]),
        ("scripts/*.py", ["handlers", "shop.old.handlers"]),
        ("shop.old", ["handlers", "scripts.run"]),
        ("shop.old.*", ["handlers", "scripts.run"]),
        ("*/handlers.py", ["handlers", "scripts.run"]),
        ("handlers", ["scripts.run", "shop.old.handlers"]),
        ("src", ["handlers", "scripts.run"]),
    ],
)
def test_patterns_exclude_files_folders_and_modules(project, pattern, left):
    for name in ("handlers.py", "scripts/run.py", "src/shop/old/handlers.py"):
        write(project, name, HANDLER.format("a"))
    found = scan_project(project, exclude=[pattern])
    assert ([module.name for module in found.modules], found.unmatched) == (left, ())
    assert scan_project(project, exclude=["scirpts"]).unmatched == ("scirpts",)


def test_a_list_of_modules_replaces_the_search(project):
    write(project, "handlers.py", HANDLER.format("a"))
    write(project, "plain.py", "print()")
    found = scan_project(project, modules=["plain", "elsewhere.handlers"])
    assert [module.name for module in found.modules] == ["plain", "elsewhere.handlers"]
    assert skipped_in(project, modules=["plain"]) == {"handlers.py": "discovery.modules does not name it"}
    assert not found.all_named


def test_two_files_that_are_one_module_are_refused_with_both_places(project):
    write(project, "app.py", HANDLER.format("a"))
    write(project, "src/app.py", HANDLER.format("b"))
    with pytest.raises(AssemblyError) as caught:
        scan_project(project).check(project)
    assert (caught.value.code, caught.value.where) == ("OCQ-518", f"{project}/app.py and {project}/src/app.py")


def test_a_folder_too_large_to_search_is_refused(project, monkeypatch):
    monkeypatch.setattr("opencqrs_py.assembly.discovery.project.MOST_ENTRIES", 10)
    for number in range(10):
        write(project, f"data/{number}.txt", "")
    scan_project(project / "data").check(project)
    with pytest.raises(AssemblyError, match="OCQ-527"):
        scan_project(project).check(project)


NAMED = """
from enum import StrEnum
from opencqrs_py import event_handling
from os import OTHER
NAME = "constant"
TWICE = "one"
TWICE = "two"
class Groups(StrEnum):
    BOOKS = "member"
for looped in ("a", "b"): ...
"""


@pytest.mark.parametrize(
    ("source", "groups", "all_named"),
    [
        ("@event_handling('a')\ndef f(e: dict): ...", ["a"], True),
        ("@event_handling(NAME)\ndef f(e: dict): ...", ["constant"], True),
        ("@event_handling(Groups.BOOKS)\ndef f(e: dict): ...", ["member"], True),
        ("class C:\n    @event_handling('b')\n    def f(self, e: dict): ...", ["b"], True),
        ("@event_handling(TWICE)\ndef f(e: dict): ...", [], False),
        ("@event_handling(OTHER)\ndef f(e: dict): ...", [], False),
        ("@event_handling(looped)\ndef f(e: dict): ...", [], False),
        ("def make(NAME):\n    @event_handling(NAME)\n    def f(e: dict): ...", [], False),
        ("def make():\n    @event_handling('a')\n    def f(e: dict): ...", ["a"], False),
        ("if NAME:\n    @event_handling('a')\n    def f(e: dict): ...", ["a"], False),
        (
            "class C:\n    @event_handling('b')\n    class D:\n        @event_handling\n        def f(self, e): ...",
            ["b"],
            True,
        ),
        ("from opencqrs_py import event_handling as on\n@on('a')\ndef f(e: dict): ...", [], False),
        ("on = event_handling\n@on('a')\ndef f(e: dict): ...", [], False),
        ("import opencqrs_py\non = opencqrs_py.event_handling\n@on('a')\ndef f(e: dict): ...", [], False),
        ("on = partial(event_handling, 'a')\n@on()\ndef f(e: dict): ...", [], False),
        ("@event_handling(**OTHER)\ndef f(e: dict): ...", [], False),
    ],
)
def test_groups_are_known_if_the_import_certainly_declares_them(project, source, groups, all_named):
    write(project, "handlers.py", NAMED + source)
    found = scan_project(project)
    assert (list(found.groups), found.all_named) == (groups, all_named)
    if groups:
        assert f"handlers.py:{len(NAMED.splitlines())}" < found.groups[groups[0]].rpartition("/")[2]


DECLARED = "from opencqrs_py import event_handling\n@event_handling('a')\ndef f(e: dict): ...\n"
MAKING = "from opencqrs_py import event_handling, job\ndef traced(name):\n    return {}(name)\n"


@pytest.mark.parametrize(
    ("source", "helpers", "is_known"),
    [
        ("", "", True),
        ("from dataclasses import dataclass\nimport sqlalchemy.orm, opencqrs_py.testing", "", True),
        ("from helpers import traced", "def traced(call):\n    return call\n", True),
        ("import helpers", "from opencqrs_py import event_type\n@event_type('t')\nclass T: ...", True),
        ("", "import shared", True),
        ("from shared import read_model", "", False),
        ("import shared.decorators as d", "", False),
        ("def on(name):\n    from shared import read_model", "", False),
        ("import importlib", "", False),
        ("from helpers import traced", "from shared import traced\n", False),
        ("import helpers", "def traced(x):\n    import shared as s\n", False),
        ("from helpers import traced", MAKING.format("event_handling"), False),
        ("import helpers as h", MAKING.format("job"), False),
    ],
)
def test_groups_and_jobs_are_unknown_if_other_code_may_declare_them(project, source, helpers, is_known):
    write(project, "handlers.py", DECLARED + source)
    write(project, "helpers.py", helpers)
    found = scan_project(project, modules=["handlers"])
    assert (found.all_named, found.may_have_jobs) == (is_known, not is_known)

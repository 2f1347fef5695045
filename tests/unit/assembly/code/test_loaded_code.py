"""A worker that has loaded different code from the driver refuses to run it."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from opencqrs_py import Application
from opencqrs_py.assembly.blueprint import UserModules
from opencqrs_py.assembly.code.loaded_code import NO_CODE, loaded_code
from opencqrs_py.assembly.container import GroupRecipe, group_container
from opencqrs_py.assembly.jobs.recipes import JobRecipe
from opencqrs_py.assembly.running import group_run
from opencqrs_py.errors import CodeChangedError
from opencqrs_py.model.choices import JobTransaction

HANDLERS = '''
"""Handlers."""
from loaded_helper import price
from opencqrs_py import JobContext, event_handling, job

LIMIT = 10

def items():
    return [1]

@event_handling("books", types=["lent"])
def lend(event: dict) -> None:
    """Lend a book."""
    assert price(1) < LIMIT  # cheap

@job("count", input=items)
def count(context: JobContext) -> None: ...
'''
IMPORTS = """from loaded_helper import price
from opencqrs_py import JobContext, event_handling, job"""
HELPER = "def price(count):\n    return 2 * count\n"
NAMES = ("loaded_handlers", "loaded_helper", "loaded_unused")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in zip(NAMES, (HANDLERS, HELPER, "x = 1\n"), strict=True):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def module(project: Path) -> ModuleType:
    return importlib.import_module("loaded_handlers")


def run_in_another_process(recipe: GroupRecipe | JobRecipe, path: Path, folder: Path) -> str:
    """Build a recipe in a new process; return what it prints to stderr."""
    (folder / "recipe").write_bytes(pickle.dumps(recipe))
    code = (
        f"import pickle, sys; sys.path.insert(0, {str(path)!r}); pickle.load(open({str(folder / 'recipe')!r}, 'rb'))()"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False, cwd=folder)
    return done.stderr


def recipe_of(module: ModuleType, project: Path, engine: str = "spark") -> GroupRecipe:
    settings = {"database.url": "sqlite:///x.db", "event-handling.standard.processing.engine": engine}
    application = Application(settings, [module], project)
    (group,), container = application.groups, application.container
    recipe = group_run(application.blueprint, group, group_container(container, group), container, ()).recipe
    assert isinstance(recipe, GroupRecipe)
    return recipe


CHANGES = {
    "nothing": ("loaded_handlers", "", "", False),
    "a comment": ("loaded_handlers", "# cheap", "# not dear", False),
    "formatting": ("loaded_handlers", "LIMIT = 10", "\n\nLIMIT=(10)", False),
    "the order of imports": ("loaded_handlers", IMPORTS, "\n".join(reversed(IMPORTS.split("\n"))), False),
    "a docstring": ("loaded_handlers", "Lend a book.", "Lend one.", False),
    "a file that is not imported": ("loaded_unused", "1", "2", False),
    "a handler": ("loaded_handlers", "price(1)", "price(2)", True),
    "a constant": ("loaded_handlers", "10", "11", True),
    "an import": ("loaded_handlers", "import price", "import price, price as cost", True),
    "a helper of a handler": ("loaded_helper", "2 *", "3 *", True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_worker_that_starts_after_a_code_change_refuses_to_run(
    module: ModuleType, project: Path, change: str
) -> None:
    name, before, after, refused = CHANGES[change]
    known = loaded_code(UserModules((module.__name__,), (str(project),)))
    file = project / f"{name}.py"
    file.write_text(file.read_text().replace(before, after))
    known.check()  # a process that loaded the modules before the change
    for each in NAMES:
        sys.modules.pop(each, None)
    importlib.import_module(module.__name__)
    if not refused:
        known.check()
        return
    with pytest.raises(CodeChangedError, match=rf"OCQ-545.*changed since the run started.*: {name}\.py") as caught:
        known.check()
    assert caught.value.where == str(file)


@pytest.mark.release  # a worker of a group does so above
def test_workers_of_groups_and_jobs_detect_changed_files(module: ModuleType, project: Path) -> None:
    group = recipe_of(module, project)
    reference = f"{module.__name__}:count"
    job = JobRecipe(group.blueprint, "count", reference, JobTransaction.ITEM, group.code)
    assert run_in_another_process(job, project, project) == ""
    helper = project / "loaded_helper.py"
    helper.write_text(HELPER.replace("2", "3"))
    for recipe in (group, job):
        assert "[OCQ-545]" in run_in_another_process(recipe, project, project)
    helper.write_text(HELPER)
    assert run_in_another_process(group, project, project) == ""


def test_a_worker_elsewhere_with_the_same_code_in_an_archive_runs(
    module: ModuleType, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    recipe, elsewhere = recipe_of(module, project), tmp_path_factory.mktemp("elsewhere")
    with zipfile.ZipFile(elsewhere / "code.zip", "w") as archive:
        for name in NAMES:
            (project / f"{name}.py").rename(elsewhere / f"{name}.py")
            archive.write(elsewhere / f"{name}.py", f"{name}.py")
            (elsewhere / f"{name}.py").unlink()
    project.rename(elsewhere / "moved")
    try:
        assert run_in_another_process(recipe, elsewhere / "code.zip", elsewhere) == ""
    finally:
        (elsewhere / "moved").rename(project)


def test_groups_on_threads_are_not_fingerprinted(module: ModuleType, project: Path) -> None:
    assert recipe_of(module, project, "thread").code == NO_CODE


def test_the_main_module_and_modules_without_a_file_or_source_are_not_compared(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = ModuleType("loaded_unused")
    monkeypatch.setitem(sys.modules, "loaded_unused", without)
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.__spec__ = importlib.util.spec_from_file_location("loaded_handlers", project / "loaded_handlers.py")
    assert loaded_code(UserModules(("loaded_unused", "__main__"), (str(project),))) == NO_CODE


def test_a_reloaded_module_has_its_new_fingerprint(module: ModuleType, project: Path) -> None:
    modules = UserModules((module.__name__,), (str(project),))
    before = loaded_code(modules)
    file = project / "loaded_handlers.py"
    file.write_text(HANDLERS.replace("10", "11"))
    assert loaded_code(modules) == before
    importlib.reload(module)
    assert loaded_code(modules) != before

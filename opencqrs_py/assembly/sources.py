"""The user's source files: which of them hold handlers, told without running any."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SourceModule", "all_modules", "find_modules", "literal_groups"]

_SKIPPED = {"__pycache__", "build", "dist", "node_modules", "tests"}
_MARKS_OF_USE = ("opencqrs_py", "dependency_injector")  # handlers, and containers for them
_DECORATORS = {"event_handling"}  # what @on_start names needs handlers to run


@dataclass(frozen=True, slots=True)
class SourceModule:
    """A Python file of the project.

    Attributes:
        name: Dotted module name.
        path: The file.
        root: Folder that must be on ``sys.path`` to import it.
        imports: Names of the modules that it imports.
        groups: Processing groups that its decorators name as literals.
    """

    name: str
    path: Path
    root: Path
    imports: frozenset[str]
    groups: frozenset[str]


def find_modules(project: Path) -> list[SourceModule]:
    """Return the modules of a project that use this package, themselves or through another module of the project.

    Looked at are the Python files and packages in the project folder and in its ``src``; not tests, hidden folders or
    virtual environments. A script that imports neither this package nor dependency-injector is never run.
    """
    everything = all_modules(project)
    using = {m.name for m in everything if any(_within(i, p) for i in m.imports for p in _MARKS_OF_USE)}
    while more := {m.name for m in everything if m.name not in using and m.imports & using}:
        using |= more
    return [module for module in everything if module.name in using]


def all_modules(project: Path) -> list[SourceModule]:
    """Return every module of the project, also those that do not use this package."""
    return [module for root in (project, project / "src") for module in _modules(root)]


def literal_groups(modules: Iterable[SourceModule]) -> tuple[str, ...]:
    """Return the group names that decorators give as literals, sorted: known without importing anything."""
    return tuple(sorted({group for module in modules for group in module.groups}))


def _modules(root: Path) -> Iterator[SourceModule]:
    if not root.is_dir():
        return
    for entry in sorted(root.iterdir()):
        if entry.suffix == ".py" and not _is_test(entry):
            yield _parsed(entry, entry.stem, root)
        elif entry.is_dir() and (entry / "__init__.py").is_file() and entry.name not in _SKIPPED:
            yield from _package(entry, entry.name, root)


def _package(folder: Path, name: str, root: Path) -> Iterator[SourceModule]:
    for entry in sorted(folder.iterdir()):
        if entry.name == "__init__.py":
            yield _parsed(entry, name, root)
        elif entry.suffix == ".py" and not _is_test(entry):
            yield _parsed(entry, f"{name}.{entry.stem}", root)
        elif entry.is_dir() and (entry / "__init__.py").is_file() and entry.name not in _SKIPPED:
            yield from _package(entry, f"{name}.{entry.name}", root)


def _is_test(file: Path) -> bool:
    return file.name.startswith(("test_", ".")) or file.name in ("conftest.py", "setup.py")


def _parsed(path: Path, name: str, root: Path) -> SourceModule:
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError):
        text = path.read_bytes()
        imports = frozenset({"opencqrs_py"}) if b"opencqrs_py" in text else frozenset[str]()
        return SourceModule(name, path, root, imports, frozenset())  # importing it will say what is wrong
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imports = frozenset(_imports(tree, package))
    return SourceModule(name, path, root, imports, frozenset(_groups(tree)))


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _groups(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_name(node.func) in _DECORATORS:
            named = [keyword.value for keyword in node.keywords if keyword.arg == "group"]
            for argument in (*node.args[:1], *named):
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value.strip()


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")

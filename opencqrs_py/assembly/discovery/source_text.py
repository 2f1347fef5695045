"""What a Python file says about itself: its imports, whether it counts, and the groups that it names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from opencqrs_py.assembly.code.normalised_source import parsed
from opencqrs_py.model.declarations import Declaration

_PACKAGE = b"opencqrs_py"
_CONTAINERS = "dependency_injector"
_NAME_GROUPS = {name for each in Declaration if each.value.names_groups for name in each.value.names}
_UNMISTAKABLE = {name for each in Declaration if each.value.unmistakable for name in each.value.names}
_JOB = re.compile(rb"\bjob\b")
_FROM_PACKAGE = rb"\bfrom\s*\.[.\s]*import\b"  # which does not name the package
_RUN = {name for each in Declaration if each.value.noun for name in each.value.names}
_DECORATORS = {name for each in Declaration for name in each.value.names}


@dataclass(frozen=True)
class SourceText:
    """A file as it is written. It is parsed only when there is reason to.

    Attributes:
        path: The file.
        name: Dotted module name.
        text: Its bytes; empty when it cannot be read.
        readable: Whether it can be read; if not, it counts, and its import says what is wrong.
    """

    path: Path
    name: str
    text: bytes
    readable: bool = True

    @cached_property
    def counts(self) -> bool:
        """Whether it uses a decorator of this package or dependency-injector itself."""
        marks = (_PACKAGE, _CONTAINERS.encode(), *(name.encode() for name in _UNMISTAKABLE))
        if not self.readable:
            return True
        if not any(mark in self.text for mark in marks):
            return False
        if self._tree is None:
            return _PACKAGE in self.text  # its import reports what is wrong
        names = set(_names(self._tree))
        uses_package = any(_within(name, _PACKAGE.decode()) for name in self.imports)
        imported = {name.rpartition(".")[2] for name in self.imports}
        return (
            self.containers
            or bool(imported & _UNMISTAKABLE)
            or (uses_package and bool(names & _DECORATORS or "opencqrs_py.*" in self.imports))
        )

    @property
    def names_groups(self) -> bool:
        """Whether it may contain a decorator that names a group."""
        return any(name.encode() in self.text for name in _NAME_GROUPS)

    @property
    def containers(self) -> bool:
        """Whether it imports dependency-injector."""
        return any(_within(name, _CONTAINERS) for name in self.imports)

    @property
    def may_have_jobs(self) -> bool:
        """Whether the word occurs anywhere in it; it may mean something else there, or be aliased elsewhere."""
        return not self.readable or _JOB.search(self.text) is not None

    @property
    def has_code_to_run(self) -> bool:
        """Whether it uses a decorator of handlers, jobs or the like by its own name."""
        return self.counts and (bool(self._named) or any(map(self._is_ours, self._run)))

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups that decorators of handlers name as literals or by constants of the file, each with its line."""
        return [(named.name.strip(), named.line) for named in self._named if named.name is not None]

    @property
    def all_named(self) -> bool:
        """Whether an import is sure to declare these groups, and its decorators of this package no others."""
        return self._tree is not None and all(named.name is not None and named.sure for named in self._named)

    def imports_one_of(self, modules: Collection[str]) -> bool:
        """Return whether it imports one of these modules."""
        last_names = {re.escape(name.rpartition(".")[2].encode()) for name in modules}
        may_import = re.search(b"|".join((*last_names, _FROM_PACKAGE)), self.text) is not None
        return may_import and not self.imports.isdisjoint(modules)

    @property
    def _run(self) -> set[str]:
        return _RUN.intersection(_decorators(self._tree)) if self._tree else set()

    def _is_ours(self, decorator: str) -> bool:
        """Return whether a decorator of such a name is of this package; others have a ``job``, too."""
        name = f"{_PACKAGE.decode()}.{decorator}"
        imported = not self.imports.isdisjoint({name, f"{_PACKAGE.decode()}.*"})
        return decorator in _UNMISTAKABLE or imported or name.encode() in self.text

    @cached_property
    def _tree(self) -> ast.Module | None:
        try:
            return parsed(self.text, str(self.path))  # type: ignore[no-any-return]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    @cached_property
    def imports(self) -> frozenset[str]:
        """The modules that it imports, and what it imports from modules, by full names."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        return frozenset(_imports(self._tree, package)) if self._tree else frozenset()

    @cached_property
    def _named(self) -> list[_Named]:
        if self._tree is None or not self.names_groups:
            return []
        return list(_groups(self._tree))


class _Named(NamedTuple):
    """A group: its name, ``None`` if only an import knows it; its line; whether an import is sure to declare it."""

    name: str | None
    line: int
    sure: bool


def read_source(path: Path, name: str) -> SourceText:
    """Return the text of a file; empty if it cannot be read, as its import reports what is wrong."""
    try:
        return SourceText(path, name, path.read_bytes())
    except OSError:
        return SourceText(path, name, b"", readable=False)


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]


def _decorators(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        for each in getattr(node, "decorator_list", ()):
            yield _last_name(each.func if isinstance(each, ast.Call) else each)


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


def _groups(tree: ast.Module) -> Iterator[_Named]:
    """Yield each group that is named, in the order of the lines; then one without a name for each other use."""
    known = _constants(tree)
    for call, sure in sorted(_calls(tree, sure=True), key=lambda found: found[0].lineno):
        if _last_name(call.func) in _NAME_GROUPS:
            named = [keyword.value for keyword in call.keywords if keyword.arg in ("group", None)]
            for argument in (*call.args[:1], *named):
                yield _Named(_text(argument, known), call.lineno, sure)
    yield from (_Named(None, line, sure=False) for line in _renamings(tree))


def _renamings(tree: ast.Module) -> Iterator[int]:
    """Yield the line of each decorator that gets another name, such as by ``import event_handling as on``."""
    nodes = list(ast.walk(tree))
    used = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    used.update(id(each) for node in nodes for each in getattr(node, "decorator_list", ()))
    for node in nodes:
        if isinstance(node, ast.alias):
            renamed = node.asname not in (None, node.name) and node.name.rpartition(".")[2] in _NAME_GROUPS
        elif isinstance(node, ast.expr):
            renamed = _last_name(node) in _NAME_GROUPS and id(node) not in used
        else:
            continue
        if renamed:
            yield node.lineno


def _calls(node: ast.AST, *, sure: bool) -> Iterator[tuple[ast.Call, bool]]:
    """Yield all calls, each with whether an import is sure to make it: not in a function, a branch or a loop."""
    if isinstance(node, ast.Call):
        yield node, sure
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for decorator in node.decorator_list:
            yield from _calls(decorator, sure=sure)
        sure = False
    below = sure and not isinstance(node, ast.If | ast.Try | ast.For | ast.While | ast.Match | ast.Lambda)
    decorators = getattr(node, "decorator_list", ()) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ()
    for child in ast.iter_child_nodes(node):
        if child not in decorators:
            yield from _calls(child, sure=below)


def _constants(tree: ast.Module) -> Mapping[str, str]:
    """Return the texts of names that the module, or a class such as an enum, sets once and nothing else sets."""
    bound = Counter(_bound_names(tree))
    values = dict(_texts(tree.body))
    known = {name: text for name, text in values.items() if bound[name] == 1}
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef) and bound[node.name] == 1):
        known.update((f"{cls.name}.{name}", text) for name, text in _texts(cls.body))
    return known


def _texts(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for node in body:
        yield from ((name, text) for name, value in _assigned(node) if (text := _text(value, {})) is not None)


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield each name as often as something may set it."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case _:
                continue


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value


def _text(node: ast.expr, known: Mapping[str, str]) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return known.get(name)
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return known.get(f"{owner}.{name}")
        case _:
            return None


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")

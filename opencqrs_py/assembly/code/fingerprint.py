"""Fingerprints of a project's code: of functions and classes, and all of the project that they use.

What counts is the source without comments, formatting, docstrings and places (:mod:`normalised_source`): of a function
or class, and of the functions, classes and constants of the project's own modules that it names, and that those name.
Of other packages only the names count. The values that constants and closures have at run time do not count, as they
may differ from machine to machine, but for functions of the project in collections, as decorators put them there.
"""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

from opencqrs_py.assembly.code.held_values import attributes_of, functions_in, is_plain
from opencqrs_py.assembly.code.normalised_source import (
    Chain,
    bindings_in,
    chains_in,
    compiled,
    imports_in,
    normalised,
    parsed,
)

_VERSION = "4"  # of the algorithm; with another one nothing is known of the code before
_DIGITS = 16  # hexadecimal ones of the hash that are kept
_OURS = "opencqrs_py"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


@dataclass(frozen=True, slots=True)
class OwnModules:
    """Which modules are the project's own.

    Attributes:
        names: Modules of the project; all below the same top-level packages are its own, too.
        roots: Folders of the project: modules in them are its own, unless they are installed there.
    """

    names: tuple[str, ...]
    roots: tuple[str, ...] = ()

    def include(self, name: str, spec: ModuleSpec) -> bool:
        """Return whether a module is one of them."""
        top = name.partition(".")[0]
        if top == _OURS or not spec.origin:
            return False
        if top in {each.partition(".")[0] for each in self.names}:
            return True
        path = Path(spec.origin)
        if _INSTALLED & {*path.parts} or any(path.is_relative_to(each) for each in _STANDARD):
            return False
        return any(path.is_relative_to(Path(root).resolve()) or path.is_relative_to(root) for root in self.roots)


@dataclass(frozen=True)
class _Module:
    """The source of a module of the project, parsed."""

    name: str
    package: str
    tree: ast.Module
    bindings: Mapping[str, Sequence[ast.stmt]] = field(repr=False)
    stars: tuple[ast.ImportFrom, ...] = ()
    registered: Mapping[str, Sequence[ast.stmt]] = field(default_factory=dict, repr=False)  # by @NAME.register


class CodeReader:
    """Reads what code of a project does. It parses each module once, as of its first use.

    Args:
        own: Which modules are the project's own.
    """

    def __init__(self, own: OwnModules) -> None:
        self._own = own
        self._modules: dict[str, _Module | None] = {}

    def fingerprint(self, members: Iterable[object], said: Iterable[str] = (), *, values: bool = False) -> str:
        """Return what identifies the code of functions, classes and objects, in any order.

        Args:
            members: What counts.
            said: Texts that are part of the fingerprint.
            values: Whether plain values count, too, that objects, partial functions and closures have.
        """
        texts = sorted({*self.texts(members, values=values), *said})
        return f"{_VERSION}:{sha256(chr(0).join(texts).encode('utf-8', 'surrogatepass')).hexdigest()[:_DIGITS]}"

    def texts(self, members: Iterable[object], *, values: bool = False) -> set[str]:
        """Return the texts that make up the code of functions, classes and objects."""
        walk = _Walk(self, values=values)
        for member in members:
            walk.add(member)
        return walk.texts

    def nodes(self, members: Iterable[object]) -> list[ast.AST] | None:
        """Return the source of functions, classes and objects with all that they use; ``None`` if some has none.

        Of the imports outside of them, it has those names (``ast.alias``) that are used.
        """
        walk = _Walk(self, values=False)
        for member in members:
            walk.add(member)
        return None if walk.lacks_source else walk.nodes

    def used_of(self, classes: Iterable[type], member: object) -> set[str]:
        """Return the texts of what a function uses of classes, by the names of attributes; not of their other parts."""
        walk, before = _Walk(self, values=True), -1
        walk.add(member)
        while before != len(walk.texts):  # what is used may use more
            before = len(walk.texts)
            walk.add_used({base for each in classes for base in each.__mro__})
        return walk.texts

    def module(self, name: str) -> _Module | None:
        """Return a module of the project, ``None`` if it is none, or there is no source."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def owns(self, name: str) -> bool:
        """Return whether a module is one of the project's."""
        spec = _spec_of(name)
        return spec is not None and self._own.include(name, spec)

    def may_contain(self, name: str) -> bool:
        """Return whether a package may have modules of the project: it is one of them, or has no file itself."""
        spec = _spec_of(name)
        return spec is not None and (spec.origin is None or self._own.include(name, spec))

    def _read(self, name: str) -> _Module | None:
        spec = _spec_of(name)
        if spec is None or not self._own.include(name, spec):
            return None
        try:
            loader: Any = spec.loader
            tree = parsed(loader.get_source(name))
        except Exception:  # of any loader: there is no source, or it is not what was imported
            return None
        bindings: dict[str, list[ast.stmt]] = {}
        for bound, statement in bindings_in(tree.body):
            if statement not in bindings.setdefault(bound, []):
                bindings[bound].append(statement)
        stars = tuple(each for each in bindings.pop("*", ()) if isinstance(each, ast.ImportFrom))
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        return _Module(name, package, tree, bindings, stars, _registered_in(tree))


class _Walk:
    """A walk through code: from functions and classes to all that they use of the project."""

    def __init__(self, reader: CodeReader, *, values: bool) -> None:
        self.texts: set[str] = set()
        self.nodes: list[ast.AST] = []
        self.lacks_source = False
        self._reader = reader
        self._values = values
        self._seen: set[int] = set()
        self._followed: set[Chain] = set()
        self._kept: list[object] = []  # so that no id is given twice

    def add(self, member: object) -> None:
        """Include a function, a class, or a callable object."""
        if id(member) in self._seen:
            return
        self._seen.add(id(member))
        self._kept.append(member)
        match member:
            case partial():
                self.add(member.func)
                self._add_values("partial", enumerate((*member.args, *sorted(member.keywords.items()))))
            case MethodType():
                self.add(member.__self__ if isinstance(member.__self__, type) else type(member.__self__))
                self.texts.add(f"method {member.__name__}")
                self._add_state(member.__self__)
            case staticmethod() | classmethod():
                self.add(member.__func__)
            case FunctionType():
                self._add_function(member)
            case type():
                self._add_class(member)
            case _ if inspect.isbuiltin(member):
                self.texts.add(f"name {_name_of(member)}")
            case _:  # an object that is called, such as one by which a decorator has replaced a function
                self.add(type(member))
                self._add_state(member, wraps=True)

    def add_used(self, classes: Iterable[type]) -> None:
        """Include the fields, properties and methods of classes that have the name of an attribute in the code."""
        known = "".join(self.texts)
        for cls in classes:
            module = self._reader.module(cls.__module__)
            for node in [] if module is None else module.bindings.get(cls.__qualname__, ()):
                for name, statement in bindings_in(node.body) if isinstance(node, ast.ClassDef) else ():
                    if f"(Attribute attr=<str {name!r}>" in known:
                        self._add_node(statement, module)

    def _add_function(self, function: FunctionType) -> None:
        code, home = function.__code__, str(function.__globals__.get("__name__", ""))
        module = self._reader.module(home)
        nodes = [] if module is None else _nodes_of(code, module)
        for node in nodes:
            self._add_node(node, module)
        if module is not None:
            for node in module.registered.get(code.co_qualname, ()):
                self._add_node(node, module)
        if not nodes:
            self.lacks_source |= self._reader.owns(home)
            self.texts.add(compiled(code) if self._reader.owns(home) else f"name {_name_of(function)}")
            wrapped = vars(function).get("__wrapped__")  # of singledispatch it is not in the closure
            if isinstance(wrapped, FunctionType):
                self.add(wrapped)
        self._add_closure(function)

    def _add_closure(self, function: FunctionType) -> None:
        """Include what a function closes over: functions, and objects of the project that wrap some."""
        values: list[tuple[str, object]] = []
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                held = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            if isinstance(held, FunctionType | MethodType | type | partial):
                self.add(held)
            else:
                values.append((name, held))
        self._add_values("closure", values, wraps=True)

    def _add_class(self, cls: type) -> None:
        module = self._reader.module(cls.__module__)
        found = [] if module is None else list(module.bindings.get(cls.__qualname__.partition(".")[0], ()))
        classes = [node for node in found if isinstance(node, ast.ClassDef)]
        for node in classes or found:
            self._add_node(node, module)
        if found:
            return
        self.texts.add(f"name {_name_of(cls)}")
        if self._reader.owns(cls.__module__):
            for value in vars(cls).values():
                if isinstance(value, FunctionType | staticmethod | classmethod):
                    self.add(value)

    def _add_state(self, instance: object, *, wraps: bool = False) -> None:
        """Include the plain values that an object was made with, and functions that it wraps."""
        if not isinstance(instance, type):
            self._add_values(type(instance).__qualname__, attributes_of(instance), wraps=wraps)

    def _add_values(self, owner: str, values: Iterable[tuple[object, object]], *, wraps: bool = False) -> None:
        if not self._values and not wraps:
            return
        for name, value in values:
            if is_plain(value):
                if self._values:
                    self.texts.add(f"value {owner} {name} {value!r}")
            elif isinstance(value, FunctionType | MethodType | type | partial) or (wraps and self._wraps(value)):
                self.add(value)

    def _wraps(self, value: object) -> bool:
        """Return whether a value is an object of the project's that is called."""
        return callable(value) and self._reader.owns(type(value).__module__)

    def _add_node(self, node: ast.AST, module: _Module | None) -> None:
        """Include a part of a module, and what it names."""
        if id(node) in self._seen or module is None:
            return
        self._seen.add(id(node))
        if not isinstance(node, ast.Import | ast.ImportFrom):
            self.texts.add(normalised(node))
            self.nodes.append(node)
        local = {name: each for each in imports_in(node) for name, _ in bindings_in([each])}
        for chain in sorted(set(chains_in(node))):
            self._add_chain(chain, module, local)

    def _add_chain(self, chain: Chain, module: _Module, local: Mapping[str, ast.Import | ast.ImportFrom]) -> None:
        """Include what a name refers to in a module, if the project has defined it."""
        name, *attributes = chain
        statements: Sequence[ast.stmt] = [local[name]] if name in local else module.bindings.get(name, ())
        for statement in statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self.nodes += [alias for alias in statement.names if (alias.asname or alias.name) == name]
                for home, rest in _imported(statement, name, module.package):
                    self._add_imported(home, (*rest, *attributes))
            else:
                self._add_node(statement, module)
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    self._add_held(module, name)
        for statement in module.registered.get(name, ()):
            self._add_node(statement, module)
        if not statements:
            for star in module.stars:
                home = _absolute(star, module.package)
                found = self._reader.module(home)
                if found is not None and found is not module and (name in found.bindings or found.stars):
                    self._add_chain(chain, found, {})

    def _add_held(self, module: _Module, name: str) -> None:
        """Take in the functions that a value of a module holds, as a decorator may have put them there."""
        for held in functions_in(vars(sys.modules.get(module.name)).get(name), self._reader.owns):
            if self._reader.owns(held.__module__):
                self.add(held)

    def _add_imported(self, home: str, names: Chain) -> None:
        """Include an import: from a module of the project the definition, from others the name."""
        module = self._reader.module(home)
        if names and (module is None or names[0] not in module.bindings):
            inner = f"{home}.{names[0]}"
            if self._reader.may_contain(home) and self._reader.owns(inner):
                self._add_imported(inner, names[1:])
                return
        if module is None:
            loaded = sys.modules.get(home) if names and self._reader.owns(home) else None
            found = getattr(loaded, names[0], None) if names else None
            if isinstance(found, FunctionType | type):
                self.add(found)  # of a module without source
            else:
                self.texts.add(f"name {_public(home, names[0]) if names else home}")
        elif not names:  # the module itself, of which anything may be taken
            for name in module.bindings:
                self._add_imported(home, (name,))
        elif (home, *names) not in self._followed:
            self._followed.add((home, *names))
            self._add_chain(names, module, {})


def _registered_in(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    """Return what a module registers by ``NAME.register``, a decorator or a call, as of ``singledispatch``, by name."""
    found: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for decorator in [node.value] if isinstance(node, ast.Expr) else getattr(node, "decorator_list", ()):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(called, ast.Attribute) and called.attr == "register" and isinstance(called.value, ast.Name):
                found.setdefault(called.value.id, []).append(node)
    return found


def _spec_of(name: str) -> ModuleSpec | None:
    """Return where a module comes from; one that is not imported yet is looked for, and is not imported either."""
    if name in sys.modules:
        spec: ModuleSpec | None = getattr(sys.modules[name], "__spec__", None)
        return spec
    parent = name.rpartition(".")[0]
    path: Sequence[str] | None = None
    if parent:
        above = _spec_of(parent)
        if above is None or above.submodule_search_locations is None:
            return None
        path = above.submodule_search_locations
    return PathFinder.find_spec(name, path)


def _absolute(statement: ast.ImportFrom, package: str) -> str:
    if not statement.level:
        return statement.module or ""
    base = package.rsplit(".", statement.level - 1)[0] if statement.level > 1 else package
    return f"{base}.{statement.module}" if statement.module else base


def _imported(statement: ast.Import | ast.ImportFrom, name: str, package: str) -> Iterator[tuple[str, Chain]]:
    """Yield the module, and what is taken of it, that an import binds to a name."""
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            if (alias.asname or alias.name) == name:
                yield _absolute(statement, package), (alias.name,)
        elif alias.asname == name:
            yield alias.name, ()
        elif alias.asname is None and alias.name.partition(".")[0] == name:
            yield name, ()


def _nodes_of(code: CodeType, module: _Module) -> list[ast.AST]:
    """Return the nodes of a function in its module, including outer ones, which may define what it uses."""
    line = code.co_firstlineno
    if code.co_name == "<lambda>":
        lambdas = [each for each in ast.walk(module.tree) if isinstance(each, ast.Lambda) and each.lineno == line]
        if not code.co_freevars:
            return [*lambdas]
    named: list[ast.AST] = [*module.bindings.get(code.co_qualname.partition(".")[0], ())]
    there = [each for each in named if _first_line(each) <= line <= (getattr(each, "end_lineno", 0) or 0)]
    return there or named


def _first_line(node: ast.AST) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([getattr(node, "lineno", 0), *(each.lineno for each in decorators)])


def _name_of(member: object) -> str:
    named: Any = member if hasattr(member, "__qualname__") else type(member)
    return _public(str(getattr(named, "__module__", "")), named.__qualname__)


def _public(module: str, name: str) -> str:
    """Return how something of another package is named; of ours without its module, which users need not care about."""
    return f"{_OURS if module.partition('.')[0] == _OURS else module}.{name}"

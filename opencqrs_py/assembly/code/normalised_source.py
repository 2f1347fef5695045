"""Python source as far as it says what the code does: without comments, formatting, docstrings and places.

The texts are the same on every Python that this package runs on, unlike those of ``ast.dump``. Only where there is no
source, the compiled code takes its place, which each version of Python writes in another way.
"""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from opencqrs_py.model.collector import collector_waits

Chain = tuple[str, ...]
"""A name and the attributes that are looked up on it, such as ``("helpers", "price")``."""

_LEFT_OUT = frozenset({"ctx", "type_comment", "kind", "type_ignores"})
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_NAMED = (
    ast.ExceptHandler,
    ast.MatchAs,
    ast.MatchStar,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def normalised(node: ast.AST) -> str:
    """Return what a piece of source does as a text; two pieces that do the same may still have two texts."""
    return "".join(_texts(node))


def compiled(code: CodeType) -> str:
    """Return what a function without source does as a text, for this version of Python."""
    return f"code {sys.version_info.major}.{sys.version_info.minor} {_code_text(code)}"


def _code_text(value: object) -> str:
    """Return a code's instructions with the constants themselves, as a docstring may shift their numbers."""
    match value:
        case CodeType():
            steps = [f"{each.opname} {_code_text(each.argval)}" for each in dis.get_instructions(value)]
            return repr((value.co_varnames, steps))
        case frozenset():
            return repr(sorted(map(repr, value)))
        case _:
            return repr(value)


def _texts(value: object) -> Iterator[str]:
    match value:
        case ast.JoinedStr():
            yield f"(JoinedStr {''.join(_of_parts(value.values))})"
        case ast.Constant():
            yield _constant(value.value)
        case ast.AST():
            yield f"({type(value).__name__}"
            for name in sorted({*value._fields} - _LEFT_OUT):
                below = getattr(value, name, None)
                if below is not None and below != []:
                    yield f" {name}="
                    yield from _texts(below)
            yield ")"
        case list():
            yield "["
            for each in value:
                if not _says_nothing(each):
                    yield from _texts(each)
            yield "]"
        case _:
            yield _constant(value)


def _of_parts(parts: Iterable[ast.expr]) -> Iterator[str]:
    """Yield the texts of an f-string's parts, with texts beside each other as one: Python's versions cut them apart."""
    text = ""
    for part in parts:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        if text:
            yield _constant(text)
        text = ""
        yield from _texts(part)
    if text:
        yield _constant(text)


def _constant(value: object) -> str:
    shown = hex(value) if type(value) is int else repr(value)
    return f"<{type(value).__name__} {shown}>"


def _says_nothing(node: object) -> bool:
    """Return whether a statement does not count: ``pass``, a constant such as a docstring, or an import.

    What an import brings counts where it is used.
    """
    if isinstance(node, ast.Pass | ast.Import | ast.ImportFrom):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def chains_in(node: ast.AST) -> Iterator[Chain]:
    """Yield what a piece of source looks up outside of itself.

    Annotations of functions do not count, since they describe arguments; those of the fields of classes do.
    """
    yield from _chains(node, frozenset(), in_class=False)


def imports_in(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports within a piece of source."""
    return (each for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom))


def _chains(node: ast.AST, bound: frozenset[str], *, in_class: bool) -> Iterator[Chain]:
    match node:
        case ast.Attribute() | ast.Name():
            chain = _chain(node)
            if chain is None:
                yield from _chains_below(node, bound, in_class=in_class)
            elif chain[0] not in bound and isinstance(node.ctx, ast.Load):
                yield chain
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            yield from _chains_of_function(node, bound)
        case ast.ClassDef():
            yield from _chains_of_class(node, bound)
        case ast.AnnAssign():
            looked_at = [node.target, *([_unquoted(node.annotation)] if in_class else []), node.value]
            for each in looked_at:
                if each is not None:
                    yield from _chains(each, bound, in_class=False)
        case _:
            yield from _chains_below(node, bound, in_class=in_class)


def _chains_below(node: ast.AST, bound: frozenset[str], *, in_class: bool) -> Iterator[Chain]:
    for below in ast.iter_child_nodes(node):
        yield from _chains(below, bound, in_class=in_class)


def _chains_of_class(node: ast.ClassDef, bound: frozenset[str]) -> Iterator[Chain]:
    for each in (*node.decorator_list, *node.bases, *node.keywords):
        yield from _chains(each, bound, in_class=False)
    own = frozenset(_bound_in(node.body))
    for statement in node.body:  # methods do not see the names of their class
        seen = bound if isinstance(statement, _SCOPES) else bound | own
        yield from _chains(statement, seen, in_class=True)


def _chains_of_function(node: Function, bound: frozenset[str]) -> Iterator[Chain]:
    arguments = node.args
    outside: list[ast.expr] = [*arguments.defaults, *(each for each in arguments.kw_defaults if each is not None)]
    body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else [*node.body]
    if not isinstance(node, ast.Lambda):
        outside += node.decorator_list
    for each in outside:
        yield from _chains(each, bound, in_class=False)
    taken = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    inner = bound | {each.arg for each in taken if each is not None} | frozenset(_bound_in(body))
    for statement in body:
        yield from _chains(statement, inner, in_class=False)


def _chain(node: ast.expr) -> Chain | None:
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return (node.id, *reversed(attributes)) if isinstance(node, ast.Name) else None


def _bound_in(body: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that statements bind in their own scope. Imports bind none here: they are followed."""
    for node in body:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, _NAMED) and node.name:
            yield node.name
        if not isinstance(node, _SCOPES):
            yield from _bound_in(ast.iter_child_nodes(node))


def parsed(text: str | bytes, path: str = "<unknown>", mode: str = "exec") -> Any:
    """Return the tree of a source text, as ``ast.parse`` does."""
    with collector_waits():
        return ast.parse(text, path, mode)


def _unquoted(annotation: ast.expr) -> ast.expr:
    """Return an annotation that is written as a text as if it were none."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return parsed(annotation.value, mode="eval").body  # type: ignore[no-any-return]
        except SyntaxError:
            return annotation
    return annotation


def bindings_in(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each name that statements of a module bind or change, with the statement; those below ``if`` too."""
    for statement in body:
        for name in dict.fromkeys(_names_bound_by(statement)):
            yield name, statement
        if not isinstance(statement, _SCOPES):
            yield from bindings_in(_statements(ast.iter_child_nodes(statement)))


def _names_bound_by(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield statement.name
        case ast.Import() | ast.ImportFrom():
            whole = isinstance(statement, ast.ImportFrom)
            for alias in statement.names:
                yield alias.asname or (alias.name if whole else alias.name.partition(".")[0])
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                yield from _roots(target)
        case ast.Expr(value=ast.Call(func=function)):  # such as TABLE.update(…)
            chain = _chain(function)
            if chain is not None and len(chain) > 1:
                yield chain[0]
        case _:
            yield from _bound_by_header(statement)


def _bound_by_header(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that ``for`` and ``with`` bind."""
    if isinstance(statement, ast.For):
        yield from _roots(statement.target)
    if isinstance(statement, ast.With):
        for item in statement.items:
            if item.optional_vars is not None:
                yield from _roots(item.optional_vars)


def _statements(nodes: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    for node in nodes:
        if isinstance(node, ast.stmt):
            yield node
        elif not isinstance(node, ast.expr):  # a handler of exceptions, or a case
            yield from _statements(ast.iter_child_nodes(node))


def _roots(target: ast.AST) -> Iterator[str]:
    match target:
        case ast.Name():
            yield target.id
        case ast.Attribute() | ast.Subscript() | ast.Starred():
            yield from _roots(target.value)
        case ast.Tuple() | ast.List():
            for each in target.elts:
                yield from _roots(each)

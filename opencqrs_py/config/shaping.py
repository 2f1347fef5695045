"""Whether a value has the shape of its setting: single, list, or section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Entry, Nothing, Value, flattened
from opencqrs_py.config.names import PREFIX, kebab, listed
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.sources.json_text import parsed_json
from opencqrs_py.config.tree import FreeNames, Leaf, ListLeaf, Node, Path, Section, display, leaves, node_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opencqrs_py.config.matching import Reading
    from opencqrs_py.config.origin import Origin

__all__ = ["Bound", "fits", "holds_section", "json_entries", "shaped"]


@dataclass(frozen=True, slots=True)
class Bound:
    """A value and the setting that it is for.

    Args:
        path: Path of the setting, free names in their known spelling.
        value: What the source says: a text, a tuple of texts, ``None``, any object from code; ``Nothing.SECTION``
            says only that there is a section.
        origin: Where it says so.
        index: Place in a list, from 0; ``None`` for the whole.
    """

    path: Path
    value: Value
    origin: Origin
    index: int | None = None


def fits(reading: Reading, value: Value) -> bool:
    """Return whether ``value`` looks like a section exactly when ``reading`` means one."""
    is_section = value is Nothing.SECTION or (isinstance(value, str) and value.lstrip().startswith("{"))
    return is_section == isinstance(reading.node, Section | FreeNames)


def holds_section(reading: Reading, value: Value) -> bool:
    """Return whether ``value`` is the text of a whole section, which JSON it has to be."""
    return isinstance(reading.node, Section | FreeNames) and isinstance(value, str) and fits(reading, value)


def json_entries(reading: Reading, entry: Entry, root: Node, findings: Findings) -> list[Entry]:
    """Return the entries of the JSON object that ``entry`` holds for the section of ``reading``."""
    try:
        content = parsed_json(str(entry.value))
    except ValueError as error:
        findings.error(
            Code.WRONG_SHAPE,
            f"{_shown(root, reading.path)} holds broken JSON: {error}",
            entry.origin,
            "mend the JSON",
        )
        return []
    return list(flattened(content, entry.origin)) if isinstance(content, Mapping) else []


def shaped(reading: Reading, entry: Entry, root: Node, findings: Findings) -> Iterator[Bound]:
    """Yield what ``entry`` sets, or note that its value has the wrong shape."""
    if entry.value is Nothing.UNSET:
        return
    bound = Bound(reading.path, entry.value, entry.origin, reading.index)
    match reading.node:
        case Leaf():
            found = _single(bound)
        case ListLeaf():
            found = _single(bound) if reading.index is not None else _many(bound)
        case node:
            found = _section(bound, node, root)
    if isinstance(found, str):
        findings.error(Code.WRONG_SHAPE, f"{_shown(root, reading.path)} {found}", entry.origin, _fix(reading.node))
    else:
        yield from found


def _shown(root: Node, path: Path) -> str:
    return display(root, path) or PREFIX


def _single(bound: Bound) -> list[Bound] | str:
    match bound.value:
        case Nothing.EMPTY:
            return [replace(bound, value=None)]
        case Nothing() | tuple():
            return "is a single value, not a list or a section"
        case _:
            return [bound]


def _many(bound: Bound) -> list[Bound] | str:
    match bound.value:
        case Nothing.EMPTY:
            return [replace(bound, value=None)]
        case Nothing():
            return "is a list of single values"
        case str(text) if text.lstrip().startswith("["):
            return _json_list(bound, text)
        case _:
            return [bound]


def _json_list(bound: Bound, text: str) -> list[Bound] | str:
    try:
        items = parsed_json(text)
    except ValueError as error:
        return f"holds broken JSON: {error}"
    if isinstance(items, list) and all(isinstance(item, str) for item in items):
        return [replace(bound, value=tuple(items))]
    return "is a list of texts"


def _section(bound: Bound, node: Node, root: Node) -> list[Bound] | str:
    match bound.value:
        case Nothing.EMPTY | Nothing.SECTION:
            return [replace(bound, value=Nothing.SECTION)]
        case None if isinstance(node, Section) and _is_field(bound.path, root):
            return [
                replace(bound, path=(*bound.path, *path))
                for path, leaf in leaves(node)
                if isinstance(leaf, Leaf | ListLeaf)
            ]
        case None:
            return [replace(bound, value=Nothing.SECTION)]
        case _:
            return "is a section, not a single value or a list"


def _is_field(path: Path, root: Node) -> bool:
    """Return whether ``path`` ends in the name of a field, not in a free name."""
    return bool(path) and isinstance(node_at(root, path[:-1]), Section)


def _fix(node: Node) -> str:
    if isinstance(node, Section):
        names = [kebab(child.name) for child in node.children.values() if not child.former]
        return f"put one of its settings below it: {listed(names)}"
    if isinstance(node, FreeNames):
        return "put a name and its settings below it"
    return "write one value" if isinstance(node, Leaf) else "write a list of texts, or texts with commas between them"

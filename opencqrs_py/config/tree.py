"""The shape of the settings: sections, maps, lists and leaves, derived from the models.

The binder goes by this tree when it maps a spelling to a setting. A path is a tuple of field names and, below a map,
of free names such as group names: ``("event_handling", "groups", "books", "fetch", "subject")``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from opencqrs_py.config.names import canonical, kebab
from opencqrs_py.config.value_types import NO_FACT, Fact

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Child",
    "FreeNames",
    "Leaf",
    "ListLeaf",
    "Node",
    "Path",
    "Section",
    "display",
    "leaves",
    "node_at",
    "steps",
    "tree_of",
]

Path: TypeAlias = tuple[str, ...]
"""Field names and free names, from the root of the settings."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A setting with one value.

    Args:
        nullable: Whether ``None`` is a value of it, so that ``null`` can reset what is inherited.
        choices: The words that it allows; empty when it is no choice.
        secret: Whether its value must never be shown.
        fact: What else the model says of it.
    """

    nullable: bool = False
    choices: tuple[str, ...] = ()
    secret: bool = False
    fact: Fact = NO_FACT


@dataclass(frozen=True, slots=True)
class ListLeaf:
    """A setting that is a list of values; ``fact`` is what else the model says of it."""

    fact: Fact = NO_FACT


@dataclass(frozen=True, slots=True)
class FreeNames:
    """A map whose keys are names that the user chooses."""

    value: Node


@dataclass(frozen=True, slots=True)
class Section:
    """A model: its children by the canonical form of their names, former names included."""

    model: type
    children: dict[str, Child] = field(default_factory=dict)


Node: TypeAlias = Leaf | ListLeaf | FreeNames | Section


@dataclass(frozen=True, slots=True)
class Child:
    """A field of a section; ``former`` is the earlier name by which it was found, if any."""

    name: str
    node: Node
    former: str = ""


@cache
def tree_of(model: type) -> Section:
    """Return the tree of ``model``."""
    section = Section(model)
    for name, info in fields_of(model).items():
        annotation, facts = _unwrapped(info.annotation, info)
        node = _node(annotation, facts, nullable=NoneType in get_args(info.annotation))
        for former in _fact(facts).formerly:
            section.children[canonical(former)] = Child(name, node, former)
        section.children[canonical(name)] = Child(name, node)
    return section


def fields_of(model: type) -> dict[str, FieldInfo]:
    """Return the fields of a model, or of a dataclass that pydantic validates."""
    if issubclass(model, BaseModel):
        return dict(model.model_fields)
    hints = get_type_hints(model, include_extras=True)
    return {each.name: FieldInfo.from_annotated_attribute(hints[each.name], each) for each in fields(model)}  # type: ignore[arg-type]


def node_at(root: Node, path: Path) -> Node:
    """Return the node at ``path``.

    Raises:
        KeyError: There is no such path.
    """
    node = root
    for name in path:
        match node:
            case Section():
                node = node.children[canonical(name)].node
            case FreeNames():
                node = node.value
            case _:
                raise KeyError(name)
    return node


def steps(root: Node, path: Path) -> Iterator[tuple[str, Node]]:
    """Yield each name of ``path`` with the node that it stands in: a section, or a map of free names.

    Raises:
        KeyError: There is no such path.
    """
    node = root
    for name in path:
        yield name, node
        node = node_at(node, (name,))


def leaves(node: Node, path: Path = ()) -> Iterator[tuple[Path, Leaf | ListLeaf | FreeNames]]:
    """Yield every leaf, and every map instead of what is in it, with its path."""
    match node:
        case Section():
            for child in node.children.values():
                if not child.former:
                    yield from leaves(child.node, (*path, child.name))
        case _:
            yield path, node


def display(root: Node, path: Path) -> str:
    """Return ``path`` as a dotted key in kebab case; a group name that holds a dot stands in brackets."""
    parts = (
        f"[{name}]" if _needs_brackets(name, parent) else f".{kebab(name) if isinstance(parent, Section) else name}"
        for name, parent in steps(root, path)
    )
    return "".join(parts).removeprefix(".")


def _needs_brackets(name: str, parent: Node) -> bool:
    return isinstance(parent, FreeNames) and not isinstance(parent.value, Leaf) and bool(re.search(r"[.\[\]]", name))


def _unwrapped(annotation: Any, info: FieldInfo) -> tuple[Any, list[object]]:
    """Return the annotation without ``None`` and ``Annotated``, and the metadata that stood on the way."""
    facts = list(info.metadata)
    options = [option for option in get_args(annotation) if option is not NoneType]
    if NoneType in get_args(annotation) and len(options) == 1:
        annotation = options[0]
    while get_origin(annotation) is Annotated:
        annotation, *metadata = get_args(annotation)
        facts.extend(metadata)
    return annotation, facts


def _node(annotation: Any, facts: list[object], *, nullable: bool) -> Node:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return tree_of(annotation)
    if origin is dict:
        return FreeNames(_node(arguments[1], [], nullable=False))
    if origin in {list, tuple, set, frozenset}:
        return ListLeaf(_fact(facts))
    is_class = isinstance(annotation, type)
    choices = tuple(str(member.value) for member in annotation) if is_class and issubclass(annotation, Enum) else ()
    secret = is_class and issubclass(annotation, SecretStr | SecretBytes)
    return Leaf(nullable, choices, secret, _fact(facts))


def _fact(facts: list[object]) -> Fact:
    """Return the facts of a field as one: those nearest to the field count."""
    known = [fact for fact in facts if isinstance(fact, Fact)]
    return Fact(
        unit=next((fact.unit for fact in known if fact.unit), ""),
        is_url=any(fact.is_url for fact in known),
        is_duration=any(fact.is_duration for fact in known),
        none=next((fact.none for fact in known if fact.none != NO_FACT.none), NO_FACT.none),
        in_documents_only=any(fact.in_documents_only for fact in known),
        formerly=tuple(name for fact in known for name in fact.formerly),
    )

"""How a key is read: every setting that its pieces can mean.

A key is a tuple of written keys, each a tuple of the pieces that it splits into. In a YAML file
``groups: {v1.2: {fetch.subject: /}}`` is ``(("groups",), ("v1", "2"), ("fetch", "subject"))``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from opencqrs_py.config.names import canonical
from opencqrs_py.config.tree import Child, FreeNames, Leaf, ListLeaf, Node, Path, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Dialect", "Key", "Reading", "children_by_span", "free_names_by_span", "readings", "without"]

Key: TypeAlias = tuple[tuple[str, ...], ...]
"""Written keys, each as the pieces that it splits into; no written key is without a piece."""


class Dialect(Enum):
    """How pieces make up names; the value is what stood between them.

    ``DOTTED``: the name of a setting is one piece; a free name may hold dots (``groups.v1.2.fetch``).
    ``VARIABLE``: each name may be several pieces (``GROUPS_BOOK_CATALOG_LIFE_CYCLE``), case is lost.
    """

    DOTTED = "."
    VARIABLE = "_"


@dataclass(frozen=True, slots=True)
class Reading:
    """One meaning of a key.

    Args:
        path: Field names, and free names as the key says them.
        node: What stands at the path.
        index: Place in a list, from 0; ``None`` when the key means the whole.
        former: Earlier name of a field that the key uses; empty when it uses none.
    """

    path: Path
    node: Node
    index: int | None = None
    former: str = ""

    def below(self, name: str, former: str = "") -> Reading:
        """Return this reading as seen from one level up."""
        return Reading((name, *self.path), self.node, self.index, self.former or former)

    def at(self, path: Path) -> Reading:
        """Return this reading with another path."""
        return Reading(path, self.node, self.index, self.former)


def readings(node: Node, key: Key, dialect: Dialect) -> Iterator[Reading]:
    """Yield everything that ``key`` can mean below ``node``."""
    if not key:
        yield Reading((), node)
        return
    match node:
        case Section():
            for child, rest in children_by_span(node, key, dialect):
                for reading in readings(child.node, rest, dialect):
                    yield reading.below(child.name, child.former)
        case FreeNames():
            for name, rest in free_names_by_span(node, key, dialect):
                for reading in readings(node.value, rest, dialect):
                    yield reading.below(name)
        case ListLeaf() if len(key) == len(key[0]) == 1 and key[0][0].isdecimal():
            yield Reading((), node, int(key[0][0]))
        case _:
            return


def children_by_span(node: Section, key: Key, dialect: Dialect) -> Iterator[tuple[Child, Key]]:
    """Yield the children whose name the first pieces make up, each with the key that is left."""
    longest = len(key[0]) if dialect is Dialect.VARIABLE else 1
    for length in range(1, longest + 1):
        child = node.children.get(canonical("".join(key[0][:length])))
        if child is not None:
            yield child, without(key, length)


def free_names_by_span(node: FreeNames, key: Key, dialect: Dialect) -> Iterator[tuple[str, Key]]:
    """Yield the free names that the first pieces can make up, each with the key that is left."""
    is_variable = dialect is Dialect.VARIABLE
    if isinstance(node.value, Leaf):
        name = ".".join(piece for pieces in key for piece in pieces)
        yield name.lower().replace("_", ".") if is_variable else name, ()
        return
    for length in range(1, len(key[0]) + 1):
        name = dialect.value.join(key[0][:length])
        yield name.lower() if is_variable else name, without(key, length)


def without(key: Key, length: int) -> Key:
    """Return ``key`` without the first ``length`` pieces of its first written key."""
    left = key[0][length:]
    return (left, *key[1:]) if left else key[1:]

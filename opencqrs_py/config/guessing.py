"""What a key that names nothing was probably meant to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from opencqrs_py.config.matching import Dialect, Key, children_by_span, free_names_by_span, without
from opencqrs_py.config.names import alike, canonical, kebab, letters_and_digits
from opencqrs_py.config.tree import Child, FreeNames, ListLeaf, Node, Path, Section

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["DeadEnd", "Guess", "best_guess", "dead_end"]

_ALIKE = 0.6
_NEW_NAME = 0.95
_LEFT_OUT = 0.7
_WHOLE_SECTION = 0.5


@dataclass(frozen=True, slots=True)
class Guess:
    """A setting that a key may have meant.

    Args:
        score: How alike they are, up to 1.
        path: Path of the setting.
        wrong: How many names of ``path`` there are up to the first that the key does not say like that; 0 when there
            is none.
        meant: How many names of ``path`` say what was meant there; more than ``wrong`` when the key leaves one out.
        left: The key from that place on.
    """

    score: float
    path: Path = ()
    wrong: int = 0
    meant: int = 0
    left: Key = ()

    def below(self, name: str, likeness: float = 1.0) -> Guess:
        """Return this guess as seen from one level up, where the key says ``name`` as it should."""
        path = (name, *self.path)
        if not self.wrong:
            return Guess(self.score * likeness, path)
        return Guess(self.score * likeness, path, self.wrong + 1, self.meant + 1, self.left)

    def below_other(self, name: str, likeness: float, key: Key, meant: int) -> Guess:
        """Return this guess as seen from one level up, where ``key`` says something like ``name``, or leaves it out."""
        return Guess(self.score * likeness, (name, *self.path), 1, meant, key)


@dataclass(frozen=True, slots=True)
class DeadEnd:
    """Where a key stops to mean something.

    Args:
        left: The key from the first piece without a meaning on.
        path: What the pieces before it mean.
        allowed: What could stand there; empty when nothing could.
    """

    left: Key
    path: Path
    allowed: tuple[str, ...] = ()


def best_guess(node: Node, key: Key, dialect: Dialect, known: Collection[str]) -> Guess | None:
    """Return the most alike setting below ``node``, ``None`` when nothing is alike.

    Args:
        node: Where the key begins.
        key: The key.
        dialect: How pieces make up names.
        known: Letters and digits of the free names in use.
    """
    if not key:
        return Guess(_WHOLE_SECTION if isinstance(node, Section | FreeNames) else 1.0)
    match node:
        case Section():
            found = _guesses_in_section(node, key, dialect, known)
        case FreeNames():
            found = _guesses_of_names(node, key, dialect, known)
        case ListLeaf() if key[0][0].isdecimal():
            return Guess(1.0)
        case _:
            return None
    return max(found, key=lambda guess: guess.score, default=None)


def dead_end(node: Node, key: Key) -> DeadEnd:
    """Return where the dotted ``key``, which means nothing below ``node``, goes wrong."""
    path: Path = ()
    left = key
    while len(left) > 1 or len(left[0]) > 1:
        match node:
            case Section(children=children) if canonical(left[0][0]) in children:
                child = children[canonical(left[0][0])]
                node, path = child.node, (*path, child.name)
            case FreeNames():
                node, path = node.value, (*path, left[0][0])
            case _:
                break
        left = without(left, 1)
    below = node.children.values() if isinstance(node, Section) else ()
    return DeadEnd(left, path, tuple(sorted(kebab(child.name) for child in below if not child.former)))


def _guesses_in_section(node: Section, key: Key, dialect: Dialect, known: Collection[str]) -> Iterator[Guess]:
    exact = list(children_by_span(node, key, dialect))
    for child, rest in exact:
        guess = best_guess(child.node, rest, dialect, known)
        if guess:
            yield guess.below(child.name)
    if exact:
        return
    for likeness, child, rest in _alike_children(node, key, dialect):
        guess = best_guess(child.node, rest, dialect, known)
        if guess:
            yield guess.below_other(child.name, likeness, key, meant=1)
    for child in _skipped_children(node, key, dialect):
        guess = best_guess(child.node, key, dialect, known)
        if guess:
            yield guess.below_other(child.name, _LEFT_OUT, key, meant=2)


def _alike_children(node: Section, key: Key, dialect: Dialect) -> Iterator[tuple[float, Child, Key]]:
    longest = len(key[0]) if dialect is Dialect.VARIABLE else 1
    for length in range(1, longest + 1):
        name = canonical("".join(key[0][:length]))
        for spelling, child in node.children.items():
            likeness = alike(name, spelling)
            if likeness >= _ALIKE and not child.former:
                yield likeness, child, without(key, length)


def _skipped_children(node: Section, key: Key, dialect: Dialect) -> Iterator[Child]:
    """Yield the sections whose name may have been left out, since what comes first stands in them."""
    for child in node.children.values():
        if isinstance(child.node, Section) and not child.former and any(children_by_span(child.node, key, dialect)):
            yield child


def _guesses_of_names(node: FreeNames, key: Key, dialect: Dialect, known: Collection[str]) -> Iterator[Guess]:
    for name, rest in free_names_by_span(node, key, dialect):
        guess = best_guess(node.value, rest, dialect, known)
        if guess:
            likeness = 1.0 if letters_and_digits(name) in known else _NEW_NAME
            yield guess.below(name, likeness)

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
_WHOLE_SECTION = 0.5


@dataclass(frozen=True, slots=True)
class Guess:
    """A setting that a key may have meant.

    Args:
        score: How alike they are, up to 1.
        path: Path of the setting.
        wrong: How many names of ``path`` there are up to the first that the key spells differently; 0 when none does.
    """

    score: float
    path: Path = ()
    wrong: int = 0

    def below(self, name: str, likeness: float, *, exact: bool) -> Guess:
        """Return this guess as seen from one level up."""
        deeper = self.wrong + 1 if self.wrong else 0
        return Guess(self.score * likeness, (name, *self.path), deeper if exact else 1)


@dataclass(frozen=True, slots=True)
class DeadEnd:
    """Where a key stops to mean something.

    Args:
        index: Which written key it is, from 0.
        piece: The first piece without a meaning.
        path: What the pieces before it mean.
        allowed: What could stand there; empty when nothing could.
    """

    index: int
    piece: str
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
        is_vague = dialect is Dialect.VARIABLE and isinstance(node, Section | FreeNames)
        return Guess(_WHOLE_SECTION if is_vague else 1.0)
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


def dead_end(node: Node, key: Key, known: Collection[str]) -> DeadEnd:
    """Return where the dotted ``key``, which means nothing below ``node``, goes wrong."""
    path: Path = ()
    left = key
    while left:
        index, piece = len(key) - len(left), left[0][0]
        match node:
            case Section():
                child = node.children.get(canonical(piece))
                if child is None:
                    names = sorted(kebab(each.name) for each in node.children.values() if not each.former)
                    return DeadEnd(index, piece, path, tuple(names))
                node, path, left = child.node, (*path, child.name), without(left, 1)
            case FreeNames():
                length = _span_of_known(left[0], known)
                node, path, left = node.value, (*path, ".".join(left[0][:length])), without(left, length)
            case _:
                return DeadEnd(index, piece, path)
    return DeadEnd(len(key) - 1, key[-1][-1], path)


def _guesses_in_section(node: Section, key: Key, dialect: Dialect, known: Collection[str]) -> Iterator[Guess]:
    exact = list(children_by_span(node, key, dialect))
    for child, rest in exact:
        guess = best_guess(child.node, rest, dialect, known)
        if guess:
            yield guess.below(child.name, 1.0, exact=True)
    if exact:
        return
    for likeness, child, rest in _alike_children(node, key, dialect):
        guess = best_guess(child.node, rest, dialect, known)
        if guess:
            yield guess.below(child.name, likeness, exact=False)


def _alike_children(node: Section, key: Key, dialect: Dialect) -> Iterator[tuple[float, Child, Key]]:
    longest = len(key[0]) if dialect is Dialect.VARIABLE else 1
    for length in range(1, longest + 1):
        name = canonical("".join(key[0][:length]))
        for spelling, child in node.children.items():
            likeness = alike(name, spelling)
            if likeness >= _ALIKE and not child.former:
                yield likeness, child, without(key, length)


def _guesses_of_names(node: FreeNames, key: Key, dialect: Dialect, known: Collection[str]) -> Iterator[Guess]:
    for name, rest in free_names_by_span(node, key, dialect):
        guess = best_guess(node.value, rest, dialect, known)
        if guess:
            likeness = 1.0 if letters_and_digits(name) in known else _NEW_NAME
            yield guess.below(name, likeness, exact=True)


def _span_of_known(pieces: tuple[str, ...], known: Collection[str]) -> int:
    """Return how many pieces make up a name in use, 1 when none does."""
    lengths = range(1, len(pieces) + 1)
    return next((length for length in lengths if letters_and_digits("".join(pieces[:length])) in known), 1)

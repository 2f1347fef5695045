"""Names and their spellings: the canonical form, in which two spellings of one name are equal, and the nearest name."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING
from unicodedata import normalize

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_LISTED = 10
"""Most names in a message."""


@lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """Return the form in which two spellings of one name are equal: no case, no ``-``, no ``_``.

    Source:
        Spring Boot reference, "Relaxed Binding".
    """
    return composed(name).replace("-", "").replace("_", "").casefold()


def composed(name: str) -> str:
    """Return ``name`` in composed form: each letter with its accent is one character."""
    return name if name.isascii() else normalize("NFC", name)


@lru_cache(maxsize=4096)
def letters_and_digits(name: str) -> str:
    """Return the part of ``name`` that an environment variable can express: letters and digits, without case."""
    return "".join(filter(str.isalnum, composed(name).casefold()))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in ``known`` that is nearest to ``name``, or ``None``."""
    spellings = {canonical(each): each for each in known}
    matches = get_close_matches(canonical(name), spellings, n=1)
    return spellings[matches[0]] if matches else None


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 event``, ``2,000 events``.

    Args:
        number: How many.
        noun: Singular, also of a phrase, such as ``event waits``.
        plural: Plural; empty: the noun with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Iterable[str], total: int | None = None) -> str:
    """Return ``names`` as text: the first ten, and how many more there are.

    Args:
        names: The names.
        total: How many there are, if ``names`` may be only the first of them.
    """
    every = list(names)
    shown = ", ".join(every[:MOST_LISTED])
    left = (len(every) if total is None else total) - min(len(every), MOST_LISTED)
    return f"{shown} and {left} more" if left > 0 else shown


def in_one_line(text: str) -> str:
    """Return an external text with line ends and control characters escaped: it cannot look like a line of ours."""
    return visible(text)


def event_label(event_id: str, position: int, event_type: str, subject: str) -> str:
    """Return how messages name an event."""
    return in_one_line(f"event {event_id} at position {position} ({event_type}, {subject})")


def visible(text: str, kept: str = "") -> str:
    """Return a text with characters that cannot be printed as escapes, except those that are kept."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)


def storable(text: str, length: int | None = None) -> str:
    """Return the text without characters that databases refuse: U+0000 and lone surrogates."""
    if length is None and text.isascii() and "\0" not in text:
        return text
    return text[:length].encode(errors="replace").decode().replace("\0", "?")

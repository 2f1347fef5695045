"""The canonical form of a name: in it, two spellings of one name are equal."""

from __future__ import annotations

from functools import lru_cache
from unicodedata import normalize

__all__ = ["canonical", "composed"]


@lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """Return the form in which two spellings of one name are equal: no case, no ``-``, no ``_``.

    Source:
        Spring Boot reference, "Relaxed Binding".
    """
    return composed(name).replace("-", "").replace("_", "").casefold()


def composed(name: str) -> str:
    """Return ``name`` with each letter as one character, whether or not it was typed as letter and accent."""
    return name if name.isascii() else normalize("NFC", name)

"""How settings are spelled: canonical forms, kebab case, and the nearest known spelling."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from opencqrs_py.model.naming import canonical, composed

if TYPE_CHECKING:
    from collections.abc import Iterable


PREFIX = "opencqrs"
"""The section below which all settings stand."""

_LIST_ENDS_AT = 10
_KEY_PART = re.compile(r"\[([^\]]*)\]|([^.\[]+)")


def letters_and_digits(name: str) -> str:
    """Return what an environment variable can express of ``name``: its letters and digits, without case."""
    return "".join(filter(str.isalnum, composed(name).casefold()))


def kebab(field: str) -> str:
    """Return the spelling that messages and documents use for the model field ``field``."""
    return field.rstrip("_").replace("_", "-")


def split_key(key: str) -> tuple[str, ...]:
    """Split a dotted key into its pieces, at least one; a piece in brackets keeps its dots (``groups[v1.2].fetch``)."""
    pieces = key.split(".") if "[" not in key else map("".join, _KEY_PART.findall(key))
    return tuple(filter(None, map(str.strip, pieces))) or (key.strip(),)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in ``known`` that ``name`` was most likely meant to be, or ``None``."""
    spellings = {canonical(each): each for each in known}
    matches = get_close_matches(canonical(name), spellings, n=1)
    return spellings[matches[0]] if matches else None


def alike_groups(one: str, other: str, where: str) -> tuple[str, str, str]:
    """Return what is wrong, where, and the fix, when handlers spell one group's name in two ways."""
    what = f"the groups {one} and {other} cannot be told apart in settings"
    return what, where, "write the same name in both places, or rename one: case, - and _ make no difference"


def listed(names: Iterable[str]) -> str:
    """Return ``names`` as text, the first ten of them and how many more there are."""
    every = list(names)
    shown = ", ".join(every[:_LIST_ENDS_AT])
    left = len(every) - _LIST_ENDS_AT
    return f"{shown} and {left} more" if left > 0 else shown

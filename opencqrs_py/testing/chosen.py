"""What a test is about: the handlers of one group, and all that belongs to them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from opencqrs_py.model.handler import HANDLER_ATTRIBUTE

__all__ = ["choose"]


def choose(given: Sequence[Any], wanted: str) -> tuple[str, list[ModuleType]]:
    """Return the group of a test, and modules with what it needs.

    Functions and classes come in a module that has nothing else. Handler classes of other groups are left out: nobody
    has to provide what they ask for.

    Args:
        given: Modules, functions and classes.
        wanted: The group; empty when there is only one.

    Raises:
        TypeError: If something else is given.
        ValueError: If there are no handlers, or handlers of several groups and none is named.
    """
    members = [member for each in given for member in _members(each)]
    group = _only(list(dict.fromkeys(name for member in members for name in _groups(member))), wanted)
    modules: dict[str, ModuleType] = {}
    for number, member in enumerate(members):
        groups = _groups(member)
        if group in groups or not groups:
            module = modules.setdefault(member.__module__, ModuleType(member.__module__))
            setattr(module, f"member_{number}", member)
    return group, list(modules.values())


def _members(given: Any) -> Iterator[Any]:
    if isinstance(given, ModuleType):
        yield from (one for one in vars(given).values() if getattr(one, "__module__", None) == given.__name__)
    elif isinstance(given, type) or (hasattr(given, "__qualname__") and not inspect.ismethod(given)):
        yield given
    else:
        msg = f"a HandlerTest takes modules, functions and classes, got {given!r}"
        raise TypeError(msg)


def _groups(member: Any) -> list[str]:
    """Return the groups that a function or class handles events for."""
    functions = [f for c in member.__mro__ for f in vars(c).values()] if isinstance(member, type) else []
    marked = [getattr(each, "__dict__", {}).get(HANDLER_ATTRIBUTE, ()) for each in (member, *functions)]
    return [mark.group for marks in marked for mark in marks if mark.group]


def _only(groups: list[str], wanted: str) -> str:
    if wanted in groups:
        return wanted
    shown = ", ".join(groups)
    if wanted:
        msg = f"no handler belongs to a group '{wanted}'; there is {shown or 'no handler at all'}"
        raise ValueError(msg)
    if len(groups) != 1:
        msg = f"handlers of several groups: choose one of {shown} with group=…" if groups else "no handlers were found"
        raise ValueError(msg)
    return groups[0]

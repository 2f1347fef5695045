"""What a test is about: the handlers of one group, and all that belongs to them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from opencqrs_py.assembly.members import Member, marks_of, members_of, methods_of
from opencqrs_py.model.handler import HANDLER_ATTRIBUTE
from opencqrs_py.model.naming import canonical

__all__ = ["choose"]


def choose(given: Sequence[Any], wanted: str) -> tuple[str, list[Member]]:
    """Return the group of a test, and what belongs to it.

    Handler classes of other groups are left out: nobody has to provide what they ask for.

    Args:
        given: Modules, functions and classes.
        wanted: The group; empty when there is only one.

    Raises:
        TypeError: If something else is given.
        ValueError: If there are no handlers, or handlers of several groups and none is named.
        HandlerSignatureError: OCQ-209, if something in a module is decorated in a way that would leave it out.
    """
    members = [member for each in given for member in _members(each)]
    group = _only(list(dict.fromkeys(name for member in members for name in _groups(member.value))), wanted)
    groups = [(member, {canonical(name) for name in _groups(member.value)}) for member in members]
    return group, [member for member, its in groups if canonical(group) in its or not its]


def _members(given: Any) -> Iterator[Member]:
    if isinstance(given, ModuleType):
        yield from members_of(given)
    elif isinstance(given, type) or (hasattr(given, "__qualname__") and not inspect.ismethod(given)):
        yield Member(given, given.__module__, f"{given.__module__}:{given.__qualname__}")
    else:
        msg = f"a HandlerTest takes modules, functions and classes, got {given!r}"
        raise TypeError(msg)


def _groups(member: Any) -> list[str]:
    """Return the groups that a function or class handles events for."""
    methods = methods_of(member) if isinstance(member, type) else []
    marks = [*marks_of(member, HANDLER_ATTRIBUTE), *(mark for method in methods for mark in method.marks)]
    return [mark.group for mark in marks if mark.group]


def _only(groups: list[str], wanted: str) -> str:
    if wanted and (spelled := [group for group in groups if canonical(group) == canonical(wanted)]):
        return spelled[0]
    shown = ", ".join(groups)
    if wanted:
        msg = f"no handler belongs to a group '{wanted}'; there is {shown or 'no handler at all'}"
        raise ValueError(msg)
    if len(groups) != 1:
        msg = f"handlers of several groups: choose one of {shown} with group=…" if groups else "no handlers were found"
        raise ValueError(msg)
    return groups[0]

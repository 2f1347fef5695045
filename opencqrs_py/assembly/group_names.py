"""Names of groups that callers give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opencqrs_py.config import EffectiveGroup
from opencqrs_py.errors import AssemblyError
from opencqrs_py.model.naming import canonical, listed


def group_named(name: str, groups: Iterable[EffectiveGroup]) -> EffectiveGroup:
    """Return the group of a name in any spelling; raises ``AssemblyError`` OCQ-509 if there is none."""
    known = {canonical(group.name): group for group in groups}
    group = known.get(canonical(name))
    if group is None:
        raise unknown_group(name, (each.name for each in known.values()))
    return group


def groups_named(names: Sequence[str], groups: Sequence[EffectiveGroup]) -> list[EffectiveGroup]:
    """Return the groups of some names, each once; errors are those of ``group_named`` and ``names_given``."""
    found = [group_named(name, groups) for name in names_given(names)]
    return list({group.name: group for group in found}.values())


def unknown_group(name: str, known: Iterable[str]) -> AssemblyError:
    """Return the error that no group has the name (OCQ-509); ``known`` are the existing ones."""
    names = list(known)
    fix = f"use one of {listed(names)}" if names else "write a handler for it"
    return AssemblyError("OCQ-509", f"no handler belongs to a group '{name}'", fix=fix)


def names_given(groups: Sequence[str]) -> Sequence[str]:
    """Return the names that a caller gives; raise ``TypeError`` for a single text, whose letters would be names."""
    if isinstance(groups, str):
        raise TypeError(f"group names must be a list: write [{groups!r}]")
    return groups

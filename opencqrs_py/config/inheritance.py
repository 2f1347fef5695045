"""Group, then standard, then built-in: how the settings of one group come together, leaf by leaf.

What a group and the standard say is merged before it is validated (:func:`merged_group`). Which of two settings that
exclude each other applies, and who decided it, is found afterwards.

Source:
    OpenCQRS reference, "Event Handling Processor Settings"; there, a reference set as standard beats what a group says
    (a known flaw). Here the nearer level wins, and ``null`` resets what would be inherited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias

from opencqrs_py.config.choices import Controller
from opencqrs_py.config.groups import BUILT_IN, LEAVES, SECTIONS, EffectiveGroup, GroupSettings, LeafName
from opencqrs_py.model.naming import canonical

if TYPE_CHECKING:
    from opencqrs_py.config.settings import Settings

Said: TypeAlias = "dict[LeafName, object]"
"""What one level says of a group's settings, before it is validated."""

_REPLACEMENTS: tuple[tuple[LeafName, LeafName], ...] = (
    (("progress", "tracking"), ("progress", "tracker_ref")),
    (("sequence", "resolution"), ("sequence", "resolver_ref")),
    (("life_cycle", "controller"), ("life_cycle", "controller_registration")),
)
"""Choices, each with the reference to a provider that takes its place."""

_CONTROLLER: LeafName = ("life_cycle", "controller")
_LOCKS: LeafName = ("life_cycle", "lock_registry")


class Level(Enum):
    """Who decides a setting of a group, from the nearest."""

    GROUP = auto()
    STANDARD = auto()
    BUILT_IN = auto()


@dataclass(frozen=True, slots=True)
class Inherited:
    """One setting of a group after inheritance.

    Args:
        value: The validated value.
        level: Who decided it.
        reset: Whether that level said ``null``, so that the value is the built-in one.
        replaced_by: The leaf that takes this one's place; its value is ``None`` then.
    """

    value: Any
    level: Level
    reset: bool = False
    replaced_by: LeafName | None = None

    @property
    def is_given(self) -> bool:
        """Whether a level said a value."""
        return self.level is not Level.BUILT_IN and not self.reset


def said(group: object) -> Said:
    """Return what ``group``, nested mappings or settings made in code, says; nothing if it is neither."""
    if isinstance(group, GroupSettings):
        every = {leaf: getattr(getattr(group, leaf[0]), leaf[1]) for leaf in LEAVES}
        return {leaf: value for leaf, value in every.items() if value != getattr(getattr(BUILT_IN, leaf[0]), leaf[1])}
    if not isinstance(group, Mapping):
        return {}
    return {
        (section, leaf): value
        for section, values in group.items()
        if isinstance(values, Mapping)
        for leaf, value in values.items()
    }


def merged_group(own: object, standard: Said) -> object:
    """Return ``own`` with what it inherits from ``standard``, and without what is reset to its built-in default."""
    if own is not None and not isinstance(own, Mapping | GroupSettings):
        return own  # which is refused when it is validated
    as_given = own if isinstance(own, Mapping) else {}
    merged = {name: {} if isinstance(value, Mapping) else value for name, value in as_given.items()}
    for (section, leaf), value in (standard | said(own)).items():
        below = merged.setdefault(section, {})
        if value is not None and isinstance(below, dict):
            below[leaf] = value
    return merged


def effective_group(settings: Settings, name: str) -> EffectiveGroup:
    """Return every setting of the group ``name``.

    Args:
        settings: Validated settings.
        name: Name of a group, in any spelling; it need not have settings of its own.
    """
    group = _spelled(settings.event_handling.groups, name)
    merged = settings.event_handling.groups[group] if group is not None else settings.event_handling.standard
    changed: dict[str, dict[str, Any]] = {}
    for (section, leaf), each in inherited(settings, name).items():
        if each.replaced_by:
            changed.setdefault(section, {})[leaf] = None
    sections = {section: replace(getattr(merged, section), **changed.get(section, {})) for section in SECTIONS}
    return EffectiveGroup(name, **sections)


def inherited(settings: Settings, name: str) -> dict[LeafName, Inherited]:
    """Return each setting of the group ``name`` with who decided it."""
    handling = settings.event_handling
    group = _spelled(handling.groups, name)
    merged = handling.standard if group is None else handling.groups[group]
    by_group = {} if group is None else handling.said_of(group)
    by_standard = handling.said_of(None)
    chosen: dict[LeafName, Inherited] = {}
    for leaf in LEAVES:
        value = getattr(getattr(merged, leaf[0]), leaf[1])
        if leaf in by_group:
            chosen[leaf] = Inherited(value, Level.GROUP, reset=by_group[leaf] is None)
        elif leaf in by_standard:
            chosen[leaf] = Inherited(value, Level.STANDARD, reset=by_standard[leaf] is None)
        else:
            chosen[leaf] = Inherited(value, Level.BUILT_IN)
    for choice, reference in _REPLACEMENTS:
        chosen |= _without_the_replaced(chosen, choice, reference)
    return chosen | _of_leader_election(chosen)


def _spelled(groups: Mapping[str, GroupSettings], name: str) -> str | None:
    """Return the spelling of the configured group that ``name`` means, ``None`` if there is none."""
    if name in groups:
        return name
    return next((known for known in groups if canonical(known) == canonical(name)), None)


def _without_the_replaced(
    chosen: dict[LeafName, Inherited], choice: LeafName, reference: LeafName
) -> dict[LeafName, Inherited]:
    """Return the pair with one of the two out of force: the reference, unless the choice is given on a nearer level."""
    by_choice, by_reference = chosen[choice], chosen[reference]
    if not by_reference.is_given:
        return {}
    if by_choice.is_given and by_choice.level.value < by_reference.level.value:
        return {reference: replace(by_reference, value=None, replaced_by=choice)}
    return {choice: replace(by_choice, value=None, replaced_by=reference)}


def _of_leader_election(chosen: dict[LeafName, Inherited]) -> dict[LeafName, Inherited]:
    """Return the controller or the lock registry out of force, where one of them rules the other out.

    A lock registry is part of leader election, so it does not take that choice's place. Against the application context
    the nearer of the two counts, and on one level the application context: so a named registry can be switched off.
    """
    controller, locks = chosen[_CONTROLLER], chosen[_LOCKS]
    if controller.value is not Controller.APPLICATION_CONTEXT or not locks.is_given:
        return {}
    if locks.level.value < controller.level.value:
        return {_CONTROLLER: replace(controller, value=None, replaced_by=_LOCKS)}
    return {_LOCKS: replace(locks, value=None, replaced_by=_CONTROLLER)}

"""Group, then standard, then built-in: how the settings of one group come together, leaf by leaf.

Source:
    OpenCQRS reference, "Event Handling Processor Settings"; there, a reference set as standard beats what a group says
    (a known flaw). Here the nearer level wins, and ``null`` resets what would be inherited.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias

from opencqrs_py.config.choices import Controller
from opencqrs_py.config.effective import EffectiveGroup
from opencqrs_py.config.names import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opencqrs_py.config.settings import GroupSettings, Settings

__all__ = ["Inherited", "LeafName", "Level", "effective_group", "inherited"]

LeafName: TypeAlias = tuple[str, str]
"""Section and leaf of a group setting, as field names."""

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
        value: The value in the type of :class:`EffectiveGroup`.
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


def effective_group(settings: Settings, name: str) -> EffectiveGroup:
    """Return every setting of the group ``name``.

    Args:
        settings: Validated settings.
        name: Name of a group, in any spelling; it need not have settings of its own.
    """
    chosen = inherited(settings, name)
    sections = {
        section.name: replace(getattr(_BUILT_IN, section.name), **_of_section(chosen, section.name))
        for section in fields(EffectiveGroup)
        if section.name != "name"
    }
    return EffectiveGroup(name, **sections)


def inherited(settings: Settings, name: str) -> dict[LeafName, Inherited]:
    """Return each setting of the group ``name`` with who decided it."""
    handling = settings.event_handling
    own = handling.groups.get(name) or _alike(handling.groups, name)
    chosen = {
        (section.name, leaf.name): _decided((section.name, leaf.name), own, handling.standard)
        for section in fields(EffectiveGroup)
        if section.name != "name"
        for leaf in fields(getattr(_BUILT_IN, section.name))
    }
    for choice, reference in _REPLACEMENTS:
        chosen |= _without_the_replaced(chosen, choice, reference)
    return chosen | _of_leader_election(chosen)


_BUILT_IN = EffectiveGroup("")


def _alike(groups: Mapping[str, GroupSettings], name: str) -> GroupSettings | None:
    """Return the settings of the group that ``name`` means in another spelling."""
    return next((group for known, group in groups.items() if canonical(known) == canonical(name)), None)


def _of_section(chosen: dict[LeafName, Inherited], section: str) -> dict[str, Any]:
    return {leaf: each.value for (of, leaf), each in chosen.items() if of == section}


def _decided(name: LeafName, own: GroupSettings | None, standard: GroupSettings) -> Inherited:
    section, leaf = name
    built_in = getattr(getattr(_BUILT_IN, section), leaf)
    for level, settings in ((Level.GROUP, own), (Level.STANDARD, standard)):
        values = getattr(settings, section, None)
        if values is not None and leaf in values.model_fields_set:
            value = getattr(values, leaf)
            if value is None:
                return Inherited(built_in, level, reset=True)
            return Inherited(None if value == "infinite" else value, level)
    return Inherited(built_in, Level.BUILT_IN)


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

"""The inheritance of settings that many names share, such as those of groups: its own, then standard, then built in.

It works leaf by leaf. Values of a name and of the standard are merged before validation (:meth:`Family.merged`). Which
of two exclusive settings applies, and which level decided it, is found afterwards (:meth:`Family.inherited`). Here the
nearer level wins, and ``null`` resets what would be inherited.

These values travel to Spark's workers: they import nothing heavy, pickle, and compare by content. Pydantic validates
them as they stand, in :mod:`opencqrs_py.config.settings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeAlias

from annotated_types import Ge

from opencqrs_py.config.value_types import Fact, Whole
from opencqrs_py.model.masking import masked
from opencqrs_py.model.naming import canonical

if TYPE_CHECKING:
    from opencqrs_py.config.settings import Settings

LeafName: TypeAlias = tuple[str, ...]
"""Sections and leaf of an inherited setting, as field names."""

AtLeastOne = Annotated[Whole, Ge(1), Fact(unit="1 or more")]


def setting(default: Any, description: str) -> Any:
    """Return the field of a setting with its built-in default."""
    return field(default=default, metadata={"description": description})


class InheritedSection:
    """A part of settings that are inherited. Unknown names are refused; its ``repr`` hides what is secret."""

    __slots__ = ("_given",)
    _given: set[str]
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "coerce_numbers_to_str": True}

    def __new__(cls, *values: Any, **by_name: Any) -> Self:
        """Remember which values are given: a given default overrides what would be inherited."""
        section = super().__new__(cls)
        names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
        object.__setattr__(section, "_given", {*names[: len(values)], *by_name})
        return section

    def __repr__(self) -> str:
        values = ((each.name, getattr(self, each.name)) for each in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={masked(name, value)!r}' for name, value in values)})"

    def given(self) -> dict[str, Any]:
        """Return the values with which this section was made, by field name."""
        defaults = {each.name: each.default for each in fields(self)}  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in defaults}
        return {name: value for name, value in values.items() if name in self._given or value != defaults[name]}


def _leaves(section: InheritedSection, path: LeafName = ()) -> Iterator[LeafName]:
    for each in fields(section):  # type: ignore[arg-type]
        value, below = getattr(section, each.name), (*path, each.name)
        yield from _leaves(value, below) if isinstance(value, InheritedSection) else (below,)


LevelValues: TypeAlias = "dict[LeafName, object]"
"""One level's values of inherited settings, before validation."""


class Level(Enum):
    """The levels that decide an inherited setting, the nearest first."""

    OWN = auto()
    STANDARD = auto()
    BUILT_IN = auto()


@dataclass(frozen=True, slots=True)
class Inherited:
    """One setting after inheritance."""

    value: Any  # validated
    level: Level  # the level that decided it
    reset: bool = False  # that level set ``null``, so that the value is the built-in one
    replaced_by: LeafName | None = None  # the leaf that replaces this one; the value is ``None`` then

    @property
    def is_given(self) -> bool:
        """Whether a level gives a value."""
        return self.level is not Level.BUILT_IN and not self.reset


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Settings of one form below many names, and a standard that they inherit.

    Args:
        named: Path of the section in which each name has its own settings.
        standard: Path of the standard.
        built_in: The built-in defaults.
        replacements: Settings, each with the one that replaces it, mostly the reference to a provider.
        ruled_out: Settings, each with a value and another setting that has no effect beside it.
        rivals: Settings of which at most one can apply.
    """

    named: tuple[str, ...]
    standard: tuple[str, ...]
    built_in: InheritedSection
    replacements: tuple[tuple[LeafName, LeafName], ...] = ()
    ruled_out: tuple[tuple[LeafName, object, LeafName], ...] = ()
    rivals: tuple[LeafName, ...] = ()
    leaves: tuple[LeafName, ...] = field(init=False)
    """All settings, in their order."""
    sections: frozenset[LeafName] = field(init=False)
    reserved: str = field(init=False)
    """The name of the standard, if it is among the names; else empty."""

    def __post_init__(self) -> None:
        leaves = tuple(_leaves(self.built_in))
        sections = {leaf[:depth] for leaf in leaves for depth in range(1, len(leaf))}
        object.__setattr__(self, "leaves", leaves)
        object.__setattr__(self, "sections", frozenset(sections))
        object.__setattr__(self, "reserved", self.standard[-1] if self.standard[:-1] == self.named else "")

    def single(self, path: tuple[str, ...]) -> tuple[str, LeafName] | None:
        """Return name and leaf if ``path`` is a setting of a single name, else ``None``."""
        depth = len(self.named)
        if path[:depth] != self.named or len(path) < depth + 2 or path[: depth + 1] == self.standard:
            return None
        leaf = path[depth + 1 :]
        return (path[depth], leaf) if leaf in self.leaves else None

    def of_standard(self, path: tuple[str, ...]) -> LeafName:
        """Return the leaf if ``path`` is a setting of the standard, else an empty tuple."""
        return path[len(self.standard) :] if path[: len(self.standard)] == self.standard else ()

    def said(self, level: object) -> LevelValues:
        """Return the values set in ``level``, a nested mapping or settings made in code; nothing for anything else."""
        return dict(self._said(level, ()))

    def _said(self, level: object, path: LeafName) -> Iterator[tuple[LeafName, object]]:
        values = level.given() if isinstance(level, InheritedSection) else level
        for name, value in values.items() if isinstance(values, Mapping) else ():
            below = (*path, name)
            if below in self.sections and isinstance(value, Mapping | InheritedSection):
                yield from self._said(value, below)
            elif path or below in self.leaves:
                yield below, value

    def merged(self, own: object, standard: LevelValues) -> object:
        """Return ``own`` with what it inherits from ``standard``, and without what is reset to its built-in default."""
        if own is not None and not isinstance(own, Mapping | type(self.built_in)):
            return own  # which is refused when it is validated
        as_given = own if isinstance(own, Mapping) else {}
        merged = {
            name: {} if isinstance(value, Mapping) else value
            for name, value in as_given.items()
            if (name,) not in self.leaves
        }
        for (*above, leaf), value in (standard | self.said(own)).items():
            below: Any = merged
            for section in above:
                below = below.setdefault(section, {}) if isinstance(below, dict) else None
            if value is not None and isinstance(below, dict):
                below[leaf] = value
        return merged

    def inherited(self, settings: Settings, name: str) -> dict[LeafName, Inherited]:
        """Return each setting of ``name``, in any spelling, with the level that decided it."""
        holder = getattr(settings, self.named[0])
        singles = holder.model_extra if self.reserved else getattr(holder, self.named[1])
        known = (
            name if name in singles else next((each for each in singles if canonical(each) == canonical(name)), None)
        )
        standard = holder.said_of(None)
        merged, own = (holder.standard, {}) if known is None else (singles[known], holder.said_of(known))
        chosen: dict[LeafName, Inherited] = {}
        for leaf in self.leaves:
            level = Level.OWN if leaf in own else Level.STANDARD if leaf in standard else Level.BUILT_IN
            reset = level is not Level.BUILT_IN and (own if level is Level.OWN else standard)[leaf] is None
            chosen[leaf] = Inherited(reduce(getattr, leaf, merged), level, reset)
        for choice, reference in self.replacements:
            if chosen[reference].is_given:
                _let_one_replace_the_other(chosen, reference, choice)
        for choice, value, other in self.ruled_out:
            if chosen[choice].value is value and chosen[other].is_given:
                _let_one_replace_the_other(chosen, choice, other)
        if self.rivals:
            self._let_the_nearest_apply(chosen)
        return chosen

    def _let_the_nearest_apply(self, chosen: dict[LeafName, Inherited]) -> None:
        """Mark the rivals as replaced that are given on another level than the nearest at which one is given."""
        given = [leaf for leaf in self.rivals if chosen[leaf].is_given and chosen[leaf].value is not None]
        given.sort(key=lambda leaf: chosen[leaf].level.value)
        for leaf in given[1:]:
            chosen[leaf] = replace(chosen[leaf], value=None, replaced_by=given[0])

    def effective(self, chosen: Mapping[LeafName, Inherited]) -> Any:
        """Return the settings that were chosen, as the type of the built-in ones."""
        return _effective(self.built_in, (), chosen)


def _effective(section: InheritedSection, path: LeafName, chosen: Mapping[LeafName, Inherited]) -> InheritedSection:
    values = {}
    for each in fields(section):  # type: ignore[arg-type]
        below, built_in = (*path, each.name), getattr(section, each.name)
        is_section = isinstance(built_in, InheritedSection)
        values[each.name] = _effective(built_in, below, chosen) if is_section else chosen[below].value
    return type(section)(**values)


def _let_one_replace_the_other(chosen: dict[LeafName, Inherited], first: LeafName, second: LeafName) -> None:
    """Mark one of two settings as replaced by the other: the second, unless it is given on a nearer level."""
    is_nearer = chosen[second].is_given and chosen[second].level.value < chosen[first].level.value
    wins, loses = (second, first) if is_nearer else (first, second)
    chosen[loses] = replace(chosen[loses], value=None, replaced_by=wins)

"""Event types and the classes that represent them."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache, cached_property
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from typing_extensions import is_typeddict

from opencqrs_py.model.handler import event_type_of
from opencqrs_py.processing.decoding import yields_others

_VALUES = frozenset({str, int, float, bool, bytes, type(None), date, datetime, time, timedelta, Decimal, UUID})
_CONTAINERS = (tuple, frozenset)
_OWN_CODE = ("__post_init__", "__get_pydantic_core_schema__", "__pydantic_validator__")  # may change any field


@cache
def immutable(event_class: Any) -> bool:
    """Return whether the objects that the decoder makes of this class are immutable, with everything that they contain.

    This applies to frozen dataclasses without their own code at construction, all of whose fields are texts, numbers,
    times, enums, tuples or frozen sets of these, or such dataclasses in turn. Everything else is decoded for each
    handler separately: that costs a microsecond, and no check would find every way to change an object.
    """
    return _frozen(event_class, frozenset())


def _frozen(cls: Any, above: frozenset[Any]) -> bool:
    if cls in above:  # a class that contains itself
        return True
    if not isinstance(cls, type) or not is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return False
    if any(hasattr(cls, name) for name in _OWN_CODE):
        return False
    if any(isinstance(member, cached_property) for parent in cls.__mro__ for member in vars(parent).values()):
        return False  # its result is kept in the object
    try:
        hints = get_type_hints(cls, include_extras=True)
    except Exception:  # an annotation that cannot be read proves nothing
        return False
    return all(_unchanging(hints.get(field.name), above | {cls}) for field in fields(cls))


def _unchanging(annotation: Any, above: frozenset[Any]) -> bool:
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return True
    if origin in (Union, types.UnionType):
        return all(_unchanging(member, above) for member in members)
    if origin in _CONTAINERS:
        return all(member is ... or _unchanging(member, above) for member in members)
    if not isinstance(annotation, type):
        return False
    return annotation in _VALUES or issubclass(annotation, Enum) or _frozen(annotation, above)


TypeResolver = Callable[[str], type | None]
"""Returns the event class of a type, ``None`` if there is none."""

ANYTHING = (object, dict, Mapping)
"""The classes to which every event's data can be decoded."""


class EventTypes:
    """The event classes by type: marked with ``@event_type``, given in a map, or known to a resolver.

    Several classes may represent one type, each in its own module; marked classes come first.

    Args:
        classes: Classes with ``@event_type``; others are ignored.
        mapped: More types, each with its class.
        resolver: Called for types that are neither marked nor mapped; must always return the same class for a type.

    Source:
        OpenCQRS event type resolvers.
    """

    def __init__(
        self,
        classes: Iterable[type] = (),
        mapped: Mapping[str, type] | None = None,
        resolver: TypeResolver | None = None,
    ) -> None:
        self._resolver = resolver
        self._mapped = dict(mapped or {})
        self._classes: dict[str, list[type]] = {}
        self.add(classes)

    @property
    def names(self) -> tuple[str, ...]:
        """The types that are known by name."""
        return tuple(dict.fromkeys((*self._classes, *self._mapped)))

    @property
    def resolver(self) -> TypeResolver | None:
        """What is called for types that are neither marked nor mapped."""
        return self._resolver

    @property
    def open(self) -> bool:
        """Whether there may be types besides ``names``."""
        return self._resolver is not None

    def add(self, classes: Iterable[type]) -> None:
        """Add marked classes."""
        for cls in classes:
            if isinstance(cls, type) and (name := event_type_of(cls)):
                known = self._classes.setdefault(name, [])
                if cls not in known:
                    known.append(cls)

    def classes_of(self, event_type: str) -> Sequence[type]:
        """Return the classes that represent a type."""
        found = list(self._classes.get(event_type, ()))
        if event_type in self._mapped:
            found.append(self._mapped[event_type])
        if not found and self._resolver is not None and (resolved := self._resolver(event_type)) is not None:
            found.append(resolved)
        return found

    def all_classes(self) -> Sequence[type]:
        """Return every class that is known without the resolver."""
        return [cls for name in self.names for cls in self.classes_of(name)]

    def class_for(self, wanted: Sequence[Any], event_type: str) -> Any:
        """Return the class to decode an event to where one of ``wanted`` is requested; ``None`` if there is none.

        A class itself comes before its subclasses, with the requested type arguments.

        Source:
            Decision K7.
        """
        stand_ins = self.classes_of(event_type)
        for annotation in wanted:
            asked = plain(annotation)
            if asked in ANYTHING or asked in stand_ins:
                return decoded_as(annotation)
            if (child := next((cls for cls in stand_ins if is_a(cls, asked)), None)) is not None:
                return child
        return None

    def parent_for(self, wanted: Sequence[Any], event_type: str) -> Any:
        """Return the class of a type that may yield one of ``wanted``, a subclass of it; ``None`` if there is none.

        Source:
            Decision K7.
        """
        stand_ins = self.classes_of(event_type)
        return next((cls for asked in map(plain, wanted) for cls in stand_ins if may_yield(cls, asked)), None)


def plain(cls: Any) -> Any:
    """Return a class without its type arguments."""
    return get_origin(cls) or cls


def decoded_as(annotation: Any) -> Any:
    """Return the class to which data are decoded: ``Price[Decimal]`` itself, but ``dict`` for ``dict[str, int]``."""
    return plain(annotation) if plain(annotation) in ANYTHING else annotation


def is_a(cls: Any, parent: Any) -> bool:
    """Return whether ``cls`` is ``parent`` or a subclass of it; TypedDicts have none."""
    if is_typeddict(parent) or is_typeddict(cls):
        return cls is parent
    return issubclass(cls, parent)


def may_yield(cls: Any, child: Any) -> bool:
    """Return whether decoding to ``cls`` may yield ``child``, a subclass of it."""
    return child not in ANYTHING and is_a(child, cls) and yields_others(cls)

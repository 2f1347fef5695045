"""Sharing: which decoded objects several handlers of one event may be given, since none of them can change them."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache, cached_property
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

__all__ = ["immutable"]

_VALUES = frozenset({str, int, float, bool, bytes, type(None), date, datetime, time, timedelta, Decimal, UUID})
_CONTAINERS = (tuple, frozenset)
_OWN_CODE = ("__post_init__", "__get_pydantic_core_schema__", "__pydantic_validator__")  # may make anything of a field


@cache
def immutable(event_class: Any) -> bool:
    """Return whether no object that the decoder makes of this class can be changed, nor anything in it.

    That is so for frozen dataclasses without code of their own at construction, all of whose fields are texts,
    numbers, times, enums, tuples or frozen sets of these, or such dataclasses again. Everything else is decoded for
    each handler separately: that costs a microsecond, and a look at every way to change an object would still miss one.
    """
    return _frozen(event_class, frozenset())


def _frozen(cls: Any, above: frozenset[Any]) -> bool:
    if cls in above:  # a class that holds itself
        return True
    if not isinstance(cls, type) or not is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return False
    if any(hasattr(cls, name) for name in _OWN_CODE):
        return False
    if any(isinstance(member, cached_property) for parent in cls.__mro__ for member in vars(parent).values()):
        return False  # what it returns is kept in the object
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

"""What values of a project hold: objects in their attributes, and collections."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType

_SIMPLE = (str, bytes, int, float, bool, type(None))
_DEEPEST = 3  # collections within one another


def is_plain(value: object) -> bool:
    """Return whether a value is a text, a number or the like, or a tuple of these."""
    if isinstance(value, tuple | frozenset):
        return isinstance(value, tuple) and all(map(is_plain, value))
    return type(value) in _SIMPLE


def attributes_of(instance: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an object by name, of a dataclass its fields. It calls no code of the object's class."""
    found = _stored_in(instance)
    made = type(instance)
    if is_dataclass(made):
        for each in fields(made):
            yield each.name, found[each.name] if each.name in found else inspect.getattr_static(made, each.name, None)
    else:
        yield from found.items()


def _stored_in(instance: object) -> dict[str, object]:
    """Return what an object holds in its slots and its dictionary, which a property may hide."""
    found: dict[str, object] = {}
    for cls in type.__getattribute__(type(instance), "__mro__"):
        for name, descriptor in type.__getattribute__(cls, "__dict__").items():
            try:
                if type(descriptor) is MemberDescriptorType:
                    found.setdefault(name, descriptor.__get__(instance))
                elif type(descriptor) is GetSetDescriptorType and name == "__dict__":
                    found |= {key: value for key, value in descriptor.__get__(instance).items() if type(key) is str}
            except AttributeError:  # nothing is in the slot
                continue
    return found


def functions_in(value: object, owns: Callable[[str], bool]) -> Iterator[FunctionType | type]:
    """Yield the functions and classes in a collection, or in the collections of an object of the project.

    Those that were made within a function are left out, as handlers may make them while they run.

    Args:
        value: The collection, or the object.
        owns: Returns whether a module, by its name, is one of the project's.
    """
    found = [value] if owns(type(value).__module__) else []
    collections = [held for one in found for _, held in attributes_of(one)] or [value]
    for _ in range(_DEEPEST):
        inner = [held for one in collections for held in _elements(one)]
        yield from (held for held in inner if isinstance(held, FunctionType | type) and "<" not in held.__qualname__)
        collections = inner


def _elements(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple | set | frozenset) else []

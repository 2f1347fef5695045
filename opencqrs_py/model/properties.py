"""Properties that are computed once."""

from __future__ import annotations

from functools import cached_property
from threading import RLock
from typing import Any, Self, TypeVar, overload

from typing_extensions import override

T = TypeVar("T")


class locked_cached_property(cached_property[T]):  # noqa: N801 used like the one it extends
    """A ``cached_property`` that is computed once, even if several threads first use it at the same time.

    The one in ``functools`` has had no lock since Python 3.12: each thread may compute a value, and some get a value
    that is not the one kept. For values that hold resources, such as connections.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...
    @override
    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> Self | T:
        if instance is None:
            return self
        with instance.__dict__.setdefault(f"_lock of {self.attrname}", RLock()):  # each instance has its own
            return super().__get__(instance, owner)

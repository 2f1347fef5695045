"""Exception groups: what is in them decides, since an ``asyncio.TaskGroup`` wraps whatever a task raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["leaves"]

_MEMBERS: Any = BaseExceptionGroup.__dict__["exceptions"]  # of the class itself: a child may have its own


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group, of the groups in it and so on; an exception that is no group, alone."""
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if issubclass(type(one), BaseExceptionGroup):  # not isinstance, which asks the error itself for its class
            waiting.extend(reversed(_MEMBERS.__get__(one)))
        else:
            yield one

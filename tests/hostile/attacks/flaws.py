"""Known defects: attacks that still succeed, each with its reason. A fix removes its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attacks.attack import DATABASES, KINDS, NOT_SQLITE

__all__ = ["KNOWN", "Flaw"]


@dataclass(frozen=True, kw_only=True)
class Flaw:
    """A defect that lets an attack succeed.

    Attributes:
        reason: What is wrong.
        databases: Databases on which it is so.
        kinds: Kinds of handler with which it is so.
        hangs: Whether the attack never ends, so that it cannot be run.
    """

    reason: str
    databases: tuple[str, ...] = DATABASES
    kinds: tuple[str, ...] = KINDS
    hangs: bool = False


_HANGS = Flaw(
    reason="asyncio never ends a task whose exception raises when it is asked for its class",
    kinds=("async",),
    hangs=True,
)

KNOWN: Mapping[str, Flaw] = {
    "the driver's close(), then an error": Flaw(
        reason="an error after the driver's connection was closed is waited for without its event and handler",
        databases=NOT_SQLITE,
    ),
    "an error without attributes": _HANGS,
    "an error without attributes, and the event is given up": _HANGS,
}

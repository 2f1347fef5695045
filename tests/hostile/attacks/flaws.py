"""Known defects: attacks that still succeed, each with its reason. A fix removes its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attacks.attack import DATABASES, KINDS

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


KNOWN: Mapping[str, Flaw] = {}

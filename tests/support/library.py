"""Events of a library."""

from __future__ import annotations

from dataclasses import dataclass

from opencqrs_py import event_type


@event_type("lent")
@dataclass(frozen=True)
class Lent:
    isbn: str


@event_type("returned")
@dataclass(frozen=True)
class Returned:
    isbn: str

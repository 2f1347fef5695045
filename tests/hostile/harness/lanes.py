"""Lanes: which of all combinations of attack, database, engine and kind of handler are tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
from attacks import ATTACKS
from attacks.attack import ERROR, PASSING_ERROR, Attack
from attacks.flaws import KNOWN, Flaw

__all__ = ["Combination", "all_combinations", "as_parameters", "quick_lane"]

_TRIED = 3
"""In the quick lane, every so many attacks are tried."""

_SPREAD = 13
"""In the quick lane, every so many of them are also tried elsewhere."""

_ON_SPARK = 25
"""In the quick lane, every so many of them are also tried on Spark."""

_WHOLE = 7
"""Every so many attacks are tried in all combinations on each engine."""

_SCHEMA = "our_log"
_IN_SCHEMA = 58
"""Every so many attacks are also tried with our tables in a schema of their own."""

_SCHEMAS = 3
"""In the quick lane, so many of them."""


@dataclass(frozen=True, eq=False)
class Combination:
    """One attack on one place."""

    attack: Attack
    database: str
    engine: str
    kind: str
    schema: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.attack.name, self.database, self.schema, self.engine, self.kind)))

    @property
    def flaw(self) -> Flaw | None:
        """The known defect by which the attack succeeds here."""
        flaw = KNOWN.get(self.attack.name)
        return flaw if flaw and self.database in flaw.databases and self.kind in flaw.kinds else None


def all_combinations() -> list[Combination]:
    """Return the full product by hand, and a part of it on threads and on Spark, where the same code runs.

    There each attack is tried on each database and with each kind of handler, and every seventh in all combinations.
    What does not run by hand is tried in full on threads.
    """
    return [*(one for n, attack in enumerate(ATTACKS) for one in _of(attack) if _belongs(n, one)), *_in_a_schema()]


def quick_lane() -> list[Combination]:
    """Return a choice of the product, always the same, in which every cause, database, engine and kind occurs.

    Every third attack once with a processor by hand, on SQLite if it concerns it, with kinds of handlers in turn, since
    the core is the same on all engines and by hand it starts fastest; of an attack that an error follows, the form
    whose error stays or the one whose error passes, in turn; and some of these attacks on another database, on threads
    and on Spark, and a few attacks with our tables in a schema of their own.
    """
    return [*{str(one): one for one in _chosen()}.values(), *list(_in_a_schema())[:_SCHEMAS]]


def as_parameters(combinations: Sequence[Combination]) -> list[Any]:
    """Return the combinations as parameters of a test, with marks for requirements and known defects."""
    return [pytest.param(one, id=str(one), marks=[*_needs(one), *_known(one)]) for one in combinations]


def _belongs(number: int, one: Combination) -> bool:
    """Return whether a combination of the attack of this number belongs to the whole."""
    databases, engines, kinds = one.attack.databases, one.attack.engines, one.attack.kinds
    if number % _WHOLE == 0 or one.engine == ("hand" if "hand" in engines else "thread"):
        return True
    place, kind = databases.index(one.database), kinds.index(one.kind)
    turn = kind + number  # each kind on the next database, and if there are fewer kinds, each database once
    return place == turn % len(databases) or (len(databases) > len(kinds) and kind == place % len(kinds))


def _left_out() -> set[str]:
    """Return the names of attacks of which another form is tried in the quick lane."""
    names = {attack.name for attack in ATTACKS}
    followed = [attack.name for attack in ATTACKS if {attack.name + ERROR, attack.name + PASSING_ERROR} <= names]
    return {name + (ERROR, PASSING_ERROR)[number % 2] for number, name in enumerate(followed)}


def _chosen() -> Iterator[Combination]:
    left_out = _left_out()
    for number, attack in enumerate([attack for attack in ATTACKS if attack.name not in left_out][::_TRIED]):
        here = _of(attack)
        first = [one for one in here if one.engine == "hand"] or [one for one in here if one.engine == "thread"]
        nearest = [one for one in first if one.database == first[0].database]
        yield nearest[number % len(nearest)]
        others = [one for one in here if one.engine == "thread" or (one.engine == "hand" and one not in nearest)]
        if others and number % _SPREAD == 0:
            yield others[number // _SPREAD * 5 % len(others)]
        on_spark = [one for one in here if one.engine == "spark"]
        if on_spark and number % _ON_SPARK == 0:
            yield on_spark[number // _ON_SPARK * 5 % len(on_spark)]


def _in_a_schema() -> Iterator[Combination]:
    on_servers = [[one for one in _of(attack) if one.database != "sqlite"] for attack in ATTACKS]
    for number, here in enumerate(list(filter(None, on_servers))[::_IN_SCHEMA]):
        yield replace(here[number * 5 % len(here)], schema=_SCHEMA)


def _of(attack: Attack) -> list[Combination]:
    return [Combination(attack, *where) for where in product(attack.databases, attack.engines, attack.kinds)]


def _needs(one: Combination) -> list[Any]:
    servers = [getattr(pytest.mark, one.database)] if one.database != "sqlite" else []
    return [*servers, *([pytest.mark.spark] if one.engine == "spark" else [])]


def _known(one: Combination) -> list[Any]:
    flaw = one.flaw
    return [pytest.mark.xfail(strict=True, reason=flaw.reason, run=not flaw.hangs)] if flaw else []

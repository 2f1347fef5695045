"""The attacks, by cause."""

from __future__ import annotations

from attacks import data, errors, parts, registration, sessions, statements, surroundings, transactions
from attacks.attack import Attack

__all__ = ["ATTACKS"]

ATTACKS: tuple[Attack, ...] = (
    *transactions.ATTACKS,
    *statements.ATTACKS,
    *sessions.ATTACKS,
    *data.ATTACKS,
    *errors.ATTACKS,
    *parts.ATTACKS,
    *surroundings.ATTACKS,
    *registration.ATTACKS,
)

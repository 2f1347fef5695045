"""What leases and locks have in common: what leads partitions, and when a partition that was lost is claimed again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from opencqrs_py.control.records import GroupPartition
from opencqrs_py.model.partition import Partition

logger = logging.getLogger("opencqrs.control")

END_PATIENCE = 0.5  # seconds that threads get to end, and the same for the last word to the other nodes
_LONGEST_RECLAIM = 600.0  # seconds between two claims of a partition that somebody without a lease takes over


class Coordination(Protocol):
    """Has the engines of a node drive those partitions that it may drive. Each method is called once, in this order."""

    def join(self) -> None:
        """Find out which partitions this node may drive."""
        ...

    def start(self) -> None:
        """Stay in touch with whoever decides that until ``end``, and have the engines drive these partitions."""
        ...

    def check(self) -> None:
        """Raise what ended the coordination, if something did."""
        ...

    def end(self) -> None:
        """Assign and release nothing any more."""
        ...

    def leave(self) -> None:
        """Give everything back, after the engines have stopped. If that takes long, it continues in the background."""
        ...


@dataclass(slots=True)
class _Claim:
    """The claims of a partition under one lease or lock."""

    term: int
    wait: float
    not_before: float = 0.0


class Claims:
    """Says when partitions that a node holds are to be claimed.

    A partition that was lost although its lease was held is claimed again after a wait that grows: a process that knows
    nothing of leases, such as one of an older version, would take it back each time.

    Args:
        first_wait: Seconds before the second repetition; the first one is at once.
        now: Returns the seconds of a clock that never goes back.
        held_by: What others lack, for the message: ``lease`` or ``lock``.
    """

    def __init__(self, first_wait: float, now: Callable[[], float], held_by: str) -> None:
        self._first_wait = first_wait
        self._now = now
        self._held_by = held_by
        self._claims: dict[GroupPartition, _Claim] = {}

    def due(self, keys: Collection[GroupPartition], terms: Mapping[GroupPartition, int]) -> list[GroupPartition]:
        """Return the partitions to be claimed now, of those that are held and not driven.

        Args:
            keys: These partitions.
            terms: How often each has changed hands; a new term makes the claim an ordinary one.
        """
        due, now = [], self._now()
        for key in keys:
            claims = self._claims.get(key)
            if claims is None or claims.term != terms[key]:
                self._claims[key] = _Claim(terms[key], self._first_wait)
            elif now < claims.not_before:
                continue
            else:
                text = "[%s] was taken over by a process that has no %s of it; it is claimed again"
                logger.warning(text, key, self._held_by)
                claims.not_before = now + claims.wait
                claims.wait = min(2 * claims.wait, _LONGEST_RECLAIM)
            due.append(key)
        return due

    def forget(self, keys: Iterable[GroupPartition]) -> None:
        """Have claims that could not be made count as never made."""
        for key in keys:
            self._claims.pop(key, None)


def by_group(keys: Iterable[GroupPartition]) -> list[tuple[str, Sequence[Partition]]]:
    """Return the partitions of each group."""
    found = groupby(sorted(keys), key=lambda key: key.group)
    return [(group, [key.partition for key in of_group]) for group, of_group in found]

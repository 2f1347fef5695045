"""Events handled ahead of a partition's position, after the partitions of its group have changed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from opencqrs_py.model.partition import Partition


@dataclass(frozen=True)
class Ahead:
    """Sequences that are handled up to a position ahead of the partition's own.

    A partition continues after the position up to which all of its sequences are handled. Sequences that came from a
    partition that was further ahead are not handled again.

    Attributes:
        parts: Partitions of earlier layouts, and the position up to which the events of their sequences are handled.

    Source:
        The merged token of Axon's tracking processor, whose halves keep their own positions; here for any number of
        parts, so that any layout can follow any other.
    """

    parts: tuple[tuple[Partition, int], ...]

    @cached_property
    def until(self) -> int:
        """The position from which nothing is ahead."""
        return max(position for _, position in self.parts)

    def covers(self, hash_: int, position: int) -> bool:
        """Return whether the event at a position is handled for a sequence.

        Args:
            hash_: The hash of the sequence: ``hash_of`` its id.
            position: Position of the event.
        """
        return any(position <= positions.get(hash_ % modulus, -1) for modulus, positions in self._by_modulus.items())

    def after(self, position: int) -> Ahead | None:
        """Return what is still ahead of a position; ``None`` if nothing is."""
        left = tuple(part for part in self.parts if part[1] > position)
        return self if left == self.parts else Ahead(left) if left else None

    @cached_property
    def _by_modulus(self) -> dict[int, dict[int, int]]:
        found: dict[int, dict[int, int]] = {}
        for partition, position in self.parts:
            positions = found.setdefault(partition.modulus, {})
            positions[partition.residue] = max(position, positions.get(partition.residue, -1))
        return found

    @property
    def text(self) -> str:
        """The value as JSON: modulus, residue and position of each part."""
        return json.dumps([[one.modulus, one.residue, position] for one, position in self.parts])

    @classmethod
    def of(cls, text: str) -> Ahead:
        """Return the value that a text describes."""
        return cls(tuple((Partition(modulus, residue), position) for modulus, residue, position in json.loads(text)))


def ahead_of(position: int, parts: Iterable[tuple[Partition, int]], partition: Partition) -> Ahead | None:
    """Return what is ahead of a partition at a position, without redundant parts; ``None`` if nothing is."""
    known = sorted({part for part in parts if part[1] > position and part[0].overlaps(partition)}, key=_largest_first)
    kept: list[tuple[Partition, int]] = []
    for one, until in known:
        if not any(other.contains(one) and position_of >= until for other, position_of in kept):
            kept.append((one, until))
    return Ahead(tuple(sorted(kept))) if kept else None


def _largest_first(part: tuple[Partition, int]) -> tuple[int, int, int]:
    return part[0].modulus, -part[1], part[0].residue

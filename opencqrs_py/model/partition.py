"""A partition: the part of a group's sequences that one processor handles."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import gcd
from zlib import crc32

MOST_PARTITIONS = 1_024
"""How many partitions a group can have."""


def hash_of(sequence_id: str) -> int:
    """Return the hash by which a sequence is assigned: CRC-32 of its UTF-8 bytes, ``0..2**32 - 1``.

    Source:
        OpenCQRS ``DefaultPartitionKeyResolver``. Spark's ``crc32(encode(s, 'UTF-8'))`` gives the same number.
    """
    return crc32(sequence_id.encode())


def residue_of(sequence_id: str, modulus: int) -> int:
    """Return the residue class, ``0..modulus - 1``, that a sequence belongs to."""
    return hash_of(sequence_id) % modulus


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """The sequences of a group whose hash leaves ``residue`` modulo ``modulus``."""

    modulus: int
    residue: int

    def __post_init__(self) -> None:
        if self.modulus < 1:
            raise ValueError(f"modulus must be at least 1, got {self.modulus}")
        if not 0 <= self.residue < self.modulus:
            raise ValueError(f"residue must be in 0..{self.modulus - 1}, got {self.residue}")

    def __str__(self) -> str:
        return f"{self.residue}/{self.modulus}"

    def owns(self, sequence_id: str) -> bool:
        """Return whether events of this sequence are handled here."""
        return self.modulus == 1 or residue_of(sequence_id, self.modulus) == self.residue

    def overlaps(self, other: Partition) -> bool:
        """Return whether a sequence may belong to both partitions, which are then of different layouts."""
        return (self.residue - other.residue) % gcd(self.modulus, other.modulus) == 0

    def contains(self, other: Partition) -> bool:
        """Return whether every sequence of the other partition also belongs to this one."""
        return other.modulus % self.modulus == 0 and other.residue % self.modulus == self.residue

    def sibling(self) -> Partition | None:
        """Return the partition with which this one can be merged; ``None`` if there is none."""
        if self.modulus % 2:
            return None
        half = self.modulus // 2
        return Partition(self.modulus, (self.residue + half) % self.modulus)

    def split(self) -> tuple[Partition, Partition]:
        """Return the two halves of this partition."""
        double = 2 * self.modulus
        return Partition(double, self.residue), Partition(double, self.residue + self.modulus)

    def merge(self, other: Partition) -> Partition:
        """Return the partition of which this one and ``other`` are the halves.

        Raises:
            ValueError: If they are not the two halves of one partition.
        """
        if self.modulus == other.modulus and self.modulus % 2 == 0:
            whole = Partition(self.modulus // 2, min(self.residue, other.residue) % (self.modulus // 2))
            if {self, other} == set(whole.split()):
                return whole
        raise ValueError(f"{self} and {other} are not the halves of one partition")


WHOLE = Partition(1, 0)
"""All sequences of a group."""


def layout(count: int) -> tuple[Partition, ...]:
    """Return the partitions of a group that starts with ``partitions: count``."""
    return tuple(Partition(count, residue) for residue in range(count))


def is_layout(partitions: Collection[Partition]) -> bool:
    """Return whether each sequence belongs to exactly one of the partitions."""
    return are_all(partitions) and not any(one.overlaps(other) for one, other in combinations(partitions, 2))


def are_all(partitions: Iterable[Partition]) -> bool:
    """Return whether the partitions are a complete layout."""
    return sum(Fraction(1, each.modulus) for each in partitions) == 1

"""Comparisons of a shadow with the live tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from opencqrs_py.model.partition import Partition
from opencqrs_py.model.rebuild import Difference


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the rows of shadow and live tables differ at one moment.

    Attributes:
        live: Positions of the live partitions then.
        shadow: Those of the shadow; if they differ, some rows differ for that reason.
        differences: By table.
        unwritten: Live tables with rows that ``@on_start`` makes, and to which the rebuild has written nothing: they
            are another group's, or handlers no longer write to them. A swap leaves them unchanged.
        not_made: Live tables that the rebuild does not make at all, though an earlier ``@on_start`` may have: those of
            others, and of the group those that nothing fills any more. A swap leaves them, too.
    """

    live: Mapping[Partition, int]
    shadow: Mapping[Partition, int]
    differences: tuple[Difference, ...]
    unwritten: tuple[str, ...] = ()
    not_made: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether both had handled the same events."""
        return self.live == self.shadow


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table by where they are: in both places, in the live one only, in the shadow only."""

    both: tuple[str, ...]
    live: tuple[str, ...]
    shadow: tuple[str, ...]

    @classmethod
    def of(cls, live: Iterable[str], shadow: Iterable[str], spelling: Callable[[str], str] = str) -> Columns:
        """Return them, given those of both places; ``spelling`` returns what their names are compared by."""
        known, others = ({spelling(name): name for name in names} for names in (live, shadow))
        return cls(
            tuple(name for key, name in known.items() if key in others),
            tuple(name for key, name in known.items() if key not in others),
            tuple(name for key, name in others.items() if key not in known),
        )

"""The horizon of a table that others fill: up to which position nothing will ever be added."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Horizon"]


@dataclass(slots=True)
class Horizon:
    """Moves on by evidence that transactions have ended, never by time.

    A transaction draws a position and commits later, so positions become visible in any order. Whoever may still commit
    a position up to a *mark*, the highest one that was seen, was at work when it was seen. So when all who were at work
    then have ended, the horizon is at the mark.

    Attributes:
        upto: The horizon; ``None`` as long as nothing is known.
        mark: Position that becomes the horizon next; ``None`` before the first look.
        waited_for: Transactions of those who were at work when the mark was seen, and have not ended.
    """

    upto: int | None = None
    mark: int | None = None
    waited_for: frozenset[str] = field(default=frozenset())

    def look(self, highest: int, at_work: frozenset[str]) -> None:
        """Take in what was seen.

        Args:
            highest: Highest position that was seen.
            at_work: Transactions that write, looked for after ``highest`` was.
        """
        if self.mark is not None:
            self.waited_for &= at_work
            if self.waited_for:
                return
            self._reach(self.mark)
        if not at_work:
            self._reach(highest)
        self.mark, self.waited_for = highest, at_work

    def _reach(self, position: int) -> None:
        self.upto = max(self.upto or 0, position)

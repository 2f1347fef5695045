"""Slots: how many tasks each group may start, so that none starves the others; and whether slow ones hold them all.

Runs on the driver. A slot is room for one task that Spark runs at a time. Pure decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from opencqrs_py.processing.ports import Clock

HELD_SECONDS = 10.0
"""After which slots count as held: a task ends after two seconds unless an event is slow."""

_FIX = (
    "limit a group with spark.max-tasks-per-group, abandon long calls with processing.handler-timeout, "
    "or give Spark more cores"
)


def shares(
    waiting: Mapping[str, int], running: Mapping[str, int], slots: int, most: int | None = None
) -> dict[str, int]:
    """Return how many tasks each group may start now, for groups that may start some.

    A free slot goes to the group with the fewest tasks, so none has all slots while another one waits.

    Args:
        waiting: For each group with work, the number of tasks; the group that has waited longest comes first.
        running: How many tasks of each group are active.
        slots: Tasks that can run at once.
        most: Most tasks of one group; ``None`` for as many as there are slots.
    """
    tasks, given = Counter(running), Counter[str]()
    most = slots if most is None else most
    for _ in range(slots - tasks.total()):
        open_to = [group for group, count in waiting.items() if given[group] < count and tasks[group] < most]
        if not open_to:
            break
        group = min(open_to, key=tasks.__getitem__)
        tasks[group] += 1
        given[group] += 1
    return dict(given)


class HeldSlots:
    """Whether slow events hold all slots while other partitions wait; the beginning and the end are reported once each.

    Attributes:
        held: Whether they do.
    """

    def __init__(self, clock: Clock) -> None:
        self.held = False
        self._clock = clock

    def news(
        self, slots: int, tasks: Sequence[tuple[str, float]], waiting: Callable[[], Mapping[str, int]]
    ) -> str | None:
        """Return a line when all slots become held, and when that ends.

        Args:
            slots: How many there are; 0 if that is not known.
            tasks: The group and start time of each task that has a slot.
            waiting: Returns for each group how many partitions wait for a slot; called only while slow tasks hold all
                slots.
        """
        before, now = self.held, self._clock.monotonic()
        slow = [(group, now - since) for group, since in tasks if now - since >= HELD_SECONDS]
        wait = waiting() if 0 < slots <= len(slow) else {}
        self.held = bool(wait)
        if before and not self.held:
            return "slow events no longer hold all Spark slots"
        return _line_of(slots, slow, wait) if self.held and not before else None


def _line_of(slots: int, slow: Sequence[tuple[str, float]], waiting: Mapping[str, int]) -> str:
    counts, longest = Counter(group for group, _ in slow), dict(sorted(slow, key=lambda task: task[1]))
    holders = ", ".join(f"{group} {count} for {longest[group]:.0f} s" for group, count in counts.most_common())
    of_groups = ", ".join(f"{group} {count}" for group, count in waiting.items())
    have = "the only Spark slot is" if slots == 1 else f"all {slots} Spark slots are"
    return f"{have} held by slow events ({holders}), while partitions wait ({of_groups}): {_FIX}"

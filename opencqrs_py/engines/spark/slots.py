"""Slots: how many tasks each group may start, so that none takes what others need.

Runs on the driver. A slot is room for one task that Spark runs at once. A pure decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def shares(
    waiting: Mapping[str, int], running: Mapping[str, int], slots: int, most: int | None = None
) -> dict[str, int]:
    """Return how many tasks each group may start now, for groups that may start some.

    A free slot goes to the group with the fewest tasks, so none has all slots while another one waits.

    Args:
        waiting: Of each group that has something to do, for how many tasks; who has waited longest comes first.
        running: How many tasks of each group are under way.
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

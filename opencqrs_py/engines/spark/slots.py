"""Slots: how many tasks each group may start, so that none starves the others; and whether long ones hold them all.

Runs on the driver. A slot is room for one task that Spark runs at a time. Pure decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from opencqrs_py.processing.ports import Clock

HELD_SECONDS = 10.0
"""After which slots count as held: a task ends after two seconds unless an event is slow."""

_LOOK_SECONDS = 1.0  # between two queries of Spark

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


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """A job that Spark has not ended.

    Attributes:
        group: Its group in Spark, such as ``loans`` or ``job:nightly``; empty: it has none.
        tasks: How many of its tasks Spark runs now; 0: they wait.
        seconds: For how long it has been running tasks.
    """

    group: str
    tasks: int
    seconds: float


class HeldSlots:
    """Whether long tasks hold all slots while partitions wait; the beginning and the end are reported once each.

    Attributes:
        held: Whether they do.
    """

    def __init__(self, clock: Clock) -> None:
        self.held = False
        self._clock = clock
        self._looked = float("-inf")

    def news(
        self,
        slots: int,
        since: float,
        look: Callable[[], Sequence[ActiveJob]],
        waiting: Callable[[Sequence[ActiveJob]], Mapping[str, int]],
        in_turn: Collection[str] = (),
    ) -> str | None:
        """Return a line when all slots become held, and when that ends.

        Args:
            slots: How many there are; 0 if that is not known.
            since: When the oldest task was sent to Spark; infinite if there is none.
            look: Returns the active jobs; called once a second at most, and only if a task was sent long ago.
            waiting: Returns for each group how many partitions wait for a slot; called only while long tasks hold all
                slots.
            in_turn: The groups whose tasks are long by design and leave their slots to others in turn; they alone are
                not reported.
        """
        before, now = self.held, self._clock.monotonic()
        jobs: Sequence[ActiveJob] = ()
        if slots and now - since >= HELD_SECONDS:
            if now - self._looked < _LOOK_SECONDS:
                return None
            self._looked, jobs = now, look()
        long = [job for job in jobs if job.tasks and job.seconds >= HELD_SECONDS]
        full = sum(job.tasks for job in long) >= slots and any(job.group not in in_turn for job in long)
        wait = waiting(jobs) if full else {}
        self.held = bool(wait)
        if before and not self.held:
            return "long tasks no longer hold all Spark slots"
        return _line_of(slots, long, wait) if self.held and not before else None


def _line_of(slots: int, long: Sequence[ActiveJob], waiting: Mapping[str, int]) -> str:
    counts, longest = Counter[str](), dict[str, float]()
    for job in long:
        counts[job.group] += job.tasks
        longest[job.group] = max(job.seconds, longest.get(job.group, 0.0))
    holders = ", ".join(
        f"{group or 'other jobs'} {count} for {longest[group]:.0f} s" for group, count in counts.most_common()
    )
    of_groups = ", ".join(f"{group} {count}" for group, count in waiting.items())
    have = "the only Spark slot is" if slots == 1 else f"all {slots} Spark slots are"
    return f"{have} held by long tasks ({holders}), while partitions wait ({of_groups}): {_FIX}"

"""Notices: what happens to partitions, for observers and as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.recovery import Action


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened to a partition and that people may want to know.

    Attributes:
        group: Processing group.
        partition: Partition of the group.
        action: What is done about it; ``None`` when the partition has recovered, and for a call after the commit
            that raised: nothing is repeated.
        failure: The error; ``None`` when the partition has recovered.
        attempt: Number of the attempt that failed, 0 when no event was tried.
        wait: Seconds until the next attempt, where there is one.
        sequence_id: The sequence whose event was tried in the inbox, or, without a failure, that has left it; ``None``
            if it is not about the inbox.
        advises: Whether the notice advises what to do about an outage: at a start, because a URL may be wrong, and at
            the first outage in a handler, because its code may be wrong.
        releases: Whether this process releases the partition, so that there is no next attempt here.
    """

    group: str
    partition: Partition
    action: Action | None
    failure: Failure | None = None
    attempt: int = 0
    wait: float = 0.0
    sequence_id: str | None = None
    advises: bool = False
    releases: bool = False


class Observer:
    """Observes processors. Override the methods of interest; by default they do nothing.

    Called on the thread that drives the partition, so it must return quickly; on Spark, on the driver. An error that it
    raises ends the processor: what was committed stays committed, and the next start resumes after it.
    """

    def claimed(self, group: str, partition: Partition, position: int) -> None:
        """After a partition was taken over, and before its first event is read.

        Args:
            group: Processing group.
            partition: Partition of the group.
            position: Stored progress: the first event handled comes after it.
        """

    def advanced(self, group: str, partition: Partition, outcome: Outcome) -> None:
        """After each step, and before the next one reads anything.

        The work of the step is committed, with its progress, and the calls after the commit are made; what
        failed is rolled back. Also called for steps that found nothing to handle.

        Args:
            group: Processing group.
            partition: Partition of the group.
            outcome: Outcome of the step; ``outcome.cursor.stored`` is the progress in the tracker.
        """

    def noticed(self, notice: Notice) -> None:
        """Right after ``advanced``, when the step failed, or the partition has recovered.

        The wait named in the notice has not begun.

        Args:
            notice: What happened, and what is done about it.
        """

    def stopped(self, group: str, partition: Partition) -> None:
        """After this process has released or lost a partition, for any reason; the last call of its claim.

        Args:
            group: Processing group.
            partition: Partition of the group.
        """


NO_OBSERVER = Observer()


class Observers(Observer):
    """Several observers as one, called in their order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    @override
    def claimed(self, group: str, partition: Partition, position: int) -> None:
        for each in self._observers:
            each.claimed(group, partition, position)

    @override
    def advanced(self, group: str, partition: Partition, outcome: Outcome) -> None:
        for each in self._observers:
            each.advanced(group, partition, outcome)

    @override
    def noticed(self, notice: Notice) -> None:
        for each in self._observers:
            each.noticed(notice)

    @override
    def stopped(self, group: str, partition: Partition) -> None:
        for each in self._observers:
            each.stopped(group, partition)


_NEXT = {
    Action.RETRY: "retry {when}",
    Action.ISOLATE: "no attempt is used, and each of its events is handled alone next",
    Action.SKIP: "attempts exhausted: the event is skipped",
    Action.PARK: "the event is parked, and its sequence waits for it",
    Action.STOP: "the partition has failed; next attempt {when}, or at the next start",
    Action.HOLD: "the partition has failed, and is not tried again until it is restarted",
    Action.WAIT: "no attempt is used; retry {when}",
    Action.CLAIM: "its participants claim it again {when}; events after the stored position are repeated",
}
_TAKEN_OVER = "was taken over by another process, or its tables were swapped; it stops here until it is assigned again"


def line_of(notice: Notice) -> str:
    """Return what happened and what happens next, in one line."""
    head = f"[{notice.group} {notice.partition}]"
    failure = notice.failure
    if failure is None and notice.sequence_id is not None:
        return f"{head} sequence {notice.sequence_id!r} has left the inbox; its events are handled as they come"
    if failure is None:
        return f"{head} recovered"
    if notice.action is Action.LEAVE:
        return f"{head} {_TAKEN_OVER}"
    if notice.action is None:
        return f"{head} a call after the commit raised {failure}; nothing is repeated"
    what = f"{failure.event} failed on attempt {notice.attempt}" if notice.attempt else "could not continue"
    what += f" at {failure.event}" if failure.event and not notice.attempt else ""
    again = "when the partition is next assigned" if notice.releases else when(notice.wait)
    return f"{head} {what} ({failure}); {_next(notice, failure).format(when=again)}"


def _next(notice: Notice, failure: Failure) -> str:
    """Return what happens next, in words, with a placeholder for the time until then."""
    if notice.sequence_id is not None and notice.action is Action.PARK:
        return "it stays in the inbox and waits for a person"
    if notice.action is Action.SKIP and failure.origin is Origin.EVENT:
        return "the event is skipped"
    return _NEXT[notice.action or Action.WAIT]


def text_of(notice: Notice) -> str:
    """Return the line and, for the first attempt only, the handler's traceback and the fix.

    The fix of an outage is not repeated in each of its notices.
    """
    lines, failure = [line_of(notice)], notice.failure
    if failure is not None and notice.attempt <= 1:
        lines += [failure.traceback] if failure.traceback else []
        lines += [failure.advice] if failure.advice and (notice.advises or notice.action is not Action.WAIT) else []
    return "\n".join(lines)


def when(seconds: float) -> str:
    """Return a time in the future as text: ``in 4.5 s``, ``at once``."""
    return "at once" if seconds < _AT_ONCE else f"in {in_words(seconds)}"


def in_words(seconds: float) -> str:
    """Return a duration for people: ``4.5 s``, ``2 min 5 s``, ``1 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


_AT_ONCE = 0.05  # seconds; a shorter wait would read "0.0 s"

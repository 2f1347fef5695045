"""How far a partition is, and what is known about its next event."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from opencqrs_py.model.partition import Partition

__all__ = ["Cursor", "PartitionStatus", "ProcessorState"]


class ProcessorState(StrEnum):
    """What the processor of a partition is doing."""

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing-off"  # an event failed and is tried again at a known time
    WAITING = "waiting"  # the store or the database is away; no event's attempt is used
    FAILED = "failed"  # stopped by an error; retried after a growing pause
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a partition goes on.

    Attributes:
        partition: Whose cursor it is.
        epoch: Fencing number of the claim under which progress may be written.
        stored: Position that the progress tracker holds.
        position: Position up to which nothing is left to do; ahead of ``stored`` when only events of others passed.
        attempt: Number of the coming attempt of the next event, from 1.
        troubled: Position of the event that failed before, or ``None``.
        skip: Whether the troubled event is to be given up instead of being tried.
    """

    partition: Partition
    epoch: int
    stored: int
    position: int
    attempt: int = 1
    troubled: int | None = None
    skip: bool = False

    def check_forward(self, to: int) -> None:
        """Refuse to store a position before the one that is stored.

        Raises:
            ValueError: If ``to`` is before ``stored``.
        """
        if to < self.stored:
            msg = f"progress of partition {self.partition} must not go back from {self.stored} to {to}"
            raise ValueError(msg)

    def moved_to(self, position: int, *, stored: bool) -> Cursor:
        """Return the cursor after all up to ``position`` is done; trouble is over."""
        durable = position if stored else self.stored
        return replace(self, position=position, stored=durable, attempt=1, troubled=None, skip=False)

    def retrying(self, troubled: int, *, skip: bool = False) -> Cursor:
        """Return the cursor for the next attempt of (or, with ``skip``, for giving up) the event at ``troubled``."""
        again = self.attempt + 1 if self.troubled == troubled else 2
        return replace(self, attempt=again, troubled=troubled, skip=skip)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """What ``status`` shows of one partition.

    Attributes:
        group: Processing group.
        partition: Partition of the group.
        position: Stored progress.
        state: What its processor does.
        attempt: Attempts made of the troubled event; 0 when there is none.
        error: Last error, one line; empty when there is none.
        next_attempt_at: ISO 8601 time of the next attempt, or ``None``.
        updated_at: ISO 8601 time of the last write, or ``None`` if there was none.
    """

    group: str
    partition: Partition
    position: int
    state: ProcessorState
    attempt: int = 0
    error: str = ""
    next_attempt_at: str | None = None
    updated_at: str | None = None

"""What is done about an error: the decision, apart from the acting."""

from __future__ import annotations

from enum import Enum

from opencqrs_py.model.outcome import Origin, Trouble

__all__ = ["Action", "OnExhausted", "action_for"]


class OnExhausted(Enum):
    """What happens to an event whose attempts are used up."""

    SKIP = "skip"
    STOP = "stop"


class Action(Enum):
    """What the processor of a partition does next."""

    RETRY = "retry"  # the same event again, after its back-off
    SKIP = "skip"  # give the event up and go on
    STOP = "stop"  # the partition has failed; tried again only after a growing pause
    WAIT = "wait"  # the store or the database is away; no attempt is used
    LEAVE = "leave"  # another processor has the partition


def action_for(trouble: Trouble, *, exhausted: bool, on_exhausted: OnExhausted) -> Action:
    """Decide what to do about an error.

    Args:
        trouble: The error and where it arose.
        exhausted: Whether the event's attempts are used up.
        on_exhausted: What the group wants then.

    Source:
        Error classification of OpenCQRS with the decisions K1-K4 and K6.
    """
    match trouble.origin:
        case Origin.FENCED:
            return Action.LEAVE
        case Origin.OUTAGE:
            return Action.WAIT
        case Origin.EVENT | Origin.FRAMEWORK:
            return Action.STOP
        case Origin.HANDLER if trouble.permanent:
            return Action.STOP
        case Origin.HANDLER if not exhausted:
            return Action.RETRY
        case Origin.HANDLER:  # pragma: no branch there is no other origin
            return Action.SKIP if on_exhausted is OnExhausted.SKIP else Action.STOP

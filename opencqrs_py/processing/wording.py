"""Notices in words: what a person is told of a partition."""

from __future__ import annotations

from opencqrs_py.processing.recovery import Action
from opencqrs_py.processing.supervision import Notice

__all__ = ["in_words", "line_of"]

_NEXT = {
    Action.RETRY: "retry in {wait}",
    Action.SKIP: "attempts used up: the event is skipped",
    Action.STOP: "the partition has failed; next attempt in {wait}, or at the next start",
    Action.WAIT: "no attempt is used; next look in {wait}",
    Action.LEAVE: "this process leaves the partition alone",
}


def line_of(notice: Notice) -> str:
    """Return the line that tells of a notice."""
    head = f"[{notice.group} {notice.partition}]"
    trouble = notice.trouble
    if trouble is None:
        return f"{head} recovered"
    if notice.action is None:
        return f"{head} a call after the commit raised {trouble}; nothing is repeated"
    what = f"{trouble.event} failed on attempt {notice.attempt}" if notice.attempt else "could not go on"
    what += f" at {trouble.event}" if trouble.event and not notice.attempt else ""
    return f"{head} {what} ({trouble}); {_NEXT[notice.action].format(wait=in_words(notice.wait))}"


def in_words(seconds: float) -> str:
    """Return a duration for people: ``4.5 s``, ``2 min 5 s``, ``1 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

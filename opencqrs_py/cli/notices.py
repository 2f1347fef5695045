"""What happened to a partition, in words."""

from __future__ import annotations

from opencqrs_py.processing.recovery import Action
from opencqrs_py.processing.supervision import Notice

__all__ = ["in_words", "notice_lines"]

_MILD = (Action.RETRY, Action.WAIT)
_NEXT = {
    Action.RETRY: "retry in {wait}",
    Action.SKIP: "attempts used up: the event is skipped",
    Action.STOP: "the partition has failed; next attempt in {wait}, or at the next start",
    Action.WAIT: "no attempt is used; next look in {wait}",
    Action.LEAVE: "this process leaves the partition alone",
}


def notice_lines(notice: Notice) -> list[tuple[str, str]]:
    """Return the lines, each with its style, that tell of a notice.

    The handler's traceback comes with the first attempt only.
    """
    head = f"[{notice.group} {notice.partition}]"
    trouble = notice.trouble
    if trouble is None or notice.action is None:
        return [(f"{head} recovered", "green")]
    what = f"{trouble.event} failed on attempt {notice.attempt}" if trouble.event else "could not go on"
    then = _NEXT[notice.action].format(wait=in_words(notice.wait))
    lines = [(f"{head} {what} ({trouble}); {then}", "yellow" if notice.action in _MILD else "red")]
    if trouble.traceback and notice.attempt <= 1:
        lines.append((trouble.traceback, "default"))
    return lines


def in_words(seconds: float) -> str:
    """Return a duration for people: ``4.5 s``, ``2 min 5 s``, ``1 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

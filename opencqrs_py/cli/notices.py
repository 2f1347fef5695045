"""What happened to a partition, in words and colours."""

from __future__ import annotations

from opencqrs_py.processing.recovery import Action
from opencqrs_py.processing.supervision import Notice, in_words, line_of

__all__ = ["in_words", "notice_lines"]

_MILD = (Action.RETRY, Action.WAIT, None)


def notice_lines(notice: Notice) -> list[tuple[str, str]]:
    """Return the lines, each with its style, that report a notice.

    The handler's traceback, and what to do about an explained error, come with the first attempt only.
    """
    trouble = notice.trouble
    if trouble is None:
        return [(line_of(notice), "green")]
    lines = [(line_of(notice), "yellow" if notice.action in _MILD else "red")]
    if trouble.traceback and notice.attempt <= 1 and notice.action is not None:
        lines.append((trouble.traceback, "default"))
    if trouble.advice and notice.attempt <= 1 and notice.action is not Action.WAIT:
        lines.append((trouble.advice, "default"))
    return lines

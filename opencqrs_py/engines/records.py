"""What happens to partitions, as records of the standard ``logging``."""

from __future__ import annotations

import logging

from opencqrs_py.processing.recovery import Action
from opencqrs_py.processing.supervision import Notice, text_of

logger = logging.getLogger("opencqrs.processing")


def log_notice(notice: Notice) -> None:
    """Log what happened to a partition.

    The record has ``action`` (``recovered``, ``missed`` or that of the notice), ``group``, ``partition``, ``event``,
    ``position``, ``attempt`` and ``code``. Its level is INFO for a recovery, WARNING for what is tried again or repeats
    nothing, and ERROR for what needs a person.
    """
    failure = notice.failure
    extra = {
        "action": notice.action.value if notice.action else "missed" if failure else "recovered",
        "group": notice.group,
        "partition": str(notice.partition),
        "event": failure.event if failure else "",
        "position": failure.position if failure else None,
        "attempt": notice.attempt,
        "code": failure.code if failure else "",
    }
    logger.log(_level(notice), "%s", text_of(notice), extra=extra)


def _level(notice: Notice) -> int:
    if notice.failure is None:
        return logging.INFO
    return logging.WARNING if notice.action in (Action.RETRY, Action.WAIT, None) else logging.ERROR

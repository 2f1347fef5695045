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
    trouble = notice.trouble
    extra = {
        "action": notice.action.value if notice.action else "missed" if trouble else "recovered",
        "group": notice.group,
        "partition": str(notice.partition),
        "event": trouble.event if trouble else "",
        "position": trouble.position if trouble else None,
        "attempt": notice.attempt,
        "code": trouble.code if trouble else "",
    }
    logger.log(_level(notice), "%s", text_of(notice), extra=extra)


def _level(notice: Notice) -> int:
    if notice.trouble is None:
        return logging.INFO
    return logging.WARNING if notice.action in (Action.RETRY, Action.WAIT, None) else logging.ERROR

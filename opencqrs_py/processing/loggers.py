"""The loggers of this package, which the ``logging.config`` of a project may have disabled."""

from __future__ import annotations

import logging
from functools import lru_cache


def enable_loggers() -> None:
    """Enable our loggers if ``logging.config`` has disabled them: by default it disables all that it does not name.

    Failures and skipped events would go unreported. Levels, handlers and filters of the project stay. A program may
    configure its log at any time; this check takes less than a microsecond if nothing was disabled.
    """
    for logger in _ours(len(logging.root.manager.loggerDict)):
        if logger.disabled:
            logger.disabled = False


@lru_cache(maxsize=1)
def _ours(count: int) -> tuple[logging.Logger, ...]:
    """Return our loggers among all loggers; searched again when there are more."""
    del count
    there = tuple(logging.root.manager.loggerDict.items())
    return tuple(
        each for name, each in there if f"{name}.".startswith("opencqrs.") and isinstance(each, logging.Logger)
    )

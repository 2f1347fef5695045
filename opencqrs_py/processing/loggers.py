"""The loggers of this package, which the ``logging.config`` of a project may have disabled or emptied."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

_kept: dict[logging.Handler, int] = {}  # handlers that stay on our top logger, and its level if a project sets none


@contextmanager
def keeping(handler: logging.Handler, level: int) -> Iterator[None]:
    """Put this handler of our top logger back in this block, whenever a project has configured that logger.

    Within a block for the same handler, another one changes nothing.
    """
    if handler in _kept:
        yield
        return
    _kept[handler] = level
    try:
        yield
    finally:
        del _kept[handler]


def enable_loggers() -> None:
    """Enable our loggers if ``logging.config`` has disabled them: by default it disables all that it does not name.

    Failures and skipped events would go unreported. Levels, handlers and filters of the project stay. A program may
    configure its log at any time; this check takes less than a microsecond if nothing was disabled.
    """
    for logger in _ours(len(logging.root.manager.loggerDict)):
        if logger.disabled:
            logger.disabled = False
    for handler, level in [*_kept.items()]:
        _put_back(handler, level, logging.getLogger("opencqrs"))


def _put_back(handler: logging.Handler, level: int, logger: logging.Logger) -> None:
    if handler in logger.handlers:
        return
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(level)


@lru_cache(maxsize=1)
def _ours(count: int) -> tuple[logging.Logger, ...]:
    """Return our loggers among all loggers; searched again when there are more."""
    del count
    there = tuple(logging.root.manager.loggerDict.items())
    return tuple(
        each for name, each in there if f"{name}.".startswith("opencqrs.") and isinstance(each, logging.Logger)
    )

"""Records of ``logging`` on the terminal: the command line is one handler of what the package reports."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from datetime import UTC, datetime

from opencqrs_py.cli.json_lines import JsonFormatter, json_line
from opencqrs_py.cli.output import clean, messages, stderr
from opencqrs_py.cli.signals import signals
from opencqrs_py.errors import OpenCqrsError
from opencqrs_py.model.masking import scrubbed

_STYLES = {logging.INFO: "default", logging.WARNING: "yellow", logging.ERROR: "red"}


class TerminalHandler(logging.Handler):
    """Prints records to standard error: in colours on a terminal, elsewhere after the time in UTC; or as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.lowest = logging.INFO  # level that is printed
        self._failed: dict[tuple[str, str], tuple[str, str]] = {}  # code and text for group and partition

    def has_printed(self, error: OpenCqrsError) -> bool:
        """Return whether the failure of a partition with this error was printed, and how to fix it."""
        if not self._failed:
            return False
        from opencqrs_py.processing.exceptions import advice_of, code_of, message_of  # noqa: PLC0415 only after errors

        code, parts = code_of(error), (message_of(error), advice_of(error))
        return any(code == its and all(part in text for part in parts) for its, text in self._failed.values())

    def emit(self, record: logging.LogRecord) -> None:
        """Print the first line of a message in the colour of its level, and what follows without one."""
        try:
            if record.levelno >= self.lowest:  # the project's filters are not asked about others
                if _is_printed_by_project(record):
                    return
                self._show(record)
            self._note(record)
        except Exception:
            self.handleError(record)

    def _show(self, record: logging.LogRecord) -> None:
        if isinstance(self.formatter, JsonFormatter):
            _write_line(self.formatter.format(record))
        else:
            _print(record)

    def _note(self, record: logging.LogRecord) -> None:
        """Note with which error a partition has failed, until it has recovered."""
        said = record.__dict__
        key, code = (said.get("group", ""), said.get("partition", "")), said.get("code", "")
        if said.get("action") == "recovered":
            self._failed.pop(key, None)
        elif said.get("action") == "stop" and code:
            self._failed[key] = code, record.getMessage()


@contextmanager
def records_on_terminal() -> Iterator[TerminalHandler]:
    """Print what the package logs, from INFO, in this block; yields the handler that does."""
    logger, handler = logging.getLogger("opencqrs"), TerminalHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def kept_on_terminal() -> Iterator[None]:
    """Print in this block also what is logged after the project has configured our logger, which removes handlers."""
    from opencqrs_py.processing.loggers import keeping  # noqa: PLC0415 not for commands without a project

    with ExitStack() as kept:
        for handler in _handlers():
            kept.enter_context(keeping(handler, logging.INFO))
        yield


def print_only_warnings() -> None:
    """Leave out what is only for information, as for a program that reads JSON."""
    for handler in _handlers():
        handler.lowest = logging.WARNING


def write_json_lines() -> None:
    """Write records, and all other messages of the command, as a line of JSON each, until the process ends."""
    for handler in _handlers():
        handler.setFormatter(JsonFormatter())
    messages.line_of = json_line
    signals.line_of = json_line


def _handlers() -> list[TerminalHandler]:
    return [each for each in logging.getLogger("opencqrs").handlers if isinstance(each, TerminalHandler)]


def _print(record: logging.LogRecord) -> None:
    first, _, rest = clean(scrubbed(record.getMessage())).partition("\n")
    style = "green" if getattr(record, "action", "") == "recovered" else _STYLES.get(record.levelno, "default")
    stderr().print(_time(record) + first, style=style, markup=False, soft_wrap=True)
    if rest:
        stderr().print(rest, markup=False, soft_wrap=True)


def _write_line(line: str) -> None:
    file = stderr().file
    file.write(f"{line}\n")
    file.flush()


def _time(record: logging.LogRecord) -> str:
    if stderr().is_terminal:
        return ""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds").replace("+00:00", "Z") + " "


def _is_printed_by_project(record: logging.LogRecord) -> bool:
    """Return whether the project has set up logging that prints this record to the same place, so not twice."""
    return any(_prints(handler, record) for handler in _handlers_for(logging.root.getChild(record.name)))


def _handlers_for(logger: logging.Logger | None) -> Iterator[logging.Handler]:
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


def _prints(handler: logging.Handler, record: logging.LogRecord) -> bool:
    stream = getattr(handler, "stream", None)
    is_terminal = stream is not None and stream in (sys.stderr, sys.stdout)
    return is_terminal and record.levelno >= handler.level and _accepts(handler, record)


def _accepts(handler: logging.Handler, record: logging.LogRecord) -> bool:
    """Return whether the handler's filters let this record pass; what they change of it is left to the handler.

    They are asked twice: one that lets equal messages pass only once has no third time for its handler.
    """
    try:
        return all(handler.filter(copy(record)) for _ in range(2)) if handler.filters else True
    except Exception:  # the handler does not print it either
        return False

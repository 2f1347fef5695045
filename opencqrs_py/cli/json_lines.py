"""Records of ``logging`` as lines of JSON, for programs that collect logs."""

from __future__ import annotations

import json
import logging
import math
import traceback
from datetime import UTC, datetime

from typing_extensions import override

from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.times import in_milliseconds

_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OURS = ("time", "level", "logger", "message", "exception", "stack")


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON, whatever its message holds, without the secrets that this process uses.

    The keys ``time`` (ISO 8601, UTC), ``level``, ``logger`` and ``message`` come first; then all that the record has as
    ``extra``, such as ``group``, ``partition``, ``event``, ``position``, ``attempt`` and ``code``; last ``exception``,
    where there is one.
    """

    @override
    def format(self, record: logging.LogRecord) -> str:
        extra = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        line: dict[str, object] = {
            "time": _time(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            **{f"extra_{name}" if name in _OURS else name: value for name, value in extra.items()},
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps({name: _plain(value) for name, value in line.items()})


def json_line(message: str, level: int = logging.INFO, code: str = "") -> str:
    """Return a line of JSON for a message of the command itself."""
    record = logging.LogRecord("opencqrs.command", level, "", 0, message, None, None)
    if code:
        record.code = code
    return JsonFormatter().format(record)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit: the raw text, rather than nothing
        return f"{record.msg} {record.args}"


def _plain(value: object) -> object:
    match value:
        case None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case _:
            return scrubbed(str(value)).encode("utf-8", "backslashreplace").decode()  # names of files that are none


def _time(created: float) -> str:
    return in_milliseconds(datetime.fromtimestamp(created, UTC)).replace("+00:00", "Z")

"""Answers over HTTP: JSON without secrets, and why there is no answer."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import orjson

from opencqrs_py.assembly.overview import line_of_outage
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.web.cached_queries import QueryTimeoutError
from opencqrs_py.web.errands import ErrandTimeoutError
from opencqrs_py.web.server import Answer


def json_answer(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """Return a value as JSON, without the secrets that this process uses."""
    content = orjson.dumps(_scrubbed(value), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    return Answer(status, content + b"\n", "application/json")


def why_unavailable(error: Exception, seconds: float) -> str | None:
    """Return in one line why databases have not answered within some seconds; ``None`` if the error is another one."""
    if isinstance(error, QueryTimeoutError | ErrandTimeoutError):
        return f"the databases have not answered within {seconds:g} s"
    return line_of_outage(error)


def reason_of(error: Exception, seconds: float) -> str:
    """Return in one line why a query with a time limit has no result."""
    return why_unavailable(error, seconds) or scrubbed(one_line(error))


def _scrubbed(value: Any) -> Any:
    """Return what is to be shown without the secrets that this process uses."""
    match value:
        case str():
            return scrubbed(value)
        case dict():
            return {name: _scrubbed(each) for name, each in value.items()}
        case list() | tuple():
            return [_scrubbed(each) for each in value]
        case _:
            return value

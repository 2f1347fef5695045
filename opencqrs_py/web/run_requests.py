"""Requests for runs of jobs: which may be sent, and what they request."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson

from opencqrs_py.model.job import JobId
from opencqrs_py.model.json_text import duplicate_key
from opencqrs_py.web.server import Answer, Request, text_answer

_KEY = re.compile("[ -~]{1,64}")
_MOST_SHOWN = 40  # characters of a request's text
_FORM = '{"ids": ["4711", 7]}'


class RequestRefusedError(Exception):
    """A request that is refused.

    Attributes:
        answer: The answer to it.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A requested run.

    Attributes:
        ids: What it is for; empty: all that applies.
        key: The header ``Idempotency-Key``; empty without it.
    """

    ids: tuple[JobId, ...] = ()
    key: str = ""


def require_token(request: Request, token: str | None) -> None:
    """Return if a request has the token that jobs require.

    Args:
        request: The request, with ``Authorization: Bearer TOKEN``.
        token: The token; ``None`` if there is none: requests are refused.

    Raises:
        RequestRefusedError: 403 if there is no token, 401 if the request has none or another one.
    """
    if token is None:
        what = "jobs need a token, and none is set: set http.token"
        raise RequestRefusedError(text_answer(HTTPStatus.FORBIDDEN, what))
    found = request.headers.get_all("Authorization", [])
    scheme, _, given = found[0].partition(" ") if len(found) == 1 else ("", "", "")
    same = hmac.compare_digest(given.strip().encode(errors="replace"), token.encode())
    if not (same and scheme.casefold() == "bearer"):
        what = "send the token of http.token: Authorization: Bearer TOKEN"
        raise RequestRefusedError(
            text_answer(HTTPStatus.UNAUTHORIZED, what, WWW_Authenticate='Bearer realm="opencqrs"')
        )


def run_request(request: Request) -> RunRequest:
    """Return what a request is for.

    Raises:
        RequestRefusedError: 400, if it has unknown content: the run must not do more than intended.
    """
    keys = request.headers.get_all("Idempotency-Key", [])
    if len(keys) > 1 or any(_KEY.fullmatch(key) is None for key in keys):
        raise _wrong("Idempotency-Key takes 1 to 64 printable characters of ASCII, once")
    return RunRequest(_ids(request.body) if request.body.strip() else (), keys[0] if keys else "")


def _ids(body: bytes) -> tuple[JobId, ...]:
    try:
        found: Any = orjson.loads(body)
    except ValueError as error:
        raise _wrong(f"the body is not JSON: {_shown(str(error), 200)}") from None
    if (duplicate := duplicate_key(body)) is not None:
        raise _wrong(_shown(duplicate, 200))
    if not isinstance(found, dict):
        raise _wrong(f"the body is not a JSON object; write {_FORM}, or send none to run the job for all")
    unknown = [name for name in found if name != "ids"]
    if unknown:
        raise _wrong(f"the body has an unknown key '{_shown(unknown[0])}'; write {_FORM}")
    if not found:
        return ()
    ids = found["ids"]
    if not isinstance(ids, list):
        raise _wrong(f"ids is not a list; write {_FORM}, or send no body to run the job for all")
    if not ids:
        raise _wrong("ids is empty; name some, or send no body to run the job for all")
    for place, each in enumerate(ids):
        if isinstance(each, bool) or not isinstance(each, int | str):
            raise _wrong(f"ids[{place}] is neither a text nor a whole number of 64 bits; write {_FORM}")
    return tuple(ids)


def _wrong(what: str) -> RequestRefusedError:
    return RequestRefusedError(text_answer(HTTPStatus.BAD_REQUEST, what))


def _shown(text: str, most: int = _MOST_SHOWN) -> str:
    """Return the beginning of a request's text, in one line."""
    begin = "".join(each if each.isprintable() else "?" for each in text[:most])
    return begin if len(text) <= most else f"{begin}…"

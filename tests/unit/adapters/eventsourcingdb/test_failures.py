"""How errors of the client are translated."""

from __future__ import annotations

import pickle
import ssl
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from eventsourcingdb import (
    ConnectionStalledError,
    DbApiError,
    ErrorCode,
    InternalError,
    OutcomeUnknownError,
    ServerError,
    ValidationError,
)
from eventsourcingdb.parse_raw_message import parse_raw_message

from opencqrs_py.adapters.eventsourcingdb.connection import EventSourcingDbUnavailableError, explained
from opencqrs_py.errors import EventStoreError, PreconditionFailedError

URL = "eventsourcingdb://db:3000"
KEY: Any = SimpleNamespace(host="db", port=3000, ssl=True, is_ssl=True)
REFUSED = OSError(111, "refused")
NO_HTTP = aiohttp.ClientResponseError(
    SimpleNamespace(real_url=URL), (), status=400, message="Bad line:\n\n  b'220'\n  ^"
)
UNTRUSTED = ssl.SSLCertVerificationError(1, "self-signed")


def unreadable(content: bytes) -> ServerError:
    """Return the error of the client for what it cannot read."""
    try:
        parse_raw_message(content)
    except ServerError as error:
        return error
    raise AssertionError(content)


def undetected(body: str) -> ServerError:
    """Return the error of the client for a response to its ping that it does not understand."""
    return ServerError(f"Failed to find out whether the server offers the v2 API, it answered with {body}.")


def reported(status: int, code: str | None = None, text: str = "words") -> DbApiError:
    return DbApiError(status=status, description=text, code=code)


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (ConnectionStalledError(30), "OCQ-331", EventSourcingDbUnavailableError),
        (aiohttp.ClientConnectorError(KEY, REFUSED), "OCQ-331", EventSourcingDbUnavailableError),
        (aiohttp.ClientPayloadError("not completed"), "OCQ-331", EventSourcingDbUnavailableError),
        (aiohttp.ServerDisconnectedError(), "OCQ-331", EventSourcingDbUnavailableError),
        (ConnectionResetError(), "OCQ-331", EventSourcingDbUnavailableError),
        (TimeoutError(), "OCQ-331", EventSourcingDbUnavailableError),
        (ServerError("The server closed the stream before it ended, so …"), "OCQ-331", EventSourcingDbUnavailableError),
        (unreadable(b'{"type":"ev'), "OCQ-331", EventSourcingDbUnavailableError),
        (unreadable('{"type":"ö'.encode()[:-1]), "OCQ-331", EventSourcingDbUnavailableError),
        (unreadable(b'{"type":"ev\n'), "OCQ-334", EventStoreError),
        (unreadable(b'{"type":"\xff"}\n'), "OCQ-334", EventStoreError),
        (unreadable(b"<html>"), "OCQ-334", EventStoreError),
        (unreadable(b"\xff"), "OCQ-334", EventStoreError),
        (undetected('{"type":"ev'), "OCQ-331", EventSourcingDbUnavailableError),
        (undetected(""), "OCQ-331", EventSourcingDbUnavailableError),
        (undetected('{"type":"news"}'), "OCQ-334", EventStoreError),
        (undetected("<html>"), "OCQ-334", EventStoreError),
        (ServerError('A line is {"type":"ev.'), "OCQ-334", EventStoreError),
        (ServerError("Server must be EventSourcingDB"), "OCQ-331", EventSourcingDbUnavailableError),
        (reported(500), "OCQ-331", EventSourcingDbUnavailableError),
        (reported(503), "OCQ-331", EventSourcingDbUnavailableError),
        (reported(408), "OCQ-331", EventSourcingDbUnavailableError),
        (reported(429), "OCQ-331", EventSourcingDbUnavailableError),
        (reported(200, ErrorCode.SERVER_SHUTTING_DOWN), "OCQ-331", EventSourcingDbUnavailableError),
        (reported(503, ErrorCode.STORE_READ_ONLY), "OCQ-333", EventStoreError),
        (reported(507, ErrorCode.LICENSE_INVALID), "OCQ-333", EventStoreError),
        (reported(200, text=""), "OCQ-333", EventStoreError),
        (reported(400), "OCQ-333", EventStoreError),
        (reported(409, ErrorCode.EVENT_SCHEMA_VIOLATED), "OCQ-333", EventStoreError),
        (reported(401), "OCQ-332", EventStoreError),
        (reported(409), "OCQ-320", PreconditionFailedError),
        (reported(409, ErrorCode.PRECONDITION_VIOLATED), "OCQ-320", PreconditionFailedError),
        (reported(200, ErrorCode.PRECONDITION_VIOLATED), "OCQ-320", PreconditionFailedError),
        (OutcomeUnknownError(ConnectionResetError()), "OCQ-335", EventStoreError),
        (aiohttp.ClientConnectorCertificateError(KEY, UNTRUSTED), "OCQ-334", EventStoreError),
        (aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, "wrong version")), "OCQ-334", EventStoreError),
        (NO_HTTP, "OCQ-334", EventStoreError),
        (ServerError("A line of the response is longer than 1 byte."), "OCQ-334", EventStoreError),
        (ValidationError("no id"), "OCQ-334", EventStoreError),
        (InternalError("odd"), "OCQ-334", EventStoreError),
        (ValueError("not enough values to unpack"), "OCQ-334", EventStoreError),
    ],
    ids=lambda value: repr(value) if isinstance(value, Exception) else "",
)
def test_errors_of_the_client_are_explained(error: Exception, code: str, kind: type[Exception]) -> None:
    translated = explained(error, URL)
    assert type(translated) is kind
    assert isinstance(translated, EventStoreError)
    assert (translated.code, translated.where) == (code, URL)
    assert "()" not in translated.what
    assert "\n" not in translated.what
    assert str(pickle.loads(pickle.dumps(translated))) == str(translated)


@pytest.mark.parametrize(
    "error", [KeyError("mine"), EventStoreError("OCQ-331", "already explained"), TypeError("a bug")]
)
def test_other_errors_stay_unchanged(error: Exception) -> None:
    assert explained(error, URL) is error

"""Failures of EventSourcingDB and its client: which pass by themselves, and what a person can do about the others.

Source:
    The mapping of client errors in OpenCQRS: connection, end of stream, 5xx and 408 pass; 409 is a conflict; the rest
    does not pass. Added here: 429, a stall, and errors whose code says that the server is not ready.
"""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Protocol

import aiohttp
from eventsourcingdb import (
    ConnectionStalledError,
    CustomError,
    DbApiError,
    ErrorCode,
    OutcomeUnknownError,
    ServerError,
)

from opencqrs_py.errors import EventStoreError, OtherLogError, PreconditionFailedError
from opencqrs_py.model.masking import scrubbed

__all__ = ["EventSourcingDbAwayError", "away", "explained", "limited", "not_the_log", "other_store"]

_PASSING_STATUSES = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_LASTING_STATUSES = {HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.INSUFFICIENT_STORAGE}  # the latter for the license, too
_LASTING_CODES = {ErrorCode.STORE_READ_ONLY, ErrorCode.LICENSE_INVALID}
_PASSING_CODES = {
    ErrorCode.SERVER_SHUTTING_DOWN,
    ErrorCode.INDEXES_REBUILDING,
    ErrorCode.RESTORE_IN_PROGRESS,
    ErrorCode.STORE_FAILED,
}
# Of what the client raises as a bare ServerError, only the text tells these two: a stream that was closed in the
# middle, and an answer without the server's header, which is what a proxy gives while the server is away.
_PASSING_TEXTS = ("closed the stream before it ended", "must be EventSourcingDB")
_SHUTTING_DOWN = "shutting down"  # in version 1 errors have no code; its words are not documented

_REPLACED = (
    "restore the event store that the progress belongs to; or rebuild the group: delete its read model and its "
    "progress rows; or, to continue from here all the same, clear log_fingerprint in its progress rows, and start again"
)
_START = "start it, or mend event-store.url"
_TOKEN = "set event-store.api-token to the token that the server was started with"  # noqa: S105 no token, its name


class EventSourcingDbAwayError(EventStoreError):
    """EventSourcingDB does not answer for now (OCQ-331)."""


def explained(error: Exception, label: str) -> Exception:
    """Return what to raise instead of an error of the client.

    Args:
        error: Raised while the client was used; what is not the client's comes back as it is.
        label: How messages name the server.
    """
    match error:
        case DbApiError():
            return _refused(error, label)
        case OutcomeUnknownError():
            what = f"it is unknown whether EventSourcingDB has stored the events ({_reason(error.cause)})"
            fix = "read the subjects to see; or append again with a precondition that holds only if it has not"
            return EventStoreError("OCQ-335", what, label, fix)
        case aiohttp.ClientSSLError() | aiohttp.ClientConnectorCertificateError():
            fix = "make the server's certificate one that this machine trusts, or mend event-store.url"
            return EventStoreError("OCQ-334", f"no secure connection ({_reason(error)})", label, fix)
        case _ if _is_outage(error):
            return away(_reason(error), label)
        case CustomError() | ValueError():
            what = f"the answer of EventSourcingDB cannot be understood ({_reason(error)})"
            fix = "is this an EventSourcingDB? a newer one may need a newer client: pip install -U eventsourcingdb"
            return EventStoreError("OCQ-334", what, label, fix)
    return error


def away(reason: str, label: str) -> EventSourcingDbAwayError:
    """Return the error for a server that does not answer as it should for now."""
    return EventSourcingDbAwayError("OCQ-331", f"EventSourcingDB cannot be reached ({reason})", label, _START)


class _Link(Protocol):
    """An event's position and hash."""

    @property
    def position(self) -> int: ...

    @property
    def hash(self) -> str: ...


def not_the_log(expected: _Link, found: _Link | None, label: str) -> EventStoreError:
    """Return the error for a log that does not hold what was read before.

    Args:
        expected: An event that was read.
        found: The newest event at or below its position; ``None`` if the log is empty.
        label: How messages name the server.
    """
    if found is None:
        there = "the log is empty"
    elif found.position < expected.position:
        there = f"the log ends at event {found.position - 1}"
    else:
        there = f"it has {_short(found.hash)}"
    what = (
        "the event store is not the one that the progress belongs to: "
        f"event {expected.position - 1} had the hash {_short(expected.hash)}, and now {there}"
    )
    return OtherLogError("OCQ-316", what, label, _REPLACED)


def other_store(position: int, found: str, label: str) -> EventStoreError:
    """Return the error for progress at a position that this log cannot have made."""
    what = f"the event store is not the one that the progress belongs to: the progress is at {position}, {found}"
    return OtherLogError("OCQ-316", what, label, _REPLACED)


def _short(text: str) -> str:
    return f"…{text[-12:]}"


def limited(seconds: float, label: str) -> EventSourcingDbAwayError:
    """Return the error for a request that the server has asked not to send yet."""
    what = f"EventSourcingDB limits requests, and asks for none in the next {math.ceil(seconds)} s"
    fix = "wait; if it happens often, send fewer requests, or raise the limit of the server"
    return EventSourcingDbAwayError("OCQ-331", what, label, fix)


def _refused(error: DbApiError, label: str) -> EventStoreError:
    conflict = error.status == HTTPStatus.CONFLICT and error.code is None
    text = scrubbed(error.description) or f"status {error.status}"
    if conflict or error.code == ErrorCode.PRECONDITION_VIOLATED:
        fix = "read the subject's events, decide anew and append again"
        return PreconditionFailedError("OCQ-320", f"a precondition does not hold ({text})", label, fix)
    if error.status == HTTPStatus.UNAUTHORIZED:
        return EventStoreError("OCQ-332", f"EventSourcingDB does not accept the API token ({text})", label, _TOKEN)
    if error.retry_after:
        return limited(error.retry_after, label)
    if _passes(error):
        return away(text, label)
    return EventStoreError("OCQ-333", f"EventSourcingDB reports an error: {text}", label)


def _is_outage(error: Exception) -> bool:
    if isinstance(error, ConnectionStalledError | aiohttp.ClientError | OSError):
        return True
    return isinstance(error, ServerError) and any(text in str(error) for text in _PASSING_TEXTS)


def _passes(error: DbApiError) -> bool:
    if error.code in _PASSING_CODES or error.status in _PASSING_STATUSES:
        return True
    if error.code is None and error.status == HTTPStatus.OK and _SHUTTING_DOWN in error.description:
        return True
    if error.code in _LASTING_CODES or error.status in _LASTING_STATUSES:
        return False
    return error.status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _reason(error: BaseException) -> str:
    text = str(error).removeprefix("Server error occurred: ").removeprefix("Validation error occurred: ")
    return scrubbed(text.rstrip(".")) or type(error).__name__

"""The connection to EventSourcingDB: its asynchronous client on a separate event loop, and its failures.

Source:
    The mapping of client errors in OpenCQRS: connection, end of stream, 5xx and 408 are transient; 409 is a conflict;
        the rest is permanent. Added here: 429, a stall, and errors whose code says that the server is not ready.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from http import HTTPStatus
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar

import aiohttp
from eventsourcingdb import (
    Client,
    ConnectionStalledError,
    CustomError,
    DbApiError,
    ErrorCode,
    OutcomeUnknownError,
    ServerError,
)
from typing_extensions import override

from opencqrs_py.adapters.eventsourcingdb.address import Address
from opencqrs_py.adapters.eventsourcingdb.answering import PASSING, RedirectedError, passes, refuse_others
from opencqrs_py.adapters.forks import Inherited, keep_open, leave_to_parent_in_forks
from opencqrs_py.errors import EventStoreError, PreconditionFailedError
from opencqrs_py.model.masking import scrubbed

_LASTING_CODES = {ErrorCode.STORE_READ_ONLY, ErrorCode.LICENSE_INVALID}
_PASSING_CODES = {
    ErrorCode.SERVER_SHUTTING_DOWN,
    ErrorCode.INDEXES_REBUILDING,
    ErrorCode.RESTORE_IN_PROGRESS,
    ErrorCode.STORE_FAILED,
}
# For a bare ServerError of the client, only the text shows these two: a stream that was closed in the middle, and a
# response without the server's header, as from a proxy while the server is down.
_PASSING_TEXTS = ("closed the stream before it ended", "must be EventSourcingDB")
_OF_PING = "find out whether the server offers the v2 API, it answered with "  # then the whole body and a point
_SHUTTING_DOWN = "shutting down"  # in version 1 errors have no code; its words are not documented

_START = "start it, or correct event-store.url"
_TOKEN = "set event-store.api-token to the token that the server was started with"  # noqa: S105 no token, its name


class EventSourcingDbUnavailableError(EventStoreError):
    """EventSourcingDB is temporarily unavailable (OCQ-331)."""


def explained(error: Exception, label: str) -> Exception:
    """Return what to raise instead of an error of the client; other errors are returned unchanged."""
    match error:
        case DbApiError():
            return _refused(error, label)
        case OutcomeUnknownError():
            refused = error.cause if isinstance(error.cause, RedirectedError) else None  # which has stored nothing
            return refused or unknown(_reason(error.cause), label)
        case aiohttp.ClientSSLError() | aiohttp.ClientConnectorCertificateError():
            fix = "use a server certificate that this machine trusts, or correct event-store.url"
            return EventStoreError("OCQ-334", f"no secure connection ({_reason(error)})", label, fix)
        case _ if _is_outage(error):
            return unavailable(_reason(error), label)
        case CustomError() | ValueError() | aiohttp.ClientResponseError():
            what = f"the response of EventSourcingDB cannot be understood ({_reason(error)})"
            fix = "is this an EventSourcingDB? a newer one may need a newer client: pip install -U eventsourcingdb"
            return EventStoreError("OCQ-334", what, label, fix)
    return error


def unavailable(reason: str, label: str) -> EventSourcingDbUnavailableError:
    """Return the error for a server that is temporarily unavailable."""
    return EventSourcingDbUnavailableError("OCQ-331", f"EventSourcingDB cannot be reached ({reason})", label, _START)


def unknown(reason: str, label: str) -> EventStoreError:
    """Return the error for an append whose response was lost."""
    what = f"it is unknown whether EventSourcingDB has stored the events ({reason})"
    fix = "read the subjects to see; or append again with a precondition that holds only if it has not"
    return EventStoreError("OCQ-335", what, label, fix)


def limited(seconds: float, label: str) -> EventSourcingDbUnavailableError:
    """Return the error for a request that must not be sent yet, by the server's ``Retry-After``."""
    what = f"EventSourcingDB limits requests, and allows none in the next {math.ceil(seconds)} s"
    fix = "wait; if it happens often, send fewer requests, or increase the limit of the server"
    return EventSourcingDbUnavailableError("OCQ-331", what, label, fix)


def _refused(error: DbApiError, label: str) -> EventStoreError:
    conflict = error.status == HTTPStatus.CONFLICT and error.code is None
    text = scrubbed(error.description) or f"status {error.status}"
    if conflict or error.code == ErrorCode.PRECONDITION_VIOLATED:
        fix = "read the subject's events, decide again and append again"
        return PreconditionFailedError("OCQ-320", f"a precondition does not hold ({text})", label, fix)
    if error.status == HTTPStatus.UNAUTHORIZED:
        return EventStoreError("OCQ-332", f"EventSourcingDB does not accept the API token ({text})", label, _TOKEN)
    if error.retry_after:
        return limited(error.retry_after, label)
    if _passes(error):
        return unavailable(text, label)
    return EventStoreError("OCQ-333", f"EventSourcingDB reports an error: {text}", label)


def _is_outage(error: Exception) -> bool:
    if isinstance(error, ConnectionStalledError | aiohttp.ClientError | OSError):
        return not isinstance(error, aiohttp.ClientResponseError)  # too many redirects, or not HTTP
    if _ends_early(error):
        return True
    return isinstance(error, ServerError) and any(text in str(error) for text in _PASSING_TEXTS)


def _ends_early(error: BaseException) -> bool:
    """Return whether a response ended, even cleanly, before it was complete: the client passes on what has arrived.

    Each line is an object and ends with a line feed; other text that cannot be read is not cut.
    """
    match error.__cause__:
        case json.JSONDecodeError(doc=text):
            return text.startswith("{") and not text.endswith("\n")
        case UnicodeDecodeError(object=content):
            return content.startswith(b"{") and not content.endswith(b"\n")
    return isinstance(error, ServerError) and _quotes_cut_ping(str(error))


def _quotes_cut_ping(text: str) -> bool:
    """Return whether an error quotes a response to a ping that is empty, or the beginning of an object."""
    _, quotes, rest = text.partition(_OF_PING)
    body = rest.removesuffix(".")
    if not quotes or (body and not body.startswith("{")):
        return False
    try:
        json.loads(body)
    except ValueError:
        return True
    return False


def _passes(error: DbApiError) -> bool:
    if error.code in _PASSING_CODES or error.status in PASSING:
        return True
    if error.code is None and error.status == HTTPStatus.OK and _SHUTTING_DOWN in error.description:
        return True
    return error.code not in _LASTING_CODES and passes(error.status)


def _reason(error: BaseException) -> str:
    match error:
        case EventStoreError():
            text = error.what
        case _ if _ends_early(error):
            text = "its response ended before it was complete"
        case aiohttp.ClientResponseError():  # if it is not HTTP, some lines, with a mark below the last one
            text = " ".join(error.message.replace("^", " ").split())
        case _:
            text = str(error)
    text = text.removeprefix("Server error occurred: ").removeprefix("Validation error occurred: ")
    return scrubbed(text.rstrip(".")) or type(error).__name__


T = TypeVar("T")

_CLOSED = "the connection was closed in the meantime"
_LONGEST_PAUSE = 300  # seconds; a longer ``Retry-After`` is treated as an error of the server
_CLOSING_SECONDS = 5.0  # longest wait for the loop's thread to end
_REQUEST_SECONDS = 1.0  # for requests in progress when the connection is closed

Use = Callable[[Client], Coroutine[Any, Any, T]]


class Connection(Inherited):
    """A client whose coroutines run on one thread, started at first use and ended with the process at the latest.

    Safe for several threads; not to be used across a fork.

    Args:
        address: Where the server is.
        api_token: The server's token.
        stall_seconds: After so long without a sign of life, a heartbeat included, the server counts as unavailable.
        monotonic: The clock for ``Retry-After``, in seconds.
    """

    def __init__(
        self, address: Address, api_token: str, stall_seconds: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._monotonic = monotonic
        self._not_before = -math.inf
        self._new_client = partial(Client, address.base_url, api_token, stall_timeout=stall_seconds)
        self._lock = Lock()
        self._loop: _Loop | None = None
        leave_to_parent_in_forks(self)

    def run(self, use: Use[T], closed: Callable[[str, str], EventStoreError] = unavailable) -> T:
        """Have the client do something and wait for it; instead of its errors, raise OCQ-320 or OCQ-331 to OCQ-335.

        Args:
            use: What the client should do.
            closed: Makes the error for a connection that is closed in the meantime, from the reason and the server's
                label.
        """
        future = self._start(use, _Loop.start_request)
        try:
            return future.result()
        except EventStoreError as error:
            raise error.with_traceback(None) from None  # the place on the loop does not help the reader
        except CancelledError:
            raise closed(_CLOSED, self._address.label) from None
        except Exception as error:
            raise self.explained(error) from error
        except BaseException:  # Ctrl-C: the result is no longer waited for
            future.cancel()
            raise

    def start(self, use: Use[T]) -> Future[T]:
        """Have the client do something without waiting for it; the future raises the client's own errors."""
        return self._start(use, _Loop.start)

    def _start(self, use: Use[T], start: Callable[[_Loop, Use[T]], Future[T]]) -> Future[T]:
        with self._lock:
            if self._loop is None:
                self._loop = _Loop(self._new_client(), self._address.label)
                weakref.finalize(self, self._loop.close)
            return start(self._loop, partial(self._when_allowed, use))

    async def _when_allowed(self, use: Use[T], client: Client) -> T:
        """Use the client, unless the server has requested a pause.

        Source:
            EventSourcingDB's page on rate limiting: the status 429, and ``Retry-After`` as the authoritative answer to
            when a request may be sent again.
        """
        left = self._not_before - self._monotonic()
        if left > 0:
            raise limited(left, self._address.label)
        try:
            return await use(client)
        except DbApiError as error:
            if error.retry_after is not None:
                self._not_before = self._monotonic() + min(error.retry_after, _LONGEST_PAUSE)
            raise

    def explained(self, error: BaseException) -> BaseException:
        """Return what to raise instead of an error of the client."""
        if isinstance(error, CancelledError):
            return unavailable(_CLOSED, self._address.label)
        return explained(error, self._address.label) if isinstance(error, Exception) else error

    def close(self) -> None:
        """Abort what is in progress and close; the next use opens a new connection.

        A request, such as an append, first gets a second to finish.
        """
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    @override
    def leave_to_parent(self) -> None:
        """In a fork: the loop's thread does not exist, and its connections are the parent's."""
        keep_open(self._loop)
        self._lock, self._loop = Lock(), None


class _Loop:
    """A client, its event loop and the loop's thread."""

    def __init__(self, client: Client, label: str) -> None:
        self._client = client
        self._label = label
        self._is_open = False
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="opencqrs-eventsourcingdb", daemon=True)
        self._closing = Lock()
        self._requests: set[asyncio.Task[Any] | None] = set()
        self._thread.start()

    def start(self, use: Use[T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(self._when_open(use), self._loop)

    def start_request(self, use: Use[T]) -> Future[T]:
        """Start a task that ends on its own."""
        return asyncio.run_coroutine_threadsafe(self._as_request(use), self._loop)

    async def _as_request(self, use: Use[T]) -> T:
        self._requests.add(asyncio.current_task())
        try:
            return await self._when_open(use)
        finally:
            self._requests.discard(asyncio.current_task())

    async def _when_open(self, use: Use[T]) -> T:
        if not self._is_open:
            self._is_open = True  # nothing is awaited before the session exists, so no other use can interleave
            await self._client.__aenter__()
            refuse_others(self._client, self._label)
        return await use(self._client)

    def close(self) -> None:
        """End the thread; a second call, as at the end of the process, does nothing."""
        if not self._closing.acquire(blocking=False):
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        if current_thread() is not self._thread:  # where the garbage collector may call this
            self._thread.join(_CLOSING_SECONDS)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._finish())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if requests := others & self._requests:
            await asyncio.wait(requests, timeout=_REQUEST_SECONDS)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.__aexit__()

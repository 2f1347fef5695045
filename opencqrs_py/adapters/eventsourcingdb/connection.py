"""The connection to EventSourcingDB: its asynchronous client on an event loop of its own, for threads to use."""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar

from eventsourcingdb import Client, DbApiError

from opencqrs_py.adapters.eventsourcingdb.address import Address
from opencqrs_py.adapters.eventsourcingdb.failures import away, explained, limited
from opencqrs_py.errors import EventStoreError

__all__ = ["Connection"]

T = TypeVar("T")

_LONGEST_PAUSE = 300  # seconds; what a server asks for beyond that is taken for a mistake
_CLOSING_SECONDS = 5.0  # longest wait for the loop's thread to end

Use = Callable[[Client], Coroutine[Any, Any, T]]


class Connection:
    """A client whose coroutines run on one thread, started at first use and ended with the process at the latest.

    Safe for several threads; not to be used across a fork.

    Args:
        address: Where the server is.
        api_token: The server's token.
        stall_seconds: After so long without a sign of life, a heartbeat included, the server counts as away.
        monotonic: The clock that ``Retry-After`` is kept by, in seconds.
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

    def run(self, use: Use[T]) -> T:
        """Let the client do something and wait for it.

        Raises:
            EventStoreError: OCQ-320 or OCQ-331 to OCQ-335, in place of the client's errors.
        """
        future = self.start(use)
        try:
            return future.result()
        except EventStoreError as error:
            raise error.with_traceback(None) from None  # where on the loop it was raised says nothing to a person
        except Exception as error:
            raise self.explained(error) from error
        except BaseException:  # Ctrl-C: nobody waits for the answer any more
            future.cancel()
            raise

    def start(self, use: Use[T]) -> Future[T]:
        """Let the client do something, and do not wait for it; the future raises the client's own errors."""
        with self._lock:
            if self._loop is None:
                self._loop = _Loop(self._new_client())
                weakref.finalize(self, self._loop.close)
            return self._loop.start(partial(self._when_allowed, use))

    async def _when_allowed(self, use: Use[T], client: Client) -> T:
        """Use the client, unless the server has asked for no request before a time.

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
            return away("the connection was closed meanwhile", self._address.label)
        return explained(error, self._address.label) if isinstance(error, Exception) else error

    def close(self) -> None:
        """Give up what is under way and close everything; the next use opens it anew."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()


class _Loop:
    """A client, its event loop and the loop's thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="opencqrs-eventsourcingdb", daemon=True)
        self._closing = Lock()
        self._thread.start()

    def start(self, use: Use[T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(use(self._client), self._loop)

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
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.__aexit__()

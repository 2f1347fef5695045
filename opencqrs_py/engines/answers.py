"""Answers of participants: calls of their methods with a time limit, on threads that can be abandoned."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Hashable, Iterable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TypeAlias, cast

from opencqrs_py.engines.threads import Threads
from opencqrs_py.processing.awaiting import finish, tasks_may_stay
from opencqrs_py.processing.checkpoints.participation import CallOutcome, ParticipantCall
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.notices import in_words

_Returned: TypeAlias = "SimpleQueue[tuple[Hashable, CallOutcome]]"


class AnswersInTime:
    """Calls the methods of participants. Safe for several threads.

    Awaitables are awaited on the caller's thread and its event loop, which is also that of the handlers of the
    partition, so both can share a client. Everything else runs on its own thread.
    """

    def __init__(self) -> None:
        self._threads = Threads()
        self._in_hand: dict[Hashable, float] = {}
        self._lock = Lock()

    def ask(self, calls: Mapping[Hashable, ParticipantCall], seconds: float) -> dict[Hashable, CallOutcome]:
        """Make calls at once and wait for them; see ``Caller``."""
        until = time.monotonic() + seconds
        free = {key: call for key, call in calls.items() if self._begin(key)}
        answers = {key: CallOutcome(error=self._still(key)) for key in calls.keys() - free.keys()}
        returned: _Returned = SimpleQueue()
        awaited = {key: call for key, call in free.items() if inspect.iscoroutinefunction(call)}
        waiting = free.keys() - awaited.keys()
        for key in waiting:
            self._begin_call(key, free[key], returned)
        if awaited:
            try:
                with tasks_may_stay():
                    answers |= finish(_awaited(awaited, seconds))
            finally:
                self._end(awaited)
        while waiting:
            try:
                key, answer = returned.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                return answers | dict.fromkeys(waiting, CallOutcome(error=_late(seconds)))
            answers[key] = answer
            waiting.discard(key)
        return answers

    def still(self, key: Hashable) -> TimeoutError | None:
        """Return the error that a call would get now because an earlier one has not returned; see ``Caller``."""
        with self._lock:
            since = self._in_hand.get(key)
        return None if since is None else self._still(key)

    def _begin_call(self, key: Hashable, call: ParticipantCall, returned: _Returned) -> None:
        """Begin a call on a thread of its own. If there is no thread for it, that is its outcome."""
        try:
            self._threads.run("opencqrs-participant", partial(self._make, key, call, returned))
        except Exception as error:  # the process has too many threads, or is ending
            self._end([key])
            returned.put((key, CallOutcome(error=error)))

    def _make(self, key: Hashable, call: ParticipantCall, returned: _Returned) -> None:
        """Make a call on this thread, and report its outcome."""
        try:
            outcome = CallOutcome(finish(call()))
        except BaseException as error:  # anything that the project's code raises is an answer
            outcome = CallOutcome(error=error)
        self._end([key])
        returned.put((key, outcome))

    def _begin(self, key: Hashable) -> bool:
        with self._lock:
            if key in self._in_hand:
                return False
            self._in_hand[key] = time.monotonic()
            return True

    def _end(self, keys: Iterable[Hashable]) -> None:
        with self._lock:
            for key in keys:
                self._in_hand.pop(key, None)

    def _still(self, key: Hashable) -> TimeoutError:
        with self._lock:
            since = self._in_hand.get(key, time.monotonic())
        return TimeoutError(f"an earlier call has not returned for {in_words(time.monotonic() - since)}")


async def _awaited(calls: Mapping[Hashable, ParticipantCall], seconds: float) -> dict[Hashable, CallOutcome]:
    answers = await asyncio.gather(*(_one(call, seconds) for call in calls.values()))
    return dict(zip(calls, answers, strict=True))


async def _one(call: ParticipantCall, seconds: float) -> CallOutcome:
    try:
        async with asyncio.timeout(seconds) as limit:
            value = await cast("Awaitable[object]", call())
    except BaseException as error:
        raise_interrupt(error)
        return CallOutcome(error=_late(seconds) if limit.expired() else error)
    return CallOutcome(value)


def _late(seconds: float) -> TimeoutError:
    return TimeoutError(f"it has not returned within {in_words(seconds)} (checkpointing.timeout)")

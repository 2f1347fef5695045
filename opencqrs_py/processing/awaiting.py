"""Awaiting: runs awaitables of ``async`` functions to their end, on one event loop per thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, copy_context
from inspect import isawaitable
from itertools import starmap
from queue import SimpleQueue
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from opencqrs_py.errors import LazyResultError
from opencqrs_py.processing.begun_tasks import BegunTasks, cancelled, package_of
from opencqrs_py.processing.forks import end_if_forked

_PATIENCE = 1.0  # seconds that an interrupted call on the other thread gets to end
_LOOK = 0.1  # seconds between checks for an interrupt
_MANAGERS = frozenset[type]({type(contextmanager(iter)(())), type(asynccontextmanager(id)(()))})  # type: ignore[arg-type]
_LAZY = frozenset({GeneratorType, AsyncGeneratorType, CoroutineType, map, filter, starmap, Future}) | _MANAGERS
_SEVERAL = frozenset({list, tuple, set})
_KINDS = {AsyncGeneratorType: "an async generator", CoroutineType: "a coroutine"}
_of_thread = threading.local()


def finish(result: Any) -> Any:
    """Return ``result``, or its outcome when it is awaitable.

    Also when a plain decorator hides that a function is ``async``. The loop stays open between two calls of a thread,
    so clients that belong to a loop can be kept. Where a loop is running already, as in a notebook or an async test,
    the call is made on a separate thread with its own loop, and waited for.

    Tasks that the project's code begins and does not await end with the call, except within ``tasks_may_stay``.

    Raises:
        TasksLeftError: OCQ-242, if there are such tasks.
        BaseException: Whatever the awaitable raises; ``KeyboardInterrupt``, if it is interrupted.
    """
    if result is None or not isawaitable(result):
        return result
    may_stay = getattr(_of_thread, "tasks_may_stay", False)
    call = _Call(result, copy_context(), may_stay)  # an interceptor may have set a variable
    if _has_running_loop():
        _make_elsewhere(call)
    else:  # not where an error is caught: it would be shown as what led to the call's own
        call.make()
    return call.outcome()


def complete(result: Any) -> None:
    """Finish a call that is made for its effects: its result is not used, so it must not be unfinished work.

    Raises:
        LazyResultError: OCQ-244, if it is a generator or coroutine that has not ended, a context manager made of such
            a generator, a ``map``, ``filter`` or ``starmap``, a ``Future`` of an executor, or a list with one of these.
        BaseException: See ``finish``.
    """
    end_if_forked(depth=2)
    if result is None:  # as nearly always
        return
    returned = finish(result)
    end_if_forked()
    each = returned if type(returned) in _SEVERAL else (returned,)
    unfinished = [one for one in each if type(one) in _LAZY and _is_unfinished(one)]
    if unfinished:
        for coroutine in unfinished[1:]:
            if isinstance(coroutine, CoroutineType):
                coroutine.close()  # else Python warns of it, too
        raise _lazy(unfinished[0])


def _is_unfinished(returned: Any) -> bool:
    if type(returned) in _MANAGERS:
        return _is_unfinished(returned.gen)
    frames = (getattr(returned, name, None) for name in ("gi_frame", "ag_frame", "cr_frame"))
    return type(returned) in (map, filter, starmap, Future) or any(frame is not None for frame in frames)


def _lazy(returned: Any) -> LazyResultError:
    made_of = returned.gen if type(returned) in _MANAGERS else returned
    codes = (getattr(made_of, name, None) for name in ("gi_code", "ag_code", "cr_code"))
    code = next((each for each in codes if each is not None), None)
    kind = "a context manager" if made_of is not returned else f"a {type(returned).__name__}"
    kind = _KINDS.get(type(returned), kind)
    where = "" if code is None else f"{code.co_filename}:{code.co_firstlineno} ({code.co_name})"
    fix = "loop over it in the function, which returns nothing; or return a list, whose code has run"
    if isinstance(returned, CoroutineType):
        returned.close()  # else Python warns of it, too
        fix = "await it in the function"
    elif isinstance(returned, Future):
        fix = "call its result() in the function, which waits for the work and raises its error"
    elif made_of is not returned:
        fix = "enter it in the function, by 'with' or 'async with'"
    lost = "whose end nothing awaits" if isinstance(returned, Future) else "whose code never runs"
    return LazyResultError("OCQ-244", f"the function returned {kind}, {lost}", where, fix)


@contextmanager
def tasks_may_stay() -> Iterator[None]:
    """Let calls of this thread leave tasks running, as participants do that await them at a checkpoint."""
    before = getattr(_of_thread, "tasks_may_stay", False)
    _of_thread.tasks_may_stay = True
    try:
        yield
    finally:
        _of_thread.tasks_may_stay = before


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Call:
    """An awaitable and its outcome.

    What it raises does not pass through the event loop, which inspects exceptions: one that breaks when inspected would
    leave its task unfinished forever, and ``SystemExit`` would stop the loop.
    """

    def __init__(self, awaitable: Awaitable[Any], context: Context, tasks_may_stay: bool) -> None:  # noqa: FBT001 private
        self.done = threading.Event()
        self._awaitable = awaitable
        self._context = context
        self._tasks_may_stay = tasks_may_stay
        self._task: asyncio.Task[None] | None = None
        self._interrupted = False
        self._ended = False
        self._value: Any = None
        self._error: BaseException | None = None

    def make(self) -> None:
        """Run the awaitable to its end on this thread's loop."""
        loop = getattr(_of_thread, "loop", None)
        if loop is None:
            loop = _of_thread.loop = _Loop()
        try:
            loop.begun.forget(package_of(self._awaitable))
            loop.runner.run(self._awaited(loop.begun), context=self._context)
        except asyncio.CancelledError as error:  # it has cancelled itself, or was cancelled before it began
            if not self._ended:
                self._error = error
        except BaseException as error:
            self._error = error

    def interrupt(self) -> None:
        """Cancel the awaitable, from another thread."""
        self._interrupted = True
        if (task := self._task) is not None and not self.done.is_set():
            task.get_loop().call_soon_threadsafe(task.cancel)

    def outcome(self) -> Any:
        """Return its result, or raise what it raised."""
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            self._error = None  # else error, traceback and this object would form a reference cycle

    async def _awaited(self, begun: BegunTasks) -> None:
        self._task = task = asyncio.current_task()
        if task is not None and self._interrupted:  # before it began
            task.cancel()
        try:
            self._value = await self._awaitable
        except BaseException as error:
            self._error = error
        self._ended = True
        if not self._tasks_may_stay and (left := begun.pending()):
            left_behind = await cancelled(left)
            self._error = left_behind if self._error is None else self._error
        if self._error is None:
            self._error = await begun.failure()
        if task is not None and task.cancelling():  # even if the awaitable has turned an interrupt into something else
            raise asyncio.CancelledError


class _Loop:
    """The event loop of a thread; closed when the thread ends and its local values are dropped."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.begun = BegunTasks(self.runner.get_loop())

    def __del__(self) -> None:
        self.runner.close()


class _OtherThread:
    """A thread that makes calls for another one, whose own loop is running, and ends with it."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        name = f"{threading.current_thread().name}-async"
        threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()

    def make(self, call: _Call) -> None:
        """Make a call, and wait for its end.

        Raises:
            KeyboardInterrupt: If it is interrupted, also by ``asyncio.run``, which only cancels its task at first.
        """
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        self._calls.put(call)
        while not call.done.wait(_LOOK):
            if task is not None and task.cancelling() > before:  # this thread is here: it was a signal
                raise KeyboardInterrupt

    def __del__(self) -> None:
        self._calls.put(None)


def _make_elsewhere(call: _Call) -> None:
    other = getattr(_of_thread, "other", None)
    if other is None:
        other = _of_thread.other = _OtherThread()
    try:
        other.make(call)
    except BaseException:  # an interrupt
        call.interrupt()
        if not call.done.wait(_PATIENCE):
            del _of_thread.other  # it may never return
        raise


def _serve(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()
        call.done.set()
        del call  # its outcome belongs to the other thread

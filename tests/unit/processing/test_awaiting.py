"""Awaiting: awaitables run to completion, on one event loop per thread."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from itertools import starmap
from pathlib import Path
from sysconfig import get_paths
from threading import Thread, current_thread
from typing import Any

import pytest

from opencqrs_py.errors import LazyResultError, TasksLeftError
from opencqrs_py.processing.awaiting import complete, finish, tasks_may_stay

span: ContextVar[str] = ContextVar("span", default="none")


async def current_loop() -> asyncio.AbstractEventLoop:
    await asyncio.sleep(0)
    return asyncio.get_running_loop()


class Later:
    """Awaitable without being a coroutine."""

    def __await__(self) -> Any:
        return current_loop().__await__()


@pytest.mark.parametrize("result", [None, 7, "text", [1]])
def test_a_result_that_is_not_awaitable_is_returned_unchanged(result: object) -> None:
    assert finish(result) is result


def test_an_awaitable_result_is_awaited() -> None:
    assert isinstance(finish(Later()), asyncio.AbstractEventLoop)


async def later(value: object) -> object:
    return value


async def numbers() -> AsyncIterator[int]:
    yield 1


@contextmanager
def writing() -> Iterator[None]:
    yield


@asynccontextmanager
async def sending() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("result", "what", "where"),
    [
        ((n for n in [1]), "a generator", "<genexpr>"),
        (later(n for n in [1]), "a generator", "<genexpr>"),
        (numbers(), "an async generator", "numbers"),
        (later(later("text")), "a coroutine", "later"),
        (map(str, [1]), "a map", ""),
        (filter(None, [1]), "a filter", ""),
        (starmap(print, [(1,)]), "a starmap", ""),
        (writing(), "a context manager", "writing"),
        (later(sending()), "a context manager", "sending"),
        ([1, later("text"), later("more")], "a coroutine", "later"),
        (((n for n in [1]),), "a generator", "<genexpr>"),
        (later([later("text")]), "a coroutine", "later"),
    ],
)
def test_a_lazy_result_is_refused(result: object, what: str, where: str) -> None:
    with pytest.raises(LazyResultError) as caught:
        complete(result)
    assert caught.value.what == f"the function returned {what}, whose code never runs"
    assert re.fullmatch(rf".*test_awaiting\.py:\d+ \({where}\)" if where else "", caught.value.where)


@pytest.mark.parametrize("several", [False, True])
def test_a_future_that_nothing_waits_for_is_refused(*, several: bool) -> None:
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(str)
    with pytest.raises(LazyResultError) as caught:
        complete([sent] if several else sent)
    assert str(caught.value) == (
        "[OCQ-244] the function returned a Future, whose end nothing awaits\n"
        "  fix:   call its result() in the function, which waits for the work and raises its error"
    )


def test_a_completed_result_is_accepted() -> None:
    ended = (n for n in [1])
    list(ended)
    awaited = later("text")
    finish(awaited)
    left = writing()
    with left:
        pass
    for result in (None, 7, [1], ended, range(3), later("text"), later(awaited), left, [ended, awaited]):
        complete(result)


def test_a_thread_uses_one_loop_for_all_calls() -> None:
    first, second = finish(current_loop()), finish(current_loop())
    assert first is second
    assert not first.is_closed()


def test_a_client_bound_to_a_loop_can_be_reused() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def wait() -> int:
        return await queue.get()

    async def put() -> None:
        await asyncio.sleep(0)
        queue.put_nowait(7)

    async def both() -> int:
        return (await asyncio.gather(wait(), put()))[0]

    assert [finish(both()) for _ in range(2)] == [7, 7]


def test_each_thread_has_its_own_loop() -> None:
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        loops = [pool.submit(lambda: finish(current_loop())).result() for pool in (one, other, one)]
    assert loops[0] is loops[2]
    assert loops[0] is not loops[1]


def test_a_loop_is_closed_when_its_thread_ends() -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    thread = Thread(target=lambda: loops.append(finish(current_loop())))
    thread.start()
    thread.join()
    (loop,) = loops
    assert loop.is_closed()
    gone = weakref.ref(loop)
    del loop, loops[:]
    gc.collect()
    assert gone() is None


def test_an_error_propagates_and_the_loop_stays_usable() -> None:
    async def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        finish(fail())
    assert isinstance(finish(current_loop()), asyncio.AbstractEventLoop)


def test_current_context_variables_are_visible_and_changes_do_not_leak() -> None:
    async def look() -> str:
        seen = span.get()
        span.set("changed inside")
        return seen

    finish(look())
    token = span.set("outer")
    try:
        assert finish(look()) == "outer"
        assert span.get() == "outer"
    finally:
        span.reset(token)
    assert finish(look()) == "none"


# Exceptions do not pass through asyncio


class Unanswering(Exception):  # noqa: N818 a made-up error
    """Raises on every attribute access, so that even ``isinstance``, which asyncio calls, fails."""

    def __getattribute__(self, name: str) -> Any:
        raise ValueError(name)


@pytest.mark.parametrize("inside", [False, True], ids=["no loop runs", "a loop runs"])
@pytest.mark.parametrize(
    "error",
    [Unanswering, KeyError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException],
)
def test_any_kind_of_exception_propagates_unchanged(error: type[BaseException], *, inside: bool) -> None:
    raised = error("mine")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise raised

    async def within() -> BaseException | None:
        return caught_from(fail())

    caught = asyncio.run(within()) if inside else caught_from(fail())
    assert caught is raised
    assert isinstance(finish(current_loop()), asyncio.AbstractEventLoop)


def caught_from(awaitable: Any) -> BaseException | None:
    try:
        finish(awaitable)
    except BaseException as error:
        return error
    return None


def test_a_coroutine_that_survives_its_own_cancellation_has_a_result() -> None:
    async def cancelled() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return 7

    assert finish(cancelled()) == 7


# Tasks that are not awaited


async def send() -> None:
    await asyncio.sleep(3600)


async def fail() -> None:
    raise KeyError("mine")


async def create_task() -> None:
    asyncio.create_task(send(), name="sends")  # noqa: RUF006 as users write it


async def ensure_future() -> None:
    asyncio.ensure_future(send())  # noqa: RUF006 as above


async def from_the_loop() -> None:
    asyncio.get_running_loop().create_task(send())


async def nested_task() -> None:
    await asyncio.create_task(create_task())


async def left_by_a_gather() -> None:
    with suppress(KeyError):
        await asyncio.gather(send(), fail())


@pytest.mark.parametrize("inside", [False, True], ids=["no loop runs", "a loop runs"])
@pytest.mark.parametrize(
    "leave",
    [create_task, ensure_future, from_the_loop, nested_task, left_by_a_gather],
    ids=lambda c: c.__name__,
)
def test_a_call_that_leaves_a_task_running_is_refused(leave: Callable[[], Any], *, inside: bool) -> None:
    with pytest.raises(TasksLeftError, match=r"OCQ-242\] .*: send\(\) \(.*test_awaiting\.py:\d+\); they were"):
        inside_of_a_loop(leave) if inside else finish(leave())
    assert finish(tasks_here()) == 1


async def after_a_wait() -> None:
    await asyncio.wait([asyncio.create_task(fail())])


async def in_the_background() -> None:
    asyncio.create_task(fail())  # noqa: RUF006 as above
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def exception_retrieved() -> None:
    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    assert isinstance(task.exception(), KeyError)


async def retrieved_by_a_callback() -> None:
    errors: list[BaseException | None] = []
    ended = asyncio.Event()

    async def work() -> None:
        try:
            raise KeyError("mine")
        finally:
            ended.set()

    task = asyncio.create_task(work())
    task.add_done_callback(lambda one: errors.append(one.exception()))
    await ended.wait()


async def retrieved_by_a_callback_after_a_queue() -> None:
    errors: list[BaseException | None] = []
    queue: asyncio.Queue[int] = asyncio.Queue()
    queue.put_nowait(1)

    async def work() -> None:
        try:
            await queue.get()
            raise KeyError("mine")
        finally:
            queue.task_done()

    task = asyncio.create_task(work())
    task.add_done_callback(lambda one: errors.append(one.exception()))
    await queue.join()


async def failing_in_sequence() -> None:
    async def soon() -> None:
        raise ValueError("first")

    async def later() -> None:
        await asyncio.sleep(0)
        raise ValueError("second")

    with suppress(ValueError):
        await asyncio.gather(soon(), later())


async def cancelled_by_the_call() -> None:
    task = asyncio.create_task(send())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("inside", [False, True], ids=["no loop runs", "a loop runs"])
@pytest.mark.parametrize(
    ("call", "fails"),
    [
        (after_a_wait, True),
        (in_the_background, True),
        (exception_retrieved, False),
        (retrieved_by_a_callback, False),
        (retrieved_by_a_callback_after_a_queue, False),
        (failing_in_sequence, False),
        (cancelled_by_the_call, False),
    ],
)
def test_the_error_of_a_task_is_raised_by_the_call_unless_it_was_retrieved(
    call: Callable[[], Any], *, fails: bool, inside: bool
) -> None:
    with pytest.raises(KeyError) if fails else nullcontext():
        inside_of_a_loop(call) if inside else finish(call())


async def tasks_here() -> int:
    return len(asyncio.all_tasks())


def test_a_task_left_running_ends_with_its_call() -> None:
    ended: list[str] = []

    async def patient() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")

    async def leave() -> None:
        asyncio.create_task(patient())  # noqa: RUF006 as above
        await asyncio.sleep(0)

    with pytest.raises(TasksLeftError):
        finish(leave())
    assert ended == ["cancelled"]


def test_a_call_that_raises_leaves_no_task_for_the_next_attempt() -> None:
    async def leave_and_fail() -> None:
        await asyncio.gather(send(), fail())

    with pytest.raises(KeyError, match="mine"):
        finish(leave_and_fail())
    assert finish(tasks_here()) == 1


def test_only_the_first_of_many_tasks_are_named() -> None:
    async def leave() -> None:
        for _ in range(100):
            asyncio.create_task(send())  # noqa: RUF006 as above

    with pytest.raises(TasksLeftError) as caught:
        finish(leave())
    assert caught.value.what.count("send()") == 3


async def group_of_tasks() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(0))


async def awaited_task() -> None:
    await asyncio.create_task(asyncio.sleep(0))


async def with_time_limit() -> None:
    await asyncio.wait_for(asyncio.sleep(0), 60)


async def cancelled_and_awaited() -> None:
    task = asyncio.create_task(send())
    task.cancel()
    await asyncio.wait([task])


async def generator_left_open() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async for _ in numbers():
        break


@pytest.mark.parametrize(
    "call",
    [group_of_tasks, awaited_task, with_time_limit, cancelled_and_awaited, generator_left_open],
    ids=lambda call: call.__name__,
)
def test_awaited_tasks_are_accepted(call: Callable[[], Any]) -> None:
    finish(call())


def module_at(path: Path, name: str) -> dict[str, Any]:
    """Return a module like one of an installed package, whose ``connect`` starts a task and keeps it."""
    code = "import asyncio\nasync def poll():\n    await asyncio.sleep(3600)\n"
    code += "async def connect():\n    return asyncio.create_task(poll())\n"
    module = {"__name__": name}
    exec(compile(code, str(path), "exec"), module)
    return module


SITE_PACKAGES = Path(get_paths()["purelib"])


def test_tasks_of_a_library_may_outlive_the_call() -> None:
    library = module_at(SITE_PACKAGES / "client" / "core.py", "client.core")

    async def use() -> asyncio.Task[None]:
        return await library["connect"]()  # type: ignore[no-any-return] # of code that mypy does not see

    async def end(task: asyncio.Task[None]) -> bool:
        pending = not task.done()
        task.cancel()
        await asyncio.wait([task])
        return pending

    assert finish(end(finish(use())))


def test_an_installed_project_does_not_count_as_a_library() -> None:
    project = module_at(SITE_PACKAGES / "shop" / "handlers.py", "shop.handlers")
    with pytest.raises(TasksLeftError, match="poll"):
        finish(project["connect"]())


def test_tasks_may_remain_if_a_participant_awaits_them_later() -> None:
    async def begin() -> asyncio.Task[int]:
        return asyncio.create_task(asyncio.sleep(0, 7))

    async def confirm(task: asyncio.Task[int]) -> int:
        return await task

    with tasks_may_stay():
        task = finish(begin())
    assert finish(confirm(task)) == 7
    with pytest.raises(TasksLeftError):
        finish(begin())


# Inside a running loop


def inside_of_a_loop(*calls: Callable[[], Any]) -> list[Any]:
    async def within() -> list[Any]:
        return [finish(call()) for call in calls]

    return asyncio.run(within())


def test_inside_a_running_loop_another_thread_awaits() -> None:
    async def which() -> tuple[asyncio.AbstractEventLoop, Thread]:
        return await current_loop(), current_thread()

    def make() -> Any:
        return which()

    async def within() -> None:
        outer = asyncio.get_running_loop()
        (loop, thread), (again, same) = finish(make()), finish(make())
        assert loop is again
        assert loop is not outer
        assert thread is same
        assert thread is not current_thread()

    asyncio.run(within())


def test_inside_a_running_loop_context_variables_are_visible_and_changes_do_not_leak() -> None:
    async def look() -> str:
        seen = span.get()
        span.set("changed inside")
        return seen

    async def within() -> None:
        span.set("outer")
        assert finish(look()) == "outer"
        assert span.get() == "outer"

    asyncio.run(within())


def test_a_nested_await_completes() -> None:
    async def inner() -> int:
        await asyncio.sleep(0)
        return 7

    async def outer() -> Any:
        return finish(inner())

    assert finish(outer()) == 7
    assert inside_of_a_loop(outer) == [7]


def test_the_awaiting_thread_ends_with_the_thread_it_serves() -> None:
    served: list[Thread] = []

    async def which() -> None:
        served.append(current_thread())

    thread = Thread(target=lambda: inside_of_a_loop(which))
    thread.start()
    thread.join()
    gc.collect()
    served[0].join(60)
    assert not served[0].is_alive()


INTERRUPTED = """
import asyncio, os, signal, sys, threading, time
from opencqrs_py.errors import TasksLeftError
from opencqrs_py.processing.awaiting import finish, tasks_may_stay

async def waits():
    print("waits", flush=True)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise

async def swallows():
    print("waits", flush=True)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        print("cancelled", flush=True)

async def fails():
    print("waits", flush=True)
    try:
        await asyncio.sleep(3600)
    finally:
        print("cancelled", flush=True)
        raise OSError

async def blocks():
    print("waits", flush=True)
    time.sleep(3600)

async def within():
    finish(HANDLER())

try:
    finish(HANDLER()) if WHERE == "outside" else asyncio.run(within())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


ENDS = [(where, handler) for where in ("outside", "inside") for handler in ("waits", "swallows", "fails")]


@pytest.mark.parametrize(("where", "handler"), [*ENDS, ("inside", "blocks")])
def test_an_interrupt_ends_the_awaited_coroutine(where: str, handler: str) -> None:
    code = INTERRUPTED.replace("WHERE", repr(where)).replace("HANDLER", handler)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        printed = process.stdout.read().split()
    assert printed == (["interrupted"] if handler == "blocks" else ["cancelled", "interrupted"])
    assert process.returncode == 0

"""Awaiting: what is awaitable is run to its end, on one event loop per thread."""

from __future__ import annotations

import asyncio
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from threading import Thread
from typing import Any

import pytest

from opencqrs_py.processing.awaiting import finish

span: ContextVar[str] = ContextVar("span", default="none")


async def current_loop() -> asyncio.AbstractEventLoop:
    await asyncio.sleep(0)
    return asyncio.get_running_loop()


class Later:
    """Awaitable without being a coroutine."""

    def __await__(self) -> Any:
        return current_loop().__await__()


@pytest.mark.parametrize("result", [None, 7, "text", [1]])
def test_what_is_not_awaitable_is_handed_back(result: object) -> None:
    assert finish(result) is result


def test_what_is_awaitable_is_awaited() -> None:
    assert isinstance(finish(Later()), asyncio.AbstractEventLoop)


def test_a_thread_has_one_loop_for_all_calls() -> None:
    first, second = finish(current_loop()), finish(current_loop())
    assert first is second
    assert not first.is_closed()


def test_a_client_that_belongs_to_a_loop_can_be_kept() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def wait() -> int:
        return await queue.get()

    async def put() -> None:
        await asyncio.sleep(0)
        queue.put_nowait(7)

    async def both() -> int:
        return (await asyncio.gather(wait(), put()))[0]

    assert [finish(both()) for _ in range(2)] == [7, 7]


def test_threads_have_loops_of_their_own() -> None:
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


def test_what_is_raised_comes_out_and_the_loop_serves_on() -> None:
    async def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        finish(fail())
    assert isinstance(finish(current_loop()), asyncio.AbstractEventLoop)


def test_context_variables_of_the_moment_are_seen_and_changes_stay_inside() -> None:
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

"""Tasks that code of the project starts on an event loop in one call and does not await before that call returns."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from sysconfig import get_paths
from types import FrameType
from typing import Any

from opencqrs_py.errors import TasksLeftError

_PATIENCE = 1.0  # seconds that cancelled tasks get to end
_SHOWN = 3
_PACKAGE = __name__.partition(".")[0]

NOT_OF_PROJECTS = tuple({get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Folders of Python and of installed packages."""


class BegunTasks:
    """The tasks that code of the project has started on a loop since ``forget``.

    Tasks of libraries, such as the connection of a client that is kept, belong to the libraries, and may outlive the
    call.

    Args:
        loop: The loop. Its factory of tasks is replaced.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tasks: list[asyncio.Task[Any]] = []
        self._package = ""
        loop.set_task_factory(self._begun)

    def forget(self, package: str = "") -> None:
        """Prepare for the next call; code of the given package counts as the project's wherever it is installed."""
        self._tasks.clear()
        self._package = package

    def pending(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that have not ended."""
        return [task for task in self._tasks if not task.done()]

    async def failure(self) -> BaseException | None:
        """Return what a task has raised and no code has retrieved, as after ``asyncio.wait``; ``None``: nothing."""
        if self._unasked():
            await asyncio.sleep(0)  # a callback of the task, or a waiter, may retrieve it only now
        return next((task.exception() for task in self._unasked()), None)

    def _unasked(self) -> list[asyncio.Task[Any]]:
        ended = (task for task in self._tasks if task.done() and not task.cancelled())
        return [task for task in ended if getattr(task, "_log_traceback", False)]  # by which asyncio knows

    def _begun(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        if self._is_of_project(sys._getframe(1)):  # noqa: SLF001 the documented way, and the only one without a stack
            self._tasks.append(task)
        return task

    def _is_of_project(self, frame: FrameType | None) -> bool:
        """Return whether the code that created a task is the project's."""
        while frame is not None and _package_of(frame) == "asyncio":
            frame = frame.f_back
        package = "" if frame is None else _package_of(frame)
        if frame is None or package == _PACKAGE:
            return False
        return package == self._package or not frame.f_code.co_filename.startswith(NOT_OF_PROJECTS)


def package_of(awaitable: object) -> str:
    """Return the package of a coroutine's function; empty if it is not known."""
    frame = awaitable.cr_frame if isinstance(awaitable, Coroutine) and hasattr(awaitable, "cr_frame") else None
    return "" if frame is None else _package_of(frame)


async def cancelled(tasks: Sequence[asyncio.Task[Any]]) -> TasksLeftError:
    """Cancel tasks, wait a moment for their end, and return the error that reports them."""
    error = _left(tasks)
    for task in tasks:
        task.add_done_callback(_looked_at)
        task.cancel()
    await asyncio.wait(tasks, timeout=_PATIENCE)
    return error


def _looked_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # else asyncio logs that it was never retrieved


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _left(tasks: Sequence[asyncio.Task[Any]]) -> TasksLeftError:
    names = [_name_of(task.get_coro()) for task in tasks]
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    what = f"an async function returned before tasks that it had started: {shown}; they were cancelled"
    fix = "await them, or start them in 'async with asyncio.TaskGroup() as tasks:', which awaits them"
    return TasksLeftError("OCQ-242", what, fix=fix)


def _name_of(coroutine: object) -> str:
    name = str(getattr(coroutine, "__qualname__", type(coroutine).__qualname__))
    code = getattr(coroutine, "cr_code", None)
    return f"{name}()" if code is None else f"{name}() ({code.co_filename}:{code.co_firstlineno})"

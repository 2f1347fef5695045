"""Calls on other threads: a contract fails with a message instead of waiting forever for one that does not return."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def settle(future: Future[Any], call: Callable[..., Any], *arguments: Any) -> None:
    """Make a call, and give its result or its error to a future."""
    try:
        future.set_result(call(*arguments))
    except BaseException as error:  # raised where the result is read
        future.set_exception(error)


def begun(call: Callable[..., T], *arguments: Any) -> Future[T]:
    """Begin a call on its own thread, which ends with the process if the call never returns."""
    future = Future[T]()
    Thread(target=settle, args=(future, call, *arguments), daemon=True).start()
    return future


def returned(future: Future[T], seconds: float, otherwise: str) -> T:
    """Return the result of a call; fail with a message if it does not return in time."""
    if not wait([future], seconds).done:
        pytest.fail(f"{otherwise} (within {seconds:g} s)")
    return future.result()

"""Threads that run calls: reused while there are calls, and ended when idle."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event, Thread, current_thread

import pytest

from opencqrs_py.engines.threads import Threads

PATIENCE = 60.0


def called(threads: Threads, number: int = 0) -> tuple[Thread, int]:
    answers = SimpleQueue[tuple[Thread, int]]()
    threads.run(f"call-{number}", lambda: answers.put((current_thread(), number)))
    return answers.get(timeout=PATIENCE)


def test_concurrent_calls_run_on_separate_threads_with_their_names() -> None:
    threads, names, go = Threads(), SimpleQueue[str](), Event()
    for name in ("one", "two"):
        threads.run(name, lambda: (names.put(current_thread().name), go.wait(PATIENCE)))
    assert {names.get(timeout=PATIENCE), names.get(timeout=PATIENCE)} == {"one", "two"}
    go.set()


def test_an_idle_thread_ends_and_the_next_call_gets_a_new_one() -> None:
    threads = Threads(idle_seconds=0.001)
    thread, _ = called(threads)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert called(threads)[0] is not thread


@pytest.mark.parametrize("idle_seconds", [0, 0.000_1, 0.001])
def test_no_call_is_lost_when_its_thread_is_about_to_end(idle_seconds: float) -> None:
    threads = Threads(idle_seconds)
    assert [called(threads, number)[1] for number in range(300)] == list(range(300))

"""The life of an application that several threads start, stop and use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from opencqrs_py import Application
from opencqrs_py.assembly.lifecycle import Lifecycle
from opencqrs_py.assembly.status import RunResult


class StoppedMeanwhile(Lifecycle):
    """A life whose processors a stop in another thread takes away after some reads of them."""

    left: list[Any]

    @property
    def processors(self) -> Any:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    @processors.setter
    def processors(self, value: Any) -> None:
        self.left = [value]


def test_a_stop_in_another_thread_at_any_moment_ends_a_run(tmp_path) -> None:
    ended = RunResult((), {}, stopped=True)
    processors = SimpleNamespace(
        going_on=lambda *, until_caught_up: not until_caught_up, stopping=True, stopped_result=lambda: ended
    )
    application = Application({"event-store.url": "sqlite:///all.db"}, (), tmp_path)
    for reads in range(1, 5):
        life = StoppedMeanwhile(application.blueprint, None, application._life.spark, lambda: None)
        life.left = [*[processors] * reads, None]
        assert life.stay(until_caught_up=False) is ended

"""The life of an application that several threads start, stop and use."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

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


@pytest.fixture
def application(tmp_path: Path) -> Application:
    return Application({"event-store.url": "sqlite:///all.db"}, (), tmp_path)


@pytest.mark.parametrize("after", [None, SimpleNamespace()], ids=["a stop", "a stop and another start"])
def test_a_stop_in_another_thread_at_any_moment_ends_a_run(application, after) -> None:
    ended = RunResult((), {}, stopped=True)
    processors = SimpleNamespace(
        going_on=lambda *, until_caught_up: not until_caught_up, stopping=True, stopped_result=lambda: ended
    )
    for reads in range(1, 5):
        life = StoppedMeanwhile(application.blueprint, None, application._life.spark, lambda: None)
        life.left, life._started_in = [*[processors] * reads, after], os.getpid()
        assert life.stay(until_caught_up=False) is ended
        assert life.processors is after


def test_a_stop_that_ends_after_another_start_leaves_what_that_has_started(application) -> None:
    life, serving, others = application._life, SimpleNamespace(), SimpleNamespace()
    life.processors = SimpleNamespace(stop=lambda _patience: setattr(life, "processors", others))
    life.serving, life._started_in = serving, os.getpid()
    with patch.object(life.spark, "leave") as leave:
        life.stop(0)
    assert life.serving is serving
    assert life.processors is others
    leave.assert_not_called()


def test_a_run_that_was_stopped_before_it_waits_leaves_another_start_alone(application) -> None:
    life = application._life
    with patch.object(life, "stop") as stop:
        assert life.stay(until_caught_up=False).stopped
    stop.assert_not_called()

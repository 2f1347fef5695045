"""How the processors of an application stop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import override

from opencqrs_py.assembly import processors as module
from opencqrs_py.assembly.processors import Processors
from opencqrs_py.testing.clock import FakeClock


class Engine:
    """An engine that takes a while to stop, and records its calls."""

    def __init__(self, name: str, clock: FakeClock, calls: list[tuple[Any, ...]], takes: float) -> None:
        self.name, self.clock, self.calls, self.takes = name, clock, calls, takes

    def stop(self, patience: float) -> None:
        self.calls.append((self.name, "stop", patience))
        self.clock.advance(min(patience, self.takes))


class StoppableEngine(Engine):
    """An engine with ``begin_stop``."""

    def begin_stop(self) -> None:
        self.calls.append((self.name, "begin"))


class EndedEngine(StoppableEngine):
    """An engine that has ended meanwhile."""

    @override
    def stop(self, patience: float) -> None:
        self.calls.append((self.name, "stop", patience))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def stopped(*engines: Engine) -> None:
    groups: Any = [
        SimpleNamespace(run=SimpleNamespace(group=each.name), engine=each, shared=False, led=False, locks=None)
        for each in engines
    ]
    nothing: Any = SimpleNamespace(name="here")
    Processors(groups, None, nothing, nothing, nothing).stop(1.0)


def test_all_engines_begin_to_stop_before_the_first_wait_and_share_the_timeout(clock: FakeClock) -> None:
    calls: list[tuple[Any, ...]] = []
    stopped(StoppableEngine("spark", clock, calls, takes=0.75), EndedEngine("thread", clock, calls, takes=0))
    assert calls == [("spark", "begin"), ("thread", "begin"), ("spark", "stop", 1.0), ("thread", "stop", 0.25)]


def test_an_engine_without_begin_stop_is_stopped_first(clock: FakeClock) -> None:
    calls: list[tuple[Any, ...]] = []
    stopped(StoppableEngine("thread", clock, calls, takes=60), Engine("other", clock, calls, takes=0.25))
    assert calls == [("thread", "begin"), ("other", "stop", 1.0), ("thread", "stop", 0.75)]

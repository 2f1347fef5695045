"""The contract of engines on threads, and on a Spark that runs its jobs in this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.spark import Context, Sessions

from opencqrs_py.engines.spark.engine import SparkEngine
from opencqrs_py.engines.thread import ThreadEngine
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.model import ProcessorState
from opencqrs_py.testing.contracts import EngineContract
from opencqrs_py.testing.contracts.engine_project import FIRST, SECONDS, EngineProject, MakeEngine


class StopsAmidEvents(EngineContract):
    """How much an engine still handles that is stopped.

    Attributes:
        done: Of ten events in chunks of two, in the second of which it is stopped.
    """

    done: int

    def test_a_stop_waits_for_the_chunk_in_hand_and_the_next_start_continues_after_it(
        self, project: EngineProject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = project.gate("3")
        begin_stop = HeadWatcher.begin_stop
        monkeypatch.setattr(HeadWatcher, "begin_stop", lambda watcher: (gate.opened.set(), begin_stop(watcher)))
        project.append(*[FIRST] * 10)
        engine, _ = project.started(project.run(partitions=1, batch_size=2))
        assert gate.reached.wait(SECONDS)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(engine.stop, SECONDS).result(SECONDS)
        monkeypatch.undo()
        assert project.rows() == list(range(self.done))
        assert [(each.position, each.state) for each in project.statuses()] == [(self.done, ProcessorState.STOPPED)]
        engine.stop(SECONDS)

        again, watching = project.started(project.run(partitions=1, batch_size=2))
        project.when_done(again, watching)
        assert project.rows() == list(range(10))


class TestThreadEngine(StopsAmidEvents):
    done = 4

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        return ThreadEngine


class TestSparkEngine(StopsAmidEvents):
    done = 10  # a round finishes what it has begun, within two seconds

    @pytest.fixture
    def context(self) -> Context:
        return Context()

    @pytest.fixture
    def make_engine(self, context: Context) -> MakeEngine:
        sessions = Sessions(context)
        return lambda runs, owner, observer, clock: SparkEngine(runs, owner, sessions, observer, clock)

    @pytest.fixture(autouse=True)
    def _kills(self, project: EngineProject, context: Context) -> None:
        context.on_cancel = project.kill

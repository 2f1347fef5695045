"""The contract of engines on threads, and on a Spark that runs its jobs in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.spark import Context, Sessions

from opencqrs_py.control.records import GroupPartition
from opencqrs_py.engines.assignment import Assignment
from opencqrs_py.engines.driver import PartitionDriver
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.spark import turns
from opencqrs_py.engines.spark.engine import SparkEngine
from opencqrs_py.engines.spark.tasks import Permit
from opencqrs_py.engines.thread import ThreadEngine
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import Partition, ProcessorState
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.notices import Observer
from opencqrs_py.processing.ports import Clock
from opencqrs_py.processing.supervision import SupervisedPartition
from opencqrs_py.testing.contracts import EngineContract, engine_project
from opencqrs_py.testing.contracts.engine_project import FIRST, SECOND, SECONDS, EngineProject, MakeEngine


class StopsAmidEvents(EngineContract):
    """How much an engine still handles that is stopped."""

    def test_a_stop_waits_for_the_chunk_in_hand_and_the_next_start_resumes_after_it(
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
        assert project.rows() == [0, 1, 2, 3]
        assert [(each.position, each.state) for each in project.statuses()] == [(4, ProcessorState.STOPPED)]
        engine.stop(SECONDS)

        again, watching = project.started(project.run(partitions=1, batch_size=2))
        project.when_done(again, watching)
        assert project.rows() == list(range(10))


@pytest.mark.release(at_once=True)  # parked as after retries
class TestThreadEngine(StopsAmidEvents):
    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        return ThreadEngine


@pytest.mark.release(at_once=True)  # parked as after retries
class TestSparkEngine(StopsAmidEvents):
    @pytest.fixture
    def context(self) -> Context:
        return Context()

    @pytest.fixture
    def make_engine(self, context: Context, tmp_path: Path) -> MakeEngine:
        sessions = Sessions(context)
        sessions.permit = lambda: Permit.in_folder(str(tmp_path))  # type: ignore[method-assign]
        return lambda runs, owner, observer, clock: SparkEngine(runs, owner, sessions, observer, clock)

    @pytest.fixture(autouse=True)
    def _kills(self, project: EngineProject, context: Context) -> None:
        context.on_cancel = project.kill

    def test_a_task_of_several_partitions_begins_no_other_once_the_engine_is_stopping(
        self, project: EngineProject, context: Context, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(turns, "SLOW_SECONDS", SECONDS)
        project.append(*[FIRST, SECOND] * 10)
        gates = [project.gate("0"), project.gate("1")]
        engine, watching = project.started(replace(project.run(batch_size=1), most_at_once=1))
        watching.wait_for(lambda: any(gate.reached.is_set() for gate in gates))
        (first,) = (number for number, gate in enumerate(gates) if gate.reached.is_set())
        assert isinstance(engine, SparkEngine)
        engine.begin_stop()
        for gate in gates:
            gate.opened.set()
        engine.stop(SECONDS)
        assert project.rows() == [first]
        assert len(context.tags) == 1


# Engines with mistakes


def ignoring(**given: Any) -> MakeEngine:
    """Return an engine that replaces something of each run."""
    return lambda runs, *others: ThreadEngine([replace(run, **given) for run in runs], *others)


class ListsNothing(ThreadEngine):
    def assigned(self) -> list[GroupPartition]:
        return []


class ListsAllItEverHad(ThreadEngine):
    def assigned(self) -> list[GroupPartition]:
        return [GroupPartition(each.group, each.partition) for each in self.partitions()]


class ClaimsAgain(ThreadEngine):
    def assign(self, group: str, partitions: Sequence[Partition]) -> None:
        self.release(group, partitions, SECONDS)
        super().assign(group, partitions)


class WaitsToStop(ThreadEngine):
    def stop(self, patience: float) -> None:
        super().stop(SECONDS)


class WaitsToRelease(ThreadEngine):
    def release(self, group: str, partitions: Sequence[Partition], patience: float) -> None:
        super().release(group, partitions, SECONDS)


class ReleasesInAllGroups(ThreadEngine):
    def release(self, group: str, partitions: Sequence[Partition], patience: float) -> None:
        for each in {key.group for key in self.assigned()}:
            super().release(each, partitions, patience)


class HidesErrors(ThreadEngine):
    def assign(self, group: str, partitions: Sequence[Partition]) -> None:
        with suppress(EventStoreError, LookupError):
            super().assign(group, partitions)


def staying_in(state: ProcessorState) -> MakeEngine:
    """Return an engine that steps no partition in a state again."""

    class Staying(Assignment):
        def claim(self, group: str, partitions: Sequence[Partition]) -> list[PartitionDriver]:
            drivers = super().claim(group, partitions)
            for driver in drivers:
                driver.wait = partial(waits, driver.supervised, driver.wait)  # type: ignore[method-assign]
            return drivers

    def waits(partition: SupervisedPartition, wait: Callable[[], float]) -> float:
        return 3_600.0 if partition.state is state else wait()

    def make(runs: Sequence[GroupRun], owner: str, observer: Observer, clock: Clock) -> ThreadEngine:
        engine = ThreadEngine(runs, owner, observer, clock)
        engine._assignment = Staying(runs, owner, clock, observer)
        return engine

    return make


DECODING = EngineContract.test_an_event_that_cannot_be_decoded_is_skipped_or_parked_or_stops_its_partition
INITIAL = EngineContract.test_partitions_without_progress_start_at_the_initial_position_and_others_after_their_progress
LISTED = EngineContract.test_partitions_are_listed_from_their_assignment_to_their_release
LOST = EngineContract.test_a_partition_taken_over_by_another_engine_is_no_longer_listed
STAYS = EngineContract.test_partitions_assigned_already_are_not_claimed_again
STOPS = EngineContract.test_a_stop_waits_no_longer_than_its_timeout
RELEASES = EngineContract.test_a_release_that_times_out_loses_and_duplicates_nothing
OTHERS = EngineContract.test_a_release_leaves_other_groups_unchanged
OUTAGES = EngineContract.test_a_partition_continues_after_outages_of_the_event_store
FAILED = EngineContract.test_a_failed_partition_is_tried_again_from_its_progress
PREPARES = EngineContract.test_an_error_of_the_preparation_is_raised_and_nothing_is_handled
REFUSED = EngineContract.test_a_refused_claim_is_raised
PATCHED = "monkeypatch"
SLOW = pytest.mark.release  # each waits for two seconds


@pytest.mark.parametrize(
    ("make", "test", "values"),
    [
        *(
            pytest.param(ignoring(on_undecodable=instead), DECODING, (wanted,), id=f"{wanted}-as-{instead}")
            for wanted in OnExhausted
            for instead in OnExhausted
            if instead is not wanted
        ),
        pytest.param(ignoring(initial=lambda: 0), INITIAL, (), id="initial"),
        pytest.param(ListsNothing, LISTED, (), id="lists-nothing"),
        pytest.param(ListsAllItEverHad, LISTED, (), id="lists-released"),
        pytest.param(ListsAllItEverHad, LOST, (), id="lists-lost"),
        pytest.param(ClaimsAgain, STAYS, (), id="claims-again"),
        pytest.param(WaitsToStop, STOPS, (), id="waits-to-stop"),
        pytest.param(WaitsToRelease, RELEASES, (), id="waits-to-release"),
        pytest.param(ReleasesInAllGroups, OTHERS, (), id="releases-in-all-groups"),
        pytest.param(HidesErrors, PREPARES, (), id="hides-errors-of-preparation"),
        pytest.param(HidesErrors, REFUSED, (), id="hides-refused-claims"),
        pytest.param(staying_in(ProcessorState.WAITING), OUTAGES, (PATCHED,), id="waits-forever", marks=SLOW),
        pytest.param(staying_in(ProcessorState.FAILED), FAILED, (PATCHED,), id="fails-forever", marks=SLOW),
    ],
)
def test_the_contract_refuses_an_engine_with_a_mistake(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: MakeEngine,
    test: Callable[..., None],
    values: tuple[Any, ...],
) -> None:
    monkeypatch.setattr(engine_project, "HELD_SECONDS", 0.1)
    project = EngineProject(f"sqlite:///{tmp_path / 'orders.db'}", make)
    try:
        with monkeypatch.context() as short:
            if PATCHED in values:  # the law waits for an engine that does not go on
                short.setattr(engine_project, "SECONDS", 2)
            with pytest.raises((AssertionError, pytest.fail.Exception)):
                test(EngineContract(), project, *(monkeypatch if one is PATCHED else one for one in values))
    finally:
        project.close()

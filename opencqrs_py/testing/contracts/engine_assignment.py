"""The contract of engines: how partitions are assigned, released and taken over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from opencqrs_py.adapters.sql import SqlProgressTracker
from opencqrs_py.control.layouts import Log, carried_over
from opencqrs_py.control.records import GroupPartition
from opencqrs_py.engines.runs import BeginsStop, Engine, GroupRun, load_of
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import Origin, Outcome, Partition, ProcessingContext, ProcessorState, layout
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.group_records import GroupCode, RecordRule
from opencqrs_py.processing.recovery import NoRetry
from opencqrs_py.testing.clock import FakeClock
from opencqrs_py.testing.contracts.calls import begun, returned
from opencqrs_py.testing.contracts.engine_project import (
    FIRST,
    SECOND,
    SECONDS,
    SOON,
    EngineProject,
    MakeEngine,
    over,
)


def position_of(project: EngineProject, partition: Partition) -> int:
    """Return how far a partition is."""
    return next(status.position for status in project.statuses() if status.partition == partition)


def have_reached(project: EngineProject, partitions: Iterable[Partition], position: int) -> bool:
    """Return whether partitions are at a position or after it."""
    return all(position_of(project, each) >= position for each in partitions)


def listed(engine: Engine) -> list[Partition]:
    """Return the partitions that an engine of one group lists as assigned."""
    return [key.partition for key in sorted(engine.assigned())]


def rests(engine: Engine) -> bool:
    """Return whether an engine has nothing in hand: no task if it runs tasks, otherwise no partition."""
    load = load_of([engine])
    return over(engine) if load is None else not any(load.tasks.values())


def repartition(project: EngineProject, run: GroupRun, to: tuple[Partition, ...]) -> Mapping[Partition, Cursor]:
    """Give a group other partitions, and return the cursor of each."""
    log = Log(run.processing.hashes_at, run.processing.positions_of)
    return project.tracker.repartition(run.group, to, lambda known: carried_over(known, to, log))


class EngineAssignmentContract:
    """How an engine claims and leaves partitions."""

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        """Return the factory of the engine, as packages register it."""
        raise NotImplementedError

    @pytest.fixture
    def project(self, tmp_path: Path, make_engine: MakeEngine) -> Iterator[EngineProject]:
        """Yield a project without events."""
        project = EngineProject(f"sqlite:///{tmp_path / 'orders.db'}", make_engine)
        yield project
        project.close()

    # Start and stop

    def test_a_scheduled_group_taken_over_during_a_tick_loses_and_duplicates_nothing(
        self, project: EngineProject
    ) -> None:
        project.append(*[FIRST, SECOND] * 20)
        gate = project.gate("7")
        run = project.run(schedule=SOON, batch_size=4)
        first, _ = project.started(run)
        gate.wait()
        second, watching = project.engine(run, owner="heir")
        taking = begun(second.assign, run.group, run.partitions)
        gate.opened.set()
        returned(taking, SECONDS, "assign does not return although the handler has")
        second.start()
        watching.wait_for(lambda: len(project.rows()) == 40)
        project.stop(first)
        project.stop(second)
        for subject in (FIRST, SECOND):
            assert project.rows(subject=subject) == [n for n in range(40) if (n % 2 == 0) is (subject == FIRST)]
        assert not any(status.parked for status in project.statuses())

    def test_a_stop_waits_no_longer_than_its_timeout(self, project: EngineProject) -> None:
        project.append(FIRST)
        gate = project.gate("0")
        engine, _ = project.started(project.run(partitions=1))
        gate.wait()
        gate.hold_during(lambda: engine.stop(0.01))
        assert project.rows() == []
        gate.opened.set()
        project.stop(engine)
        after, watching = project.started(project.run(partitions=1), owner="another")
        project.when_done(after, watching)
        assert project.rows() == [0]

    def test_a_stopping_engine_finishes_the_events_in_hand_and_begins_no_others(self, project: EngineProject) -> None:
        project.append(*[FIRST] * 20)
        gate = project.gate("0")
        engine, watching = project.started(project.run(partitions=1, batch_size=1))
        gate.wait()
        if not isinstance(engine, BeginsStop):
            pytest.skip("the engine can only be stopped and waited for at the same time")
        engine.begin_stop()
        gate.opened.set()
        watching.wait_for(lambda: rests(engine) or len(project.rows()) == 20)
        assert project.rows() == [0]
        project.stop(engine)
        after, watching = project.started(project.run(partitions=1), owner="another")
        project.when_done(after, watching)
        assert project.rows() == list(range(20))

    def test_an_error_that_ends_an_engine_is_raised_by_the_next_check(self, project: EngineProject) -> None:
        def broken(_outcome: Outcome) -> None:
            raise LookupError("an observer's error")

        project.append(FIRST)
        engine, watching = project.engine(project.run(partitions=1))
        watching.on_advanced = broken
        engine.assign("orders", layout(1))
        engine.start()
        watching.wait_for(lambda: watching.steps)
        project.stop(engine)
        with pytest.raises(LookupError, match="an observer's error"):
            engine.check()
        assert project.rows() == [0]

    def test_after_a_takeover_the_first_engine_writes_nothing(self, project: EngineProject) -> None:
        project.append(FIRST, SECOND)
        old, old_watching = project.started(project.run())
        project.when_done(old, old_watching)
        new, new_watching = project.started(project.run(), owner="another")
        project.append(*[FIRST, SECOND] * 10)
        project.when_done(new, new_watching)
        old_watching.wait_for(lambda: over(old))
        assert sorted(project.rows()) == list(range(22))
        failures = [partition.failure for partition in old.partitions()]
        assert {failure.origin for failure in failures if failure} == {Origin.FENCED}
        assert [partition.handled for partition in old.partitions()] == [1, 1]
        project.stop(old)  # its last report does not overwrite the state of the new one
        new_watching.wait_for(lambda: {status.state for status in project.statuses()} == {ProcessorState.RUNNING})

    def test_a_takeover_in_mid_chunk_waits_for_the_chunk_and_loses_nothing(self, project: EngineProject) -> None:
        project.append(*[FIRST] * 6)
        gate = project.gate("2")
        old, old_watching = project.started(project.run(partitions=1, batch_size=3))
        gate.wait()
        del project.before["2"]
        starting = begun(partial(project.started, project.run(partitions=1, batch_size=3), owner="another"))
        gate.opened.set()
        new, new_watching = returned(starting, SECONDS, "assign or start does not return although the handler has")
        project.when_done(new, new_watching)
        project.append(FIRST)
        project.when_done(new, new_watching)
        old_watching.wait_for(lambda: over(old))
        assert project.rows() == list(range(7))

    def test_preparation_runs_before_the_first_event(self, project: EngineProject) -> None:
        order: list[str] = []
        project.append(FIRST)
        project.before["0"] = lambda _: order.append("handled")

        engine, watching = project.started(project.run(partitions=1, prepare=lambda: order.append("prepared")))
        project.when_done(engine, watching)
        engine.check()
        assert order == ["prepared", "handled"]

    def test_an_error_of_the_preparation_is_raised_and_nothing_is_handled(self, project: EngineProject) -> None:
        def fail() -> None:
            raise LookupError("no table")

        project.append(FIRST)
        engine, _ = project.engine(project.run(partitions=1, prepare=fail))
        with pytest.raises(LookupError, match="no table"):
            engine.assign("orders", layout(1))
        assert listed(engine) == []
        engine.start()
        project.stop(engine)
        assert project.rows() == []

    def test_a_refused_claim_is_raised(self, project: EngineProject) -> None:
        engine, _ = project.started(project.run(partitions=2))
        project.stop(engine)
        another, _ = project.engine(project.run(partitions=3), owner="another")
        with pytest.raises(EventStoreError, match="OCQ-310"):
            another.assign("orders", layout(3))
        assert listed(another) == []

    def test_a_release_leaves_other_groups_unchanged(self, project: EngineProject) -> None:
        engine, watching = project.started(project.run("orders"), project.run("books"))
        engine.release("orders", layout(2)[:1], SECONDS)
        left = [GroupPartition("books", each) for each in layout(2)] + [GroupPartition("orders", Partition(2, 1))]
        assert sorted(engine.assigned()) == left
        project.append(FIRST, SECOND)
        watching.wait_for(lambda: sorted(project.rows("books")) == [0, 1] and project.rows("orders") == [1])

    def test_nothing_is_handled_before_the_start(self, project: EngineProject) -> None:
        project.append(FIRST)
        engine, _ = project.engine(project.run(partitions=1))
        engine.assign("orders", layout(1))
        project.stop(engine)
        assert project.rows() == []
        assert [status.state for status in project.statuses()] == [ProcessorState.STOPPED]

    def test_partitions_are_assigned_and_released_while_others_continue(self, project: EngineProject) -> None:
        project.append(FIRST, SECOND)
        run = project.run()
        first, second = run.partitions
        engine, watching = project.engine(run)
        engine.assign("orders", [first])
        engine.start()
        watching.wait_for(lambda: project.rows() == [0])
        watching.wait_for(lambda: project.states() == [ProcessorState.RUNNING, ProcessorState.STOPPED])

        engine.assign("orders", [first, second])
        watching.wait_for(lambda: project.rows(subject=SECOND) == [1])
        engine.release("orders", [first], SECONDS)
        project.append(FIRST, SECOND)
        watching.wait_for(lambda: project.rows(subject=SECOND) == [1, 3])
        assert project.rows(subject=FIRST) == [0]
        watching.wait_for(lambda: project.states() == [ProcessorState.STOPPED, ProcessorState.RUNNING])

        engine.assign("orders", [first])
        project.when_done(engine, watching)
        assert project.rows(subject=FIRST) == [0, 2]
        engine.release("orders", run.partitions, SECONDS)
        assert {status.state for status in project.statuses()} == {ProcessorState.STOPPED}
        engine.check()

    def test_partitions_are_listed_from_their_assignment_to_their_release(self, project: EngineProject) -> None:
        run = project.run(partitions=3)
        first, second, third = run.partitions
        engine, _ = project.engine(run)
        assert listed(engine) == []
        engine.assign("orders", [first, second])
        assert listed(engine) == [first, second]
        engine.start()
        engine.assign("orders", [second, third])
        assert listed(engine) == [first, second, third]
        engine.release("orders", [second], SECONDS)
        assert listed(engine) == [first, third]
        engine.assign("orders", [second])
        assert listed(engine) == [first, second, third]
        project.stop(engine)
        assert listed(engine) == []

    def test_a_partition_taken_over_by_another_engine_is_no_longer_listed(self, project: EngineProject) -> None:
        project.append(FIRST, SECOND)
        run = project.run()
        first, second = run.partitions
        old, old_watching = project.started(run)
        project.when_done(old, old_watching)
        new, _ = project.engine(run, owner="another")
        new.assign("orders", [first])
        new.start()
        project.append(FIRST, SECOND)
        lost = next(each for each in old.partitions() if each.partition == first)
        old_watching.wait_for(lambda: lost.over)
        assert (listed(old), listed(new)) == ([second], [first])

    def test_partitions_assigned_already_are_not_claimed_again(self, project: EngineProject) -> None:
        project.append(FIRST, SECOND)
        run = project.run()
        engine, watching = project.engine(run)
        engine.assign("orders", run.partitions[:1])
        first = project.epochs()[0]
        engine.assign("orders", run.partitions)
        both = project.epochs()
        assert both[0] == first
        engine.start()
        project.when_done(engine, watching)
        engine.assign("orders", run.partitions)
        project.append(FIRST, SECOND)
        project.when_done(engine, watching)
        assert project.epochs() == both
        assert sorted(project.rows()) == [0, 1, 2, 3]

    def test_a_released_partition_finishes_the_events_in_hand_and_another_engine_continues_after_them(
        self, project: EngineProject
    ) -> None:
        project.append(*[FIRST] * 4)
        gate = project.gate("1")
        old, _ = project.started(project.run(partitions=1, batch_size=2))
        gate.wait()
        releasing = begun(old.release, "orders", layout(1), SECONDS)
        gate.opened.set()
        returned(releasing, SECONDS, "release does not return although the handler has")
        handled_here = project.rows()
        assert handled_here in ([0, 1], [0, 1, 2, 3])
        new, watching = project.started(project.run(partitions=1), owner="another")
        project.when_done(new, watching)
        assert project.rows() == [0, 1, 2, 3]
        assert [partition.failure for partition in old.partitions()] == [None]

    def test_a_release_that_times_out_loses_and_duplicates_nothing(self, project: EngineProject) -> None:
        project.append(FIRST, SECOND, SECOND)
        gate = project.gate("0")
        run = project.run()
        engine, watching = project.started(run)
        gate.wait()
        gate.hold_during(lambda: engine.release("orders", run.partitions[:1], 0.01))
        gate.opened.set()
        watching.wait_for(lambda: project.rows(subject=SECOND) == [1, 2])
        project.stop(engine)
        after, watching = project.started(project.run(), owner="another")
        project.when_done(after, watching)
        assert sorted(project.rows()) == [0, 1, 2]

    def test_events_handled_or_skipped_under_an_earlier_claim_are_counted(self, project: EngineProject) -> None:
        def refuse(_context: ProcessingContext) -> None:
            raise ValueError("never")

        project.before["1"] = refuse
        project.append(FIRST, FIRST, FIRST)
        engine, watching = project.started(project.run(partitions=1, back_off=NoRetry()))
        project.when_done(engine, watching)
        engine.release("orders", layout(1), SECONDS)
        project.append(FIRST)
        engine.assign("orders", layout(1))
        project.when_done(engine, watching)
        assert project.rows() == [0, 2, 3]
        assert [(partition.handled, partition.skipped) for partition in engine.partitions()] == [(3, 1)]

    def test_an_engine_refuses_groups_it_does_not_run(self, project: EngineProject) -> None:
        engine, _ = project.engine(project.run())
        with pytest.raises(ValueError, match="'boks'"):
            engine.assign("boks", layout(2))
        with pytest.raises(ValueError, match="'boks'"):
            engine.release("boks", layout(2), 0)

    @pytest.mark.parametrize("together", [1, None], ids=["one by one", "in chunks"])
    def test_after_repartitioning_every_event_is_handled_once_and_in_order(
        self, project: EngineProject, together: int | None
    ) -> None:
        """One partition is ahead of the other. They are merged, split and made three, each while events arrive."""
        project.append(*[FIRST, SECOND] * 10)
        record = RecordRule("orders", "tail", GroupCode, FakeClock().now, partitions=2)
        run = replace(project.run(batch_size=together), record=record)
        engine, watching = project.engine(run)
        engine.assign("orders", run.partitions[:1])  # so that the other one lags
        engine.start()
        watching.wait_for(lambda: position_of(project, run.partitions[0]) == 20)
        engine.release("orders", run.partitions[:1], SECONDS)
        for partitions in (layout(1), (*Partition(2, 0).split(), Partition(2, 1)), layout(3)):
            carried = repartition(project, run, tuple(partitions))
            assert any(cursor.ahead for cursor in carried.values()) is (partitions == layout(1))
            project.append(*[FIRST, SECOND, "/order/2"] * 5)
            engine.assign("orders", partitions)
            project.append(*[SECOND, FIRST] * 5)
            watching.wait_for(partial(have_reached, project, partitions, project.store.head()))
            engine.release("orders", partitions, SECONDS)
        assert sorted(project.rows()) == list(range(project.store.count()))
        for subject in (FIRST, SECOND, "/order/2"):
            own = project.rows(subject=subject)
            assert own == sorted(own)

    def test_a_partition_assigned_while_the_engine_stops_is_released(
        self, project: EngineProject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project.append(FIRST)
        run = project.run(partitions=1)
        engine, _ = project.started(run)
        engine.release("orders", run.partitions, SECONDS)
        claimed = SqlProgressTracker.claim

        def stopped_meanwhile(*arguments: Any, **more: Any) -> Any:
            cursors = claimed(*arguments, **more)
            engine.stop(SECONDS)
            return cursors

        monkeypatch.setattr(SqlProgressTracker, "claim", stopped_meanwhile)
        engine.assign("orders", run.partitions)
        assert project.states() == [ProcessorState.STOPPED]
        engine.check()

    def test_a_stopped_engine_takes_no_partition_from_its_next_owner(self, project: EngineProject) -> None:
        project.append(FIRST)
        old, _ = project.started(project.run(partitions=1))
        project.stop(old)
        new, watching = project.started(project.run(partitions=1), owner="another")
        old.assign("orders", layout(1))
        project.append(FIRST)
        project.when_done(new, watching)
        assert project.rows() == [0, 1]
        assert [each.partition for each in new.partitions() if not each.over] == [*layout(1)]

    def test_a_partition_that_another_process_took_over_can_be_assigned_again(self, project: EngineProject) -> None:
        project.append(FIRST)
        old, old_watching = project.started(project.run(partitions=1))
        project.when_done(old, old_watching)
        new, _ = project.started(project.run(partitions=1), owner="another")
        project.append(FIRST)
        old_watching.wait_for(lambda: over(old))
        project.stop(new)
        old.assign("orders", layout(1))
        project.append(FIRST)
        project.when_done(old, old_watching)
        assert project.rows() == [0, 1, 2]

"""The contract of engines: each rule of processing holds, whichever engine runs a group."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from threading import Event as Signal
from typing import Any

import pytest

from opencqrs_py.errors import EventFormatError, NonTransientError
from opencqrs_py.model import ProcessorState
from opencqrs_py.model.choices import BatchMode, OnExhausted
from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event
from opencqrs_py.model.replay import Reset
from opencqrs_py.processing import supervision
from opencqrs_py.processing.binding import Work
from opencqrs_py.processing.inbox.batches import OrderingKey
from opencqrs_py.processing.inbox.parked_entries import ParkingRule
from opencqrs_py.processing.recovery import Action, FixedBackOff, NoRetry
from opencqrs_py.testing.contracts.engine_assignment import EngineAssignmentContract
from opencqrs_py.testing.contracts.engine_project import (
    FIRST,
    SECOND,
    SECONDS,
    SOON,
    EngineProject,
    numbers,
    subjects,
)

HOUR = 3_600.0


class EngineContract(EngineAssignmentContract):
    """What groups rely on, whichever engine runs them.

    Give ``make_engine``: the class or function that a package registers as an engine. Groups of the contract work on
    SQLite, in this process. If an engine kills tasks that do not end in time, have it call ``project.kill()``.
    """

    @pytest.mark.parametrize("partitions", [1, 2, 8])
    def test_every_event_is_handled_once_and_in_the_order_of_its_sequence(
        self, project: EngineProject, partitions: int
    ) -> None:
        given = subjects(500)
        project.append(*given)
        engine, watching = project.started(project.run(partitions=partitions, batch_size=50))
        project.when_done(engine, watching)
        project.stop(engine)
        assert sorted(project.rows()) == list(range(500))
        for subject in set(given):
            assert project.rows(subject=subject) == numbers(given, subject)
        assert {status.position for status in project.statuses()} == {500}
        assert {status.state for status in project.statuses()} == {ProcessorState.STOPPED}

    def test_events_that_arrive_later_are_handled_too(self, project: EngineProject) -> None:
        engine, watching = project.started(project.run())
        project.when_done(engine, watching)
        for _ in range(3):
            project.append(FIRST, SECOND)
            project.when_done(engine, watching)
        assert sorted(project.rows()) == list(range(6))

    def test_groups_advance_independently_in_one_engine(self, project: EngineProject) -> None:
        def fail(context: ProcessingContext) -> None:
            if context.group == "stuck":
                raise NonTransientError

        project.append(*subjects(20))
        project.before["3"] = fail
        engine, watching = project.started(project.run("orders"), project.run("stuck", partitions=1))
        orders = [partition for partition in engine.partitions() if partition.group == "orders"]
        (stuck,) = (partition for partition in engine.partitions() if partition.group == "stuck")
        watching.wait_for(lambda: all(p.done(20) for p in orders) and stuck.state is ProcessorState.FAILED)
        project.stop(engine)
        assert sorted(project.rows("orders")) == list(range(20))
        assert project.rows("stuck") == [0, 1, 2]
        states = {status.group: status.state for status in project.statuses()}
        assert states == {"orders": ProcessorState.STOPPED, "stuck": ProcessorState.FAILED}

    def test_an_event_that_backs_off_delays_only_its_own_partition(self, project: EngineProject) -> None:
        def fail(_context: ProcessingContext) -> None:
            raise ValueError("not now")

        given = [FIRST, FIRST, FIRST, SECOND, SECOND, FIRST, SECOND]
        project.append(*given)
        project.before["1"] = fail
        engine, watching = project.started(project.run(back_off=FixedBackOff(HOUR)))
        first, second = engine.partitions()
        watching.wait_for(lambda: second.done(7) and first.state is ProcessorState.BACKING_OFF)
        project.append(SECOND)
        watching.wait_for(lambda: second.done(8) and project.statuses()[0].state is ProcessorState.BACKING_OFF)
        assert project.rows(subject=FIRST) == [0]
        assert project.rows(subject=SECOND) == [3, 4, 6, 7]
        status = project.statuses()[0]
        assert (status.position, status.state, status.attempt) == (1, ProcessorState.BACKING_OFF, 1)
        assert status.error.startswith("ValueError: not now")
        assert status.next_attempt_at is not None
        project.stop(engine)  # does not wait for the hour to pass
        assert project.statuses()[0].state is ProcessorState.STOPPED

    def test_a_failing_event_is_retried_until_it_succeeds(self, project: EngineProject) -> None:
        attempts: list[int] = []

        def fail_twice(context: ProcessingContext) -> None:
            attempts.append(context.attempt)
            if context.attempt < 3:
                raise ValueError

        project.append(*[FIRST] * 5)
        project.before["2"] = fail_twice
        engine, watching = project.started(project.run(partitions=1))
        project.when_done(engine, watching)
        assert attempts == [1, 2, 3]
        assert project.rows() == [0, 1, 2, 3, 4]
        assert [notice.action for notice in watching.notices] == [Action.RETRY, Action.RETRY, None]

    def test_a_partition_continues_after_outages_of_the_event_store(
        self, project: EngineProject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outages = [ConnectionError("no route"), ConnectionError("no answer")]
        read, is_outage = project.store.read, project.store.is_outage

        def unavailable_twice(*arguments: Any, **more: Any) -> Any:
            if outages:
                raise outages.pop()
            return read(*arguments, **more)

        monkeypatch.setattr(supervision, "OUTAGE_BACK_OFF", FixedBackOff(0.001))
        monkeypatch.setattr(project.store, "read", unavailable_twice)
        monkeypatch.setattr(
            project.store, "is_outage", lambda error: isinstance(error, ConnectionError) or is_outage(error)
        )
        project.append(FIRST, SECOND, FIRST)
        engine, watching = project.started(project.run(back_off=NoRetry(), on_exhausted=OnExhausted.STOP))
        project.when_done(engine, watching)
        assert (sorted(project.rows()), outages) == ([0, 1, 2], [])

    def test_a_failed_partition_is_tried_again_from_its_progress(
        self, project: EngineProject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fixed = Signal()

        def fail(_context: ProcessingContext) -> None:
            if not fixed.is_set():
                raise NonTransientError

        monkeypatch.setattr(supervision, "FAILURE_BACK_OFF", FixedBackOff(0.01))
        project.append(*[FIRST] * 3)
        project.before["1"] = fail
        engine, watching = project.started(project.run(partitions=1, back_off=NoRetry(), on_exhausted=OnExhausted.STOP))
        watching.wait_for(lambda: project.states() == [ProcessorState.FAILED])
        assert project.rows() == [0]
        fixed.set()
        project.when_done(engine, watching)
        assert project.rows() == [0, 1, 2]

    @pytest.mark.parametrize("on_exhausted", list(OnExhausted))
    def test_an_event_with_exhausted_attempts_is_skipped_or_parked_or_stops_its_partition(
        self, project: EngineProject, on_exhausted: OnExhausted
    ) -> None:
        def fail(_context: ProcessingContext) -> None:
            raise ValueError

        project.append(FIRST, FIRST, FIRST, "/order/2")
        project.before["1"] = fail
        run = project.run(partitions=1, back_off=NoRetry(), on_exhausted=on_exhausted)
        engine, watching = project.started(run)
        (partition,) = engine.partitions()
        stops = on_exhausted is OnExhausted.STOP
        watching.wait_for(lambda: partition.state is ProcessorState.FAILED if stops else partition.done(4))
        project.stop(engine)
        rows = {OnExhausted.SKIP: [0, 2, 3], OnExhausted.PARK: [0, 3], OnExhausted.STOP: [0]}
        assert project.rows() == rows[on_exhausted]
        assert project.statuses()[0].position == (1 if stops else 4)

    @pytest.mark.parametrize("on_undecodable", list(OnExhausted))
    def test_an_event_that_cannot_be_decoded_is_skipped_or_parked_or_stops_its_partition(
        self, project: EngineProject, on_undecodable: OnExhausted
    ) -> None:
        def fail(_context: ProcessingContext) -> None:
            raise EventFormatError("OCQ-211", "the event's data do not fit")

        project.append(FIRST, FIRST, FIRST, "/order/2")
        project.before["1"] = fail
        stops = on_undecodable is OnExhausted.STOP
        run = project.run(partitions=1, on_exhausted=OnExhausted.SKIP if stops else OnExhausted.STOP)
        engine, watching = project.started(replace(run, on_undecodable=on_undecodable))
        (partition,) = engine.partitions()
        watching.wait_for(lambda: partition.state is ProcessorState.FAILED or partition.done(4))
        project.stop(engine)
        rows = {OnExhausted.SKIP: [0, 2, 3], OnExhausted.PARK: [0, 3], OnExhausted.STOP: [0]}
        assert project.rows() == rows[on_undecodable]
        assert project.statuses()[0].position == (1 if stops else 4)
        assert project.waiting() == (2 if on_undecodable is OnExhausted.PARK else 0)

    def test_partitions_without_progress_start_at_the_initial_position_and_others_after_their_progress(
        self, project: EngineProject
    ) -> None:
        project.append(FIRST, SECOND, FIRST, SECOND)
        run = project.run()
        engine, watching = project.started(replace(run, initial=lambda: 2))
        project.when_done(engine, watching)
        project.stop(engine)
        assert sorted(project.rows()) == [2, 3]
        for initial in (0, 100):
            project.append(FIRST, SECOND)
            again, watching = project.started(replace(run, initial=partial(int, initial)), owner="next")
            project.when_done(again, watching)
            project.stop(again)
            assert sorted(project.rows()) == list(range(2, project.store.count()))

    @pytest.mark.parametrize("at_once", [False, True])
    def test_a_parked_event_delays_only_its_sequence_which_is_then_handled_in_order(
        self, project: EngineProject, *, at_once: bool
    ) -> None:
        fixed = Signal()

        def fail(_context: ProcessingContext) -> None:
            if not fixed.is_set():
                raise ValueError

        given = [f"/s{number}" for number in range(5)]
        project.append(*given * 6)
        project.before["1"] = fail
        rule = ParkingRule(FixedBackOff(0.05), on_exhausted=OnExhausted.PARK)
        rule = replace(rule, retry=NoRetry()) if at_once else rule  # parked within the step, on Spark by the task
        run = project.run(back_off=NoRetry(), on_exhausted=OnExhausted.PARK, parking=rule)
        engine, watching = project.started(run)
        others = [number for number in range(30) if number % 5 != 1]
        watching.wait_for(lambda: sorted(project.rows()) == others)
        project.append(*given)
        watching.wait_for(lambda: len(project.rows()) == len(others) + 4)
        assert project.rows(subject="/s1") == []
        assert project.waiting() == 7
        fixed.set()
        watching.wait_for(lambda: len(project.rows()) == 35)
        project.stop(engine)
        assert project.rows(subject="/s1") == [number for number in range(35) if number % 5 == 1]
        assert [status.parked for status in project.statuses()] == [(), ()]

    @pytest.mark.parametrize("mode", BatchMode)
    def test_a_scheduled_group_handles_waiting_events_at_its_ticks(
        self, project: EngineProject, mode: BatchMode
    ) -> None:
        fixed = Signal()

        def fail(_context: ProcessingContext) -> None:
            if not fixed.is_set():
                raise ValueError

        given = [f"/s{number}" for number in range(5)]
        project.append(*given * 6)
        project.before["1"] = fail
        engine, watching = project.started(project.run(schedule=replace(SOON, mode=mode)))
        first = [number for number in range(30) if number % 5 != 1 or (mode is BatchMode.ALL and number != 1)]
        watching.wait_for(lambda: sorted(project.rows()) == first)
        project.append(*given)
        watching.wait_for(lambda: len(project.rows()) == len(first) + 4 + (mode is BatchMode.ALL))
        waits = {1} if mode is BatchMode.ALL else set(range(1, 35, 5))
        assert project.waiting() == len(waits)
        fixed.set()
        watching.wait_for(lambda: len(project.rows()) == 35)
        watching.wait_for(lambda: not any(status.parked for status in project.statuses()))
        project.stop(engine)
        assert sorted(project.rows()) == list(range(35))
        if mode is BatchMode.FAIL_FIRST:
            assert project.rows(subject="/s1") == list(range(1, 35, 5))
        assert [status.position for status in project.statuses()] == [35, 35]

    def test_failures_within_the_grace_period_of_an_event_are_logged_once(
        self, project: EngineProject, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "opencqrs.processing")
        tried: list[int] = []
        fixed = Signal()

        def fail(context: ProcessingContext) -> None:
            tried.append(context.position)
            if not fixed.is_set():
                raise ValueError("too early")

        project.append(FIRST, SECOND)
        project.before["1"] = fail
        engine, watching = project.started(project.run(schedule=replace(SOON, grace_seconds=SECONDS)))
        watching.wait_for(lambda: len(tried) > 2)
        fixed.set()
        watching.wait_for(lambda: len(project.rows()) == 2)
        project.stop(engine)
        said = [record.getMessage() for record in caplog.records if "failures count from" in record.getMessage()]
        assert len(said) == 1
        assert "failed (ValueError: too early)" in said[0]

    def test_an_event_for_which_the_ordering_function_fails_delays_only_its_batch(self, project: EngineProject) -> None:
        fixed = Signal()

        def due(raw: Event) -> int:
            if raw.id == "1" and not fixed.is_set():
                raise KeyError("due")
            return -raw.position

        project.append(*[FIRST, SECOND] * 3)
        engine, watching = project.started(project.run(schedule=replace(SOON, key=OrderingKey(due))))
        watching.wait_for(lambda: sorted(project.rows()) == [0, 2, 4])
        watching.wait_for(lambda: project.waiting() == 3)
        fixed.set()
        watching.wait_for(lambda: len(project.rows()) == 6)
        project.stop(engine)
        assert (project.rows(subject=FIRST), project.rows(subject=SECOND)) == ([4, 2, 0], [5, 3, 1])

    def test_after_a_reset_events_are_handled_again_and_the_end_is_reported_once(self, project: EngineProject) -> None:
        given, told, finished = subjects(40), dict[int, bool](), list[Reset]()

        def note(context: ProcessingContext) -> None:
            told[context.position] = context.replaying

        def end(reset: Reset, work: Work) -> None:
            finished.append(reset)
            insert = "INSERT INTO handled (group_name, event_id, subject) VALUES ('orders', -1, '')"
            work.connection.exec_driver_sql(insert)

        project.append(*given)
        project.before = {str(number): note for number in range(60)}
        run = project.run(partitions=3, batch_size=7, at_replay_end=end)
        engine, watching = project.started(run)
        project.when_done(engine, watching)
        project.stop(engine)
        project.append(*given[:20])
        reset = Reset("orders", 10, {"why": "a new column"}, "a test", "2026-01-01T00:00:00+00:00")
        with project.tracker.resetting(reset, run.partitions) as opened:
            opened.unit.connection.exec_driver_sql("DELETE FROM handled WHERE event_id >= 10")
        again, watching = project.started(run, owner="next")
        project.when_done(again, watching)
        project.stop(again)
        rows = project.rows()
        assert sorted(rows) == [-1, *range(60)]
        assert finished == [reset]
        assert {position: told[position] for position in range(11, 61)} == {
            position: position <= 40 for position in range(11, 61)
        }
        assert [status.replay for status in project.statuses()] == [None] * 3

    def test_a_replay_whose_end_fails_is_reported_and_can_end_later(self, project: EngineProject) -> None:
        fails = [ValueError("no printer")]

        def end(_reset: Reset, _work: Work) -> None:
            if fails:
                raise fails[0]

        project.append(*subjects(5))
        run = project.run(partitions=1, at_replay_end=end)
        engine, watching = project.started(run)
        project.when_done(engine, watching)
        project.stop(engine)
        with project.tracker.resetting(Reset("orders", 0), run.partitions):
            pass
        again, watching = project.started(run, owner="next")
        watching.wait_for(lambda: project.states() == [ProcessorState.FAILED])
        assert "no printer" in project.statuses()[0].error
        project.stop(again)
        fails.clear()
        last, watching = project.started(run, owner="last")
        project.when_done(last, watching)
        assert project.statuses()[0].replay is None

"""The law of the desk: whatever processes do, each tick has one record, no event is lost, nothing waits forever."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import combinations, count
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from opencqrs_py.adapters.memory.jobs import InMemoryJobStore
from opencqrs_py.jobs.desk import Ending, JobDesk, Worker
from opencqrs_py.jobs.ports import JobBook
from opencqrs_py.jobs.rules import JobRule, Meeting, Ticking
from opencqrs_py.jobs.runs import JobRun, RunPosition, RunStatus
from opencqrs_py.model.choices import Misfire, Overlap, OverlapScope
from opencqrs_py.model.job import JobId, Trigger
from opencqrs_py.processing.inbox.schedules import FixedDelay, FixedRate
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.testing.clock import FakeClock

RATE, DELAY, FREE = "rate", "delay", "free"
JOBS = (RATE, DELAY, FREE)
SECONDS = 5
BACK_OFF = FixedBackOff(3, 2)

ACTIONS = (
    *["finish"] * 6,
    *["event", "ask"] * 3,
    *["ask_here", "cancel", "die", "resume"] * 2,
    *["start", "hear_of_others", "lose_an_answer", "wake_up", "end_gracefully", "pause"],
)

T = TypeVar("T")

ids = st.none() | st.lists(st.sampled_from([1, "1", 2, 3]), min_size=1, max_size=2).map(tuple)
endings = st.sampled_from(
    [
        *[Ending(RunPosition(done=True))] * 3,
        Ending(RunPosition(), error="no"),
        Ending(RunPosition(), error="never", permanent=True),
        Ending(RunPosition(failed=(1,), done=True), error="1 of 1"),
    ]
)


class LossyStore(InMemoryJobStore):
    """A store that can lose the confirmation of a commit."""

    loses = False

    @contextmanager
    def open(self, jobs: Collection[str]) -> Iterator[JobBook]:
        with super().open(jobs) as book:
            yield book
        if self.loses:
            self.loses = False
            raise ConnectionError


def same_ids(one: JobRun, other: JobRun) -> bool:
    """Return whether two runs, both for named ids or both for all, are for the same ids."""
    return one.ids is None or any(str(mine) == str(yours) for mine in one.ids for yours in other.ids or ())


@dataclass
class Process:
    """A process that runs jobs."""

    node: str
    desk: JobDesk
    known: frozenset[str]
    most: int
    in_hand: list[JobRun] = field(default_factory=list)
    callers: list[str] = field(default_factory=list)


class DeskMachine(RuleBasedStateMachine):
    """Up to three processes on one store. A dead process may wake up and finish its runs."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.store = LossyStore(self.clock)
        self.processes: list[Process] = []
        self.zombies: list[tuple[Process, JobRun]] = []
        self.claims: set[tuple[str, int]] = set()
        self.events: dict[str, tuple[JobId, ...] | None] = {}
        self.numbers = count(1)
        self.first_tick: datetime | None = None
        self.number = 0

    @initialize(
        misfires=st.tuples(*[st.sampled_from(Misfire)] * 2),
        overlaps=st.tuples(*[st.sampled_from(Overlap)] * 3),
        scopes=st.tuples(*[st.sampled_from(OverlapScope)] * 3),
        exclusive=st.sets(st.sampled_from(list(combinations(JOBS, 2)))),
        jitter=st.sampled_from([0.0, 4.0]),
        most=st.integers(1, 3),
    )
    def rules_are(self, misfires, overlaps, scopes, exclusive, jitter, most):
        ticking = {
            RATE: Ticking(FixedRate(0, SECONDS), "rate", jitter=jitter, misfire=misfires[0], grace=7),
            DELAY: Ticking(FixedDelay(0, SECONDS), "delay", from_end=True, misfire=misfires[1], grace=7),
            FREE: Ticking(),
        }
        self.rules = {
            name: JobRule(
                name,
                ticking[name],
                Meeting(overlap, scope, queue_size=2, grace=6, exclusive=self._excluded(name, exclusive)),
                limit=3,
                back_off=BACK_OFF,
            )
            for name, overlap, scope in zip(JOBS, overlaps, scopes, strict=True)
        }
        self.most = most
        self.start()

    @staticmethod
    def _excluded(name: str, pairs: Collection[tuple[str, str]]) -> frozenset[str]:
        return frozenset(second for first, second in pairs if first == name)

    @rule(
        seconds=st.sampled_from([0, 0.5, 1, 2, 3, 5, 6, 8, 30]),
        actions=st.lists(st.sampled_from(ACTIONS), max_size=5),
        number=st.integers(0, 10**6),
        wanted=ids,
        ending=endings,
        attending=st.sets(st.integers(0, 2)),
    )
    def something_happens(self, seconds, actions, number, wanted, ending, attending):
        self.clock.advance(seconds)
        for index, action in enumerate(actions):
            self.number, self.wanted, self.ending = number // (index + 1), wanted, ending
            getattr(self, action)()
            self._check()
        for each in sorted(attending):
            self._attend(self._process(each))
            self._check()

    def start(self) -> None:
        if len(self.processes) < 3:
            node = f"node-{next(self.numbers)}"
            process = Process(node, JobDesk(self.store, self.rules, lambda: 0.5), frozenset({node}), self.most)
            self.processes.append(process)
            process.known = self._alive()

    def hear_of_others(self) -> None:
        self._process().known = self._alive()

    def lose_an_answer(self) -> None:
        process = self._process()
        self.store.loses = True
        with suppress(ConnectionError):
            self._take(process, process.desk.attend(self._worker(process)))
        self.store.loses = False

    def finish(self) -> None:
        in_hand = [(process, run) for process in self.processes for run in process.in_hand]
        if in_hand:
            process, run = self._one_of(in_hand)
            process.in_hand.remove(run)
            known = self.store.find(run.id)
            asked = known is not None and known.cancelled_at is not None and self.number % 2
            process.desk.finish(run, Ending(RunPosition(), cancelled=True, reason="asked") if asked else self.ending)

    def die(self) -> None:
        process = self._process()
        self.processes.remove(process)
        self.zombies += [(process, run) for run in process.in_hand]
        self.start()

    def wake_up(self) -> None:
        if self.zombies:
            process, run = self._one_of(self.zombies)
            self.zombies.remove((process, run))
            before = self.store.find(run.id)
            valid = before is not None and before.token == run.token and before.status is RunStatus.RUNNING
            assert (process.desk.finish(run, self.ending) is not None) == valid

    def end_gracefully(self) -> None:
        process = self._process()
        for run in process.in_hand:
            process.desk.finish(run, Ending(RunPosition(), reason="its process is ending", released=True))
        self.processes.remove(process)
        self.start()

    def event(self) -> None:
        job = self._one_of(JOBS)
        run = JobRun(f"{job}@event:{next(self.numbers)}", job, Trigger.EVENT, self.clock.now(), ids=self.wanted)
        assert self.store.request(run)
        assert not self.store.request(run)
        self.events[run.id] = self.wanted

    def ask(self) -> None:
        job = self._one_of(JOBS)
        run = JobRun(f"{job}@asked:{next(self.numbers)}", job, Trigger.MANUAL, self.clock.now(), ids=self.wanted)
        assert self.store.request(run)

    def ask_here(self) -> None:
        process, job = self._process(), self._one_of(JOBS)
        run = JobRun(f"{job}@here:{next(self.numbers)}", job, Trigger.MANUAL, self.clock.now(), ids=self.wanted)
        assert self.store.request(replace(run, reserved=process.node))
        process.callers.append(run.id)
        self._callers_try(process)

    def cancel(self) -> None:
        runs = [run for run in self.store.look().runs if run.trigger is not Trigger.EVENT]
        if runs:
            self._process().desk.cancel(self._one_of(runs).id, "not now", "ann")

    def pause(self) -> None:
        self.processes[0].desk.pause(self._one_of(JOBS), "ann", "maintenance")

    def resume(self) -> None:
        for job in JOBS:
            self.processes[0].desk.resume(job)

    def _check(self) -> None:
        self.no_two_exclusive_runs_are_active()
        self.no_run_is_taken_from_a_live_process()
        self.no_event_is_lost()

    @invariant()
    def no_run_is_taken_from_a_live_process(self):
        for process in self.processes:
            for run in process.in_hand:
                known = self.store.find(run.id)
                assert known.token == run.token or known.status is RunStatus.CANCELLED

    @invariant()
    def no_two_exclusive_runs_are_active(self):
        running = [run for run in self.store.look().runs if run.status is RunStatus.RUNNING]
        for one, other in combinations(running, 2):
            if one.job == other.job:
                assert self.rules[one.job].meeting.scope is OverlapScope.PER_ID, (one, other)
                assert (one.ids is None) != (other.ids is None) or not same_ids(one, other), (one, other)
            else:
                mine, yours = self.rules[one.job].meeting.exclusive, self.rules[other.job].meeting.exclusive
                assert other.job not in mine, (one, other)
                assert one.job not in yours, (one, other)

    @invariant()
    def each_tick_has_one_record(self):
        record = self.store.look().records.get(RATE)
        if record is None or record.next_tick is None:
            return
        rows = [run for run in self.store.history(RATE, 10_000) if run.trigger is Trigger.SCHEDULE]
        begin = min(run.scheduled_at for run in rows)
        self.first_tick = self.first_tick or begin
        assert begin == self.first_tick
        found = {(run.scheduled_at - begin).total_seconds() for run in rows}
        until = (record.next_tick - begin).total_seconds()
        assert found == {float(each) for each in range(0, round(until), SECONDS)}

    @invariant()
    def no_event_is_lost(self):
        for event, wanted in self.events.items():
            run = self.store.find(event)
            while run.status is RunStatus.COALESCED:
                run = self.store.find(run.into)
            assert run.trigger is Trigger.EVENT
            assert run.status not in (RunStatus.SKIPPED, RunStatus.CANCELLED)
            assert run.ids is None or set(map(str, wanted or ())) <= set(map(str, run.ids))

    @invariant()
    def a_run_that_absorbed_another_exists(self):
        for run in self.store.history(None, 10_000):
            assert (run.status is RunStatus.COALESCED) == bool(run.into)
            assert not run.into or self.store.find(run.into) is not None

    def teardown(self):
        """Let all open runs end, now that nothing disturbs them."""
        if not hasattr(self, "rules"):
            return
        self.resume()
        self.start()
        opened = {run.id for run in self.store.look().runs}
        for _ in range(40 + len(opened)):
            for process in self.processes:
                process.known = self._alive()
                self._attend(process)
            for process in self.processes:
                while process.in_hand:
                    process.desk.finish(process.in_hand.pop(), Ending(RunPosition(done=True)))
            self.clock.advance(1)
        left = [run for run in self.store.look().runs if run.id in opened]
        assert not left, left
        newest = max(run.scheduled_at for run in self.store.history(DELAY, 10_000) if run.scheduled_at is not None)
        assert (self.clock.now() - newest).total_seconds() < 3 * SECONDS
        self.each_tick_has_one_record()
        self.no_event_is_lost()

    def _process(self, number: int | None = None) -> Process:
        return self.processes[(self.number if number is None else number) % len(self.processes)]

    def _one_of(self, choices: Sequence[T]) -> T:
        return choices[self.number // 3 % len(choices)]

    def _alive(self) -> frozenset[str]:
        return frozenset(process.node for process in self.processes)

    def _worker(self, process: Process, free: int | None = None) -> Worker:
        room = process.most - len(process.in_hand) if free is None else free
        ticks_of = frozenset({RATE, DELAY})
        return Worker(process.node, process.node, process.known, max(0, room), ticks_of, self._alive)

    def _attend(self, process: Process) -> None:
        begun = process.desk.attend(self._worker(process))
        assert not any(run.reserved for run in begun)
        self._take(process, begun)
        self._callers_try(process)

    def _callers_try(self, process: Process) -> None:
        for id_ in list(process.callers):
            run = process.desk.begin(id_, self._worker(process, 1))
            if not run.is_open:
                process.callers.remove(id_)
            if run.status is RunStatus.RUNNING and (run.id, run.token) not in self.claims:
                self._take(process, [run])

    def _take(self, process: Process, runs: list[JobRun]) -> None:
        for run in runs:
            assert run.owner == process.node
            assert (run.id, run.token) not in self.claims, "an attempt began twice"
            self.claims.add((run.id, run.token))
            process.in_hand.append(run)


TestDesk = DeskMachine.TestCase
TestDesk.settings = settings(stateful_step_count=30)

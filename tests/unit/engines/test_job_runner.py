"""The runner of jobs: the runs it executes, and when it is busy."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from operator import getitem
from threading import Event as Signal
from threading import Thread, Timer, current_thread
from types import SimpleNamespace

import pytest

from opencqrs_py.adapters.memory.jobs import InMemoryJobStore
from opencqrs_py.engines import job_runner, local_runs, runs_in_hand
from opencqrs_py.engines.job_parts import Company, JobParts
from opencqrs_py.engines.job_runner import JobRunner
from opencqrs_py.errors import FencedError, UnavailableError, WaitTimedOutError
from opencqrs_py.jobs.binding import BoundJob
from opencqrs_py.jobs.desk import Ending, JobDesk, Worker
from opencqrs_py.jobs.rules import JobRule, Meeting, Ticking
from opencqrs_py.jobs.runs import JobRecord, JobRun, RunStatus
from opencqrs_py.jobs.sitting import MOST_DEATHS
from opencqrs_py.model.choices import Overlap
from opencqrs_py.model.job import Job, JobMark, Trigger
from opencqrs_py.processing.inbox.schedules import FixedRate
from opencqrs_py.processing.ports import SystemClock
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.testing import FakeClock
from opencqrs_py.web.counting import RunCounting

PATIENCE = 60.0
HEIR = Worker("heir", "heir", frozenset({"heir"}), 4, frozenset(), lambda: {"heir"})


def test_a_run_taken_back_is_in_hand_until_its_own_attempt_ends():
    """A frozen process: another one took its run and released it while the first attempt was still in a call."""
    may_continue = {attempt: Signal() for attempt in (1, 2)}
    begun = {attempt: Signal() for attempt in (1, 2)}

    def call(context, _):
        begun[context.attempt].set()
        may_continue[context.attempt].wait(PATIENCE)

    rule = JobRule("job")
    job = BoundJob(Job(JobMark("job"), call, "here"), rule, call, transactional=False)
    store = InMemoryJobStore()
    company = Company("node", "node", frozenset({"node"}), {}, lambda: {"node"})
    runner = JobRunner(JobParts({"job": job}, store, None, None, SystemClock()), lambda: company)
    store.request(JobRun("run", "job", Trigger.MANUAL, store.look().now))
    runner.start()
    try:
        assert begun[1].wait(PATIENCE)
        (first,) = (each.thread for each in runner.runs._executed())
        desk = JobDesk(store, {"job": rule})
        (taken,) = desk.attend(HEIR)
        desk.finish(taken, Ending(taken.position, released=True))
        runner.wake()
        assert begun[2].wait(PATIENCE)
        may_continue[1].set()
        first.join(PATIENCE)
        assert [run.attempt for run in runner.runs.active] == [2]
    finally:
        runner.stop(0.0)
        may_continue[2].set()
    left = store.find("run")
    assert left is not None
    assert (left.status, left.owner) == (RunStatus.RETRYING, "")


@pytest.mark.parametrize("continues", ["elsewhere", "on another thread", "with its caller"])
def test_a_local_run_that_was_taken_from_its_caller_is_executed_once_by_its_new_owner(continues, monkeypatch):
    """As of a frozen process, whose run continues under the same record; then the runner stops."""
    attempts, polls, begun, may_end = [], [], (Signal(), Signal()), (Signal(), Signal())

    def call(context, _):
        attempts.append(context.attempt)
        begun[context.attempt - 1].set()
        may_end[context.attempt - 1].wait(PATIENCE)

    store, alive = InMemoryJobStore(), frozenset({"node", "heir"})
    runner = _runner(store, call, company=lambda: Company("node", "node", alive, {}, lambda: alive))
    begin = runner.runs.desk.begin
    monkeypatch.setattr(runner.runs.desk, "begin", lambda *args: polls.append(args) or begin(*args))
    with _in_background(lambda: _run_here(runner)) as ended:
        assert begun[0].wait(PATIENCE)
        heir = JobDesk(store, {"job": JobRule("job")})
        (taken,) = heir.attend(HEIR)
        if continues != "elsewhere":
            heir.finish(taken, Ending(taken.position, released=True))
        if continues == "on another thread":
            runner.start()
            assert begun[1].wait(PATIENCE)
        may_end[0].set()
        _wait_until(lambda: begun[1].is_set() if continues == "with its caller" else len(polls) >= 3)
        if continues == "with its caller":
            may_end[1].set()
        else:
            runner.end()
        done = ended()
        may_end[1].set()
        runner.stop(PATIENCE)
    is_done = continues == "with its caller"
    assert (done.status, done.cancelled_at) == (RunStatus.SUCCEEDED if is_done else RunStatus.RUNNING, None)
    assert attempts == ([1] if continues == "elsewhere" else [1, 2])


def _left(rule=None):
    """Return a store with a run that an ended process has left."""
    store, rule = InMemoryJobStore(), rule or JobRule("job")
    store.request(JobRun("left", "job", Trigger.MANUAL, store.look().now, ids=(1, 2), reserved="gone"))
    gone = Worker("gone", "gone", frozenset({"gone"}), 1, frozenset(), lambda: {"gone"})
    assert JobDesk(store, {"job": rule}).begin("left", gone).status is RunStatus.RUNNING
    return store


@pytest.mark.parametrize("fails", [False, True])
def test_a_caller_continues_what_an_ended_process_has_left_to_its_end(fails):
    calls, rule = [], JobRule("job", back_off=FixedBackOff(0.01, 1))

    def call(context, _):
        calls.append((context.run, context.ids, context.attempt))
        if fails:
            raise RuntimeError("the attic is locked")

    store = _left(rule)
    assert _runner(store, call, rule).local.continue_left("job")
    assert calls == [("left", (1, 2), attempt) for attempt in ((2, 3) if fails else (2,))]
    left = store.find("left")
    assert left is not None
    assert (left.status, left.deaths) == (RunStatus.FAILED if fails else RunStatus.SUCCEEDED, 1)


@pytest.mark.parametrize("why", ["another process runs the job", "the runner is started", "it has no leases"])
def test_a_caller_leaves_runs_to_the_processes_that_run_the_job(why, monkeypatch):
    store, alive = _left(), frozenset({"node"})
    company = Company("node", "node", alive, {"job": ""} if why.startswith("another") else {}, lambda: alive)
    monkeypatch.setattr(JobRunner, "_watch", lambda _: None)
    runner = _runner(store, lambda *_: None, company=lambda: None if why == "it has no leases" else company)
    if why == "the runner is started":
        runner.start()
    before = store.find("left")
    assert not runner.local.continue_left("job")
    assert store.find("left") == before
    runner.stop(PATIENCE)


def test_a_left_run_that_another_process_begins_first_is_left_to_it(monkeypatch):
    store, alive = _left(), frozenset({"node", "heir"})
    heir = Worker("heir", "heir", alive, 1, frozenset(), lambda: alive)
    runner = _runner(store, _not_called, company=lambda: Company("node", "node", alive, {}, lambda: alive))
    find_left = runner.runs.desk.left
    monkeypatch.setattr(
        runner.runs.desk,
        "left",
        lambda *args: (find_left(*args), JobDesk(store, {"job": JobRule("job")}).attend(heir))[0],
    )
    with _in_background(lambda: runner.local.continue_left("job")) as ended:
        assert ended()
    left = store.find("left")
    assert left is not None
    assert (left.status, left.owner) == (RunStatus.RUNNING, "heir")


def test_a_left_run_that_is_interrupted_continues_in_the_next_process():
    store = _left()

    def call(context, _):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _runner(store, call).local.continue_left("job")
    left = store.find("left")
    assert left is not None
    assert (left.status, left.reason, left.cancelled_at) == (RunStatus.RETRYING, "interrupted", None)
    (taken,) = JobDesk(store, {"job": JobRule("job")}).attend(HEIR)
    assert (taken.id, taken.attempt, taken.deaths) == ("left", 2, 1)


@pytest.mark.parametrize("is_taken", [False, True])
def test_an_interrupt_cancels_the_callers_own_run_unless_another_process_has_taken_it(is_taken):
    store = InMemoryJobStore()

    def call(context, _):
        if is_taken:
            assert JobDesk(store, {"job": JobRule("job")}).attend(HEIR)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run_here(_runner(store, call))
    run = store.find("run")
    assert run is not None
    status, reason = (RunStatus.RUNNING, "") if is_taken else (RunStatus.CANCELLED, "interrupted")
    assert (run.status, run.reason, run.cancelled_at) == (status, reason, None)


def test_an_interrupt_while_a_run_begins_cancels_it(monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs_in_hand, "log_begin", interrupt)
    store = InMemoryJobStore()
    runner = _runner(store, _not_called)
    with pytest.raises(KeyboardInterrupt):
        _run_here(runner)
    assert [(run.status, run.reason) for run in store.history()] == [(RunStatus.CANCELLED, "interrupted")]
    assert runner.runs.active == []


def test_a_run_that_loses_its_process_while_the_callers_own_waits_for_it_is_continued_first(monkeypatch):
    """The timeout of the own run counts from its end."""
    calls, rule = [], JobRule("job", meeting=Meeting(Overlap.QUEUE))
    store, alive, timeout, now = _left(rule), {"node", "gone"}, 600.0, [0.0]
    monkeypatch.setattr(local_runs, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def call(context, _):
        calls.append(context.run)
        if context.run == "left":
            now[0] += timeout

    runner = _runner(store, call, rule, lambda: Company("node", "node", frozenset(alive), {}, lambda: alive))
    with _in_background(lambda: _run_here(runner, timeout)) as ended:
        _wait_until(lambda: any(run.queued for run in store.look().runs))
        alive.remove("gone")
        done = ended()
    assert (done.id, done.status, calls) == ("run", RunStatus.SUCCEEDED, ["left", "run"])


def test_a_left_run_is_executed_once_by_the_callers_of_a_process():
    calls, others = [], []

    def call(context, _):
        calls.append((context.run, context.attempt))
        if not others:
            others.append(Thread(target=runner.local.continue_left, args=("job",), daemon=True))
            others[0].start()
            others[0].join(0.2)

    runner = _runner(_left(), call)
    assert runner.local.continue_left("job")
    others[0].join(PATIENCE)
    assert calls == [("left", 2)]


def _not_called(*_):
    raise AssertionError


class _SlowViews(InMemoryJobStore):
    """A store whose next view of the runs takes until ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.looked, self.go, self.slow = Signal(), Signal(), False

    def look(self, jobs=None):
        view = super().look(jobs)
        if self.slow and jobs is not None and current_thread().name == "opencqrs-jobs":
            self.slow = False
            self.looked.set()
            self.go.wait(PATIENCE)
        return view


def _wait_until(holds):
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def _runner(store, call, rule=None, company=None, observer=None, most=4):
    rule = rule or JobRule("job")
    job = BoundJob(Job(JobMark("job"), call, "here"), rule, call, transactional=False)
    here = Company("node", "node", frozenset({"node"}), {}, lambda: {"node"})
    parts = JobParts({"job": job}, store, None, None, SystemClock(), most, observer=observer)
    return JobRunner(parts, company or (lambda: here))


def _run_here(runner, timeout=None):
    now = InMemoryJobStore.look(runner.runs.desk.store).now
    return runner.local.run(JobRun("run", "job", Trigger.MANUAL, now), timeout)


def test_a_view_older_than_a_run_in_hand_does_not_end_the_run():
    store, ends, cancelled = _SlowViews(), Signal(), []

    def call(context, _):
        store.go.set()
        ends.wait(PATIENCE)
        cancelled.append(context.cancelled)

    runner = _runner(store, call)
    runner.start()
    try:
        store.slow = True
        runner.wake()
        assert store.looked.wait(PATIENCE)
        with ThreadPoolExecutor(1) as threads:
            ran = threads.submit(_run_here, runner, PATIENCE)
            assert store.go.wait(PATIENCE)
            store.slow, store.looked = True, Signal()
            runner.wake()
            assert store.looked.wait(PATIENCE)  # it has processed the previous view
            ends.set()
            assert ran.result(PATIENCE).status is RunStatus.SUCCEEDED
    finally:
        store.go.set()
        runner.stop(0.0)
    assert cancelled == [False]


def test_a_full_process_begins_its_next_run_as_soon_as_one_has_ended(monkeypatch):
    monkeypatch.setattr(job_runner, "POLL_SECONDS", 10 * PATIENCE)
    store, rule = InMemoryJobStore(), JobRule("job", meeting=Meeting(Overlap.QUEUE))
    for run in ("first", "second"):
        store.request(JobRun(run, "job", Trigger.MANUAL, store.look().now))
    runner = _runner(store, lambda *_: None, rule, most=1)
    runner.start()
    try:
        _wait_until(lambda: not store.look().runs)
    finally:
        runner.stop(PATIENCE)
    assert {run.status for run in store.history()} == {RunStatus.SUCCEEDED}


def test_the_first_error_that_ends_a_thread_is_raised():
    runner = _runner(InMemoryJobStore(), _not_called)
    runner.check()
    for name in ("first", "second"):
        runner.runs.guarded(partial(getitem, {}, name))
    with pytest.raises(KeyError, match="first"):
        runner.check()


def test_startup_runs_are_recorded_once_the_process_has_its_leases():
    store, ran, here = InMemoryJobStore(), Signal(), []
    rule = JobRule("job", ticking=Ticking(startup=True))
    runner = _runner(store, lambda *_: ran.set(), rule, lambda: here[0] if here else None)
    runner.start()
    try:
        assert store.look().runs == ()
        here.append(Company("node", "node", frozenset({"node"}), {}, lambda: {"node"}))
        runner.wake()
        assert ran.wait(PATIENCE)
    finally:
        runner.stop(PATIENCE)
    assert [run.id for run in store.history()] == ["job@start:node"]


def test_a_process_is_busy_from_the_moment_it_takes_a_run(monkeypatch):
    """Otherwise ``--until-caught-up`` could end in between, and leave the run to the next process."""
    store, taken, may_continue = InMemoryJobStore(), Signal(), Signal()
    runner = _runner(store, lambda *_: None)
    begin = runner.runs.begin

    def slow(run: JobRun) -> None:
        taken.set()
        may_continue.wait(PATIENCE)
        begin(run)

    monkeypatch.setattr(runner.runs, "begin", slow)
    store.request(JobRun("run", "job", Trigger.MANUAL, store.look().now))
    runner.start()
    try:
        assert taken.wait(PATIENCE)
        assert runner.runs.active == []
        assert runner.is_busy()
    finally:
        may_continue.set()
        runner.stop(PATIENCE)


def test_a_process_is_busy_until_it_has_handled_the_runs_due_at_its_start():
    """Otherwise ``--until-caught-up`` would end before ticks and runs of killed processes began."""
    store, here, may_continue = InMemoryJobStore(), [], Signal()
    runner = _runner(store, lambda *_: may_continue.wait(PATIENCE), company=lambda: here[0] if here else None)
    store.request(JobRun("run", "job", Trigger.MANUAL, store.look().now))
    (taken,) = JobDesk(store, {"job": JobRule("job")}).attend(HEIR)
    runner.start()
    try:
        assert runner.is_busy()
        here.append(Company("node", "node", frozenset({"node"}), {}, lambda: {"node"}))
        runner.wake()
        _wait_until(lambda: (store.find(taken.id) or taken).owner == "node")
        assert runner.is_busy()
        may_continue.set()
        _wait_until(lambda: not runner.is_busy())
    finally:
        may_continue.set()
        runner.stop(PATIENCE)
    assert [run.status for run in store.history()] == [RunStatus.SUCCEEDED]


class _Locked(InMemoryJobStore):
    """A store that locks the rows of job ``nightly`` once, and counts the attempts of the watching thread."""

    def __init__(self, clock) -> None:
        super().__init__(clock)
        self.is_locked, self.attempts = False, 0

    def look(self, jobs=None):
        self.attempts += jobs is None and current_thread().name == "opencqrs-jobs"
        return super().look(jobs)

    @contextmanager
    def open(self, jobs):
        if self.is_locked and "nightly" in jobs:
            self.is_locked = False
            raise UnavailableError("OCQ-304", "lock wait timeout")
        with super().open(jobs) as book:
            yield book

    def is_outage(self, error):
        return isinstance(error, UnavailableError)


@pytest.mark.parametrize("due", ["a tick", "a run of a dead process", "a tick after a run of another job"])
def test_a_process_is_busy_until_it_has_handled_a_job_whose_rows_were_locked(due):
    """Otherwise ``--until-caught-up`` would exit with 0 without running that job."""
    clock, ran = FakeClock(), []
    store, schedule = _Locked(clock), FixedRate(0.0, 3_600.0)
    rules = {"nightly": JobRule("nightly", ticking=Ticking(schedule, "1 h")), "first": JobRule("first")}

    def job(rule):
        def call(*_):
            ran.append(rule.name)

        return BoundJob(Job(JobMark(rule.name), call, "here"), rule, call, transactional=False)

    with store.open(["nightly"]) as book:
        tick = book.now if "tick" in due else book.now + timedelta(hours=1)
        book.put_record(JobRecord("nightly", "1 h", tick))
    clock.advance(1)
    if due == "a run of a dead process":
        store.request(JobRun("run", "nightly", Trigger.MANUAL, store.look().now))
        assert JobDesk(store, {"nightly": JobRule("nightly")}).attend(HEIR)
    if "another job" in due:
        earlier = store.look().now - timedelta(hours=1)
        store.request(JobRun("run", "first", Trigger.MANUAL, earlier, due_at=earlier))
    here = Company("node", "node", frozenset({"node"}), {}, lambda: {"node"})
    parts = JobParts({name: job(rule) for name, rule in rules.items()}, store, None, None, SystemClock())
    runner = JobRunner(parts, lambda: here)
    store.is_locked = True
    runner.start()
    try:
        _wait_until(lambda: not store.is_locked)
        seen = store.attempts
        _wait_until(lambda: runner.wake() or store.attempts > seen + 1)  # an attempt that skipped the job has ended
        _wait_until(lambda: not runner.runs.active)
        assert "nightly" not in ran
        assert runner.is_busy()
        clock.advance(4)
        _wait_until(lambda: runner.wake() or not runner.is_busy())
    finally:
        runner.stop(PATIENCE)
    assert ran == (["first", "nightly"] if "another job" in due else ["nightly"])


def test_a_run_of_another_process_does_not_keep_this_one_busy():
    store = InMemoryJobStore()
    runner = _runner(store, lambda *_: None)
    store.request(JobRun("run", "job", Trigger.MANUAL, store.look().now))
    (taken,) = JobDesk(store, {"job": JobRule("job")}).attend(HEIR)
    assert taken.status is RunStatus.RUNNING
    assert not runner.is_busy()


def test_a_run_with_an_attempt_left_keeps_the_process_busy_until_it_has_failed():
    store, rule = InMemoryJobStore(), JobRule("job", back_off=FixedBackOff(3_600.0, 1))
    runner, desk = _runner(store, lambda *_: None, rule), JobDesk(store, {"job": rule})
    store.request(JobRun("run", "job", Trigger.MANUAL, store.look().now))
    (taken,) = desk.attend(HEIR)
    waits = desk.finish(taken, Ending(taken.position, error="the attic is locked"))
    assert waits is not None
    assert waits.status is RunStatus.RETRYING
    assert runner.is_busy()
    desk.cancel("run", "enough")
    assert not runner.is_busy()


def _killing():
    """Return a store with a run in which as many processes have died as may, which the next desk records."""
    store, desk = InMemoryJobStore(), JobDesk(InMemoryJobStore(), {})
    store.request(JobRun("run", "job", Trigger.MANUAL, store.look().now))
    for number in range(MOST_DEATHS):
        victim = frozenset({f"victim {number}"})
        desk = JobDesk(store, {"job": JobRule("job")})
        desk.attend(Worker(*victim, *victim, victim, 4, frozenset(), lambda them=victim: them))
    assert len(list(desk.recovered())) == 1
    return store


def test_a_run_failed_by_dying_processes_is_counted_even_if_its_observer_raises():
    def ended(_):
        raise LookupError

    runner = _runner(_killing(), lambda *_: None, observer=SimpleNamespace(ended=ended))
    runner.runs.desk.attend(HEIR)
    with pytest.raises(LookupError):
        runner.runs.report_dead()
    assert runner.runs.failed == 1


def test_a_run_failed_by_dying_processes_is_logged_by_the_process_that_records_it(caplog):
    """Three processes died in the run and could not log it, so the fourth one must log and count it."""
    store, counting = _killing(), RunCounting()
    runner = _runner(store, lambda *_: None, observer=counting)
    runner.start()
    try:
        _wait_until(lambda: not runner.is_busy())
    finally:
        runner.stop(PATIENCE)
    text = "[job job] run run failed: 3 processes have ended during this run, the last one is node victim 2"
    assert [record.getMessage() for record in caplog.records] == [text]
    assert runner.runs.failed == 1
    assert counting.counts()["job"].statuses == {RunStatus.FAILED: 1}


def test_a_run_that_begins_during_a_stop_is_awaited_and_logged_as_continuing_later(monkeypatch, caplog):
    """It must not be logged as taken over, or as failed with the error of its last attempt."""
    caplog.set_level("INFO", "opencqrs.jobs")
    store, rule, taken, ends = InMemoryJobStore(), JobRule("job", back_off=FixedBackOff(0.0, 1)), Signal(), Signal()
    runner, desk = _runner(store, lambda *_: None, rule), JobDesk(store, {"job": rule})
    store.request(JobRun("run", "job", Trigger.MANUAL, store.look().now))
    (failed,) = desk.attend(HEIR)
    desk.finish(failed, Ending(failed.position, error="the attic is locked"))
    begin, execute = runner.runs.begin, runner.runs._execute

    def slow(run: JobRun) -> None:
        taken.set()
        ends.wait(PATIENCE)
        begin(run)

    def late(run) -> None:
        time.sleep(0.2)
        execute(run)

    monkeypatch.setattr(runner.runs, "begin", slow)
    monkeypatch.setattr(runner.runs, "_execute", late)
    runner.start()
    assert taken.wait(PATIENCE)
    Timer(0.1, ends.set).start()
    runner.stop(PATIENCE)
    _wait_until(lambda: not runner.runs.active)
    assert [record.getMessage() for record in caplog.records] == [
        "[job job] run run continues later: its process is ending"
    ]


def test_a_run_in_a_process_that_runs_nothing_else_is_cancelled_despite_outages(monkeypatch, caplog):
    class Flaky(InMemoryJobStore):
        looks = 0

        def look(self, jobs=None):
            if current_thread().name == "opencqrs-jobs":
                self.looks += 1
                if self.looks <= 2:
                    raise UnavailableError("OCQ-420", "no answer")
            return super().look(jobs)

    def call(context, _):
        runner.runs.desk.cancel("run", "not today")
        _wait_until(lambda: context.cancelled)
        context.raise_if_cancelled()

    monkeypatch.setattr(local_runs, "POLL_SECONDS", 0.01)
    store = Flaky()
    runner = _runner(store, call)
    with runner.local.following():
        done = _run_here(runner, PATIENCE)
    assert (done.status, done.reason) == (RunStatus.CANCELLED, "not today")
    assert [text for text in caplog.messages if "cannot be cancelled for now: " in text and "no answer" in text] != []


def test_a_local_run_waits_for_its_next_attempt_even_beyond_the_timeout_to_begin():
    calls = []

    def call(context, _):
        calls.append(context.attempt)
        if context.attempt == 1:
            raise RuntimeError("the attic is locked")

    store = InMemoryJobStore()
    runner = _runner(store, call, JobRule("job", back_off=FixedBackOff(0.2, 1)))
    done = _run_here(runner, 0.0)
    assert (done.status, done.attempt, calls) == (RunStatus.SUCCEEDED, 2, [1, 2])


def test_a_local_run_that_cannot_begin_in_time_is_cancelled():
    store, rule = InMemoryJobStore(), JobRule("job", meeting=Meeting(Overlap.QUEUE))
    store.request(JobRun("other", "job", Trigger.MANUAL, store.look().now))
    JobDesk(store, {"job": rule}).attend(HEIR)
    company = Company("node", "node", frozenset({"node", "heir"}), {}, lambda: {"node", "heir"})
    runner = _runner(store, lambda *_: None, rule, lambda: company)
    with pytest.raises(WaitTimedOutError, match="could not begin within 0 s"):
        _run_here(runner, 0.0)
    waited = store.find("run")
    assert waited is not None
    assert (waited.status, waited.reason) == (RunStatus.CANCELLED, "it waited too long")


@contextmanager
def _in_background(call):
    """Yield a function that returns the result of a call, or fails if the call does not end."""
    results = []
    thread = Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()

    def ended():
        thread.join(PATIENCE)
        assert results, "it has not ended"
        return results[0]

    yield ended


@pytest.mark.parametrize("here", [True, False], ids=["with leases", "after its leases"])
def test_a_local_run_that_waits_for_others_is_cancelled_when_the_runner_stops(here):
    store, rule = InMemoryJobStore(), JobRule("job", meeting=Meeting(Overlap.QUEUE))
    store.request(JobRun("other", "job", Trigger.MANUAL, store.look().now))
    JobDesk(store, {"job": rule}).attend(HEIR)
    company, looked = Company("node", "node", frozenset({"node", "heir"}), {}, lambda: {"node", "heir"}), Signal()

    def present():
        if not any(run.reserved for run in store.look().runs):
            return company
        looked.set()
        return company if here else None

    runner = _runner(store, lambda *_: None, rule, present)
    with _in_background(lambda: _run_here(runner)) as ended:
        assert looked.wait(PATIENCE)
        runner.stop(0.0)
        left = ended()
    assert (left.status, left.reason) == (RunStatus.CANCELLED, "its process is ending")


def test_a_fenced_error_that_a_job_raises_is_an_error_of_its_run(caplog):
    """The job may run a processor by hand whose partition another process has taken."""

    def call(context, _):
        raise FencedError("the partition was taken over")

    store = InMemoryJobStore()
    runner = _runner(store, call)
    with _in_background(lambda: _run_here(runner, PATIENCE)) as ended:
        done = ended()
    assert done.status is RunStatus.FAILED
    assert done.error.startswith("FencedError: the partition was taken over")
    assert runner.runs.failed == 1
    assert "by another process" not in caplog.text


class _LosesReply(InMemoryJobStore):
    """A store that loses the reply to the commit of an ending, and fails the next query."""

    def __init__(self) -> None:
        super().__init__()
        self.loses = self.fails = False

    def find(self, run):
        if self.fails:
            self.fails = False
            raise ConnectionError("no answer")
        return super().find(run)

    @contextmanager
    def open(self, jobs):
        with super().open(jobs) as book:
            yield book
        if self.loses:
            self.loses, self.fails = False, True
            raise ConnectionError("the answer was lost")

    def is_outage(self, error):
        return isinstance(error, ConnectionError)


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.release(fails=False)
def test_the_end_of_a_run_is_reported_even_if_the_reply_to_its_commit_is_lost(caplog, fails):
    def call(context, _):
        store.loses = True
        if fails:
            raise RuntimeError("the attic is locked")

    store, counting = _LosesReply(), RunCounting()
    runner = _runner(store, call, observer=counting)
    done = _run_here(runner, PATIENCE)
    assert done.status is (RunStatus.FAILED if fails else RunStatus.SUCCEEDED)
    assert runner.runs.failed == fails
    assert "the answer was lost" in caplog.text
    assert "taken over" not in caplog.text
    assert ("the attic is locked" in caplog.text) is fails


class _LosesReplies(InMemoryJobStore):
    """A store that loses the reply to a commit, and fails queries of single runs until ``answers`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.loses, self.answers = False, True
        self.asked = Signal()

    def find(self, run):
        if not self.answers:
            self.asked.set()
            raise ConnectionError("no answer")
        return super().find(run)

    @contextmanager
    def open(self, jobs):
        with super().open(jobs) as book:
            yield book
        if self.loses:
            self.loses = self.answers = False
            raise ConnectionError("the answer was lost")

    def is_outage(self, error):
        return isinstance(error, ConnectionError)


def test_a_run_failed_by_dying_processes_is_logged_even_if_the_reply_to_the_commit_is_lost(caplog):
    """The run has failed by then, but the process must not exit with 0 as if it had caught up."""
    store, counting, victim = _LosesReplies(), RunCounting(), frozenset({""})
    store.request(JobRun("run", "job", Trigger.MANUAL, store.look().now))
    for number in range(MOST_DEATHS):
        victim = frozenset({f"victim {number}"})
        desk = JobDesk(store, {"job": JobRule("job")})
        assert desk.attend(Worker(*victim, *victim, victim, 4, frozenset(), lambda them=victim: them))
    alive = {"node", *victim}

    def company():
        return Company("node", "node", frozenset(alive), {}, lambda: frozenset(alive))

    runner = _runner(store, lambda *_: None, company=company, observer=counting)
    runner.start()
    try:
        _wait_until(lambda: not runner.is_busy())
        store.loses = True
        alive -= victim
        _wait_until(lambda: runner.wake() or store.asked.is_set())
        assert runner.is_busy()
        assert runner.runs.failed == 0
        store.answers = True
        _wait_until(lambda: runner.wake() or not runner.is_busy())
        assert runner.runs.failed == 1
    finally:
        runner.stop(PATIENCE)
    assert caplog.text.count("[job job] run run failed: 3 processes have ended during this run") == 1
    assert counting.counts()["job"].statuses == {RunStatus.FAILED: 1}


class _RejoiningProcess:
    """A process whose leases end while its run waits: it continues as another node."""

    def __init__(self, waits) -> None:
        self._waits = waits
        self.ids = ["node"]

    def __call__(self):
        if len(self.ids) == 1 and self._waits():
            self.ids.append("node-2")
        alive = frozenset({self.ids[-1], "heir"})
        return Company(self.ids[-1], "node", alive, {}, lambda: alive)


def test_a_local_run_that_waits_for_others_survives_the_end_of_its_processs_leases():
    store, rule, reserved = InMemoryJobStore(), JobRule("job", meeting=Meeting(Overlap.QUEUE)), []

    def call(*_):
        reserved.extend(run.reserved for run in store.look().runs)

    store.request(JobRun("other", "job", Trigger.MANUAL, store.look().now))
    desk = JobDesk(store, {"job": rule})
    (other,) = desk.attend(HEIR)
    company = _RejoiningProcess(lambda: any(run.queued for run in store.look().runs))
    runner = _runner(store, call, rule, company)
    with ThreadPoolExecutor(1) as threads:
        ran = threads.submit(_run_here, runner)
        _wait_until(lambda: any(run.reserved == "node-2" for run in store.look().runs) or ran.done())
        desk.finish(other, Ending(other.position))
        done = ran.result(PATIENCE)
    assert (done.status, done.reason, done.node, reserved) == (RunStatus.SUCCEEDED, "", "node", ["node-2"])


def test_a_local_run_that_waits_for_its_next_attempt_survives_the_end_of_its_processs_leases():
    def call(context, _):
        if context.attempt == 1:
            raise RuntimeError("the attic is locked")

    store, rule = InMemoryJobStore(), JobRule("job", back_off=FixedBackOff(0.0, 1))
    company = _RejoiningProcess(lambda: any(run.status is RunStatus.RETRYING for run in store.look().runs))
    runner = _runner(store, call, rule, company)
    done = _run_here(runner)
    assert (done.status, done.attempt, company.ids) == (RunStatus.SUCCEEDED, 2, ["node", "node-2"])


def test_a_local_run_without_a_waiting_caller_ends_with_its_processs_leases():
    store, rule = InMemoryJobStore(), JobRule("job")
    runner = _runner(store, lambda *_: None, rule, _RejoiningProcess(lambda: bool(store.look().runs)))
    store.request(JobRun("run", "job", Trigger.MANUAL, store.look().now, reserved=runner.runs.company().node))
    runner.start()
    try:
        _wait_until(store.history)
    finally:
        runner.stop(PATIENCE)
    assert [(run.status, run.reason) for run in store.history()] == [
        (RunStatus.CANCELLED, "the process that was to run it has ended")
    ]


def test_a_local_run_survives_the_end_of_its_processs_leases_right_after_its_request(monkeypatch):
    """The thread that watches what is due then sees a run of a former id of its process."""
    store = InMemoryJobStore()
    runner = _runner(store, lambda *_: None, company=_RejoiningProcess(lambda: bool(store.look().runs)))
    request = store.request

    def attended(run):
        request(run)
        runner.runs.desk.attend(runner.runs.worker(runner.runs.company()))

    monkeypatch.setattr(store, "request", attended)
    done = _run_here(runner)
    assert (done.status, done.reason) == (RunStatus.SUCCEEDED, "")


class _WriteLocked(InMemoryJobStore):
    """A store that is locked for the next ``times`` writes."""

    times = 0

    def open(self, jobs):
        if self.times:
            self.times -= 1
            raise UnavailableError("OCQ-305", "the file is locked")
        return super().open(jobs)

    def is_outage(self, error):
        return isinstance(error, UnavailableError)


def test_a_run_that_ends_during_an_outage_while_its_process_stops_is_not_cancelled():
    store, begun, may_continue = _WriteLocked(), Signal(), Signal()

    def call(*_):
        begun.set()
        may_continue.wait(PATIENCE)

    store.request(JobRun("run", "job", Trigger.MANUAL, store.look().now))
    runner = _runner(store, call)
    runner.start()
    assert begun.wait(PATIENCE)
    runner.end()
    store.times = 1
    may_continue.set()
    runner.stop(PATIENCE)
    assert store.times == 0
    ended = store.find("run")
    assert ended is not None
    assert (ended.status, ended.reason) == (RunStatus.SUCCEEDED, "")


def test_a_runner_stopped_before_its_start_is_not_listed_as_alive():
    runner = _runner(InMemoryJobStore(), lambda *_: None)
    runner.stop(0)
    runner.start()
    assert not runner.runs._parts.runners
    assert runner._thread.ident is None


def test_a_job_that_stops_its_runner_is_not_waited_for_and_is_released(caplog):
    caplog.set_level("INFO", "opencqrs.jobs")
    store, errors, stopped = InMemoryJobStore(), [], Signal()

    def call(*_):
        try:
            runner.stop(PATIENCE)
        except RuntimeError as error:
            errors.append(error)
        active.append(current_thread())
        stopped.set()

    active = list[Thread]()
    store.request(JobRun("run", "job", Trigger.MANUAL, store.look().now))
    runner = _runner(store, call)
    runner.start()
    assert stopped.wait(PATIENCE)
    active[0].join(PATIENCE)
    assert (errors, runner.runs._parts.runners, runner._thread.is_alive()) == ([], set(), False)
    released = store.find("run")
    assert released is not None
    assert (released.status, released.owner) == (RunStatus.RETRYING, "")
    text = "run run was released as the application stopped; it continues at the next start or in another process"
    assert [record.getMessage() for record in caplog.records] == [f"[job job] {text}"]

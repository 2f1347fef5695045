"""The runner of jobs: which runs it has in hand."""

from __future__ import annotations

from threading import Event as Signal

from opencqrs_py.adapters.memory.jobs import InMemoryJobStore
from opencqrs_py.engines.job_runner import Company, JobParts, JobRunner
from opencqrs_py.jobs.binding import BoundJob
from opencqrs_py.jobs.desk import Ending, JobDesk, Worker
from opencqrs_py.jobs.rules import JobRule
from opencqrs_py.jobs.runs import JobRun, RunStatus
from opencqrs_py.model.job import Job, JobMark, Trigger
from opencqrs_py.processing.ports import SystemClock

PATIENCE = 60.0
HEIR = Worker("heir", "heir", frozenset({"heir"}), 4, frozenset(), lambda: {"heir"})


def test_a_run_that_comes_back_is_in_hand_until_its_own_attempt_ends():
    """A process was frozen: another one has taken its run, and let it go while the first attempt is still in a call."""
    goes_on = {attempt: Signal() for attempt in (1, 2)}
    begun = {attempt: Signal() for attempt in (1, 2)}

    def call(context, _):
        begun[context.attempt].set()
        goes_on[context.attempt].wait(PATIENCE)

    rule = JobRule("job")
    job = BoundJob(Job(JobMark("job"), call, "here"), rule, call, transactional=False)
    store = InMemoryJobStore()
    company = Company("node", "node", frozenset({"node"}), {}, lambda: {"node"})
    runner = JobRunner(JobParts({"job": job}, store, None, None, SystemClock()), lambda: company)
    store.request(JobRun("run", "job", Trigger.MANUAL, store.look().now))
    runner.start()
    try:
        assert begun[1].wait(PATIENCE)
        (first,) = runner._threads()
        desk = JobDesk(store, {"job": rule})
        (taken,) = desk.attend(HEIR)
        desk.finish(taken, Ending(taken.position, released=True))
        runner.wake()
        assert begun[2].wait(PATIENCE)
        goes_on[1].set()
        first.join(PATIENCE)
        assert [run.attempt for run in runner.in_hand] == [2]
    finally:
        runner.stop(0.0)
        goes_on[2].set()
    left = store.find("run")
    assert left is not None
    assert (left.status, left.owner) == (RunStatus.RETRYING, "")

"""Binding: from a job as it is written to calls whose arguments are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from opencqrs_py.errors import JobError
from opencqrs_py.jobs.rules import JobRule
from opencqrs_py.model.choices import JobTransaction
from opencqrs_py.model.job import Job, JobContext, JobPage
from opencqrs_py.model.naming import counted
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.awaiting import complete, finish
from opencqrs_py.processing.binding import Work, with_arguments
from opencqrs_py.processing.definitions import place_of
from opencqrs_py.processing.ports import Injector, UnitOfWork
from opencqrs_py.processing.roles import JOB, JOB_INPUT, Kind
from opencqrs_py.processing.signatures import read_signature

GROUP_PREFIX = "job:"
"""Before the name of a job, in the name of the group whose events start it, and of the group that messages name."""


@dataclass(frozen=True, slots=True)
class JobInput:
    """What yields or selects the ids that a job applies to.

    Attributes:
        call: Returns what the function returns for a page.
        transactional: Whether it asks for the transaction.
        paged: Whether it asks for the page, and so returns no more than that.
        place: ``file:line (name)`` for messages.
    """

    call: Callable[[JobPage, Work], Any]
    transactional: bool
    paged: bool
    place: str

    @property
    def reads(self) -> bool:
        """Whether a transaction is needed to read the ids: the function asks for one, or may return a statement."""
        return self.transactional or not self.paged


@dataclass(frozen=True, slots=True)
class BoundJob:
    """A job whose arguments are known.

    Attributes:
        job: The job.
        rule: How it runs.
        call: Calls it once, for the ids of the context.
        transactional: Whether it asks for the transaction.
        input: What it applies to; ``None`` if it works on no items.
    """

    job: Job
    rule: JobRule
    call: Callable[[JobContext, Work], None]
    transactional: bool
    input: JobInput | None = None


class NoTransaction:
    """Replaces the transaction for a function that does not ask for one."""

    @property
    def connection(self) -> NoReturn:
        """Raise, since there is none."""
        raise LookupError("there is no transaction")

    session = connection


def work_of(job: str, unit: UnitOfWork | None) -> Work:
    """Return the circumstances in which a job is called."""
    return Work(f"{GROUP_PREFIX}{job}", Partition(1, 0), unit if unit is not None else NoTransaction())  # type: ignore[arg-type]


def bind_job(job: Job, rule: JobRule, injector: Injector) -> BoundJob:
    """Check the signatures of a job and of its input, and prepare their calls.

    Raises:
        HandlerSignatureError: OCQ-201 to OCQ-205, naming the place, the parameter and the right form.
        JobError: OCQ-660, if pages or items are to have their own transactions, and there are none; of a call for ids
            that the job does not take.
    """
    signature = read_signature(job.call, job.place, injector, JOB)
    bound = with_arguments(job.call, signature, injector, job.place)
    input_ = None if job.mark.input is None else _bound_input(job.mark.input, injector)
    takes_no_ids = input_ is None and not signature.asks_for(Kind.JOB)
    if rule.transaction is not JobTransaction.RUN and takes_no_ids:
        what = f"job '{job.name}' is to run by {rule.transaction.value}, but it has no input and takes no ids"
        fix = f'write @job("{job.name}", input=…), or leave jobs.{job.name}.transaction out'
        raise JobError("OCQ-660", what, job.place, fix)

    def call(context: JobContext, work: Work) -> None:
        if takes_no_ids and context.ids:
            what = (
                f"the run is for {counted(len(context.ids), 'id')}, but job '{job.name}' has no input and takes no ids"
            )
            fix = "run it without ids; or let it take a JobContext, and do its work for those in JobContext.ids only"
            raise JobError("OCQ-660", what, job.place, fix)
        complete(bound(context, None, None, work))

    return BoundJob(job, rule, call, signature.transactional, input_)


def _bound_input(function: Callable[..., Any], injector: Injector) -> JobInput:
    place = place_of(function)
    signature = read_signature(function, place, injector, JOB_INPUT)
    bound = with_arguments(function, signature, injector, place)

    def call(page: JobPage, work: Work) -> Any:
        return finish(bound(page, None, None, work))

    return JobInput(call, signature.transactional, signature.asks_for(Kind.PAGE), place)

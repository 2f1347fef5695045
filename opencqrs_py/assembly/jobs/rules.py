"""From the settings of jobs to how they run, and to their bound calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from opencqrs_py.assembly.back_offs import back_off_of
from opencqrs_py.config import JobSettings, TriggerSettings
from opencqrs_py.errors import ExplainedError, JobError
from opencqrs_py.jobs.binding import BoundJob, bind_job
from opencqrs_py.jobs.rules import JobRule, Meeting, Ticking
from opencqrs_py.model.choices import JobTransaction
from opencqrs_py.model.job import Job
from opencqrs_py.model.naming import canonical, listed, nearest
from opencqrs_py.processing.inbox.schedules import CronSchedule, FixedDelay, FixedRate
from opencqrs_py.processing.roles import JOB
from opencqrs_py.processing.signatures import read_signature

if TYPE_CHECKING:
    from opencqrs_py.assembly.injection import ContainerInjector
    from opencqrs_py.config import Configuration
    from opencqrs_py.processing.signatures import Signature


def rule_of(job: Job, settings: JobSettings, exclusive: frozenset[str] = frozenset()) -> JobRule:
    """Return how a job runs, from its effective settings and the jobs that exclude it."""
    default = JobTransaction.PAGE if job.mark.input is not None else JobTransaction.RUN
    return JobRule(
        name=job.name,
        ticking=ticking_of(settings),
        meeting=Meeting(
            settings.overlap,
            settings.overlap_scope,
            settings.queue_size,
            settings.cancel_grace,
            exclusive,
        ),
        transaction=default if settings.transaction is None else settings.transaction,
        limit=settings.limit,
        most_items=settings.max_items_per_run,
        budget=settings.time_budget,
        back_off=back_off_of(settings.retry),
        keep=timedelta(seconds=settings.history.keep),
        spark=settings.processing.engine.value == "spark",
    )


def ticking_of(settings: JobSettings) -> Ticking:
    """Return when a job runs automatically; never, if it is disabled."""
    rule = settings.triggers
    if not settings.enabled:
        return Ticking()
    return replace(
        _scheduled(rule),
        startup=rule.startup,
        delay=rule.initial_delay,
        jitter=rule.jitter,
        misfire=settings.misfire,
        grace=settings.misfire_grace,
    )


def _scheduled(rule: TriggerSettings) -> Ticking:
    if rule.fixed_rate is not None:
        return Ticking(FixedRate(rule.initial_delay, rule.fixed_rate), f"every {rule.fixed_rate:g} s")
    if rule.fixed_delay is not None:
        text = f"{rule.fixed_delay:g} s after the end of a run"
        return Ticking(FixedDelay(rule.initial_delay, rule.fixed_delay), text, from_end=True)
    if rule.cron is not None:
        return Ticking(CronSchedule(rule.cron, ZoneInfo(rule.zone)), f"{rule.cron} ({rule.zone})")
    return Ticking()


def rules_of(jobs: Sequence[Job], configuration: Configuration) -> dict[str, JobRule]:
    """Return how each job runs, by name.

    Raises:
        JobError: OCQ-663, if ``exclusive-with`` names something that is not a job.
    """
    return {job.name: rule_for(job, jobs, configuration) for job in jobs}


def rule_for(job: Job, jobs: Sequence[Job], configuration: Configuration) -> JobRule:
    """Return how one of the jobs runs.

    Raises:
        JobError: OCQ-663, if ``exclusive-with`` names something that is not a job.
    """
    spelled = {canonical(job.name): job.name for job in jobs}
    settings = configuration.job(job.name)
    unknown = [name for name in settings.exclusive_with if canonical(name) not in spelled]
    if unknown:
        others = [name for name in spelled.values() if name != job.name]
        close = nearest(unknown[0], others)
        fix = f"did you mean {close}?" if close else f"name one of {listed(others)}" if others else "remove it"
        where = str(configuration.origin(f"jobs[{job.name}].exclusive-with"))
        raise JobError("OCQ-663", f"job '{job.name}' excludes '{unknown[0]}', which is not a job", where, fix)
    exclusive = frozenset(spelled[canonical(name)] for name in settings.exclusive_with)
    return rule_of(job, settings, exclusive)


def bound_jobs(
    jobs: Sequence[Job],
    rules: Mapping[str, JobRule],
    injector: ContainerInjector,
    check: Callable[[Signature, str], None],
) -> dict[str, BoundJob]:
    """Return the jobs with their calls, by name; ``check`` refuses a transaction where there is none.

    Raises:
        ExplainedError: If a job cannot be called as it is written; see ``errors_of`` for all of them.
    """
    bound = {}
    for job in jobs:
        check(read_signature(job.call, job.place, injector, JOB), job.place)
        bound[job.name] = bind_job(job, rules[job.name], injector)
        if rules[job.name].spark:
            _check_spread(job, rules[job.name])
    return bound


def _check_spread(job: Job, rule: JobRule) -> None:
    """Refuse a job on Spark that has nothing to spread.

    Raises:
        JobError: OCQ-671 or OCQ-672.
    """
    if rule.transaction is not JobTransaction.RUN:
        return
    thread = f"set jobs.{job.name}.processing.engine: thread"
    if job.mark.input is None:
        what = f"job '{job.name}' is to run on Spark, and has no input: there are no items to spread"
        raise JobError("OCQ-671", what, job.place, f'write @job("{job.name}", input=…), or {thread}')
    what = f"job '{job.name}' is to run on Spark in one transaction, which cannot be spread over executors"
    raise JobError("OCQ-672", what, job.place, f"set jobs.{job.name}.transaction to page or item, or {thread}")


def require_visible(jobs: Sequence[Job], rules: Mapping[str, JobRule], *, is_visible: bool) -> Iterator[ExplainedError]:
    """Yield what keeps jobs from running on Spark whose runs executors cannot see.

    Args:
        jobs: The jobs.
        rules: How each runs, by name.
        is_visible: Whether runs are recorded in a database that other processes see.
    """
    for job in jobs:
        if rules[job.name].spark and not is_visible:
            what = f"job '{job.name}' is to run on Spark, and its runs are recorded in memory, where executors see none"
            fix = f"set database.url to a database that is not in memory, or jobs.{job.name}.processing.engine: thread"
            yield JobError("OCQ-673", what, job.place, fix)


def respelled(names: Iterable[str], recorded: Collection[str]) -> Iterator[ExplainedError]:
    """Yield an error for each job without a record of which another spelling has one, with all that is known of it.

    Args:
        names: Names of jobs.
        recorded: The names under which jobs are recorded.
    """
    for name in names:
        before = next((each for each in recorded if canonical(each) == canonical(name)), None)
        if before is not None and name not in recorded:
            what = f"job '{name}' has no record, but '{before}' has: the same name in another spelling"
            rows = "the column job of its rows in opencqrs_jobs and opencqrs_job_runs"
            fix = f'write @job("{before}"); or change {rows}, or delete these rows to start again'
            yield JobError("OCQ-676", what, f"job {name}", fix)


def errors_of(
    jobs: Sequence[Job],
    rules: Mapping[str, JobRule],
    injector: ContainerInjector,
    check: Callable[[Signature, str], None],
) -> Iterator[ExplainedError]:
    """Yield what keeps each job from running."""
    for job in jobs:
        try:
            bound_jobs([job], rules, injector, check)
        except ExplainedError as error:
            yield error

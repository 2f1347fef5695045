"""What was decided about each job: when it runs, what is a transaction, where its history is, and what it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opencqrs_py.assembly.conditions import Decision
from opencqrs_py.assembly.jobs.events import EventTrigger, events_of
from opencqrs_py.assembly.jobs.rules import bound_jobs, rule_for, ticking_of
from opencqrs_py.config import JobSettings, Tracking
from opencqrs_py.errors import ExplainedError
from opencqrs_py.jobs.binding import BoundJob
from opencqrs_py.model.choices import JobTransaction
from opencqrs_py.model.job import Job
from opencqrs_py.model.naming import listed

if TYPE_CHECKING:
    from opencqrs_py.assembly.injection import ContainerInjector
    from opencqrs_py.config import Configuration
    from opencqrs_py.processing.signatures import Signature


@dataclass(frozen=True, slots=True)
class JobChoices:
    """What decisions about jobs are made from.

    Attributes:
        jobs: The jobs.
        configuration: The settings.
        database: Where the progress is.
        triggers: Settings of the events that start jobs.
        injector: What arguments come from.
        check: Refuses a transaction where there is none.
    """

    jobs: Sequence[Job]
    configuration: Configuration
    database: Decision
    triggers: Sequence[EventTrigger]
    injector: ContainerInjector
    check: Callable[[Signature, str], None]

    def decisions(self) -> list[Decision]:
        """Return the decisions about all jobs, by name."""
        return [each for job in sorted(self.jobs, key=lambda job: job.name) for each in self._of(job)]

    def _of(self, job: Job) -> Iterator[Decision]:
        settings = self.configuration.job(job.name)
        yield self._when(job, settings)
        try:
            rule = rule_for(job, self.jobs, self.configuration)
            bound = bound_jobs([job], {job.name: rule}, self.injector, self.check)[job.name]
            yield self._transaction(job, settings, bound)
        except ExplainedError as error:
            yield _undecided(job, "transaction", error)
        yield self._history(job)
        yield from self._events(job, settings)

    def _when(self, job: Job, settings: JobSettings) -> Decision:
        text = ticking_of(settings).text
        if not settings.enabled:
            return self._decision(job, "triggers", "none", "its triggers are off", "enabled")
        rule = settings.triggers
        schedules = {"fixed-rate": rule.fixed_rate, "fixed-delay": rule.fixed_delay, "cron": rule.cron}
        leaf = next((name for name, value in schedules.items() if value is not None), "")
        if leaf:
            choice = f"{text}, and at each start" if rule.startup else text
            return self._decision(job, "triggers", choice, "set", f"triggers.{leaf}")
        if rule.startup:
            return self._decision(job, "triggers", "at each start of a process", "set", "triggers.startup")
        return self._decision(job, "triggers", "on demand", "no schedule is set")

    def _transaction(self, job: Job, settings: JobSettings, bound: BoundJob) -> Decision:
        mode, is_set = bound.rule.transaction, settings.transaction is not None
        reason = "set" if is_set else f"it has {'an' if job.mark.input is not None else 'no'} input"
        if not bound.transactional and mode is not JobTransaction.ITEM:
            mode, reason = JobTransaction.PAGE, "it asks for no transaction, and a page is recorded when it is done"
            is_set = False
        return self._decision(job, "transaction", mode.value, reason, "transaction" if is_set else "")

    def _history(self, job: Job) -> Decision:
        if not self.database.choice:
            return self._decision(job, "history", "", f"the {self.database.subject} is not decided")
        if self.database.choice == "none":
            reason = "there is no database: only this process knows its runs, and they are lost when it ends"
            return self._decision(job, "history", Tracking.IN_MEMORY.value, reason)
        reason = "with the progress, in the same database"
        return self._decision(job, "history", Tracking.SQL.value, reason)

    def _events(self, job: Job, settings: JobSettings) -> Iterator[Decision]:
        for found in events_of([job], self.triggers):
            ids = f", each for the id that is its {found.ids}" if found.ids is not None else ""
            off = "" if settings.enabled else "; its triggers are off"
            reason = f"events of {listed(found.types)} start it{ids}{off}"
            yield self._decision(job, "triggers.events", f"group {found.group}", reason, "triggers.events.types")

    def _decision(self, job: Job, subject: str, choice: str, reason: str, leaf: str = "") -> Decision:
        """Return a decision, with the place of the setting that has decided it."""
        if not leaf:
            return Decision("", subject, choice, reason, job=job.name)
        origin = self.configuration.origin(f"jobs[{job.name}].{leaf}")
        return Decision("", subject, choice, f"{reason} ({origin})", setting=leaf, job=job.name)


def _undecided(job: Job, subject: str, error: ExplainedError) -> Decision:
    return Decision("", subject, "", error.what, error=error, job=job.name)

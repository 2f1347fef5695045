"""The jobs of an application, put together: what runs them in this process, and shows them in any."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opencqrs_py.adapters.processes import has_ended
from opencqrs_py.adapters.sql import SqlProgressTracker
from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.conditions import Decision, raise_together
from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer
from opencqrs_py.assembly.jobs.decisions import JobChoices
from opencqrs_py.assembly.jobs.events import events_of
from opencqrs_py.assembly.jobs.jobs import Jobs, KnownJobs
from opencqrs_py.assembly.jobs.rules import bound_jobs, errors_of, require_visible, respelled, rules_of
from opencqrs_py.assembly.parts import check_transaction
from opencqrs_py.assembly.replacements import as_made
from opencqrs_py.config import Configuration
from opencqrs_py.control.records import ControlView
from opencqrs_py.engines.job_parts import JobParts, MakeAttempt, RunObserver
from opencqrs_py.engines.job_runner import JobRunner
from opencqrs_py.errors import AssemblyError, ExplainedError
from opencqrs_py.jobs.binding import BoundJob
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.naming import canonical, counted
from opencqrs_py.processing.roles import ON_START
from opencqrs_py.processing.signatures import Signature, read_signature

if TYPE_CHECKING:
    from opencqrs_py.engines.spark.session import Sessions

_log = logging.getLogger("opencqrs.jobs")
_LEFT = (
    "[job %s] %s not ended, and neither the code here nor a process has this job. If it was renamed, change the column "
    "job of its rows in opencqrs_jobs and opencqrs_job_runs; if it was removed: opencqrs jobs cancel %s"
)
_SAME_DATABASE = (
    "set database.url to {} for jobs that write there; another database would also become that of the progress of "
    "groups without their own tracker, which then handle all events again"
)


@dataclass(frozen=True, slots=True)
class JobAssembly:
    """Puts jobs together from settings, code and the parts of an application.

    Attributes:
        blueprint: What the application is made from.
        configuration: Its settings, bound to the existing jobs.
        container: The parts that its groups and jobs share.
        groups: Returns the parts of each group, by name.
        sessions: Returns what opens Spark; called only if a job runs there.
    """

    blueprint: Blueprint
    configuration: Configuration
    container: ApplicationContainer
    groups: Callable[[], Mapping[str, GroupContainer]]
    sessions: Callable[[], Sessions]

    def jobs(self, runner: Callable[[], JobRunner | None]) -> Jobs:
        """Return what lists, runs, pauses and cancels jobs; ``runner`` returns what runs them in this process."""
        found = self.blueprint.discover().jobs
        events = {each.job: each.types for each in events_of(found, self.blueprint.job_triggers)}
        rules = rules_of(found, self.configuration)
        return Jobs(KnownJobs(found, rules, self.container.job_store(), self._control_view, runner, events))

    def decisions(self) -> list[Decision]:
        """Return what was decided about each job, with what keeps it from running."""
        found, database = self.blueprint.discover(), self.container.database_choice().decision
        triggers = self.blueprint.job_triggers
        choices = JobChoices(found.jobs, self.configuration, database, triggers, found.injector, self.check_transaction)
        return choices.decisions()

    def parts(self, *, only: str = "", observer: RunObserver | None = None) -> JobParts:
        """Return what runs the jobs.

        Args:
            only: The only one that is to be run, in any spelling; empty: all.
            observer: Sees how runs end.

        Raises:
            ExplainedError: With all that keeps a job from running.
        """
        found, container = self.blueprint.discover(), self.container
        rules = rules_of(found.jobs, self.configuration)
        is_visible = container.control_store() is not None
        wrong = errors_of(found.jobs, rules, found.injector, self.check_transaction)
        raise_together([*wrong, *require_visible(found.jobs, rules, is_visible=is_visible)])
        store = container.job_store()
        view = store.look()
        raise_together([*respelled(rules, view.records)])
        if not only:
            self._mention_left(Counter(run.job for run in view.runs if run.job not in rules))
        bound = bound_jobs(found.jobs, rules, found.injector, self.check_transaction)
        chosen = [job for job in bound.values() if not only or canonical(job.job.name) == canonical(only)]
        return JobParts(
            bound,
            store,
            container.transactions() if container.database() is not None else None,
            container.job_selector(),
            container.clock(),
            self.configuration.settings.node.max_runs,
            self._on_spark(chosen),
            observer=observer,
            runners=container.job_runners(),
        )

    def _mention_left(self, runs: Mapping[str, int]) -> None:
        """Warn about runs, by job, that no process will begin: neither the code here nor a process has the job."""
        running = {name for node in self._control_view().alive.values() for name in node.jobs} if runs else set()
        for name, count in sorted(runs.items()):
            if name not in running:
                left = counted(count, "run has", "runs have")
                _log.warning(_LEFT, name, left, name, extra={"action": "left", "job": name})

    def _on_spark(self, jobs: Sequence[BoundJob]) -> MakeAttempt | None:
        """Return what makes attempts of runs on Spark; ``None`` if no job runs there, so that Spark is not loaded."""
        on_spark = [job for job in jobs if job.rule.spark]
        if not on_spark:
            return None
        from opencqrs_py.assembly.jobs.recipes import JobRecipe  # noqa: PLC0415 loads PySpark, as the next one
        from opencqrs_py.engines.spark.job_spreading import SparkForJobs  # noqa: PLC0415

        recipes = {each.job.name: JobRecipe.of(self.blueprint, each) for each in on_spark}
        return SparkForJobs(self.sessions(), recipes, self.configuration.settings.spark.max_tasks_per_group).attempt

    def check_transaction(self, signature: Signature, place: str) -> None:
        """Refuse a job that asks for the transaction when there is none, or if it is unclear where.

        Raises:
            AssemblyError: OCQ-524 or OCQ-525 as ``check_transaction``; OCQ-520, if no setting names the database and a
                group writes to another one, that of its own tracker.
        """
        choice = self.container.database_choice()
        check_transaction(signature, place, there=choice.decision.choice != "none", url=lambda: choice.url)
        if signature.transactional and choice.url and not choice.decision.setting:
            self._require_one_database(place)

    def _require_one_database(self, place: str) -> None:
        ours = self.container.database()
        for name, group in self.groups().items():
            choice = as_made(group.tracking(), group.tracker)
            tracker = group.tracker() if choice.provider and not choice.error else None
            if ours is None or not isinstance(tracker, SqlProgressTracker) or tracker.database.may_be(ours):
                continue
            if not self._asks_for_transaction(name, group):
                continue
            what = (
                f"a connection is asked for, and there are 2 databases: the event store's, {ours.label}, and that of "
                f"{choice.choice} for the progress of group '{name}', {tracker.database.label}"
            )
            raise AssemblyError("OCQ-520", what, place, _SAME_DATABASE.format(ours.label))

    def _asks_for_transaction(self, name: str, group: GroupContainer) -> bool:
        """Return whether a handler or ``@on_start`` function of a group does; not if they cannot be bound at all."""
        found = self.blueprint.discover()
        starts = found.functions_of(Declaration.ON_START, name)
        try:
            signatures = [each.signature for each in group.handlers()]
            signatures += [read_signature(each.call, each.place, found.injector, ON_START) for each in starts]
        except ExplainedError:  # which is reported for the group
            return False
        return any(each.transactional for each in signatures)

    def _control_view(self) -> ControlView:
        store = self.container.control_store()
        return store.view().without(has_ended) if store is not None else ControlView()

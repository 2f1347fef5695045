"""Jobs in Spark workers: built there by the same container as on the driver."""

from __future__ import annotations

from dataclasses import dataclass, replace

from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.code.loaded_code import NO_CODE, LoadedCode, loaded_code
from opencqrs_py.assembly.container import assembled
from opencqrs_py.engines.spark.job_tasks import JobOnExecutor, pause
from opencqrs_py.errors import AssemblyError
from opencqrs_py.jobs.binding import BoundJob, bind_job
from opencqrs_py.jobs.execution import Surroundings
from opencqrs_py.jobs.rules import JobRule
from opencqrs_py.model.choices import JobTransaction
from opencqrs_py.model.job import Job
from opencqrs_py.model.masking import remember


@dataclass(frozen=True, slots=True)
class JobRecipe:
    """Builds a job in any process.

    Attributes:
        blueprint: What the application is made from.
        job: Name of the job.
        reference: Where the process that made the recipe has found it.
        transaction: What is committed together.
        code: The project's code as the process that made the recipe has loaded it.
    """

    blueprint: Blueprint
    job: str
    reference: str
    transaction: JobTransaction
    code: LoadedCode = NO_CODE

    @classmethod
    def of(cls, blueprint: Blueprint, bound: BoundJob) -> JobRecipe:
        """Return the recipe of a job."""
        code = loaded_code(blueprint.modules)
        return cls(blueprint, bound.job.name, bound.job.reference, bound.rule.transaction, code)

    def __call__(self) -> JobOnExecutor:
        """Build the job. Called once per Spark worker and job.

        Raises:
            AssemblyError: OCQ-545, if this process has loaded other code than the one that made the recipe; OCQ-674, if
                it found a different job.
        """
        self.blueprint.discover()
        self.code.check()
        job = self._found()
        remember(self.blueprint.secrets)
        container = assembled(self.blueprint)
        rule = JobRule(self.job, transaction=self.transaction)
        bound = replace(bind_job(job, rule, self.blueprint.discover().injector), input=None)
        transactions = container.transactions() if container.database() is not None else None
        around = Surroundings(container.job_store(), transactions, container.job_selector(), container.clock(), pause)
        return JobOnExecutor(bound, around)

    def _found(self) -> Job:
        job = next((each for each in self.blueprint.discover().jobs if each.name == self.job), None)
        if job is not None and job.reference == self.reference:
            return job
        there = "none of that name" if job is None else f"{job.reference} instead of {self.reference}"
        what = f"a worker found a different job '{self.job}' than the process that started it: {there}"
        fix = "make modules declare the same in every process, whatever its variables, time or files"
        raise AssemblyError("OCQ-674", what, self.reference, fix)

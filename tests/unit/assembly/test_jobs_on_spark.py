"""What keeps a job from running on Spark is said at the start."""

from __future__ import annotations

from opencqrs_py import Application, job
from opencqrs_py.errors import JobError


@job("remind")
def remind() -> None:
    """Do nothing."""


def refusal_of(application: Application) -> JobError:
    try:
        application.start()
    except JobError as error:
        return error
    finally:
        application.stop()
    raise AssertionError("it has started")


def test_a_job_on_spark_is_refused_with_the_fix(tmp_path):
    settings = {"jobs.remind.processing.engine": "spark"}
    error = refusal_of(Application(settings, [remind], tmp_path))
    assert error.code == "OCQ-671"
    assert "jobs.remind.processing.engine: thread" in str(error)

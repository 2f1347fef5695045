"""Messages about mistakes in the settings of jobs: each says what, where and how to fix it."""

import pytest

CRON = "write five fields like 0 3 * * * (each day at three), six with seconds first, or @hourly, @daily, @weekly"
QUARTZ = (
    "write five fields like 0 3 * * * (each day at three), or six with seconds first like 0 0 3 * * *; there is no "
    "field for the year"
)
SOURCE = "write subject, id, or a field of the data like data.invoice or data.order.id"
UNIT = "write 2s for seconds, 2ms for milliseconds, or PT2S in ISO-8601"
ONE_OR_MORE = ("114", "it is below 1", "write 1 or more")


@pytest.mark.parametrize(
    ("key", "text", "code", "reason", "fix"),
    [
        ("enabled", "maybe", "111", "it is neither true nor false", "write true or false"),
        ("triggers.startup", "1s", "111", "it is neither true nor false", "write true or false"),
        ("triggers.fixed-rate", "99ms", "114", "it is below 100ms", "write 100ms or more"),
        ("triggers.fixed-delay", "0s", "114", "it is below 100ms", "write 100ms or more"),
        ("triggers.fixed-rate", "2", "113", "the unit is missing", UNIT),
        ("triggers.fixed-rate", "infinite", "113", "it needs an end", "write it like 30s, 500ms or PT30S"),
        ("triggers.fixed-rate", "'-'", "113", "it is not a duration", "write it like 2s, 500ms, 1m30s or PT10S"),
        ("triggers.cron", "'* *'", "111", "it is not a cron expression (wrong number of fields)", CRON),
        ("triggers.cron", "'0 0 31 2 *'", "111", "it is not a cron expression (bad day-of-month)", CRON),
        ("triggers.cron", "'--'", "111", "it is not a cron expression (wrong number of fields)", CRON),
        ("triggers.cron", "''", "111", "it is not a cron expression (wrong number of fields)", CRON),
        ("triggers.cron", "'0 0 3 ? * MON *'", "111", "it has seven fields, as only Quartz takes them", QUARTZ),
        ("triggers.cron", "0 0 3 1 1 ? 2030", "111", "it has seven fields, as only Quartz takes them", QUARTZ),
        ("triggers.zone", "Berlin", "111", "there is no such time zone", "write a name like Europe/Berlin, or UTC"),
        ("triggers.initial-delay", "-1s", "113", "it is not a duration", "write it like 2s, 500ms, 1m30s or PT10S"),
        ("triggers.jitter", "0.5", "113", "the unit is missing", None),
        ("triggers.events.ids", "metadata.user", "111", "an event has no id there", SOURCE),
        ("triggers.events.ids", "data", "111", "an event has no id there", SOURCE),
        ("triggers.events.ids", "data..id", "111", "an event has no id there", SOURCE),
        ("triggers.events.ids", "data.id.", "111", "an event has no id there", SOURCE),
        ("triggers.events.ids", "invoice", "111", "an event has no id there", SOURCE),
        ("misfire", "once", "112", "there is no such choice", "use one of run-once, skip, catch-up; nearest: run-once"),
        ("misfire-grace", "infinite", "113", "it needs an end", "write it like 30s, 500ms or PT30S"),
        ("overlap", "wait", "112", "there is no such choice", "use one of skip, queue, cancel"),
        ("overlap-scope", "id", "112", "there is no such choice", "use one of all-runs, per-id"),
        ("queue-size", "0", *ONE_OR_MORE),
        ("cancel-grace", "forever", "113", "it is not a duration", "write it like 2s, 500ms, 1m30s or PT10S"),
        ("transaction", "chunk", "112", "there is no such choice", "use one of run, page, item"),
        ("limit", "0", *ONE_OR_MORE),
        ("limit", "many", "111", "it is not a whole number", "write digits only, like 4"),
        ("max-items-per-run", "0", *ONE_OR_MORE),
        ("time-budget", "50ms", "114", "it is below 100ms", "write 100ms or more"),
        ("retry.policy", "fix", "112", "there is no such choice", None),
        ("retry.max-attempts", "-1", "114", "it is below 0", "write 0 or more, or infinite"),
        ("retry.multiplier", "0.5", *ONE_OR_MORE),
        ("retry.jitter", "2", "114", "it is above 1", "write 1 or less"),
        ("processing.engine", "ray", "112", "there is no such choice", "use one of spark, thread"),
        ("history.keep", "59s", "114", "it is below 1m", "write 1m or more"),
        ("history.keep", "infinite", "113", "it needs an end", "write it like 30s, 500ms or PT30S"),
    ],
)
@pytest.mark.parametrize("level", ["cleanup", "standard"])
def test_a_refused_value_is_reported_with_reason_place_and_fix(project, level, key, text, code, reason, fix):
    error = project.yaml(f"opencqrs.jobs: {{other: {{}}, {level}.{key}: {text}}}").error()
    shown = text.strip("'")
    assert error.code == f"OCQ-{code}"
    assert error.what == f"jobs.{level}.{key} cannot be {shown!r}: {reason}"
    assert error.where == f"application.yaml:1:{len(f'opencqrs.jobs: {{other: {{}}, {level}.{key}: ') + 1}"
    assert fix in (None, error.fix)


def test_an_engine_that_another_package_registers_runs_no_jobs(project, monkeypatch):
    monkeypatch.setattr("opencqrs_py.config.choices.Engine.registered", lambda: ("ray",))
    project.yaml("opencqrs: {jobs.cleanup.processing.engine: ray, event-handling.standard.processing.engine: ray}")
    error = project.error()
    assert error.what == "jobs.cleanup.processing.engine cannot be 'ray': that engine runs groups, not jobs"
    assert (error.code, error.fix) == ("OCQ-112", "use one of thread, spark")


@pytest.mark.parametrize(
    ("yaml", "key", "fix"),
    [
        ("{cleanup: {triger: {}}}", "jobs.cleanup.triger", "did you mean jobs.cleanup.triggers?"),
        ("{cleanup: {cron: x}}", "jobs.cleanup.cron", "did you mean jobs.cleanup.triggers.cron?"),
        ("{cleanup: {triggers: {corn: x}}}", "jobs.cleanup.triggers.corn", "did you mean jobs.cleanup.triggers.cron?"),
        ("{v1.2: {limt: 1}}", "jobs[v1.2].limt", "did you mean jobs[v1.2].limit?"),
        ("{'[v1.2]': {limt: 1}}", "jobs[v1.2].limt", "did you mean jobs[v1.2].limit?"),
        ("{'a.b': {retry: {jittr: 1}}}", "jobs[a.b].retry.jittr", "did you mean jobs[a.b].retry.jitter?"),
        ("{'a.trigers': {cron: x}}", "jobs.a.trigers", "did you mean jobs.a.triggers?"),
        ("{standard: {limt: 1}}", "jobs.standard.limt", "did you mean jobs.standard.limit?"),
        (
            "{standard: {triggers: {event: {}}}}",
            "jobs.standard.triggers.event",
            "did you mean jobs.standard.triggers.events?",
        ),
        ("{cleanup: {limit: {deep: 1}}}", "jobs.cleanup.limit.deep", "put nothing below jobs.cleanup.limit"),
        ("{cleanup: {retry: {back-off-ref: x}}}", "jobs.cleanup.retry.back-off-ref", None),
    ],
)
def test_an_unknown_key_is_an_error_at_the_key(project, yaml, key, fix):
    error = project.yaml(f"opencqrs: {{jobs: {yaml}}}").error()
    assert (error.code, error.what) == ("OCQ-103", f"there is no setting {key}")
    assert error.where.startswith("application.yaml:1:")
    assert fix in (None, error.fix)


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("job.cleanup.limit=5", "did you mean jobs?"),
        ("jobs.cleanup.trigers.cron=@daily", "did you mean jobs.cleanup.triggers?"),
        ("jobs.standard.trigers.limit=5", "did you mean jobs.standard.triggers?"),
        ("jobs.standard.x.limit=5", None),
        ("jobs.cleanup=5", "put a name and its settings below it"),
    ],
)
def test_a_wrong_argument_is_reported(project, override, fix):
    error = project.error(overrides=[override])
    assert fix in (None, error.fix) or error.code == "OCQ-107"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OPENCQRS__JOBS__CLEANUP__TRIGGERS__CORN", "OPENCQRS__JOBS__CLEANUP__TRIGGERS__CRON"),
        ("OPENCQRS__JOBS__CLEANUP__LIMT", "OPENCQRS__JOBS__CLEANUP__LIMIT"),
        ("OPENCQRS_JOBS_CLEANUP_TRIGGERS_CORN", "OPENCQRS__JOBS__CLEANUP__TRIGGERS__CRON"),
        ("OPENCQRS__JOBS__STANDARD__TRIGGERS__CORN", "OPENCQRS__JOBS__STANDARD__TRIGGERS__CRON"),
        ("OPENCQRS__JOBS__STANDARD__LIMT", "OPENCQRS__JOBS__STANDARD__LIMIT"),
        ("OPENCQRS__JOB__CLEANUP__LIMIT", "OPENCQRS__JOBS__CLEANUP__LIMIT"),
        ("OPENCQR_JOBS_STANDARD_LIMIT", "OPENCQRS__JOBS__STANDARD__LIMIT"),
    ],
)
def test_an_unknown_variable_is_reported_with_the_intended_one(project, name, meant):
    error = project.error(environ={name: "5"}, jobs=["cleanup"])
    assert (error.code, error.fix) == ("OCQ-104", f"did you mean {meant}?")


@pytest.mark.parametrize("yaml", ["{jobs: 5}", "{jobs: [a]}", "{jobs: {cleanup: 5}}", "{jobs: {standard: [a]}}"])
def test_a_value_in_place_of_a_section_is_an_error(project, yaml):
    error = project.yaml(f"opencqrs: {yaml}").error()
    assert error.code == "OCQ-107"
    assert "is a section, not a single value or a list" in error.what


def test_a_job_spelled_in_two_ways_in_one_place_is_an_error(project):
    error = project.yaml("opencqrs.jobs: {clean-up.limit: 5, cleanUp.queue-size: 5}").error()
    assert (error.code, error.what) == ("OCQ-106", "clean-up and cleanUp are two spellings of one name")


def test_an_error_in_the_standard_is_reported_once_however_many_jobs_inherit_it(project):
    project.yaml("opencqrs.jobs: {standard: {limit: 0, retry.jitter: 2}, a: {}, b: {}, c.retry: {jitter: 1}}")
    assert [error.what.split()[0] for error in project.errors()] == [
        "jobs.standard.limit",
        "jobs.standard.retry.jitter",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("OPENCQRS__JOBS", '{"clean-up": {"limit": 5}, "standard": {"queue-size": 2}}'),
        ("OPENCQRS_JOBS", '{"clean-up.limit": 5, "Standard": {"queueSize": 2}}'),
    ],
)
def test_one_json_variable_can_configure_all_jobs(project, name, text):
    job = project.load(environ={name: text}).job("cleanup")
    assert (job.limit, job.queue_size) == (5, 2)


def test_a_json_variable_for_a_job_merges_with_variables_for_single_settings(project):
    environ = {"OPENCQRS__JOBS__CLEANUP": '{"limit": 5, "queue-size": 2}', "OPENCQRS__JOBS__CLEANUP__LIMIT": "7"}
    job = project.load(environ=environ).job("cleanup")
    assert (job.limit, job.queue_size) == (7, 2)


def test_variables_of_a_kubernetes_service_called_jobs_are_not_settings(project):
    environ = {
        "OPENCQRS_JOBS_SERVICE_HOST": "10.0.0.1",
        "OPENCQRS_JOBS_SERVICE_PORT": "8080",
        "OPENCQRS_JOBS_PORT": "tcp://10.0.0.1:8080",
        "OPENCQRS_JOBS_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    configuration = project.load(environ=environ)
    assert (configuration.job_names, set(configuration.ignored)) == ((), set(environ))

"""Jobs inherit as groups do: their own settings, then the standard, then the defaults, from every source."""

import math
import pickle

import pytest

from opencqrs_py.config import (
    Configuration,
    Engine,
    JobSettings,
    JobTransaction,
    Misfire,
    Overlap,
    OverlapScope,
    RetryPolicy,
    Settings,
)
from opencqrs_py.config.jobs import JOB_FAMILY, EventTriggerSettings, TriggerSettings
from opencqrs_py.errors import ConfigurationError, ConfigurationErrors

DEFAULTS = {
    "enabled": True,
    "triggers.startup": False,
    "triggers.fixed_rate": None,
    "triggers.fixed_delay": None,
    "triggers.cron": None,
    "triggers.zone": "UTC",
    "triggers.initial_delay": 0.0,
    "triggers.jitter": 0.0,
    "triggers.events.types": (),
    "triggers.events.ids": None,
    "misfire": Misfire.RUN_ONCE,
    "misfire_grace": 10.0,
    "overlap": Overlap.SKIP,
    "overlap_scope": OverlapScope.ALL_RUNS,
    "queue_size": 1,
    "cancel_grace": 30.0,
    "exclusive_with": (),
    "transaction": None,
    "limit": 1_000,
    "max_items_per_run": None,
    "time_budget": math.inf,
    "retry.policy": RetryPolicy.EXPONENTIAL_BACKOFF,
    "retry.initial_interval": 2.0,
    "retry.max_interval": 30.0,
    "retry.max_elapsed_time": math.inf,
    "retry.multiplier": 1.5,
    "retry.max_attempts": 3,
    "retry.jitter": 0.0,
    "processing.engine": Engine.THREAD,
    "history.keep": 604_800.0,
}
OTHERS = {
    "enabled": ("false", False, "yes", True),
    "triggers.startup": ("on", True, "off", False),
    "triggers.fixed_rate": ("500ms", 0.5, "PT1H", 3_600.0),
    "triggers.fixed_delay": ("100ms", 0.1, "1d", 86_400.0),
    "triggers.cron": ("0 3 * * *", "0 3 * * *", "@daily", "@daily"),
    "triggers.zone": ("Europe/Berlin", "Europe/Berlin", "UTC", "UTC"),
    "triggers.initial_delay": ("1m", 60.0, "0s", 0.0),
    "triggers.jitter": ("5s", 5.0, "1s", 1.0),
    "triggers.events.types": ("library.*, mail", ("library.*", "mail"), '["a"]', ("a",)),
    "triggers.events.ids": ("data.order.id", "data.order.id", "subject", "subject"),
    "misfire": ("CATCH_UP", Misfire.CATCH_UP, "skip", Misfire.SKIP),
    "misfire_grace": ("0s", 0.0, "1m", 60.0),
    "overlap": ("queue", Overlap.QUEUE, "cancel", Overlap.CANCEL),
    "overlap_scope": ("perId", OverlapScope.PER_ID, "all_runs", OverlapScope.ALL_RUNS),
    "queue_size": ("2", 2, "10", 10),
    "cancel_grace": ("1s", 1.0, "0s", 0.0),
    "exclusive_with": ("report", ("report",), "[]", ()),
    "transaction": ("item", JobTransaction.ITEM, "RUN", JobTransaction.RUN),
    "limit": ("1", 1, "500", 500),
    "max_items_per_run": ("1", 1, "7", 7),
    "time_budget": ("100ms", 0.1, "infinite", math.inf),
    "retry.policy": ("none", RetryPolicy.NONE, "fixed", RetryPolicy.FIXED),
    "retry.initial_interval": ("1s", 1.0, "4s", 4.0),
    "retry.max_interval": ("1s", 1.0, "4s", 4.0),
    "retry.max_elapsed_time": ("1h", 3_600.0, "infinite", math.inf),
    "retry.multiplier": ("2", 2.0, "1", 1.0),
    "retry.max_attempts": ("0", 0, "infinite", None),
    "retry.jitter": ("1", 1.0, "0.5", 0.5),
    "processing.engine": ("spark", Engine.SPARK, "thread", Engine.THREAD),
    "history.keep": ("P30D", 2_592_000.0, "1m", 60.0),
}
"""Each leaf with two texts, and what they mean."""


def of(job, leaf):
    value = job
    for name in leaf.split("."):
        value = getattr(value, name)
    return value


def key(level, leaf):
    return f"jobs.{level}.{leaf.replace('_', '-')}"


def test_the_tables_list_every_setting():
    assert list(DEFAULTS) == list(OTHERS) == [".".join(leaf) for leaf in JOB_FAMILY.leaves]


@pytest.mark.parametrize("leaf", DEFAULTS)
def test_built_in_defaults_apply_without_settings(project, leaf):
    assert of(JobSettings(), leaf) == of(project.load().job("any"), leaf) == DEFAULTS[leaf]
    assert str(project.load().origin(key("any", leaf))) == "built-in default"


@pytest.mark.parametrize("leaf", OTHERS)
def test_each_setting_comes_from_the_job_then_the_standard_then_the_default(project, leaf):
    text, value, own_text, own = OTHERS[leaf]
    standard = f"{key('standard', leaf)}={text}"
    configuration = project.load(overrides=[standard, f"{key('cleanup', leaf)}={own_text}"], jobs=["cleanup", "report"])
    jobs = {name: of(configuration.job(name), leaf) for name in ("cleanup", "report", "unheard")}
    assert jobs == {"cleanup": own, "report": value, "unheard": value}
    said = f"argument --set {key('standard', leaf)}"
    assert str(configuration.origin(key("cleanup", leaf))) == f"argument --set {key('cleanup', leaf)}"
    assert str(configuration.origin(key("report", leaf))) == f"standard ({said})"
    assert str(configuration.origin(key("standard", leaf))) == said
    (lost,) = configuration.losers(key("cleanup", leaf))
    assert (lost.path, str(lost.origin)) == (key("standard", leaf), f"standard ({said})")
    assert configuration.losers(key("report", leaf)) == ()


@pytest.mark.parametrize("leaf", OTHERS)
def test_null_resets_a_value_of_the_standard(project, leaf):
    overrides = [f"{key('standard', leaf)}={OTHERS[leaf][0]}", f"{key('cleanup', leaf)}=null"]
    configuration = project.load(overrides=overrides)
    assert of(configuration.job("cleanup"), leaf) == DEFAULTS[leaf]
    origin = str(configuration.origin(key("cleanup", leaf)))
    assert origin == f"built-in default (reset by argument --set {key('cleanup', leaf)})"
    assert len(configuration.losers(key("cleanup", leaf))) == 1


def test_settings_of_one_section_are_inherited_individually(project):
    project.yaml("""
        opencqrs.jobs:
          standard:
            limit: 10
            retry: {max-attempts: 5, multiplier: 2}
            triggers: {zone: Europe/Berlin, events: {ids: subject}}
          cleanup:
            retry: {max-attempts: 1}
            triggers: {cron: 0 3 * * *, events: {types: [library.*]}}
    """)
    job = project.load().job("cleanup")
    assert (job.limit, job.retry.max_attempts, job.retry.multiplier, job.retry.max_interval) == (10, 1, 2.0, 30.0)
    assert job.triggers == TriggerSettings(
        cron="0 3 * * *", zone="Europe/Berlin", events=EventTriggerSettings(("library.*",), "subject")
    )


KEY, VARIABLE, OF_SPRING = (
    "triggers.cron",
    "OPENCQRS__JOBS__CLEANUP__TRIGGERS__CRON",
    "OPENCQRS_JOBS_CLEANUP_TRIGGERS_CRON",
)


def test_the_higher_source_wins_and_the_job_wins_over_a_standard_of_any_source(project):
    project.yaml("opencqrs.jobs.cleanup.triggers.cron: 1 * * * *")
    project.write("config/application.toml", "[opencqrs.jobs.cleanup]\ntriggers.cron = '2 * * * *'")
    project.write("application-prod.properties", "opencqrs.jobs.cleanup.triggers.cron=3 * * * *")
    project.write(".env", f"{VARIABLE}='4 * * * *'")
    highest = {"overrides": ["jobs.cleanup.triggers.cron=7 * * * *"], "profiles": ["prod"]}
    in_json = {"OPENCQRS_APPLICATION_JSON": '{"jobs": {"cleanup": {"triggers": {"cron": "6 * * * *"}}}}'}
    variable = {OF_SPRING: "5 * * * *", "OPENCQRS__JOBS__STANDARD__TRIGGERS__CRON": "8 * * * *"}
    configuration = project.load(environ=variable | in_json, **highest)
    assert configuration.job("cleanup").triggers.cron == "7 * * * *"
    lost = configuration.losers("jobs.cleanup.triggers.cron")
    assert [value.value.split()[0] for value in lost] == ["6", "5", "4", "3", "2", "1", "8"]
    assert configuration.job("other").triggers.cron == "8 * * * *"


@pytest.mark.parametrize("name", [VARIABLE, OF_SPRING, VARIABLE.lower()])
@pytest.mark.parametrize("known", [{}, {"jobs": ["Clean-Up"]}])
def test_variables_of_both_styles_name_a_job(project, name, known):
    name = name.replace("CLEANUP", "CLEAN_UP").replace("cleanup", "clean_up")
    configuration = project.load(environ={name: "0 3 * * *"}, **known)
    assert configuration.job("clean-up").triggers.cron == "0 3 * * *"
    assert str(configuration.origin("jobs.cleanUp.triggers.cron")) == f"environment variable {name}"
    assert configuration.job_names == (("Clean-Up",) if known else ("clean_up",))


@pytest.mark.parametrize(
    "name",
    [
        "OPENCQRS__JOBS__STANDARD__OVERLAP_SCOPE",
        "OPENCQRS_JOBS_STANDARD_OVERLAPSCOPE",
        "OPENCQRS_JOBS_STANDARD_OVERLAP_SCOPE",
    ],
)
def test_variables_of_both_styles_set_the_standard(project, name):
    configuration = project.load(environ={name: "per-id"})
    assert configuration.job("any").overlap_scope is OverlapScope.PER_ID
    assert configuration.job_names == ()


def test_names_of_jobs_keep_their_spelling_and_are_found_in_any_spelling(project):
    configuration = project.yaml("""
        opencqrs.jobs:
          Re_Send: {limit: 1}
          v1.2: {limit: 2}
          2024: {limit: 3}
          no: {limit: 4}
    """).load()
    assert configuration.job_names == ("Re_Send", "v1.2", "2024", "no")
    assert [configuration.job(name).limit for name in ("re-send", "V1.2", "2024", "NO")] == [1, 2, 3, 4]
    assert configuration.value("jobs[v1.2].limit").path == "jobs[v1.2].limit"
    assert configuration.value("jobs.reSend.limit").path == "jobs.Re_Send.limit"


@pytest.mark.parametrize(
    "name", ["model_extra", "named", "family", "model_dump", "copy", "keys", "groups", "standards"]
)
def test_a_job_can_have_any_name_except_standard(project, name):
    configuration = project.load(overrides=[f"jobs.{name}.limit=5", "jobs.standard.queue-size=2"], jobs=[name])
    job = configuration.job(name)
    assert (job.limit, job.queue_size, configuration.job_names) == (5, 2, (name,))
    assert configuration.value(f"jobs.{name}.limit").typed == 5
    assert {value.path.split(".")[1] for value in configuration.values(job=name)} == {name}


def test_placeholders_are_resolved_in_values_of_jobs(project):
    project.yaml("""
        opencqrs.jobs.cleanup: {triggers.cron: "${CLEANUP_CRON:-}", limit: "${opencqrs.jobs.report.limit}"}
        ---
        opencqrs.jobs.report.limit: 50
    """)
    assert project.load().job("cleanup").triggers.cron is None
    job = project.load(environ={"CLEANUP_CRON": "@hourly"}).job("cleanup")
    assert (job.triggers.cron, job.limit) == ("@hourly", 50)


def test_an_empty_section_changes_nothing_and_null_resets_the_standard(project):
    project.yaml(
        "opencqrs.jobs: {standard: {limit: 5, retry: {jitter: 1}}, cleanup: {}, report: , retry: {triggers: ~}}"
    )
    configuration = project.load()
    assert configuration.job_names == ("cleanup", "report", "retry")
    assert {configuration.job(name).limit for name in configuration.job_names} == {5}
    configuration = project.load(overrides=["jobs.standard.retry=null"])
    assert configuration.job("cleanup").retry.jitter == 0.0


@pytest.mark.parametrize(
    ("standard", "own", "applies"),
    [
        ("", "", None),
        ("fixed-rate: 1m", "", ("fixed_rate", 60.0)),
        ("fixed-rate: 1m", "cron: '@daily'", ("cron", "@daily")),
        ("cron: '@daily'", "fixed-delay: 1m", ("fixed_delay", 60.0)),
        ("fixed-delay: 2m", "fixed-rate: 1m", ("fixed_rate", 60.0)),
        ("fixed-rate: 1m", "fixed-rate: ~", None),
        ("fixed-rate: 1m", "cron: ~", ("fixed_rate", 60.0)),
        ("fixed-rate: 1m", "cron: '-'", ("fixed_rate", 60.0)),
        ("cron: '@daily'", "cron: '-'", None),
        ("cron: '@daily'", "{cron: '-', fixed-rate: 1m}", ("fixed_rate", 60.0)),
        ("cron: '@daily'", "{cron: ~, fixed-rate: 1m}", ("fixed_rate", 60.0)),
        ("", "{fixed-rate: ~, fixed-delay: 1m, cron: '-'}", ("fixed_delay", 60.0)),
    ],
)
def test_of_mutually_exclusive_triggers_the_more_specific_applies(project, standard, own, applies):
    def section(said):
        return said if said.startswith("{") else f"{{{said}}}"

    project.yaml(f"opencqrs.jobs: {{standard.triggers: {section(standard)}, cleanup.triggers: {section(own)}}}")
    triggers = project.load().job("cleanup").triggers
    rivals = {name: getattr(triggers, name) for name in ("fixed_rate", "fixed_delay", "cron")}
    assert rivals == dict.fromkeys(rivals) | dict([applies] if applies else [])


def test_a_replaced_trigger_is_shown_as_replaced(project):
    project.yaml("opencqrs.jobs: {standard.triggers.fixed-rate: 1m, cleanup.triggers.cron: '@daily'}")
    configuration = project.load()
    replaced = configuration.value("jobs.cleanup.triggers.fixed-rate")
    assert (replaced.value, str(replaced.origin)) == ("null", "replaced by triggers.cron (application.yaml:1:74)")
    assert [value.value for value in configuration.losers("jobs.cleanup.triggers.fixed-rate")] == ["1m"]
    assert configuration.value("jobs.report.triggers.fixed-rate").value == "1m"


def test_mutually_exclusive_triggers_of_one_level_are_refused_with_both_places(project):
    project.yaml("""
        opencqrs.jobs:
          standard.triggers: {fixed-rate: 1m, fixed-delay: 1m, cron: '@daily'}
          cleanup.triggers: {fixed-rate: 1m}
    """)
    errors = project.errors(environ={VARIABLE: "@hourly"}, overrides=["jobs.standard.limit=0"])
    assert [(error.code, error.what, error.where) for error in errors] == [
        (
            "OCQ-123",
            "jobs.standard.triggers.fixed-rate, jobs.standard.triggers.fixed-delay and jobs.standard.triggers.cron "
            "exclude each other",
            "application.yaml:3:35 and application.yaml:3:52 and application.yaml:3:62",
        ),
        (
            "OCQ-123",
            "jobs.cleanup.triggers.fixed-rate and jobs.cleanup.triggers.cron exclude each other",
            f"application.yaml:4:34 and environment variable {VARIABLE}",
        ),
        ("OCQ-114", "jobs.standard.limit cannot be '0': it is below 1", "argument --set jobs.standard.limit"),
    ]
    assert errors[0].fix.startswith("remove all but one of them, or set the others to null")


def test_a_trigger_reset_by_null_excludes_nothing(project):
    project.yaml("opencqrs.jobs.cleanup.triggers: {fixed-rate: 1m}")
    environ = {VARIABLE: "@hourly", VARIABLE.replace("CRON", "FIXED_RATE"): "null"}
    assert project.load(environ=environ).job("cleanup").triggers.cron == "@hourly"


@pytest.mark.parametrize("level", ["cleanup", "standard"])
def test_invalid_settings_made_in_code_are_refused_too(level):
    settings = Settings(jobs={level: {"triggers": {"fixed_rate": "1m", "cron": "@daily"}}})
    with pytest.raises(ConfigurationErrors, match=rf"jobs\.{level}\.triggers\.cron exclude each other") as caught:
        Configuration.from_settings(settings)
    assert caught.value.errors[0].where == "settings given in code"


def test_settings_made_in_code_have_a_configuration_too():
    settings = Settings(jobs={"standard": JobSettings(limit=5), "v1.2": {"overlap": "queue"}})
    configuration = Configuration.from_settings(settings)
    assert configuration.job_names == ("v1.2",)
    assert configuration.job("V1.2") == JobSettings(limit=5, overlap=Overlap.QUEUE)
    assert str(configuration.origin("jobs[v1.2].overlap")) == "settings given in code"
    assert str(configuration.origin("jobs[v1.2].limit")) == "standard (settings given in code)"
    assert str(configuration.origin("jobs[v1.2].queue-size")) == "built-in default"


def test_settings_of_jobs_survive_pickling_and_dumping():
    settings = Settings(jobs={"standard": {"limit": 5}, "cleanup": {"triggers": {"fixed_rate": "1m"}}})
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy.jobs.said_of("cleanup") == {("triggers", "fixed_rate"): "1m"}
    assert Settings(**settings.model_dump()).jobs.named == settings.jobs.named
    job = pickle.loads(pickle.dumps(settings.jobs.named["cleanup"]))
    assert job == settings.jobs.named["cleanup"]
    assert hash(job) == hash(settings.jobs.named["cleanup"])


@pytest.mark.parametrize("wrong", [3, {"nothing": None}, {"retry": 3}, {"limit": {}}, {"retry": {"jittr": 1}}])
@pytest.mark.parametrize("level", ["standard", "cleanup"])
def test_invalid_job_settings_are_refused(level, wrong):
    with pytest.raises(ValueError, match="validation error"):
        Settings(jobs={level: wrong})


@pytest.mark.parametrize("name", ["Standard", "STANDARD", "stan-dard"])
def test_no_job_can_be_called_standard_in_any_spelling(project, name):
    error = project.error(jobs={name: "jobs.py:3"})
    assert (error.code, error.where) == ("OCQ-124", "jobs.py:3")
    assert error.what == f"a job cannot be called {name}: jobs.standard holds the settings of all jobs"
    assert project.yaml(f"opencqrs.jobs.{name}.limit: 5").load().job("any").limit == 5
    with pytest.raises(ValueError, match="no job can be called"):
        Settings(jobs={name: {"limit": 5}})


def test_two_jobs_that_settings_cannot_distinguish_are_refused(project):
    error = project.error(jobs={"re-send": "a.py:1", "reSend": "b.py:2"}, groups=["resend"])
    assert (error.code, error.where) == ("OCQ-116", "a.py:1 and b.py:2")
    assert error.what == "the jobs re-send and reSend cannot be distinguished in settings"


def warned(configuration):
    return [(each.code, each.what, each.where, each.fix) for each in configuration.warnings]


def test_a_configured_job_without_code_is_warned_of_with_the_nearest_name(project):
    project.yaml("""
        opencqrs.jobs:
          cleenup: {limit: 5}
          zzz: {}
          report: {exclusive-with: [CLEANUP, clean, xyz]}
          standrd: {limit: 5}
    """)
    expected = [
        (
            "OCQ-122",
            "jobs.cleenup is configured, but no code has that job",
            "application.yaml:3:20",
            "did you mean cleanup?",
        ),
        (
            "OCQ-122",
            "jobs.zzz is configured, but no code has that job",
            "application.yaml:4:8",
            "jobs: cleanup, report",
        ),
        (
            "OCQ-122",
            "jobs.standrd is configured, but no code has that job",
            "application.yaml:6:20",
            "did you mean standard?",
        ),
    ]
    loaded = project.load()
    assert warned(loaded) == []
    jobs = {"cleanup": "jobs.py:1", "report": "jobs.py:9"}
    assert warned(loaded.for_code({}, jobs)) == warned(project.load(jobs=list(jobs))) == expected
    assert {fix for *_, fix in warned(loaded.for_code({}, {}))} == {"jobs: none", "did you mean standard?"}
    assert warned(loaded.for_code({}, jobs).for_code({})) == []


def test_names_of_jobs_are_resolved_once_the_modules_are_known(project):
    seen = []

    def jobs(modules, exclude):
        seen.append((modules, exclude))
        return {"clean-up": "jobs.py:1"}

    project.yaml("opencqrs: {discovery.modules: [a], jobs.CleanUp.limit: 5}")
    configuration = project.load(jobs=jobs)
    assert seen == [(["a"], [])]
    assert (configuration.job_names, configuration.job("clean-up").limit) == (("clean-up",), 5)


def test_the_jobs_in_code_decide_which_job_a_variable_means(project):
    environ = {"OPENCQRS_JOBS_V1_2_LIMIT": "5"}
    configuration = project.load(environ=environ).for_code({}, {"v1.2": "jobs.py:1"})
    assert (configuration.job_names, configuration.job("v1.2").limit) == (("v1.2",), 5)
    with pytest.raises(ConfigurationErrors, match="OCQ-105"):
        project.load(environ=environ).for_code({}, {"v1.2": "a", "v12": "b"})


def test_one_job_can_be_shown_alone(project):
    project.yaml("opencqrs.jobs: {standard.limit: 5, cleanup.enabled: no}")
    configuration = project.load(jobs=["cleanup", "report"])
    own = configuration.values(job="CLEANUP")
    assert [value.path for value in own] == [key("cleanup", leaf) for leaf in DEFAULTS]
    everything = {value.path: (value.value, str(value.origin)) for value in configuration.values()}
    assert everything["jobs.standard.limit"] == ("5", "application.yaml:1:33")
    assert "jobs.standard.enabled" not in everything
    assert everything["jobs.cleanup.enabled"] == ("false", "application.yaml:1:53")
    assert everything["jobs.report.limit"] == ("5", "standard (application.yaml:1:33)")
    assert everything["jobs.report.history.keep"] == ("7d", "built-in default")


def test_the_token_of_http_is_a_secret(project):
    configuration = project.load(environ={"OPENCQRS__HTTP__TOKEN": "hunter2!"})
    assert configuration.settings.http.token == "hunter2!"
    assert configuration.value("http.token").value == "***"
    assert "hunter2" not in repr(configuration.settings) + str(configuration.values())
    assert configuration.secrets == ("hunter2!",)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("hunter 2", "its value cannot be read"),
        ("''", "its value cannot be read"),
        ("hüter", "its value cannot be read"),
    ],
)
def test_a_token_that_cannot_be_sent_is_refused_without_being_shown(project, value, reason):
    error = project.yaml(f"opencqrs.http.token: {value}").error()
    assert error.what == f"http.token cannot be used: {reason}"
    assert error.fix == "write ASCII letters, digits and punctuation without spaces, or null for none"


def test_the_limit_of_runs_of_a_process_is_at_least_one(project):
    assert project.load().settings.node.max_runs == 4
    assert project.load(overrides=["node.max-runs=1"]).settings.node.max_runs == 1
    error = project.error(overrides=["node.max-runs=0"])
    assert (error.code, error.fix) == ("OCQ-114", "write 1 or more")


@pytest.mark.parametrize("ask", [Configuration.value, Configuration.losers, Configuration.origin])
def test_an_unknown_setting_of_a_job_has_no_value(project, ask):
    for unknown in ("jobs.cleanup.triggers.crn", "jobs.standard.limt", "jobs.cleanup"):
        with pytest.raises(ConfigurationError, match="there is no setting"):
            ask(project.load(jobs=["cleanup"]), unknown)

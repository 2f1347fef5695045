"""Decisions about jobs, and errors that keep them from running."""

from __future__ import annotations

import pytest

from opencqrs_py import Application
from opencqrs_py.assembly.conditions import Decision
from opencqrs_py.errors import AssemblyErrors, ExplainedError, JobError

CODE = """
from opencqrs_py import Event, JobContext, event_handling, job
from sqlalchemy import Connection

@event_handling("group", types=["*"])
def handle(event: Event) -> None:
    pass

@job("remind", input=lambda: ["a"])
def remind(context: JobContext, connection: Connection) -> None:
    pass

@job("clean")
def clean(connection: Connection) -> None:
    pass

@job("send", input=lambda: ["a"])
def send(context: JobContext) -> None:
    pass
"""
WRONG = """
from opencqrs_py import Event, event_handling, job
from sqlalchemy import Connection

class Mailer: ...

@event_handling("group", types=["*"])
def handle(event: Event, mailer: Mailer) -> None:
    pass

@job("remind")
def remind(mailer: Mailer) -> None:
    pass

@job("clean")
def clean() -> None:
    pass
"""
IN_MEMORY = {"event-store.url": "file:events.ndjson"}
CODE_IN_MEMORY = CODE.replace(", connection: Connection", "").replace("connection: Connection", "")


def application(make_module, tmp_path, code=CODE, **settings: object) -> Application:
    (tmp_path / "events.ndjson").touch()
    standard = {"event-handling.standard.processing.engine": "thread"}
    return Application({**standard, **settings}, [make_module(code)], tmp_path)


def of_job(made: Application, job: str) -> dict[str, tuple[str, str]]:
    return {each.subject: (each.choice, each.reason) for each in made.conditions() if each.job == job}


@pytest.mark.parametrize(
    ("settings", "choice", "reason"),
    [
        ({}, "on demand", "no schedule is set"),
        ({"jobs.remind.triggers.fixed-rate": "5s"}, "every 5 s", "set (default given in code)"),
        (
            {"jobs.standard.triggers.fixed-delay": "5s"},
            "5 s after the end of a run",
            "set (standard (default given in code))",
        ),
        (
            {"jobs.remind.triggers.cron": "0 3 * * *", "jobs.remind.triggers.startup": True},
            "0 3 * * * (UTC), and at each start",
            "set (default given in code)",
        ),
        ({"jobs.remind.triggers.startup": True}, "at each start of a process", "set (default given in code)"),
        (
            {"jobs.remind.triggers.fixed-rate": "5s", "jobs.remind.enabled": False},
            "none",
            "its triggers are off (default given in code)",
        ),
    ],
)
def test_conditions_say_when_a_job_runs_and_where_that_is_set(make_module, tmp_path, settings, choice, reason):
    with application(make_module, tmp_path, **settings) as made:
        assert of_job(made, "remind")["triggers"] == (choice, reason)


def test_conditions_describe_the_transaction_of_a_job_and_the_place_of_its_history(make_module, tmp_path):
    in_database = ("sql", "with the progress, in the same database")
    with application(make_module, tmp_path, **{"jobs.clean.transaction": "run"}) as made:
        assert of_job(made, "remind")["transaction"] == ("page", "it has an input")
        assert of_job(made, "clean")["transaction"] == ("run", "set (default given in code)")
        assert of_job(made, "send")["transaction"] == (
            "page",
            "it asks for no transaction, and a page is recorded when it is done",
        )
        assert {of_job(made, job)["history"] for job in ("remind", "clean", "send")} == {in_database}
        assert not [each for each in made.conditions() if each.group and each.job]
    with application(make_module, tmp_path, **{"jobs.remind.transaction": "item"}) as made:
        assert of_job(made, "remind")["transaction"] == ("item", "set (default given in code)")
        assert of_job(made, "clean")["transaction"] == ("run", "it has no input")


def test_without_a_database_the_history_is_in_memory(make_module, tmp_path):
    with application(make_module, tmp_path, CODE_IN_MEMORY, **IN_MEMORY) as made:
        assert of_job(made, "remind")["history"] == (
            "in_memory",
            "there is no database: only this process knows its runs, and they are lost when it ends",
        )


@pytest.mark.parametrize("name", ["re.mind", "re mind", "re/mind", "re-mind"])
def test_a_variable_sets_the_events_of_a_job_whose_name_it_cannot_spell(make_module, tmp_path, monkeypatch, name):
    monkeypatch.setenv("OPENCQRS__JOBS__RE_MIND__TRIGGERS__EVENTS__TYPES", "order.*")
    monkeypatch.setenv("OPENCQRS__JOBS__RE_MIND__TRIGGERS__EVENTS__IDS", "subject")
    monkeypatch.setenv("OPENCQRS__EVENT_HANDLING__GROUPS__JOB_RE_MIND__SCHEDULE__INTERVAL", "7s")
    with application(make_module, tmp_path, CODE.replace('"remind"', f'"{name}"')) as made:
        choice, reason = of_job(made, name)["triggers.events"]
        assert (choice, reason.partition(" (")[0]) == (
            f"group job:{name}",
            "events of order.* start it, each for the id that is its subject",
        )
        assert {each.name: each.schedule.interval for each in made.groups}[f"job:{name}"] == 7
        assert "triggers.events" not in of_job(made, "clean")


def test_the_group_that_reads_the_events_of_a_job_is_named(make_module, tmp_path):
    triggers = {"jobs.remind.triggers.events": {"types": ["order.*", "x"], "ids": "data.order"}}
    with application(make_module, tmp_path, **triggers) as made:
        assert of_job(made, "remind")["triggers.events"] == (
            "group job:remind",
            "events of order.*, x start it, each for the id that is its data.order (default given in code)",
        )
        assert "triggers.events" not in of_job(made, "clean")
        assert "job:remind" in {each.group for each in made.conditions()}


def test_errors_of_jobs_are_undecided_conditions_and_raised_together_with_those_of_groups(make_module, tmp_path):
    settings = {"jobs.clean.exclusive-with": ["remnd"]}
    with application(make_module, tmp_path, WRONG, **settings) as made:
        undecided = [each for each in made.conditions() if each.error]
        assert {(each.group, each.job, each.subject) for each in undecided} == {
            ("group", "", "processing.batch-size"),
            ("", "remind", "transaction"),
            ("", "clean", "transaction"),
        }
        (clean,) = (each for each in undecided if each.job == "clean")
        assert isinstance(clean.error, JobError)
        assert str(clean) == "job clean: transaction = not decided: job 'clean' excludes 'remnd', which is not a job"
        with pytest.raises(AssemblyErrors) as raised:
            made.start()
    assert {error.code for error in raised.value.errors} == {each.error.code for each in undecided if each.error}
    assert any("remind" in error.where for error in raised.value.errors)


def test_a_start_without_jobs_does_not_check_them(make_module, tmp_path):
    code = WRONG.replace("event: Event, mailer: Mailer", "event: Event")
    with application(make_module, tmp_path, code) as made:
        with pytest.raises(ExplainedError):
            made.start()
        made.start(jobs=False)


def test_a_decision_about_a_job_names_it():
    assert str(Decision("", "history", "sql", "why", job="remind")) == "job remind: history = sql: why"

"""``opencqrs config`` as a person types it."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

from opencqrs_py.cli.main import main
from opencqrs_py.config.groups import SECTIONS
from opencqrs_py.config.keys import kebab

YAML = """
    opencqrs:
      event-handling:
        standard:
          retry: {max-attempts: 5, policy: fixed}
          fetch: {subject: /all}
        groups:
          books:
            retry: {max-attempts: ~, policy: ~, multiplier: ~}
            fetch: {subject: /books}
          v1.2: {}
"""


@pytest.fixture
def config(project, capsys):
    """Run the command in the project and return exit code, lines of the result, and the messages."""
    project.yaml(YAML)

    def run(*arguments, **environ):
        with pytest.raises(SystemExit) as ended:
            main(["config", "--project", str(project.folder), *arguments])
        seen = capsys.readouterr()
        return ended.value.code, [line.rstrip() for line in seen.out.splitlines()], seen.err

    return run


def test_with_origin_each_value_is_followed_by_the_overridden_ones(config, project):
    code, lines, _ = config("--group", "books", "--changed", "--origin", "--set", "spark.master=yarn")
    assert code == 0
    assert "\n".join(lines[2:]) == dedent("""\
        group books
          fetch.subject       /books               application.yaml:10:26
                         not  /all                 standard (application.yaml:6:24)
          retry.policy        exponential_backoff  built-in default (reset by application.yaml:9:42)
                         not  fixed                standard (application.yaml:5:40)
          retry.max-attempts  infinite             built-in default (reset by application.yaml:9:31)
                         not  5                    standard (application.yaml:5:29)""")


def test_without_origin_each_value_has_one_line(config):
    _, lines, _ = config("--group", "books", "--changed")
    assert [line.split()[0] for line in lines[3:]] == ["fetch.subject", "retry.policy", "retry.max-attempts"]


def test_changed_shows_values_reset_by_null_and_omits_those_null_did_not_change(config):
    _, lines, _ = config("--group", "books", "--changed")
    assert any("reset by application.yaml:9:31" in line for line in lines)
    assert not any("retry.multiplier" in line for line in lines)


def test_the_whole_output_is_the_application_and_then_each_group(config):
    code, lines, _ = config()
    assert [line for line in lines if line and not line.startswith(" ")][1:] == [
        "application",
        "group books",
        "group v1.2",
    ]
    application = lines[lines.index("application") : lines.index("group books")]
    assert not any("groups" in line for line in application)
    of_group = [line.split()[0] for line in lines[lines.index("group v1.2") + 1 :]]
    assert {name.split(".")[0] for name in of_group} == set(map(kebab, SECTIONS))
    assert "life-cycle.lease.duration" in of_group
    assert code == 0


def test_json_has_overridden_values_only_on_request(config):
    _, lines, _ = config("--group", "BOOKS", "--changed", "--format", "json")
    rows = json.loads("\n".join(lines))["groups"]["books"]
    assert rows[0] == {
        "path": "event-handling.groups.books.fetch.subject",
        "value": "/books",
        "origin": "application.yaml:10:26",
        "default": False,
    }
    _, lines, _ = config("--group", "books", "--changed", "--format", "json", "--origin")
    rows = json.loads("\n".join(lines))["groups"]["books"]
    assert rows[0]["lost"] == [
        {
            "path": "event-handling.standard.fetch.subject",
            "value": "/all",
            "origin": "standard (application.yaml:6:24)",
        }
    ]


def test_json_has_values_with_their_types_and_sources(config, project):
    project.write("application-prod.yaml", "opencqrs.spark.conf: {api.token: hunter2, x: 3}")
    project.write(
        "handlers.py", "from opencqrs_py import event_handling\n@event_handling('book')\ndef f(e: dict): ...\n"
    )
    _, lines, _ = config("--profile", "prod", "--format", "json")
    shown = json.loads("\n".join(lines))
    assert shown["files"] == [str(project.folder / name) for name in ("application.yaml", "application-prod.yaml")]
    assert shown["profiles"] == ["prod"]
    assert [(warning["code"], warning["fix"]) for warning in shown["warnings"]] == [
        ("OCQ-117", "did you mean book?"),
        ("OCQ-117", "groups with handlers: book"),
    ]
    assert list(shown["groups"]) == ["books", "v1.2", "book"]
    values = {row["path"]: row["value"] for row in shown["application"]}
    assert values["spark.allow-unauthenticated"] is False
    assert values["database.url"] is None
    assert values["profiles.active"] == ["prod"]
    assert (values["spark.conf.api.token"], values["spark.conf.x"]) == ("***", "3")
    books = {row["path"].removeprefix("event-handling.groups.books."): row["value"] for row in shown["groups"]["books"]}
    assert (books["life-cycle.partitions"], books["retry.multiplier"], books["fetch.recursive"]) == (1, 1.5, True)
    assert (books["retry.max-interval"], books["retry.max-attempts"]) == ("30s", "infinite")
    assert (books["retry.policy"], books["progress.tracking"]) == ("exponential_backoff", None)


def test_json_for_a_group_has_no_settings_of_the_application(config):
    _, lines, _ = config("--group", "books", "--format", "json")
    shown = json.loads("\n".join(lines))
    assert (shown["application"], list(shown["groups"])) == ([], ["books"])


@pytest.mark.parametrize(
    ("group", "says"), [("boks", "did you mean books?"), ("zzz", "known: books, v1.2")], ids=["near", "far"]
)
def test_an_unknown_group_is_a_usage_error(config, group, says):
    code, _, messages = config("--group", group)
    assert code == 2
    assert f"there is no group '{group}'; {says}" in messages


JOBS = """
    opencqrs:
      jobs:
        standard: {limit: 5, triggers.fixed-rate: 1h}
        books: {limit: 6, triggers: {cron: '@daily'}}
        v1.2: {}
      event-handling.groups.books.fetch.subject: /books
      http.token: hunter2
"""


def test_jobs_follow_the_groups_and_can_have_their_names(config, project):
    project.yaml(JOBS)
    code, lines, _ = config()
    assert [line for line in lines if line and not line.startswith(" ")][1:] == [
        "application",
        "group books",
        "job books",
        "job v1.2",
    ]
    application = lines[lines.index("application") : lines.index("group books")]
    assert [line.split() for line in application if "jobs" in line] == [
        ["jobs.standard.triggers.fixed-rate", "1h", "application.yaml:4:47"],
        ["jobs.standard.limit", "5", "application.yaml:4:23"],
    ]
    assert next(line.split()[1] for line in application if "http.token" in line) == "***"
    of_job = [line.split()[0] for line in lines[lines.index("job v1.2") + 1 :]]
    assert of_job[:2] == ["enabled", "triggers.startup"]
    assert "triggers.events.types" in of_job
    assert code == 0


def test_a_job_is_shown_alone_or_with_a_group(config, project):
    project.yaml(JOBS)
    _, lines, _ = config("--job", "Books", "--changed", "--origin")
    assert "\n".join(lines[2:]) == dedent("""\
        job books
          triggers.fixed-rate  null      replaced by triggers.cron (application.yaml:5:40)
                          not  1h        standard (application.yaml:4:47)
          triggers.cron        "@daily"  application.yaml:5:40
          limit                6         application.yaml:5:20
                          not  5         standard (application.yaml:4:23)""")
    _, lines, _ = config("--job", "V1.2", "--group", "books", "--changed", "--format", "json")
    shown = json.loads("\n".join(lines))
    assert (shown["application"], list(shown["groups"]), list(shown["jobs"])) == ([], ["books"], ["v1.2"])
    assert [(row["path"], row["value"]) for row in shown["jobs"]["v1.2"]] == [
        ("jobs[v1.2].triggers.fixed-rate", "1h"),
        ("jobs[v1.2].limit", 5),
    ]


@pytest.mark.parametrize(
    ("job", "says"),
    [("boks", "did you mean books?"), ("zzz", "known: books, v1.2"), ("standard", "known: books, v1.2")],
)
def test_an_unknown_job_is_a_usage_error(config, project, job, says):
    project.yaml(JOBS)
    code, _, messages = config("--job", job)
    assert code == 2
    assert f"there is no job '{job}'; {says}" in messages


def test_all_errors_are_reported_together_and_nothing_is_shown(config, project):
    project.write("config/application.yaml", "opencqrs: {spark: {mastr: x}, event-handling.standard.retry.jitter: 2}")
    code, lines, messages = config()
    assert (code, lines) == (2, [])
    assert messages.index("[OCQ-103]") < messages.index("[OCQ-114]") or "[OCQ-114]" in messages
    assert "did you mean spark.master?" in messages
    assert "config/application.yaml:1:20" in messages

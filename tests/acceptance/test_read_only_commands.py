"""The commands that only read."""

from __future__ import annotations

import json

import pytest


@pytest.mark.release
@pytest.mark.spark
def test_doctor_finds_no_problem_on_a_sound_machine(project):
    project.write_events(3)
    project.opencqrs("events", "import", "events.ndjson")
    seen = project.opencqrs("doctor")
    assert seen.code == 0, seen.out
    assert [line.split(":")[0] for line in seen.out.splitlines()] == [
        f"ok   {subject}"
        for subject in (
            "Python",
            "settings",
            "Java",
            "Spark workers",
            "event store",
            "read models' database",
            "handlers",
        )
    ]
    assert "3 events" in seen.out


def test_doctor_reports_a_problem_with_its_fix_and_checks_the_rest(project):
    project.write("handlers.py", 'from opencqrs_py import event_handling\n@event_handling("a")\ndef f(x): ...\n')
    seen = project.opencqrs(
        "doctor", "--format", "json", "--set", "database.url=sqlite:///away/read.db", SPARK_HOME="/away"
    )
    assert seen.code == 1
    findings = {finding["subject"]: finding for finding in seen.json}
    assert [subject for subject, finding in findings.items() if not finding["fine"]] == [
        "Spark workers",
        "read models' database",
        "handlers",
    ]
    assert "Spark did not start" in findings["Spark workers"]["found"]
    assert findings["Spark workers"]["fix"].startswith("unset SPARK_HOME: /away")
    assert "parameter 'x' has no annotation" in findings["handlers"]["found"]
    assert findings["handlers"]["fix"].startswith("annotate each parameter")
    assert "unable to open database file" in findings["read models' database"]["found"]


def test_events_are_listed_by_conditions_and_in_pages(project):
    project.write_events(20)
    project.opencqrs("events", "import", "events.ndjson")
    listed = project.opencqrs("events", "list", "--type", "library.book-returned.v1", "--after", "4", "--limit", "2")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["position", "7", "10"]
    below = project.opencqrs("events", "list", "--subject", "/books/isbn-3", "--format", "json").json
    assert [event["position"] for event in below] == [4, 11, 18]
    assert below[0]["data"] == {"isbn": "isbn-3"}


def test_control_characters_of_an_event_never_reach_a_terminal(project, event_line):
    project.write("events.ndjson", event_line(1, subject="/a\u001b[31m[bold]b"))
    project.opencqrs("events", "import", "events.ndjson")
    listed = project.opencqrs("events", "list").out
    assert "/a\\x1b[31m[bold]b" in listed
    assert "\u001b" not in listed


def test_a_compressed_file_and_standard_input_are_imported_too(project, event_line):
    import gzip  # noqa: PLC0415 only here

    (project.folder / "a.ndjson.gz").write_bytes(gzip.compress(f"{event_line(1)}\n\n{event_line(2)}\n".encode()))
    assert project.opencqrs("events", "import", "a.ndjson.gz").out == "imported 2 events\n"
    again = project.opencqrs("events", "import", "-", stdin=f"{event_line(2)}\n{event_line(3)}\n")
    assert again.out == "imported 1 event, skipped 1 (already stored)\n"
    assert [e["position"] for e in project.opencqrs("events", "list", "--format", "json").json] == [1, 2, 3]


def test_a_truncated_compressed_file_is_refused_as_a_whole(project, event_line):
    import gzip  # noqa: PLC0415 only here

    whole = gzip.compress("".join(f"{event_line(n)}\n" for n in range(500)).encode())
    (project.folder / "a.ndjson.gz").write_bytes(whole[: len(whole) // 2])
    refused = project.opencqrs("events", "import", "a.ndjson.gz")
    assert refused.code == 2
    assert "[OCQ-213] the file cannot be read to its end" in refused.err
    assert project.opencqrs("events", "list", "--format", "json").json == []


def test_conditions_show_each_choice_and_its_reason(project):
    told = project.opencqrs("conditions", "--set", "event-handling.groups.audit.progress.tracking=in-memory").out
    assert "catalog: progress.tracking = sql: there is exactly one database" in told
    assert "audit: progress.tracking = in_memory: set" in told
    assert "catalog: processing.batch-size = 1000: every handler asks for the progress transaction" in told
    rows = project.opencqrs("conditions", "--format", "json").json
    assert {row["group"] for row in rows} == {"", "audit", "catalog"}


def test_config_shows_each_value_with_its_origin(project):
    shown = project.opencqrs("config", "--group", "catalog", "--changed", OPENCQRS__SPARK__MASTER="local[1]")
    (heading, row) = shown.out.splitlines()[2:]
    assert heading == "group catalog"
    assert row.split() == ["life-cycle.partitions", "4", "application.yaml:8:42"]
    everything = project.opencqrs("config", "--format", "json", OPENCQRS__SPARK__MASTER="local[1]").json
    (master,) = [value for value in everything["application"] if value["path"] == "spark.master"]
    assert master["origin"] == "environment variable OPENCQRS__SPARK__MASTER"


def test_the_schema_for_editors_is_printed(project):
    assert "opencqrs" in json.loads(project.opencqrs("schema").out)["properties"]


def test_a_group_without_handler_is_warned_of_with_the_nearest_one(project):
    run = project.opencqrs("status", "--set", "event-handling.groups.catalogue.fetch.subject=/books")
    assert run.code == 0
    assert "event-handling.groups.catalogue is configured, but no handler belongs to that group" in run.err
    assert "did you mean catalog?" in run.err

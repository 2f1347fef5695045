"""Mistakes that people make, and the whole message that they get."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import make_url

THREAD = ("--set", "event-handling.standard.processing.engine=thread")
MARKERS = re.compile(r" +[~^]+")  # below a line of a traceback; which lines get them depends on the Python
FAILING_GROUPS = """\
opencqrs:
  event-store: {url: "sqlite:///events.db"}
  spark: {master: "local[2]", driver-handles: never}
  event-handling.groups:
    ordering: {life-cycle: {partitions: 2}, sequence: {resolution: per_data_field, data-field: reader}}
"""


def test_a_misspelt_setting_is_reported_with_its_place_and_the_nearest_one(project):
    project.write(
        "application.yaml",
        """\
        opencqrs:
          event-handling:
            standard:
              retry: {max-atempts: 5}
        """,
    )
    run = project.opencqrs("run")
    assert run.code == 2
    assert run.out == ""
    assert run.err.splitlines() == [
        "[OCQ-103] there is no setting event-handling.standard.retry.max-atempts",
        "  where: application.yaml:4:15",
        "  fix:   did you mean event-handling.standard.retry.max-attempts?",
    ]


def test_a_wrong_signature_is_reported_with_its_line_and_the_right_form(project):
    project.write(
        "handlers.py",
        """\
        from opencqrs_py import event_handling

        @event_handling("catalog")
        def lend(event: dict, conection) -> None: ...
        """,
    )
    run = project.opencqrs("run", *THREAD)
    assert (run.code, run.out) == (2, "")
    settings, first, where, fix = run.err.splitlines()
    assert settings == "settings: application.yaml; profiles: default"
    assert first == "[OCQ-201] parameter 'conection' has no annotation"
    assert where == f"  where: {project.folder}/handlers.py:3 (lend)"
    assert "def lend(event: BookLent, connection: Connection) -> None" in fix


def test_a_bad_line_is_reported_and_nothing_of_its_file_is_imported(project, event_line):
    project.write("events.ndjson", f'{event_line(1)}\n{{"id": "2",\n{event_line(3)}\n')
    run = project.opencqrs("events", "import", "events.ndjson")
    assert run.code == 2
    made, *lines = run.err.splitlines()
    assert made.startswith("created a new SQLite database: ")
    assert lines == [
        "[OCQ-230] not JSON (unexpected end of data at character 13 of the line)",
        "  where: events.ndjson:2",
        "  fix:   fix the line and import again; nothing of this file was imported",
    ]
    assert project.opencqrs("events", "list", "--format", "json").json == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("config", "--group", "catalogue"), "there is no group 'catalogue'; did you mean catalog?"),
        (("run", "--set", "event-store.url=nonsense", *THREAD), "event-store.url cannot be used: it is not a URL"),
        (("run", "--set", "event-handling.standard.retry.on-exhausted=perk", *THREAD), "nearest: park"),
        (
            (
                "run",
                "--set",
                "event-handling.standard.life-cycle.controller=leader-election",
                "--set",
                "event-handling.standard.progress.tracking=in-memory",
                *THREAD,
            ),
            "leases need progress in a database",
        ),
    ],
)
def test_wrong_use_ends_with_code_2_and_says_why(project, arguments, says):
    run = project.opencqrs(*arguments)
    assert run.code == 2
    assert says in run.err
    assert "Traceback" not in run.err
    assert "secret" not in run.err


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        pytest.param("postgresql", 'FATAL:  role "ada" does not exist', marks=pytest.mark.postgresql),
        pytest.param(
            "mariadb", "Access denied for user 'ada'@'localhost' (using password: YES)", marks=pytest.mark.mariadb
        ),
    ],
)
def test_a_refused_database_login_is_reported_without_the_password(project, fresh_url, kind, reason):
    url = make_url(fresh_url(kind)).set(username="ada", password="secret")
    store = f"event-store.url={url.render_as_string(hide_password=False)}"
    for arguments in (("events", "list"), ("events", "list", "--format", "json"), ("events", "tail"), ("status",)):
        run = project.opencqrs(*arguments, "--set", store, "--set", f"database.url={store.partition('=')[2]}")
        first, where, fix = run.err.splitlines()
        assert (run.code, run.out) == (2, "")
        assert first.startswith("[OCQ-304] the database cannot be used (")
        assert first.endswith(f"{reason})")
        assert where == f"  where: {url.render_as_string()}"
        assert fix.startswith(
            "  fix:   fix user, password or database in the URL (settings event-store.url and database.url"
        )
        assert "secret" not in run.err


def test_an_impossible_number_of_partitions_is_refused_and_nothing_is_changed(project):
    project.write_events(10)
    project.opencqrs("events", "import", "events.ndjson")
    assert project.opencqrs("run", "--until-caught-up", *THREAD).code == 0
    setting = "event-handling.groups.catalog.life-cycle.partitions"
    assert project.opencqrs("run", "--until-caught-up", *THREAD, "--set", f"{setting}=2").code == 0
    many = project.opencqrs("groups", "partitions", "catalog", "5000", *THREAD)
    assert many.code == 2
    assert "[OCQ-615] 5,000 is not a valid number of partitions: use 1 to 1,024" in many.err
    unknown = project.opencqrs("groups", "split", "catalog:3/4", *THREAD)
    assert unknown.code == 2
    assert "fix:   use one of catalog:0/2, catalog:1/2" in unknown.err
    (status,) = (
        one for one in project.opencqrs("status", *THREAD, "--format", "json").json if one["group"] == "catalog"
    )
    assert [one["partition"] for one in status["partitions"]] == ["0/2", "1/2"]


@pytest.mark.release(engine="spark")
def test_a_handler_error_shows_the_handlers_own_lines_the_event_and_what_happens_next(project, engine, event_line):
    project.write(
        "handlers.py",
        """\
        from opencqrs_py import event_handling

        def deeper(number):
            raise ValueError(f"no {number}")

        @event_handling("catalog", types=["library.*"])
        def lend(event: dict) -> None:
            deeper(event["isbn"])
        """,
    )
    project.write("events.ndjson", event_line(1))
    project.opencqrs("events", "import", "events.ndjson")
    retry = ("--set", "event-handling.standard.retry.policy=none", "--set", engine)
    run = project.opencqrs("run", "--until-caught-up", *retry)
    partition = next(line for line in run.err.splitlines() if "failed on attempt" in line).split("]")[0]
    printed = [line for line in run.err.splitlines()[2:] if "lag" not in line and "starting Spark" not in line]
    assert [line for line in printed if not MARKERS.fullmatch(line)] == [
        f"{partition}] event 1 at position 1 (library.book-lent.v1, /books/isbn-1) failed on attempt 1 "
        "(ValueError: no isbn-1); attempts exhausted: the event is skipped",
        "Traceback (most recent call last):",
        f'  File "{project.folder}/handlers.py", line 8, in lend',
        '    deeper(event["isbn"])',
        f'  File "{project.folder}/handlers.py", line 4, in deeper',
        '    raise ValueError(f"no {number}")',
        "ValueError: no isbn-1",
        f"1 event skipped in this run: opencqrs events skipped {' '.join(retry)}",
    ]
    assert run.code == 3


@pytest.mark.spark
@pytest.mark.release  # unit/engines/spark/test_frames.py
def test_an_error_of_spark_is_shown_once_and_without_lines_of_java(project, event_line, java):
    project.write(
        "handlers.py",
        """\
        from opencqrs_py import dataframe_handler
        from pyspark.sql import DataFrame

        @dataframe_handler("popular", types=["library.*"])
        def lent(loans: DataFrame) -> None:
            for broken in (lambda: loans.select("isbm"), lambda: loans.sparkSession.sql("SELECT isbm")):
                try:
                    broken()
                except Exception:
                    continue
            loans.select("isbn")
        """,
    )
    project.write("events.ndjson", event_line(1))
    project.opencqrs("events", "import", "events.ndjson")
    settings = ("retry.policy=none", "retry.on-exhausted=stop", "processing.engine=spark")
    arguments = (word for each in settings for word in ("--set", f"event-handling.groups.popular.{each}"))
    run = project.opencqrs("run", "--until-caught-up", *arguments, **java)
    assert run.code == 1
    assert len([line for line in run.err.splitlines() if "failed on attempt 1 (AnalysisException" in line]) == 1
    assert "isbm" not in run.err
    assert "java." not in run.err


@pytest.mark.release(engine="spark")
def test_stop_on_exhaustion_ends_the_run_with_code_1_and_the_status_shows_why(project, engine, event_line):
    project.write(
        "handlers.py",
        """\
        from opencqrs_py import NonTransientError, event_handling

        @event_handling("catalog", types=["library.*"])
        def lend(event: dict) -> None:
            raise NonTransientError("never")
        """,
    )
    project.write("events.ndjson", event_line(1))
    project.opencqrs("events", "import", "events.ndjson")
    run = project.opencqrs("run", "--until-caught-up", "--set", engine)
    assert run.code == 1
    assert "the partition has failed; next attempt in 30 s" in run.err
    (group,) = project.opencqrs("status", "--format", "json").json
    failed = [p for p in group["partitions"] if p["state"] == "failed"]
    assert [p["error"] for p in failed] == [
        "NonTransientError: never - event 1 at position 1 (library.book-lent.v1, /books/isbn-1)"
    ]


@pytest.mark.release(engine="spark")
def test_a_partition_error_has_its_code_in_the_run_and_in_the_status_after_it(project, engine, event_line):
    project.write(
        "handlers.py",
        """\
        from dataclasses import dataclass
        from opencqrs_py import event_handling, event_type
        from sqlalchemy import Connection

        @event_type("library.book-lent.v1")
        @dataclass(frozen=True)
        class BookLent:
            reader: str

        @event_handling("decoding")
        def lend(event: BookLent) -> None: ...

        @event_handling("ending", types=["library.*"])
        def end(event: dict, connection: Connection) -> None:
            connection.commit()

        @event_handling("ordering", types=["library.*"])
        def order(event: dict) -> None: ...
        """,
    )
    project.write("application.yaml", FAILING_GROUPS)
    project.write("events.ndjson", event_line(1))
    project.opencqrs("events", "import", "events.ndjson")
    run = project.opencqrs("run", "--until-caught-up", "--set", engine)
    assert run.code == 1
    expected = {"decoding": "[OCQ-211] Event", "ending": "[OCQ-228] Transaction", "ordering": "[OCQ-214] Event"}
    for group, error in expected.items():
        assert [line for line in run.err.splitlines() if line.startswith(f"[{group} 0/") and f"({error}" in line]
    shown = {group["group"]: group["partitions"][0] for group in project.opencqrs("status", "--format", "json").json}
    assert {group: shown[group]["error"][: len(error)] for group, error in expected.items()} == expected
    recorded = {group: partition["failure"]["last_error"] for group, partition in shown.items() if partition["failure"]}
    assert recorded.keys() >= expected.keys()
    assert all(error.startswith(expected[group]) for group, error in recorded.items())
    assert {shown[group]["last_error"]["event_id"] for group in expected} == {"1"}


@pytest.mark.release(engine="spark")
def test_a_run_of_one_group_shows_no_other(project, engine):
    project.write_events(10)
    project.opencqrs("events", "import", "events.ndjson")
    started = []
    for arguments in ((), ("--format", "json")):
        run = project.opencqrs("run", "--until-caught-up", "--group", "audit", "--set", engine, *arguments)
        assert run.code == 0
        assert "audit" in run.out
        assert "catalog" not in run.out + run.err
        started.append("starting Spark (local[2])" in run.err)
    assert started == ["spark" in engine, False], "the second run has nothing to do"


def test_an_error_in_on_start_shows_its_own_lines(project):
    project.write(
        "handlers.py",
        """\
        from opencqrs_py import event_handling, on_start

        @on_start("catalog")
        def prepare() -> None:
            raise LookupError("no table")

        @event_handling("catalog")
        def lend(event: dict) -> None: ...
        """,
    )
    run = project.opencqrs("run", *THREAD)
    assert run.code == 2
    assert "@on_start of group 'catalog' raised LookupError: no table" in run.err
    assert f'File "{project.folder}/handlers.py", line 5, in prepare' in run.err
    assert "opencqrs_py/" not in run.err

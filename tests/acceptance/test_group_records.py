"""What a person sees of the record of a group: where it began, lost progress, changed handlers and sequences."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text

CHANGED = (
    "handlers of group 'audit' changed since position {}: the read model up to there was built by the others; "
    "opencqrs groups rebuild audit builds it again beside that, opencqrs groups reset audit --to tail handles all "
    "events again"
)
LOST = (
    "restore the rows from a backup; or opencqrs groups reset {0} --to tail to handle all events again (--to head or "
    "--to-position N to continue elsewhere); or set progress.on-lost: initial to begin again at fetch.initial-position"
)
THREAD = "event-handling.standard.processing.engine=thread"
ON_CHANGED = "event-handling.standard.processing.on-changed-handlers"


@pytest.fixture
def library(project: Any) -> Any:
    """A project with 20 events."""
    add_events(project, 20)
    return project


def add_events(project: Any, count: int) -> None:
    """Have so many events in all."""
    project.write_events(count)
    project.opencqrs("events", "import", "events.ndjson")


def run(project: Any, *settings: str, code: int = 0) -> str:
    """Run until all events are handled, and return the output without the lines about the settings read."""
    chosen = [word for setting in settings for word in ("--set", setting)]
    ran = project.opencqrs("run", "--until-caught-up", *chosen)
    assert ran.code == code, ran.err
    ignored = ("settings: ", "created a new, empty SQLite database", "created new, empty tables", "starting Spark")
    lines = (line for line in ran.err.splitlines() if not line.startswith(ignored))
    return "\n".join(line for line in lines if ", lag " not in line)  # which slow runs say now and then


def edit(project: Any, old: str, new: str) -> None:
    handlers = (project.folder / "handlers.py").read_text()
    assert old in handlers
    project.write("handlers.py", handlers.replace(old, new))


def statuses(project: Any, *arguments: str) -> dict[str, Any]:
    found = project.opencqrs("status", "--format", "json", *arguments).json
    return {status["group"]: status for status in found}


def execute(project: Any, *statements: str, url: str = "") -> list[Any]:
    """Execute statements in the database of the progress, and return the rows of the last one."""
    engine = create_engine(url or f"sqlite:///{project.folder}/read.db")
    with engine.begin() as connection:
        results = [connection.execute(text(statement)) for statement in statements]
        rows = results[-1].all() if results[-1].returns_rows else []
    engine.dispose()
    return [tuple(row) for row in rows]


@pytest.mark.release(engine="spark")
def test_changed_handlers_are_logged_once_and_shown_permanently(library: Any, engine: str) -> None:
    assert run(library, engine) == ""
    edit(library, "VALUES (:id, :position)", "VALUES (:id, :position + 0)")
    add_events(library, 30)
    assert run(library, engine) == CHANGED.format(20)
    edit(library, "@event_handling", "# by type\n@event_handling")
    add_events(library, 35)
    assert run(library, engine) == ""
    assert [
        (name, one["handlers_changed"] and one["handlers_changed"]["position"])
        for name, one in statuses(library).items()
    ] == [
        ("catalog", None),
        ("audit", 20),
    ]
    details = library.opencqrs("status", "--details").out
    assert "[audit] handlers changed since position 20, first seen at " in details
    assert "[catalog] handlers" not in details
    said = {(each["group"], each["subject"]): each for each in library.opencqrs("conditions", "--format", "json").json}
    assert said["audit", "handlers changed"]["choice"] == "position 20"
    assert said["audit", "handlers changed"]["reason"].startswith(CHANGED.format(20))
    assert ("catalog", "handlers changed") not in said


@pytest.mark.release(engine="spark")
def test_changed_handlers_are_refused_if_so_configured(library: Any, engine: str) -> None:
    run(library, engine)
    edit(library, "VALUES (:id, :position)", "VALUES (:id, :position + 0)")
    add_events(library, 30)
    refused = run(library, engine, f"{ON_CHANGED}=refuse", code=2)
    changed = "[OCQ-318] handlers of group 'audit' changed since position 20, up to which other handlers built"
    assert refused.startswith(changed)
    shown = library.opencqrs("conditions", "--set", f"{ON_CHANGED}=refuse")
    assert shown.code == 2
    assert "[OCQ-318] handlers of group 'audit'" in shown.err
    assert execute(library, "SELECT count(*) FROM audit") == [(20,)]
    own = "event-handling.groups[audit].processing.on-changed-handlers=warn"
    assert run(library, engine, f"{ON_CHANGED}=refuse", own) == CHANGED.format(20)
    assert run(library, engine, f"{ON_CHANGED}=refuse") == ""
    assert execute(library, "SELECT count(*) FROM audit") == [(30,)]


@pytest.mark.release  # unit/assembly/code/test_fingerprint.py
def test_changes_of_helpers_and_constants_are_noticed(library: Any) -> None:
    library.write("amounts.py", "BONUS = 0\n\n\ndef with_bonus(position):\n    return position + BONUS\n")
    edit(library, "from sqlalchemy", "from amounts import with_bonus\nfrom sqlalchemy")
    edit(library, '"position": raw.position', '"position": with_bonus(raw.position)')
    run(library, THREAD)
    library.write("amounts.py", "BONUS = 0  # none\n\n\ndef with_bonus(position):\n    return position + BONUS\n")
    assert run(library, THREAD) == ""
    library.write("amounts.py", "BONUS = 1\n\n\ndef with_bonus(position):\n    return position + BONUS\n")
    assert run(library, THREAD, f"{ON_CHANGED}=ignore") == ""
    library.write("amounts.py", "BONUS = 1\n\n\ndef with_bonus(position):\n    return position - BONUS\n")
    assert run(library, THREAD) == CHANGED.format(20)


@pytest.mark.release(engine="spark")
def test_a_corrected_subject_is_logged_once_and_shown_permanently(library: Any, engine: str) -> None:
    subject = "event-handling.groups.audit.fetch.subject={}".format
    run(library, engine, subject("/books"))
    said = run(library, engine, subject("/"))
    assert said.startswith("group 'audit' selects other events since position 20: fetch.subject was /books and is /")
    assert run(library, engine, subject("/")) == ""
    conditions = library.opencqrs("conditions", "--format", "json", "--set", subject("/")).json
    shown = {(each["group"], each["subject"]): each["reason"] for each in conditions}
    assert shown["audit", "selection changed"] == said
    assert ("catalog", "selection changed") not in shown
    library.opencqrs("groups", "reset", "audit", "--to", "tail", "--set", subject("/"))
    conditions = library.opencqrs("conditions", "--format", "json", "--set", subject("/")).json
    assert ("audit", "selection changed") not in {(each["group"], each["subject"]) for each in conditions}


OF_A_CLASS = """

class Lent(BaseModel):
    id: str = ""


@event_handling("classes")
def see(event: Lent) -> None:
    pass
"""


@pytest.mark.release(engine="spark")
def test_a_type_mapped_too_late_is_logged_once_and_shown_permanently(library: Any, engine: str) -> None:
    handlers = (library.folder / "handlers.py").read_text()
    library.write("handlers.py", f"from pydantic import BaseModel\n{handlers}{OF_A_CLASS}")
    returned, lent = (f"events.types[library.book-{type_}.v1]=handlers:Lent" for type_ in ("returned", "lent"))
    run(library, engine, returned)
    said = run(library, engine, returned, lent)
    assert said.startswith(
        "group 'classes' selects other events since position 20: events.types was {library.book-returned.v1: Lent} and "
        "is {library.book-lent.v1: Lent, library.book-returned.v1: Lent}. Events up to there are not read again"
    )
    assert run(library, engine, returned, lent) == ""
    conditions = library.opencqrs("conditions", "--format", "json", "--set", returned, "--set", lent).json
    shown = {each["group"]: each["reason"] for each in conditions if each["subject"] == "selection changed"}
    assert shown == {"classes": said}


def test_a_renamed_group_is_warned_of_when_it_begins(library: Any) -> None:
    run(library, THREAD)
    edit(library, '"audit"', '"audits"')
    execute(library, "DELETE FROM audit")  # else the handler fails for each event that it gets again
    assert run(library, THREAD).startswith(
        "group 'audits' is new, and group 'audit' has progress but no handler here. If it was renamed"
    )
    assert run(library, THREAD) == "groups with progress and without a handler here: audit"


def test_groups_without_a_handler_are_named(library: Any) -> None:
    run(library, THREAD)
    edit(library, '"audit"', '"figures"')
    execute(library, "DELETE FROM audit")  # as above
    assert run(library, THREAD) == "groups with progress and without a handler here: audit"
    edit(library, '"figures"', '"audit"')
    assert run(library, THREAD) == "groups with progress and without a handler here: figures"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def url(request: pytest.FixtureRequest, library: Any) -> str:
    """The database of the progress."""
    if request.param == "sqlite":
        return f"sqlite:///{library.folder}/read.db"
    found: str = request.getfixturevalue("fresh_url")("postgresql")
    settings = (library.folder / "application.yaml").read_text()
    library.write("application.yaml", settings.replace("sqlite:///read.db", found))
    return found


@pytest.mark.release(engine="spark")
@pytest.mark.release(condition=" AND residue IN (1, 3)")
@pytest.mark.release(url="postgresql")  # contract/test_group_records.py
@pytest.mark.parametrize(
    ("condition", "which"),
    [("", "all progress"), (" AND residue IN (1, 3)", "the progress of partition 1/4, 3/4")],
)
def test_lost_progress_is_refused_and_begins_again_if_so_configured(
    library: Any, engine: str, url: str, condition: str, which: str
) -> None:
    run(library, engine)
    (counted,) = execute(library, "SELECT sum(n) FROM lent", url=url)[0]
    execute(library, f"DELETE FROM opencqrs_progress WHERE group_name = 'catalog'{condition}", url=url)
    refused = run(library, engine, code=2)
    assert refused.splitlines() == [
        f"[OCQ-317] group 'catalog' has begun, but {which} is gone",
        "  where: table opencqrs_progress",
        f"  fix:   {LOST.format('catalog')}",
    ]
    assert f"catalog: progress = not decided: group 'catalog' has begun, but {which} is gone" in (
        library.opencqrs("conditions").out
    )
    said = run(library, engine, "event-handling.groups[catalog].progress.on-lost=initial")
    assert "is gone: it begins again after position 0" in said
    (again,) = execute(library, "SELECT sum(n) FROM lent", url=url)[0]
    assert counted < again <= 2 * counted
    assert (again == 2 * counted) is (condition == "")
    assert run(library, engine) == ""


def test_a_restored_backup_continues_where_it_was(library: Any) -> None:
    run(library, THREAD)
    shutil.copy(library.folder / "read.db", library.folder / "backup.db")
    add_events(library, 30)
    run(library, THREAD)
    shutil.copy(library.folder / "backup.db", library.folder / "read.db")
    assert run(library, THREAD) == ""
    assert execute(library, "SELECT count(*) FROM audit") == [(30,)]


def test_progress_tables_missing_from_a_restored_backup_are_noticed(library: Any) -> None:
    run(library, THREAD)
    execute(
        library, "DROP TABLE opencqrs_progress", "DELETE FROM opencqrs_schema WHERE table_name = 'opencqrs_progress'"
    )
    assert "has begun, but all progress is gone" in run(library, THREAD, code=2)


@pytest.mark.release  # contract/test_sql_versions.py
def test_a_database_of_an_earlier_version_gets_its_records_silently(library: Any) -> None:
    run(library, THREAD)
    execute(library, "DROP TABLE opencqrs_groups", "DELETE FROM opencqrs_schema WHERE table_name = 'opencqrs_groups'")
    assert {status["began"] for status in statuses(library).values()} == {None}
    edit(library, "VALUES (:id, :position)", "VALUES (:id, :position + 0)")
    add_events(library, 30)
    assert run(library, THREAD, "event-handling.standard.fetch.initial-position=head") == ""
    found = statuses(library)
    assert all((one["began"]["setting"], one["began"]["position"]) == (None, None) for one in found.values())
    assert execute(library, "SELECT count(*) FROM audit") == [(30,)]
    assert "[audit] began under an earlier version: where is not known" in library.opencqrs("status", "--details").out
    edit(library, "VALUES (:id, :position + 0)", "VALUES (:id, :position + 1)")
    assert run(library, THREAD) == CHANGED.format(30)


def test_the_documented_way_to_begin_again_works(library: Any) -> None:
    run(library, THREAD)
    tables = ("opencqrs_progress", "opencqrs_groups", "opencqrs_skipped", "opencqrs_inbox")
    execute(library, "DROP TABLE audit", *(f"DELETE FROM {table} WHERE group_name = 'audit'" for table in tables))
    assert run(library, THREAD) == ""
    assert execute(library, "SELECT count(*) FROM audit") == [(20,)]


def test_a_group_starts_with_events_from_before_its_first_start(project: Any, event_line: Any) -> None:
    now = datetime.now(UTC)
    ages = [timedelta(days=8), timedelta(days=7, minutes=10), timedelta(days=7, minutes=-10), timedelta(0)]
    lines = [event_line(n, time=(now - age).isoformat()) for n, age in enumerate(ages)]
    project.write("events.ndjson", "\n".join(lines))
    project.opencqrs("events", "import", "events.ndjson")
    week = "event-handling.standard.fetch.initial-position=-P7D"
    assert run(project, THREAD, week) == ""
    assert execute(project, "SELECT id FROM audit ORDER BY position") == [("2",), ("3",)]
    began = statuses(project)["audit"]["began"]
    assert (began["setting"], began["position"]) == ("-P7D", 2)
    assert f"[audit] began at -P7D (position 2) at {began['at']}" in project.opencqrs("status", "--details").out
    assert sorted(run(project, THREAD).splitlines()) == [
        f"fetch.initial-position of group '{group}' is tail, but the group began at -P7D (position 2): the setting has "
        "no effect"
        for group in ("audit", "catalog")
    ]
    assert execute(project, "SELECT count(*) FROM audit") == [(2,)]
    shown = project.opencqrs("conditions").out
    assert "audit: fetch.initial-position = -P7D: fetch.initial-position of group 'audit' is tail, but" in shown


def test_partitions_claimed_later_start_where_their_group_began(project: Any) -> None:
    settings = (
        "event-handling.standard.processing.engine=thread",
        "event-handling.standard.fetch.initial-position=head",
    )
    add_events(project, 10)
    assert run(project, *settings) == ""
    execute(project, "DELETE FROM opencqrs_progress WHERE group_name = 'catalog' AND residue > 0")
    add_events(project, 40)
    said = run(project, *settings, "event-handling.standard.progress.on-lost=initial")
    assert said == "progress of group 'catalog' partition 1/4, 2/4, 3/4 is gone: it begins again after position 10"
    handled = sum(1 for number in range(10, 40) if number % 3)
    assert execute(project, "SELECT sum(n) FROM lent") == [(handled,)]


def test_a_change_of_sequencing_in_a_group_with_partitions_is_refused(library: Any) -> None:
    run(library, THREAD)
    other = "event-handling.standard.sequence.resolution=no_sequence"
    refused = run(library, THREAD, other, code=2)
    assert refused.splitlines()[0] == (
        "[OCQ-319] group 'catalog' sequences its events differently than before, and it has 4 partitions: order "
        "would be lost"
    )
    assert (
        run(library, THREAD, other, "event-handling.groups[catalog].sequence.resolution=per_second_level_subject") == ""
    )
    assert run(library, THREAD) == ""


@pytest.mark.release(url="postgresql")
@pytest.mark.release(condition=" AND residue IN (1, 3)")
@pytest.mark.parametrize("condition", ["", " AND residue IN (1, 3)"])
def test_a_reset_recovers_from_lost_progress(library: Any, url: str, condition: str) -> None:
    run(library, THREAD)
    execute(
        library, f"DELETE FROM opencqrs_progress WHERE group_name = 'catalog'{condition}", "DELETE FROM lent", url=url
    )
    reset = library.opencqrs("groups", "reset", "catalog", "--to", "tail")
    assert (reset.code, "catalog was reset to position 0 of 20" in reset.err) == (0, True)
    assert ("handles again" in run(library, THREAD)) is bool(condition)
    assert execute(library, "SELECT sum(n) FROM lent", url=url) == [(sum(1 for number in range(20) if number % 3),)]


@pytest.mark.release(url="postgresql")
def test_a_reset_allows_a_change_of_sequencing(library: Any, url: str) -> None:
    run(library, THREAD)
    other = "event-handling.standard.sequence.resolution=no_sequence"
    assert "OCQ-319" in run(library, THREAD, other, code=2)
    reset = library.opencqrs("groups", "reset", "catalog", "--to-position", "20", "--set", other)
    assert reset.code == 0
    add_events(library, 30)
    assert run(library, THREAD, other) == ""
    assert execute(library, "SELECT sum(n) FROM lent", url=url) == [(sum(1 for number in range(30) if number % 3),)]


def test_after_a_reset_to_the_start_changed_handlers_are_not_logged(library: Any) -> None:
    run(library, THREAD)
    edit(library, "VALUES (:id, :position)", "VALUES (:id, :position + 0)")
    execute(library, "DELETE FROM audit")
    assert library.opencqrs("groups", "reset", "audit", "--to", "tail").code == 0
    assert run(library, THREAD).splitlines() == [
        "[audit 0/1] handles again what was handled up to 20",
        "[audit 0/1] has handled again all up to 20",
    ]
    assert statuses(library)["audit"]["handlers_changed"] is None

"""A missing database and a folder without handlers, as after a mistake in a name, give a message."""

from __future__ import annotations

import pytest

THREAD = ("--set", "event-handling.standard.processing.engine=thread")


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "command", [("events", "skipped"), ("inbox", "list"), ("inbox", "list", "--status", "skipped"), ("jobs", "runs")]
)
@pytest.mark.few
def test_a_missing_database_is_named_when_its_records_are_requested(project, command, form):
    asked = (*command, "--format", form, *THREAD)
    missing = project.opencqrs(*asked, "--set", "database.url=sqlite:///reed.db")
    assert missing.code == 0
    assert missing.out == ("[]\n" if form == "json" else "")
    assert missing.err.startswith(f"the database does not exist: {project.folder / 'reed.db'} (database.url, argument ")
    assert project.opencqrs("run", "--until-caught-up", *THREAD).code == 0
    assert "does not exist" not in project.opencqrs(*asked).err


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("command", [("events", "skipped"), ("inbox", "list"), ("jobs", "runs")])
@pytest.mark.few
def test_the_missing_database_of_a_wrong_folder_is_named(project, command, form):
    project.write("application.yaml", "")
    missing = project.opencqrs(*command, "--format", form)
    file = project.folder / "opencqrs.db"
    said = f"the database does not exist: {file} (event-store.url, built-in default); it records nothing"
    assert (missing.code, missing.err.splitlines()[0]) == (0, said)


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("status", "--format", "json"),
        ("status", "--check"),
        ("health",),
        ("groups", "list"),
        ("groups", "reset", "catalog", "--to", "tail"),
        ("await", "catalog", "--head"),
    ],
    ids=" ".join,
)
@pytest.mark.few
def test_a_command_names_each_database_that_it_has_created(project, command):
    folder, lines = project.folder, []
    for name, setting in (("events.db", "event-store.url"), ("read.db", "database.url")):
        lines.append(f"created a new, empty SQLite database: {folder / name} ({setting}, application.yaml:")
    first, second = (project.opencqrs(*command, *THREAD).err for _ in range(2))
    created = [line for line in first.splitlines() if line.startswith("created ")]
    assert [line.rpartition(":")[0].rpartition(":")[0] + ":" for line in created] == lines
    assert "created" not in second


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("command", [("status",), ("groups", "list")])
@pytest.mark.few
def test_a_folder_without_handlers_is_reported(project, command, form):
    said = f"no handlers were found in {project.folder}"
    assert said not in project.opencqrs(*command, "--format", form).err
    (project.folder / "handlers.py").unlink()
    seen = project.opencqrs(*command, "--format", form)
    assert (seen.code, seen.err.splitlines()) == (0, [said])
    project.write("work.py", "from opencqrs_py import job\n\n@job('tidy')\ndef tidy() -> None: ...\n")
    assert said not in project.opencqrs(*command, "--format", form).err


def test_a_skip_filter_without_a_match_is_reported_as_such(project):
    unmatched = project.opencqrs("inbox", "list", "--status", "skipped", "--event", "7", "--group", "catalog")
    assert unmatched.err.splitlines()[-1] == "no event that was skipped matches group catalog, event 7"
    of_group = project.opencqrs("events", "skipped", "--group", "catalog")
    assert of_group.err.splitlines()[-1] == "no events of group catalog were skipped"

"""Reading records from a missing database, as after a mistake in its name, gives a message."""

from __future__ import annotations

import pytest

THREAD = ("--set", "event-handling.standard.processing.engine=thread")


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "command", [("events", "skipped"), ("inbox", "list"), ("inbox", "list", "--status", "skipped"), ("jobs", "runs")]
)
def test_a_missing_database_is_named_when_its_records_are_requested(project, command, form):
    asked = (*command, "--format", form, *THREAD)
    missing = project.opencqrs(*asked, "--set", "database.url=sqlite:///reed.db")
    assert missing.code == 0
    assert missing.out == ("[]\n" if form == "json" else "")
    assert missing.err.startswith(f"the database does not exist: {project.folder / 'reed.db'} (database.url, argument ")
    assert project.opencqrs("run", "--until-caught-up", *THREAD).code == 0
    assert "not there" not in project.opencqrs(*asked).err


def test_a_skip_filter_without_a_match_is_reported_as_such(project):
    unmatched = project.opencqrs("inbox", "list", "--status", "skipped", "--event", "7", "--group", "catalog")
    assert unmatched.err.splitlines()[-1] == "no event that was skipped matches group catalog, event 7"
    of_group = project.opencqrs("events", "skipped", "--group", "catalog")
    assert of_group.err.splitlines()[-1] == "no events of group catalog were skipped"

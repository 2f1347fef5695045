"""What ``opencqrs run`` says of the settings that it uses, and of databases that it makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.output import without_times

HANDLERS = """
from opencqrs_py import Event, event_handling


@event_handling("all")
def on(event: Event) -> None:
    pass
"""


def run(project: Path, *arguments: str, **environ: str) -> list[str]:
    """Run the project and return the lines of standard error."""
    (project / "handlers.py").write_text(HANDLERS)
    command = [sys.executable, "-m", "opencqrs_py", "run", "--until-caught-up", *arguments]
    engine = {"OPENCQRS__EVENT_HANDLING__STANDARD__PROCESSING__ENGINE": "thread"}
    done = subprocess.run(
        command, cwd=project, env={**os.environ, **engine, **environ}, check=True, capture_output=True, text=True
    )
    return without_times(done.stderr).splitlines()


def test_a_run_names_its_files_and_profiles_and_the_database_that_it_makes(tmp_path):
    (tmp_path / "application.yaml").write_text("opencqrs.profiles.active: [prod]")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "application-prod.yaml").write_text("opencqrs.event-store.url: sqlite:///log.db")
    (tmp_path / ".env").touch()
    used = "settings: .env, application.yaml, config/application-prod.yaml; profiles: prod"
    place = "event-store.url, config/application-prod.yaml:1:27"
    assert run(tmp_path) == [used, f"made a new, empty SQLite database: {tmp_path}/log.db ({place})"]
    assert run(tmp_path) == [used]


def test_without_files_a_run_says_so_and_names_the_database_that_it_makes_by_default(tmp_path):
    assert run(tmp_path) == [
        f"settings: no file in {tmp_path}; profiles: default",
        f"made a new, empty SQLite database: {tmp_path}/opencqrs.db (event-store.url, built-in default)",
    ]


def test_the_database_of_read_models_is_named_as_well(tmp_path):
    lines = run(tmp_path, "--set", "database.url=sqlite:///models.db", "--set", "event-store.url=sqlite:///log.db")
    assert sorted(line.split(":", 1)[1] for line in lines[1:]) == [
        f" {tmp_path}/log.db (event-store.url, argument --set event-store.url)",
        f" {tmp_path}/models.db (database.url, argument --set database.url)",
    ]


def test_with_json_nothing_is_said(tmp_path):
    assert run(tmp_path, "--format", "json") == []


def test_a_broken_link_ends_the_run_before_any_database_is_made(tmp_path):
    (tmp_path / "application.yaml").symlink_to("..data/application.yaml")
    with pytest.raises(subprocess.CalledProcessError) as ended:
        run(tmp_path)
    assert ended.value.returncode == 2
    assert ended.value.stderr.startswith("[OCQ-101] the file cannot be read: it is a link to ..data/application.yaml")
    assert not (tmp_path / "opencqrs.db").exists()

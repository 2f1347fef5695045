"""What ``opencqrs run`` says of the settings that it uses, and of databases that it makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import make_url
from support.output import without_times
from support.zygote import Zygote

HANDLERS = """
from opencqrs_py import Event, event_handling


@event_handling("all")
def on(event: Event) -> None:
    pass
"""


@pytest.fixture
def run(tmp_path: Path, zygote: Zygote) -> Callable[..., list[str]]:
    """Runs the project and returns the lines of standard error."""

    def run(*arguments: str, code: int = 0) -> list[str]:
        (tmp_path / "handlers.py").write_text(HANDLERS)
        engine = {"OPENCQRS__EVENT_HANDLING__STANDARD__PROCESSING__ENGINE": "thread"}
        ran = zygote.opencqrs(tmp_path, ["run", "--until-caught-up", *arguments], engine)
        assert ran.code == code
        return without_times(ran.err).splitlines()

    return run


def test_a_run_names_its_files_and_profiles_and_the_database_it_creates(tmp_path, run):
    (tmp_path / "application.yaml").write_text("opencqrs.profiles.active: [prod]")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "application-prod.yaml").write_text("opencqrs.event-store.url: sqlite:///log.db")
    (tmp_path / ".env").touch()
    used = "settings: .env, application.yaml, config/application-prod.yaml; profiles: prod"
    place = "event-store.url, config/application-prod.yaml:1:27"
    assert run() == [used, f"created a new, empty SQLite database: {tmp_path}/log.db ({place})"]
    assert run() == [used]


def test_without_files_a_run_says_so_and_names_the_default_database_it_creates(tmp_path, run):
    assert run() == [
        f"settings: no file in {tmp_path}; profiles: default",
        f"created a new, empty SQLite database: {tmp_path}/opencqrs.db (event-store.url, built-in default)",
    ]


def test_the_database_of_read_models_is_named_too(tmp_path, run):
    lines = run("--set", "database.url=sqlite:///models.db", "--set", "event-store.url=sqlite:///log.db")
    assert sorted(line.split(":", 1)[1] for line in lines[1:]) == [
        f" {tmp_path}/log.db (event-store.url, argument --set event-store.url)",
        f" {tmp_path}/models.db (database.url, argument --set database.url)",
    ]


@pytest.mark.release  # as an application reports them
@pytest.mark.postgresql
def test_a_run_also_names_a_server_database_in_which_it_creates_tables(tmp_path, run, fresh_url):
    url = fresh_url("postgresql")
    (tmp_path / "application.yaml").write_text(f"opencqrs.event-store.url: {url}")
    used = "settings: application.yaml; profiles: default"
    place = f"{make_url(url).render_as_string()}, schema public"
    assert run() == [used, f"created new, empty tables in {place} (event-store.url, application.yaml:1:27)"]
    assert run() == [used]
    (tmp_path / "application.yaml").write_text(f"opencqrs.event-store.url: {fresh_url('postgresql')}")
    assert run("--format", "json") == []


def test_with_json_output_nothing_is_logged(tmp_path, run):
    assert run("--format", "json") == []


def test_a_broken_link_ends_the_run_before_any_database_is_created(tmp_path, run):
    (tmp_path / "application.yaml").symlink_to("..data/application.yaml")
    said, *_ = run(code=2)
    assert said.startswith("[OCQ-101] the file cannot be read: it is a link to ..data/application.yaml")
    assert not (tmp_path / "opencqrs.db").exists()

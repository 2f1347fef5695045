"""``opencqrs init``: what it reports, and folders where no project can be created."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from opencqrs_py.cli.config import schema_command
from opencqrs_py.cli.init import init_command
from opencqrs_py.config.schema import json_schema


@pytest.mark.parametrize(("folder", "reason"), [("a.txt/new", "Not a directory"), ("n" * 300, "File name too long")])
def test_a_folder_that_cannot_be_created_is_a_usage_error(tmp_path: Path, folder: str, reason: str) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(click.UsageError) as caught:
        CliRunner().invoke(init_command, [str(tmp_path / folder)], standalone_mode=False, catch_exceptions=False)
    assert "cannot make a project in" in caught.value.message
    assert f"{reason}; choose a folder that can be made and written to" in caught.value.message


def test_a_file_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "application.schema.json").symlink_to(tmp_path / "nowhere" / "a.json")
    with pytest.raises(click.UsageError, match="No such file or directory"):
        CliRunner().invoke(init_command, [str(tmp_path)], standalone_mode=False, catch_exceptions=False)


@pytest.mark.parametrize(
    "name",
    [
        *("application.yaml", "handlers.py", "events.ndjson", "application.schema.json"),
        *(
            "application.yml",
            "application.toml",
            "application.properties",
        ),  # which would be read in addition to the new one
    ],
)
def test_existing_files_are_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(click.UsageError, match=f"holds {name} already; choose another folder"):
        CliRunner().invoke(init_command, [str(tmp_path)], standalone_mode=False, catch_exceptions=False)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.UsageError, match="the name of DIR is empty"):
        CliRunner().invoke(init_command, [""], standalone_mode=False, catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_the_commands_shown_are_quoted_for_the_shell(tmp_path: Path) -> None:
    ran = CliRunner().invoke(init_command, [str(tmp_path / "my library")], catch_exceptions=False)
    assert f"  cd '{tmp_path}/my library'\n" in ran.output


def test_no_cd_is_shown_for_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(init_command, ["."], catch_exceptions=False)
    assert "in .; next:\n  opencqrs events import" in ran.output


def test_the_created_files_are_reported_as_json(tmp_path: Path) -> None:
    folder = tmp_path / "my library"
    ran = CliRunner().invoke(init_command, [str(folder), "--format", "json"], catch_exceptions=False)
    report = json.loads(ran.stdout)
    assert report["folder"] == str(folder)
    assert sorted(report["created"]) == sorted(path.name for path in folder.iterdir())
    assert list(report) == ["folder", "created"]


@pytest.mark.parametrize("arguments", [[], ["--format", "text"], ["--format", "json"]])
def test_the_schema_is_json_in_each_format(arguments: list[str]) -> None:
    ran = CliRunner().invoke(schema_command, arguments, catch_exceptions=False)
    assert json.loads(ran.stdout) == json_schema()

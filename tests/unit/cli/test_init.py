"""A project to start from, where none can be made."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from opencqrs_py.cli.init import init_command


@pytest.mark.parametrize(("folder", "reason"), [("a.txt/new", "Not a directory"), ("n" * 300, "File name too long")])
def test_a_folder_that_cannot_be_made_is_wrong_use(tmp_path: Path, folder: str, reason: str) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(click.UsageError) as caught:
        CliRunner().invoke(init_command, [str(tmp_path / folder)], standalone_mode=False, catch_exceptions=False)
    assert "cannot make a project in" in caught.value.message
    assert f"{reason}; choose a folder that can be made and written to" in caught.value.message


def test_a_file_that_cannot_be_written_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "application.schema.json").mkdir()
    with pytest.raises(click.UsageError, match="Is a directory"):
        CliRunner().invoke(init_command, [str(tmp_path)], standalone_mode=False, catch_exceptions=False)

"""The options that select the project of a command."""

from __future__ import annotations

import runpy
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from opencqrs_py.cli import options
from opencqrs_py.cli.main import cli
from opencqrs_py.cli.options import Integer, ProjectOptions
from opencqrs_py.model.masking import remember


@pytest.mark.parametrize(
    ("options", "typed"),
    [
        (ProjectOptions(Path(), (), ()), ""),
        (ProjectOptions(Path("a b"), ("x", "y"), ()), " --project 'a b' --profile x --profile y"),
        (ProjectOptions(Path(), (), ("a=1", "b=$x")), " --set a=1 --set 'b=$x'"),
    ],
)
def test_options_are_repeated_in_commands_as_they_were_given(options: ProjectOptions, typed: str) -> None:
    assert options.typed == typed


def test_options_work_with_the_oldest_allowed_click_whose_types_are_not_generic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(click, "ParamType", type("ParamType", (), {}))
    assert "Seconds" in runpy.run_path(options.__file__)


def test_secrets_are_not_repeated_in_commands() -> None:
    remember(["hunter2-of-options"])
    url = "postgresql://ada:PASSWORD@db/books"
    typed = ProjectOptions(Path(), (), ("event-store.api-token=hunter2-of-options", f"database.url={url}")).typed
    assert "hunter2" not in typed
    assert "PASSWORD" not in typed


def test_a_number_is_accepted_up_to_the_largest_database_integer() -> None:
    assert Integer(min=0).convert(str(2**63 - 1), None, None) == 2**63 - 1
    with pytest.raises(click.BadParameter, match=r"^1\d{20} is too large: no log or database has more than 9,223"):
        Integer(min=0).convert("1" + 20 * "0", None, None)


@pytest.mark.parametrize("wrong", ["\udcff", "a\0"])
@pytest.mark.parametrize(
    "command",
    [
        ("inbox", "list", "--sequence"),
        ("inbox", "skip", "--reason", "no book", "--event"),
        ("groups", "reset", "loans", "--dry-run", "--to-event"),
        ("await", "loans", "--event"),
    ],
)
def test_a_string_that_no_event_can_contain_is_refused(tmp_path: Path, command: tuple[str, ...], wrong: str) -> None:
    ran = CliRunner().invoke(cli, [*command, wrong, "--project", str(tmp_path)])
    assert ran.exit_code == 2
    assert f"Invalid value for '{command[-1]}': it " in ran.output

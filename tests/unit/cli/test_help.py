"""What ``--help`` shows: each command with its full summary."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from opencqrs_py.cli.main import cli


def groups(group: click.Group, context: click.Context) -> Iterator[click.Context]:
    """Yield the context of a command group and of the groups in it."""
    yield context
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from groups(command, click.Context(command, parent=context, info_name=name, terminal_width=80))


GROUPS = list(groups(cli, click.Context(cli, info_name="opencqrs", terminal_width=80)))


@pytest.mark.parametrize("context", GROUPS, ids=lambda context: context.command_path)
def test_the_summary_of_each_command_is_not_truncated(context: click.Context) -> None:
    assert [line for line in context.get_help().splitlines()[1:] if line.endswith("...")] == []


@pytest.mark.parametrize("name", cli.list_commands(GROUPS[0]))
def test_the_list_shows_the_first_sentence_of_each_command(name: str) -> None:
    command = cli.get_command(GROUPS[0], name)
    assert command is not None
    lines = [line.split(maxsplit=1) for line in GROUPS[0].get_help().splitlines()]
    assert [name, command.get_short_help_str(limit=1_000)] in lines

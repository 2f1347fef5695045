"""``opencqrs init``: a project to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from opencqrs_py.cli.output import stdout

__all__ = ["init_command"]

_FILES = ("application.yaml", "handlers.py", "events.ndjson")


@click.command("init")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def init_command(folder: Path) -> None:
    """Make a small project in DIR: settings, two handlers, a few events.

    Nothing that is there already is overwritten.
    """
    there = [name for name in _FILES if (folder / name).exists()]
    if there:
        raise click.UsageError(f"{folder} holds {', '.join(there)} already; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        text = files("opencqrs_py.cli").joinpath("template", f"{name}.txt").read_text(encoding="utf-8")
        (folder / name).write_text(text, encoding="utf-8")
    lines = (
        f"made {', '.join(_FILES)} in {folder}; next:",
        f"  cd {folder}",
        "  opencqrs events import events.ndjson",
        "  opencqrs run --until-caught-up",
    )
    for line in lines:
        stdout().print(line, markup=False, soft_wrap=True)

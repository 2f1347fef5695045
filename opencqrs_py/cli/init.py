"""``opencqrs init``: a project to start from."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

import click
import orjson

from opencqrs_py.cli.options import format_option
from opencqrs_py.cli.output import clean, print_json, print_result
from opencqrs_py.cli.signals import INTERRUPTED, signals
from opencqrs_py.config.files import FORMATS
from opencqrs_py.config.schema import json_schema

_FILES = ("application.yaml", "handlers.py", "events.ndjson")
_SCHEMA = "application.schema.json"  # named by the first line of application.yaml, for editors


@click.command("init")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@format_option
def init_command(folder: str, *, as_json: bool) -> None:
    """Make a small project in DIR.

    It has settings (with a schema for editors), two handlers and a few events. Existing files are not overwritten.
    """
    signals.settle(INTERRUPTED)
    if not folder:  # as of a variable that is not set; as a path it would be the current folder
        raise click.UsageError("the name of DIR is empty: name a folder; . is the current one")
    try:
        _make(Path(folder))
    except OSError as error:
        text = f"cannot make a project in {folder}: {error.strerror}; choose a folder that can be made and written to"
        raise click.UsageError(clean(text)) from None
    if as_json:
        print_json({"folder": folder, "created": [*_FILES, _SCHEMA]})
    else:
        _print_next(folder)


def _print_next(folder: str) -> None:
    is_here = Path(folder).resolve() == Path.cwd()
    lines = (
        f"made {', '.join(_FILES)} in {folder}; next:",
        *([] if is_here else [f"  cd {shlex.quote(folder)}"]),
        "  opencqrs events import events.ndjson",
        "  opencqrs run --until-caught-up",
    )
    for line in lines:
        print_result(line)


def _make(folder: Path) -> None:
    names = dict.fromkeys((*_FILES, _SCHEMA, *(f"application{suffix}" for suffix in FORMATS)))  # all would be read
    there = [name for name in names if (folder / name).exists()]
    if there:
        raise click.UsageError(f"{folder} holds {', '.join(there)} already; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    schema = orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2)
    (folder / _SCHEMA).write_bytes(schema + b"\n")
    for name in _FILES:
        text = files("opencqrs_py.cli").joinpath("template", f"{name}.txt").read_text(encoding="utf-8")
        (folder / name).write_text(text, encoding="utf-8")

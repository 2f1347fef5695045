"""What the commands print with: text for people, JSON for programs."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import click
import orjson

from opencqrs_py.cli.streams import losing, results
from opencqrs_py.errors import OnStartError, OpenCqrsError
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.naming import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


_PIPE_WIDTH = 1_000  # columns of a table that goes into a file or pipe: enough to break nothing


_LEVELS = {"yellow": logging.WARNING, "red": logging.ERROR}


@dataclass(slots=True)
class Messages:
    """How messages of the command are shown.

    Attributes:
        line_of: Makes a line for programs of a text, its level and its code; ``None``: they are text for people.
    """

    line_of: Callable[[str, int, str], str] | None = None

    def write(self, text: str, level: int, code: str = "") -> bool:
        """Write a message as a line for programs; return whether that is wanted."""
        if self.line_of is None:
            return False
        file = stderr().file
        file.write(f"{self.line_of(text, level, code)}\n")
        file.flush()
        return True


messages = Messages()


@cache
def stdout() -> Console:
    """Return the console for results."""
    return _console(stderr=False)


@cache
def stderr() -> Console:
    """Return the console for messages and progress."""
    console = _console(stderr=True)
    console.file = losing()
    return console


def print_json(value: Any) -> None:
    """Print a value as JSON, indented; names of files that are not UTF-8 with escapes, as Python has them."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:
        text = json.dumps(value, indent=2)
    results().write(text + "\n")


def print_result(text: str, style: str = "default") -> None:
    """Print a line of a result in a colour, ``bold`` or ``dim``, without a console, whose import would take longer."""
    has_colours = True if os.environ.get("FORCE_COLOR") else None  # None: on a terminal
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in {"dumb", "unknown"}:
        has_colours = False
    look: dict[str, Any] = {style: True} if style in {"bold", "dim"} else {"fg": style if style != "default" else None}
    click.secho(clean(text), color=has_colours, **look)


def print_line(text: str, style: str = "dim") -> None:
    """Print a line among the messages."""
    if not messages.write(text, _LEVELS.get(style, logging.INFO)):
        stderr().print(clean(text), style=style, markup=False, soft_wrap=True)


def continuation(group: str, *, stopped: bool, running: bool, partitions: Sequence[object] = ()) -> list[str]:
    """Return the line that says what continues a changed group; none if a process does.

    Args:
        group: The group.
        stopped: Whether the group, or its changed partitions, stay stopped until a command starts them.
        running: Whether a live node runs it.
        partitions: The changed partitions, if they alone are stopped: a start of the group would start others, too.
    """
    if stopped and partitions:
        names = " ".join(f"{group}:{each}" for each in partitions)
        return [f"{group}: the new partitions are stopped; opencqrs groups start {names} lets them continue there"]
    if stopped:
        return [f"{group}: it is stopped; opencqrs groups start {group} lets it continue there"]
    return [] if running else [f"{group}: no process runs it; the next opencqrs run continues there"]


def explain(error: OpenCqrsError) -> None:
    """Print an error for the person who has to fix it, with their own frames if it came out of their code."""
    from opencqrs_py.processing.exceptions import own_frames  # noqa: PLC0415 only when something went wrong

    cause = error.__cause__ if isinstance(error, OnStartError) else None
    frames = own_frames(cause) if cause is not None else ""
    if messages.write("\n".join(filter(None, (str(error), frames))), logging.ERROR, getattr(error, "code", "")):
        return
    console = stderr()
    console.print(clean(scrubbed(str(error))), style="red", markup=False, highlight=False, soft_wrap=True)
    if frames:
        console.print(clean(scrubbed(frames)), markup=False, highlight=False, soft_wrap=True)


def clean(text: str) -> str:
    """Make text from outside safe to print: control characters but line ends become visible."""
    return visible(text, kept="\n\t")


def cell(text: str) -> Text:
    """Return text from outside as a cell of a table, in which brackets are not a tags."""
    from rich.text import Text  # noqa: PLC0415 only when a table is printed

    return Text(clean(text))


def amount(number: int | None) -> str:
    """Return a number as a cell of a table; a dash if it is not known."""
    return "-" if number is None else f"{number:,}"


def _console(*, stderr: bool) -> Console:
    from rich.console import Console  # noqa: PLC0415 takes a tenth of a second

    console = Console(stderr=stderr, highlight=False, emoji=False)  # as an emoji, :b: of /a:b:c would be lost
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console

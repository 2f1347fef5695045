"""``opencqrs events``: looks into the event store and fills it."""

from __future__ import annotations

import gzip
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import click

from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import clean, print_json, stderr, stdout
from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.cloudevents import parse_event, write_event
from opencqrs_py.model.event import Event

__all__ = ["events_command"]

_DATA_SHOWN = 60  # characters of an event's data in a table
_TELL_EVERY = 2.0  # seconds between two lines of progress


@click.group("events")
def events_command() -> None:
    """Import and list events."""


@events_command.command("import")
@click.argument("file")
@project_options
@format_option
def import_command(file: str, options: ProjectOptions, *, as_json: bool) -> None:
    """Import CloudEvents from FILE (NDJSON, also .gz; - for standard input).

    Order is kept. Events whose source and id are known already are left out, so importing twice adds nothing. One bad
    line, and nothing of the file is imported.
    """
    began = time.monotonic()
    application = options.application()
    with _opened(file) as lines:
        given, added = application.event_store.append(_parsed(lines, file), None if as_json else _Progress())
    seconds = time.monotonic() - began
    if as_json:
        print_json({"file": file, "events": given, "added": added, "seconds": round(seconds, 3)})
        return
    known = f", {given - added:,} known already" if given != added else ""
    rate = f" ({given / seconds:,.0f}/s)" if given >= 1_000 else ""
    stdout().print(f"{added:,} event{'' if added == 1 else 's'} imported{known}{rate}", markup=False)


@events_command.command("list")
@project_options
@format_option
@click.option(
    "--after", type=click.IntRange(min=0), default=0, show_default=True, help="Position after which the list begins."
)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Most events listed.")
@click.option("--subject", default="/", show_default=True, help="Subject, with its children.")
@click.option("--type", "types", multiple=True, help="Event type; may be repeated.")
def list_command(
    options: ProjectOptions, after: int, limit: int, subject: str, types: tuple[str, ...], *, as_json: bool
) -> None:
    """List events in the order of their positions."""
    from opencqrs_py.model.selection import Selection  # noqa: PLC0415 light, but of no use elsewhere

    selection = Selection(subject, recursive=True, types=frozenset(types) or None)
    part = options.application().event_store.read(after, limit, selection)
    if as_json:
        print_json([{"position": event.position, **write_event(event)} for event in part.events])
    else:
        _print_table(part.events)


def _print_table(events: Iterable[Event]) -> None:
    from rich.table import Table  # noqa: PLC0415 only when a table is printed

    table = Table(box=None, pad_edge=False)
    table.add_column("position", justify="right")
    for title in ("time", "type", "subject"):
        table.add_column(title, no_wrap=True)
    table.add_column("data", overflow="ellipsis", no_wrap=True, max_width=_DATA_SHOWN)
    for e in events:
        cells = (f"{e.position:,}", e.time or "-", clean(e.type), clean(e.subject), clean(e.payload or "-"))
        table.add_row(*(cell.replace("[", r"\[") for cell in cells))
    stdout().print(table)


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    path = Path(file)
    try:
        raw = path.open("rb")
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from None
    with raw, cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw as lines:
        yield lines


def _parsed(lines: Iterable[bytes], file: str) -> Iterator[Event]:
    name = "standard input" if file == "-" else file
    number = 1
    try:
        for line in lines:
            if line.strip():
                yield parse_event(line)
            number += 1
    except EventFormatError as error:
        fix = "mend the line and import again; nothing of this file was imported"
        raise EventFormatError("OCQ-212", error.what, f"{name}:{number}", fix) from None
    except (OSError, EOFError) as error:
        what = f"the file cannot be read to its end ({error})"
        fix = "fetch the file anew and import again; nothing of it was imported"
        raise EventFormatError("OCQ-213", what, f"{name}, line {number}", fix) from None


class _Progress:
    """Tells now and then how far an import is."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._told = self._began

    def __call__(self, given: int) -> None:
        now = time.monotonic()
        if now - self._told >= _TELL_EVERY:
            self._told = now
            stderr().print(f"{given:,} events read ({given / (now - self._began):,.0f}/s) …", markup=False)

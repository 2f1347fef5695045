"""``opencqrs events list``: shows events in the order of their positions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import click

from opencqrs_py.cli.events.nothing_found import tell_reasons
from opencqrs_py.cli.events.selecting import after_option, events_after, selection_options
from opencqrs_py.cli.events.showing import DATA_SHOWN, positioned
from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import clean, print_json, stderr, stdout
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection

__all__ = ["list_command"]


@click.command("list")
@project_options
@format_option
@after_option("Position after which the list begins.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Most events listed.")
@selection_options
def list_command(options: ProjectOptions, after: int, limit: int, selection: Selection, *, as_json: bool) -> None:
    """List events in the order of their positions."""
    source = options.application().event_store
    events = list(islice(events_after(source, after, limit, selection), limit))
    is_explained = not events and tell_reasons(selection, after)
    if as_json:
        print_json(list(map(positioned, events)))
    elif events:
        _print_table(events)
    elif not is_explained:
        stderr().print("no events" + (f" after position {after}" if after else ""))


def _print_table(events: Iterable[Event]) -> None:
    from rich.table import Table  # noqa: PLC0415 only when a table is printed

    table = Table(box=None, pad_edge=False)
    table.add_column("position", justify="right")
    for title in ("time", "type", "subject"):
        table.add_column(title, no_wrap=True)
    table.add_column("data", overflow="ellipsis", no_wrap=True, max_width=DATA_SHOWN)
    for e in events:
        cells = (str(e.position), e.time or "-", clean(e.type), clean(e.subject), clean(e.payload or "-"))
        table.add_row(*(cell.replace("[", r"\[") for cell in cells))
    stdout().print(table)

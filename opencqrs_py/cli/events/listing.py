"""``opencqrs events list``: shows events in the order of their positions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import click

from opencqrs_py.cli.events.nothing_found import tell_reasons
from opencqrs_py.cli.events.selecting import after_option, events_after, selection_options
from opencqrs_py.cli.events.showing import DATA_SHOWN, on_one_line, positioned
from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import print_json, stderr, stdout
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection

__all__ = ["list_command", "print_table"]

_TITLES = ("position", "time", "type", "subject", "data")
_GAP = "  "  # between two cells
_NARROWEST = 7  # columns that are left of a cell in the narrowest terminal


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
        print_table(events)
    elif not is_explained:
        stderr().print("no events" + (f" after position {after}" if after else ""))


def print_table(events: Sequence[Event]) -> None:
    """Print one line an event. What is too long for the terminal is cut, the longest first, but no position or time."""
    from rich.cells import cell_len  # noqa: PLC0415 only when a table is printed

    console, rows = stdout(), [_cells(event) for event in events]
    wanted = [max(map(cell_len, column)) for column in zip(_TITLES, *rows, strict=True)]
    room = console.width - sum(wanted[:2]) - len(_GAP) * (len(_TITLES) - 1)
    widths = wanted[:2] + _fitted([*wanted[2:4], min(wanted[4], DATA_SHOWN)], room)
    console.print(_line(_TITLES, widths), style="bold", markup=False, soft_wrap=True)
    for row in rows:
        console.print(_line(row, widths), markup=False, soft_wrap=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 as above

    position, *others = cells
    fitting = [
        set_cell_size(cell, width) if cell_len(cell) <= width else set_cell_size(cell, width - 1) + "…"
        for cell, width in zip(others, widths[1:], strict=True)
    ]
    return _GAP.join((position.rjust(widths[0]), *fitting)).rstrip()


def _cells(event: Event) -> tuple[str, ...]:
    shown = (event.time or "-", event.type, event.subject, event.payload or "-")
    return str(event.position), *(on_one_line(cell) for cell in shown)


def _fitted(wanted: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns that have so much room together: the widest are cut."""
    widths = [min(width, max(room, _NARROWEST)) for width in wanted]
    while sum(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths

"""``opencqrs events list``, ``tail`` and ``skipped``: show events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

import click
import orjson

from opencqrs_py.cli.events.display import DATA_SHOWN, positioned
from opencqrs_py.cli.events.selection import (
    after_option,
    events_after,
    events_between,
    print_reasons,
    selection_options,
    slices_between,
    source_of,
)
from opencqrs_py.cli.options import Integer, ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import clean, print_json, stderr, stdout
from opencqrs_py.cli.streams import results
from opencqrs_py.errors import DatabaseFileGoneError, ExplainedError, OtherLogError
from opencqrs_py.model.event import Event
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.naming import counted, in_one_line
from opencqrs_py.model.progress import Skip
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.processing.ports import EventSource, report_unfinished
from opencqrs_py.processing.supervision import OUTAGE_BACK_OFF

_TITLES = ("position", "time", "type", "subject", "data")
_GAP = "  "  # between two cells
_NARROWEST = 7  # columns that are left of a cell in the narrowest terminal


@click.command("list")
@project_options
@format_option
@after_option("Position after which the list begins.")
@click.option("--limit", type=Integer(min=1), default=20, show_default=True, help="Most events listed.")
@selection_options
def list_command(options: ProjectOptions, after: int, limit: int, selection: Selection, *, as_json: bool) -> None:
    """List events in the order of their positions."""
    source = source_of(options.application())
    events = list(islice(events_after(source, after, limit, selection), limit))
    if len(events) < limit:
        report_unfinished(source)
    is_explained = not events and print_reasons(selection, after)
    if as_json:
        print_list(events)
    elif events:
        print_table(events)
    elif not is_explained:
        stderr().print("no events" + (f" after position {after}" if after else ""))


def print_list(events: Sequence[Event]) -> None:
    """Print events as a JSON array, up to the first one whose data or metadata are not JSON, which is raised."""
    shown: list[dict[str, Any]] = []
    try:
        for event in events:
            shown.append(positioned(event))  # noqa: PERF401 what comes before an error is printed
    finally:
        print_json(shown)


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
    return str(event.position), *(in_one_line(cell) for cell in shown)


def _fitted(wanted: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns that share the given width: the widest are cut."""
    widths = [min(width, max(room, _NARROWEST)) for width in wanted]
    while sum(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


_WAIT_SECONDS = 1.0  # most seconds of one call of a watch
_FIRST_WINDOW = 1_000  # positions that are read for the last events; then twice as many before them, and so on
_AGAIN = "start the command again to follow the current log"

Show = Callable[[Sequence[Event]], None]


@click.command("tail")
@project_options
@format_option
@click.option(
    "--lines", type=Integer(min=0), default=10, show_default=True, help="How many of the latest events are shown first."
)
@selection_options
def tail_command(options: ProjectOptions, lines: int, selection: Selection, *, as_json: bool) -> None:
    """Show the latest events, then each new one, until Ctrl-C.

    JSON: one event a line.
    """
    source = source_of(options.application())
    show = _show_json if as_json else _show_text
    head = source.head()
    last = last_events(source, head, lines, selection)
    if lines and not last:
        print_reasons(selection)
    show(last)
    Follower(source, head, selection, show).run()


def last_events(source: EventSource, head: int, count: int, selection: Selection) -> list[Event]:
    """Return the latest selected events up to the position ``head``, at most ``count``, in their order.

    The log is searched backwards, page by page, so that it is read whole only if there are too few.
    """
    found: deque[Event] = deque()
    upto, size = head, max(count, _FIRST_WINDOW)
    while upto > 0 and len(found) < count:
        after = max(0, upto - size)
        page = deque(events_between(source, after, upto, selection), maxlen=count - len(found))
        found.extendleft(reversed(page))
        upto, size = after, size * 2
    return list(found)


class Follower:
    """Shows new events as they come.

    Args:
        source: The event store.
        after: Position after which events are shown.
        selection: Which of them.
        show: Shows some.
        pause: Sleeps for that many seconds, while the store is unavailable.
    """

    def __init__(
        self,
        source: EventSource,
        after: int,
        selection: Selection,
        show: Show,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.after = after
        self._source = source
        self._selection = selection
        self._show = show
        self._pause = pause
        self._waits: Iterator[float] = OUTAGE_BACK_OFF.waits()
        self._mark: tuple[int, str] | None = None  # a position, and the fingerprint of the log up to there
        self._outage: str | None = None  # why the store is unavailable, as it was reported

    def run(self) -> None:
        """Follow until something raises, such as Ctrl-C. While the store is unavailable, wait for it.

        Raises:
            OtherLogError: OCQ-316, if the log was restored or replaced, as far as a wait or an outage shows it.
        """
        while True:
            try:
                self._follow()
            except OtherLogError as error:
                raise OtherLogError(error.code, error.what, error.where, _AGAIN) from None
            except Exception as error:
                if not isinstance(error, DatabaseFileGoneError) and not self._source.is_outage(error):
                    raise
                self._report_outage(_reason_of(error))
                self._pause(next(self._waits))

    def _follow(self) -> None:
        with self._source.watched() as watch:
            self._check_log()
            while True:
                head = watch.wait(self.after, _WAIT_SECONDS)
                if head < self.after:
                    self._check_log()
                for part in slices_between(self._source, self.after, head, self._selection):
                    self._report_return()
                    self._mark = part.upto, self._source.fingerprint(part.upto, _event_at(part))
                    self._show(part.events)
                    self.after = part.upto
                self._report_return()

    def _check_log(self) -> None:
        if self._mark is None:
            self._mark = self.after, self._source.fingerprint(self.after)
        self._source.verify(*self._mark)

    def _report_outage(self, reason: str) -> None:
        if reason != self._outage:
            line = f"the event store is unavailable: {reason}; waiting for it"
            stderr().print(clean(line), style="yellow", markup=False, soft_wrap=True)
        self._outage = reason

    def _report_return(self) -> None:
        if self._outage is not None:
            stderr().print("the event store is available again", style="green")
            self._outage, self._waits = None, OUTAGE_BACK_OFF.waits()


def _event_at(part: Slice) -> Event | None:
    """Return the event at a slice's last position, if it was selected."""
    return part.events[-1] if part.events and part.events[-1].position == part.upto else None


def _reason_of(error: Exception) -> str:
    """Return in one line why a store is unavailable; for a wrapped driver error, the driver's message."""
    if isinstance(error, ExplainedError):
        return f"[{error.code}] {error.what}" + (f", {error.where}" if error.where else "")
    cause = getattr(error, "orig", None) or error
    said = str(cause.args[-1]).strip() if cause.args else ""  # MariaDB's driver has a number before it
    return (said or type(cause).__name__).splitlines()[0]


def _show_json(events: Iterable[Event]) -> None:
    for event in events:
        results().write(orjson.dumps(positioned(event), option=orjson.OPT_APPEND_NEWLINE).decode())
    results().flush()


def _show_text(events: Iterable[Event]) -> None:
    for event in events:
        data = event.payload or "-"
        shown = data if len(data) <= DATA_SHOWN else data[: DATA_SHOWN - 1] + "…"
        line = f"{event.position:>9}  {event.time or '-'}  {event.type}  {event.subject}  {shown}"
        stdout().print(in_one_line(line), markup=False, soft_wrap=True)


@click.command("skipped")
@project_options
@format_option
@click.option("--group", "groups", multiple=True, metavar="G", help="Of this group only; may be repeated.")
def skipped_command(options: ProjectOptions, groups: tuple[str, ...], *, as_json: bool) -> None:
    """List the events that were skipped, with the reason.

    Their attempts were exhausted. Nothing tries them again: their effects are missing from the read model.
    """
    from opencqrs_py.assembly.inbox import InboxFilter  # noqa: PLC0415 loads SQLAlchemy

    which = InboxFilter(groups)
    skips = options.recorded().inbox.skips(which)
    if as_json:
        print_json([skip_as_json(skip) for skip in skips])
    elif skips:
        print_skips(skips)
    else:
        stderr().print(f"no events{f' of {which}' if groups else ''} were skipped", markup=False)


def skip_as_json(skip: Skip) -> dict[str, Any]:
    """Return a skip in the shape of the JSON output."""
    return {**asdict(skip), "partition": str(skip.partition)}


def print_skips(skips: Sequence[Skip]) -> None:
    """Print one line a skip."""
    for skip in skips:
        head = f"[{skip.group} {skip.partition}] event {skip.event_id} at position {skip.position}"
        where = f"({skip.event_type}, {skip.subject})"
        attempts = counted(skip.attempts, "attempt")
        line = f"{head} {where} skipped after {attempts} at {skip.skipped_at}: {skip.reason}"
        stdout().print(in_one_line(scrubbed(line)), markup=False, soft_wrap=True)

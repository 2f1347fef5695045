"""``opencqrs events tail``: shows the newest events, and those that come."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import click
import orjson

from opencqrs_py.cli.events.nothing_found import tell_reasons
from opencqrs_py.cli.events.selecting import events_between, selection_options, slices_between
from opencqrs_py.cli.events.showing import DATA_SHOWN, on_one_line, positioned
from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import clean, stderr, stdout
from opencqrs_py.errors import DatabaseFileGoneError, ExplainedError
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection
from opencqrs_py.processing.ports import EventSource
from opencqrs_py.processing.supervision import OUTAGE_BACK_OFF

__all__ = ["Follower", "last_events", "tail_command"]

_WAIT_SECONDS = 1.0  # at most, until a watch is asked again
_FIRST_WINDOW = 1_000  # positions that are looked at for the last events, and then twice as many before them, and so on

Show = Callable[[Sequence[Event]], None]


@click.command("tail")
@project_options
@format_option
@click.option("--lines", type=click.IntRange(min=0), default=10, show_default=True, help="Last events shown first.")
@selection_options
def tail_command(options: ProjectOptions, lines: int, selection: Selection, *, as_json: bool) -> None:
    """Show the last events, and then each new one as it comes, until Ctrl-C. JSON: one event a line."""
    application = options.application()
    source: EventSource = application.event_store
    show = _show_json if as_json else _show_text
    head = source.head()
    last = last_events(source, head, lines, selection)
    if lines and not last:
        tell_reasons(selection)
    show(last)
    Follower(source, head, selection, show).run()


def last_events(source: EventSource, head: int, count: int, selection: Selection) -> list[Event]:
    """Return the last selected events up to the position ``head``, at most ``count``, in their order.

    The log is searched backwards, stretch by stretch, so that it is read whole only if there are too few.
    """
    found: deque[Event] = deque()
    upto, size = head, max(count, _FIRST_WINDOW)
    while upto > 0 and len(found) < count:
        after = max(0, upto - size)
        stretch = deque(events_between(source, after, upto, selection), maxlen=count - len(found))
        found.extendleft(reversed(stretch))
        upto, size = after, size * 2
    return list(found)


class Follower:
    """Shows new events as they come.

    Args:
        source: The event store.
        after: Position after which events are shown.
        selection: Which of them.
        show: Shows some.
        pause: Sleeps for that many seconds, while the store does not answer.
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
        self._away: str | None = None  # why the store does not answer, as it was told

    def run(self) -> None:
        """Go on until something raises, such as Ctrl-C. A store that does not answer is waited for."""
        while True:
            try:
                self._follow()
            except Exception as error:
                if not isinstance(error, DatabaseFileGoneError) and not self._source.is_outage(error):
                    raise
                self._tell_away(_reason_of(error))
                self._pause(next(self._waits))

    def _follow(self) -> None:
        with self._source.watched() as watch:
            while True:
                head = watch.wait(self.after, _WAIT_SECONDS)
                for part in slices_between(self._source, self.after, head, self._selection):
                    self._tell_back()
                    self._show(part.events)
                    self.after = part.upto
                self._tell_back()

    def _tell_away(self, reason: str) -> None:
        if reason != self._away:
            told = f"the event store does not answer: {reason}; waiting for it"
            stderr().print(clean(told), style="yellow", markup=False, soft_wrap=True)
        self._away = reason

    def _tell_back(self) -> None:
        if self._away is not None:
            stderr().print("the event store answers again", style="green")
            self._away, self._waits = None, OUTAGE_BACK_OFF.waits()


def _reason_of(error: Exception) -> str:
    """Return in one line why a store does not answer; of an error around a driver's, what the driver says."""
    if isinstance(error, ExplainedError):
        return f"[{error.code}] {error.what}" + (f", {error.where}" if error.where else "")
    cause = getattr(error, "orig", None) or error
    said = str(cause.args[-1]).strip() if cause.args else ""  # MariaDB's driver has a number before it
    return (said or type(cause).__name__).splitlines()[0]


def _show_json(events: Iterable[Event]) -> None:
    for event in events:
        sys.stdout.write(orjson.dumps(positioned(event), option=orjson.OPT_APPEND_NEWLINE).decode())
    sys.stdout.flush()


def _show_text(events: Iterable[Event]) -> None:
    for event in events:
        data = event.payload or "-"
        shown = data if len(data) <= DATA_SHOWN else data[: DATA_SHOWN - 1] + "…"
        line = f"{event.position:>9}  {event.time or '-'}  {event.type}  {event.subject}  {shown}"
        stdout().print(on_one_line(line), markup=False, soft_wrap=True)

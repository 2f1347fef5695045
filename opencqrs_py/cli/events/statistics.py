"""``opencqrs events stats``: counts events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import click

from opencqrs_py.cli.events.display import ProgressReport
from opencqrs_py.cli.events.selection import print_reasons, selection_options, slices_between, source_of
from opencqrs_py.cli.options import Integer, ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import print_json, stdout
from opencqrs_py.model.event import Event
from opencqrs_py.model.naming import counted, in_one_line
from opencqrs_py.model.selection import Selection
from opencqrs_py.processing.ports import report_unfinished

_MOST_NAMES = 100_000  # that are counted one by one: memory must not grow with the log


class _Names:
    """Counts names; once there are very many, new ones are counted together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self.others = 0

    def add(self, names: Iterable[str]) -> None:
        for name, count in Counter(names).items():
            if name in self._counts or len(self._counts) < self._most:
                self._counts[name] += count
            else:
                self.others += count

    def __len__(self) -> int:
        return len(self._counts)

    def top(self, most: int) -> list[tuple[str, int]]:
        """Return the most frequent names, equal ones by name."""
        return sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:most]


class Tally:
    """Statistics of events that are read in their order.

    Args:
        most: Different types, and different subjects, that are counted separately.
    """

    def __init__(self, most: int = _MOST_NAMES) -> None:
        self.events = self.characters = 0
        self.first: Event | None = None
        self.last: Event | None = None
        self.types = _Names(most)
        self.subjects = _Names(most)

    def add(self, events: Sequence[Event]) -> None:
        """Count events."""
        if not events:
            return
        self.first, self.last = self.first or events[0], events[-1]
        self.events += len(events)
        self.characters += sum(len(event.payload) for event in events if event.payload is not None)
        self.types.add(event.type for event in events)
        self.subjects.add(top_level(event.subject) for event in events)

    def rows(self, top: int) -> dict[str, Any]:
        """Return the statistics as JSON."""
        return {
            "events": self.events,
            "first": _end(self.first),
            "last": _end(self.last),
            "data_characters": self.characters,
            "types": _rows(self.types, "type", top),
            "subjects": _rows(self.subjects, "subject", top),
        }


@click.command("stats")
@project_options
@format_option
@click.option("--top", type=Integer(min=0), default=10, show_default=True, help="Most types, and subjects, shown.")
@selection_options
def stats_command(options: ProjectOptions, top: int, selection: Selection, *, as_json: bool) -> None:
    """Count events: by type, and by the first level of their subjects. All of them are read."""
    began = time.monotonic()
    source = source_of(options.application())
    head = source.head()
    progress, tally = ProgressReport("read", head), Tally()
    for part in slices_between(source, 0, head, selection):
        tally.add(part.events)
        progress(part.upto)
    report_unfinished(source)
    if not tally.events:
        print_reasons(selection)
    if as_json:
        print_json({**tally.rows(top), "seconds": round(time.monotonic() - began, 3)})
    else:
        _print(tally, top)


def top_level(subject: str) -> str:
    """Return the first level of a subject: ``/fines`` of ``/fines/S38735``."""
    slash = subject.find("/", 1)
    return subject if slash < 0 else subject[:slash]


def _end(event: Event | None) -> dict[str, Any] | None:
    return None if event is None else {"position": event.position, "time": event.time}


def _rows(names: _Names, name: str, top: int) -> dict[str, Any]:
    shown = [{name: each, "events": count} for each, count in names.top(top)]
    return {"different": len(names), "not_told_apart": names.others, "top": shown}


def _print(tally: Tally, top: int) -> None:
    console = stdout()
    console.print(counted(tally.events, "event"), style="bold", markup=False)
    for word, event in (("first", tally.first), ("last", tally.last)):
        if event is not None:
            console.print(f"  {word:<5}  position {event.position}, {event.time or 'no time'}", markup=False)
    if tally.events:
        mean = tally.characters / tally.events
        console.print(f"  data   {tally.characters:,} characters, {mean:,.0f} an event", markup=False)
    for title, names in (("types", tally.types), ("subjects, first level", tally.subjects)):
        _print_names(title, names, top)


def _print_names(title: str, names: _Names, top: int) -> None:
    shown = names.top(top)
    if not shown:
        return
    left = len(names) - len(shown)
    console, width = stdout(), len(f"{shown[0][1]:,}")
    console.print(f"\n{title}" + (f" (the {len(shown)} most frequent of {len(names):,})" if left else ""), markup=False)
    for name, count in shown:
        console.print(f"  {count:>{width},}  {in_one_line(name)}", markup=False, soft_wrap=True)
    if names.others:
        console.print(f"  {names.others:>{width},}  others, not counted separately", markup=False)

"""Which events a command reads, and why it may have found none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from opencqrs_py.cli.options import Integer, Text
from opencqrs_py.cli.output import clean, print_line
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.processing.ports import EventSource

if TYPE_CHECKING:
    from opencqrs_py.assembly.application import Application

F = TypeVar("F", bound=Callable[..., Any])

_EVENTS_PER_SLICE = 5_000
_EXACTLY = "types are compared exactly"


def selection_options(command: F) -> F:
    """Add ``--subject`` and ``--type``; they reach the command as ``selection``."""

    @click.option("--subject", type=Text(), default="/", show_default=True, help="Subject, with its children.")
    @click.option("--type", "types", type=Text(), multiple=True, help="Event type, compared exactly; may be repeated.")
    @wraps(command)
    def wrapped(subject: str, types: tuple[str, ...], **others: Any) -> Any:
        return command(selection=Selection(subject, types=frozenset(types) or None), **others)

    return cast("F", wrapped)


def after_option(text: str) -> Callable[[F], F]:
    """Add ``--after``, a position."""
    return click.option("--after", type=Integer(min=0), default=0, show_default=True, help=text)


def source_of(application: Application, *, must_exist: bool = False) -> EventSource:
    """Return the event store to read; report a SQLite file that does not exist, as after a typo in its name.

    Raises:
        click.UsageError: If it must exist, and does not.
    """
    if (missing := application.missing_files().get("event-store.url")) is not None:
        file, origin = missing
        text = f"the event store does not exist: {file} (event-store.url, {origin})"
        if must_exist:
            raise click.UsageError(clean(text))
        print_line(f"{text}; it is created now, and is empty", "yellow")
    source: EventSource = application.checked_event_store
    return source


def slices_between(source: EventSource, after: int, upto: int, selection: Selection) -> Iterator[Slice]:
    """Read the selected events with positions ``after + 1..upto``, slice by slice."""
    while after < upto and (part := source.read(after, _EVENTS_PER_SLICE, selection, upto)).upto > after:
        yield part
        after = part.upto


def events_after(source: EventSource, after: int, limit: int, selection: Selection) -> Iterator[Event]:
    """Read selected events, ``limit`` at a time, as long as there are any; a slice may hold fewer."""
    while (part := source.read(after, limit, selection)).upto > after:
        yield from part.events
        after = part.upto


def events_between(source: EventSource, after: int, upto: int, selection: Selection) -> Iterator[Event]:
    """Read the selected events with positions ``after + 1..upto``."""
    for part in slices_between(source, after, upto, selection):
        yield from part.events


def reasons(selection: Selection, after: int) -> list[str]:
    """Return what may have been meant where nothing was found; the selection may also be right.

    Args:
        selection: What was looked for.
        after: Position after which it was looked for. After the beginning, it is normal that there is nothing new.
    """
    return [*_of_subject(selection.subject), *_of_types(sorted(selection.types or ()), after)]


def print_reasons(selection: Selection, after: int = 0) -> bool:
    """Print these reasons on standard error, and return whether there were any."""
    found = reasons(selection, after)
    for reason in found:
        print_line(f"nothing found: {reason}", "yellow")
    return bool(found)


def _of_subject(subject: str) -> list[str]:
    meant = "/" + subject.strip("/*") if subject.endswith("*") else "/" + subject.lstrip("/")
    if not subject.startswith("/"):
        return [f"most subjects begin with a slash: did you mean --subject {meant}?"]
    if subject.endswith("*"):
        return [f"children of a subject are found without '*': did you mean --subject {meant}?"]
    return []


def _of_types(types: list[str], after: int) -> list[str]:
    patterns = [f"{_EXACTLY}: '{each}' is not a pattern here" for each in types if "*" in each or "?" in each]
    lists = [f"{_EXACTLY}: '{each}' is one type; for several repeat --type" for each in types if "," in each]
    ordinary = [f"{_EXACTLY}; 'opencqrs events stats' shows the existing ones"] if types and after == 0 else []
    return patterns + lists or ordinary

"""Options that say which events a command looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.processing.ports import EventSource

__all__ = ["Text", "after_option", "events_after", "events_between", "selection_options", "slices_between"]

if TYPE_CHECKING:
    _ParamType = click.ParamType[str]
else:
    _ParamType = click.ParamType  # generic in newer releases only

F = TypeVar("F", bound=Callable[..., Any])

_EVENTS_PER_SLICE = 5_000


class Text(_ParamType):
    """Text that an event can hold: no bytes that are not UTF-8, no U+0000."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, or refuse it."""
        text = str(value)
        if "\0" in text:
            self.fail("it must not contain the character U+0000", param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("it is not UTF-8", param, ctx)
        return text


def selection_options(command: F) -> F:
    """Add ``--subject`` and ``--type``; they reach the command as ``selection``."""

    def wrapped(subject: str, types: tuple[str, ...], **others: Any) -> Any:
        selection = Selection(subject, recursive=True, types=frozenset(types) or None)
        return command(selection=selection, **others)

    wrapped.__name__ = command.__name__
    wrapped.__doc__ = command.__doc__
    wrapped.__dict__.update(command.__dict__)
    decorated: Any = wrapped
    for option in (
        click.option(
            "--type", "types", type=Text(), multiple=True, help="Event type, compared exactly; may be repeated."
        ),
        click.option("--subject", type=Text(), default="/", show_default=True, help="Subject, with its children."),
    ):
        decorated = option(decorated)
    result: F = decorated
    return result


def after_option(text: str) -> Callable[[F], F]:
    """Add ``--after``, a position."""
    return click.option("--after", type=click.IntRange(min=0), default=0, show_default=True, help=text)


def slices_between(source: EventSource, after: int, upto: int, selection: Selection) -> Iterator[Slice]:
    """Read the selected events with positions ``after + 1..upto``, slice by slice."""
    while after < upto and (part := source.read(after, _EVENTS_PER_SLICE, selection, upto)).upto > after:
        yield part
        after = part.upto


def events_after(source: EventSource, after: int, limit: int, selection: Selection) -> Iterator[Event]:
    """Read selected events, ``limit`` at a time, as long as there are any; a slice may hold fewer than asked for."""
    while (part := source.read(after, limit, selection)).upto > after:
        yield from part.events
        after = part.upto


def events_between(source: EventSource, after: int, upto: int, selection: Selection) -> Iterator[Event]:
    """Read the selected events with positions ``after + 1..upto``."""
    for part in slices_between(source, after, upto, selection):
        yield from part.events

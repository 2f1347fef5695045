"""Tracebacks without this package's own frames: what a handler's author wants to see."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from opencqrs_py.errors import EventStoreError
from opencqrs_py.processing.error_text import message_of, plain_text, type_name
from opencqrs_py.processing.interrupts import raise_interrupt

__all__ = ["own_frames"]

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
_LEFT_OUT = (_PACKAGE, contextlib.__file__)  # the latter closes what this package has opened

_INNER = "opencqrs_py.processing."  # exceptions between our own functions, which nobody else sees
MOST_CHARACTERS = 20_000
_MOST_FRAMES = 2_000  # the innermost ones
_MOST_CAUSES = 10
_MOST_MEMBERS = 5  # of a group of exceptions
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


class _Link(NamedTuple):
    """An exception of a chain, and how it led to the next one."""

    error: BaseException
    led_by: str


def own_frames(error: BaseException) -> str:
    """Format an exception with its causes, leaving out the frames of this package.

    Empty when no frame is left: then the error arose in this package or below it. Empty, too, for an event store's
    error that reached no frame but this package's, whatever the library beneath raised. Never raises, except for an
    interrupt; at most about 20,000 characters.
    """
    try:
        if issubclass(type(error), EventStoreError) and not _frames(error):
            return ""
        shown, frames = _shown(error, members=True)
    except BaseException as failure:  # what an exception does when it is looked at is not ours to know
        raise_interrupt(failure)
        return ""
    return plain_text(shown.rstrip(), MOST_CHARACTERS) if frames else ""


def _shown(error: BaseException, *, members: bool) -> tuple[str, int]:
    """Return an exception's text after those of its causes, and how many frames are in it."""
    parts: list[str] = []
    frames = 0
    for link in reversed(list(_chain(error))):
        text, count = _alone(link.error, members=members)
        frames += count
        parts.append(text + link.led_by)
    return "".join(parts), frames


def _chain(error: BaseException) -> Iterator[_Link]:
    seen = {id(error)}
    led_by = ""
    for _ in range(_MOST_CAUSES):
        yield _Link(error, led_by)
        cause, context = error.__cause__, None if error.__suppress_context__ else error.__context__
        before = context if cause is None else cause
        if before is None or id(before) in seen or _module(before).startswith(_INNER):
            return  # what a chunk failed of before it was tried in parts has led to nothing of this
        led_by = _CONTEXT if cause is None else _CAUSE
        error = before
        seen.add(id(error))


def _alone(error: BaseException, *, members: bool) -> tuple[str, int]:
    frames = _frames(error)
    head = "Traceback (most recent call last):\n" if frames else ""
    text = head + "".join(traceback.StackSummary.from_list(frames).format()) + _last_lines(error)
    count = len(frames)
    if members and isinstance(error, BaseExceptionGroup):
        for number, member in enumerate(error.exceptions[:_MOST_MEMBERS], 1):
            shown, more = _shown(member, members=False)
            text += f"  exception {number} of {len(error.exceptions)}:\n" + _indented(shown)
            count += more
    return text, count


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    stack = traceback.extract_tb(error.__traceback__, limit=-_MOST_FRAMES)
    return [frame for frame in stack if not frame.filename.startswith(_LEFT_OUT)]


def _last_lines(error: BaseException) -> str:
    message, notes = message_of(error), getattr(error, "__notes__", ())
    lines = [f"{_full_name(error)}: {message}" if message else _full_name(error)]
    lines += [note for note in notes if isinstance(note, str)] if isinstance(notes, list | tuple) else []
    return "\n".join(lines) + "\n"


def _full_name(error: BaseException) -> str:
    module, name = _module(error), type_name(error)
    return name if module in ("builtins", "__main__", "") else f"{module}.{name}"


def _module(error: BaseException) -> str:
    found = type.__dict__["__module__"].__get__(type(error))
    return found if isinstance(found, str) else ""


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())

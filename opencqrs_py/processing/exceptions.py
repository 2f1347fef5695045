"""Exceptions: which are interrupts, what a group contains, and how they are shown.

The functions that read an exception are total: however it behaves when inspected, they return a text to show.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import current_thread, local, main_thread
from typing import Any, NamedTuple

from opencqrs_py.errors import EventStoreError, ExplainedError, OpenCqrsError
from opencqrs_py.model.collector import collector_waits
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.processing.forks import end_if_forked

_MEMBERS: Any = BaseExceptionGroup.__dict__["exceptions"]  # of the class itself: a subclass may override it


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group, recursively; for any other exception, itself."""
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if issubclass(type(one), BaseExceptionGroup):  # not isinstance, which reads the class from the error itself
            waiting.extend(reversed(_MEMBERS.__get__(one)))
        else:
            yield one


class _Interrupts(local):
    """Whether a ``KeyboardInterrupt`` on this thread counts as an ordinary error."""

    are_errors = False


_interrupts = _Interrupts()


@contextlib.contextmanager
def interrupts_are_errors() -> Iterator[None]:
    """Treat each ``KeyboardInterrupt`` in this block as an error of the project's code, also on the main thread."""
    before, _interrupts.are_errors = _interrupts.are_errors, True
    try:
        yield
    finally:
        _interrupts.are_errors = before


def raise_interrupt(error: BaseException) -> None:
    """Raise ``error`` again if it is a real interrupt, alone or in a group; else return.

    Python delivers signals to the main thread only. A ``KeyboardInterrupt`` that is raised on another thread comes
    from the project's code, and is an ordinary error. So is every other ``BaseException``: a panic of a Rust
    extension, ``SystemExit``, ``CancelledError``, ``GeneratorExit``.

    In a worker of Spark there is no Ctrl-C: see ``interrupts_are_errors``. A process that the project's code has forked
    ends here, see ``end_if_forked``.

    Raises:
        KeyboardInterrupt: If there is one, on the main thread.

    Source:
        Decision K6.
    """
    end_if_forked(error, depth=2)
    if current_thread() is not main_thread() or _interrupts.are_errors:
        return
    for one in leaves(error):
        if issubclass(type(one), KeyboardInterrupt):
            raise one if one is error else KeyboardInterrupt from error


MOST_NAME = 200
MOST_MESSAGE = 4_000
MOST_LABEL = 1_000
_CODE = re.compile(r"OCQ-\d{3}")
_MARGIN = 4_000  # characters of the longest secret that is found where a text is cut
_MOST_LOOKED_AT = 20_000  # characters at each end of a text, most of which may be secrets

# Control characters except tab and line end: databases refuse NUL, terminals act on others.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class ErrorText(NamedTuple):
    """The parts of an exception that are shown.

    Attributes:
        name: Name of its class, without the module; at most about 200 characters.
        message: Its text; of an explained error, what is wrong. At most about 4,000 characters.
    """

    name: str
    message: str


def error_text(error: BaseException) -> ErrorText:
    """Return name and message of an exception; never raises, except for an interrupt."""
    return ErrorText(type_name(error), message_of(error))


def placed_error_text(error: BaseException) -> ErrorText:
    """Return name and message of an exception that belongs to no event; of an explained error, with its place."""
    name, message = error_text(error)
    place = _read(lambda: getattr(error, "where", ""))
    if not issubclass(type(error), ExplainedError) or not isinstance(place, str) or not place:
        return ErrorText(name, message)
    return ErrorText(name, plain_text(f"{message}, in {place}", MOST_MESSAGE))


def one_line(error: BaseException) -> str:
    """Return the name of an exception's class and the first line of its text."""
    name, message = error_text(error)
    first_line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return f"{name}: {first_line}" if first_line else name


def type_name(error: BaseException) -> str:
    """Return the name of an exception's class, whatever its metaclass says."""
    # the attribute of ``type`` itself: a metaclass may have a property of that name
    return plain_text(type.__dict__["__name__"].__get__(type(error)), MOST_NAME)


def message_of(error: BaseException) -> str:
    """Return the text of an exception; of an explained error, what is wrong."""
    explained = issubclass(type(error), ExplainedError)
    text = _read(lambda: getattr(error, "what") if explained else str(error))  # noqa: B009 known by its class only
    if explained and not isinstance(text, str):  # half initialised: a subclass that has not called our constructor
        text = _read(lambda: str(error))
    if isinstance(text, str):
        return plain_text(text, MOST_MESSAGE)
    return f"its text cannot be shown: str() raised {text.name}"


def code_of(error: BaseException) -> str:
    """Return the code of one of this package's exceptions, empty if it has none."""
    if not issubclass(type(error), OpenCqrsError):
        return ""
    code = _read(lambda: getattr(error, "code", ""))
    return code if isinstance(code, str) and _CODE.fullmatch(code) else ""


def failure_of(error: BaseException, origin: Origin, *, permanent: bool = False, traceback: str = "") -> Failure:
    """Return an error that belongs to no event as a failure."""
    name, message = error_text(error)
    return Failure(origin, permanent, name, message, code_of(error), traceback, advice=advice_of(error))


def advice_of(error: BaseException) -> str:
    """Return place and fix of an explained error, as lines; empty for other errors."""
    if not issubclass(type(error), ExplainedError):
        return ""
    lines = []
    for heading, name in (("where:", "where"), ("fix:", "fix")):
        text = _read(lambda: getattr(error, name))  # noqa: B023 called at once
        if isinstance(text, str) and text:
            lines.append(f"  {heading:<6} {plain_text(text, MOST_LABEL)}")
    return "\n".join(lines)


def label_text(label: Callable[[], str]) -> str:
    """Return how messages name an event, from a function that may fail."""
    text = _read(label)
    return plain_text(text, MOST_LABEL) if isinstance(text, str) else f"an event whose label raised {text.name}"


def plain_text(text: str, most: int) -> str:
    """Return a text that every database, terminal and JSON writer accepts.

    Secrets are hidden; lone surrogates and control characters are escaped. Of a text with more than ``most``
    characters the middle is left out.
    """
    exact = str.__str__(text)  # no method that a subclass of ``str`` overrides is called
    if len(exact) > most:
        tail = most // 3
        head, end = _scrubbed_begin(exact, most - tail), _scrubbed_end(exact, tail)
        exact = f"{head} … ({len(exact):,} characters in all) … {end}"
    else:
        exact = scrubbed(exact)
    whole = exact.replace("\r\n", "\n").encode("utf-8", "backslashreplace").decode("utf-8")
    return whole.translate(_CONTROLS)


def _scrubbed_begin(text: str, most: int) -> str:
    """Return the first characters of a text without secrets, and without the beginning of one that is cut."""
    looked_at = most + _MARGIN
    while looked_at < len(text):
        found = scrubbed(text[:looked_at])
        sure = len(found) - _MARGIN  # which gets shorter with each secret that is hidden
        if sure >= most or looked_at > _MOST_LOOKED_AT:
            return found[: max(0, min(sure, most))]
        looked_at *= 2
    return scrubbed(text)[:most]


def _scrubbed_end(text: str, most: int) -> str:
    """Return the last characters of a text without secrets, and without the end of one that is cut."""
    looked_at = most + _MARGIN
    while looked_at < len(text):
        found = scrubbed(text[-looked_at:])[_MARGIN:]
        if len(found) >= most or looked_at > _MOST_LOOKED_AT:
            return found[-most:]
        looked_at *= 2
    return scrubbed(text)[-most:]


class _Unreadable(NamedTuple):
    name: str


def _read(read: Callable[[], str]) -> str | _Unreadable:
    try:
        text = read()
    except BaseException as error:
        raise_interrupt(error)
        return _Unreadable(type_name(error))
    return text if isinstance(text, str) else _Unreadable("TypeError")


_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
_OF_CONTAINERS = "src/dependency_injector/"  # its compiled code names its source files
_LEFT_OUT = (_PACKAGE, contextlib.__file__, _OF_CONTAINERS)  # the second one closes context managers of this package
# Libraries whose frames say nothing about a failing statement or data frame.
_LIBRARIES = ("sqlalchemy", "psycopg", "pymysql", "pyspark", "py4j")

_INNER = "opencqrs_py.processing."  # exceptions between our own functions, never seen outside
MOST_CHARACTERS = 20_000
_MOST_FRAMES = 2_000  # the innermost ones
_MOST_CAUSES = 10
_MOST_MEMBERS = 5  # of a group of exceptions
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


class _Link(NamedTuple):
    """An exception of a chain, and its relation to the next one."""

    error: BaseException
    led_by: str


def own_frames(error: BaseException) -> str:
    """Format an exception with its causes, without frames of this package, of Spark and of libraries of databases.

    Empty when no frame is left: the error arose in this package or below it. Empty, too, for an event store's
    error that passed through frames of this package only, whatever a library below raised. Never raises, except for an
    interrupt; at most about 20,000 characters.
    """
    try:
        if issubclass(type(error), EventStoreError) and not _frames(error):
            return ""
        shown, frames = _shown(error, members=True)
    except BaseException as failure:  # an exception may do anything when inspected
        raise_interrupt(failure)
        return ""
    return plain_text(shown.rstrip(), MOST_CHARACTERS) if frames else ""


def one_line_with_place(error: BaseException) -> str:
    """Return what ``one_line`` does, with ``(file:line)`` of the project, else of a library, that raised."""
    from opencqrs_py.processing.begun_tasks import NOT_OF_PROJECTS  # noqa: PLC0415 only when something went wrong

    try:
        frames = _frames(error)
        own = [each for each in frames if not each.filename.startswith(NOT_OF_PROJECTS)]
        frame = next(reversed(own or frames), None)
    except BaseException as failure:  # an exception may do anything when inspected
        raise_interrupt(failure)
        frame = None
    return one_line(error) + (f" ({frame.filename}:{frame.lineno})" if frame is not None else "")


def _formatted(frames: list[traceback.FrameSummary]) -> str:
    with collector_waits():
        return "".join(traceback.StackSummary.from_list(frames).format())


def stack_of_thread(number: int) -> str:
    """Format the stack of a thread, beginning with the first frame below this package; empty if there is none."""
    frame = sys._current_frames().get(number)  # noqa: SLF001 the documented way, for debuggers
    frames = traceback.extract_stack(frame, limit=_MOST_FRAMES) if frame is not None else []
    ours = [index for index, each in enumerate(frames) if each.filename.startswith(_PACKAGE)]
    below = [each for each in frames[ours[0] if ours else 0 :] if not each.filename.startswith(_LEFT_OUT)]
    text = "Stack of its thread (most recent call last):\n" + _formatted(below)
    return plain_text(text.rstrip(), MOST_CHARACTERS) if below else ""


def _shown(error: BaseException, *, members: bool) -> tuple[str, int]:
    """Return an exception's text, preceded by those of its causes, and its number of frames."""
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
        if before is not None and _module(error) == "sqlalchemy.exc" and getattr(error, "orig", None) is before:
            return  # the driver's error, whose text is part of SQLAlchemy's
        if before is None or id(before) in seen or _module(before).startswith(_INNER):
            return  # the error of the whole chunk, before it was tried in parts, is not a cause of this one
        led_by = _CONTEXT if cause is None else _CAUSE
        error = before
        seen.add(id(error))


def _alone(error: BaseException, *, members: bool) -> tuple[str, int]:
    frames = _frames(error)
    head = "Traceback (most recent call last):\n" if frames else ""
    text = head + _formatted(frames) + _last_lines(error)
    count = len(frames)
    if members and isinstance(error, BaseExceptionGroup):
        for number, member in enumerate(error.exceptions[:_MOST_MEMBERS], 1):
            shown, more = _shown(member, members=False)
            text += f"  exception {number} of {len(error.exceptions)}:\n" + _indented(shown)
            count += more
    return text, count


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    stack = traceback.extract_tb(error.__traceback__, limit=-_MOST_FRAMES)
    return [frame for frame in stack if not frame.filename.startswith((*_LEFT_OUT, *_library_folders()))]


@cache
def _library_folders() -> tuple[str, ...]:
    """Return the locations of these libraries, without importing them."""
    specs = []
    for name in _LIBRARIES:
        with contextlib.suppress(ValueError):  # a test has put something else in its place
            specs.append(find_spec(name))
    return tuple(str(Path(spec.origin).parent) + os.sep for spec in specs if spec is not None and spec.origin)


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

"""Error text: what an exception says, as plain text of bounded length.

Every function here is total: whatever an exception does when it is looked at, something can be shown of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from opencqrs_py.errors import ExplainedError, OpenCqrsError
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.outcome import Origin, Trouble
from opencqrs_py.processing.interrupts import raise_interrupt

__all__ = [
    "ErrorText",
    "advice_of",
    "code_of",
    "error_text",
    "label_text",
    "message_of",
    "one_line",
    "placed_error_text",
    "plain_text",
    "trouble_of",
    "type_name",
]

MOST_NAME = 200
MOST_MESSAGE = 4_000
MOST_LABEL = 1_000
_CODE = re.compile(r"OCQ-\d{3}")
_MARGIN = 1_000  # characters in which a secret would be seen that the cut divides

# Control characters but tab and line end: databases refuse NUL, terminals act on others.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class ErrorText(NamedTuple):
    """What can be shown of an exception.

    Attributes:
        name: Name of its class, without the module; at most about 200 characters.
        message: Its text, of an explained error what is wrong; at most about 4,000 characters.
    """

    name: str
    message: str


def error_text(error: BaseException) -> ErrorText:
    """Return what can be shown of an exception; never raises, except for an interrupt."""
    return ErrorText(type_name(error), message_of(error))


def placed_error_text(error: BaseException) -> ErrorText:
    """Return what can be shown of an exception that belongs to no event: of an explained error, where it is, too."""
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
    if explained and not isinstance(text, str):  # half made: a child that has not called our constructor
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


def trouble_of(error: BaseException, origin: Origin, *, permanent: bool = False, traceback: str = "") -> Trouble:
    """Return an error that belongs to no event as a trouble."""
    name, message = error_text(error)
    return Trouble(origin, permanent, name, message, code_of(error), traceback, advice=advice_of(error))


def advice_of(error: BaseException) -> str:
    """Return where an explained error is and how to fix it, as lines; empty for other errors."""
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
    """Return a text that every database, terminal and JSON writer takes.

    Secrets are hidden; lone surrogates and control characters become visible. Of a text with more than ``most``
    characters the middle is left out.
    """
    exact = str.__str__(text)  # of a child of ``str``, no method of its own is called
    if len(exact) > most:
        tail = most // 3
        head, end = scrubbed(exact[: most - tail + _MARGIN]), scrubbed(exact[-tail - _MARGIN :])
        exact = f"{head[: most - tail]} … ({len(exact):,} characters in all) … {end[-tail:]}"
    else:
        exact = scrubbed(exact)
    whole = exact.replace("\r\n", "\n").encode("utf-8", "backslashreplace").decode("utf-8")
    return whole.translate(_CONTROLS)


class _Unreadable(NamedTuple):
    name: str


def _read(read: Callable[[], str]) -> str | _Unreadable:
    try:
        text = read()
    except BaseException as error:
        raise_interrupt(error)
        return _Unreadable(type_name(error))
    return text if isinstance(text, str) else _Unreadable("TypeError")

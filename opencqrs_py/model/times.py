"""Times of events: the forms of RFC 3339, and the instants that they denote."""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAYS_OF_400_YEARS = 146_097  # after which the calendar repeats itself
_DAY, _HOUR, _MINUTE = 86_400, 3_600, 60  # seconds
_SHOWN = 40  # most characters of a wrong time in a message
_EXAMPLE = "write it like 2026-01-02T03:04:05Z or 2026-01-02T03:04:05.678+01:00"

surely_a_time = re.compile(
    "[0-9]{4}+-"
    "(?:(?:0[1-9]|1[0-2])-(?:[01][1-9]|10|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]++)?(?:Z|[+-][01][0-9]:[0-5][0-9])"
).fullmatch  # without a possessive group: before 3.11.5 Python keeps what a failed such group matched
"""Cheaply matches nearly all valid times, and nothing else."""

_PARTS = {
    "(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})(?![0-9])": "the date must be written as YYYY-MM-DD",
    "[Tt ]": "there must be a T between date and time of day",
    "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?![0-9])": "the time of day must be written hh:mm:ss",
    r"(?:\.(?P<fraction>[0-9]+)|(?![.,]))": "a fraction of a second must be a point and digits",
    r"(?!\Z)": "an offset is missing",
    r"(?:[Zz]|(?P<sign>[+-])(?P<hours>[0-9]{2}):(?P<minutes>[0-9]{2}))\Z": "the offset must be Z, +hh:mm or -hh:mm",
}
_TIME = re.compile("".join(_PARTS))
_NO_FRACTION = re.compile(r"\.(?!\d)")
_RANGES = {
    "month": (1, 12),
    "hour": (0, 23),
    "minute": (0, 59),
    "second": (0, 60),
    "hours": (0, 23),
    "minutes": (0, 59),
}
_NAMES = {"hours": "hours of the offset", "minutes": "minutes of the offset"}


def in_milliseconds(moment: datetime) -> str:
    """Return a moment as ISO 8601 text, to the millisecond; texts of UTC moments sort by time."""
    return moment.isoformat(timespec="milliseconds")


def is_time(text: str) -> bool:
    """Return whether a text is an RFC 3339 time; see ``check_time``."""
    if surely_a_time(text):
        return True
    try:
        check_time(text)
    except ValueError:
        return False
    return True


def check_time(text: str | None) -> None:
    """Refuse a text that is not an RFC 3339 time; ``None``, no time, is accepted.

    Raises:
        ValueError: With the mistake, and the form of a time.

    Source:
        RFC 3339, section 5.6, including a space instead of ``T``, as its note allows; section 5.7 for leap seconds,
        which are accepted at the end of any month, as they are not known in advance.
    """
    if text is not None:
        _parsed(text)


def microseconds(time: str | None) -> int | None:
    """Return a time as microseconds since 1970, truncated, or ``None`` for ``None``.

    A leap second is the first moment of the next second. Any other form that Python reads as a time with an offset is
    accepted, such as ``20260102T030405Z``: earlier versions accepted them, so logs contain them.

    Raises:
        ValueError: If it is not a time with an offset.
    """
    if time is None:
        return None
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        seconds, fraction, _ = _parsed(time)
        return seconds * 1_000_000 + fraction
    if moment.tzinfo is None:
        check_time(time)  # refuses it
    since = moment - _EPOCH
    return (since.days * _DAY + since.seconds) * 1_000_000 + since.microseconds


def moment_of(time: str) -> datetime:
    """Return the moment of ``microseconds`` as a datetime with the time's own offset.

    A time without an offset, which another program may have written into a table, is a datetime without one.

    Raises:
        ValueError: If it is not a time, or its year is not one of Python's, 1..9999.
    """
    if _NO_FRACTION.search(time):  # which Python accepts
        raise ValueError(f"{time!r} has a point without a digit after it")
    try:
        return datetime.fromisoformat(time)
    except ValueError:
        seconds, fraction, offset = _parsed(time)
    try:
        local = _EPOCH + timedelta(seconds=seconds + offset, microseconds=fraction)
    except OverflowError:
        raise ValueError(f"{time!r} is in a year that Python's datetime does not have; it has 1 to 9999") from None
    return local.replace(tzinfo=timezone(timedelta(seconds=offset)) if offset else UTC)


def in_utc(moment: str | None) -> str | None:
    """Return the text of a time; one without a zone, as SQLite's own functions write it, is treated as UTC.

    What is not a time is returned as it is.
    """
    if moment is None or moment.endswith("Z"):
        return moment
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{found.isoformat()}Z" if found.tzinfo is None else moment


def moment_in_utc(value: date | str) -> date | str:
    """Return a text that is a time with an offset as its moment in UTC; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        moment = moment_of(value)
        return value if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return value


def _parsed(text: str) -> tuple[int, int, int]:
    """Return the seconds since 1970, the microseconds after them, and the offset in seconds.

    Raises:
        ValueError: As ``check_time``.
    """
    try:
        return _computed(text)
    except ValueError as error:
        shown = repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"
        raise ValueError(f"{error}, got {shown}; {_EXAMPLE}") from None


def _computed(text: str) -> tuple[int, int, int]:
    found = _TIME.match(text)
    if found is None:
        raise ValueError(_flaw(text))
    fraction = found["fraction"] or ""
    given = {name: int(found[name] or 0) for name in ("year", "day", *_RANGES)}
    for name, (least, most) in _RANGES.items():
        _check(_NAMES.get(name, name), given[name], least, most)
    _check("day", given["day"], 1, monthrange(given["year"], given["month"])[1])
    offset = (given["hours"] * _HOUR + given["minutes"] * _MINUTE) * (-1 if found["sign"] == "-" else 1)
    of_day = given["hour"] * _HOUR + given["minute"] * _MINUTE + given["second"]
    seconds = _days(given["year"], given["month"], given["day"]) * _DAY + of_day - offset
    if given["second"] < _MINUTE:
        return seconds, int(fraction[:6].ljust(6, "0")), offset
    if not _begins_a_month(seconds):
        raise ValueError("a leap second (:60) must be the last of a month in UTC")
    return seconds, 0, offset


def _flaw(text: str) -> str:
    """Return a description of the first wrong part."""
    patterns = list(_PARTS)
    beginnings = ("".join(patterns[: number + 1]) for number in range(len(patterns)))
    return next(_PARTS[patterns[n]] for n, beginning in enumerate(beginnings) if not re.match(beginning, text))


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"the {name} must be {least:02} to {most:02}")


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970. The calendar of RFC 3339 begins with the year 0, Python's with 1."""
    if year == 0:
        return _days(400, month, day) - _DAYS_OF_400_YEARS
    return date(year, month, day).toordinal() - _EPOCH_DAY


def _begins_a_month(seconds: int) -> bool:
    days, of_day = divmod(seconds, _DAY)
    return of_day == 0 and date.fromordinal((days + _EPOCH_DAY - 1) % _DAYS_OF_400_YEARS + 1).day == 1

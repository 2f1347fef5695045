"""Durations: read from text with a unit, written back in their shortest form."""

from __future__ import annotations

import math
import re
from decimal import Decimal

INFINITE = "infinite"
"""How a duration or a number without limit is written."""

_LONGEST = 1e12
_INFINITE_SPELLINGS = frozenset({"infinite", "infinity", "inf", ".inf", "unlimited", "∞"})
_SECONDS = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
    "us": Decimal("0.000001"),
    "ns": Decimal("0.000000001"),
}
_WORDS = {
    **{unit: unit for unit in _SECONDS},
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("milli", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("µs", "μs", "micros", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("nanos", "nanosecond", "nanoseconds"), "ns"),
}
_ORDER = tuple(_SECONDS)

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_BARE = re.compile(rf"[+-]?{_NUMBER}")
_PART = re.compile(rf"({_NUMBER})\s*([a-zµμ]+)\s*")
_PARTS = re.compile(rf"(?:{_NUMBER}\s*[a-zµμ]+\s*)+")
_ISO = re.compile(
    r"p(?:(?P<w>[0-9]+)w)?(?:(?P<d>[0-9]+)d)?"
    r"(?:t(?=[0-9])(?:(?P<h>[0-9]+)h)?(?:(?P<m>[0-9]+)m)?(?:(?P<s>[0-9]+(?:[.,][0-9]+)?)s)?)?",
)
_ISO_CALENDAR = re.compile(r"p[^t]*[ym].*")


def is_infinite(text: str) -> bool:
    """Return whether ``text`` is a way to say that there is no limit."""
    return text.strip().casefold() in _INFINITE_SPELLINGS


def parse_duration(text: str, *, infinite: bool = False) -> float:
    """Return the seconds that ``text`` says.

    Args:
        text: Numbers with units (``2s``, ``500ms``, ``1m30s``), ISO-8601 (``PT10S``), or ``infinite``.
        infinite: Whether ``infinite`` (``inf``, ``∞``, ``unlimited``) may be said.

    Returns:
        Seconds, 0 or more, ``math.inf`` for no limit.

    Raises:
        ValueError: The text is no duration; the message says what to write instead.

    Source:
        Spring Boot reference, "Converting Durations", without its bare milliseconds and with combinations.
    """
    said = text.strip().casefold()
    if is_infinite(said):
        if infinite:
            return math.inf
        msg = "it needs an end; write it like 30s, 500ms or PT30S"
        raise ValueError(msg)
    if _BARE.fullmatch(said):
        raise ValueError(_unit_is_missing(said))
    seconds = _iso_seconds(said) if said.startswith("p") else _unit_seconds(said)
    return checked_seconds(seconds)


def checked_seconds(seconds: float) -> float:
    """Return ``seconds`` when it is 0 to about 30,000 years.

    Raises:
        ValueError: It is below, above, or not a number.
    """
    if 0 <= seconds <= _LONGEST:
        return seconds
    msg = "a duration cannot be negative" if seconds < 0 else "it is too long to be counted"
    raise ValueError(msg)


def duration_text(seconds: float) -> str:
    """Return the shortest text that :func:`parse_duration` reads as ``seconds``."""
    if math.isinf(seconds):
        return INFINITE
    left = Decimal(repr(seconds))
    if 0 < left < 1:
        return _fraction_text(left)
    text = ""
    for unit in ("d", "h", "m"):
        count, left = divmod(left, _SECONDS[unit])
        text += f"{count:.0f}{unit}" if count else ""
    return text + (f"{_plain(left)}s" if left or not text else "")


def _fraction_text(left: Decimal) -> str:
    """Return less than a second in the largest unit of which there is at least one."""
    unit = next((unit for unit in ("ms", "us") if left >= _SECONDS[unit]), "ns")
    return f"{_plain(left / _SECONDS[unit])}{unit}"


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _unit_is_missing(number: str) -> str:
    if number.startswith("-"):
        return "a duration cannot be negative; write it like 2s, 500ms or PT10S"
    digits = number.removeprefix("+")
    return f"the unit is missing; write {digits}s for seconds, {digits}ms for milliseconds, or PT{digits}S in ISO-8601"


def _iso_seconds(said: str) -> float:
    if _ISO_CALENDAR.fullmatch(said):
        msg = "months and years have no fixed length; write days (P30D), or put a T before minutes (PT1M)"
        raise ValueError(msg)
    match = _ISO.fullmatch(said)
    found = {unit: number for unit, number in match.groupdict().items() if number} if match else {}
    if not found:
        msg = "it is no ISO-8601 duration; write it like PT10S, PT1M30S or P1DT2H"
        raise ValueError(msg)
    factors = {**_SECONDS, "w": 7 * _SECONDS["d"]}
    return float(sum(Decimal(number.replace(",", ".")) * factors[unit] for unit, number in found.items()))


def _unit_seconds(said: str) -> float:
    if not _PARTS.fullmatch(said):
        reason = "a clock time is not a duration" if ":" in said else "it is no duration"
        msg = f"{reason}; write it like 2s, 500ms, 1m30s or PT10S"
        raise ValueError(msg)
    parts = _PART.findall(said)
    for _, word in parts:
        if word not in _WORDS:
            msg = f"{word!r} is no unit of time; use one of {', '.join(_SECONDS)}"
            raise ValueError(msg)
    units = [_WORDS[word] for _, word in parts]
    if units != sorted(set(units), key=_ORDER.index):
        msg = "each unit may come once, the longest first, like 1h30m"
        raise ValueError(msg)
    return float(sum(Decimal(number) * _SECONDS[unit] for (number, _), unit in zip(parts, units, strict=True)))

"""Durations: read from text with a unit, written back in their shortest form."""

from __future__ import annotations

import math
import re
from decimal import Decimal

INFINITE = "infinite"
"""How a duration or a number without limit is written."""

_LONGEST = 1e12
_INFINITE_SPELLINGS = frozenset({"infinite", "infinity", "inf", ".inf", "unlimited", "∞"})
_UNITS = {
    "d": (Decimal(86400), "day days"),
    "h": (Decimal(3600), "hr hrs hour hours"),
    "m": (Decimal(60), "min mins minute minutes"),
    "s": (Decimal(1), "sec secs second seconds"),
    "ms": (Decimal("0.001"), "milli millis millisecond milliseconds"),
    "us": (Decimal("0.000001"), "µs μs micros microsecond microseconds"),
    "ns": (Decimal("0.000000001"), "nanos nanosecond nanoseconds"),
}
_SECONDS = {unit: seconds for unit, (seconds, _) in _UNITS.items()}
_WORDS = {word: unit for unit, (_, words) in _UNITS.items() for word in (unit, *words.split())}

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_BARE = re.compile(rf"[+-]?{_NUMBER}")
_PART = re.compile(rf"({_NUMBER})\s*([a-zµμ]+)\s*")
_PARTS = re.compile(rf"(?:{_NUMBER}\s*[a-zµμ]+\s*)+")
_ISO = re.compile(r"p(?=[0-9]|t)([0-9]+w)?([0-9]+d)?(t(?=[0-9])([0-9]+h)?([0-9]+m)?([0-9]+([.,][0-9]+)?s)?)?", re.ASCII)
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
        raise ValueError("it needs an end; write it like 30s, 500ms or PT30S")
    if _BARE.fullmatch(said):
        raise ValueError(_unit_is_missing(said))
    parts = _iso_parts(said) if said.startswith("p") else _parts(said)
    return checked_seconds(float(sum(Decimal(number) * seconds for number, seconds in parts)))


def checked_seconds(seconds: float) -> float:
    """Return ``seconds`` when it is 0 to about 30,000 years.

    Raises:
        ValueError: It is below, above, or not a number.
    """
    if 0 <= seconds <= _LONGEST:
        return seconds
    raise ValueError("a duration cannot be negative" if seconds < 0 else "it is too long to be counted")


def duration_text(seconds: float) -> str:
    """Return the shortest text that :func:`parse_duration` reads as ``seconds``."""
    if math.isinf(seconds):
        return INFINITE
    left, text = Decimal(repr(seconds)), ""
    if 0 < left < 1:
        unit = next((unit for unit in ("ms", "us") if left >= _SECONDS[unit]), "ns")
        return f"{_plain(left / _SECONDS[unit])}{unit}"
    for unit in ("d", "h", "m"):
        count, left = divmod(left, _SECONDS[unit])
        text += f"{count:.0f}{unit}" if count else ""
    return text + (f"{_plain(left)}s" if left or not text else "")


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _unit_is_missing(number: str) -> str:
    if number.startswith("-"):
        return "a duration cannot be negative; write it like 2s, 500ms or PT10S"
    digits = number.removeprefix("+")
    return f"the unit is missing; write {digits}s for seconds, {digits}ms for milliseconds, or PT{digits}S in ISO-8601"


def _iso_parts(said: str) -> list[tuple[str, Decimal]]:
    if _ISO_CALENDAR.fullmatch(said):
        raise ValueError("months and years have no fixed length; write days (P30D), or put a T before minutes (PT1M)")
    if not _ISO.fullmatch(said):
        raise ValueError("it is no ISO-8601 duration; write it like PT10S, PT1M30S or P1DT2H")
    factors = {**_SECONDS, "w": 7 * _SECONDS["d"]}
    return [(number, factors[unit]) for number, unit in _PART.findall(said.replace(",", ".").replace("t", ""))]


def _parts(said: str) -> list[tuple[str, Decimal]]:
    if not _PARTS.fullmatch(said):
        reason = "a clock time is not a duration" if ":" in said else "it is no duration"
        raise ValueError(f"{reason}; write it like 2s, 500ms, 1m30s or PT10S")
    parts = _PART.findall(said)
    for _, word in parts:
        if word not in _WORDS:
            raise ValueError(f"{word!r} is no unit of time; use one of {', '.join(_SECONDS)}")
    units = [_WORDS[word] for _, word in parts]
    if units != sorted(set(units), key=list(_SECONDS).index):
        raise ValueError("each unit may come once, the longest first, like 1h30m")
    return [(number, _SECONDS[unit]) for (number, _), unit in zip(parts, units, strict=True)]

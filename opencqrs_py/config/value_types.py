"""The types of single settings: how each reads text, and how it refuses what it cannot read.

Pydantic is loaded only where it validates: the values themselves travel to workers without it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from opencqrs_py.config.problems import Code
from opencqrs_py.model.mistaken_urls import url_mistake
from opencqrs_py.model.partition import MOST_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema, PydanticCustomError

AGO = "-p"
"""The beginning of an ISO 8601 duration into the past, such as ``-P7D``."""

INFINITE = "infinite"
"""The text of an unlimited duration or number."""

_LONGEST = 1_000 * 365 * 86_400  # seconds: times that are so far from now have years of four digits
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
# Compiled when a duration is read: most commands read none.
_BARE = rf"[+-]?{_NUMBER}"
_PART = rf"({_NUMBER})\s*([a-zµμ]+)\s*"
_PARTS = rf"(?:{_NUMBER}\s*[a-zµμ]+\s*)+"
_ISO = r"p(?=[0-9]|t)([0-9]+w)?([0-9]+d)?(t(?=[0-9])([0-9]+h)?([0-9]+m)?([0-9]+([.,][0-9]+)?s)?)?"
_ISO_CALENDAR = r"p[^t]*[ym].*"

_WHOLE = re.compile(r"[+-]?[0-9]+")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*|[Ff][Ii][Ll][Ee]:.+", re.DOTALL)

_DURATION_FIX = "write it like 2s, 500ms, 1m30s or PT10S"
_BIND_FIX = "write a port like 8080, or an address like 127.0.0.1:8080, [::1]:8080 or 0.0.0.0:8080"
_TOKEN_FIX = "write ASCII letters, digits and punctuation without spaces, or null for none"  # noqa: S105 no password
_LAST_PORT, _LOOPBACK = 65_535, "127.0.0.1"
_POSITION_FIX = (
    "write tail (the oldest event), head (after the newest), a position, a time like 2024-05-31T12:00:00Z, or how long "
    "ago, like -P7D"
)


@dataclass(frozen=True, slots=True)
class Fact:
    """Facts about a setting beyond its type.

    Args:
        unit: Unit of the value, for documents.
        is_url: Whether the value is a URL, whose password must not be shown.
        is_duration: Whether the number is a duration in seconds, which is written with its unit.
        none: How a setting of an effective group is written that is ``None``.
        in_documents_only: Whether the setting is about its document, and is invalid elsewhere.
        formerly: Earlier names of the field in its section; they still work, with a warning that names the new one.
    """

    unit: str = ""
    is_url: bool = False
    is_duration: bool = False
    none: str = "null"
    in_documents_only: bool = False
    formerly: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """How pydantic reads a value of the annotated type.

    Args:
        read: Returns the value of a source's text, or raises what pydantic treats as a refusal.
        schema: JSON Schema of what it reads that replaces the type's rules; ``None``: it reads before those rules.
        after: Whether it reads after those rules instead.
    """

    read: Callable[[Any], object]
    schema: Mapping[str, Any] | None = None
    after: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema as of  # noqa: PLC0415 workers do without it

        reads = of.no_info_after_validator_function if self.after else of.no_info_before_validator_function
        return reads(self.read, handler(source) if self.schema is None else of.any_schema())

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(core) if self.schema is None else dict(self.schema)


NO_FACT = Fact()
"""The facts of a field without any."""


def refusal(reason: str, fix: str, code: Code = Code.VALUE, fix_unseen: str = "") -> PydanticCustomError:
    """Return the error that refuses a value; ``fix_unseen`` is shown instead of ``fix`` if the value is secret."""
    from pydantic_core import PydanticCustomError  # noqa: PLC0415 workers do without it

    context = {"reason": reason, "fix": fix, "code": code.value, "fix_unseen": fix_unseen}
    return PydanticCustomError("opencqrs", "{reason}", context)


def is_infinite(text: str) -> bool:
    """Return whether ``text`` means that there is no limit."""
    return text.strip().casefold() in _INFINITE_SPELLINGS


def parse_duration(text: str, *, infinite: bool = False) -> float:
    """Return the seconds, 0 or more, in ``text``: ``500ms``, ``1m30s``, ``PT10S``, or if allowed, ``infinite``.

    Raises:
        ValueError: The text is not a duration; the message says what to write instead.

    Source:
        Spring Boot reference, "Converting Durations", without its bare milliseconds and with combinations.
    """
    said = text.strip().casefold()
    if is_infinite(said):
        if infinite:
            return math.inf
        raise ValueError("it needs an end; write it like 30s, 500ms or PT30S")
    if re.fullmatch(_BARE, said):
        raise ValueError(_unit_is_missing(said))
    parts = _iso_parts(said) if said.startswith("p") else _parts(said)
    return checked_seconds(float(sum(Decimal(number) * seconds for number, seconds in parts)))


def checked_seconds(seconds: float) -> float:
    """Return ``seconds``, or raise a ValueError when it is not 0 to 1,000 years."""
    if 0 <= seconds <= _LONGEST:
        return seconds
    raise ValueError("a duration cannot be negative" if seconds < 0 else "it is longer than 1,000 years (365000d)")


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
    if re.fullmatch(_ISO_CALENDAR, said):
        raise ValueError("months and years have no fixed length; write days (P30D), or put a T before minutes (PT1M)")
    if not re.fullmatch(_ISO, said):
        raise ValueError("it is not an ISO-8601 duration; write it like PT10S, PT1M30S or P1DT2H")
    factors = {**_SECONDS, "w": 7 * _SECONDS["d"]}
    return [(number, factors[unit]) for number, unit in re.findall(_PART, said.replace(",", ".").replace("t", ""))]


def _parts(said: str) -> list[tuple[str, Decimal]]:
    if not re.fullmatch(_PARTS, said):
        reason = "a clock time is not a duration" if ":" in said else "it is not a duration"
        raise ValueError(f"{reason}; write it like 2s, 500ms, 1m30s or PT10S")
    parts = re.findall(_PART, said)
    for _, word in parts:
        if word not in _WORDS:
            raise ValueError(f"{word!r} is not a unit of time; use one of {', '.join(_SECONDS)}")
    units = [_WORDS[word] for _, word in parts]
    if units != sorted(set(units), key=list(_SECONDS).index):
        raise ValueError("each unit may come once, the longest first, like 1h30m")
    return [(number, _SECONDS[unit]) for (number, _), unit in zip(parts, units, strict=True)]


def _duration(value: object, *, infinite: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, str | timedelta | float | int):
        raise refusal("it is not a duration", _DURATION_FIX, Code.DURATION, _DURATION_FIX)
    try:
        if isinstance(value, str):
            return parse_duration(value, infinite=infinite)
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
        return seconds if infinite and seconds == math.inf else checked_seconds(seconds)
    except ValueError as error:
        reason, _, fix = str(error).partition("; ")
        raise refusal(reason, fix or _DURATION_FIX, Code.DURATION, _DURATION_FIX) from None


def _whole(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not _WHOLE.fullmatch(text):
        raise refusal("it is not a whole number", "write digits only, like 4")
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits.startswith("0"):
        fix = f"write {digits.lstrip('0') or '0'}"
        raise refusal("its leading zero could mean an octal number", fix, fix_unseen="write no leading zero")
    return int(text)


def _finite(value: float) -> float:
    if math.isfinite(value):
        return value
    raise refusal("it is not a finite number", "write digits, with a point if necessary, like 1.5")


def _attempts(value: object, *, least: int = 0) -> int | None:
    if value == math.inf or (isinstance(value, str) and is_infinite(value)):
        return None
    number = _whole(value)
    if not isinstance(number, int) or isinstance(number, bool):
        raise refusal("it is not a whole number", "write digits only, like 4, or infinite")
    if number < least:
        raise refusal(f"it is below {least}", f"write {least} or more, or infinite", Code.RANGE)
    return number


def text_of(value: object) -> str:
    """Return ``value`` if it is a string, or raise what pydantic treats as a refusal."""
    if not isinstance(value, str):
        raise refusal("it is not text", "write a text")
    return value


def _subject(value: object) -> str:
    text = text_of(value)
    if not text.startswith("/"):
        fix = f"write /{text}" if text else "write / for all subjects"
        raise refusal("a subject starts with /", fix, fix_unseen="put a / in front of it")
    if (subject := text.rstrip("/") or "/") != text:
        fix, fix_unseen = f"write {subject}: it selects the subjects below it, too", "leave out the / at its end"
        reason = "a subject does not end with /, which would leave out the events of the subject itself"
        raise refusal(reason, fix, fix_unseen=fix_unseen)
    return text


def _url(value: object) -> str:
    text = text_of(value).strip()
    if (mistake := url_mistake(text)) is not None:
        raise refusal(*mistake)
    if _URL.fullmatch(text):
        return text
    raise refusal("it is not a URL", "write it like sqlite:///events.db or postgresql://user@host/database")


def _name(value: object) -> str:
    if text := text_of(value).strip():
        return text
    raise refusal("it names nothing", "write the name under which the provider is registered, or null for none")


def _token(value: object) -> str:
    text = text_of(value).strip()
    if re.fullmatch("[!-~]+", text):
        return text
    reason = "it holds a character that no program can send" if text else "it is empty"
    raise refusal(reason, _TOKEN_FIX, fix_unseen=_TOKEN_FIX)


def _position(value: object) -> str:
    text = value.isoformat() if isinstance(value, datetime) else str(value).strip()
    if text.casefold() in {"tail", "head"}:
        return text.casefold()
    if re.fullmatch("[0-9]+", text):
        return text
    if text[:2].casefold() == AGO:
        try:
            parse_duration(text[1:])
        except ValueError as error:
            reason, _, fix = str(error).partition("; ")
            raise refusal(reason, fix or _POSITION_FIX, fix_unseen=_POSITION_FIX) from None
        return text.upper()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise refusal("it is not a place in the store", _POSITION_FIX) from None
    if moment.tzinfo is None:
        fix = f"write {moment.isoformat()}Z, if that is the zone"
        raise refusal("a time needs its zone", fix, fix_unseen=_POSITION_FIX)
    return text


def read_cron(value: object) -> str:
    """Return a cron expression as it is written, or raise what pydantic treats as a refusal."""
    from opencqrs_py.model.cron import cron_parts  # noqa: PLC0415 few settings have one

    text = text_of(value).strip()
    try:
        cron_parts(text)
    except ValueError as error:
        reason = str(error).rpartition(": ")[2].lower()
        fix = (
            "write five fields like 0 3 * * * (each day at three), six with seconds first, or @hourly, @daily, @weekly"
        )
        raise refusal(f"it is not a cron expression ({reason})", fix) from None
    return text


def _zone(value: object) -> str:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 few settings have one

    text = text_of(value).strip()
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise refusal("there is no such time zone", "write a name like Europe/Berlin, or UTC") from None
    return text


def address_of(bind: str) -> tuple[str, int]:
    """Return host and port of an address to listen on; without a host that of this machine alone.

    Raises:
        ValueError: The text is not an address; the message says what to write instead.
    """
    host, colon, port = bind.strip().rpartition(":")
    if "/" in bind:
        raise ValueError(f"it is a URL or a path; {_BIND_FIX}")
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        raise ValueError("an IPv6 address needs brackets; write it like [::1]:8080")
    if host in {"*", "[]"}:
        raise ValueError("there is no such host; write 0.0.0.0:8080 or [::]:8080 for all networks of the machine")
    if not re.fullmatch("[0-9]+", port, re.ASCII):
        raise ValueError(f"{'the port is not a number' if colon else 'the port is missing'}; {_BIND_FIX}")
    if int(port) > _LAST_PORT:
        raise ValueError(f"a port is at most {_LAST_PORT}; {_BIND_FIX}")
    return host.strip("[]") or _LOOPBACK, int(port)


def _bind(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise refusal("it is not an address", _BIND_FIX)
    try:
        host, port = address_of(str(value))
    except ValueError as error:
        reason, _, fix = str(error).partition("; ")
        raise refusal(reason, fix) from None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_DURATION_SCHEMA = {"type": "string", "pattern": r"^\s*([0-9]+(\.[0-9]+)?\s*[a-zA-Zµ]+\s*)+$|^[Pp].+$"}
_INFINITE_SCHEMA = {"enum": ["infinite", "unlimited", "inf"]}
_ATTEMPTS_SCHEMA = {"anyOf": [_INFINITE_SCHEMA, {"type": "integer", "minimum": 0}]}

Duration = Annotated[float, Reads(_duration, _DURATION_SCHEMA), Fact(unit="duration", is_duration=True)]
"""Seconds, 0 or more."""
EndlessDuration = Annotated[
    float,
    Reads(partial(_duration, infinite=True), {"anyOf": [_INFINITE_SCHEMA, _DURATION_SCHEMA]}),
    Fact(unit="duration or infinite", is_duration=True),
]
"""Seconds, 0 or more; ``math.inf`` for no limit."""
Attempts = Annotated[int | None, Reads(_attempts, _ATTEMPTS_SCHEMA), Fact(unit="attempts or infinite", none=INFINITE)]
"""A number of attempts, 0 or more; ``None`` for no limit."""
TotalAttempts = Annotated[
    int | None,
    Reads(partial(_attempts, least=1), {"anyOf": [_INFINITE_SCHEMA, {"type": "integer", "minimum": 1}]}),
    Fact(unit="1 or more, or infinite", none=INFINITE),
]
"""A number of attempts, 1 or more; ``None`` for no limit."""
Whole = Annotated[int, Reads(_whole)]
"""A whole number, without a leading zero."""
PartitionCount = Annotated[Whole, Ge(1), Le(MOST_PARTITIONS), Fact(unit=f"1 to {MOST_PARTITIONS:,}")]
"""How many partitions a group has."""
Number = Annotated[float, Reads(_finite, after=True)]
"""A finite number."""
Multiplier = Annotated[Number, Ge(1), Fact(unit="factor, 1 or more")]
"""What each wait is multiplied by to get the next one."""
Jitter = Annotated[Number, Ge(0), Le(1), Fact(unit="share of the wait, 0 to 1")]
"""The share of a wait that may be left out at random."""
Subject = Annotated[str, Reads(_subject, {"type": "string", "pattern": "^/$|^/.*[^/]$"})]
"""A subject of events; starts with ``/``, and does not end with it."""
Url = Annotated[str, Reads(_url, {"type": "string", "pattern": "://|^[Ff][Ii][Ll][Ee]:."}), Fact(is_url=True)]
"""Where a store or a database is; may hold a password."""
Name = Annotated[str, Reads(_name, {"type": "string"})]
"""Name of a provider of the assembly container."""
Token = Annotated[str, Reads(_token, {"type": "string"})]
"""A secret that is sent in a header of HTTP: visible characters of ASCII."""
Bind = Annotated[str, Reads(_bind, {"type": ["string", "integer"], "pattern": "^[^/]*[0-9]+$"})]
"""An address to listen on, ``host:port``; see :func:`address_of`."""
Cron = Annotated[str, Reads(read_cron, {"type": "string"})]
"""A cron expression of five fields, of six with seconds first, or ``@daily`` and its like."""
Zone = Annotated[str, Reads(_zone, {"type": "string"})]
"""A time zone by its name."""
Position = Annotated[str, Reads(_position, {"type": ["string", "integer"]})]
"""Where a group without progress starts to read."""

_NEEDS_QUOTES = re.compile(r"^$|^\s|\s$|^[-?:,\[\]{}#&*!|>'\"%@`]|: |:$| #|^(?:~|null)$", re.IGNORECASE)


def written(value: object, fact: Fact = NO_FACT) -> str:
    """Return a validated value, or a list of such, as YAML text."""
    match value:
        case None:
            return fact.none
        case float() | int() if fact.is_duration:
            return duration_text(float(value))
        case list() | tuple():
            return f"[{', '.join(written(item) for item in value)}]"
        case bool():
            return str(value).lower()
        case float():
            return str(int(value)) if value.is_integer() else repr(value)
        case _:
            text = str(value.value if isinstance(value, Enum) else value)
            return json.dumps(text, ensure_ascii=False) if _NEEDS_QUOTES.search(text) else text


def typed(value: object, fact: Fact = NO_FACT) -> bool | float | str | list[str] | None:
    """Return a validated value, or a list of such, for JSON, with durations and missing limits as text."""
    match value:
        case None if fact.none == NO_FACT.none:
            return None
        case float() | int() if not fact.is_duration:
            return value
        case str() if not isinstance(value, Enum):
            return value
        case list() | tuple():
            return [str(item) for item in value]
        case _:
            return written(value, fact)

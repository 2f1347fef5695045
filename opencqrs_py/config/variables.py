"""Environment variables: which of them are settings, and how their names are read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Entry, Nothing, OriginKind, Value
from opencqrs_py.config.keys import Spelling, split_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opencqrs_py.config.keys import Path

INLINE_JSON = "OPENCQRS_APPLICATION_JSON"
"""The variable that holds settings as one JSON object."""

_OURS = re.compile(r"opencqrs(?:$|[_.])", re.IGNORECASE)
_PREFIX_LENGTH = len("opencqrs")

_SERVICE = r"OPENCQRS(?:_[A-Z0-9]+)*?"
_TRANSPORT = r"(?:TCP|UDP|SCTP)"
_OF_SERVICES = (
    (rf"{_SERVICE}_(?:SERVICE_HOST|PORT_\d+_{_TRANSPORT}_ADDR)", r"(?P<host>.+)"),
    (rf"{_SERVICE}_(?:SERVICE_PORT(?:_[A-Z0-9]+)*|PORT_\d+_{_TRANSPORT}_PORT)", "[0-9]+"),
    (rf"{_SERVICE}_PORT(?:_\d+_{_TRANSPORT})?", r"(?:tcp|udp|sctp)://(?P<host>.+):\d+"),
    (rf"{_SERVICE}_PORT_\d+_{_TRANSPORT}_PROTO", "tcp|udp|sctp"),
)
"""Forms of name and value of the variables that Kubernetes sets for Services."""


def is_ours(name: str) -> bool:
    """Return whether the variable ``name`` claims to be a setting of this package."""
    return _OURS.match(name) is not None and name.upper() != INLINE_JSON


def text_value(text: str) -> Value:
    """Return the value of a variable: an empty text is unset, ``null`` is null."""
    if not text.strip():
        return Nothing.UNSET
    return None if text.strip() == "null" else text


def spellings_of_variable(name: str, prefix_length: int = _PREFIX_LENGTH) -> Iterator[Spelling]:
    """Yield the ways to split the variable ``name``, in the order to try.

    ``OPENCQRS__A_B__C`` is split at ``__`` (the style of pydantic-settings) and, when that means nothing or there is
    no ``__``, at every ``_`` (the style of Spring Boot). A name with dots, which shells cannot set but containers
    can, is a dotted key.
    """
    rest = name[prefix_length:]
    if rest.startswith("."):
        yield Spelling.of([split_key(rest)])
        return
    segments = [[segment.strip("_")] for segment in rest.strip("_").split("__") if segment.strip("_")]
    if len(segments) > 1:
        yield Spelling.of(segments, by_variable=True)
    words = tuple(word for word in rest.split("_") if word)
    yield Spelling(words, (1,) * len(words), words=True, by_variable=True)


def variable_name(path: Path) -> str:
    """Return the variable that documents recommend for the setting at ``path``."""
    names = (re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_") for name in path)
    return "__".join(("OPENCQRS", *names))


def is_service_variable(entry: Entry) -> bool:
    """Return whether ``entry`` is a variable that Kubernetes sets in each container for a Service of the namespace.

    Those of a Service called ``opencqrs`` or ``opencqrs-store`` begin like settings of this package and are none. Name
    and value must both be of that form: ``OPENCQRS_DATABASE_PORT=5432`` is a mistake of a person.

    Source:
        Kubernetes, "Service", section "Environment variables"; ``…_PORT_5432_TCP_ADDR`` is that of Docker's links.
    """
    if entry.origin.kind is not OriginKind.VARIABLE or not isinstance(entry.value, str):
        return False
    of_form = [re.fullmatch(value, entry.value) for name, value in _OF_SERVICES if re.fullmatch(name, entry.key[0])]
    return any("host" not in found.re.groupindex or _is_address(found["host"]) for found in of_form if found)


def _is_address(text: str) -> bool:
    from ipaddress import ip_address  # noqa: PLC0415 where there is no such Service, nothing needs it

    try:
        ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True

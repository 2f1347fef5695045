"""Variables that Kubernetes sets in each container for each Service of the namespace, under the Service's name.

Those of a Service called ``opencqrs`` or ``opencqrs-store`` begin like settings of this package and are none.

Source:
    Kubernetes, "Service", section "Environment variables"; the form ``…_PORT_5432_TCP_ADDR`` is that of Docker's links.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opencqrs_py.config.origin import OriginKind

if TYPE_CHECKING:
    from opencqrs_py.config.entries import Entry

__all__ = ["is_service_variable"]

_SERVICE = r"OPENCQRS(?:_[A-Z0-9]+)*?"
_TRANSPORT = r"TCP|UDP|SCTP"
_NAMES = {
    "address": re.compile(rf"{_SERVICE}_(?:SERVICE_HOST|PORT_\d+_(?:{_TRANSPORT})_ADDR)"),
    "number": re.compile(rf"{_SERVICE}_(?:SERVICE_PORT(?:_[A-Z0-9]+)*|PORT_\d+_(?:{_TRANSPORT})_PORT)"),
    "url": re.compile(rf"{_SERVICE}_PORT(?:_\d+_(?:{_TRANSPORT}))?"),
    "transport": re.compile(rf"{_SERVICE}_PORT_\d+_(?:{_TRANSPORT})_PROTO"),
}
_URL = re.compile(r"(?:tcp|udp|sctp)://(?P<host>.+):\d+")


def is_service_variable(entry: Entry) -> bool:
    """Return whether ``entry`` is a variable that Kubernetes sets for a Service.

    Name and value must both be of that form: ``OPENCQRS_DATABASE_PORT=5432`` is a mistake of a person.
    """
    if entry.origin.kind is not OriginKind.VARIABLE or not isinstance(entry.value, str):
        return False
    return any(_has_form(form, entry.value) for form, names in _NAMES.items() if names.fullmatch(entry.key[0]))


def _has_form(form: str, value: str) -> bool:
    match form:
        case "address":
            return _is_address(value)
        case "number":
            return value.isascii() and value.isdecimal()
        case "url":
            found = _URL.fullmatch(value)
            return found is not None and _is_address(found["host"].strip("[]"))
        case _:
            return value in {"tcp", "udp", "sctp"}


def _is_address(text: str) -> bool:
    from ipaddress import ip_address  # noqa: PLC0415 where there is no such Service, nothing needs it

    try:
        ip_address(text)
    except ValueError:
        return False
    return True

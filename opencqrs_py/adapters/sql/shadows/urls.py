"""Shadows of databases: how a URL marks a database as one, and the names of its places."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256

from sqlalchemy import URL

from opencqrs_py.errors import EventStoreError

PARAMETER = "opencqrs_shadow"
"""The parameter of a database URL that marks a shadow."""

_LONGEST = 20  # characters of a group's name in the name of a place
_OTHERS = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class ShadowOf:
    """What a shadow knows about its live database.

    Attributes:
        live: Schema, database or file of the live tables.
        shared: Live tables that it shows, read-only.
    """

    live: str
    shared: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The same as JSON in ASCII, for a URL."""
        return json.dumps([self.live, *self.shared])

    @classmethod
    def of(cls, text: str) -> ShadowOf:
        """Return what a URL describes."""
        live, *shared = json.loads(text)
        return cls(live, tuple(shared))


def marked(url: URL, shadow: ShadowOf) -> str:
    """Return the URL of a shadow, with its password."""
    return url.update_query_dict({PARAMETER: shadow.text}).render_as_string(hide_password=False)


def without_mark(url: URL) -> tuple[URL, ShadowOf | None]:
    """Return a URL without the mark, and what that says."""
    said = url.query.get(PARAMETER)
    if said is None:
        return url, None
    try:
        found = ShadowOf.of(said if isinstance(said, str) else said[-1])
    except ValueError:
        what = f"the parameter {PARAMETER} of a database URL is created by opencqrs groups rebuild, but this one is not"
        raise EventStoreError("OCQ-301", what, fix="leave it out") from None
    return url.difference_update_query([PARAMETER]), found


def place_of(kind: str, group: str, live: str) -> str:
    """Return the name of the place of a group's ``shadow`` or ``old`` tables.

    It has lower-case ASCII letters, digits and underscores, fewer than 64. By the hash no two groups share a place,
    nor do two databases of one server.
    """
    readable = _OTHERS.sub("_", group.casefold())[:_LONGEST].strip("_")
    number = sha256(f"{len(live)}:{live}{group}".encode()).hexdigest()[:10]
    return "_".join(filter(None, ("opencqrs", kind, readable, number)))

"""The address of an EventSourcingDB: the value of ``event-store.url``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from opencqrs_py.errors import EventStoreError

_SCHEMES = {"eventsourcingdb": "http", "eventsourcingdb+http": "http", "eventsourcingdb+https": "https"}
_MISTAKEN = {"http": "eventsourcingdb", "esdb": "eventsourcingdb", "https": "eventsourcingdb+https"}
_PORT = 3000
_PLACE = "setting event-store.url, option url in Spark"
_FIX = "write it as eventsourcingdb://host:3000 or eventsourcingdb+https://host:3000"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an EventSourcingDB server.

    Attributes:
        base_url: What its HTTP paths are appended to.
        label: How messages name it: the URL as it was given.
    """

    base_url: str
    label: str

    @staticmethod
    def is_meant(url: str) -> bool:
        """Return whether an event store's URL is one of EventSourcingDB, or of HTTP, which ``parse`` explains."""
        return url.partition(":")[0].lower() in _SCHEMES.keys() | _MISTAKEN.keys()

    @classmethod
    def parse(cls, url: str, place: str = "") -> Self:
        """Read ``eventsourcingdb://host[:port][/path]`` (HTTP) or ``eventsourcingdb+https://…``; the port is 3000.

        Errors name ``place``, where the URL is set; without one, the URL as far as it is not a secret, or its setting.

        Raises:
            EventStoreError: OCQ-330, if it is none of these, or has a user, a password, a query or a fragment.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or _PORT
        except ValueError:
            raise EventStoreError("OCQ-330", "the URL of EventSourcingDB cannot be read", place, _FIX) from None
        if parts.username is not None or parts.password is not None:
            what = "the URL of EventSourcingDB must not hold a user or a password"
            raise EventStoreError("OCQ-330", what, place, "the token belongs in event-store.api-token")
        if parts.scheme in _MISTAKEN and host:
            what = f"'{parts.scheme}:' is not the scheme of an event store"
            right = f"{_MISTAKEN[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}"
            fix = f"if it is an EventSourcingDB, write it as {right}"
            raise EventStoreError("OCQ-330", what, place or _PLACE, fix)
        if not host or parts.query or parts.fragment or parts.scheme not in _SCHEMES:
            shown = url.partition("?")[0].partition("#")[0]
            raise EventStoreError("OCQ-330", "the URL of EventSourcingDB cannot be read", place or shown, _FIX)
        named = f"[{host}]" if ":" in host else host
        return cls(f"{_SCHEMES[parts.scheme]}://{named}:{port}{parts.path.rstrip('/')}", url)

    @staticmethod
    def of_origin(origin: str) -> str:
        """Return an HTTP origin as an event store's URL; empty if it is not an origin."""
        parts = urlsplit(origin)
        name = _MISTAKEN.get(parts.scheme)
        if name is None or not parts.netloc:
            return ""
        port = "" if parts.port else f":{443 if parts.scheme == 'https' else 80}"
        return f"{name}://{parts.netloc}{port}"

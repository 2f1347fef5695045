"""Database URLs: read, and shown without what is secret in them."""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.masking import mask_url
from opencqrs_py.model.mistaken_urls import not_a_database, url_mistake

__all__ = ["label_of", "parsed_url"]

_FIX = "write it as sqlite:///events.db, postgresql://user:password@host/database or mariadb://…"
_ESCAPED = "write %40 for every '@' in user and password, %2F for '/' and %3A for ':'"
_SLASHES = "write three slashes before a relative path, sqlite:///events.db, and four before an absolute one"


def parsed_url(url: str) -> URL:
    """Read a database URL.

    Raises:
        EventStoreError: OCQ-301, if it cannot be read or is surely not meant so. It is not repeated, since nobody knows
            what of it is a password.
    """
    if (mistake := url_mistake(url) or not_a_database(url)) is not None:
        raise EventStoreError("OCQ-301", f"the database URL cannot be used: {mistake[0]}", fix=mistake[1])
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise EventStoreError("OCQ-301", "the database URL cannot be read", fix=_FIX) from None
    if "@" in (parsed.host or ""):
        raise EventStoreError("OCQ-301", "the database URL cannot be read: it has several '@'", fix=_ESCAPED)
    if parsed.get_backend_name() == "sqlite" and (parsed.host or parsed.username or parsed.password or parsed.port):
        raise EventStoreError("OCQ-301", "the URL of SQLite names a machine, not a file", fix=_SLASHES)
    return parsed


def label_of(url: URL) -> str:
    """Return a URL as it is shown: its password, and each parameter that speaks of a secret, is ``***``."""
    return mask_url(url.render_as_string(hide_password=True))

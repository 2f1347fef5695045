"""The pool's watch over its connections: one that was cut while it lay there is replaced, at no cost for the others."""

from __future__ import annotations

import select
import time
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError

__all__ = ["TRUSTED_SECONDS", "WRITING", "is_quiet", "replace_cut_connections"]

WRITING = "opencqrs_writing"
"""Mark in the ``info`` of a pooled connection: its next transaction will write."""

TRUSTED_SECONDS = 60.0
"""A connection that lay longer is asked whether it is sound, since a firewall cuts without a word."""

_RETURNED = "opencqrs_returned"


def replace_cut_connections(engine: Engine) -> None:
    """Look at each connection of a pool to a server when it is taken out.

    A server that goes says so to every client, so a connection on which nothing has arrived is sound: that is one
    look at its socket instead of the question to the server that SQLAlchemy's ``pool_pre_ping`` asks each time.
    """

    @event.listens_for(engine, "checkin")
    def _note_time(_connection: Any, record: Any) -> None:
        record.info[_RETURNED] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _check(connection: Any, record: Any, _proxy: Any) -> None:
        returned = record.info.get(_RETURNED)
        if returned is None or (time.monotonic() - returned < TRUSTED_SECONDS and is_quiet(connection)):
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error


def is_quiet(connection: Any) -> bool:
    """Say whether nothing has arrived on a connection that waits for nothing."""
    try:
        poll = select.poll()
        poll.register(getattr(connection, "_sock", connection).fileno(), select.POLLIN)  # PyMySQL's has no fileno()
        return not poll.poll(0)
    except Exception:  # a connection that is closed on our side, too, has no socket any more
        return False

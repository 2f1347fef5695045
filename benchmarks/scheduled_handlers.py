"""The handlers of ``scheduled.py``, in a separate module, because Spark's workers import them by name."""

from __future__ import annotations

from sqlalchemy import Connection, text

from opencqrs_py import Event, event_handling, on_start

CREATE = "CREATE TABLE IF NOT EXISTS handled (position BIGINT PRIMARY KEY, subject VARCHAR(40) NOT NULL)"
WRITE = text("INSERT INTO handled (position, subject) VALUES (:position, :subject)")
FIND = text("SELECT max(position) FROM handled WHERE position = :position - 1")


@on_start("scheduled")
def create(connection: Connection) -> None:
    """Create the read model."""
    connection.execute(text(CREATE))


@event_handling("scheduled", types=["*"])
def write(event: Event, connection: Connection) -> None:
    """Write a row for an event."""
    connection.execute(WRITE, {"position": event.position, "subject": event.subject})


@on_start("correlated")
def create_too(connection: Connection) -> None:
    """Create the read model."""
    connection.execute(text(CREATE))


@event_handling("correlated", types=["*"])
def correlate(event: Event, connection: Connection) -> None:
    """Look for what another event has written, then write a row, as a handler does that waits for others' events."""
    connection.execute(FIND, {"position": event.position}).scalar()
    connection.execute(WRITE, {"position": event.position, "subject": event.subject})

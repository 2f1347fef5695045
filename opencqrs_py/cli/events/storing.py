"""Event stores that events can be added to."""

from __future__ import annotations

from opencqrs_py.assembly.application import Application
from opencqrs_py.errors import EventStoreError
from opencqrs_py.processing.ports import EventStore

__all__ = ["counted", "writable_store"]


def writable_store(application: Application) -> EventStore:
    """Return the application's event store.

    Raises:
        EventStoreError: OCQ-343, if it can only be read.
    """
    store: EventStore = application.event_store
    if not hasattr(store, "append"):
        fix = (
            "set event-store.url to a SQL database, without event-store.mapping; to add to a folder of files, put a "
            "new file there whose name sorts behind all others"
        )
        raise EventStoreError("OCQ-343", "events cannot be added to this event store", "event-store.url", fix)
    return store


def counted(added: int, given: int, done: str) -> str:
    """Return how many events were added, in words, and how many were known already."""
    known = f", {given - added:,} known already" if given != added else ""
    return f"{added:,} event{'' if added == 1 else 's'} {done}{known}"

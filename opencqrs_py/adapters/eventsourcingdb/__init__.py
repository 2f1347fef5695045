"""The event store on EventSourcingDB, through its official client (extra ``eventsourcingdb``).

The client, which loads an HTTP library, is imported when a name that needs it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from opencqrs_py.adapters.eventsourcingdb.address import Address
from opencqrs_py.errors import EventStoreError

if TYPE_CHECKING:
    from opencqrs_py.adapters.eventsourcingdb.connection import EventSourcingDbUnavailableError
    from opencqrs_py.adapters.eventsourcingdb.event_store import EventSourcingDbEventStore

__all__ = ["Address", "EventSourcingDbEventStore", "EventSourcingDbUnavailableError"]

_HOMES = {"EventSourcingDbUnavailableError": "connection", "EventSourcingDbEventStore": "event_store"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        return getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        fix = "pip install 'opencqrs-py[eventsourcingdb]'"
        raise EventStoreError("OCQ-303", f"the EventSourcingDB client is missing ({error})", fix=fix) from error

"""The capabilities of a store are checked by protocols, even if it declares none of them."""

from __future__ import annotations

import pytest

from opencqrs_py import InMemoryEventStore, SqlEventStore
from opencqrs_py.adapters.eventsourcingdb import EventSourcingDbEventStore
from opencqrs_py.adapters.files import FileEventSource
from opencqrs_py.adapters.sql.reading import SqlEventSource
from opencqrs_py.processing.ports import CountedSource, CountingSource, EventStore, gives_ids


def made(cls):
    """Return an instance without opening anything."""
    return cls.__new__(cls)


@pytest.mark.parametrize(
    ("cls", "appends", "counts"),
    [
        (InMemoryEventStore, True, False),
        (SqlEventStore, True, True),
        (SqlEventSource, False, True),
        (FileEventSource, False, True),
        (EventSourcingDbEventStore, True, False),
    ],
)
def test_a_built_in_store_has_the_protocols_of_its_methods(cls, appends, counts) -> None:
    store = made(cls)
    assert isinstance(store, EventStore) is appends
    assert isinstance(store, CountingSource) is counts
    assert isinstance(store, CountedSource) is (cls is FileEventSource)
    assert gives_ids(store) is (cls is EventSourcingDbEventStore)


@pytest.mark.parametrize("value", [True, False])
def test_a_store_may_declare_whether_it_assigns_ids(value) -> None:
    store = made(type("Store", (InMemoryEventStore,), {"gives_ids": value}))
    assert gives_ids(store) is value

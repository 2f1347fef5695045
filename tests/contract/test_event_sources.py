"""The contract of event stores, kept by each of them."""

from __future__ import annotations

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.testing.contracts import EventStoreContract


class TestInMemoryEventStore(EventStoreContract):
    @pytest.fixture
    def source(self) -> InMemoryEventStore:
        return InMemoryEventStore()


class TestSqlEventStore(EventStoreContract):
    @pytest.fixture
    def source(self, database: Database) -> SqlEventStore:
        return SqlEventStore(database)

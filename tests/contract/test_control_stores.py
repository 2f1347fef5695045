"""The contract of control stores, kept by each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import text

from opencqrs_py.adapters.memory import InMemoryControlStore
from opencqrs_py.adapters.sql import Database, SqlControlStore
from opencqrs_py.testing import FakeClock
from opencqrs_py.testing.contracts import ControlStoreContract


class TestInMemoryControlStore(ControlStoreContract):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def store(self, clock: FakeClock) -> InMemoryControlStore:
        return InMemoryControlStore(clock)

    @pytest.fixture
    def let_pass(self, clock: FakeClock) -> Callable[[float], None]:
        return clock.advance


class TestSqlControlStore(ControlStoreContract):
    @pytest.fixture
    def open_store(self, open_database: Callable[[], Database]) -> Iterator[Callable[[], SqlControlStore]]:
        opened: list[SqlControlStore] = []

        def open_() -> SqlControlStore:
            database = open_database().for_control()
            assert database is not None
            opened.append(SqlControlStore(database))
            return opened[-1]

        yield open_
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_store: Callable[[], SqlControlStore]) -> SqlControlStore:
        return open_store()

    @pytest.fixture
    def another(self, open_store: Callable[[], SqlControlStore]) -> SqlControlStore:
        return open_store()

    @pytest.fixture
    def let_pass(self, database: Database) -> Iterator[Callable[[float], None]]:
        control = database.for_control()
        assert control is not None

        def pass_(seconds: float) -> None:
            """Make the stored times older, as the database's clock cannot be moved."""
            with control.writing() as connection:
                for table, column in (("nodes", "until_ms"), ("leases", "avoided_until_ms")):
                    statement = f"UPDATE opencqrs_{table} SET {column} = {column} - :ms"
                    connection.execute(text(statement), {"ms": round(seconds * 1000)})

        yield pass_
        control.close()

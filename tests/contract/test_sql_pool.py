"""Connections to a server: shared by reads and transactions of a process, bounded, and closed when they are idle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql import Database, pool
from opencqrs_py.adapters.sql.dialects.faults import DatabaseBusyError
from opencqrs_py.adapters.sql.slots import Slots
from opencqrs_py.adapters.sql.transactions import DatabaseTransactions

pytestmark = pytest.mark.parametrize(
    "kind",
    [
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)
ME = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}
ALL = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
    "mariadb": "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}


@pytest.fixture
def one(url: str, database: Database) -> Iterator[Database]:  # the other one has made the tables
    """A database with one connection."""
    found = Database(url, connections=1)
    with closing(found):
        yield found


def me(database: Database) -> int:
    ((number,),) = database.fetch(ME[database.kind])
    return int(number)


def still_there(observer: Database, numbers: set[int]) -> set[int]:
    return {row[0] for row in observer.fetch(ALL[observer.kind])} & numbers


def test_reads_and_transactions_use_the_same_connection(one: Database) -> None:
    numbers = {me(one)}
    with one.writing() as connection:
        numbers.add(connection.exec_driver_sql(ME[one.kind]).scalar_one())
    with one.reading() as connection:
        numbers.add(connection.exec_driver_sql(ME[one.kind]).scalar_one())
    assert numbers == {me(one)}


def test_a_read_after_a_transaction_is_in_no_transaction(one: Database) -> None:
    with one.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE numbers (n integer)")
    assert one.fetch("SELECT count(*) FROM numbers")[0][0] == 0
    with closing(Database(one.url.render_as_string(hide_password=False))) as other, other.writing() as connection:
        connection.exec_driver_sql("INSERT INTO numbers VALUES (1)")
    assert one.fetch("SELECT count(*) FROM numbers")[0][0] == 1


def test_a_transaction_after_a_read_is_rolled_back_completely(one: Database) -> None:
    with one.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE numbers (n integer)")
    me(one)
    with pytest.raises(DBAPIError), one.writing() as connection:  # noqa: PT012 the second of both
        connection.exec_driver_sql("INSERT INTO numbers VALUES (1)")
        connection.exec_driver_sql("INSERT INTO missing VALUES (1)")
    assert one.fetch("SELECT count(*) FROM numbers")[0][0] == 0


def test_a_read_within_the_only_transaction_uses_an_extra_connection_that_is_closed_after_it(
    one: Database, database: Database
) -> None:
    with one.writing() as connection:
        mine = connection.exec_driver_sql(ME[one.kind]).scalar_one()
        other = me(one)
        assert other != mine
        assert me(one) != mine
    assert me(one) == mine
    while still_there(database, {other}):  # the server takes a moment
        pass
    assert still_there(database, {mine}) == {mine}


def test_a_transaction_beyond_the_limit_is_refused_after_a_wait(one: Database) -> None:
    one._slots = Slots(2, one.label, patience=0.0)
    taken = one._slots.take(lasting=True)
    taken.thread = -1  # another thread's
    with pytest.raises(DatabaseBusyError, match="OCQ-347"), one.writing():
        pass
    assert me(one)


def test_an_abandoned_transaction_frees_its_place_in_the_pool(one: Database) -> None:
    assert one._slots is not None
    with suppress(Exception), DatabaseTransactions(one).begin() as unit:  # whose thread hangs, and fails at last
        one._slots._taken[0].thread = -1
        assert unit.end_session()
        assert me(one)
        assert one._slots._taken == []
    assert me(one)
    assert one._slots._taken == []


def test_unused_connections_are_closed(url: str, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Database(url, connections=3)) as three:
        with three.reading() as first, three.reading() as second:
            numbers = {one.exec_driver_sql(ME[three.kind]).scalar_one() for one in (first, second)}
        assert still_there(database, numbers) == numbers
        monkeypatch.setattr(pool, "IDLE_SECONDS", 0.0)
        me(three)
        while still_there(database, numbers):
            pass

"""Connections: cancelled calls, closed event loops, errors and forks."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from eventsourcingdb import Client

from opencqrs_py.adapters.eventsourcingdb import Address
from opencqrs_py.adapters.eventsourcingdb.connection import Connection

SECONDS = 30


@pytest.fixture
def connection() -> Connection:
    return Connection(Address.parse("eventsourcingdb://localhost"), "secret", SECONDS)


def test_ctrl_c_cancels_a_call(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            raise KeyboardInterrupt

    under_way = Interrupted()
    monkeypatch.setattr(connection, "_start", lambda use, start: under_way)
    with pytest.raises(KeyboardInterrupt):
        connection.run(lambda client: None)
    assert under_way.cancelled()


def test_a_loop_may_be_closed_on_its_own_thread(connection: Connection) -> None:
    async def close(client: Client) -> None:
        loop = connection._loop
        assert loop is not None
        loop.close()

    connection.run(close)
    loop = connection._loop
    assert loop is not None
    loop._thread.join(SECONDS)
    assert not loop._thread.is_alive()
    connection.close()


def test_errors_that_do_not_come_from_the_client_are_raised_unchanged(connection: Connection) -> None:
    async def fail(client: Client) -> None:
        raise KeyError(client)

    with pytest.raises(KeyError):
        connection.run(fail)
    assert isinstance(connection.explained(SystemExit(1)), SystemExit)
    connection.close()


def test_a_fork_neither_waits_for_threads_of_its_parent_nor_closes_its_connection(connection: Connection) -> None:
    async def nothing(client: Client) -> None: ...

    connection.run(nothing)
    of_parent = connection._loop
    assert of_parent is not None
    with connection._lock:  # as another thread of the parent may hold it
        connection.leave_to_parent()
    connection.run(nothing)
    assert connection._loop is not of_parent
    connection.close()
    assert of_parent._thread.is_alive()
    of_parent.close()

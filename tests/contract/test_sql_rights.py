"""Privileges: the messages for database users who lack one, and which privileges suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from sqlalchemy import make_url, text

from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.appending import SubjectIsPopulated
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection

POSTGRESQL = pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
SERVERS = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("postgresql", "mariadb")]
)

EVENT = Event(0, "1", "urn:test", "/", "test.happened.v1", None, "application/json", None, None)
DENIED = {"mariadb": "command denied to user 'somebody'@'localhost'", "postgresql": "permission denied for"}


def execute(database: Database, *statements: str) -> None:
    with database.writing() as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.fixture
def with_rights(database: Database, url: str) -> Iterator[Callable[..., Database]]:
    """Opens the database as a user with only the given privileges, each as ``privilege ON table``."""
    administrator, opened = database, []
    mariadb = administrator.kind == "mariadb"
    user = "somebody@localhost" if mariadb else "somebody"
    name = make_url(url).database

    def open_(*granted: str) -> Database:
        rights = [f"GRANT {right} TO {user}" for right in granted]
        first = (
            f"GRANT CREATE TEMPORARY TABLES ON {name}.* TO {user}"
            if mariadb
            else f"GRANT USAGE ON SCHEMA public TO {user}"
        )
        execute(administrator, f"CREATE USER {user}", first, *rights)
        opened.append(Database(make_url(url).set(username="somebody").render_as_string(hide_password=False)))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()
    execute(administrator, *([] if mariadb else [f"DROP OWNED BY {user}"]), f"DROP USER {user}")


def refusal_of(call: Callable[[], object], database: Database) -> str:
    with pytest.raises(EventStoreError, match="OCQ-304") as caught:
        call()
    assert not database.is_outage(caught.value)
    assert DENIED[database.kind] in caught.value.what
    assert "have an administrator grant the privilege" in caught.value.fix
    return caught.value.what


@SERVERS
def test_without_the_privilege_to_create_tables_the_error_names_it(with_rights: Callable[..., Database]) -> None:
    mine = with_rights()
    refusal_of(SqlEventStore(mine).head, mine)
    refusal_of(SqlProgressTracker(mine).statuses, mine)


@SERVERS
def test_a_user_with_read_privileges_reads_but_gets_an_error_when_adding(
    database: Database, with_rights: Callable[..., Database]
) -> None:
    SqlEventStore(database).append([EVENT])
    mine = with_rights("SELECT ON opencqrs_events", "SELECT ON opencqrs_schema")
    store = SqlEventStore(mine)
    assert [event.id for event in store.read(0, 10, Selection()).events] == ["1"]
    with store.watched() as watch:
        assert watch.wait(0, 0) == 1
    for conditions in ([], [SubjectIsPopulated("/")]):
        assert "opencqrs_events" in refusal_of(partial(store.append, [EVENT._replace(id="2")], conditions), mine)


@SERVERS
def test_without_the_privilege_to_read_events_the_error_names_it(
    database: Database, with_rights: Callable[..., Database]
) -> None:
    SqlEventStore(database).append([EVENT])
    mine = with_rights("SELECT ON opencqrs_schema")
    store = SqlEventStore(mine)
    assert "opencqrs_events" in refusal_of(store.head, mine)
    assert "opencqrs_events" in refusal_of(lambda: store.read(0, 10, Selection()), mine)


@SERVERS
def test_the_documented_privileges_suffice_to_add_events(
    database: Database, with_rights: Callable[..., Database]
) -> None:
    SqlEventStore(database).append([EVENT])
    sequence = ["USAGE ON SEQUENCE opencqrs_events_position_seq"] if database.kind == "postgresql" else []
    mine = with_rights("SELECT, INSERT ON opencqrs_events", "SELECT ON opencqrs_schema", *sequence)
    store = SqlEventStore(mine)
    assert store.append([EVENT, EVENT._replace(id="2")]).added == 1
    assert store.append([EVENT._replace(id="3")], [SubjectIsPopulated("/")]).added == 1
    assert store.append(EVENT._replace(id=str(n)) for n in range(12_000)).added == 12_000 - 3


@POSTGRESQL
def test_without_access_to_the_schema_the_error_says_so(
    database: Database, with_rights: Callable[..., Database]
) -> None:
    mine = with_rights()
    execute(database, "REVOKE USAGE ON SCHEMA public FROM somebody")
    with pytest.raises(EventStoreError, match=r"OCQ-304.*no schema has been selected"):
        SqlEventStore(mine).head()

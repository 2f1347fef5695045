"""Our tables in a separate schema: every contract is kept there, and nothing of ours is outside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, create_engine, inspect, text

from opencqrs_py.adapters.sql import Database, SqlControlStore, SqlEventStore, SqlJobStore, SqlProgressTracker
from opencqrs_py.adapters.sql import tables as schema
from opencqrs_py.alembic import PREFIX
from opencqrs_py.control.records import ControlView
from opencqrs_py.errors import EventStoreError
from opencqrs_py.jobs.runs import JobRun
from opencqrs_py.model import layout
from opencqrs_py.model.appending import SubjectIsOnEventId
from opencqrs_py.model.event import Event
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.job import Trigger
from opencqrs_py.model.selection import Selection
from opencqrs_py.testing.contracts import EventStoreContract, ProgressTrackerContract, ReadModel

NAME = "Our_log"
SERVERS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
POSTGRESQL, MARIADB = ([server] for server in SERVERS)


def event(number: int, subject: str = "/a") -> Event:
    return Event(0, str(number), "s", subject, "t", None, "application/json", "{}", None)


@pytest.fixture(params=SERVERS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def in_schema(url: str, kind: str) -> Iterator[Callable[[str], Database]]:
    """Opens the database with a schema; all schemas that were opened are dropped at the end."""
    opened: list[Database] = []

    def open_(name: str = NAME) -> Database:
        opened.append(Database(url, name))
        return opened[-1]

    yield open_
    for database in opened:
        database.close()
    administrator = Database(url)
    with administrator.reading() as connection:
        for name in {database.schema for database in opened}:
            drop(connection, kind, name or "")
    administrator.close()


def drop(connection: Connection, kind: str, name: str) -> None:
    statement = (
        f'DROP SCHEMA IF EXISTS "{name}" CASCADE' if kind == "postgresql" else f"DROP DATABASE IF EXISTS `{name}`"
    )
    connection.exec_driver_sql(statement)


@pytest.fixture
def database(in_schema: Callable[..., Database]) -> Database:
    return in_schema()


@pytest.mark.release  # the statements differ by the name before a table only, which the tests below show
class TestSqlEventStoreInASchema(EventStoreContract):
    @pytest.fixture
    def source(self, database: Database) -> SqlEventStore:
        return SqlEventStore(database)


@pytest.mark.release  # the statements differ by the name before a table only, which the store's contract shows
class TestSqlProgressTrackerInASchema(ProgressTrackerContract):
    @pytest.fixture
    def read_model(self, written: ReadModel) -> ReadModel:
        return written

    @pytest.fixture
    def another(self, in_schema: Callable[..., Database]) -> SqlProgressTracker:
        return SqlProgressTracker(in_schema())

    @pytest.fixture
    def tracker(self, database: Database) -> SqlProgressTracker:
        return SqlProgressTracker(database)


def used(database: Database) -> SqlEventStore:
    """Use everything once."""
    store, tracker = SqlEventStore(database), SqlProgressTracker(database)
    store.append(event(n) for n in range(200))
    store.append([event(1), event(200, "/b")], [SubjectIsOnEventId("/a", "199")])
    store.append([event(201)])
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")
    with tracker.unit("group", cursor, 3, fingerprint=store.fingerprint(3)):
        pass
    tracker.claim("group", layout(1), 0, "heir", keep=lambda found: found.record or GroupRecord("group"))
    assert [record.group for record in tracker.records()] == ["group"]
    store.verify(3, store.fingerprint(3))
    assert [one.id for one in store.read(0, 500, Selection("/b")).events] == ["200"]
    assert (store.head(), store.count(), tracker.skipped()) == (202, 202, [])
    control = database.for_control()
    assert control is not None
    nodes = SqlControlStore(control)
    assert nodes.view() == ControlView()
    nodes.close()
    jobs = SqlJobStore(database)
    assert jobs.look().records == {}
    with jobs.open(["job"]) as book:
        book.put(JobRun("run", "job", Trigger.MANUAL, book.now))
    assert [run.id for run in jobs.look().runs] == ["run"]
    return store


def test_all_our_objects_are_in_the_schema_and_nothing_outside_it(database: Database, url: str) -> None:
    used(database)
    names = {table.name for table in schema.EVENTS.metadata.tables.values()}
    plain = Database(url)
    with plain.reading() as connection:
        assert set(inspect(connection).get_table_names(schema=NAME)) == names
        assert inspect(connection).get_table_names() == []
        if plain.kind == "postgresql":
            outside = "SELECT count(*) FROM pg_proc WHERE proname LIKE %s AND pronamespace <> %s::regnamespace"
            assert connection.exec_driver_sql(outside, (f"{PREFIX}%", f'"{NAME}"')).scalar() == 0
    plain.close()


def test_two_schemas_and_the_default_one_have_separate_logs(in_schema: Callable[..., Database], url: str) -> None:
    logs = [SqlEventStore(in_schema(name)) for name in (NAME, "other")]
    plain = Database(url)
    logs.append(SqlEventStore(plain))
    for count, log in enumerate(logs, start=1):
        log.append(event(n) for n in range(count))
    assert [log.count() for log in logs] == [1, 2, 3]
    trackers = [SqlProgressTracker(in_schema(NAME)), SqlProgressTracker(plain)]
    for partitions, tracker in enumerate(trackers, start=1):
        tracker.claim("group", layout(partitions), 0, "owner")
    assert [len(tracker.statuses()) for tracker in trackers] == [1, 2]
    plain.close()


def test_appends_do_not_wait_for_those_to_another_schema(in_schema: Callable[..., Database]) -> None:
    first, second = (SqlEventStore(in_schema(name)) for name in (NAME, "other"))
    second.append([event(0)])

    def while_the_first_is_appending() -> Iterator[Event]:
        yield event(1)
        second.append([event(n) for n in range(1, 4)])
        second.append(event(n) for n in range(4, 6))
        yield event(2)

    first.append(while_the_first_is_appending())
    assert (first.count(), second.count()) == (2, 6)


def test_a_watch_notices_appends_to_its_schema(database: Database, in_schema: Callable[..., Database]) -> None:
    with SqlEventStore(database).watched() as watch:
        assert watch.wait(0, 0.01) == 0
        SqlEventStore(in_schema()).append([event(1)])
        assert watch.wait(0, 30) == 1


def test_inserts_by_other_programs_into_the_schema_are_serialised_too(database: Database) -> None:
    store = SqlEventStore(database)
    store.head()
    added = f"INSERT INTO {database.prefix}opencqrs_events (id, source, subject, type, content_type)"
    with database.writing() as connection:
        connection.execute(text(f"{added} VALUES ('x', 's', '/', 't', 'application/json')"))
    assert store.head() == 1
    store.append([event(2)])
    assert store.head() == 2


def test_before_its_schema_exists_no_group_has_been_rebuilt(database: Database) -> None:
    assert SqlProgressTracker(database).rebuilt(["group"]) == []
    with database.reading() as connection:
        assert (
            NAME
            not in connection.exec_driver_sql("SELECT schema_name FROM information_schema.schemata").scalars().all()
        )


def test_statements_of_handlers_still_use_the_default_schema(database: Database, url: str) -> None:
    tracker = SqlProgressTracker(database)
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")
    with tracker.unit("group", cursor, 1) as unit:
        unit.connection.execute(text("SELECT 1"))
    with database.writing() as connection:
        connection.execute(text("CREATE TABLE mine (id INTEGER)"))
    plain = Database(url)
    with plain.reading() as connection:
        assert inspect(connection).get_table_names() == ["mine"]
    plain.close()


def test_a_url_parameter_can_name_the_schema(url: str, in_schema: Callable[..., Database]) -> None:
    used(in_schema())
    named = Database(f"{url}{'&' if '?' in url else '?'}opencqrs_schema={NAME}", "another")
    assert (named.schema, SqlEventStore(named).count()) == (NAME, 202)
    named.close()


def test_an_engine_of_the_user_can_have_a_schema(database: Database, url: str) -> None:
    used(database)
    engine = create_engine(Database(url).engine.url)
    others = Database.of(engine, NAME)
    assert SqlEventStore(others).count() == 202
    assert [status.position for status in SqlProgressTracker(others).statuses()] == [3]
    others.close()


@pytest.mark.parametrize("kind", POSTGRESQL)
def test_a_missing_schema_that_cannot_be_created_is_explained(kind: str, url: str) -> None:
    administrator = Database(url)
    with administrator.reading() as connection:
        connection.exec_driver_sql("CREATE ROLE limited LOGIN PASSWORD 'x'")
    limited = Database(
        Database(url).url.set(username="limited", password="x").render_as_string(hide_password=False), "log"
    )
    with pytest.raises(EventStoreError, match="OCQ-323") as caught:
        SqlEventStore(limited).head()
    assert 'have an administrator run CREATE SCHEMA IF NOT EXISTS "log"' in caught.value.fix
    with administrator.reading() as connection:
        connection.exec_driver_sql("CREATE SCHEMA log AUTHORIZATION limited")
    assert SqlEventStore(limited).head() == 0
    limited.close()
    with administrator.reading() as connection:
        connection.exec_driver_sql("DROP SCHEMA log CASCADE")
        connection.exec_driver_sql("DROP ROLE limited")
    administrator.close()


@pytest.mark.parametrize("kind", MARIADB)
def test_a_missing_mariadb_database_that_cannot_be_created_is_explained(kind: str, url: str) -> None:
    administrator = Database(url)
    with administrator.reading() as connection:
        connection.exec_driver_sql("CREATE OR REPLACE USER limited@localhost IDENTIFIED BY 'x'")
        connection.exec_driver_sql("GRANT ALL ON test.* TO limited@localhost")
    limited = Database(
        Database(url).url.set(username="limited", password="x").render_as_string(hide_password=False), "log"
    )
    with pytest.raises(EventStoreError, match=r"OCQ-323|OCQ-304") as caught:
        SqlEventStore(limited).head()
    assert "log" in caught.value.what
    limited.close()
    with administrator.reading() as connection:
        connection.exec_driver_sql("DROP USER limited@localhost")
    administrator.close()


@pytest.mark.parametrize("kind", ["sqlite"])
def test_sqlite_has_no_schemas(kind: str, url: str) -> None:
    with pytest.raises(EventStoreError, match="OCQ-321"):
        Database(url, "log")


@pytest.mark.parametrize("name", ["a-b", "1a", "a.b", 'a"b', "a b", "ä", "a" * 64, "a%b"])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(EventStoreError, match="OCQ-322"):
        Database("postgresql://host/db", name)

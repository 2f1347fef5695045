"""Versions of our tables: created at first use, brought forward, and refused when they are newer than we are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any

import pytest
from sqlalchemy import inspect, make_url, select, text, update
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.adapters.sql import tables as module
from opencqrs_py.adapters.sql.inbox_rows import COLUMNS, key_of, row_of
from opencqrs_py.adapters.sql.tables import EVENTS, INBOX, PROGRESS, SCHEMA, _create
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import Event, Selection, layout
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.inbox import InboxEntry, InboxStatus

SECONDS = 60
TRANSACTIONAL = pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
POSTGRESQL = pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
MARIADB = pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.mariadb)])


def event(name: str) -> Event:
    return Event(0, name, "s", "/books/1", "lent", None, "application/json", None, None)


def versions(database: Database) -> dict[str, int]:
    with database.reading() as connection:
        return {row.table_name: row.version for row in connection.execute(select(SCHEMA))}


def indexes(database: Database) -> set[str | None]:
    with database.reading() as connection:
        return {index["name"] for index in inspect(connection).get_indexes(EVENTS.name)}


def make_version_1(database: Database, *events: str) -> None:
    """Create the tables of a package that did not record versions yet."""
    with database.writing() as connection:
        _create(database, connection, EVENTS)
        _create(database, connection, PROGRESS)
        for name in events:
            row = event(name)._asdict()
            del row["position"]
            connection.execute(EVENTS.insert().values(row))


def test_the_first_use_creates_tables_in_their_newest_version(database: Database) -> None:
    SqlEventStore(database).head()
    assert versions(database) == {"opencqrs_events": 4}
    SqlProgressTracker(database).statuses()
    assert versions(database) == {
        "opencqrs_events": 4,
        "opencqrs_progress": 5,
        "opencqrs_skipped": 1,
        "opencqrs_inbox": 3,
    }


def test_a_new_table_is_not_checked_for_columns_that_older_ones_lack(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_take_step", lambda *_: pytest.fail("a step is taken"))
    SqlProgressTracker(database).statuses()
    assert versions(database)["opencqrs_progress"] == 5


def test_tables_of_an_older_package_are_migrated_and_keep_their_rows(
    database: Database, open_database: Callable[[], Database]
) -> None:
    make_version_1(database, "1", "2")
    store = SqlEventStore(open_database())
    assert [one.id for one in store.read(0, 10, Selection()).events] == ["1", "2"]
    assert versions(database) == {"opencqrs_events": 4}
    new = SqlEventStore(open_database())
    assert indexes(database) >= {"opencqrs_events_subject", "opencqrs_events_type"}
    assert new.append([event("2"), event("3")]) == (2, 1)
    assert [one.position for one in store.read(0, 10, Selection()).events] == [1, 2, 3]


ADDED_LATER = ("log_fingerprint", "failure", "connection_id", "replay", "ahead", "checkpoint")


def test_progress_of_an_older_package_is_kept_and_still_fenced(
    database: Database, open_database: Callable[[], Database]
) -> None:
    with database.writing() as connection:
        _create(database, connection, PROGRESS)
        for name in ADDED_LATER:
            connection.execute(text(f"ALTER TABLE opencqrs_progress DROP COLUMN {name}"))
        row = {"group_name": "group", "modulus": 1, "residue": 0, "position": 7, "epoch": 3, "owner": "old"}
        names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
        rest = "'stopped', 0, '', '2026-01-01T00:00:00+00:00'"
        insert = f"INSERT INTO opencqrs_progress ({names}, state, attempt, error, updated_at) VALUES ({marks}, {rest})"
        connection.execute(text(insert), row)
    (cursor,) = SqlProgressTracker(open_database()).claim("group", layout(1), 0, "new")
    assert (cursor.stored, cursor.epoch, cursor.fingerprint, cursor.failure) == (7, 4, "", None)
    assert versions(database)["opencqrs_progress"] == 5


def test_the_inbox_of_an_older_package_keeps_its_events(
    database: Database, open_database: Callable[[], Database]
) -> None:
    entry = InboxEntry("group", "/a", 3, "id", "s", "/a", "lent", InboxStatus.PENDING, "2026-01-01T00:00:00.000+00:00")
    row = dict(zip(COLUMNS, row_of(entry, key_of("/a"), first=True), strict=True))
    SqlProgressTracker(database).statuses()
    with database.writing() as connection:
        connection.execute(update(SCHEMA).where(SCHEMA.c.table_name == INBOX.name).values(version=1))
        for name in ("expires_ms", "replaying"):
            del row[name]
            connection.execute(text(f"ALTER TABLE opencqrs_inbox DROP COLUMN {name}"))
        names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
        connection.execute(text(f"INSERT INTO opencqrs_inbox ({names}) VALUES ({marks})"), row)
    (found,) = SqlProgressTracker(open_database()).entries("group")
    assert found == entry._replace(due_at=entry.parked_at)
    assert versions(database)["opencqrs_inbox"] == 3


@MARIADB
@pytest.mark.parametrize("failing", ["_create", "_search_events", "_serialise_events", "_order_identities"])
def test_an_interrupted_migration_is_resumed(
    open_database: Callable[[], Database], database: Database, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    step: Callable[..., int] = getattr(module, failing)

    def break_off(*arguments: Any) -> None:
        step(*arguments)
        raise ConnectionAbortedError

    steps = tuple(break_off if one is step else one for one in module._STEPS[EVENTS.name])
    with monkeypatch.context() as patched:
        patched.setattr(module, failing, break_off)
        patched.setitem(module._STEPS, EVENTS.name, steps)
        with pytest.raises(ConnectionAbortedError):
            SqlEventStore(open_database()).append([event("1")])
        assert versions(database) == {}
    assert SqlEventStore(open_database()).append([event("1")]) == (1, 1)
    assert versions(database) == {"opencqrs_events": 4}


@MARIADB
def test_without_the_privilege_to_migrate_the_table_the_error_says_what_to_request(
    open_database: Callable[[], Database], database: Database, url: str
) -> None:
    with database.reading() as connection:
        for statement in (
            "CREATE OR REPLACE USER modest",
            "GRANT SELECT, INSERT, UPDATE, CREATE, INDEX, REFERENCES ON test.* TO modest",
        ):
            connection.execute(text(statement))
    modest = Database(url.replace("//root@", "//modest@"))
    with pytest.raises(
        EventStoreError, match=r"OCQ-312.*opencqrs_events cannot be completed \(TRIGGER command denied"
    ) as error:
        SqlEventStore(modest).head()
    assert "log_bin_trust_function_creators" in error.value.fix
    for granted, missing in (("TRIGGER", "ALTER"), ("ALTER", None)):
        with database.reading() as connection:
            connection.execute(text(f"GRANT {granted} ON test.* TO modest"))
        modest.close()
        if missing is not None:
            with pytest.raises(EventStoreError, match=rf"OCQ-312.*cannot be completed \({missing} command denied"):
                SqlEventStore(modest).head()
    modest.close()
    assert SqlEventStore(modest).append([event("1")]) == (1, 1)
    modest.close()


def test_each_migration_step_is_done_once(database: Database, open_database: Callable[[], Database]) -> None:
    make_version_1(database)
    for _ in range(3):
        SqlEventStore(open_database()).head()
    assert versions(database) == {"opencqrs_events": 4}


def test_from_an_intermediate_version_only_the_missing_steps_are_done(
    database: Database, open_database: Callable[[], Database]
) -> None:
    SqlEventStore(database).append([event("1")])
    with database.writing() as connection:
        connection.execute(update(SCHEMA).values(version=2))
        if database.kind != "sqlite":
            of = "ON opencqrs_events" if database.kind == "postgresql" else ""
            connection.execute(text(f"DROP TRIGGER opencqrs_events_in_turn {of}"))
    assert SqlEventStore(open_database()).head() == 1
    assert versions(database) == {"opencqrs_events": 4}


def test_a_log_copied_without_the_table_of_versions_is_used_as_it_is(
    database: Database, open_database: Callable[[], Database]
) -> None:
    SqlEventStore(database).append([event("1")])
    with database.writing() as connection:
        connection.execute(text("DROP TABLE opencqrs_schema"))
    store = SqlEventStore(open_database())
    assert store.append([event("2")]) == (1, 1)
    assert versions(database) == {"opencqrs_events": 4}


def make_all_tables(database: Database) -> SqlEventStore:
    store, record = SqlEventStore(database), GroupRecord("group", "tail", 0, "2026-01-01T00:00:00.000+00:00")
    store.append([event("1")])
    SqlProgressTracker(database).claim("group", layout(1), 0, "owner", keep=lambda _found: record)
    return store


def drop(database: Database, *names: str) -> None:
    with database.writing() as connection:
        for name in names:
            connection.execute(text(f"DROP TABLE opencqrs_{name}"))


@pytest.mark.release(kind="mariadb")  # compared in Python
@pytest.mark.few(kind=("postgresql", "mariadb"))  # compared in Python
@pytest.mark.parametrize(
    ("lost", "after"),
    [
        (("inbox", "schema"), "groups"),
        (("skipped", "inbox", "schema"), "groups"),
        (("skipped", "schema"), "inbox"),
        (("progress", "groups", "schema"), "skipped"),
        (("progress", "skipped", "groups", "schema"), "inbox"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "+".join(value),
)
def test_tables_restored_without_others_and_their_versions_are_refused_and_left_as_they_are(
    database: Database, open_database: Callable[[], Database], lost: tuple[str, ...], after: str
) -> None:
    """Otherwise the others are created empty: parked events are lost, or all events handled again."""
    make_all_tables(database)
    drop(database, *lost)
    missing = ", ".join(f"opencqrs_{name}" for name in lost if name != "groups")
    for _ in range(2):
        with pytest.raises(EventStoreError, match=rf"OCQ-304.*before opencqrs_{after} are missing.*: {missing}\n"):
            SqlProgressTracker(open_database()).statuses()
        with pytest.raises(EventStoreError, match=r"OCQ-304.*(?s:.*)restore it from a backup"):
            SqlEventStore(open_database()).head()


@pytest.mark.release(kind="mariadb")  # compared in Python
@pytest.mark.few(kind=("postgresql", "mariadb"))  # compared in Python
@pytest.mark.parametrize(
    "lost", [("schema",), ("groups", "schema"), ("progress", "skipped", "inbox", "groups", "schema")]
)
def test_tables_without_their_versions_are_used_if_none_is_known_to_be_missing(
    database: Database, open_database: Callable[[], Database], lost: tuple[str, ...]
) -> None:
    make_all_tables(database)
    drop(database, *lost)
    assert make_all_tables(open_database()).head() == 1
    assert versions(database)["opencqrs_inbox"] == 3


@POSTGRESQL
@pytest.mark.parametrize("lost", ["DROP FUNCTION {}_in_turn CASCADE", "ALTER TABLE {} DISABLE TRIGGER ALL"])
def test_after_a_restored_backup_appends_of_other_programs_are_serialised_again(
    database: Database, open_database: Callable[[], Database], url: str, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    """A dump of tables has no functions, so the trigger that calls one is left out with an error of the restore."""

    def others_wait() -> bool:
        add = "INSERT INTO opencqrs_events (id, source, subject, type, content_type) VALUES ('{}', 's', '/a', 't', 'c')"
        one, other = open_database(), open_database()
        with one.writing() as first, other.writing() as second:
            first.execute(text(add.format("a")))
            second.execute(text("SET LOCAL lock_timeout = '50ms'"))
            try:
                second.execute(text(add.format("b")))
            except DBAPIError:
                return True
            finally:
                first.rollback()
                second.rollback()
        return False

    SqlEventStore(database).append([event("1")])
    assert others_wait()
    with database.writing() as connection:
        connection.execute(text(lost.format("opencqrs_events")))
        once = "DO $$ BEGIN CREATE ROLE modest LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        schema = connection.execute(text("SELECT current_schema()")).scalar_one()
        connection.execute(text(once))
        connection.execute(text(f'GRANT USAGE ON SCHEMA "{schema}" TO modest'))
        connection.execute(text("GRANT SELECT ON opencqrs_events, opencqrs_schema TO modest"))
    assert not others_wait()
    modest = Database(make_url(url).set(username="modest").render_as_string(hide_password=False))
    assert SqlEventStore(modest).head() == 1
    modest.close()
    assert "opencqrs_events has lost its trigger" in caplog.text
    assert SqlEventStore(open_database()).head() == 1
    assert others_wait()


@MARIADB
def test_a_start_recreates_a_missing_trigger_if_the_user_has_the_privilege(
    database: Database, open_database: Callable[[], Database], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a dump without triggers, or a table that was rebuilt by another tool."""

    name = make_url(url).database
    users = [f"m_{name}@{host}" for host in ("localhost", "'127.0.0.1'")]

    def triggers() -> list[str]:
        with database.reading() as connection:
            named = "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE()"
            return list(connection.execute(text(named)).scalars())

    SqlEventStore(database).append([event("1")])
    made = triggers()
    assert "opencqrs_events_in_turn" in made
    with database.writing() as connection:
        connection.execute(text("DROP TRIGGER opencqrs_events_in_turn"))
    modest = Database(make_url(url).set(username=f"m_{name}", password=None).render_as_string(hide_password=False))
    try:
        with database.writing() as connection:
            for user in users:
                connection.execute(text(f"CREATE USER {user}"))
                connection.execute(text(f"GRANT SELECT, INSERT ON {name}.* TO {user}"))
        assert SqlEventStore(modest).head() == 1
    finally:
        modest.close()
        with database.writing() as connection:
            connection.execute(text(f"DROP USER IF EXISTS {', '.join(users)}"))
    assert triggers() == []
    assert SqlEventStore(open_database()).head() == 1
    assert triggers() == made
    assert caplog.text == ""


@MARIADB
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1419, "You do not have the SUPER privilege and binary logging is enabled"),
        (1359, "Trigger 'opencqrs_events_in_turn' already exists"),
    ],
)
def test_a_start_that_cannot_create_the_trigger_warns_and_continues(
    database: Database, open_database: Callable[[], Database], caplog: pytest.LogCaptureFixture, code: int, said: str
) -> None:
    """As on a server with a binary log, and where the old table still has the trigger."""
    SqlEventStore(database).append([event("1")])
    with database.writing() as connection:
        connection.execute(text("DROP TRIGGER opencqrs_events_in_turn"))
    quoted = said.replace("'", "''")
    refuses = f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = '{quoted}'"
    again = open_database()
    again.dialect = copy(again.dialect)
    again.dialect.turn_statements = lambda _database: (f"BEGIN NOT ATOMIC {refuses}; END",)  # type: ignore[method-assign]
    assert SqlEventStore(again).head() == 1
    assert "opencqrs_events has lost its trigger" in caplog.text
    assert said in caplog.text


@MARIADB
def test_a_trigger_left_on_the_previous_table_is_reported_missing(
    database: Database, open_database: Callable[[], Database], caplog: pytest.LogCaptureFixture
) -> None:
    SqlEventStore(database).append([event("1")])
    with database.writing() as connection:
        connection.execute(text("CREATE TABLE copied LIKE opencqrs_events"))
        connection.execute(text("INSERT INTO copied SELECT * FROM opencqrs_events"))
        connection.execute(text("RENAME TABLE opencqrs_events TO before_it, copied TO opencqrs_events"))
    assert SqlEventStore(open_database()).head() == 1
    assert "opencqrs_events has lost its trigger" in caplog.text
    with database.writing() as connection:
        connection.execute(text("DROP TABLE before_it"))
    caplog.clear()
    assert SqlEventStore(open_database()).head() == 1
    assert caplog.text == ""
    assert database.fetch("SHOW TRIGGERS LIKE 'opencqrs_events'")


@POSTGRESQL
def test_positions_continue_after_rows_copied_without_their_sequence(
    database: Database, open_database: Callable[[], Database]
) -> None:
    """Otherwise an event replaces one that was removed, and groups that have passed it never see it."""
    running = SqlEventStore(database)
    running.append([event(name) for name in "abcd"])
    with database.writing() as connection:
        connection.execute(text("DELETE FROM opencqrs_events WHERE position IN (1, 3)"))
        connection.execute(text("SELECT setval('opencqrs_events_position_seq', 1, false)"))
    started = SqlEventStore(open_database())
    started.append([event("e")])
    assert [each.position for each in started.read(0, 10, Selection()).events] == [2, 4, 5]
    with database.writing() as connection:
        connection.execute(text("SELECT setval('opencqrs_events_position_seq', 1)"))
    with pytest.raises(EventStoreError, match=r"OCQ-306.*duplicate key(?s:.*)nothing was added; try again"):
        running.append([event("f")])
    assert running.append([event("f")]) == (1, 1)
    assert running.head() == 6


@POSTGRESQL
def test_a_log_with_only_hidden_rows_is_not_treated_as_empty(database: Database, url: str) -> None:
    SqlEventStore(database).append([event("1")])
    with database.writing() as connection:
        schema = connection.execute(text("SELECT current_schema()")).scalar_one()
        for statement in (
            "DO $$ BEGIN CREATE ROLE hidden LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
            f'GRANT USAGE ON SCHEMA "{schema}" TO hidden',
            "GRANT SELECT ON opencqrs_events, opencqrs_schema TO hidden",
            "ALTER TABLE opencqrs_events ENABLE ROW LEVEL SECURITY",
        ):
            connection.execute(text(statement))
    hidden = Database(make_url(url).set(username="hidden").render_as_string(hide_password=False))
    with pytest.raises(EventStoreError, match=r"OCQ-304.*row level security hides all rows of opencqrs_events"):
        SqlEventStore(hidden).head()
    with database.writing() as connection:
        connection.execute(text("CREATE POLICY all_of_them ON opencqrs_events FOR SELECT TO hidden USING (true)"))
    assert SqlEventStore(hidden).head() == 1
    hidden.close()


@MARIADB
def test_without_the_row_that_serialises_writers_no_write_is_possible(
    database: Database, open_database: Callable[[], Database]
) -> None:
    """Positions would become visible out of order, and events be missed."""
    store, tracker = SqlEventStore(database), SqlProgressTracker(database)
    store.append([event("1")])
    tracker.claim("group", layout(1), 0, "owner")
    with database.writing() as connection:
        connection.execute(text("DELETE FROM opencqrs_schema"))
    with pytest.raises(EventStoreError, match=r"OCQ-304.*has lost its row of opencqrs_events"):
        store.append([event("2")])
    with pytest.raises(EventStoreError, match=r"OCQ-304.*has lost its row of opencqrs_progress"):
        tracker.claim("group", layout(1), 0, "owner")
    assert SqlEventStore(open_database()).head() == 1
    assert store.append([event("2")]) == (1, 1)


@TRANSACTIONAL
def test_a_migration_that_fails_changes_nothing(database: Database, open_database: Callable[[], Database]) -> None:
    make_version_1(database, "1")
    with database.writing() as connection:  # a name that the second index would have
        connection.execute(text("CREATE TABLE other (n INTEGER)"))
        connection.execute(text("CREATE INDEX opencqrs_events_type ON other (n)"))
    with pytest.raises(Exception, match="opencqrs_events_type"):
        SqlEventStore(open_database()).head()
    assert "opencqrs_events_subject" not in indexes(database)
    with database.writing() as connection:
        connection.execute(text("DROP TABLE other"))
    assert SqlEventStore(open_database()).head() == 1
    assert versions(database) == {"opencqrs_events": 4}


@pytest.mark.parametrize("table", ["opencqrs_events", "opencqrs_progress"])
def test_a_table_of_a_newer_package_is_refused(
    database: Database, open_database: Callable[[], Database], table: str
) -> None:
    SqlEventStore(database).append([event("1")])
    SqlProgressTracker(database).claim("group", layout(1), 0, "owner")
    with database.writing() as connection:
        connection.execute(update(SCHEMA).where(SCHEMA.c.table_name == table).values(version=99))
    other = open_database()
    known = {"opencqrs_events": 4, "opencqrs_progress": 5}[table]
    with pytest.raises(EventStoreError, match="OCQ-311") as caught:
        SqlEventStore(other).head() if "events" in table else SqlProgressTracker(other).statuses()
    assert str(caught.value) == (
        f"[OCQ-311] the table {table} has version 99, but this package knows versions up to {known}\n"
        f"  where: {other.label}\n"
        "  fix:   update it: pip install --upgrade opencqrs-py"
    )


def test_concurrent_first_uses_create_the_table_once(open_database: Callable[[], Database], database: Database) -> None:
    stores = [SqlEventStore(open_database()) for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert [head.result(SECONDS) for head in [threads.submit(store.head) for store in stores]] == [0] * 6
    assert versions(database) == {"opencqrs_events": 4}


def test_concurrent_migrations_migrate_the_table_once(
    open_database: Callable[[], Database], database: Database
) -> None:
    make_version_1(database, "1")
    stores = [SqlEventStore(open_database()) for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert [head.result(SECONDS) for head in [threads.submit(store.head) for store in stores]] == [1] * 6
    assert versions(database) == {"opencqrs_events": 4}

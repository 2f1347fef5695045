"""Speed by counts: how many statements each operation sends to the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.model import Event, Handler, HandlerMark, PartitionStatus, ProcessorState, Selection, Slice, layout
from opencqrs_py.model.appending import Precondition, SubjectIsOnEventId, SubjectIsPristine
from opencqrs_py.model.inbox import NOTHING_PARKED
from opencqrs_py.processing.binding import NothingProvided, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent

pytestmark = pytest.mark.release(  # the same ones as on PostgreSQL
    "test_large_events_are_added_a_few_at_a_time",
    "test_a_chunk_costs_one_read_one_lock_and_one_update_however_long_it_is",
    "test_adding_events_costs_one_statement_per_five_thousand",
    kind="mariadb",
)

Noted = Callable[[Callable[[str, Any], None]], AbstractContextManager[None]]
Statements = Callable[[], AbstractContextManager[list[str]]]

TRANSACTION_CONTROL = ("BEGIN", "START", "SET @opencqrs_turn", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")


@pytest.fixture
def statements(noted_statements: Noted) -> Callable[[], AbstractContextManager[list[str]]]:
    """Collects the first two words of the statements that are sent."""

    @contextmanager
    def collect() -> Iterator[list[str]]:
        sent: list[str] = []

        def note(statement: str, _values: Any) -> None:
            if not statement.startswith(TRANSACTION_CONTROL):
                sent.append(" ".join(statement.split()[:2]))

        with noted_statements(note):
            yield sent

    return collect


@contextmanager
def commits(database: Database) -> Iterator[list[str]]:
    """Collect a mark for each commit."""
    found: list[str] = []

    def note(_connection: Any) -> None:
        found.append("COMMIT")

    event.listen(database.engine, "commit", note)
    yield found
    event.remove(database.engine, "commit", note)


def events(count: int, start: int = 0) -> list[Event]:
    return [
        Event(0, str(n), "s", f"/books/{n}", "lent", None, "application/json", "{}", None)
        for n in range(start, start + count)
    ]


@pytest.fixture
def store(database: Database) -> SqlEventStore:
    store = SqlEventStore(database)
    store.head()
    return store


@pytest.fixture
def tracker(database: Database) -> SqlProgressTracker:
    tracker = SqlProgressTracker(database)
    assert tracker.statuses() == []
    return tracker


def processing(
    store: SqlEventStore, tracker: SqlProgressTracker, partitions: int = 1, batch_size: int | None = None
) -> GroupProcessing:
    """Return a group whose handler takes the connection of the transaction and sends nothing itself."""

    def handle(raw: Event, connection: Connection) -> None:
        pass

    bound = bind(Handler(HandlerMark("group"), handle, "here"), NothingProvided())
    return GroupProcessing(
        "group",
        store,
        tracker,
        Dispatcher([bound], []),
        subject="/",
        recursive=True,
        sequencing=SequencingByEvent(PerSubject()),
        partitions=partitions,
        batch_size=batch_size,
    )


@pytest.mark.parametrize("count", [1, 10, 1_000])
@pytest.mark.few(kind=("postgresql", "mariadb"))
def test_a_chunk_costs_one_read_one_lock_and_one_update_however_long_it_is(
    statements: Statements, database: Database, store: SqlEventStore, tracker: SqlProgressTracker, count: int
) -> None:
    store.append(events(count))
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")
    processor = processing(store, tracker).processor(layout(1)[0])
    with statements() as sent, commits(database) as committed:
        outcome = processor.step(replace(cursor, parked=NOTHING_PARKED))
    assert outcome.handled == count
    known = ["SELECT max(position)"] if database.kind == "mariadb" else []  # as the store was not read before
    locked = "UPDATE opencqrs_progress" if database.kind == "mariadb" else "SELECT 1"
    assert sent == [*known, "SELECT position,", locked, "UPDATE opencqrs_progress"]
    assert len(committed) == 1


def objects_only(store: SqlEventStore, tracker: SqlProgressTracker) -> GroupProcessing:
    """Return a group whose handler sees decoded objects, so that a long log is read without the other attributes."""

    def handle(event: dict[str, Any], connection: Connection) -> None:
        pass

    bound = bind(Handler(HandlerMark("group", ("lent",)), handle, "here"), NothingProvided())
    sequencing = SequencingByEvent(PerSubject())
    dispatcher = Dispatcher([bound], [])
    return GroupProcessing(
        "group",
        store,
        tracker,
        dispatcher,
        subject="/",
        recursive=True,
        sequencing=sequencing,
        partitions=1,
        batch_size=None,
    )


@pytest.mark.parametrize(("count", "marks"), [(1, 0), (10, 0), (1_000, 1)])
@pytest.mark.few(kind=("postgresql", "mariadb"))
def test_the_fingerprint_costs_at_most_one_statement_per_chunk_and_none_at_the_head(
    statements: Statements,
    database: Database,
    store: SqlEventStore,
    tracker: SqlProgressTracker,
    count: int,
    marks: int,
) -> None:
    store.append(events(count))
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")
    processor = objects_only(store, tracker).processor(layout(1)[0])
    store.head()  # as a watch has seen it
    with statements() as sent:
        assert processor.step(cursor).handled == count
    assert sent.count("SELECT position,") == 1 + marks


def test_a_step_after_one_with_few_events_costs_no_statement_for_the_fingerprint(
    statements: Statements, database: Database, store: SqlEventStore, tracker: SqlProgressTracker
) -> None:
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")
    processor = objects_only(store, tracker).processor(layout(1)[0])
    reads = []
    for start in (0, 2, 4):  # without a watch, which would know the head
        store.append(events(2, start))
        with statements() as sent:
            cursor = processor.step(cursor).cursor
        reads.append(sent.count("SELECT position,"))
    assert reads == [2, 1, 1]


def test_a_step_without_new_events_costs_two_statements(
    statements: Statements, database: Database, store: SqlEventStore, tracker: SqlProgressTracker
) -> None:
    store.append(events(3))
    (cursor,) = tracker.claim("group", layout(1), 3, "owner")
    processor = processing(store, tracker).processor(layout(1)[0])
    with statements() as sent, commits(database) as committed:
        assert processor.step(replace(cursor, parked=NOTHING_PARKED)).idle
    assert sent == ["SELECT position,", "SELECT max(position)"][database.kind == "mariadb" :]
    assert committed == []


@pytest.mark.parametrize("selection", [Selection("/cars"), Selection(types=frozenset({"sold"}))])
def test_unselected_events_seen_by_a_watch_cost_one_statement(
    statements: Statements, database: Database, store: SqlEventStore, selection: Selection
) -> None:
    with store.watched() as watch:
        store.append(events(3))
        assert watch.wait(0, 30) == 3
        with statements() as sent:
            assert store.read(0, 10, selection) == Slice(0, 3)
    assert sent == ["SELECT position,"]


def test_reading_needs_no_transaction(statements: Statements, database: Database, store: SqlEventStore) -> None:
    store.append(events(3))
    store.head()
    with statements() as sent:
        store.read(0, 10, Selection())
    assert len(sent) == 1
    with database.reading() as connection:
        connection.exec_driver_sql("SELECT 1")
        driver: Any = connection.connection.dbapi_connection
        in_transaction = {
            "mariadb": lambda: driver.server_status & 1,
            "postgresql": lambda: driver.info.transaction_status,
            "sqlite": lambda: driver.in_transaction,
        }
        assert not in_transaction[database.kind]()


def fill(store: SqlEventStore, _database: Database) -> None:
    """Write a long log with one rare event."""
    rare = Event(0, "rare", "s", "/rare/1", "rare", None, "application/json", "{}", None)
    store.append([*events(25_000), rare, *events(5_000, start=25_000)])


@pytest.mark.release(kind="mariadb")  # as on PostgreSQL
@pytest.mark.usefixtures("long_log")
@pytest.mark.parametrize("selection", [Selection("/rare"), Selection(types=frozenset({"rare", "none"}))])
def test_rare_events_in_a_long_log_are_found_with_four_statements(
    statements: Statements, database: Database, store: SqlEventStore, selection: Selection
) -> None:
    store.head()
    with statements() as sent:
        part = store.read(0, 1_000, selection)
    assert ([one.id for one in part.events], part.after, part.upto) == (["rare"], 0, 30_001)
    assert sent == ["SELECT position,", "SELECT max(position)", "SELECT count(*)", "SELECT position,"]


@pytest.mark.usefixtures("long_log")
@pytest.mark.parametrize("bound", [10_000, 25_000])
def test_a_bounded_read_of_a_newly_opened_store_costs_one_statement(
    statements: Statements, database: Database, store: SqlEventStore, bound: int
) -> None:
    another = SqlEventStore(database)
    another.append([])  # checks whether the table exists
    with statements() as sent:
        assert another.read(bound - 10, 10, Selection(), bound).upto == bound
        assert another.read(bound - 10, 20, Selection(), bound).upto == bound
        assert len(another.read(0, 10, Selection("/books"), bound).events) == 10
    assert sent == ["SELECT position,"] * 3


@pytest.mark.usefixtures("long_log")
def test_a_bound_without_a_selected_event_costs_a_check_that_the_log_reaches_it(
    statements: Statements, database: Database, store: SqlEventStore
) -> None:
    another = SqlEventStore(database)
    another.append([])
    with statements() as sent:
        assert another.read(0, 10, Selection("/cars"), 500) == Slice(0, 500)
        assert sent == ["SELECT position,", "SELECT max(position)"]
        del sent[:]
        assert another.read(0, 10, Selection("/books/7"), 20_000).upto == 8  # that comes with the read of the rest
        assert sent == ["SELECT position,"]
        another.head()
        del sent[:]
        assert another.read(0, 10, Selection("/cars"), 500) == Slice(0, 500)
        assert sent == ["SELECT position,"]


@pytest.mark.usefixtures("long_log")
def test_rare_events_below_a_bound_are_found_with_three_statements(
    statements: Statements, database: Database, store: SqlEventStore
) -> None:
    store.head()
    with statements() as sent:
        part = store.read(0, 1_000, Selection("/rare"), 30_000)
    assert ([one.id for one in part.events], part.after, part.upto) == (["rare"], 0, 30_000)
    assert sent == ["SELECT position,", "SELECT count(*)", "SELECT position,"]


@pytest.mark.parametrize("partitions", [1, 2, 8])
@pytest.mark.few(kind=("postgresql", "mariadb"))
def test_reads_do_not_multiply_with_partitions(
    statements: Statements, database: Database, store: SqlEventStore, tracker: SqlProgressTracker, partitions: int
) -> None:
    store.append(events(3_000))
    group = processing(store, tracker, partitions, batch_size=1_000)
    with statements() as sent:
        cursors = {c.partition: c for c in tracker.claim("group", layout(partitions), 0, "owner")}
        del sent[:]
        handled = 0
        open_partitions = set(cursors)
        while open_partitions:
            for partition in sorted(open_partitions):
                outcome = group.processor(partition).step(cursors[partition])
                cursors[partition] = outcome.cursor
                handled += outcome.handled
                if outcome.idle:
                    open_partitions.discard(partition)
    assert handled == 3_000
    assert sent.count("SELECT position,") <= 3 + partitions  # at the end, each checks for more
    locks = 2 if database.kind == "mariadb" else 1  # there the lock names the connection, which is an update, too
    assert sent.count("UPDATE opencqrs_progress") <= 3 * partitions * locks


ADDING = ("INSERT INTO", "WITH fresh")  # on SQLite and MariaDB, on PostgreSQL
LOOKING = {  # before each chunk: for events that are known, and for how many positions were given
    "mariadb": ["SELECT identity"],
    "postgresql": [],
    "sqlite": ["SELECT seq"],
}
TURN = {"mariadb": ["SELECT version"], "postgresql": ["SELECT pg_advisory_xact_lock(%s),"], "sqlite": []}


@pytest.mark.parametrize(("count", "inserts"), [(101, 1), (5_000, 1), (5_002, 2)])
@pytest.mark.few(kind=("postgresql", "mariadb"))
def test_adding_events_costs_one_statement_per_five_thousand(
    statements: Statements, database: Database, store: SqlEventStore, count: int, inserts: int
) -> None:
    store.append(events(10, start=1_000_000))
    with statements() as sent, commits(database) as committed:
        assert store.append(events(count)) == (count, count)
    turn = TURN[database.kind]
    looking = LOOKING[database.kind]
    assert sent[: len(turn)] == turn
    rest = [statement for statement in sent[len(turn) :] if not statement.startswith("PRAGMA")]
    assert len(rest) == inserts * (1 + len(looking))
    assert set(rest) <= {*ADDING, *looking}
    assert len(committed) == 1


@pytest.mark.release(kind=("postgresql", "mariadb"), stored=0)
@pytest.mark.release(kind="mariadb")  # as on PostgreSQL
@pytest.mark.parametrize("stored", [0, 1, 20_000])
@pytest.mark.few(kind=("postgresql", "mariadb"))
def test_adding_many_events_takes_the_same_statements_however_many_are_stored(
    statements: Statements, database: Database, store: SqlEventStore, stored: int
) -> None:
    store.append(events(stored, start=1_000_000))
    chunk = (*LOOKING[database.kind], ADDING[database.kind == "postgresql"])
    with statements() as sent:
        store.append(events(12_000))
    assert [statement for statement in sent if statement in chunk] == [*chunk] * 3


@pytest.mark.release(kind=("postgresql", "mariadb"))
def test_an_append_sets_no_savepoint_that_makes_sqlite_copy_pages(database: Database, store: SqlEventStore) -> None:
    store.append(events(10))
    set_: list[str] = []
    event.listen(database.engine, "savepoint", lambda _connection, name: set_.append(name))
    assert store.append(events(6_000)) == (6_000, 5_990)
    assert set_ == []


def test_events_are_counted_after_the_newest_ones_were_deleted(database: Database, store: SqlEventStore) -> None:
    store.append(events(20))
    with database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM opencqrs_events WHERE position > 10")
    assert store.append(events(30)) == (30, 20)


def cache_size(connection: Connection) -> int:
    found: int = connection.exec_driver_sql("PRAGMA cache_size").scalar_one()
    return found


@pytest.fixture
def cache_sizes(database: Database, store: SqlEventStore) -> list[int]:
    """SQLite's page cache, in the middle of each append and after it, as its own setting says."""
    if database.kind != "sqlite":
        pytest.skip("a setting of SQLite's")
    seen: list[int] = []

    def note(connection: Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("INSERT"):
            driver: Any = connection.connection.dbapi_connection
            seen.append(driver.execute("PRAGMA cache_size").fetchone()[0])

    event.listen(database.engine, "before_cursor_execute", note)
    return seen


BY_DEFAULT, LARGE = -2_000, -131_072  # KiB


def test_the_cache_is_enlarged_while_many_events_are_added(
    database: Database, store: SqlEventStore, cache_sizes: list[int]
) -> None:
    store.append(events(12_000))
    assert cache_sizes == [BY_DEFAULT, LARGE, LARGE]
    with database.reading() as connection:
        assert cache_size(connection) == BY_DEFAULT


def test_the_cache_size_is_restored_after_a_failed_append(
    database: Database, store: SqlEventStore, cache_sizes: list[int]
) -> None:
    def broken() -> Iterator[Event]:
        yield from events(12_000)
        msg = "line 12001"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="line 12001"):
        store.append(broken())
    assert cache_sizes == [BY_DEFAULT, LARGE]
    with database.reading() as connection:
        assert cache_size(connection) == BY_DEFAULT
    assert store.count() == 0


@pytest.mark.parametrize(("own", "during"), [(-1_000_000, -1_000_000), (100_000, 100_000), (-4_000, LARGE)])
def test_a_cache_size_set_by_the_user_is_restored_and_never_reduced(
    database: Database, store: SqlEventStore, cache_sizes: list[int], own: int, during: int
) -> None:
    with database.reading() as connection:
        connection.exec_driver_sql(f"PRAGMA cache_size = {own}")
    store.append(events(6_000))
    assert cache_sizes == [own, during]
    with database.reading() as connection:
        assert cache_size(connection) == own


def test_events_of_one_statement_do_not_change_the_cache(store: SqlEventStore, cache_sizes: list[int]) -> None:
    store.append(events(5_000))
    assert cache_sizes == [BY_DEFAULT]


@pytest.mark.parametrize("count", [1, 100])
def test_a_few_events_are_sent_together_with_their_transaction(
    statements: Statements, database: Database, store: SqlEventStore, count: int
) -> None:
    store.append(events(10, start=1_000_000))
    with statements() as sent, commits(database) as committed:
        assert store.append(events(count)) == (count, count)
    assert len(sent) == {"mariadb": 3, "postgresql": 1, "sqlite": 1 if count == 1 else 2}[database.kind]
    assert len(committed) == (0 if database.kind == "postgresql" else 1)  # there the statement is the transaction


def test_large_events_are_added_a_few_at_a_time(
    statements: Statements, database: Database, store: SqlEventStore
) -> None:
    large = [one._replace(payload=f'"{"x" * 3_000_000}"') for one in events(7)]
    with statements() as sent:
        assert store.append(large) == (7, 7)
    assert len([statement for statement in sent if statement in ADDING]) == (7 if database.kind == "mariadb" else 3)


@pytest.mark.release(kind="mariadb")  # as on PostgreSQL
def test_added_events_are_counted_without_counting_the_stored_ones(
    statements: Statements, database: Database, store: SqlEventStore
) -> None:
    store.append(events(7_000))
    with statements() as sent:
        assert store.append(events(7_000, start=6_000)) == (7_000, 6_000)
    assert not [statement for statement in sent if statement.startswith("SELECT count")]
    assert store.count() == 13_000


@pytest.mark.parametrize("precondition", [SubjectIsPristine("/books/x"), SubjectIsOnEventId("/books/1", "1")])
def test_a_precondition_costs_one_statement(
    statements: Statements, database: Database, store: SqlEventStore, precondition: Precondition
) -> None:
    store.append(events(10))
    with statements() as sent:
        store.append([], [precondition])
    assert sent[-1] == "SELECT id"
    assert len(sent) == 1 + len(TURN[database.kind])


def test_progress_is_reported_while_events_are_added(store: SqlEventStore) -> None:
    told: list[int] = []
    store.append(events(12_000), progress=told.append)
    assert told == [5_000, 10_000, 12_000]


def test_a_report_costs_one_statement(statements: Statements, database: Database, tracker: SqlProgressTracker) -> None:
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")
    with statements() as sent:
        tracker.report(PartitionStatus("group", cursor.partition, 0, ProcessorState.RUNNING), cursor.epoch)
    assert sent == ["UPDATE opencqrs_progress"]


def test_the_existence_of_tables_is_checked_once(statements: Statements, database: Database) -> None:
    store = SqlEventStore(database)
    store.head()
    with statements() as sent:
        store.head()
        store.read(0, 10, Selection())
        store.append(events(1))
    assert not [
        statement for statement in sent if "pg_catalog" in statement or statement.startswith(("PRAGMA", "CREATE"))
    ]


def test_checking_for_an_existing_table_waits_for_no_writer(
    statements: Statements, database: Database, store: SqlEventStore
) -> None:
    with database.writing(), statements() as sent:
        assert SqlEventStore(database).head() == 0
    assert not [statement for statement in sent if statement.startswith("CREATE")]


def test_a_chunk_that_drops_a_table_is_committed_although_prepared_statements_are_lost(
    database: Database, tracker: SqlProgressTracker
) -> None:
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")
    for to in (1, 2, 3):  # the first unit of a connection prepares the statements of later ones
        with tracker.unit("group", cursor, to) as unit:
            for number in range(10):  # psycopg prepares a statement that it has seen five times
                unit.connection.execute(text("SELECT CAST(:number AS CHAR(9))"), {"number": number})
            if database.kind == "postgresql":  # MariaDB and SQLite end the transaction, or refuse
                unit.connection.execute(text("CREATE TABLE passing (id INTEGER)"))
                unit.connection.execute(text("DROP TABLE passing"))
        cursor = replace(cursor, stored=to, position=to)
    assert [status.position for status in tracker.statuses()] == [3]

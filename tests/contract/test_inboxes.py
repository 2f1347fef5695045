"""The contract of inboxes, kept by each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import delete, inspect, text, update

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.adapters.sql.dialects.faults import DatabaseBusyError
from opencqrs_py.adapters.sql.inbox import SqlInbox
from opencqrs_py.adapters.sql.tables import INBOX, PROGRESS
from opencqrs_py.errors import InboxError
from opencqrs_py.model import Cursor, layout
from opencqrs_py.model.ahead import Ahead
from opencqrs_py.model.inbox import Fetching, InboxChange, InboxEntry, Remainder
from opencqrs_py.testing.contracts import InboxContract
from opencqrs_py.testing.contracts.inbox_units import LATER, NOON, WHOLE, at, brought_in, entry, parked

SECONDS = 60
Noted = Callable[[Callable[[str, Any], None]], AbstractContextManager[None]]


class UncertainReadModel:
    """A read model whose commits may fail."""

    fails = False

    @contextmanager
    def begin(self, *, guarded: bool = True) -> Iterator[Any]:
        yield SimpleNamespace()
        if self.fails:
            raise TimeoutError("no answer")

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, TimeoutError)


class TestInMemoryInbox(InboxContract):
    @pytest.fixture
    def tracker(self) -> InMemoryProgressTracker:
        return InMemoryProgressTracker()

    def test_a_failed_commit_of_the_read_model_leaves_the_inbox_unchanged(self) -> None:
        read_model = UncertainReadModel()
        tracker = InMemoryProgressTracker(read_model)
        (cursor,) = tracker.claim("group", [WHOLE], 0, "owner")
        cursor = self.put(tracker, cursor, parked(1), parked(2))
        read_model.fails = True
        with pytest.raises(TimeoutError):
            self.take(tracker, cursor, parked(1))
        with pytest.raises(TimeoutError):
            self.put(tracker, cursor, parked(3))
        assert [one.position for one in tracker.entries("group")] == [1, 2]
        read_model.fails = False
        self.take(tracker, cursor, parked(1))
        self.put(tracker, cursor, parked(3))
        assert [one.position for one in tracker.entries("group")] == [2, 3]


@pytest.mark.few("test_sequence_ids_are_kept_unchanged", kind=("postgresql", "mariadb"))  # the values are not in SQL
class TestSqlInbox(InboxContract):
    @pytest.fixture
    def tracker(self, database: Database) -> SqlProgressTracker:
        return SqlProgressTracker(database)

    @pytest.fixture
    def another(self, open_database: Callable[[], Database]) -> SqlProgressTracker:
        return SqlProgressTracker(open_database())

    @pytest.mark.parametrize("each", [False, True])
    @pytest.mark.parametrize("count", [1, 700])
    def test_expired_events_are_removed_by_one_statement(
        self, tracker: SqlProgressTracker, cursor: Cursor, noted_statements: Noted, count: int, *, each: bool
    ) -> None:
        over = [entry(n, f"books/{n}") if n % 3 else parked(n, f"books/{n}") for n in range(1, count + 1)]
        left = [entry(10_000 + n, f"books/{n}") for n in range(1, count + 1)]
        come_in = replace(brought_in(*over, *left), most_sequences=None, most_of_sequence=None, each=each)
        with tracker.unit("group", cursor, 20_000, change=come_in):
            pass
        sent: list[str] = []
        with noted_statements(lambda statement, _values: sent.append(" ".join(statement.split()[:2]))):
            assert tracker.change("group", InboxChange(at(LATER), removed=tuple(over), each=each))
        assert sent.count("DELETE FROM") == 1
        assert sent.count("UPDATE opencqrs_inbox") == (0 if each else 1)
        assert sum(one.startswith("SELECT") for one in sent) <= 3
        assert [one.position for one in tracker.due("group", WHOLE, LATER, 1_000)[0]] == [10_001]
        assert len(tracker.entries("group")) == count

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"sequence_hash": 5}, "column sequence_hash of opencqrs_inbox was changed by another program"),
            ({"sequence_id": '"b\u00fccher/1"'}, "column sequence_id of opencqrs_inbox was changed by another program"),
            ({"sequence_id": "books/1"}, "column sequence_id of opencqrs_inbox was changed by another program"),
            ({"sequence_id": "1"}, "column sequence_id of opencqrs_inbox was changed by another program"),
        ],
    )
    def test_rows_that_no_statement_can_match_are_reported_instead_of_retried_forever(
        self, tracker: SqlProgressTracker, cursor: Cursor, database: Database, changed: dict[str, Any], said: str
    ) -> None:
        self.put(tracker, cursor, entry(1, "books/1"))
        with database.writing() as connection:
            connection.execute(update(database.table(INBOX)).values(**changed))
        with pytest.raises(InboxError, match=f"OCQ-617.*{said}"):
            tracker.due("group", WHOLE, LATER, 10)

    def test_more_events_than_fit_into_a_statement_are_removed_by_several(
        self, tracker: SqlProgressTracker, cursor: Cursor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("opencqrs_py.adapters.sql.inbox._MOST_NAMED", 3)
        over = [entry(n, f"books/{n}") for n in range(1, 9)]
        self.put(tracker, cursor, *over, entry(9, "books/8"))
        assert tracker.change("group", InboxChange(at(LATER), removed=tuple(over)))
        assert self.seen(tracker) == [(9, "pending", at(LATER))]

    @pytest.mark.parametrize("each", [False, True])
    def test_more_chosen_events_than_fit_into_a_statement_take_several(
        self, tracker: SqlProgressTracker, cursor: Cursor, monkeypatch: pytest.MonkeyPatch, *, each: bool
    ) -> None:
        monkeypatch.setattr("opencqrs_py.adapters.sql.inbox._MOST_NAMED", 2)
        cursor = self.put(tracker, cursor, *map(entry, range(1, 10)), each=each)
        own: Any = {"until": at(NOON)} if each else {"chosen_at": at(NOON)}
        rest = Remainder("books/1", at(LATER), chosen=(8, 3, 1, 6, 2), **own)
        with tracker.unit("group", cursor, 9, change=InboxChange(at(NOON), remainders=(rest,), each=each)):
            pass
        due = {one: LATER if one in {4, 5, 7, 9} else NOON for one in range(1, 10)}
        assert self.seen(tracker) == [(one, "pending", at(due[one])) for one in due]

    def test_more_sequences_than_fit_into_a_statement_take_several(
        self, tracker: SqlProgressTracker, cursor: Cursor, noted_statements: Noted, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("opencqrs_py.adapters.sql.inbox._MOST_NAMED", 3)
        entries = [entry(n, f"books/{n % 8}") for n in range(1, 17)]
        self.put(tracker, cursor, *entries)
        marks: list[int] = []
        with noted_statements(lambda _statement, values: marks.append(len(values or ()))):
            found = tracker.due("group", WHOLE, LATER, 100)
            assert self.due(tracker, LATER, 40, Fetching.WHOLE) == [[n, n + 8] for n in range(1, 9)]
        assert [[one.position for one in each] for each in found] == [[n, n + 8] for n in range(1, 9)]
        assert max(marks) <= 3 + 4  # and those for the group, the time and the limit
        done = tuple(one for each in found for one in each)
        with tracker.unit(
            "group", replace(cursor, stored=16, position=16), 16, change=InboxChange(at(LATER), done=done)
        ):
            pass
        assert tracker.entries("group") == []

    @pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
    @pytest.mark.parametrize("each", [False, True])
    def test_any_number_of_events_is_added_or_removed_by_one_statement(
        self, tracker: SqlProgressTracker, cursor: Cursor, noted_statements: Noted, *, each: bool
    ) -> None:
        entries = [entry(n, f"books/{n % 40}") for n in range(1, 1_001)]
        come_in = replace(brought_in(*entries), most_sequences=None, most_of_sequence=None, each=each)
        sent: list[str] = []
        with noted_statements(lambda statement, _values: sent.append(statement)):
            with tracker.unit("group", cursor, 1_000, change=come_in):
                pass
            moved = replace(cursor, stored=1_000, position=1_000)
            with tracker.unit("group", moved, 1_000, change=InboxChange(at(LATER), done=tuple(entries), each=each)):
                pass
        of_inbox = [one for one in sent if "opencqrs_inbox" in one]
        asked = [] if each else ["SELECT"]  # which of the sequences wait already
        assert [one.split()[0] for one in of_inbox] == [*asked, "INSERT", "SELECT", "DELETE"]
        assert max(map(len, of_inbox)) < 2_000  # it names no event: the database has not to parse them all
        assert tracker.entries("group") == []

    def test_few_sequences_beyond_the_size_of_a_fetch_are_counted(
        self, tracker: SqlProgressTracker, cursor: Cursor, noted_statements: Noted
    ) -> None:
        entries = [entry(n, f"books/{n % 400}") for n in range(1, 2_001)]
        come_in = replace(brought_in(*entries), most_sequences=None, most_of_sequence=None)
        with tracker.unit("group", cursor, 2_000, change=come_in):
            pass
        counted: list[int] = []

        def note(statement: str, _values: Any) -> None:
            if "GROUP BY sequence_hash" in statement:
                counted.append(statement.count(",") - 1)  # after the one between the columns

        with noted_statements(note):
            found = tracker.due("group", WHOLE, LATER, 1_000)
        assert [len(each) for each in found] == [5] * 200
        assert len(counted) <= 3
        assert sum(counted) <= 220

    @pytest.mark.release
    def test_a_fetch_of_many_sequences_stays_below_the_parameter_limit_of_the_database(
        self, tracker: SqlProgressTracker, cursor: Cursor
    ) -> None:
        """PostgreSQL takes 65,535 of them, SQLite 32,766 or more."""
        many = tuple(entry(n, f"books/{n}") for n in range(1, 66_001))
        come_in = replace(brought_in(*many), most_sequences=None, most_of_sequence=None)
        with tracker.unit("group", cursor, 66_000, change=come_in):
            pass
        assert len(tracker.due("group", WHOLE, LATER, 4 * 66_000)) == 66_000

    @pytest.mark.parametrize(("initial", "left"), [(0, []), (4, [3])])
    def test_events_that_a_group_reads_again_leave_the_inbox(
        self, tracker: SqlProgressTracker, cursor: Cursor, database: Database, initial: int, left: list[int]
    ) -> None:
        self.put(tracker, cursor, parked(3), entry(7), parked(8, "books/2"))
        with database.writing() as connection:
            connection.execute(delete(database.table(PROGRESS)))
        (begun,) = tracker.claim("group", [WHOLE], initial, "owner")
        assert [one.position for one in tracker.entries("group")] == left
        self.put(tracker, begun, parked(8))

    def test_events_beyond_progress_that_was_set_back_are_read_again(
        self, tracker: SqlProgressTracker, database: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        first, second = tracker.claim("group", layout(2), 0, "owner")
        ids = [f"books/{n}" for n in range(99)]
        one, other = (next(filter(each.partition.owns, ids)) for each in (first, second))
        self.put(tracker, first, parked(2, one), entry(6, one))
        self.put(tracker, second, parked(3, other), entry(7, other))
        progress = database.table(PROGRESS)
        with database.writing() as connection:
            connection.execute(update(progress).where(progress.c.residue == first.partition.residue).values(position=4))
        (begun,) = tracker.claim("group", [first.partition], 0, "owner", layout(2))
        assert [one.position for one in tracker.entries("group")] == [2, 3, 7]
        assert "so 1 event beyond it in the inbox will be read again" in caplog.text
        caplog.clear()
        self.put(tracker, begun, entry(6, one))
        tracker.claim("group", layout(2), 0, "owner")
        assert sorted(one.position for one in tracker.entries("group")) == [2, 3, 6, 7]
        assert not caplog.text

    def test_events_of_sequences_ahead_of_their_partition_stay(
        self, tracker: SqlProgressTracker, cursor: Cursor, database: Database
    ) -> None:
        self.put(tracker, cursor, parked(3), entry(7))
        ahead = Ahead(((WHOLE, 7),)).text
        with database.writing() as connection:
            connection.execute(update(database.table(PROGRESS)).values(position=4, ahead=ahead))
        tracker.claim("group", [WHOLE], 0, "owner")
        assert [one.position for one in tracker.entries("group")] == [3, 7]


@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_a_processor_that_waited_for_a_command_does_not_see_the_inbox_as_before_it(
    database: Database, open_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With REPEATABLE READ as the server's default a transaction sees the state at its first statement."""
    with database.writing() as connection:
        connection.execute(text("ALTER DATABASE postgres SET default_transaction_isolation = 'repeatable read'"))
    try:
        tracker = SqlProgressTracker(open_database())
        (cursor,) = tracker.claim("group", [WHOLE], 0, "owner")
        put(tracker, cursor, parked(1))
        moved = replace(cursor, stored=1, position=1)
        coming: list[Future[None]] = []
        apply = SqlInbox.apply

        def while_the_owner_waits(inbox: SqlInbox, *given: Any) -> None:
            monkeypatch.setattr(SqlInbox, "apply", apply)
            apply(inbox, *given)
            coming.append(threads.submit(put, tracker, moved, entry(2)))
            over = monotonic() + SECONDS
            with database.reading() as connection:
                while not connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar():
                    assert monotonic() < over

        monkeypatch.setattr(SqlInbox, "apply", while_the_owner_waits)
        with ThreadPoolExecutor() as threads:
            assert tracker.change("group", InboxChange(at(NOON), removed=(parked(1),)))
        error = coming[0].exception()
        assert error is not None
        assert tracker.is_outage(error)
        assert tracker.entries("group") == []
        put(tracker, moved, entry(2))
        assert [one.due_at for one in tracker.entries("group")] == [at(NOON)]
    finally:
        with database.writing() as connection:
            connection.execute(text("ALTER DATABASE postgres RESET default_transaction_isolation"))


@pytest.mark.release(kind="mariadb")  # as on PostgreSQL
@pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("postgresql", "mariadb")]
)
def test_a_command_waits_only_some_time_for_a_handler_that_does_not_return(
    database: Database, open_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = SqlProgressTracker(database)
    (cursor,) = tracker.claim("group", [WHOLE], 0, "owner")
    put(tracker, cursor, parked(1))
    monkeypatch.setattr(type(database.dialect), "patience", 0.2)
    change = InboxChange(at(NOON), removed=(parked(1),))
    with (
        tracker.unit("group", replace(cursor, stored=1, position=1), 1),
        pytest.raises(DatabaseBusyError, match=r"OCQ-305.* the process that handles the group has been writing"),
    ):
        SqlProgressTracker(open_database()).change("group", change)
    assert len(tracker.entries("group")) == 1


@pytest.mark.release(kind="mariadb")  # as on PostgreSQL
@pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("postgresql", "mariadb")]
)
def test_a_command_waits_while_due_times_are_rearranged(
    database: Database, open_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker, arrange = SqlProgressTracker(database), SqlInbox.arrange
    (cursor,) = tracker.claim("group", [WHOLE], 0, "owner")
    put(tracker, cursor, parked(1, due=None), entry(2))
    monkeypatch.setattr(type(database.dialect), "patience", 0.2)
    change = InboxChange(at(NOON), removed=(parked(1, due=None),))

    def busy(self: SqlInbox, *given: Any, **named: Any) -> None:
        with pytest.raises(DatabaseBusyError, match="OCQ-305"):
            SqlProgressTracker(open_database()).change("group", change)
        arrange(self, *given, **named)

    monkeypatch.setattr(SqlInbox, "arrange", busy)
    tracker.arrange("group", [WHOLE], LATER, each=False)
    assert tracker.change("group", change)
    assert [(one.position, one.due_at) for one in tracker.entries("group")] == [(2, at(NOON))]


def put(tracker: SqlProgressTracker, cursor: Cursor, *entries: InboxEntry) -> None:
    with tracker.unit("group", cursor, entries[-1].position, change=brought_in(*entries)):
        pass


@pytest.mark.few  # the same statements, on a table that is brought forward
@pytest.mark.release(
    "test_an_entry_is_stored_unchanged_together_with_the_progress",
    "test_skipping_an_event_records_the_skip_and_makes_the_next_due",
    "test_events_of_sequences_ahead_of_their_partition_stay",
    "test_an_expired_event_counts_as_due",
)
class TestInboxOfAnOlderVersion(TestSqlInbox):
    """A table created before SQLite had separate keys is not changed."""

    @pytest.fixture
    def kind(self) -> str:
        return "sqlite"

    @pytest.fixture
    def tracker(self, database: Database) -> SqlProgressTracker:
        tracker = SqlProgressTracker(database)
        tracker.statuses()
        with database.writing() as connection:
            INBOX.drop(connection)
            INBOX.create(connection)
            keys = inspect(connection).get_pk_constraint(INBOX.name)
        assert keys["constrained_columns"] == ["group_name", "position", "sequence_hash"]
        return tracker

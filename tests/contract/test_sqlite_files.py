"""The file of an SQLite database, deleted or replaced while it is in use: noticed, and nothing is written there."""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, NullPool, create_engine
from support.sqlite import is_open, opened_connections

from opencqrs_py.adapters.sql import Database, DatabaseTransactions, SqlEventStore, SqlProgressTracker
from opencqrs_py.adapters.sql.dialects import sqlite_file
from opencqrs_py.errors import DatabaseFileError, DatabaseFileGoneError, EventStoreError
from opencqrs_py.model.partition import layout
from opencqrs_py.model.progress import Cursor
from opencqrs_py.model.selection import Selection
from opencqrs_py.testing.contracts.event_source import event

FILES = ("", "-wal", "-shm")


def write(connection: Connection, value: str) -> None:
    connection.exec_driver_sql("INSERT INTO written VALUES (?)", (value,))


def of(path: Path, suffix: str = "") -> Path:
    return path.with_name(path.name + suffix)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path / "log" / "größe 1.db"


def ours(path: Path) -> Database:
    return Database(f"sqlite:///{path}?timeout=5")


def of_others(path: Path) -> Database:
    return Database.of(create_engine(f"sqlite:///{path}"))


def of_others_unpooled(path: Path) -> Database:
    return Database.of(create_engine(f"sqlite:///{path}", poolclass=NullPool))


def named_by_uri(path: Path) -> Database:
    return Database(f"sqlite:///file:{path}?uri=true")


@pytest.fixture(params=[ours, of_others, named_by_uri], ids=lambda make: make.__name__)
def database(request: pytest.FixtureRequest, path: Path) -> Iterator[Database]:
    database: Database = request.param(path)
    with database.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE written (value TEXT)")
    yield database
    database.close()


def copied(path: Path) -> Path:
    """Make a copy as a backup does."""
    copy = path.with_name("copy.db")
    source, target = sqlite3.connect(path), sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    return copy


def deleted(path: Path) -> None:
    path.unlink()


def all_deleted(path: Path) -> None:
    for suffix in FILES:
        of(path, suffix).unlink()


def moved_away(path: Path) -> None:
    path.rename(path.with_name("away"))


def folder_moved_away(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def replaced(path: Path) -> None:
    copied(path).rename(path)


def replaced_with_the_others_deleted(path: Path) -> None:
    copy = copied(path)
    all_deleted(path)
    copy.rename(path)


def write_ahead_log_deleted(path: Path) -> None:
    of(path, "-wal").unlink()


def shared_memory_deleted(path: Path) -> None:
    of(path, "-shm").unlink()


def write_ahead_log_replaced(path: Path) -> None:
    other = path.with_name("other")
    shutil.copy(of(path, "-wal"), other)
    other.rename(of(path, "-wal"))


CHANGES = [deleted, all_deleted, moved_away, folder_moved_away, replaced, replaced_with_the_others_deleted]
BESIDE = [write_ahead_log_deleted, shared_memory_deleted, write_ahead_log_replaced]


def writes(database: Database) -> None:
    with database.writing() as connection:
        write(connection, "late")


def writes_in_a_unit(database: Database) -> None:
    with DatabaseTransactions(database).begin() as unit:
        write(unit.connection, "late")


def reads(database: Database) -> None:
    with database.reading() as connection:
        connection.exec_driver_sql("SELECT * FROM written")


def fetches(database: Database) -> None:
    database.fetch("SELECT * FROM written")


@pytest.mark.parametrize("use", [writes, writes_in_a_unit, reads, fetches])
@pytest.mark.parametrize("change", CHANGES)
def test_the_next_use_of_a_file_moved_or_replaced_is_refused(
    database: Database, path: Path, change: Callable[[Path], None], use: Callable[[Database], None]
) -> None:
    use(database)
    change(path)
    there = path.exists()
    for _ in range(2):
        with pytest.raises(DatabaseFileError, match="OCQ-326") as caught:
            use(database)
        assert isinstance(caught.value, DatabaseFileGoneError) != there
        assert caught.value.where == str(path)
        assert not database.is_outage(caught.value)
        assert type(pickle.loads(pickle.dumps(caught.value))) is type(caught.value)
    assert path.exists() == there  # no new file was made


@pytest.mark.parametrize("transaction", [Database.writing, lambda database: DatabaseTransactions(database).begin()])
@pytest.mark.parametrize("change", [*CHANGES, *BESIDE])
def test_an_open_transaction_is_rolled_back_when_the_file_was_moved_or_replaced(
    database: Database, path: Path, change: Callable[[Path], None], transaction: Callable[[Database], Any]
) -> None:
    writes(database)
    witness = sqlite3.connect(path)  # has the same file open, whatever its name
    count = witness.execute("SELECT count(*) FROM written").fetchone()

    def write_to_a_ghost() -> None:
        with transaction(database) as opened:
            write(opened if isinstance(opened, Connection) else opened.connection, "ghost")
            change(path)

    with pytest.raises(DatabaseFileError, match="OCQ-326"):
        write_to_a_ghost()
    assert witness.execute("SELECT count(*) FROM written").fetchone() == count
    witness.close()


@pytest.mark.parametrize("change", BESIDE)
def test_a_missing_or_replaced_companion_file_stops_every_later_transaction(
    database: Database, path: Path, change: Callable[[Path], None]
) -> None:
    writes(database)
    change(path)
    for _ in range(2):
        with pytest.raises(DatabaseFileError, match="belongs to the SQLite database"):
            writes(database)


def test_an_error_of_sqlite_about_a_replaced_file_names_the_file(database: Database, path: Path) -> None:
    writes(database)

    def write_to_a_ghost() -> None:
        with database.writing() as connection:
            path.unlink()
            connection.exec_driver_sql("SELECT * FROM no_such_table")

    with pytest.raises(DatabaseFileGoneError):
        write_to_a_ghost()


@pytest.mark.parametrize("use", [writes, reads, fetches])
def test_a_restored_file_is_used_again(database: Database, path: Path, use: Callable[[Database], None]) -> None:
    use(database)
    away = path.rename(path.with_name("away"))
    with pytest.raises(DatabaseFileGoneError):
        use(database)
    away.rename(path)
    use(database)


def test_a_link_changed_to_another_file_is_noticed(tmp_path: Path) -> None:
    first, second, link = (tmp_path / name for name in ("first.db", "second.db", "link.db"))
    for file in (first, second):
        sqlite3.connect(file).execute("CREATE TABLE written (value TEXT)").connection.close()
    link.symlink_to(first)
    database = Database(f"sqlite:///{link}")
    writes(database)
    link.unlink()
    link.symlink_to(second)
    with pytest.raises(DatabaseFileError, match="another file"):
        writes(database)
    database.close()


def test_a_file_with_a_second_hard_link_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each name has its own -wal file: writes under one name are invisible under the other."""
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    sqlite3.connect(first).execute("CREATE TABLE written (value TEXT)").connection.close()
    with closing(ours(first)) as database:
        writes(database)
    assert caplog.messages == []
    second.hardlink_to(first)
    sqlite_file.warned.clear()
    for path in (second, first):
        with closing(ours(path)) as database:
            writes(database)
    assert caplog.messages == [
        f"the SQLite database {second} has 2 names (hard links): what is committed under one of them may be missing, "
        "or be overwritten, under another, since each name has its own -wal file; use one name, and delete the "
        "others"
    ]


def test_a_file_mounted_without_its_folder_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mounted.db"
    sqlite3.connect(path).execute("CREATE TABLE written (value TEXT)").connection.close()
    stat = Path.stat

    def elsewhere(self: Path, **options: bool) -> os.stat_result:
        found = stat(self, **options)
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:])) if self == path else found

    monkeypatch.setattr(Path, "stat", elsewhere)
    sqlite_file.warned.clear()
    with closing(ours(path)) as database:
        writes(database)
    assert caplog.messages == [
        f"the SQLite database {path} is mounted as a single file, without the -wal file beside it, which has the last "
        "commits: other containers do not see them, and they are lost with this one; mount the folder of the database"
    ]


def test_a_relative_name_keeps_its_file_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = Database("sqlite:///a.db")
    with database.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE written (value TEXT)")
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")
    writes(database)
    (tmp_path / "a.db").unlink()
    with pytest.raises(DatabaseFileGoneError) as caught:
        writes(database)
    assert caught.value.where == str(tmp_path / "a.db")
    database.close()


def test_opening_and_closing_connections_is_not_a_change(path: Path) -> None:
    """Without a pool the companion files are created again for each connection."""
    database = of_others_unpooled(path)
    with database.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE written (value TEXT)")
    for _ in range(3):
        writes(database)
        assert not of(path, "-wal").exists()
        reads(database)
    path.unlink()
    with pytest.raises(DatabaseFileGoneError):
        writes(database)
    assert not path.exists()


def test_after_a_close_another_file_can_be_opened(database: Database, path: Path) -> None:
    writes(database)
    database.close()
    all_gone = [file.unlink() for suffix in FILES if (file := of(path, suffix)).exists()]
    assert all_gone
    with database.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE written (value TEXT)")
    writes(database)


@pytest.mark.parametrize("change", [deleted, moved_away, folder_moved_away, replaced])
def test_after_a_disconnect_only_the_same_file_can_be_opened(
    database: Database, path: Path, change: Callable[[Path], None]
) -> None:
    with opened_connections() as opened:
        writes(database)
        reads(database)
        database.disconnect()
        assert not any(map(is_open, opened))
        writes(database)
        database.disconnect()
    change(path)
    with pytest.raises(DatabaseFileError, match="OCQ-326"):
        reads(database)


@pytest.mark.parametrize("close", [Database.close, Database.disconnect], ids=lambda close: close.__name__)
def test_a_connection_in_use_is_closed_when_it_is_returned(path: Path, close: Callable[[Database], None]) -> None:
    database = ours(path)
    with opened_connections() as opened:
        with database.writing() as writing, database.reading() as reading:
            close(database)
            writing.exec_driver_sql("CREATE TABLE written (value TEXT)")
            assert reading.exec_driver_sql("SELECT 7").scalar() == 7
        assert opened
        assert not any(map(is_open, opened))
        writes(database)
        database.close()
    assert not any(map(is_open, opened))


@pytest.mark.parametrize("close", [Database.close, Database.disconnect], ids=lambda close: close.__name__)
def test_the_connection_of_a_short_read_is_closed_after_it_if_others_were_closed_meanwhile(
    path: Path, close: Callable[[Database], None]
) -> None:
    database = ours(path)
    with opened_connections() as opened:
        with database.reading():  # finds out which file it is
            pass
        database.fetch("SELECT 1")
        (kept,) = opened
        kept.create_function("closes", 0, lambda: close(database))
        database.fetch("SELECT closes()")
        assert not is_open(kept)
        database.fetch("SELECT 1")  # by another connection, to the current file
        assert [is_open(each) for each in opened] == [False, True]
        database.close()
    assert not any(map(is_open, opened))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:/shared?vfs=memdb&uri=true"])
def test_a_database_in_memory_has_no_file_and_stays_open_when_others_are_disconnected(url: str) -> None:
    database = Database(url)
    with database.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE written (value TEXT)")
    writes(database)
    database.disconnect()
    reads(database)
    assert database.for_control() is None
    database.close()


def test_a_file_that_cannot_be_inspected_is_left_to_the_database(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes(database)

    def refuse(_path: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "stat", refuse)
    writes(database)


@pytest.mark.few
@pytest.mark.parametrize("change", [*CHANGES, *BESIDE])
def test_a_watch_notices_a_replaced_file_within_a_second(path: Path, change: Callable[[Path], None]) -> None:
    database = ours(path)
    store = SqlEventStore(database)
    store.head()

    def watch_on() -> None:
        with store.watched() as watch:
            watch.wait(0, 0.01)
            change(path)
            for _ in range(100):
                watch.wait(0, 0.01)

    with pytest.raises(DatabaseFileError, match="OCQ-326"):
        watch_on()
    database.close()


def test_a_store_reads_nothing_from_a_replaced_file(path: Path) -> None:
    database = ours(path)
    store = SqlEventStore(database)
    assert store.read(0, 10, Selection()).events == ()
    replaced(path)
    for use in (store.head, store.count, lambda: store.read(0, 10, Selection()), lambda: store.append([])):
        with pytest.raises(DatabaseFileError, match="OCQ-326"):
            use()
    database.close()


def moves(tracker: SqlProgressTracker, cursor: Cursor) -> None:
    with tracker.unit("books", cursor, 5):
        pass


def renews(tracker: SqlProgressTracker, cursor: Cursor) -> None:
    assert tracker.renewed("books", cursor) == cursor


@pytest.mark.parametrize("use", [moves, renews])
@pytest.mark.parametrize("make", [ours, of_others, named_by_uri])
@pytest.mark.parametrize("change", CHANGES)
def test_a_claim_in_another_file_is_void_for_a_process_started_later(
    path: Path, make: Callable[[Path], Database], change: Callable[[Path], None], use: Callable[..., None]
) -> None:
    """As a worker of Spark that is started for a later round: it has never seen the file of the claim."""
    first, later, sees = make(path), make(path), make(path)
    (cursor,) = SqlProgressTracker(first).claim("books", layout(1), 0, "me")
    use(SqlProgressTracker(sees), cursor)
    change(path)
    there = path.exists()
    with pytest.raises(DatabaseFileError, match="OCQ-326") as caught:
        use(SqlProgressTracker(later), cursor)
    assert caught.value.where == str(path)
    assert isinstance(caught.value, DatabaseFileGoneError) != there
    assert path.exists() == there  # no new file was made
    for database in (first, later, sees):
        database.close()


def test_a_claim_is_void_for_a_process_that_opened_the_other_file_before(path: Path) -> None:
    first, later = ours(path), ours(path)
    (cursor,) = SqlProgressTracker(first).claim("books", layout(1), 0, "me")
    replaced_with_the_others_deleted(path)
    reads_other = SqlProgressTracker(later)
    assert reads_other.statuses()
    with pytest.raises(DatabaseFileError, match="another file"):
        moves(reads_other, cursor)
    for database in (first, later):
        database.close()


def damage(path: Path) -> None:
    """Overwrite all pages but the first, as a disk or a copy of half a file does."""
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"Dear diary. " * (len(content) // 12))


def cut(path: Path) -> None:
    """Keep only half of a file, as a copy that was broken off."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("harm", [damage, cut])
@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.head(),
        lambda store: store.read(0, 10, Selection()),
        lambda store: store.append([event(99)]),
        lambda store: store.find("1"),
    ],
    ids=["head", "read", "append", "find"],
)
def test_a_damaged_file_is_reported_with_its_place(
    path: Path, call: Callable[[SqlEventStore], object], harm: Callable[[Path], None]
) -> None:
    before = ours(path)
    SqlEventStore(before).append([event(n) for n in range(50)])
    before.close()
    harm(path)
    with closing(ours(path)) as database, pytest.raises(EventStoreError) as caught:
        call(SqlEventStore(database))
    assert str(caught.value).splitlines() == [
        "[OCQ-304] the database cannot be used (database disk image is malformed)",
        f"  where: {database.label}",
        "  fix:   it must be an undamaged SQLite file: restore it from a backup, or fix the URL "
        "(settings event-store.url and database.url, option url in Spark)",
    ]


@pytest.mark.skipif(os.name != "posix", reason="files have no such rights")
@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_the_file_of_the_control_tables_has_the_permissions_of_the_database(path: Path, mode: int) -> None:
    path.touch()
    path.chmod(mode)
    with closing(ours(path)) as database:
        control = database.for_control()
        assert control is not None
        with closing(control), control.writing() as connection:
            connection.exec_driver_sql("CREATE TABLE written (value TEXT)")
            found = {
                suffix: of(path, suffix).stat().st_mode & 0o777 for suffix in ("", "-control.db", "-control.db-wal")
            }
    assert set(found.values()) == {mode}

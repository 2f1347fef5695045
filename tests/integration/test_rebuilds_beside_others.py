"""Rebuilds and objects of others: rows of other groups, triggers, functions, policies, another rebuild."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import current_thread
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event
from support.rebuilding import HANDLERS, KINDS, WRONG, World, of

from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.shadows import sqlite as shadows_sqlite
from opencqrs_py.adapters.sql.shadows.shadows import Shadows
from opencqrs_py.adapters.sql.shadows.sqlite import SqliteShadows
from opencqrs_py.assembly.rebuilds.rebuilds import Rebuilds
from opencqrs_py.assembly.rebuilds.shadow_build import RebuildProgress, ShadowBuild
from opencqrs_py.assembly.rebuilds.shadow_run import ShadowRun
from opencqrs_py.errors import RebuildError
from opencqrs_py.model.rebuild import Fate, RebuildPhase

SQLITE, POSTGRESQL, MARIADB = KINDS
TWO_GROUPS = """
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("catalog")
@on_start("readers")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS reader (id INTEGER PRIMARY KEY, name VARCHAR(20))"))
    connection.execute(text("CREATE TABLE IF NOT EXISTS loan (id INTEGER PRIMARY KEY, name VARCHAR(20))"))

@event_handling("readers", types=["*"])
def read(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO reader VALUES (:id, 'ada')"), {"id": event.position})

@event_handling("catalog", types=["*"])
def lend(event: Event, connection: Connection) -> None:
    known = {"id": event.position}
    connection.execute(text("INSERT INTO loan SELECT :id, 'x'"), known)
    connection.execute(text("UPDATE loan l SET name = (SELECT min(name) FROM reader) WHERE id = :id"), known)
    connection.execute(text("DELETE FROM loan WHERE id < 0 AND id IN (SELECT id FROM reader)"))
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a rebuild is ended on the thread that fills it, which would wait for itself."""
    monkeypatch.setattr(shadows_sqlite, "LET_GO_SECONDS", 0)


@pytest.fixture
def empty(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> World:
    """A database without anything."""
    url = "" if kind == "sqlite" else request.getfixturevalue("fresh_url")(kind)
    return World(url, tmp_path, kind)


OUTSIDE_ON_MARIADB = (
    "INSERT INTO {live}/**/.notes VALUES (:position)",
    "/*!INSERT INTO {live}.notes VALUES (:position) */",
    "/* its */ USE {live}",
    "SELECT {live}.noted(:position)",
    "SELECT `{live}` . `noted` (:position)",
    "SET @noted = {live}.noted(:position)",
    "SET STATEMENT max_statement_time = 9 FOR INSERT INTO {live}.notes VALUES (:position)",
)


@pytest.mark.release(form=OUTSIDE_ON_MARIADB[1:])  # test_shadow_guards.py has them all
@pytest.mark.parametrize("kind", [MARIADB])
@pytest.mark.parametrize("form", OUTSIDE_ON_MARIADB)
def test_a_write_outside_hidden_by_a_comment_or_function_fails_the_rebuild(
    empty: World, make_module: Callable[[str], ModuleType], form: str
) -> None:
    live = Database(empty.url).url.database
    tables = "CREATE TABLE IF NOT EXISTS lent (position INTEGER)"
    noted = (
        f"CREATE FUNCTION noted(p INTEGER) RETURNS INTEGER MODIFIES SQL DATA "
        f"BEGIN INSERT INTO {live}.notes VALUES (p); RETURN p; END"
    )
    writing = f"INSERT INTO lent VALUES (:position);{form.format(live=live)}"
    world = of(empty, make_module, tables, writing, "CREATE TABLE notes (position INTEGER)", noted)
    before = world.send("SELECT count(*) FROM notes")
    with world.application() as application, pytest.raises(RebuildError, match=r"OCQ-635.*OCQ-634.*outside"):
        application.rebuilds.rebuild("catalog")
    assert world.send("SELECT count(*) FROM notes") == before


@pytest.mark.release  # test_shadow_guards.py has them all
@pytest.mark.parametrize("kind", [MARIADB])
@pytest.mark.parametrize(
    "form", ["/* its */ SELECT * FROM {live}.notes WHERE position IN (1)", "SELECT '{live}.noted('"]
)
def test_a_read_outside_is_not_treated_as_a_write_whatever_its_comments_and_texts(
    empty: World, make_module: Callable[[str], ModuleType], form: str
) -> None:
    live = Database(empty.url).url.database
    tables = "CREATE TABLE IF NOT EXISTS lent (position INTEGER)"
    writing = f"INSERT INTO lent VALUES (:position);{form.format(live=live)}"
    world = of(empty, make_module, tables, writing, "CREATE TABLE notes (position INTEGER)")
    with world.application() as application:
        result = application.rebuilds.rebuild("catalog")
    assert {one.name: one.fate for one in result.tables} == {"lent": Fate.SWAPPED}


SEEDS = """
    if not connection.execute(text("SELECT 1 FROM reader WHERE id = 0")).first():
        connection.execute(text("INSERT INTO reader VALUES (0, 'unknown')"))

@event_handling("readers", """


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.release(kind=("postgresql", "mariadb"))  # which tables are swapped is not in SQL
def test_a_table_of_another_group_is_not_swapped_for_rows_added_by_a_shared_on_start(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    empty.module = make_module(TWO_GROUPS.replace('\n@event_handling("readers", ', SEEDS, 1).replace("loan l", "loan"))
    empty.add(10)
    empty.run()
    with empty.application() as application:
        assert {one.name: one.fate for one in application.rebuilds.plan("catalog").tables}["reader"] is Fate.LEFT
        assert application.rebuilds.compare("catalog").unwritten == ("reader",)
    with empty.application() as application:
        found = {one.name: one.fate for one in application.rebuilds.rebuild("catalog").tables}
    assert found == {"reader": Fate.LEFT, "loan": Fate.SWAPPED}
    assert empty.send("SELECT count(*) FROM reader") == [(11,)]


NEEDS_A_READER = """
@event_handling("cards", types=["lent"])
def make_card(event: Event, connection: Connection) -> None:
    if connection.execute(text("SELECT 1 FROM reader WHERE id = :id"), {"id": event.position}).first():
        connection.execute(text("INSERT INTO card VALUES (:id)"), {"id": event.position})

@on_start("cards")
def cards(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS card (id INTEGER PRIMARY KEY)"))
"""
SHOWS_CARDS = """
@on_start("cards")
def shown(connection: Connection) -> None:
    form = "OR REPLACE VIEW shown" if connection.dialect.name == "postgresql" else "VIEW IF NOT EXISTS shown"
    connection.execute(text(f"CREATE {form} AS SELECT id FROM card"))
"""
SHARED, NAMED = (f"event-handling.groups.cards.rebuild.{which}" for which in ("shared-tables", "tables"))


@pytest.mark.release(view="")
@pytest.mark.release(settings={SHARED: ["reader"]})
@pytest.mark.release(kind=("postgresql", "mariadb"))  # by tables that are the same on each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "built"),
    [({SHARED: ["reader"]}, 11), ({NAMED: ["card"]}, 0)],
    ids=["read tables are shared", "the table is named"],
)
@pytest.mark.parametrize("view", ["", SHOWS_CARDS], ids=["no view", "with a view"])
def test_a_rebuild_whose_handlers_write_nothing_is_refused_and_changes_nothing(
    empty: World, make_module: Callable[[str], ModuleType], settings: dict[str, Any], built: int, view: str
) -> None:
    shared = TWO_GROUPS.replace('@on_start("readers")', '@on_start("readers")\n@on_start("cards")', 1)
    empty.module = make_module(shared.replace("loan l", "loan") + NEEDS_A_READER + view)
    empty.add(10)
    empty.run()
    empty.send("INSERT INTO card VALUES (99)")
    refused = r"(?s)OCQ-630.*group 'cards' wrote to no table.*rebuild\.shared-tables"
    for _ in range(2):  # the second continues
        with empty.application() as application, pytest.raises(RebuildError, match=refused):
            application.rebuilds.rebuild("cards")
    empty.add(1, 10)
    empty.run()
    assert empty.send("SELECT count(*) FROM card WHERE id = 99") == [(1,)]
    assert empty.send("SELECT position FROM opencqrs_progress WHERE group_name = 'cards'") == [(11,)]
    with empty.application(**settings) as application:
        application.rebuilds.rebuild("cards")
    assert empty.send("SELECT count(*) FROM card") == [(built,)]


ONLY_READS = """
@event_handling("cards", types=["lent"])
def look(event: Event, connection: Connection) -> None:
    connection.execute(text("SELECT id FROM shown")).all()
"""


@pytest.mark.release(kind=("postgresql", "mariadb"))  # as above
@pytest.mark.parametrize("kind", KINDS)
def test_a_rebuild_of_a_group_that_has_only_a_view_is_not_refused(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    view = SHOWS_CARDS.replace("id FROM card", "1 AS id")
    empty.module = make_module(TWO_GROUPS.replace("loan l", "loan") + ONLY_READS + view)
    empty.add(10)
    empty.run()
    with empty.application() as application:
        assert application.rebuilds.rebuild("cards").position == 10
    assert empty.send("SELECT id FROM shown") == [(1,)]


SENDS_MAIL = """
@event_handling("cards", types=["lent"])
def send(event: Event) -> None:
    pass
"""


@pytest.mark.release(kind=("postgresql", "mariadb"))  # as above
@pytest.mark.release(left_out=SENDS_MAIL)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left_out", ["", SENDS_MAIL], ids=["no event at all", "events for handlers that are left out"])
def test_a_rebuild_without_events_for_its_handlers_is_not_refused(
    empty: World, make_module: Callable[[str], ModuleType], left_out: str
) -> None:
    source = TWO_GROUPS.replace("loan l", "loan") + NEEDS_A_READER.replace('"lent"', '"never"') + left_out
    empty.module = make_module(source)
    empty.add(10)
    empty.run()
    with empty.application() as application:
        result = application.rebuilds.rebuild("cards")
    assert (result.position, [(one.name, one.fate) for one in result.tables]) == (10, [("card", Fate.LEFT)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.release(kind=("postgresql", "mariadb"))  # which tables are swapped is not in SQL
def test_a_handler_that_writes_with_the_same_statement_as_on_start_is_noticed(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    counting = "UPDATE total SET n = n + 1"
    tables = (
        "CREATE TABLE IF NOT EXISTS total (n INTEGER);"
        f"INSERT INTO total SELECT 0 WHERE NOT EXISTS (SELECT * FROM total);{counting}"
    )
    world = of(empty, make_module, tables, counting)
    with world.application() as application:
        found = {one.name: one.fate for one in application.rebuilds.rebuild("catalog").tables}
    assert found == {"total": Fate.SWAPPED}


@pytest.mark.parametrize("kind", [MARIADB])
def test_a_table_that_handlers_only_read_is_not_swapped_by_mariadb(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    empty.module = make_module(TWO_GROUPS)
    empty.add(10)
    empty.run()
    with empty.application() as application:
        found = {one.name: one.fate for one in application.rebuilds.rebuild("catalog").tables}
    assert found == {"reader": Fate.LEFT, "loan": Fate.SWAPPED}
    assert empty.send("SELECT count(*) FROM reader") == [(10,)]


@contextmanager
def references_enforced() -> Iterator[None]:
    """As SQLAlchemy documents it for SQLite."""

    def enforce(connection: object, _record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA foreign_keys = ON")

    event.listen(Engine, "connect", enforce)
    try:
        yield
    finally:
        event.remove(Engine, "connect", enforce)


@pytest.mark.release(action=("SET NULL", "RESTRICT"))
@pytest.mark.parametrize("kind", [SQLITE])
@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "RESTRICT"])
def test_on_sqlite_rows_of_others_that_refer_to_swapped_ones_are_kept(
    empty: World, make_module: Callable[[str], ModuleType], action: str
) -> None:
    review = f"CREATE TABLE review (id INTEGER PRIMARY KEY, book INTEGER REFERENCES book ON DELETE {action})"
    with references_enforced():
        of(
            empty,
            make_module,
            "CREATE TABLE IF NOT EXISTS book (position INTEGER PRIMARY KEY)",
            "INSERT INTO book VALUES (:position)",
        )
        empty.send(review, "INSERT INTO review VALUES (1, 3), (2, 4)")
        with empty.application() as application:
            application.rebuilds.rebuild("catalog")
            assert empty.send("SELECT id, book FROM review") == [(1, 3), (2, 4)]
            application.rebuilds.undo("catalog")
        assert empty.send("SELECT id, book FROM review") == [(1, 3), (2, 4)]
        assert empty.send("PRAGMA foreign_keys") == [(1,)]


@pytest.mark.parametrize("kind", [SQLITE])
def test_on_sqlite_a_swap_that_would_leave_dangling_references_is_refused(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    with references_enforced():
        of(
            empty,
            make_module,
            "CREATE TABLE IF NOT EXISTS book (position INTEGER PRIMARY KEY)",
            "INSERT INTO book VALUES (:position)",
        )
        empty.send("INSERT INTO book VALUES (99)", "CREATE TABLE review (book INTEGER REFERENCES book)")
        empty.send("INSERT INTO review VALUES (99)")
        with empty.application() as application, pytest.raises(RebuildError, match=r"OCQ-630.*review to book"):
            application.rebuilds.rebuild("catalog")
    assert empty.send("SELECT count(*) FROM book") == [(21,)]


@pytest.mark.parametrize("kind", [SQLITE])
def test_on_sqlite_triggers_that_spell_their_table_differently_are_kept(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    of(
        empty,
        make_module,
        "CREATE TABLE IF NOT EXISTS Loan (id INTEGER PRIMARY KEY)",
        "INSERT INTO loan VALUES (:position)",
    )
    empty.send("CREATE TRIGGER by_hand AFTER DELETE ON loan BEGIN SELECT 1; END")
    with empty.application() as application:
        application.rebuilds.rebuild("catalog")
        assert empty.send("SELECT name FROM sqlite_master WHERE type = 'trigger'") == [("by_hand",)]
        application.rebuilds.undo("catalog")
    assert empty.send("SELECT name FROM sqlite_master WHERE type = 'trigger'") == [("by_hand",)]


@pytest.mark.parametrize("kind", ["sqlite"])
def test_on_sqlite_a_table_spelled_differently_from_the_live_one_is_swapped(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    world = of(
        empty,
        make_module,
        "CREATE TABLE IF NOT EXISTS loan (id INTEGER PRIMARY KEY)",
        "INSERT INTO loan VALUES (:position)",
        "CREATE TABLE Loan (id INTEGER PRIMARY KEY)",
    )
    world.send("DELETE FROM loan WHERE id > 5")
    with world.application() as application:
        (difference,) = application.rebuilds.compare("catalog").differences
        assert (difference.live, difference.shadow) == (5, 20)
        (table,) = application.rebuilds.rebuild("catalog").tables
        assert (table.name, table.fate) == ("loan", Fate.SWAPPED)
        assert world.send("SELECT count(*) FROM loan") == [(20,)]
        (table,) = application.rebuilds.undo("catalog").tables
        assert (table.name, table.fate) == ("Loan", Fate.SWAPPED)
    assert world.send("SELECT count(*) FROM loan") == [(5,)]


@pytest.mark.release(kind="postgresql")  # as on SQLite
@pytest.mark.parametrize("kind", ["sqlite", POSTGRESQL])
def test_a_swap_that_the_database_refuses_says_why_and_can_be_repeated(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    tables = (
        "CREATE TABLE IF NOT EXISTS loan (id INTEGER PRIMARY KEY, n INTEGER);"
        "CREATE INDEX IF NOT EXISTS by_n ON loan (n)"
    )
    other = ("CREATE TABLE other (n INTEGER)", "CREATE INDEX by_n ON other (n)")
    world = of(empty, make_module, tables, "INSERT INTO loan VALUES (:position, 1)", *other)
    world.send("DELETE FROM loan WHERE id > 5")
    with world.application() as application:
        with pytest.raises(RebuildError, match=r"OCQ-630.*cannot be swapped: .*by_n.* already exists"):
            application.rebuilds.rebuild("catalog")
        assert world.send("SELECT count(*) FROM loan") == [(5,)]
        world.send("DROP INDEX by_n")
        assert application.rebuilds.rebuild("catalog").position == 20
    assert world.send("SELECT count(*) FROM loan") == [(20,)]


FILLED_BY_OTHERS = {
    "by SQL": "    connection.execute(text(\"UPDATE lent SET n = 0 WHERE isbn = '/'\"))",
    "by SQL in lines": '    connection.execute(text("""\n        DELETE FROM\n            "lent"\n    """))',
    "by a table": "    connection.execute(lent.delete())",
    "by a mapped class": "    session.merge(Lent(isbn='/', n=0))",
    "by SQL with a schema": "    connection.execute(text(\"UPDATE main.lent SET n = 0 WHERE isbn = '/'\"))",
    "by a table clause": "    connection.execute(delete(clause))",
    "in bulk": "    bulk.upsert(connection, 'lent', [{'isbn': '/', 'n': 0}], keys='isbn')",
    "by a statement": "    connection.execute(insert(lent).values(isbn='/', n=0))",
    "by a renamed statement": "    connection.execute(into(lent).values(isbn='/', n=0))",
    "by statements of both names": "    connection.execute(insert(fines).values(n=1)); connection.execute(into(lent))",
    "by statements of both names, imported here": (
        "    from sqlalchemy import insert as put\n"
        "    connection.execute(insert(fines).values(n=1)); connection.execute(put(lent))"
    ),
    "by another name": "    lent_too = lent\n    connection.execute(lent_too.delete())",
    "by a helper": "    write(connection, lent)",
    "by a statement that is passed on": "    [connection.execute(change(lent)) for change in (delete,)]",
    "in bulk by a table": "    upsert(connection, lent, [{'isbn': '/', 'n': 0}], keys='isbn')",
    "in bulk by a constant": "    upsert(connection, LENT, [{'isbn': '/', 'n': 0}], keys='isbn')",
}
READ_BY_OTHERS = {
    "by SQL": "    connection.execute(text('SELECT n FROM main.lent'))",
    "by a table": "    connection.execute(select(lent)).all(); connection.execute(insert(fines).values(n=1))",
    "in bulk": "    bulk.upsert(connection, 'fines', [{'n': 1, 'lent': 1}], keys='n', add=['lent'])",
}
MAPPED = """
from opencqrs_py import bulk
from opencqrs_py.bulk import upsert
from sqlalchemy import delete, insert, insert as into, select, table
clause, LENT = table("lent"), "lent"
from sqlalchemy import Column, Integer, MetaData, String, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
lent = Table("lent", MetaData(), Column("isbn", String(20), primary_key=True), Column("n", Integer))
fines = Table("fines", MetaData(), Column("n", Integer))

def write(connection, anything):
    connection.execute(anything.delete())

class Base(DeclarativeBase):
    pass

class Lent(Base):
    __tablename__ = "lent"
    isbn: Mapped[str] = mapped_column(primary_key=True)
    n: Mapped[int]
"""


@pytest.mark.few
@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize(
    ("way", "fills"),
    [*((way, True) for way in FILLED_BY_OTHERS.values()), *((way, False) for way in READ_BY_OTHERS.values())],
    ids=[*FILLED_BY_OTHERS, *(f"read {way}" for way in READ_BY_OTHERS)],
)
def test_a_table_that_another_group_fills_too_is_warned_of(
    empty: World, make_module: Callable[[str], ModuleType], caplog: pytest.LogCaptureFixture, way: str, *, fills: bool
) -> None:
    other = f"""
@event_handling("returns", types=["never"])
def take_back(event: Event, connection: Connection, session: Session) -> None:
{way}
"""
    empty.module = make_module(HANDLERS.replace("@on_start", MAPPED + "\n@on_start", 1) + other)
    empty.add(14)
    empty.run()
    with empty.application() as application:
        application.rebuilds.plan("catalog")
    assert ("others may fill its tables, too: lent (group returns)" in caplog.text) == fills
    assert "audit (" not in caplog.text


@pytest.mark.parametrize("kind", ["sqlite"])
def test_writes_of_others_since_the_swap_are_warned_of_before_an_undo(
    empty: World, make_module: Callable[[str], ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    other = """
@event_handling("returns", types=["lent"])
def take_back(event: Event, connection: Connection) -> None:
    connection.execute(text("UPDATE lent SET n = n + 100 WHERE isbn = :isbn"), {"isbn": event.subject})
"""
    empty.module = make_module(HANDLERS + other)
    empty.add(14)
    empty.run()
    with empty.application() as application:
        application.rebuilds.rebuild("catalog")
        caplog.clear()
        application.rebuilds.undo("catalog")
    expected = "too: lent (group returns). What they have written since the swap is not in the old tables"
    assert expected in caplog.text


@pytest.mark.few
@pytest.mark.parametrize("kind", [POSTGRESQL])
@pytest.mark.parametrize(
    ("user", "shown"),
    [
        (
            "CREATE FUNCTION lent_now() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM lent; END",
            "the function lent_now() would keep using the old table",
        ),
        (
            "CREATE FUNCTION label(one lent) RETURNS text LANGUAGE sql AS 'SELECT one.isbn'",
            "the function label(lent) would keep using the old table",
        ),
        (
            "CREATE TABLE guarded (n INTEGER); CREATE POLICY seen ON guarded USING (EXISTS (SELECT FROM lent))",
            "the policy seen on table guarded would keep using the old table",
        ),
        ("CREATE TABLE archive (one lent)", "the column one of table archive would keep using the old table lent"),
    ],
)
def test_on_postgresql_objects_that_refer_to_a_table_by_oid_prevent_its_swap(
    empty: World, make_module: Callable[[str], ModuleType], user: str, shown: str
) -> None:
    empty.module = make_module(HANDLERS)
    empty.add(14)
    empty.run()
    empty.send(WRONG, *(user.split("; ") if "POLICY" in user else [user]))
    with empty.application() as application, pytest.raises(RebuildError) as raised:
        application.rebuilds.rebuild("catalog")
    assert shown in str(raised.value)
    assert empty.lent()["/books/3"] == 99


@pytest.mark.parametrize("kind", [POSTGRESQL])
def test_on_postgresql_old_tables_are_not_dropped_if_other_objects_depend_on_them(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    empty.module = make_module(HANDLERS)
    empty.add(14)
    empty.run()
    with empty.application() as application:
        application.rebuilds.rebuild("catalog")
        old = empty.place("old")
        empty.send(f"CREATE FUNCTION before(one {old}.lent) RETURNS text LANGUAGE sql AS 'SELECT one.isbn'")
        with pytest.raises(RebuildError, match=r"OCQ-630.*function before\(.*\) would go with it"):
            application.rebuilds.drop_old("catalog")
    assert empty.send("SELECT count(*) FROM pg_proc WHERE proname = 'before'") == [(1,)]


@pytest.fixture
def wrong(empty: World, make_module: Callable[[str], ModuleType]) -> World:
    """A group that has handled 14 events, and one row of whose table has become wrong."""
    empty.module = make_module(HANDLERS)
    empty.add(14)
    empty.run()
    empty.send(WRONG)
    return empty


@pytest.mark.release(kind=("sqlite", "mariadb"))  # as on PostgreSQL
@pytest.mark.parametrize("kind", KINDS)
def test_of_two_swapping_rebuilds_the_second_is_refused(wrong: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with wrong.application() as application, wrong.application() as other:
        swap = Shadows.swap

        def after_another(shadows: Shadows, *given: object) -> object:
            monkeypatch.setattr(Shadows, "swap", swap)
            first = swap(shadows, *given)  # type: ignore[arg-type]
            with pytest.raises(
                RebuildError, match=r"OCQ-630.*another process has ended the rebuild of group 'catalog'"
            ):
                swap(other.rebuilds._shadows("catalog"), *given)  # type: ignore[arg-type]
            return first

        monkeypatch.setattr(Shadows, "swap", after_another)
        application.rebuilds.rebuild("catalog")
        assert wrong.lent()["/books/3"] == 2
        application.rebuilds.undo("catalog")
        assert wrong.lent()["/books/3"] == 99
        with pytest.raises(RebuildError, match=r"OCQ-630.*no old tables"):
            other.rebuilds.undo("catalog")


def _before(monkeypatch: pytest.MonkeyPatch, owner: type, step: str, function: Callable[[], object]) -> None:
    """Have a function called once, just before the next call of a method."""
    method = getattr(owner, step)

    def after_function(*given: object, **named: object) -> object:
        monkeypatch.setattr(owner, step, method)
        function()
        return method(*given, **named)

    monkeypatch.setattr(owner, step, after_function)


ByAnother = Callable[[Rebuilds], None]


def _given_up(rebuilds: Rebuilds) -> None:
    assert rebuilds.abort("catalog")


def _completed(rebuilds: Rebuilds) -> None:
    rebuilds.rebuild("catalog")


def _completed_and_dropped(rebuilds: Rebuilds) -> None:
    rebuilds.rebuild("catalog")
    assert rebuilds.drop_old("catalog")


def _begun_again(rebuilds: Rebuilds) -> None:
    assert rebuilds.abort("catalog")
    assert rebuilds.compare("catalog").exact


@pytest.mark.parametrize("kind", [SQLITE])
def test_a_rebuild_whose_partitions_another_process_takes_over_ends_and_can_be_continued(wrong: World) -> None:
    file, fenced = wrong.folder / f"read.db-{wrong.place('shadow')}.db", []

    def meanwhile(_progress: RebuildProgress) -> None:
        if not fenced:
            with closing(sqlite3.connect(file, isolation_level=None, timeout=60)) as shadow:
                fenced.append(shadow.execute("UPDATE opencqrs_progress SET epoch = epoch + 1").rowcount)

    slowly = {"event-handling.groups.catalog.rebuild.max-events-per-second": 4}
    with wrong.application(**slowly) as application, pytest.raises(RebuildError, match=r"OCQ-630.*another process"):
        application.rebuilds.rebuild("catalog", watcher=meanwhile)
    assert fenced > [0]
    assert wrong.lent()["/books/3"] == 99
    with wrong.application() as application:
        assert application.rebuilds.rebuild("catalog").position == 14
    assert wrong.lent()["/books/3"] == 2


@pytest.mark.few
@pytest.mark.release(kind=("postgresql", "mariadb"))  # by rows that are the same on each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["rebuild", "compare"])
@pytest.mark.parametrize("by_another", [_given_up, _completed, _completed_and_dropped, _begun_again])
def test_a_rebuild_ended_by_another_process_says_so_and_changes_nothing(
    wrong: World, command: str, by_another: Callable[[Rebuilds], None]
) -> None:
    with wrong.application() as application, wrong.application() as other:
        todo = [by_another]

        def meanwhile(_progress: RebuildProgress) -> None:
            while todo:
                todo.pop()(other.rebuilds)

        with pytest.raises(RebuildError, match=r"OCQ-630.*another process has ended the rebuild of group 'catalog'"):
            getattr(application.rebuilds, command)("catalog", watcher=meanwhile)
        assert wrong.lent()["/books/3"] == (2 if by_another in (_completed, _completed_and_dropped) else 99)
        assert wrong.positions() == {14}


@pytest.mark.release(by_another=_completed)  # as of two that swap, above
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_another", [_given_up, _completed])
@pytest.mark.release(kind=("postgresql", "mariadb"))  # by records that are the same on each
def test_a_rebuild_ended_by_another_process_right_before_the_swap_says_so(
    wrong: World, by_another: Callable[[Rebuilds], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    swap: Callable[..., object] = Shadows.swap
    with wrong.application() as application, wrong.application() as other:
        todo = [by_another]

        def late(shadows: Shadows, *arguments: object) -> object:
            while todo:
                todo.pop()(other.rebuilds)
            return swap(shadows, *arguments)

        monkeypatch.setattr(Shadows, "swap", late)
        with pytest.raises(RebuildError, match=r"OCQ-630.*another process has ended the rebuild of group 'catalog'"):
            application.rebuilds.rebuild("catalog")
        assert wrong.lent()["/books/3"] == (2 if by_another is _completed else 99)


@pytest.mark.parametrize("kind", [SQLITE])
@pytest.mark.parametrize("lets_go", [True, False], ids=["the writer lets go", "the writer is stuck"])
def test_an_abort_removes_a_file_only_when_its_writer_has_closed_it_or_is_stuck(
    wrong: World, monkeypatch: pytest.MonkeyPatch, *, lets_go: bool
) -> None:
    monkeypatch.setattr(shadows_sqlite, "LET_GO_SECONDS", 60 if lets_go else 0.05)
    with wrong.application() as application, wrong.application() as other:
        group, shadows = application.rebuilds._chosen("catalog")
        assert isinstance(shadows, SqliteShadows)
        build = application.rebuilds._build(group, shadows)
        build._opened(build._live())
        file = shadows._file("shadow", "catalog")
        with closing(sqlite3.connect(file)) as filling:
            assert filling.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]

            sleep, ours = time.sleep, current_thread()

            def closed_when_it_is_over(seconds: float) -> None:
                if current_thread() is not ours:  # the replaced function is shared by all modules
                    sleep(seconds)
                elif lets_go:
                    record = shadows.rebuilds.last("catalog")
                    assert record is not None
                    assert record.phase is RebuildPhase.ENDED
                    assert file.exists()
                    filling.close()

            monkeypatch.setattr(time, "sleep", closed_when_it_is_over)
            assert other.rebuilds.abort("catalog")
        assert not file.exists()


@pytest.mark.release(kind="mariadb")  # as on PostgreSQL
@pytest.mark.release(owner=ShadowBuild)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("owner", "step"), [(Shadows, "open"), (ShadowBuild, "_conditions")])
def test_a_rebuild_that_begins_while_another_begins_says_so(
    wrong: World, monkeypatch: pytest.MonkeyPatch, kind: str, owner: type, step: str
) -> None:
    with wrong.application() as application, wrong.application() as other:
        _before(monkeypatch, owner, step, lambda: other.rebuilds.compare("catalog"))
        if kind == "sqlite":  # where the new file replaces the other one
            application.rebuilds.rebuild("catalog")
        else:
            with pytest.raises(RebuildError, match=r"another process has ended the rebuild of group 'catalog'"):
                application.rebuilds.rebuild("catalog")
        assert wrong.lent()["/books/3"] == (2 if kind == "sqlite" else 99)
        assert wrong.positions() == {14}


def _about_to_fill(rebuilds: Rebuilds) -> None:
    assert rebuilds.abort("catalog")
    _begin(rebuilds)


def _begin(rebuilds: Rebuilds) -> None:
    build = rebuilds._build(*rebuilds._chosen("catalog"))
    build._opened(build._live())


@pytest.mark.few
@pytest.mark.release(kind=("postgresql", "mariadb"))  # by records that are the same on each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_another", [_given_up, _about_to_fill])
@pytest.mark.parametrize(
    ("command", "owner", "step"),
    [
        ("rebuild", None, "look"),
        ("rebuild", ShadowRun, "start"),
        ("rebuild", ShadowBuild, "_fill"),
        ("plan", ShadowRun, "prepare"),
        ("plan", None, "look"),
    ],
)
def test_a_rebuild_ended_by_another_process_before_its_first_event_says_so_and_no_more(
    wrong: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    command: str,
    owner: type | None,
    step: str,
    by_another: Callable[[Rebuilds], None],
) -> None:
    with wrong.application() as application, wrong.application() as other:
        kind_of_database = type(application.rebuilds._shadows("catalog"))
        _before(monkeypatch, owner or kind_of_database, step, lambda: by_another(other.rebuilds))
        with pytest.raises(RebuildError, match=r"another process has ended the rebuild of group 'catalog'"):
            getattr(application.rebuilds, command)("catalog")
        assert by_another is _given_up or wrong.is_there("shadow")
    assert "end by time" not in caplog.text
    assert wrong.lent()["/books/3"] == 99


def _is_refused_and_can_be_repeated(world: World, patch: pytest.MonkeyPatch, step: str, by_another: ByAnother) -> None:
    with world.application() as application, world.application() as other:
        _before(patch, Shadows, step, lambda: by_another(other.rebuilds))
        with pytest.raises(RebuildError, match=r"another process has ended the rebuild of group 'catalog'"):
            application.rebuilds.rebuild("catalog")
        if by_another is _completed:
            application.rebuilds.undo("catalog")
        phase = "building" if by_another is _about_to_fill else "ended"
        assert world.send("SELECT phase FROM opencqrs_rebuilds") == [(phase,)]
        assert world.lent()["/books/3"] == 99
        assert application.rebuilds.rebuild("catalog").position == 14
        assert world.lent()["/books/3"] == 2


@pytest.mark.release  # one completed before the record, below
@pytest.mark.parametrize("kind", KINDS)
def test_a_rebuild_does_not_replace_the_record_of_one_completed_meanwhile(
    wrong: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _is_refused_and_can_be_repeated(wrong, monkeypatch, "open", _completed)


@pytest.mark.release(kind="mariadb")  # as on SQLite
@pytest.mark.release(by_another=_given_up)
@pytest.mark.parametrize("kind", [SQLITE, MARIADB])  # PostgreSQL makes and records the place in one transaction
@pytest.mark.parametrize("by_another", [_given_up, _completed])
def test_a_rebuild_ended_by_another_process_before_it_is_recorded_says_so(
    wrong: World, monkeypatch: pytest.MonkeyPatch, by_another: ByAnother
) -> None:
    _is_refused_and_can_be_repeated(wrong, monkeypatch, "_begin_after", by_another)


@pytest.mark.release(by_another=_given_up)
@pytest.mark.release(kind="mariadb")  # as on SQLite
@pytest.mark.parametrize("kind", [SQLITE, MARIADB])
@pytest.mark.parametrize(
    ("by_another", "then", "phase", "command"),
    [(_given_up, _begin, "building", "rebuild"), (_completed, lambda _: None, "swapped", "undo")],
)
def test_a_rebuild_ended_as_it_is_recorded_keeps_the_record_of_another_process(
    wrong: World, monkeypatch: pytest.MonkeyPatch, by_another: ByAnother, then: ByAnother, phase: str, command: str
) -> None:
    with wrong.application() as application, wrong.application() as other:
        kind_of_database = type(application.rebuilds._shadows("catalog"))
        exists = kind_of_database.exists

        def exists_in_between(shadows: Shadows, group: str) -> bool:
            monkeypatch.setattr(kind_of_database, "exists", exists)
            by_another(other.rebuilds)
            found = exists(shadows, group)
            then(other.rebuilds)
            return found

        def watch() -> None:
            monkeypatch.setattr(kind_of_database, "exists", exists_in_between)

        _before(monkeypatch, Shadows, "_begin_after", watch)
        with pytest.raises(RebuildError, match=r"another process has ended the rebuild of group 'catalog'"):
            application.rebuilds.rebuild("catalog")
        assert wrong.send("SELECT phase FROM opencqrs_rebuilds") == [(phase,)]
        assert getattr(other.rebuilds, command)("catalog").position == 14


@pytest.mark.parametrize("kind", [MARIADB])
def test_on_mariadb_a_rebuild_does_not_replace_the_record_of_one_begun_meanwhile(
    wrong: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _is_refused_and_can_be_repeated(wrong, monkeypatch, "_begin_after", _about_to_fill)


@pytest.mark.release(kind=("postgresql", "mariadb"))  # by records that are the same on each
@pytest.mark.parametrize("kind", KINDS)
def test_a_rebuild_that_cannot_begin_does_not_affect_that_of_another_process(
    wrong: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wrong.application() as application, wrong.application() as other:
        made = ShadowBuild._made

        def fail(*_: object) -> object:
            monkeypatch.setattr(ShadowBuild, "_made", made)
            assert other.rebuilds.abort("catalog")
            others = other.rebuilds._build(*other.rebuilds._chosen("catalog"))
            others._opened(others._live())
            raise ValueError("no")

        monkeypatch.setattr(ShadowBuild, "_made", fail)
        with pytest.raises(RebuildError, match=r"another process has ended the rebuild of group 'catalog'"):
            application.rebuilds.rebuild("catalog")
        assert wrong.is_there("shadow")


@pytest.mark.parametrize("kind", [SQLITE])
def test_only_the_copy_of_a_swap_uses_temporary_files(wrong: World) -> None:
    def kept_in(connection: Connection) -> int:
        found: int = connection.exec_driver_sql("PRAGMA temp_store").scalar_one()
        return found

    with wrong.application() as application:
        shadows = application.rebuilds._shadows("catalog")
        assert isinstance(shadows, SqliteShadows)
        with shadows._writing() as (connection, _):
            assert kept_in(connection) == 1  # file
        with shadows._database.writing() as connection:
            assert kept_in(connection) == 2  # memory


@pytest.mark.release(kind=("postgresql", "mariadb"))  # by rows that are the same on each
@pytest.mark.parametrize("kind", KINDS)
def test_a_rebuild_that_missed_a_table_begins_again_once_the_settings_name_it(
    empty: World, make_module: Callable[[str], ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    table = "CREATE TABLE late (position INTEGER PRIMARY KEY)"
    made = "CREATE TABLE IF NOT EXISTS early (position INTEGER PRIMARY KEY)"
    both = "INSERT INTO early VALUES (:position);INSERT INTO late VALUES (:position)"
    of(empty, make_module, made, both, table)
    with empty.application() as application, pytest.raises(RebuildError, match=r"OCQ-635.*late"):
        application.rebuilds.rebuild("catalog")
    with empty.application(**{"event-handling.groups.catalog.rebuild.tables": ["late"]}) as application:
        assert application.rebuilds.rebuild("catalog").position == 20
    assert "group catalog: rebuild.tables changed since the rebuild began, so it begins again" in caplog.text
    assert empty.send("SELECT count(*) FROM late") == [(20,)]

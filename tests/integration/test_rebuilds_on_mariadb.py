"""What a rebuild keeps of views and defaults on MariaDB, which know tables by the names of their databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Engine, event, make_url, text
from support.rebuilding import World, of

from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.dialects.faults import DatabaseBusyError
from opencqrs_py.adapters.sql.shadows.guards import WRITTEN
from opencqrs_py.adapters.sql.shadows.mariadb import MariaDbShadows
from opencqrs_py.adapters.sql.shadows.swaps import BusyError, Swap
from opencqrs_py.errors import RebuildError, WaitTimedOutError

pytestmark = pytest.mark.mariadb

TABLE = "CREATE TABLE IF NOT EXISTS loan (position INTEGER)"
WRITE = "INSERT INTO loan (position) VALUES (:position)"
SHARED = {"event-handling.groups.catalog.rebuild.shared-tables": "price"}
STOPPING = {
    "event-handling.standard.retry.policy": "none",
    "event-handling.standard.retry.on-exhausted": "stop",
}
PRICE = ("CREATE TABLE price (price INTEGER)", "INSERT INTO price VALUES (3)")


@pytest.fixture
def empty(fresh_url: Callable[[str], str], tmp_path: Path) -> World:
    """A database without anything."""
    return World(fresh_url("mariadb"), tmp_path, "mariadb")


def rebuild(world: World, **settings: Any) -> None:
    with world.application(**settings) as application:
        application.rebuilds.rebuild("catalog")


def undo(world: World, **settings: Any) -> None:
    with world.application(**settings) as application:
        application.rebuilds.undo("catalog")


def killed_at(
    place: str, monkeypatch: pytest.MonkeyPatch, world: World, change: Callable[[World], None] = rebuild
) -> None:
    """Rebuild, or undo that, and have the process end at a place of the swap, if one is named."""

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) if place else nullcontext():
        if place:
            patch.setattr(MariaDbShadows, place, end)
        change(world)


def count(world: World, view: str = "shown") -> int:
    ((found,),) = world.send(f"SELECT count(*) FROM {view}")
    return int(found)


VIEWS: dict[str, tuple[str, dict[str, str]]] = {
    "a view whose name comes later": (
        "CREATE VIEW IF NOT EXISTS z_all AS SELECT position FROM loan;"
        "CREATE VIEW IF NOT EXISTS shown AS SELECT position FROM z_all",
        {},
    ),
    "a table that only other groups write to": (
        "CREATE TABLE IF NOT EXISTS price (price INTEGER);"
        "CREATE VIEW IF NOT EXISTS shown AS SELECT position, price FROM loan JOIN price",
        {},
    ),
    "a shared table": ("CREATE VIEW IF NOT EXISTS shown AS SELECT position, price FROM loan JOIN price", SHARED),
    "text that looks like the table": (
        "CREATE VIEW IF NOT EXISTS shown AS SELECT position, '`loan`.`x`' AS said FROM loan",
        {},
    ),
}


@pytest.mark.release(shows=("a view whose name comes later", "a table that only other groups write to"))
@pytest.mark.parametrize("shows", VIEWS)
def test_a_view_is_swapped_and_undone_whatever_else_it_selects_from(
    empty: World, make_module: Callable[[str], ModuleType], shows: str
) -> None:
    views, settings = VIEWS[shows]
    world = of(empty, make_module, f"{TABLE};{views}", WRITE, *PRICE)
    world.send("DELETE FROM loan WHERE position < 4")
    rebuild(world, **settings)
    assert count(world) == 20
    world.add(1, start=20)
    world.run(**settings)
    assert count(world) == 21
    undo(world, **settings)
    assert count(world) == 17
    world.run(**settings)
    assert count(world) == 18


def test_names_can_have_percent_signs_and_quotes(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    table = '`100%``s "Loan"`'
    tables = (
        f"CREATE TABLE IF NOT EXISTS {table} (`a%s` INTEGER PRIMARY KEY);"
        f"CREATE VIEW IF NOT EXISTS `5%d` AS SELECT * FROM {table}"
    )
    world = of(empty, make_module, tables, f"INSERT INTO {table} VALUES (:position)")
    world.send(f"DELETE FROM {table} WHERE `a%s` < 4")
    rebuild(world)
    assert count(world, "`5%d`") == 20
    undo(world)
    assert count(world, "`5%d`") == 17


@pytest.mark.release  # test_shadow_guards.py has the names
def test_a_table_can_have_the_name_of_another_database(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    of(
        empty,
        make_module,
        "CREATE TABLE IF NOT EXISTS mysql (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)",
        "INSERT INTO mysql VALUES (1, 1) ON DUPLICATE KEY UPDATE n = mysql.n + 1;"
        "UPDATE mysql SET n=(mysql.n + 1) WHERE mysql.id = 1;DELETE FROM mysql WHERE mysql.id = 2",
    )
    empty.send("UPDATE mysql SET n = 0")
    rebuild(empty)
    assert empty.send("SELECT n FROM mysql") == [(40,)]


def test_a_view_keeps_its_security_type_and_check_option(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    view = "VIEW IF NOT EXISTS shown AS SELECT position FROM loan WHERE position > 0 WITH LOCAL CHECK OPTION"
    world = of(empty, make_module, f"{TABLE};CREATE ALGORITHM = MERGE SQL SECURITY INVOKER {view}", WRITE)
    asked = "SELECT algorithm, security_type, check_option FROM information_schema.views WHERE table_name = 'shown'"
    for change in (rebuild, undo):
        change(world)
        assert world.send(f"{asked} AND table_schema = DATABASE()") == [("MERGE", "INVOKER", "LOCAL")]


def test_a_swap_completed_after_its_process_was_killed_keeps_the_old_view(
    empty: World, make_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = "CREATE VIEW IF NOT EXISTS shown AS SELECT position FROM loan WHERE position > 15"
    world = of(empty, make_module, f"{TABLE};{view}", WRITE)
    world.send("CREATE OR REPLACE VIEW shown AS SELECT position FROM loan WHERE position > 3")
    killed_at("_record_swap", monkeypatch, world)
    world.run()  # which completes it
    assert count(world) == 5
    undo(world)
    assert count(world) == 17


@pytest.mark.release  # a rare combination
def test_an_unreadable_live_view_is_refused_before_anything_is_moved(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    world = of(empty, make_module, f"{TABLE};CREATE VIEW IF NOT EXISTS shown AS SELECT position FROM loan", WRITE)
    world.send(*PRICE, "CREATE OR REPLACE VIEW shown AS SELECT price AS position FROM price", "DROP TABLE price")
    with pytest.raises(RebuildError, match=r"OCQ-630.*the view shown cannot be read"):
        rebuild(world)
    world.send("DROP VIEW shown")
    rebuild(world)
    assert count(world) == 20


@pytest.mark.release(point="_record_swap")
@pytest.mark.parametrize("point", ["", "_record_swap"])
def test_a_default_uses_the_sequence_swapped_with_its_table(
    empty: World, make_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    tables = (
        "CREATE SEQUENCE IF NOT EXISTS numbers;"
        "CREATE TABLE IF NOT EXISTS loan (number BIGINT DEFAULT NEXT VALUE FOR numbers, position INTEGER, "
        "said VARCHAR(40) DEFAULT 'from `numbers`')"
    )
    world = of(empty, make_module, tables, WRITE)
    world.send("DELETE FROM loan WHERE position = 3")
    killed_at(point, monkeypatch, world)
    world.add(1, start=20)
    world.run(**STOPPING)
    assert world.send("SELECT count(DISTINCT number), min(said) FROM loan") == [(21, "from `numbers`")]
    undo(world)
    world.run(**STOPPING)
    assert world.send("SELECT count(DISTINCT number) FROM loan") == [(20,)]


def times_out(shadows: MariaDbShadows, *_: Any) -> None:
    """Wait for a lock until the timeout."""
    with shadows._database.writing() as connection:
        connection.exec_driver_sql("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'Lock wait timeout'")


@pytest.mark.release(place="_follow_back")
@pytest.mark.release(again=rebuild)
@pytest.mark.parametrize("place", ["_follow", "_follow_back"])
@pytest.mark.parametrize("again", [World.run, rebuild], ids=["run", "rebuild"])
def test_a_lock_held_after_the_rename_ends_the_command_and_the_next_one_completes_the_swap(
    empty: World,
    make_module: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    again: Callable[[World], None],
) -> None:
    world = of(empty, make_module, TABLE, WRITE)
    world.send("DELETE FROM loan WHERE position < 4")
    goes_back = place == "_follow_back"
    if goes_back:
        rebuild(world)
    with monkeypatch.context() as patch:
        patch.setattr(MariaDbShadows, place, times_out)
        with pytest.raises(DatabaseBusyError, match=r"OCQ-305.*Lock wait timeout"):
            (undo if goes_back else rebuild)(world)
    if again is World.run or goes_back:
        again(world)
    else:
        with pytest.raises(RebuildError, match=r"OCQ-630.* that was cut off is completed: .*are kept"):
            again(world)
        with pytest.raises(RebuildError, match=r"OCQ-630\S* the old tables of the last rebuild .*are kept"):
            again(world)
    assert count(world, "loan") == (17 if goes_back and again is World.run else 20)
    assert world.positions() == {20}


def test_a_second_rebuild_about_to_swap_does_not_revert_the_first_whose_process_was_killed(
    empty: World, make_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = of(empty, make_module, TABLE, WRITE)
    world.send("DELETE FROM loan WHERE position < 4")

    def busy(_: MariaDbShadows) -> AbstractContextManager[None]:
        raise BusyError("the first one swaps")

    def end(shadows: MariaDbShadows, _: str, swap: Swap) -> None:
        with monkeypatch.context() as second:
            second.setattr(MariaDbShadows, "_alone", busy)
            with pytest.raises(WaitTimedOutError):
                shadows.swap(swap, 0)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MariaDbShadows, "_follow", end)
        with pytest.raises(KeyboardInterrupt):
            rebuild(world)
    world.run()
    assert world.send("SELECT phase FROM opencqrs_rebuilds") == [("swapped",)]
    assert count(world, "loan") == 20


@pytest.mark.release(meanwhile=f"CREATE TABLE {{}}.{WRITTEN} (name INTEGER)")
@pytest.mark.parametrize("meanwhile", ["DROP DATABASE {}", f"CREATE TABLE {{}}.{WRITTEN} (name INTEGER)"])
def test_a_rebuild_whose_database_another_process_drops_or_fills_as_it_is_made_says_so(
    empty: World, make_module: Callable[[str], ModuleType], meanwhile: str
) -> None:
    world = of(empty, make_module, TABLE, WRITE)
    todo = [meanwhile.format(world.place("shadow"))]

    def hear(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("CREATE TABLE") and WRITTEN in statement and todo:
            world.send(todo.pop())

    event.listen(Engine, "before_cursor_execute", hear)
    try:
        with pytest.raises(RebuildError, match=r"OCQ-630.*another process has ended the rebuild of group 'catalog'"):
            rebuild(world)
    finally:
        event.remove(Engine, "before_cursor_execute", hear)


GRANT = "GRANT ALL ON `opencqrs\\_%`.* TO limited@localhost"
REVOKE = "REVOKE ALL ON `opencqrs\\_%`.* FROM limited@localhost"


@pytest.fixture
def administrator(empty: World) -> Iterator[Callable[[str], None]]:
    """Sends statements as a user with all privileges; the world gets one with those on its own database only."""
    database, url = Database(empty.url), make_url(empty.url)

    def send(statement: str) -> None:
        with database.reading() as connection:
            connection.execute(text(statement))

    send("CREATE OR REPLACE USER limited@localhost")
    send(f"GRANT ALL ON {url.database}.* TO limited@localhost")
    empty.url = url.set(username="limited").render_as_string(hide_password=False)
    empty.settings["database.url"] = empty.url
    yield send
    send("DROP USER limited@localhost")
    database.close()


def test_a_missing_privilege_on_databases_of_rebuilds_is_named_with_a_grant_that_suffices(
    empty: World, administrator: Callable[[str], None], make_module: Callable[[str], ModuleType]
) -> None:
    def refused(command: str, reason: str) -> None:
        with pytest.raises(RebuildError, match=f"OCQ-630.*{reason} .*Access denied") as caught:
            getattr(application.rebuilds, command)("catalog")
        assert caught.value.fix == "have an administrator GRANT ALL ON `opencqrs\\_%`.* TO `limited`@`localhost`"

    world = of(empty, make_module, TABLE, WRITE)
    shadow, old = world.place("shadow"), world.place("old")
    with world.application() as application:
        refused("rebuild", "the shadow of group 'catalog' cannot be made")
        refused("plan", "the shadow of group 'catalog' cannot be made")
        assert not application.rebuilds.abort("catalog")
        assert not application.rebuilds.drop_old("catalog")
        administrator(f"GRANT ALL ON {shadow}.* TO limited@localhost")
        refused("rebuild", f"the database {old} cannot be made")
        administrator(GRANT)
        application.rebuilds.rebuild("catalog")
        administrator("REVOKE DROP ON `opencqrs\\_%`.* FROM limited@localhost")
        refused("drop_old", f"the database {old} cannot be dropped")
        administrator("GRANT DROP ON `opencqrs\\_%`.* TO limited@localhost")
        assert application.rebuilds.drop_old("catalog")


@pytest.mark.release  # the wording of a fix
@pytest.mark.parametrize(("setting", "privilege"), [("shared-tables", "CREATE VIEW"), ("tables", "ALTER")])
def test_a_missing_privilege_on_tables_of_the_shadow_is_named_as_one_on_databases(
    empty: World,
    administrator: Callable[[str], None],
    make_module: Callable[[str], ModuleType],
    setting: str,
    privilege: str,
) -> None:
    administrator(GRANT)
    parent = "CREATE TABLE rates (n INTEGER PRIMARY KEY, m INTEGER REFERENCES rates (n))"
    world = of(empty, make_module, TABLE, WRITE, parent)
    administrator(f"REVOKE {privilege} ON `opencqrs\\_%`.* FROM limited@localhost")
    with world.application(**{f"event-handling.groups.catalog.rebuild.{setting}": ["rates"]}) as application:
        with pytest.raises(RebuildError, match=r"OCQ-630.*cannot be made .*denied") as caught:
            application.rebuilds.rebuild("catalog")
        assert "have an administrator GRANT ALL ON `opencqrs\\_%`.* TO `limited`@`localhost`" in caught.value.fix
        administrator(GRANT)
        application.rebuilds.rebuild("catalog")


@pytest.mark.release(command="drop_old")
@pytest.mark.parametrize("command", ["drop_old", "undo"])
def test_old_tables_that_the_user_may_not_see_are_not_treated_as_gone(
    empty: World, administrator: Callable[[str], None], make_module: Callable[[str], ModuleType], command: str
) -> None:
    administrator(GRANT)
    world = of(empty, make_module, TABLE, WRITE)
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
        administrator(REVOKE)
        for _ in range(2):
            with pytest.raises(RebuildError, match=r"OCQ-630.*cannot be used .*Access denied") as caught:
                getattr(application.rebuilds, command)("catalog")
            assert "GRANT ALL ON `opencqrs" in caught.value.fix
            assert world.send("SELECT phase FROM opencqrs_rebuilds") == [("swapped",)]
        administrator(GRANT)
        assert world.is_there("old")
        assert getattr(application.rebuilds, command)("catalog")
        assert not world.is_there("old")


@pytest.mark.release  # a rare combination
@pytest.mark.parametrize(
    ("place", "seen", "hidden", "phase"),
    [
        ("_follow", (), "old", "swapped"),
        ("_record_swap", (), "old", "swapped"),
        ("_record_swap", ("old",), "shadow", "swapped"),
        ("_follow_back", (), "old", "ended"),
    ],
)
def test_a_swap_is_not_reverted_after_the_rename_while_the_user_may_not_see_its_tables(
    empty: World,
    administrator: Callable[[str], None],
    make_module: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    seen: tuple[str, ...],
    hidden: str,
    phase: str,
) -> None:
    administrator(GRANT)
    world = of(empty, make_module, TABLE, WRITE)
    world.send("DELETE FROM loan WHERE position < 4")
    if place == "_follow_back":
        rebuild(world)
    killed_at(place, monkeypatch, world, undo if place == "_follow_back" else rebuild)
    administrator(REVOKE)
    for each in seen:
        administrator(f"GRANT ALL ON {world.place(each)}.* TO limited@localhost")
    with world.application() as application:
        for _ in range(2):
            with pytest.raises(RebuildError, match=f"OCQ-630.*{world.place(hidden)} cannot be used .*Access denied"):
                application.rebuilds.complete(["catalog"])
            assert world.send("SELECT phase FROM opencqrs_rebuilds") == [("swapping",)]
        administrator(GRANT)
        application.rebuilds.complete(["catalog"])
    assert world.send("SELECT phase FROM opencqrs_rebuilds") == [(phase,)]
    assert (world.positions(), count(world, "loan")) == ({20}, 17 if phase == "ended" else 20)


def test_old_tables_dropped_by_hand_are_gone(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    world = of(empty, make_module, TABLE, WRITE)
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
        world.send(f"DROP DATABASE {world.place('old')}")
        with pytest.raises(RebuildError, match=r"OCQ-630.*old tables of group 'catalog' are gone"):
            application.rebuilds.undo("catalog")
        assert application.rebuilds.drop_old("catalog")


@pytest.mark.release(command="rebuild")
@pytest.mark.parametrize("command", ["abort", "rebuild"])
def test_a_shadow_that_the_user_may_not_see_is_not_treated_as_dropped(
    empty: World, administrator: Callable[[str], None], make_module: Callable[[str], ModuleType], command: str
) -> None:
    administrator(GRANT)
    world = of(empty, make_module, TABLE, WRITE)
    with world.application() as application:
        build = application.rebuilds._build(*application.rebuilds._chosen("catalog"))
        build._opened(build._live())
        administrator(REVOKE)
        for _ in range(2):
            with pytest.raises(RebuildError, match=r"OCQ-630.*cannot be used .*Access denied"):
                getattr(application.rebuilds, command)("catalog")
            assert world.send("SELECT phase FROM opencqrs_rebuilds") == [("building",)]
        administrator(GRANT)
        assert world.is_there("shadow")
        assert getattr(application.rebuilds, command)("catalog")
        assert not world.is_there("shadow")


@pytest.mark.release  # the wording of a fix
@pytest.mark.parametrize(
    ("setting", "held", "needed"), [("tables", "INSERT", "ALL"), ("shared-tables", "SELECT (n)", "SELECT")]
)
def test_a_missing_privilege_on_a_table_of_the_settings_is_not_named_as_one_on_databases(
    empty: World,
    administrator: Callable[[str], None],
    make_module: Callable[[str], ModuleType],
    setting: str,
    held: str,
    needed: str,
) -> None:
    administrator(GRANT)
    world = of(empty, make_module, TABLE, WRITE)
    live = make_url(world.url).database
    tables = [table for (table,) in world.send("SHOW TABLES")]
    world.send("CREATE TABLE rates (n INTEGER, m INTEGER)")
    administrator(f"REVOKE ALL ON {live}.* FROM limited@localhost")
    for table in tables:
        administrator(f"GRANT ALL ON {live}.{table} TO limited@localhost")
    administrator(f"GRANT {held} ON {live}.rates TO limited@localhost")
    with world.application(**{f"event-handling.groups.catalog.rebuild.{setting}": ["rates"]}) as application:
        with pytest.raises(RebuildError, match=r"OCQ-630.*cannot be made .*denied.*rates") as caught:
            application.rebuilds.rebuild("catalog")
        assert caught.value.fix.startswith("have an administrator grant the user ALL on the tables of rebuild.tables")
        administrator(f"GRANT {needed} ON {live}.rates TO limited@localhost")
        application.rebuilds.rebuild("catalog")

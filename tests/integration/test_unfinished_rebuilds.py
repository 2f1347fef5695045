"""An unfinished rebuild continues only if nothing changed on which its new tables depend; else it begins again."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.rebuilding import HANDLERS, KINDS, NOT_IN_SQL, RIGHT, World, of

from opencqrs_py.adapters.sql.bulk.staging import STAGES
from opencqrs_py.adapters.sql.shadows.postgresql import PostgresqlShadows
from opencqrs_py.adapters.sql.shadows.shadows import Shadows
from opencqrs_py.adapters.sql.shadows.sqlite import SqliteShadows
from opencqrs_py.errors import RebuildError
from opencqrs_py.model.cloudevents import parse_event

GROUP = "event-handling.groups.catalog"
SERVERS = KINDS[1:]
SQLITE_AND_POSTGRESQL = KINDS[:2]
ELSEWHERE_ON_SERVERS = pytest.mark.release(world=("postgresql", "mariadb"))
"""What tables have is read on servers by other default tests."""


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A database without any table of a group."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("fresh_url")(request.param)
    return World(url, tmp_path, request.param)


@pytest.fixture
def filled(world: World, make_module: Callable[[str], ModuleType]) -> World:
    """A group that has handled 98 events, of 7 books."""
    world.module = make_module(HANDLERS)
    world.add(98)
    world.run()
    return world


def begin(world: World) -> None:
    """Begin a rebuild, and leave it unfinished."""
    with world.application() as application:
        application.rebuilds.compare("catalog")


def complete(world: World, **settings: Any) -> None:
    with world.application(**settings) as application:
        application.rebuilds.rebuild("catalog")


def deploy(world: World, folder: Path, source: str) -> None:
    """Have the module be another version of itself, as after a deployment."""
    assert world.module is not None
    (folder / "later").mkdir()
    path = folder / "later" / Path(str(world.module.__file__)).name
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(world.module.__name__, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    world.module = module


@NOT_IN_SQL
def test_a_rebuild_continues_if_nothing_has_changed(filled: World, caplog: pytest.LogCaptureFixture) -> None:
    begin(filled)
    complete(filled)
    assert "begins again" not in caplog.text
    assert filled.lent() == {f"/books/{number}": RIGHT for number in range(7)}


@NOT_IN_SQL
def test_a_rebuild_continues_with_the_partitions_that_the_group_has_now_and_says_so_once(
    filled: World, caplog: pytest.LogCaptureFixture
) -> None:
    begin(filled)
    with filled.application() as application:
        application.layouts.repartition("catalog", 3)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        complete(filled)
    assert [each for each in caplog.messages if "partitions" in each] == [
        "the rebuild of group catalog continues with 3 partitions, as the group has now, instead of 2"
    ]
    assert filled.lent() == {f"/books/{number}": RIGHT for number in range(7)}


@pytest.mark.release  # a rare combination
@pytest.mark.parametrize("world", SERVERS, indirect=True)
def test_a_rebuild_continues_even_if_a_killed_process_left_rows_for_bulk_upsert(filled: World) -> None:
    begin(filled)
    filled.send(f"CREATE TABLE {filled.place('shadow')}.{STAGES}{'0' * 16}_{'1' * 16} (c0 INTEGER, staged_by TEXT)")
    complete(filled)
    assert filled.lent() == {f"/books/{number}": RIGHT for number in range(7)}
    assert not filled.is_there("shadow")


@NOT_IN_SQL
def test_a_rebuild_begins_again_if_the_group_gets_other_events(
    world: World, make_module: Callable[[str], ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    world.module = make_module(HANDLERS)
    world.settings[f"{GROUP}.fetch.subject"] = "/books/1"
    world.add(98)
    world.run()
    begin(world)
    world.settings[f"{GROUP}.fetch.subject"] = "/"
    complete(world)
    assert "group catalog: fetch.subject changed since the rebuild began, so it begins again" in caplog.text
    assert world.lent() == {f"/books/{number}": RIGHT for number in range(7)}


MAPPED = """
from dataclasses import dataclass
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

@dataclass(frozen=True)
class Lent:
    isbn: str = "none"

@dataclass(frozen=True)
class Fined:
    pass

@on_start("catalog")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS loan (position INTEGER, isbn VARCHAR(20))"))

@event_handling("catalog")
def lend(event: Lent, raw: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO loan VALUES (:p, :isbn)"), {"p": raw.position, "isbn": event.isbn})
"""
LENT = (
    '{"id": "%d", "source": "s", "type": "%s", "subject": "/b/%d", "data": {"metadata": {}, "payload": {"isbn": "a"}}}'
)


@pytest.fixture
def mapped(world: World, make_module: Callable[[str], ModuleType]) -> World:
    """A group that takes events of a class, for which one type stands; the log has events of another one, too."""
    world.module = make_module(MAPPED)
    world.settings |= {"events.format": "envelope", "events.types.lent": f"{world.module.__name__}:Lent"}
    with world.application() as application:
        application.event_store.append(
            parse_event(LENT % (number, "sold" if number % 2 else "lent", number)) for number in range(10)
        )
    return world


@pytest.mark.release(setting="events.format")  # compared as the other one
@NOT_IN_SQL
@pytest.mark.parametrize("setting", ["events.format", "events.types"])
def test_a_rebuild_begins_again_if_events_are_decoded_differently(
    mapped: World, caplog: pytest.LogCaptureFixture, setting: str
) -> None:
    assert mapped.module is not None
    sold = {"events.types.sold": f"{mapped.module.__name__}:Lent"}
    before = sold | {"events.format": "plain"} if setting == "events.format" else {}
    with mapped.application(**before) as application:
        assert not application.run(until_caught_up=True).failed
        application.rebuilds.compare("catalog")
    complete(mapped, **sold)
    assert f"group catalog: {setting} changed since the rebuild began, so it begins again" in caplog.text
    assert sorted(mapped.send("SELECT position, isbn FROM loan")) == [(n, "a") for n in range(1, 11)]


RESOLVED = (
    MAPPED.replace(
        "from opencqrs_py import",
        "from dependency_injector.containers import DeclarativeContainer\n"
        "from dependency_injector.providers import Object\n"
        "from opencqrs_py import",
    )
    + """
def of_lent(name: str) -> type | None:
    return Lent if name in {"lent"} else None

def of_all(name: str) -> type | None:
    return Lent

class Parts(DeclarativeContainer):
    first = Object(of_lent)
    second = Object(of_all)
"""
)


@pytest.mark.release(changed="events.type-resolver-ref")  # a setting, as in the test above
@NOT_IN_SQL
@pytest.mark.parametrize("changed", ["events.type-resolver-ref", "the function of events.type-resolver-ref"])
def test_a_rebuild_begins_again_if_another_resolver_finds_the_classes(
    mapped: World,
    make_module: Callable[[str], ModuleType],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    changed: str,
) -> None:
    mapped.module = make_module(RESOLVED)
    del mapped.settings["events.types.lent"]
    mapped.settings["events.type-resolver-ref"] = "first"
    mapped.run()
    begin(mapped)
    if changed == "events.type-resolver-ref":
        mapped.settings[changed] = "second"
    else:
        deploy(mapped, tmp_path, RESOLVED.replace('{"lent"}', '{"lent", "sold"}'))
    complete(mapped)
    assert f"group catalog: {changed}" in caplog.text
    assert "changed since the rebuild began, so it begins again" in caplog.text
    assert sorted(mapped.send("SELECT position, isbn FROM loan")) == [(n, "a") for n in range(1, 11)]


@pytest.mark.release(form=('{"lent": Lent}.get', "partial(of_lent)"))
@NOT_IN_SQL
@pytest.mark.parametrize("form", ['{"lent": Lent}.get', "partial(of_lent)", "Kept()"])
def test_a_resolver_that_is_not_a_plain_function_is_warned_of_since_its_changes_go_unnoticed(
    mapped: World, make_module: Callable[[str], ModuleType], caplog: pytest.LogCaptureFixture, form: str
) -> None:
    kept = "\nclass Kept:\n    calls = 0\n    def __call__(self, name):\n        self.calls += 1\n        return Lent\n"
    module = RESOLVED.replace("\nclass Parts", f"{kept}\nclass Parts").replace("Object(of_lent)", f"Object({form})")
    mapped.module = make_module(f"from functools import partial\n{module}")
    del mapped.settings["events.types.lent"]
    mapped.settings["events.type-resolver-ref"] = "first"
    mapped.run()
    begin(mapped)
    complete(mapped)
    assert "events.type-resolver-ref is not a plain function" in caplog.text
    assert "begins again" not in caplog.text


@pytest.mark.release  # as what is unchanged, above
@NOT_IN_SQL
def test_a_rebuild_continues_if_the_resolver_is_unchanged(
    mapped: World, make_module: Callable[[str], ModuleType], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    mapped.module = make_module(RESOLVED)
    mapped.settings["events.type-resolver-ref"] = "first"
    mapped.settings["events.types.lent"] = f"{mapped.module.__name__}:Lent"
    mapped.run()
    begin(mapped)
    deploy(mapped, tmp_path, RESOLVED.replace("def of_lent", "# as it was\ndef of_lent"))
    complete(mapped)
    assert "begins again" not in caplog.text


@NOT_IN_SQL
def test_a_rebuild_continues_if_a_class_is_added_that_no_handler_of_the_group_takes(
    mapped: World, caplog: pytest.LogCaptureFixture
) -> None:
    assert mapped.module is not None
    mapped.run()
    begin(mapped)
    other = {"events.types.fined": f"{mapped.module.__name__}:Fined"}
    complete(mapped, **other)
    assert "begins again" not in caplog.text


@NOT_IN_SQL
def test_a_rebuild_begins_again_if_handlers_are_no_longer_left_out(filled: World) -> None:
    module: Any = filled.module
    del module.mailed[:]
    begin(filled)
    complete(filled, **{f"{GROUP}.rebuild.run-all-handlers": True})
    assert len(module.mailed) == 98


@NOT_IN_SQL
def test_a_rebuild_begins_again_if_the_on_start_functions_change(
    world: World, make_module: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    insert = HANDLERS.replace("INSERT INTO lent VALUES", "INSERT INTO lent (isbn, n) VALUES")
    world.module = make_module(insert)
    world.add(98)
    world.run()
    begin(world)
    deploy(
        world, tmp_path, insert.replace("n INTEGER NOT NULL)", "n INTEGER NOT NULL, note VARCHAR(9) DEFAULT 'x')", 1)
    )
    complete(world)
    assert world.send("SELECT count(note) FROM lent") == [(7,)]


@NOT_IN_SQL
def test_a_rebuild_begins_again_if_the_sequencing_changes(filled: World) -> None:
    begin(filled)
    filled.settings[f"{GROUP}.sequence.resolution"] = "no_sequence"
    complete(filled)
    assert filled.lent() == {f"/books/{number}": RIGHT for number in range(7)}


@pytest.fixture
def migrated(world: World, make_module: Callable[[str], ModuleType]) -> World:
    """A group whose table a migration has made."""
    before = "CREATE TABLE loan (position INTEGER)"
    made = of(world, make_module, "", "INSERT INTO loan (position) VALUES (:position)", before)
    made.settings[f"{GROUP}.rebuild.tables"] = "loan"
    return made


@pytest.fixture
def migrated_separately(world: World, make_module: Callable[[str], ModuleType]) -> Iterator[World]:
    """Likewise; our own tables are in another schema."""
    schema = f"ours_{world.place('old')[-10:]}"
    world.settings["database.schema"] = schema
    before = "CREATE TABLE loan (position INTEGER)"
    made = of(world, make_module, "", "INSERT INTO loan (position) VALUES (:position)", before)
    made.settings[f"{GROUP}.rebuild.tables"] = "loan"
    yield made
    made.send(f"DROP SCHEMA {schema}{' CASCADE' if made.kind == 'postgresql' else ''}")


MIGRATION = "ALTER TABLE loan ADD COLUMN note VARCHAR(9) DEFAULT 'x'"


@NOT_IN_SQL
def test_a_rebuild_begins_again_if_settings_no_longer_name_a_table(
    migrated: World, caplog: pytest.LogCaptureFixture
) -> None:
    migrated.send("CREATE TABLE other (n INTEGER)")
    migrated.settings[f"{GROUP}.rebuild.tables"] = "loan, other"
    begin(migrated)
    migrated.settings[f"{GROUP}.rebuild.tables"] = "loan"
    complete(migrated)
    assert "group catalog: rebuild.tables changed since the rebuild began, so it begins again" in caplog.text


@pytest.mark.release  # as a key, below; one that comes later prevents the swap
@ELSEWHERE_ON_SERVERS
def test_a_rebuild_begins_again_if_a_migration_adds_a_column(migrated: World, caplog: pytest.LogCaptureFixture) -> None:
    begin(migrated)
    migrated.send(MIGRATION)
    complete(migrated)
    assert "columns of table loan changed since the rebuild began" in caplog.text
    assert migrated.send("SELECT count(note) FROM loan") == [(20,)]


INDEX = "CREATE UNIQUE INDEX one ON loan (position)"
CHECK = "ALTER TABLE loan ADD CONSTRAINT positive CHECK (position > 0)"
DEFAULT = "ALTER TABLE loan ALTER position SET DEFAULT 7"


@pytest.mark.release(world=("postgresql", "mariadb"))  # read by SQLAlchemy, on each
@pytest.mark.parametrize(
    ("world", "migration"),
    [
        ("sqlite", INDEX),
        *(pytest.param(*each.values, one, marks=each.marks) for each in SERVERS for one in (INDEX, CHECK, DEFAULT)),
    ],
    indirect=["world"],
)
def test_a_rebuild_begins_again_if_a_migration_adds_a_key_or_default(
    migrated: World, caplog: pytest.LogCaptureFixture, migration: str
) -> None:
    begin(migrated)
    migrated.send(migration)
    complete(migrated)
    what = "columns" if migration == DEFAULT else "indexes or constraints"
    assert f"{what} of table loan changed since the rebuild began" in caplog.text
    require_same_structure(migrated, caplog)


def require_same_structure(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Show that the new table is like the old one: a rebuild of it finds no other structure."""
    with world.application() as application:
        application.rebuilds.drop_old("catalog")
    caplog.clear()
    begin(world)
    complete(world)
    assert "begins again" not in caplog.text


def adding(world: World, number: int) -> list[str]:
    """Return statements that make a trigger, which adds a number to each position, in place of the one there is."""
    value = f"NEW.position + {number}"
    if world.kind == "sqlite":
        body = f"BEGIN UPDATE loan SET position = {value} WHERE rowid = NEW.rowid; END"
        return ["DROP TRIGGER IF EXISTS adds", f"CREATE TRIGGER adds AFTER INSERT ON loan {body}"]
    body = f"BEGIN NEW.position = {value}; RETURN NEW; END"
    return [
        f"CREATE OR REPLACE FUNCTION add_{number}() RETURNS trigger LANGUAGE plpgsql AS '{body}'",
        "DROP TRIGGER IF EXISTS adds ON loan",
        f"CREATE TRIGGER adds BEFORE INSERT ON loan FOR EACH ROW EXECUTE FUNCTION add_{number}()",
    ]


def without_trigger(world: World) -> list[str]:
    return ["DROP TRIGGER adds" + " ON loan" * (world.kind == "postgresql")]


def disabling(_world: World) -> list[str]:
    return ["ALTER TABLE loan DISABLE TRIGGER adds"]


CHANGES = {"changed": (partial(adding, number=200), 201), "dropped": (without_trigger, 1), "disabled": (disabling, 1)}


@pytest.mark.release  # the next test reads triggers; a key, above, has it begin again
@pytest.mark.parametrize(
    ("world", "change"),
    [
        ("sqlite", "changed"),
        ("sqlite", "dropped"),
        *(pytest.param("postgresql", each, marks=pytest.mark.postgresql) for each in CHANGES),
    ],
    indirect=["world"],
)
def test_a_rebuild_begins_again_if_a_migration_changes_a_trigger(
    migrated: World, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    migrated.send(*adding(migrated, 100))
    begin(migrated)
    statements, least = CHANGES[change]
    migrated.send(*statements(migrated))
    complete(migrated)
    assert "group catalog: triggers of table loan changed since the rebuild began, so it begins again" in caplog.text
    assert migrated.send("SELECT min(position) FROM loan") == [(least,)]
    require_same_structure(migrated, caplog)


@pytest.mark.parametrize("world", SQLITE_AND_POSTGRESQL, indirect=True)
def test_a_trigger_changed_during_a_rebuild_prevents_the_swap(migrated: World, monkeypatch: pytest.MonkeyPatch) -> None:
    migrated.send(*adding(migrated, 100))
    swap = Shadows.swap

    def migrate(*arguments: Any) -> Any:
        migrated.send(*adding(migrated, 200))
        return swap(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Shadows, "swap", migrate)
        with pytest.raises(RebuildError, match="triggers of table loan changed since the rebuild of"):
            complete(migrated)
    complete(migrated)
    assert migrated.send("SELECT min(position) FROM loan") == [(201,)]


@pytest.mark.release  # a record of an old version
@ELSEWHERE_ON_SERVERS
@pytest.mark.parametrize("world", SQLITE_AND_POSTGRESQL, indirect=True)
def test_a_rebuild_continues_if_begun_by_an_earlier_version_that_did_not_check_triggers(
    migrated: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrated.send(*adding(migrated, 100))
    with monkeypatch.context() as patch:
        for kind in (SqliteShadows, PostgresqlShadows):
            patch.setattr(kind, "_triggers", lambda *_: {})
        begin(migrated)
    complete(migrated)
    assert "begins again" not in caplog.text
    assert migrated.send("SELECT min(position) FROM loan") == [(101,)]


@pytest.mark.release  # the next test finds these tables
@pytest.mark.parametrize("world", SERVERS, indirect=True)
def test_an_added_column_is_noticed_even_if_our_tables_have_a_separate_schema(
    migrated_separately: World, caplog: pytest.LogCaptureFixture
) -> None:
    begin(migrated_separately)
    migrated_separately.send(MIGRATION)
    complete(migrated_separately)
    assert "columns of table loan changed since the rebuild began" in caplog.text
    assert migrated_separately.send("SELECT count(note) FROM loan") == [(20,)]


@pytest.mark.release(world="postgresql")  # as on MariaDB
@pytest.mark.parametrize("world", SERVERS, indirect=True)
def test_a_comparison_finds_the_users_tables_even_if_ours_have_a_separate_schema(
    migrated_separately: World,
) -> None:
    world = migrated_separately
    world.send("CREATE TABLE other (n INTEGER)", "INSERT INTO other VALUES (1)")
    world.settings[f"{GROUP}.rebuild.tables"] = "loan, other"
    with world.application() as application:
        assert application.rebuilds.compare("catalog").unwritten == ("other",)
        application.rebuilds.abort("catalog")
    world.settings[f"{GROUP}.rebuild.tables"] = "loan"
    with world.application() as application:
        assert application.rebuilds.compare("catalog").not_made == ("other",)


@ELSEWHERE_ON_SERVERS
@pytest.mark.parametrize("late", ["while it is built", "before the swap"])
def test_a_column_added_during_a_rebuild_prevents_the_swap(
    migrated: World, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    name = "open" if late == "while it is built" else "swap"
    step = getattr(Shadows, name)

    def migrate(shadows: Shadows, *arguments: Any) -> Any:
        if name == "open":
            found = step(shadows, *arguments)
            migrated.send(MIGRATION)
            return found
        migrated.send(MIGRATION)
        return step(shadows, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Shadows, name, migrate)
        with pytest.raises(RebuildError, match="columns of table loan changed since the rebuild of"):
            complete(migrated)
    complete(migrated)
    assert migrated.send("SELECT count(note) FROM loan") == [(20,)]


@pytest.mark.release(before=("n INTEGER", "n ENUM('a')"))
@pytest.mark.parametrize(
    ("world", "before", "after"),
    [
        pytest.param("postgresql", "moment timestamp", "moment TYPE timestamptz", marks=pytest.mark.postgresql),
        pytest.param("mariadb", "n INTEGER", "n INTEGER UNSIGNED", marks=pytest.mark.mariadb),
        pytest.param("mariadb", "n ENUM('a')", "n ENUM('a', 'b')", marks=pytest.mark.mariadb),
        pytest.param("mariadb", "n DATETIME", "n DATETIME(6)", marks=pytest.mark.mariadb),
    ],
    indirect=["world"],
)
def test_a_rebuild_begins_again_if_the_type_of_a_column_changes(
    migrated: World, caplog: pytest.LogCaptureFixture, before: str, after: str
) -> None:
    migrated.send(f"ALTER TABLE loan ADD COLUMN {before}")
    begin(migrated)
    migrated.send(f"ALTER TABLE loan {'MODIFY' if migrated.kind == 'mariadb' else 'ALTER'} {after}")
    complete(migrated)
    assert "columns of table loan changed since the rebuild began" in caplog.text


@pytest.mark.release  # a rare combination
@NOT_IN_SQL
def test_code_that_could_not_be_read_at_first_counts_as_unchanged(
    filled: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("opencqrs_py.assembly.rebuilds.shadow_build.starts_fingerprint", lambda *_: "")
        begin(filled)
    complete(filled)
    assert "begins again" not in caplog.text


@NOT_IN_SQL
def test_a_comparison_names_tables_with_rows_to_which_handlers_no_longer_write(filled: World, tmp_path: Path) -> None:
    book = '    book = {"isbn"'
    deploy(
        filled, tmp_path, HANDLERS.replace(book, '    if event.subject.startswith("/books"):\n        return\n' + book)
    )
    with filled.application() as application:
        found = application.rebuilds.compare("catalog")
    assert (found.differences, set(found.unwritten)) == ((), {"audit", "lent"})


@NOT_IN_SQL
def test_a_comparison_names_tables_that_the_group_no_longer_creates(filled: World, tmp_path: Path) -> None:
    def not_made() -> tuple[str, ...]:
        with filled.application() as application:
            return application.rebuilds.compare("catalog").not_made

    filled.send("CREATE TABLE readers (name VARCHAR(9))")
    assert not_made() == ("readers",)  # of others
    source = HANDLERS.replace("CREATE TABLE IF NOT EXISTS audit", "CREATE TABLE IF NOT EXISTS audits")
    deploy(filled, tmp_path, source.replace("INTO audit ", "INTO audits "))
    assert not_made() == ("audit", "readers")


@NOT_IN_SQL
def test_a_rebuild_that_begins_again_reports_errors_itself(filled: World) -> None:
    begin(filled)
    wrong = {"event-handling.groups.catalog.rebuild.tables": ["nowhere"]}
    with filled.application(**wrong) as application, pytest.raises(RebuildError, match="there is no table nowhere"):
        application.rebuilds.rebuild("catalog")

"""What a rebuild keeps of tables on PostgreSQL, where objects refer to each other by oid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import make_url
from support.rebuilding import HANDLERS, WRONG, World, of

from opencqrs_py.adapters.sql.dialects.postgresql_catalog import Relation, Ties
from opencqrs_py.adapters.sql.shadows.postgresql import PostgresqlShadows
from opencqrs_py.adapters.sql.shadows.urls import ShadowOf, marked
from opencqrs_py.errors import RebuildError
from opencqrs_py.model.rebuild import Fate

pytestmark = pytest.mark.postgresql


@pytest.fixture
def empty(fresh_url: Callable[[str], str], tmp_path: Path) -> World:
    """A database without anything."""
    return World(fresh_url("postgresql"), tmp_path, "postgresql")


@pytest.fixture
def world(empty: World, make_module: Callable[[str], ModuleType]) -> World:
    """A group that has handled 98 events, and one row of whose table has become wrong."""
    empty.module = make_module(HANDLERS)
    empty.add(98)
    empty.run()
    empty.send(WRONG)
    return empty


@pytest.fixture
def role(world: World) -> Iterator[str]:
    """A role that is dropped, with its objects, at the end."""
    world.send("DROP ROLE IF EXISTS rebuilt_for", "CREATE ROLE rebuilt_for")
    yield "rebuilt_for"
    world.send("DROP OWNED BY rebuilt_for", "DROP ROLE rebuilt_for")


def rebuild(world: World, **settings: Any) -> dict[str, Fate]:
    with world.application(**settings) as application:
        return {one.name: one.fate for one in application.rebuilds.rebuild("catalog").tables}


def undo(world: World, **settings: str) -> None:
    with world.application(**settings) as application:
        application.rebuilds.undo("catalog")


def drop_old(world: World) -> None:
    with world.application() as application:
        application.rebuilds.drop_old("catalog")


def numbers(world: World, query: str) -> list[int]:
    return [row[0] for row in world.send(query)]


def test_the_owner_and_its_grants_are_kept(world: World, role: str) -> None:
    world.send(
        f"ALTER TABLE lent OWNER TO {role}",
        "GRANT SELECT ON lent TO CURRENT_USER WITH GRANT OPTION",
        "GRANT INSERT ON lent TO PUBLIC",
    )
    asked = "SELECT pg_get_userbyid(relowner), relacl::text FROM pg_class WHERE oid = 'lent'::regclass"
    ((owner, before),) = world.send(asked)
    assert owner == role
    for change in (rebuild, undo):
        change(world)
        ((owner, after),) = world.send(asked)
        assert (owner, {*after.strip("{}").split(",")}) == (role, {*before.strip("{}").split(",")})


@pytest.mark.release  # the test above has all privileges of a table
def test_default_privileges_grant_no_more_than_the_live_table_did(world: World, role: str) -> None:
    world.send(f"GRANT INSERT ON lent TO {role}", f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {role}")
    asked = "SELECT " + ", ".join(f"has_table_privilege('{role}', 'lent', '{each}')" for each in ("SELECT", "INSERT"))
    rebuild(world)
    assert world.send(asked) == [(False, True)]


@pytest.mark.release  # as those of tables
def test_privileges_on_sequences_of_columns_are_kept(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    table = "CREATE TABLE IF NOT EXISTS loan (number serial PRIMARY KEY, position INTEGER)"
    world = of(empty, make_module, table, "INSERT INTO loan (position) VALUES (:position)")
    world.send("GRANT USAGE ON SEQUENCE loan_number_seq TO PUBLIC")
    rebuild(world)
    asked = "SELECT relacl::text FROM pg_class WHERE oid = 'loan_number_seq'::regclass"
    assert "=U/" in world.send(asked)[0][0]


def test_partitions_move_with_their_table_even_without_rows(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    tables = (
        "CREATE TABLE IF NOT EXISTS loan (position INTEGER) PARTITION BY RANGE (position);"
        "CREATE TABLE IF NOT EXISTS early PARTITION OF loan FOR VALUES FROM (0) TO (1000);"
        "CREATE TABLE IF NOT EXISTS late PARTITION OF loan FOR VALUES FROM (1000) TO (2000)"
    )
    world = of(empty, make_module, tables, "INSERT INTO loan VALUES (:position)")
    world.send("DELETE FROM loan WHERE position = 3")
    assert rebuild(world) == dict.fromkeys(["loan", "early", "late"], Fate.SWAPPED)
    assert numbers(world, "SELECT count(*) FROM loan") == [20]
    undo(world)
    assert numbers(world, "SELECT count(*) FROM loan") == [19]


TABLES = "event-handling.groups.catalog.rebuild.tables"
MIGRATIONS = (
    'CREATE SEQUENCE "Invoices" INCREMENT BY 10 START 500',
    'CREATE TABLE "Loan" (position INTEGER CONSTRAINT pk_loan PRIMARY KEY, n INTEGER CONSTRAINT uq_n UNIQUE DEFERRABLE,'
    " invoice TEXT DEFAULT 'I-' || nextval('\"Invoices\"'), span INT4RANGE,"
    " CONSTRAINT apart EXCLUDE USING gist (span WITH &&))",
    'ALTER SEQUENCE "Invoices" OWNED BY "Loan".invoice',
    'CREATE INDEX ix_late ON "Loan" (n DESC, lower(invoice)) INCLUDE (span) WHERE n > 3',
)
OF_LOAN = (
    """SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = '"Loan"'::regclass ORDER BY 1""",
    """SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = '"Loan"'::regclass
        AND contype <> 'n' ORDER BY 1""",
    """SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = '"Loan"'::regclass""",
    """SELECT seqstart, seqincrement, seqtypid::int FROM pg_sequence WHERE seqrelid = '"Invoices"'::regclass""",
)


def test_a_table_of_migrations_keeps_its_names_and_defaults(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    world = of(empty, make_module, "", 'INSERT INTO "Loan" VALUES (:position, :position)', *MIGRATIONS)
    before = [world.send(query) for query in OF_LOAN]
    assert rebuild(world, **{TABLES: ["Loan"]})["Loan"] is Fate.SWAPPED
    assert [world.send(query) for query in OF_LOAN] == before
    numbered = 'SELECT invoice FROM "Loan"'
    assert {row[0] for row in world.send(numbered)} == {f"I-{n}" for n in range(500, 700, 10)}
    world.send('ALTER TABLE "Loan" DROP CONSTRAINT uq_n', "DROP INDEX ix_late")  # as a later migration does


@pytest.mark.release(of_loan="PARTITION BY RANGE (position)")
@pytest.mark.parametrize("of_loan", ["PARTITION BY RANGE (position)", ""])
def test_a_partitioned_table_is_created_only_by_on_start(
    empty: World, make_module: Callable[[str], ModuleType], of_loan: str
) -> None:
    part = "PARTITION OF loan FOR VALUES FROM (0) TO (1000)" if of_loan else "() INHERITS (loan)"
    made = (f"CREATE TABLE loan (position INTEGER) {of_loan}", f"CREATE TABLE early {part}")
    world = of(empty, make_module, "", "INSERT INTO loan VALUES (:position)", *made)
    with pytest.raises(RebuildError, match=r"OCQ-630.*early, loan of rebuild.tables has partitions"):
        rebuild(world, **{TABLES: ["loan", "early"]})
    assert numbers(world, "SELECT count(*) FROM pg_inherits WHERE inhrelid = 'early'::regclass") == [1]


def test_sequences_and_indexes_of_the_group_move_with_its_tables(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    tables = (
        "CREATE SEQUENCE IF NOT EXISTS numbers;"
        "CREATE TABLE IF NOT EXISTS loan (number BIGINT DEFAULT nextval('numbers'), position INTEGER);"
        "CREATE INDEX IF NOT EXISTS by_position ON loan (position)"
    )
    world = of(empty, make_module, tables, "INSERT INTO loan (position) VALUES (:position)")
    world.send("SELECT setval('numbers', 500)")
    assert rebuild(world) == {"loan": Fate.SWAPPED, "numbers": Fate.SWAPPED}
    world.add(1, start=20)
    world.run()
    assert numbers(world, "SELECT number FROM loan ORDER BY 1") == list(range(1, 22))
    indexes = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'public' AND indexname = 'by_position'"
    assert numbers(world, indexes) == [1]
    undo(world)
    world.run()
    assert numbers(world, "SELECT number FROM loan ORDER BY 1") == [*range(1, 21), 501]


def test_a_materialized_view_of_the_group_is_filled_before_the_swap(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    tables = (
        "CREATE TABLE IF NOT EXISTS loan (position INTEGER);"
        "CREATE MATERIALIZED VIEW IF NOT EXISTS late AS SELECT position FROM loan WHERE position > 15;"
        "CREATE MATERIALIZED VIEW IF NOT EXISTS count_late AS SELECT count(*) AS n FROM late;"
        "CREATE MATERIALIZED VIEW IF NOT EXISTS none AS SELECT position FROM loan WHERE position > 1000"
    )
    world = of(empty, make_module, tables, "INSERT INTO loan (position) VALUES (:position)")
    assert set(rebuild(world).values()) == {Fate.SWAPPED}
    assert numbers(world, "SELECT n FROM count_late") == [5]


SHARED_START = HANDLERS.replace(
    """
@event_handling("catalog", types=["lent"])
def lend""",
    """    connection.execute(text("CREATE OR REPLACE VIEW audited AS SELECT position FROM audit"))
    connection.execute(text("CREATE OR REPLACE VIEW both_counts AS BOTH"))

@event_handling("catalog", types=["lent"])
def lend""",
    1,
)
ALONE = "SELECT count(*) AS n FROM lent"
BOTH = "SELECT (SELECT count(*) FROM lent) + (SELECT count(*) FROM audit) AS n"


@pytest.mark.release  # the table of objects that belong together has it
def test_a_view_of_another_groups_tables_is_unchanged(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    empty.module = make_module(SHARED_START.replace("BOTH", ALONE))
    empty.add(20)
    empty.run()
    known = rebuild(empty)
    assert (known["audited"], known["both_counts"], known["audit"]) == (Fate.LEFT, Fate.SWAPPED, Fate.LEFT)
    assert numbers(empty, "SELECT count(*) FROM audited") == [20]
    assert numbers(empty, "SELECT n FROM both_counts") == [7]
    empty.add(7, start=20)
    empty.run()
    assert numbers(empty, "SELECT count(*) FROM audited") == [27]


@pytest.mark.release  # as a sequence of others, below
def test_a_view_of_tables_of_two_groups_is_refused(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    empty.module = make_module(SHARED_START.replace("BOTH", BOTH))
    empty.add(20)
    empty.run()
    with pytest.raises(
        RebuildError, match=r"OCQ-630.*the view both_counts needs the table audit, which stays as it is"
    ):
        rebuild(empty)
    assert numbers(empty, "SELECT n FROM both_counts") == [27]


def test_a_sequence_that_another_groups_table_uses_is_refused(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    tables = (
        "CREATE SEQUENCE IF NOT EXISTS numbers;"
        "CREATE TABLE IF NOT EXISTS loan (number BIGINT DEFAULT nextval('numbers'), position INTEGER);"
    )
    world = of(empty, make_module, tables, "INSERT INTO loan (position) VALUES (:position)")
    world.send("CREATE TABLE other (number BIGINT DEFAULT nextval('numbers'))")
    with pytest.raises(
        RebuildError, match=r"OCQ-630.*default value for column number of table other .* the old sequence numbers"
    ):
        rebuild(world)
    assert not world.is_there("shadow")


# ------------------------------------------------------------------------- types, collations, functions, statistics


def once(statement: str) -> str:
    """Return a statement that does nothing if the object that it creates exists."""
    return f"DO 'BEGIN {statement.replace(chr(39), 2 * chr(39))}~ EXCEPTION WHEN duplicate_object THEN NULL~ END'"


def typed(empty: World, make_module: Callable[[str], ModuleType], tables: str, handler: str) -> World:
    """As ``of``, for statements with semicolons, which are written as ``~``."""
    source = make_module
    return of(empty, lambda text: source(text.replace("~", ";")), tables, handler)


@pytest.mark.release  # the next test has a type
@pytest.mark.parametrize(
    ("made", "column", "value"),
    [
        ("CREATE TYPE special AS (position INTEGER, unit TEXT)", "special", "CAST(ROW(:position, 'EUR') AS special)"),
        ("CREATE TYPE special AS RANGE (subtype = integer)", "special", "special(0, :position)"),
        ("CREATE DOMAIN special AS INTEGER CHECK (VALUE > 0)", "special", ":position"),
        ('CREATE COLLATION special FROM "C"', "TEXT COLLATE special", ":subject"),
    ],
)
def test_columns_are_kept_whatever_their_type_or_collation(
    empty: World, make_module: Callable[[str], ModuleType], made: str, column: str, value: str
) -> None:
    table = f"CREATE TABLE IF NOT EXISTS lent (position INTEGER PRIMARY KEY, it {column})"
    world = typed(empty, make_module, f"{once(made)};{table}", f"INSERT INTO lent VALUES (:position, {value})")
    rows = "SELECT position, CAST(it AS text) FROM lent ORDER BY 1"
    before = world.send(rows)
    for change in (rebuild, undo, rebuild, drop_old):
        change(world)
        assert world.send(rows) == before
    world.add(1, start=20)
    world.run()
    assert len(world.send(rows)) == 21


STATE = once("CREATE TYPE state AS ENUM ('lent', 'back')")


def test_functions_of_the_groups_types_and_tables_move_with_them(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    tables = (
        f"{STATE};"
        "CREATE TABLE IF NOT EXISTS lent (position INTEGER PRIMARY KEY, it state);"
        "CREATE OR REPLACE FUNCTION next(one state, whole lent) RETURNS state LANGUAGE sql RETURN CAST('back' AS state)"
    )
    world = typed(empty, make_module, tables, "INSERT INTO lent VALUES (:position, 'lent')")
    for change in (rebuild, undo, rebuild, drop_old):
        change(world)
        assert world.send("SELECT next(it, lent), count(*) FROM lent GROUP BY 1") == [("back", 20)]
    assert numbers(world, "SELECT count(*) FROM pg_proc WHERE proname = 'next'") == [1]


@pytest.mark.release  # as those of tables
def test_owners_and_privileges_of_functions_and_types_are_kept(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    tables = (
        f"{STATE};CREATE TABLE IF NOT EXISTS lent (position INTEGER PRIMARY KEY, it state);"
        "CREATE OR REPLACE FUNCTION next(one state) RETURNS state LANGUAGE sql RETURN CAST('back' AS state)"
    )
    world = typed(empty, make_module, tables, "INSERT INTO lent VALUES (:position, 'lent')")
    world.send("DROP ROLE IF EXISTS rebuilt_for", "CREATE ROLE rebuilt_for")
    world.send(
        "REVOKE EXECUTE ON FUNCTION next FROM PUBLIC",
        "GRANT EXECUTE ON FUNCTION next TO rebuilt_for WITH GRANT OPTION",
        "REVOKE USAGE ON TYPE state FROM PUBLIC",
        "ALTER TYPE state OWNER TO rebuilt_for",
    )
    asked = (
        "SELECT CAST(proacl AS text), CAST(typacl AS text), pg_get_userbyid(typowner) FROM pg_proc, pg_type "
        "WHERE proname = 'next' AND typname = 'state' AND pronamespace = CAST('public' AS regnamespace) "
        "AND typnamespace = pronamespace"
    )
    before = world.send(asked)
    for change in (rebuild, undo, rebuild, drop_old):
        change(world)
        assert world.send(asked) == before
    world.send("DROP OWNED BY rebuilt_for CASCADE", "DROP ROLE rebuilt_for")


TOUCH = (
    "CREATE OR REPLACE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.n = 7~ RETURN NEW~ END';"
    "CREATE TABLE IF NOT EXISTS lent (position INTEGER PRIMARY KEY, n INTEGER);"
    "CREATE TABLE IF NOT EXISTS theirs (n INTEGER);"
    "CREATE OR REPLACE TRIGGER touched BEFORE INSERT ON theirs FOR EACH ROW EXECUTE FUNCTION touch()"
)


@pytest.mark.release  # as the sequences and views of others
def test_a_function_used_only_by_tables_of_others_stays_with_them(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    world = typed(empty, make_module, TOUCH, "INSERT INTO lent VALUES (:position, 1)")
    known = rebuild(world)
    assert (known["lent"], known["theirs"], known["touch()"]) == (Fate.SWAPPED, Fate.LEFT, Fate.LEFT)
    drop_old(world)
    assert world.send("INSERT INTO theirs VALUES (1) RETURNING n") == [(7,)]


@pytest.mark.release  # as a sequence is, above
def test_a_function_used_by_tables_of_others_too_is_refused(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    both = f"{TOUCH};CREATE OR REPLACE TRIGGER own BEFORE INSERT ON lent FOR EACH ROW EXECUTE FUNCTION touch()"
    world = typed(empty, make_module, both, "INSERT INTO lent VALUES (:position, 1)")
    with pytest.raises(RebuildError, match=r"OCQ-630.*trigger touched on table theirs .* the old function touch\(\)"):
        rebuild(world)
    assert world.send("INSERT INTO theirs VALUES (1) RETURNING n") == [(7,)]


@pytest.mark.release  # as a sequence of others, above
def test_a_table_that_needs_an_object_not_swapped_is_refused_before_any_event_is_handled(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    tables = (
        f"{once('CREATE TEXT SEARCH CONFIGURATION plain (COPY = simple)')};"
        "CREATE TABLE IF NOT EXISTS lent "
        "(it TEXT, words tsvector GENERATED ALWAYS AS (to_tsvector('plain', it)) STORED)"
    )
    world = typed(empty, make_module, tables, "INSERT INTO lent VALUES (:subject)")
    with pytest.raises(RebuildError, match=r"OCQ-630.*needs the text search configuration plain, which stays"):
        rebuild(world)
    assert not world.is_there("shadow")
    assert numbers(world, "SELECT count(*) FROM lent WHERE words IS NOT NULL") == [20]


@pytest.mark.release  # no query has other rows without them
def test_extended_statistics_move_with_their_table(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    tables = (
        "CREATE TABLE IF NOT EXISTS lent (position INTEGER PRIMARY KEY, n INTEGER);"
        "CREATE STATISTICS IF NOT EXISTS related ON position, n FROM lent"
    )
    world = of(empty, make_module, tables, "INSERT INTO lent VALUES (:position, 1)")
    for change in (rebuild, undo, rebuild, drop_old):
        change(world)
        asked = "SELECT stxname, CAST(CAST(stxrelid AS regclass) AS text) FROM pg_statistic_ext"
        assert ("related", "lent") in world.send(asked)


def relation(number: int, kind: str = "table") -> Relation:
    return Relation(f"r{number}", kind, number)


@pytest.mark.parametrize(
    ("kinds", "ties", "written", "moved"),
    [
        ({1: "table", 2: "table"}, Ties(), {1}, {1}),
        ({1: "table", 2: "table", 3: "table"}, Ties(parts=((2, 1), (3, 2))), {3}, {1, 2, 3}),
        ({1: "table", 2: "table", 3: "view"}, Ties(shown=((3, 2),)), {1}, {1}),
        ({1: "table", 2: "view", 3: "view"}, Ties(shown=((2, 1), (3, 2))), {1}, {1, 2, 3}),
        ({1: "table", 2: "view"}, Ties(shown=((2, 1),)), {2}, set()),
        ({1: "view"}, Ties(), set(), {1}),
        ({1: "sequence", 2: "table"}, Ties(counted=((1, 2),)), {2}, {1, 2}),
        ({1: "sequence", 2: "table"}, Ties(counted=((1, 2),)), set(), set()),
        ({1: "sequence"}, Ties(counted=((1, 9),)), {1}, {1}),
    ],
)
def test_objects_that_belong_together_are_swapped_together(
    kinds: dict[int, str], ties: Ties, written: set[int], moved: set[int]
) -> None:
    known = [relation(number, kind) for number, kind in kinds.items()]
    assert ties.moved(known, written) == moved


NOTE = "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''called''; END'"
FIRING = {"D": "DISABLE TRIGGER", "R": "ENABLE REPLICA TRIGGER", "A": "ENABLE ALWAYS TRIGGER"}
NAMED = {"event-handling.groups.catalog.rebuild.tables": "loan"}
STOPPING = {
    "event-handling.standard.retry.policy": "none",
    "event-handling.standard.retry.on-exhausted": "stop",
}


@pytest.mark.release(state="R")
@pytest.mark.release(settings=NAMED)
@pytest.mark.parametrize("settings", [{}, NAMED], ids=["made by @on_start", "made by a migration"])
@pytest.mark.parametrize("state", ["D", "R"])
def test_a_disabled_trigger_stays_disabled_on_the_new_table(
    empty: World, make_module: Callable[[str], ModuleType], settings: dict[str, str], state: str
) -> None:
    table = "CREATE TABLE IF NOT EXISTS loan (position INTEGER)"
    trigger = "CREATE TRIGGER noted BEFORE INSERT ON loan FOR EACH ROW EXECUTE FUNCTION note()"
    before = (table, NOTE, trigger, f"ALTER TABLE loan {FIRING[state]} noted")
    world = of(empty, make_module, "" if settings else table, "INSERT INTO loan VALUES (:position)", *before)
    asked = "SELECT tgenabled::text FROM pg_trigger WHERE tgrelid = 'loan'::regclass"
    for change in (rebuild, undo):
        change(world, **settings, **STOPPING)
        assert world.send(asked) == [(state,)]
    assert numbers(world, "SELECT count(*) FROM loan") == [20]


@pytest.mark.release  # a rare combination
def test_a_trigger_of_a_table_with_partitions_is_kept_once(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    tables = (
        "CREATE TABLE IF NOT EXISTS loan (position INTEGER) PARTITION BY RANGE (position);"
        "CREATE TABLE IF NOT EXISTS early PARTITION OF loan FOR VALUES FROM (0) TO (1000);"
        "CREATE TABLE IF NOT EXISTS late PARTITION OF loan FOR VALUES FROM (1000) TO (2000)"
    )
    world = of(empty, make_module, tables, "INSERT INTO loan VALUES (:position)")
    world.send(
        NOTE.replace("RAISE EXCEPTION ''called''", "RETURN NEW"),
        "CREATE TRIGGER noted AFTER INSERT ON loan FOR EACH ROW EXECUTE FUNCTION note()",
        "CREATE TRIGGER seen AFTER INSERT ON late FOR EACH ROW EXECUTE FUNCTION note()",
        "ALTER TABLE loan DISABLE TRIGGER noted",
        "ALTER TABLE early ENABLE TRIGGER noted",
    )
    asked = (
        "SELECT relname, tgname, tgparentid <> 0, tgenabled::text "
        "FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
        "WHERE relnamespace = 'public'::regnamespace ORDER BY 1, 2"
    )
    before = world.send(asked)
    for change in (rebuild, undo):
        change(world)
        assert world.send(asked) == before


def _limited(world: World, role: str) -> str:
    """Return the URL for a role that owns the tables and may create others; it may not create schemas."""
    world.send(
        f"ALTER ROLE {role} LOGIN",
        f"GRANT USAGE, CREATE ON SCHEMA public TO {role}",
        *(
            f"ALTER TABLE {table} OWNER TO {role}"
            for (table,) in world.send(
                "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
            )
        ),
    )
    return make_url(world.url).set(username=role).render_as_string(hide_password=False)


@pytest.mark.release  # the wording of a fix, which MariaDB shows
def test_without_the_privilege_to_create_schemas_the_error_names_a_grant_that_suffices(world: World, role: str) -> None:
    name, setting = make_url(world.url).database, {"database.url": _limited(world, role)}
    with pytest.raises(RebuildError, match=f"OCQ-630.*cannot be made.*permission denied for database {name}") as caught:
        rebuild(world, **setting)
    assert caught.value.fix == f"have an administrator GRANT CREATE ON DATABASE {name} TO {role}"
    world.send(caught.value.fix.removeprefix("have an administrator "))
    assert rebuild(world, **setting)["lent"] is Fate.SWAPPED
    undo(world, **setting)


@pytest.mark.release  # the wording of a fix
def test_a_missing_privilege_on_a_table_of_the_settings_is_not_named_as_one_on_the_database(
    world: World, role: str
) -> None:
    settings = {"database.url": _limited(world, role), "event-handling.groups.catalog.rebuild.tables": ["rates"]}
    name = make_url(world.url).database
    world.send(f"GRANT CREATE ON DATABASE {name} TO {role}", "CREATE TABLE rates (n INTEGER)")
    with pytest.raises(RebuildError, match=r"OCQ-630.*cannot be made.*permission denied for table rates") as caught:
        rebuild(world, **settings)
    assert caught.value.fix.startswith("have an administrator make the user the owner of the tables of rebuild.tables")
    world.send(f"ALTER TABLE rates OWNER TO {role}")
    assert rebuild(world, **settings)["lent"] is Fate.SWAPPED


def test_a_pooler_that_routes_to_the_live_tables_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_options(shadows: PostgresqlShadows, _schema: str, shared: Sequence[str] = ()) -> str:
        return marked(shadows._database.url, ShadowOf(shadows._live_place, tuple(shared)))

    before = world.send("SELECT * FROM lent ORDER BY 1")
    monkeypatch.setattr(PostgresqlShadows, "_url", without_options)
    with (
        world.application() as application,
        pytest.raises(RebuildError, match=r"(?s)OCQ-634.*live schema public.*pooler"),
    ):
        application.rebuilds.rebuild("catalog")
    assert world.send("SELECT * FROM lent ORDER BY 1") == before

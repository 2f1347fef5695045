"""Attacks by statements and savepoints in the transaction, by other connections, and by caught errors."""

from __future__ import annotations

from attacks.attack import NOT_SQLITE, ONLY_MARIADB, ONLY_POSTGRESQL, ONLY_SQLITE, Attack, End

__all__ = ["ATTACKS"]

EITHER = (End.RIGHT, End.STOPPED)

ATTACKS = (
    Attack(name="connection.begin()", after="connection.begin()"),
    Attack(
        name="connection.begin() that is caught",
        after="with contextlib.suppress(Exception):\n    connection.begin()",
        ends=EITHER,
    ),
    Attack(name="a savepoint is left open", after="connection.begin_nested()", ends=EITHER),
    Attack(
        name="a savepoint is left open by statement",
        after="connection.execute(text('SAVEPOINT mine'))",
        ends=(End.RIGHT,),
    ),
    Attack(
        name="a savepoint is rolled back after the row",
        before="nested = connection.begin_nested()\nconnection.execute(insert(OTHER), {'id': 7})\nnested.rollback()",
        ends=(End.RIGHT,),
    ),
    Attack(
        name="SAVEPOINT and ROLLBACK TO by statement",
        before="""
connection.execute(text('SAVEPOINT mine'))
connection.execute(insert(OTHER), {'id': 7})
connection.execute(text('ROLLBACK TO SAVEPOINT mine'))""",
        ends=(End.RIGHT,),
    ),
    Attack(
        name="a savepoint is closed twice",
        before="""
nested = connection.begin_nested()
nested.commit()
with contextlib.suppress(Exception):
    nested.rollback()""",
        ends=EITHER,
    ),
    Attack(
        name="an error of the database is caught",
        before="with contextlib.suppress(exc.IntegrityError):\n    connection.execute(insert(OTHER), {'id': 1})",
        ends=EITHER,
    ),
    Attack(
        name="an error of the database is caught after the row",
        after="with contextlib.suppress(exc.IntegrityError):\n    connection.execute(insert(OTHER), {'id': 1})",
        ends=EITHER,
    ),
    Attack(
        name="an error of the database is caught in a savepoint",
        after="""
with contextlib.suppress(exc.IntegrityError), connection.begin_nested():
    connection.execute(insert(OTHER), {'id': 1})""",
        ends=(End.RIGHT,),
    ),
    Attack(
        name="an error of the database is caught, once",
        after="""
try:
    connection.execute(insert(OTHER), {'id': 1})
except exc.IntegrityError:
    if first('caught'):
        raise""",
        ends=EITHER,
    ),
    Attack(
        name="an error of the driver is caught",
        after="""
with contextlib.suppress(Exception):
    driver.cursor().execute(f'INSERT INTO {OTHER.name} VALUES (1)')""",
        ends=EITHER,
    ),
    Attack(
        name="a deferred constraint fails at the commit",
        setup=(
            "CREATE TABLE {table}_parent (id INTEGER PRIMARY KEY)",
            "CREATE TABLE {table}_child (id INTEGER REFERENCES {table}_parent (id) DEFERRABLE INITIALLY DEFERRED)",
        ),
        after="connection.execute(text(f'INSERT INTO {MODEL.name}_child VALUES (99)'))",
        databases=ONLY_POSTGRESQL,
        blames_handler=False,
    ),
    Attack(
        name="a deferred constraint fails at the commit, once",
        setup=(
            "CREATE TABLE {table}_parent (id INTEGER PRIMARY KEY)",
            "CREATE TABLE {table}_child (id INTEGER REFERENCES {table}_parent (id) DEFERRABLE INITIALLY DEFERRED)",
        ),
        after="if first('late'):\n    connection.execute(text(f'INSERT INTO {MODEL.name}_child VALUES (99)'))",
        databases=ONLY_POSTGRESQL,
        ends=(End.RIGHT,),
    ),
    Attack(
        name="deferred foreign keys fail at the commit on SQLite",
        setup=(
            "CREATE TABLE {table}_parent (id INTEGER PRIMARY KEY)",
            "CREATE TABLE {table}_child (id INTEGER REFERENCES {table}_parent (id) DEFERRABLE INITIALLY DEFERRED)",
        ),
        extra="""
import sqlite3

@sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
def enforce(connection, _record):
    on_sqlite = isinstance(connection, sqlite3.Connection)
    if on_sqlite and URL.endswith(connection.execute("PRAGMA database_list").fetchone()[2]):
        connection.execute("PRAGMA foreign_keys = ON")
""",
        after="connection.execute(text(f'INSERT INTO {MODEL.name}_child VALUES (99)'))",
        databases=ONLY_SQLITE,
        blames_handler=False,
    ),
    Attack(
        name="the isolation level becomes AUTOCOMMIT",
        after="connection.execution_options(isolation_level='AUTOCOMMIT')",
        ends=EITHER,
        commits=True,
    ),
    Attack(
        name="the isolation level becomes SERIALIZABLE",
        before="connection.execution_options(isolation_level='SERIALIZABLE')",
        ends=EITHER,
    ),
    Attack(
        name="the driver commits by itself from now on",
        before="driver.autocommit = True",
        databases=ONLY_POSTGRESQL,
        ends=EITHER,
    ),
    Attack(
        name="the driver commits by itself from now on, by its method",
        after="driver.autocommit(True)",
        databases=ONLY_MARIADB,
        ends=EITHER,
        commits=True,
    ),
    Attack(name="the engine is disposed of", after="connection.engine.dispose()", ends=(End.RIGHT,)),
    Attack(
        name="PRAGMA journal_mode",
        after="connection.execute(text('PRAGMA journal_mode = DELETE'))",
        databases=ONLY_SQLITE,
        ends=EITHER,
    ),
    Attack(
        name="PRAGMA foreign_keys",
        before="connection.execute(text('PRAGMA foreign_keys = ON'))",
        databases=ONLY_SQLITE,
        ends=(End.RIGHT,),
    ),
    Attack(
        name="PRAGMA query_only",
        after="connection.execute(text('PRAGMA query_only = ON'))",
        databases=ONLY_SQLITE,
        ends=(*EITHER, End.REFUSED),
        blames_handler=False,
    ),
    Attack(name="VACUUM", after="connection.execute(text('VACUUM'))", databases=ONLY_SQLITE),
    Attack(
        name="a read-only transaction",
        after="connection.execute(text('SET TRANSACTION READ ONLY'))",
        databases=ONLY_POSTGRESQL,
        ends=EITHER,
        anywhere=True,
        blames_handler=False,
    ),
    Attack(
        name="a statement timeout",
        after="connection.execute(text('SET LOCAL statement_timeout = 1'))",
        databases=ONLY_POSTGRESQL,
        ends=EITHER,
        blames_handler=False,
    ),
    Attack(
        name="LOCK TABLE",
        after="connection.execute(text(f'LOCK TABLE {MODEL.name} IN EXCLUSIVE MODE'))",
        databases=ONLY_POSTGRESQL,
        ends=(End.RIGHT,),
    ),
    Attack(
        name="PREPARE TRANSACTION",
        after="""connection.exec_driver_sql("PREPARE TRANSACTION 'mine'")""",
        databases=ONLY_POSTGRESQL,
    ),
    Attack(
        name="COMMIT in a DO block",
        after="connection.exec_driver_sql('DO $$ BEGIN COMMIT; END $$')",
        databases=ONLY_POSTGRESQL,
    ),
    Attack(
        name="another schema is searched",
        after="connection.execute(text('SET search_path TO pg_catalog'))",
        databases=ONLY_POSTGRESQL,
        ends=EITHER,
        blames_handler=False,
    ),
    Attack(
        name="another engine writes to the database",
        after="""
engine = sqlalchemy.create_engine(connection.engine.url, connect_args={'timeout': 0.05} if 'sqlite' in URL else {})
with engine.begin() as other:
    other.execute(OTHER.delete().where(OTHER.c.id == 7))
engine.dispose()""",
        ends=EITHER,
        anywhere=True,
        blames_handler=False,
    ),
    Attack(
        name="another engine reads the database",
        after="""
engine = sqlalchemy.create_engine(connection.engine.url)
with engine.connect() as other:
    assert other.execute(sqlalchemy.select(OTHER)).all()
engine.dispose()""",
        ends=(End.RIGHT,),
    ),
    Attack(
        name="another connection of the same engine writes",
        after="""
with connection.engine.begin() as other:
    if 'sqlite' in URL:
        other.exec_driver_sql('PRAGMA busy_timeout = 50')
    other.execute(OTHER.delete().where(OTHER.c.id == 7))""",
        ends=EITHER,
        anywhere=True,
        blames_handler=False,
    ),
    Attack(
        name="the row of the progress is deleted",
        after="connection.execute(text(f\"DELETE FROM opencqrs_progress WHERE group_name = '{GROUP}'\"))",
        names_event=False,
        blames_handler=False,
    ),
    Attack(
        name="the progress is moved to the head",
        after="connection.execute(text(f\"UPDATE opencqrs_progress SET position = 12 WHERE group_name = '{GROUP}'\"))",
        ends=EITHER,
        names_event=False,
        blames_handler=False,
    ),
    Attack(
        name="a thread of the handler ends the transaction later",
        extra="""
def end_later(connection):
    with contextlib.suppress(Exception):
        connection.get_transaction().rollback()
""",
        after="late = threading.Thread(target=end_later, args=(connection,))\nlate.start()\nlate.join()",
        databases=NOT_SQLITE,
        ends=EITHER,
    ),
    Attack(
        name="the connection is used by a thread after the commit",
        extra="""
def write_later(connection):
    time.sleep(0.05)
    with contextlib.suppress(Exception):
        connection.execute(insert(MODEL), {"position": 5, "what": "late"})
        connection.commit()
""",
        after="late = threading.Thread(target=write_later, args=(connection,))\nlate.start()",
        databases=ONLY_SQLITE,
        ends=EITHER,
    ),
)

"""Attacks that end the transaction that handlers share with the progress."""

from __future__ import annotations

from attacks.attack import (
    NOT_SQLITE,
    ONLY_MARIADB,
    ONLY_POSTGRESQL,
    ONLY_SQLITE,
    Attack,
    End,
    followed,
)

__all__ = ["ATTACKS"]

EITHER = (End.RIGHT, End.STOPPED)

# Each of these is also followed by an error, and by one that passes.
_ENDING = (
    Attack(name="connection.commit()", after="connection.commit()"),
    Attack(name="connection.rollback()", after="connection.rollback()"),
    Attack(name="connection.close()", after="connection.close()"),
    Attack(name="connection.invalidate()", after="connection.invalidate()"),
    Attack(name="connection.detach()", after="connection.detach()", ends=EITHER),
    Attack(name="the transaction's commit()", after="connection.get_transaction().commit()", commits=True),
    Attack(name="the transaction's rollback()", after="connection.get_transaction().rollback()"),
    Attack(name="the transaction's close()", after="connection.get_transaction().close()"),
    Attack(name="the statement COMMIT", after="connection.execute(text('COMMIT'))", commits=True),
    Attack(name="the statement ROLLBACK", after="connection.execute(text('ROLLBACK'))", commits=True),
    Attack(
        name="ROLLBACK and BEGIN",
        after="connection.execute(text('ROLLBACK'))\nconnection.execute(text('BEGIN'))",
        commits=True,
    ),
    Attack(
        name="COMMIT and BEGIN",
        after="connection.execute(text('COMMIT'))\nconnection.execute(text('BEGIN'))",
        commits=True,
    ),
    Attack(name="COMMIT on a cursor", after="driver.cursor().execute('COMMIT')", commits=True),
    Attack(name="the driver's commit()", after="driver.commit()", commits=True),
    Attack(name="the driver's rollback()", after="driver.rollback()", commits=True),
    Attack(
        name="the driver's rollback() and a new transaction",
        after="driver.rollback()\ndriver.cursor().execute('BEGIN')",
        commits=True,
    ),
    Attack(name="the driver's close()", after="driver.close()", anywhere=True),
    Attack(name="END", after="connection.exec_driver_sql('END')", databases=("sqlite", "postgresql"), commits=True),
    Attack(
        name="COMMIT AND CHAIN",
        after="connection.exec_driver_sql('COMMIT AND CHAIN')",
        databases=NOT_SQLITE,
        commits=True,
    ),
    Attack(name="ROLLBACK AND CHAIN", after="connection.exec_driver_sql('ROLLBACK AND CHAIN')", databases=NOT_SQLITE),
    Attack(
        name="the pool's connection is closed",
        after="connection.connection.close()",
    ),
    Attack(
        name="COMMIT from the cache of statements",
        before="driver.execute('COMMIT')\ndriver.execute('BEGIN')",
        after="driver.execute('COMMIT')",
        databases=ONLY_SQLITE,
        commits=True,
    ),
    Attack(
        name="the isolation level of the driver is switched, which commits",
        after="driver.isolation_level = None",
        databases=ONLY_SQLITE,
        commits=True,
        ends=EITHER,
    ),
    Attack(
        name="a block 'with driver', which commits",
        after="with driver:\n    pass",
        databases=("sqlite", "postgresql"),
        commits=True,
        ends=EITHER,
    ),
    Attack(
        name="executescript, which commits first",
        after="driver.executescript('SELECT 1;')",
        databases=ONLY_SQLITE,
        commits=True,
    ),
    Attack(
        name="CREATE TABLE",
        after="connection.execute(text(f'CREATE TABLE {MODEL.name}_more (id INTEGER)'))",
        ends=EITHER,
    ),
    Attack(
        name="TRUNCATE of another table",
        after="connection.execute(text(f'TRUNCATE TABLE {OTHER.name}'))",
        databases=NOT_SQLITE,
        ends=EITHER,
    ),
    Attack(
        name="a stored procedure that commits",
        setup=("CREATE PROCEDURE {table}_committing() COMMIT",),
        after="connection.execute(text(f'CALL {MODEL.name}_committing()'))",
        databases=ONLY_MARIADB,
        commits=True,
    ),
    Attack(
        name="COMMIT in an executable comment",
        after="connection.exec_driver_sql('/*!40000 COMMIT */')",
        databases=ONLY_MARIADB,
        commits=True,
    ),
    Attack(
        name="EXECUTE IMMEDIATE of COMMIT",
        after="""connection.exec_driver_sql("EXECUTE IMMEDIATE 'COMMIT'")""",
        databases=ONLY_MARIADB,
        commits=True,
    ),
    Attack(
        name="a compound statement that commits",
        after="connection.exec_driver_sql('BEGIN NOT ATOMIC COMMIT; END')",
        databases=ONLY_MARIADB,
        commits=True,
    ),
    Attack(
        name="SET autocommit",
        after="connection.execute(text('SET autocommit = 1'))",
        databases=ONLY_MARIADB,
        commits=True,
    ),
    Attack(
        name="START TRANSACTION",
        after="connection.execute(text('START TRANSACTION'))",
        databases=ONLY_MARIADB,
        commits=True,
    ),
    Attack(
        name="LOCK TABLES",
        after="connection.execute(text(f'LOCK TABLES {MODEL.name} WRITE'))",
        databases=ONLY_MARIADB,
        commits=True,
    ),
    Attack(name="ABORT", after="connection.exec_driver_sql('ABORT')", databases=ONLY_POSTGRESQL),
    Attack(
        name="its own server process is ended",
        after="connection.execute(text('SELECT pg_terminate_backend(pg_backend_pid())'))",
        databases=ONLY_POSTGRESQL,
        anywhere=True,
        blames_handler=False,
    ),
    Attack(
        name="its own server thread is ended",
        after="connection.execute(text('KILL CONNECTION_ID()'))",
        databases=ONLY_MARIADB,
        anywhere=True,
        blames_handler=False,
    ),
    *(
        Attack(
            name=f"its own server {what} is ended by {way}, which it catches",
            after=f"try:\n    {way}({sent})\nexcept Exception:\n    pass",
            databases=databases,
            anywhere=True,
            blames_handler=False,
        )
        for what, end, databases in (
            ("process", "SELECT pg_terminate_backend(pg_backend_pid())", ONLY_POSTGRESQL),
            ("thread", "KILL CONNECTION_ID()", ONLY_MARIADB),
        )
        for way, sent in (
            ("connection.execute", f"text('{end}')"),
            ("session.execute", f"text('{end}')"),
            ("driver.cursor().execute", f"'{end}'"),
        )
    ),
    Attack(
        name="INSERT OR ROLLBACK",
        after="connection.exec_driver_sql(f'INSERT OR ROLLBACK INTO {OTHER.name} VALUES (1)')",
        databases=ONLY_SQLITE,
        commits=True,
    ),
    Attack(
        name="INSERT OR ROLLBACK, and the error is caught",
        after="""
with contextlib.suppress(exc.IntegrityError):
    connection.exec_driver_sql(f'INSERT OR ROLLBACK INTO {OTHER.name} VALUES (1)')""",
        databases=ONLY_SQLITE,
        commits=True,
    ),
    Attack(
        name="a constraint ON CONFLICT ROLLBACK, and the error is caught",
        setup=(
            "CREATE TABLE {table}_strict (id INTEGER UNIQUE ON CONFLICT ROLLBACK)",
            "INSERT INTO {table}_strict VALUES (1)",
        ),
        after="""
with contextlib.suppress(exc.IntegrityError):
    connection.execute(text(f'INSERT INTO {MODEL.name}_strict VALUES (1)'))""",
        databases=ONLY_SQLITE,
        commits=True,
    ),
)

_SWALLOWED_REFUSALS = tuple(
    Attack(
        name=f"{call}, whatever it raises is caught",
        after=f"with contextlib.suppress(Exception):\n    {call}",
        ends=EITHER,
        commits=commits,
    )
    for call, commits in (
        ("connection.commit()", False),
        ("connection.rollback()", False),
        ("connection.close()", False),
        ("connection.get_transaction().commit()", True),
        ("connection.get_transaction().rollback()", True),
        ("connection.execute(text('COMMIT'))", True),
        ("connection.execute(text('ROLLBACK'))", True),
        ("driver.commit()", True),
        ("driver.rollback()", True),
    )
)

_SWITCHED = Attack(
    name="COMMIT while the authorizer is switched off",
    extra="""
def allowed(*_arguments):
    return 0
""",
    before="driver.execute('SELECT 1')",
    after="driver.set_authorizer(allowed)\ndriver.execute('COMMIT')\ndriver.set_authorizer(None)",
    databases=ONLY_SQLITE,
    commits=True,
)

ATTACKS = (*followed((*_ENDING, _SWITCHED)), *_SWALLOWED_REFUSALS)

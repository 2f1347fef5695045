"""What errors of drivers report: by code or text, bare or within SQLAlchemy's, and only those of their own driver."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql
import pytest
from sqlalchemy.exc import OperationalError

from opencqrs_py.adapters.sql.dialects.dialect import Dialect
from opencqrs_py.adapters.sql.dialects.faults import Fault
from opencqrs_py.adapters.sql.dialects.mariadb import MariaDbDialect
from opencqrs_py.adapters.sql.dialects.postgresql import PostgresqlDialect
from opencqrs_py.adapters.sql.dialects.sqlite import SqliteDialect


def of_sqlite(code: int, text: str = "no") -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def of_postgresql(state: str) -> psycopg.Error:
    return psycopg.errors.lookup(state)("no")


def of_mariadb(number: int) -> pymysql.Error:
    return pymysql.OperationalError(number, "no")


FAULTS = [
    (SqliteDialect, of_sqlite(sqlite3.SQLITE_READONLY), Fault.READ_ONLY),
    (SqliteDialect, of_sqlite(sqlite3.SQLITE_READONLY_DBMOVED), Fault.READ_ONLY),
    (SqliteDialect, of_sqlite(sqlite3.SQLITE_CORRUPT), Fault.DAMAGED),
    (SqliteDialect, of_sqlite(sqlite3.SQLITE_CORRUPT_INDEX), Fault.DAMAGED),
    (SqliteDialect, of_sqlite(sqlite3.SQLITE_NOTADB), Fault.DAMAGED),
    (SqliteDialect, of_sqlite(sqlite3.SQLITE_FULL), Fault.FULL),
    (SqliteDialect, of_sqlite(sqlite3.SQLITE_BUSY), Fault.BUSY),
    (SqliteDialect, of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT), Fault.BUSY),
    (SqliteDialect, of_sqlite(sqlite3.SQLITE_ERROR, "no such table: a"), Fault.NO_TABLE),
    (SqliteDialect, of_sqlite(sqlite3.SQLITE_ERROR, "no such column: a"), Fault.NO_COLUMN),
    (PostgresqlDialect, of_postgresql("42501"), Fault.DENIED),
    (PostgresqlDialect, of_postgresql("3F000"), Fault.DENIED),
    (PostgresqlDialect, of_postgresql("25006"), Fault.READ_ONLY),
    (PostgresqlDialect, of_postgresql("42703"), Fault.NO_COLUMN),
    (PostgresqlDialect, of_postgresql("42P01"), Fault.NO_TABLE),
    (PostgresqlDialect, of_postgresql("55P03"), Fault.LOCK_TIMEOUT),
    (PostgresqlDialect, of_postgresql("57014"), Fault.CANCELLED),
    (PostgresqlDialect, of_postgresql("40P01"), Fault.DEADLOCK),
    (PostgresqlDialect, of_postgresql("42P05"), Fault.UNPREPARED),
    (PostgresqlDialect, of_postgresql("26000"), Fault.UNPREPARED),
    (
        PostgresqlDialect,
        psycopg.OperationalError("received invalid response to SSL negotiation: J"),
        Fault.ANOTHER_KIND,
    ),
    *((MariaDbDialect, of_mariadb(number), Fault.DENIED) for number in (1044, 1142, 1143, 1227, 1370)),
    *((MariaDbDialect, of_mariadb(number), Fault.READ_ONLY) for number in (1290, 1792, 1836)),
    *((MariaDbDialect, of_mariadb(number), Fault.CANCELLED) for number in (1317, 1969)),
    (MariaDbDialect, of_mariadb(1054), Fault.NO_COLUMN),
    (MariaDbDialect, of_mariadb(1146), Fault.NO_TABLE),
    (MariaDbDialect, of_mariadb(1205), Fault.LOCK_TIMEOUT),
    (MariaDbDialect, of_mariadb(1213), Fault.DEADLOCK),
    (MariaDbDialect, pymysql.InternalError("Packet sequence number wrong - got 1 expected 0"), Fault.ANOTHER_KIND),
]
OTHERS = [
    (SqliteDialect, of_sqlite(sqlite3.SQLITE_CONSTRAINT)),
    (SqliteDialect, of_sqlite(sqlite3.SQLITE_ERROR, "a view says: no such table")),
    (SqliteDialect, ValueError("no such table: a")),
    (SqliteDialect, psycopg.errors.RaiseException("no such column: a")),
    (PostgresqlDialect, of_postgresql("23505")),
    (PostgresqlDialect, of_mariadb(1146)),
    (MariaDbDialect, of_mariadb(1062)),
    (MariaDbDialect, of_postgresql("42P01")),
]


@pytest.mark.parametrize(("dialect", "error", "fault"), FAULTS)
def test_a_fault_is_recognized_bare_and_within_the_error_of_sqlalchemy(
    dialect: type[Dialect], error: Exception, fault: Fault
) -> None:
    assert dialect().fault_of(error) is fault
    assert dialect().fault_of(OperationalError("SELECT 1", {}, error)) is fault


@pytest.mark.parametrize(("dialect", "error"), OTHERS)
def test_other_errors_and_those_of_other_drivers_report_no_fault(dialect: type[Dialect], error: Exception) -> None:
    assert dialect().fault_of(error) is None
    assert dialect().fault_of(OperationalError("SELECT 1", {}, error)) is None


@pytest.mark.parametrize("dialect", [SqliteDialect, PostgresqlDialect, MariaDbDialect])
def test_no_error_reports_no_fault(dialect: type[Dialect]) -> None:
    assert dialect().fault_of(None) is None


@pytest.mark.parametrize("dialect", [SqliteDialect, PostgresqlDialect, MariaDbDialect])
def test_each_fault_of_a_dialect_is_tested(dialect: type[Dialect]) -> None:
    tested = {fault for of, _, fault in FAULTS if of is dialect}
    assert tested == {*dialect.faults.values(), *(fault for _, fault in dialect.fault_texts)}

"""What the MariaDB guard detects in statements: writes outside the shadow, and the tables written to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from opencqrs_py.adapters.sql.shadows.guards import MariaDbGuard
from opencqrs_py.errors import RebuildWriteError

OUTSIDE = (
    "INSERT INTO live.notes VALUES (1)",
    "set statement max_statement_time = 5 for insert into live.notes values (1)",
    "SET STATEMENT sql_mode = 'for', max_statement_time = 5 FOR UPDATE live.notes SET n = 1",
    "SET STATEMENT max_statement_time = 5 FOR SELECT live.noted(1)",
    "BEGIN NOT ATOMIC INSERT INTO live.notes VALUES (1); END",
    "/* all */ begin not atomic INSERT INTO loan VALUES (1); END",
    "IF 1 = 1 THEN INSERT INTO live.notes VALUES (1); END IF",
    "again: WHILE @n < 3 DO INSERT INTO loan VALUES (1); END WHILE",
    "EXECUTE IMMEDIATE 'INSERT INTO live.notes VALUES (1)'",
    "CALL live.note(1)",
    "INSERT INTO live/**/.notes VALUES (1)",
    "/*!INSERT INTO live.notes VALUES (1) */",
    "/* its */ USE live",
    "SELECT live.noted(1)",
    "SELECT `live` . `noted` (1)",
    "SET @noted = live.noted(1)",
    "SET STATEMENT max_statement_time = 9 FOR INSERT INTO live.notes VALUES (1)",
    "WITH old AS (SELECT 1)\nDELETE FROM live.notes",
    "WITH live AS (SELECT 1) DELETE FROM live.notes",
    "UPDATE live, live.notes SET live.notes.n = 1",
    "UPDATE live, `set`, live.notes SET live.notes.n = 1",
    "UPDATE live, value, live.notes SET live.notes.n = 1",
    "UPDATE live, (SELECT CAST(1 AS CHAR CHARACTER SET utf8) AS n) AS one, live.notes SET live.notes.n = 1",
    "UPDATE loan SET live.n = 1",
    "UPDATE live SET n = live.noted (live.n)",
    "UPDATE live SET n = live.n; UPDATE live.notes SET n = 1",
    "DELETE live.notes FROM loan AS live, live.notes WHERE live.id = 1",
    "INSERT INTO live.notes (live) VALUES (1)",
    "INSERT INTO live SELECT n FROM live.notes",
    "INSERT INTO live VALUES (live.next_number())",
    "INSERT INTO live VALUES (NEXTVAL(live.numbers))",
    "INSERT INTO live VALUES (NEXT VALUE FOR live.numbers)",
)
INSIDE = {
    "INSERT INTO loan VALUES (1)": {"loan"},
    "SET STATEMENT max_statement_time = 5 FOR INSERT INTO loan VALUES (1)": {"loan"},
    "SET STATEMENT sql_mode = 'a for b' FOR UPDATE loan SET n = 1": {"loan"},
    "SET STATEMENT sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES') FOR INSERT INTO loan VALUES (1)": {"loan"},
    "SET STATEMENT max_statement_time = 5 FOR SELECT * FROM loan": set(),
    "WITH old AS (SELECT 1)\nSELECT * FROM old": set(),
    "SET @n = 1": set(),
    "BEGIN": set(),
    "SELECT * FROM live.notes FOR UPDATE": set(),
    "UPDATE live SET n = live.n + 1 WHERE live.id = 1": {"live"},
    "UPDATE `live` SET n=(`live`.n + 1) WHERE `live`.`id` = 1;": {"live"},
    "UPDATE loan AS live SET live.n = 1": {"loan"},
    "UPDATE loan, audit AS live SET live.n = loan.n": {"UPDATE", "loan", "audit", "AS", "live"},
    "DELETE FROM live WHERE live.id = 1": {"live"},
    "INSERT INTO live (n) VALUES (1) ON DUPLICATE KEY UPDATE n = live.n + 1": {"live"},
    "INSERT INTO live SELECT live.n + 1 FROM live": {"live"},
}


class _Server:
    """A stand-in for a connection to one of two databases."""

    @contextmanager
    def reading(self) -> Iterator[Any]:
        yield self

    def exec_driver_sql(self, asked: str) -> Any:
        self._found = ["live", "shadow"] if asked == "SHOW DATABASES" else ["shadow"]
        return self

    def scalar_one(self) -> str:
        return self._found[0]

    def scalars(self) -> list[str]:
        return self._found


@pytest.fixture
def guard() -> MariaDbGuard:
    return MariaDbGuard(_Server())  # type: ignore[arg-type]


@pytest.mark.parametrize("statement", OUTSIDE)
def test_a_statement_that_may_write_outside_the_shadow_is_refused_however_it_begins(
    guard: MariaDbGuard, statement: str
) -> None:
    with pytest.raises(RebuildWriteError, match=r"OCQ-634.*outside of the new tables"):
        guard.see(statement, of_handler=True)


@pytest.mark.parametrize("statement", INSIDE)
def test_the_table_that_a_statement_writes_to_is_recognised_however_it_begins(
    guard: MariaDbGuard, statement: str
) -> None:
    guard.see(statement, of_handler=True)
    assert guard._seen == INSIDE[statement]

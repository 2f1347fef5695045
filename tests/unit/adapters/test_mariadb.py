"""MariaDB: which statements end a transaction, and the identity of events."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.adapters.sql.dialects.mariadb import commits_by_itself, identity_of


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (a INTEGER)",
        "\n  create or replace view v as select 1",
        "/* mine */ -- too\n# and this\nDROP TABLE t",
        "ALTER TABLE t ADD b INTEGER",
        "TRUNCATE t",
        "RENAME TABLE t TO u",
        "BEGIN",
        "start transaction",
        "COMMIT",
        "ROLLBACK",
        "LOCK TABLES t WRITE",
        "SET autocommit = 1",
        "SET @@session.autocommit=0",
        "ANALYZE TABLE t",
    ],
)
def test_some_statements_commit_implicitly(statement: str) -> None:
    assert commits_by_itself(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "SELECT 1",
        "INSERT INTO t VALUES ('CREATE TABLE')",
        "UPDATE created SET a = 1",
        "CREATE TEMPORARY TABLE t (a INTEGER)",
        "DROP TEMPORARY TABLE t",
        "SAVEPOINT s",
        "ROLLBACK TO SAVEPOINT s",
        "RELEASE SAVEPOINT s",
        "SET @a = 1",
        "WITH commits AS (SELECT 1) SELECT * FROM commits",
        "/* CREATE */ SELECT 1",
        "started",
    ],
)
def test_most_statements_do_not_commit_implicitly(statement: str) -> None:
    assert not commits_by_itself(statement)


TEXT = st.text(st.sampled_from("a0:1é😀"), max_size=4)


@given(one=st.tuples(TEXT, TEXT), other=st.tuples(TEXT, TEXT))
def test_events_have_the_same_identity_if_source_and_id_are_the_same(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert (identity_of(*one) == identity_of(*other)) == (one == other)


def test_an_identity_is_computed_as_on_the_server() -> None:
    assert identity_of("s😀", "größe") == "größe".encode() + sha256("2:s😀größe".encode()).digest()[:16]


NUMBER = st.integers(0, 10**12)


@given(source=TEXT, one=NUMBER, other=NUMBER)
def test_identities_sort_in_the_order_of_the_ids(source: str, one: int, other: int) -> None:
    assert (identity_of(source, f"{one:013}") < identity_of(source, f"{other:013}")) == (one < other)


@given(names=st.lists(st.text(max_size=30), min_size=2, max_size=2, unique=True))
def test_ids_with_the_same_prefix_have_different_identities(names: list[str]) -> None:
    one, other = (identity_of("s", "x" * 20 + name) for name in names)
    assert one != other
    assert one[:20] == other[:20]
    assert len(one) == len(other) == 36

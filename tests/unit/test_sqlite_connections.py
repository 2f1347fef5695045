"""How the tests detect SQLite connections left open."""

from __future__ import annotations

import gc
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import pytest
from support.sqlite import WatchedConnection, is_open, opened_connections, rows_of


def drop_a_connection() -> None:
    sqlite3.connect(":memory:", factory=WatchedConnection)
    gc.collect()


def test_a_connection_dropped_while_open_causes_a_warning_with_the_line_that_opened_it() -> None:
    opened_in = (
        r"unclosed database, opened in .*::test_a_connection_dropped_while_open.*, at test_sqlite_connections\.py"
    )
    with pytest.warns(ResourceWarning, match=opened_in):
        drop_a_connection()


def test_a_closed_or_never_opened_connection_causes_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        sqlite3.connect(":memory:").close()
        with pytest.raises(sqlite3.OperationalError):
            sqlite3.connect(tmp_path / "nowhere" / "at all.db")
        gc.collect()
    assert caught == []


def test_the_connections_that_a_block_opens_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with opened_connections() as opened, closing(sqlite3.connect(file)) as first:
        first.execute("CREATE TABLE t (x)")
        first.execute("INSERT INTO t VALUES (7)")
        first.commit()
        assert rows_of(file, "SELECT x FROM t") == [(7,)]
        assert [is_open(each) for each in opened] == [True, False]

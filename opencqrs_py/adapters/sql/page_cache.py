"""SQLite's page cache: larger while many events are added, as before and after it for everything else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

__all__ = ["large_cache"]

_BYTES = 128 * 1024 * 1024
_KIBIBYTE = 1024  # SQLite takes a negative size for KiB, a positive one for pages


@contextmanager
def large_cache(connection: Connection) -> Iterator[None]:
    """Hold up to 128 MiB of an SQLite database in memory during the block; does nothing on others.

    Ids and subjects come in no order, so each event changes a page somewhere in the middle of each of their indexes.
    By default SQLite holds 2 MiB of pages; the indexes of 100,000 events are larger, and from then on it would read
    a page and write another one away for each event. At the end of the block the memory is free again for whatever
    the process does next. There is one writer at a time, so that one such cache is in use for a file, however many
    processes there are.
    """
    if connection.dialect.name != "sqlite":
        yield
        return
    before: int = connection.exec_driver_sql("PRAGMA cache_size").scalar_one()
    page: int = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
    if (before * page if before >= 0 else -before * _KIBIBYTE) >= _BYTES:
        yield
        return
    connection.exec_driver_sql(f"PRAGMA cache_size = {-_BYTES // _KIBIBYTE}")
    try:
        yield
    finally:
        with suppress(DBAPIError):  # then the connection is broken, and what it held gone with it
            connection.exec_driver_sql(f"PRAGMA cache_size = {before}")

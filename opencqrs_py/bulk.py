"""Bulk writes for handlers: many rows by one statement, in the transaction that holds the progress.

For handlers that take columns or lists::

    from opencqrs_py import bulk

    bulk.upsert(connection, "loans", rows, keys="isbn", add="loans")
"""

from opencqrs_py.adapters.sql.bulk.bulk import upsert

__all__ = ["upsert"]

"""Implementations of the ports on SQL databases through SQLAlchemy: SQLite, PostgreSQL, MariaDB, and others."""

from sqlalchemy import Connection, Engine

from opencqrs_py.adapters.sql.control import SqlControlStore
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects import mariadb, postgresql, sqlite  # noqa: F401 each registers its dialect
from opencqrs_py.adapters.sql.dialects.dialect import Dialect, dialect_named
from opencqrs_py.adapters.sql.dialects.faults import Fault
from opencqrs_py.adapters.sql.event_store import SqlEventStore
from opencqrs_py.adapters.sql.job_inputs import SqlSelector
from opencqrs_py.adapters.sql.jobs import SqlJobStore
from opencqrs_py.adapters.sql.mapped import MappedEventSource
from opencqrs_py.adapters.sql.progress import SqlProgressTracker
from opencqrs_py.adapters.sql.snapshots import rows_in, table_rows
from opencqrs_py.adapters.sql.tables import SchemaError
from opencqrs_py.adapters.sql.transactions import DatabaseTransactions, unit_of

__all__ = [
    "Connection",
    "Database",
    "DatabaseTransactions",
    "Dialect",
    "Engine",
    "Fault",
    "MappedEventSource",
    "SchemaError",
    "SqlControlStore",
    "SqlEventStore",
    "SqlJobStore",
    "SqlProgressTracker",
    "SqlSelector",
    "dialect_named",
    "rows_in",
    "table_rows",
    "unit_of",
]

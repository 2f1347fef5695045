"""Ports fulfilled on SQL databases through SQLAlchemy: SQLite, PostgreSQL and MariaDB."""

from sqlalchemy import Engine

from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.event_store import SqlEventStore
from opencqrs_py.adapters.sql.mapped import MappedEventSource
from opencqrs_py.adapters.sql.progress import SqlProgressTracker
from opencqrs_py.adapters.sql.units import DatabaseTransactions

__all__ = ["Database", "DatabaseTransactions", "Engine", "MappedEventSource", "SqlEventStore", "SqlProgressTracker"]

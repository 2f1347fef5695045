"""Ports fulfilled on SQL databases through SQLAlchemy: SQLite and PostgreSQL."""

from sqlalchemy import Engine

from opencqrs_py.adapters.sql.databases import Database, DatabaseTransactions
from opencqrs_py.adapters.sql.event_store import SqlEventStore
from opencqrs_py.adapters.sql.progress import SqlProgressTracker

__all__ = ["Database", "DatabaseTransactions", "Engine", "SqlEventStore", "SqlProgressTracker"]

"""Kinds of database: how each is called, which driver speaks to it, and what its statements look like."""

from __future__ import annotations

from types import MappingProxyType

from sqlalchemy import Connection

__all__ = ["DRIVERS", "EXTRAS", "kind_named", "kind_of", "mark_of"]

DRIVERS = MappingProxyType({"mariadb": "mysql+pymysql", "postgresql": "postgresql+psycopg", "sqlite": "sqlite"})
"""SQLAlchemy's name of the dialect and driver that is used when a URL names no driver."""

EXTRAS = MappingProxyType({"mariadb": "mariadb", "postgresql": "postgresql"})
"""The extra of this package that installs the driver."""


def kind_named(name: str) -> str:
    """Return the kind that SQLAlchemy's name of a dialect stands for: MariaDB is also spoken to as if it was MySQL."""
    return "mariadb" if name == "mysql" else name


def kind_of(connection: Connection) -> str:
    """Return the kind of database that a connection leads to."""
    return kind_named(connection.dialect.name)


def mark_of(kind: str) -> str:
    """Return what stands for a value in the statements of a kind of database."""
    return "?" if kind == "sqlite" else "%s"

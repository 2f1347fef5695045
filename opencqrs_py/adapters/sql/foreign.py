"""Tables of other systems: whether a mapping fits them, and how their columns are read as parts of an event."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, inspect, types
from sqlalchemy.exc import NoSuchTableError

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.mapping import TableMapping

_NAMED = 10  # most names in a message


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A table as statements name it.

    Attributes:
        name: The table, quoted.
        position: The column of positions, quoted.
        selected: What stands in a ``SELECT`` for the parts of an event: position, id, source, subject, type, time,
            data, metadata.
        subject: Expression for the subject; compares character by character.
        type: Expression for the type; likewise.
    """

    name: str
    position: str
    selected: str
    subject: str
    type: str


def fitted(database: Database, connection: Connection, mapping: TableMapping) -> ForeignTable:
    """Return the table of a mapping, compared with what is there.

    Raises:
        EventStoreError: OCQ-313, if the table or a column is not there; OCQ-339, if a column is of no use.
    """
    schema, _, table = mapping.table.rpartition(".")
    found = _columns(database, connection, mapping)
    missing = [f"{part} ({column})" for part, column in mapping.columns.items() if column not in found]
    if missing:
        what = f"the table '{mapping.table}' has no column for {', '.join(missing)}; it has {listed(found)}"
        raise EventStoreError("OCQ-313", what, database.label, f"fix {mapping.said_in}")
    _check_types(database, mapping, found)
    return _named(database, connection, mapping, table, schema, found)


def in_utc(moment: str | None) -> str | None:
    """Return the text of a time; one without a zone, as SQLite's own functions write it, is taken for UTC.

    What is no time at all comes back as it is.
    """
    if moment is None or moment.endswith("Z"):
        return moment
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{found.isoformat()}Z" if found.tzinfo is None else moment


def _columns(database: Database, connection: Connection, mapping: TableMapping) -> dict[str, Any]:
    inspector = inspect(connection)
    schema, _, table = mapping.table.rpartition(".")
    try:
        return {column["name"]: column["type"] for column in inspector.get_columns(table, schema or None)}
    except NoSuchTableError:
        there = [*inspector.get_table_names(schema or None), *inspector.get_view_names(schema or None)]
        what = f"there is no table '{table}'; there is {listed(there)}"
        raise EventStoreError("OCQ-313", what, database.label, f"fix {mapping.said_in}.table") from None


def _check_types(database: Database, mapping: TableMapping, found: dict[str, Any]) -> None:
    wanted: dict[str, tuple[type[Any], ...]] = {
        "position": (types.Integer,),
        "time": (types.DateTime, types.String, types.NullType),
    }
    for part, kinds in wanted.items():
        column = mapping.columns.get(part)
        if column is not None and not isinstance(found[column], kinds):
            what = f"the column '{column}' of '{mapping.table}' is {found[column]}, which is no {part}"
            fix = {
                "position": "name a column of whole numbers",
                "time": "name a column of timestamps or RFC 3339 texts",
            }
            raise EventStoreError("OCQ-339", what, database.label, f"{fix[part]} in {mapping.said_in}.{part}")


def _named(
    database: Database, connection: Connection, mapping: TableMapping, table: str, schema: str, found: dict[str, Any]
) -> ForeignTable:
    quote = connection.dialect.identifier_preparer.quote_identifier
    dialect = database.dialect

    def text_of(part: str) -> str:
        column = mapping.columns.get(part)
        return "NULL" if column is None else dialect.as_text(quote(column), found[column])

    parts = [text_of(part) for part in ("id", "source", "subject", "type", "time", "data", "metadata")]
    subject = f"COALESCE({text_of('subject')}, '/')"
    return ForeignTable(
        name=f"{quote(schema)}.{quote(table)}" if schema else quote(table),
        position=quote(mapping.position),
        selected=", ".join([quote(mapping.position), *parts]),
        subject=f"({dialect.exact.format(subject)})",
        type=f"({dialect.exact.format(text_of('type'))})",
    )


def listed(names: Any) -> str:
    """Return the first few names, sorted."""
    ordered = sorted(names)
    more = [f"and {len(ordered) - _NAMED} more"] if len(ordered) > _NAMED else []
    return ", ".join([*ordered[:_NAMED], *more]) or "none"

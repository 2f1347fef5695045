"""The tables of the three read models, and the upsert that fills them."""

from collections.abc import Sequence

from sqlalchemy import BigInteger, Boolean, Column, Integer, MetaData, String, Table
from sqlalchemy.dialects.sqlite import Insert, insert

TABLES = MetaData()

churn = Table(
    "churn",
    TABLES,
    Column("path", String, primary_key=True),
    Column("commits", Integer),
    Column("lines_added", Integer),
    Column("lines_deleted", Integer),
    Column("authors", Integer),
    Column("last_change", String),
    Column("deleted", Boolean),
    Column("position", BigInteger),
)
churn_authors = Table(
    "churn_authors",
    TABLES,
    Column("path", String, primary_key=True),
    Column("author", String, primary_key=True),
)
churn_renames = Table(
    "churn_renames",
    TABLES,
    Column("path", String, primary_key=True),
    Column("previous_path", String),
    Column("position", BigInteger),
)
activity = Table(
    "activity",
    TABLES,
    Column("week", String, primary_key=True),
    Column("commits", Integer),
    Column("files", Integer),
    Column("lines", Integer),
)
hotspots = Table(
    "hotspots",
    TABLES,
    Column("folder", String, primary_key=True),
    Column("month", String, primary_key=True),
    Column("changes", Integer),
    Column("lines", Integer),
)


def upsert(table: Table, *, add: Sequence[str] = (), replace: Sequence[str] = ()) -> Insert:
    """Return a statement that inserts a row, or updates the existing one.

    Args:
        table: The table, whose primary key identifies the row.
        add: Columns whose new value is added to the old one.
        replace: Columns whose new value replaces the old one.
    """
    new = insert(table)
    sums = {name: table.c[name] + new.excluded[name] for name in add}
    latest = {name: new.excluded[name] for name in replace}
    return new.on_conflict_do_update(index_elements=list(table.primary_key), set_={**sums, **latest})

"""The ids that the input of a job selects, read page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.jobs.ports import Selector
from opencqrs_py.model.job import JobId, JobPage
from opencqrs_py.processing.ports import UnitOfWork


class SqlSelector(Selector):
    """Executes selects."""

    def __init__(self, database: Database | None) -> None:
        self._database = database

    def ids(self, statement: object, page: JobPage, unit: UnitOfWork | None) -> Sequence[JobId] | None:
        """Return a page."""
        if not isinstance(statement, Select):
            return None
        column: Any = statement.selected_columns[0]
        if page.after is not None:
            statement = statement.where(column > page.after)
        if page.ids is not None:
            statement = statement.where(column.in_(page.ids))
        if unit is None:
            return []
        return list(unit.connection.execute(statement.order_by(column).limit(page.limit)).scalars())

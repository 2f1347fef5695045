"""Statements that the inputs of jobs return: the ids that they select, page by page."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
    Enum,
    Executable,
    Integer,
    Select,
    SelectBase,
    String,
    Uuid,
    literal,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine
from typing_extensions import override

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.errors import JobError
from opencqrs_py.jobs.ports import Selector
from opencqrs_py.model.job import JobId, JobPage
from opencqrs_py.model.naming import storable
from opencqrs_py.processing.ports import UnitOfWork

_MOST_NAMED = 1_000  # ids in a statement
_LARGEST = 2**63 - 1
_WHOLE = re.compile("0|-?[1-9][0-9]{0,18}")  # as many digits as the largest has; Python refuses to convert thousands
_LIMITS = ("_limit_clause", "_offset_clause", "_fetch_clause", "_distinct_on")  # of a select: it depends on its order
_CASTS = "select a key that is a whole number, a text or a UUID, or cast() it to one"


@dataclass(frozen=True, slots=True)
class _Kind:
    """The kind of the ids of a column.

    Attributes:
        type: The type as which values are sent.
        sent: Returns an id as the database takes it; ``None`` for one that the column cannot hold.
    """

    type: TypeEngine[Any]
    sent: Callable[[JobId], Any]


class SqlSelector(Selector):
    """Executes statements, each of which is read by its key: a page is what comes after the last id of the one before.

    The database compares and sorts the ids, both in the column's own collation. The statement stays as it is, within
    another one, so that its groups keep their meaning. One with its own limit is read at once. An id that a
    statement selects twice counts once, and NULL is left out.

    Args:
        database: What to read from without a transaction; ``None`` if there is none.
    """

    def __init__(self, database: Database | None) -> None:
        self._database = database
        self._place = "the input of the job" if database is None else database.label

    @override
    def limited(self, statement: object, unit: UnitOfWork | None) -> Sequence[JobId] | None:
        if not isinstance(statement, SelectBase) or not _is_limited(statement):
            return None
        self._require_one_column(statement)
        return self._read(unit, lambda connection: self._all(connection, cast("Executable", statement)))

    @override
    def ids(self, statement: object, page: JobPage, unit: UnitOfWork | None) -> Sequence[JobId] | None:
        if not isinstance(statement, Executable | SelectBase):
            return None
        if not isinstance(statement, SelectBase):
            what = f"the input of the job returned {_kind_of_statement(statement)}, which cannot be read page by page"
            raise JobError("OCQ-665", what, self._place, "return a select() of the key, such as select(invoices.c.id)")
        self._require_one_column(statement)
        return self._read(unit, lambda connection: self._page(connection, statement, page))

    def _require_one_column(self, statement: SelectBase) -> None:
        columns = statement.selected_columns
        if len(columns) != 1:
            what = f"the input of the job selects {len(columns)} columns, but ids need one"
            raise JobError("OCQ-665", what, self._place, "select the key alone, such as select(invoices.c.id)")

    def _read(self, unit: UnitOfWork | None, read: Callable[[Connection], list[JobId]]) -> list[JobId]:
        """Return what is read in a transaction, or by a connection of our own if there is none."""
        if unit is not None:
            return read(unit.connection)
        database = self._readable()
        with database.reading() as connection:
            try:
                return read(connection)
            except DBAPIError as error:
                if database.is_outage(error):
                    raise
                failed = error
        raise failed  # unchanged: in the block it would be explained as an error of our own statement

    def _all(self, connection: Connection, statement: Executable) -> list[JobId]:
        values = connection.execute(statement).scalars()
        return list(dict.fromkeys(self._id(value) for value in values if value is not None))

    def _page(self, connection: Connection, statement: SelectBase, page: JobPage) -> list[JobId]:
        column, query = _of_key(statement)
        kind = self._kind(connection, column, query)
        if kind is None:
            return []
        if page.ids is not None:
            sent = [value for each in page.ids if (value := kind.sent(each)) is not None]
            parts = (sent[start : start + _MOST_NAMED] for start in range(0, len(sent), _MOST_NAMED))
            named = (query.where(column.in_([literal(value, kind.type) for value in part])) for part in parts)
            return [self._id(value) for each in named for value in connection.execute(each).scalars()]
        if page.after is not None:
            query = query.where(column > literal(self._sent_after(kind, page.after), kind.type))
        ids = list(map(self._id, connection.execute(query.limit(page.limit)).scalars()))
        distinct = list(dict.fromkeys(ids))
        if len(distinct) == len(ids) or len(ids) < page.limit:
            return distinct
        # A statement that locks its rows selects an id again for each of them: there is no DISTINCT with a lock.
        rest = self._page(connection, statement, JobPage(page.limit - len(distinct), distinct[-1]))
        return [*distinct, *rest]

    def _kind(self, connection: Connection, column: ColumnElement[Any], query: Select[Any]) -> _Kind | None:
        """Return the kind of the ids; if the column does not show it, by one of them; ``None`` without any."""
        type_ = column.type
        if isinstance(type_, NullType):
            first = connection.execute(query.order_by(None).limit(1)).scalar()
            if first is None:
                return None
            id_ = self._id(first)
            type_ = Uuid() if isinstance(first, uuid.UUID) else BigInteger() if isinstance(id_, int) else String()
        kind = _kind_of(type_, connection.dialect)
        if kind is None:
            what = f"the input of the job selects a column of the type {type_!r}"
            raise JobError("OCQ-665", what, self._place, _CASTS)
        return kind

    def _sent_after(self, kind: _Kind, after: JobId) -> Any:
        value = kind.sent(after)
        if value is None:
            what = f"the input of the job selects ids of another type than before, when {after!r} was the last one"
            raise JobError("OCQ-665", what, self._place, "cancel the run, and start it again")
        return value

    def _id(self, value: object) -> JobId:
        if isinstance(value, uuid.UUID):
            return str(value)
        if isinstance(value, bool) or not isinstance(value, int | str):
            what = f"the input of the job selects values of the type {type(value).__name__}"
            raise JobError("OCQ-665", what, self._place, _CASTS)
        return value

    def _readable(self) -> Database:
        if self._database is None:
            what = "the input of the job returned a select, but there is no database to read from"
            raise JobError("OCQ-665", what, self._place, "set database.url, or return ids")
        return self._database


def _of_key(statement: SelectBase) -> tuple[ColumnElement[Any], Select[Any]]:
    """Return the column of a statement's ids, and a query for them in their order."""
    locks = getattr(statement, "_for_update_arg", None) is not None
    if isinstance(statement, Select) and locks and not _is_limited(statement):
        # Within another statement it would lock all rows, not those of the page.
        column = next(iter(statement.selected_columns))
        return column, statement.where(column.is_not(None)).order_by(None).order_by(column)
    if isinstance(statement, Select) and getattr(next(iter(statement.selected_columns)), "is_literal", False):
        statement = statement.with_only_columns(
            next(iter(statement.selected_columns)).label("id")
        )  # else it has no name
    if not _is_limited(statement) and hasattr(statement, "order_by"):
        statement = statement.order_by(None)  # which would sort all that it selects for each page
    column = next(iter(statement.subquery("selected").c))
    return column, select(column).distinct().where(column.is_not(None)).order_by(column)


def _is_limited(statement: SelectBase) -> bool:
    return any(_is_given(getattr(statement, name, None)) for name in _LIMITS)


def _is_given(clause: object) -> bool:
    return bool(clause) if isinstance(clause, tuple) else clause is not None


def _kind_of(type_: TypeEngine[Any], dialect: Dialect) -> _Kind | None:
    if isinstance(type_, TypeDecorator):
        base = _kind_of(type_.impl_instance, dialect)
        return None if base is None else _Kind(type_, _decorated(type_, base.sent, dialect))
    if isinstance(type_, Integer):
        return _Kind(BigInteger(), _whole)  # the largest, as an id may not fit the column
    if isinstance(type_, Uuid):
        return _Kind(type_, _uuid if type_.as_uuid else _uuid_text)
    if isinstance(type_, String) and not isinstance(type_, Enum):
        return _Kind(String(), _text)
    return None


def _decorated(type_: TypeDecorator[Any], sent: Callable[[JobId], Any], dialect: Dialect) -> Callable[[JobId], Any]:
    """Return what sends ids of a user-defined type, whose values may differ from what is stored."""

    def send(id_: JobId) -> Any:
        value = sent(id_)
        value = id_ if value is None else value
        try:
            type_.process_bind_param(value, dialect)
        except Exception:  # the user's code: it cannot be one of its ids
            return None
        return value

    return send


def _whole(id_: JobId) -> int | None:
    """Return a whole number; on the command line it is a text."""
    if isinstance(id_, str) and not _WHOLE.fullmatch(id_):
        return None
    return number if -_LARGEST - 1 <= (number := int(id_)) <= _LARGEST else None


def _text(id_: JobId) -> str | None:
    text = str(id_)
    return text if storable(text) == text else None


def _uuid(id_: JobId) -> uuid.UUID | None:
    try:
        return uuid.UUID(str(id_))
    except ValueError:
        return None


def _uuid_text(id_: JobId) -> str | None:
    found = _uuid(id_)
    return None if found is None else str(found)


def _kind_of_statement(statement: object) -> str:
    name = type(statement).__name__
    return {"TextClause": "a text()", "Query": "a Query of a session"}.get(name, f"a statement of the type {name}")

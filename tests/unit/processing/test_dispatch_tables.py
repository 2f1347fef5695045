"""Handlers that take tables: what they are called with, their other parameters, and what fails where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pydantic import BaseModel, model_validator

from opencqrs_py import AfterCommit, Event, Metadata, Upcast, event_type
from opencqrs_py.errors import EventFormatError, HandlerSignatureError
from opencqrs_py.model import (
    AroundMark,
    Handler,
    HandlerMark,
    Interceptor,
    Invocation,
    Partition,
    ProcessingContext,
    Surrounded,
    Upcaster,
)
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.selection import ATTRIBUTES
from opencqrs_py.processing.binding import NothingProvided, Work, bind
from opencqrs_py.processing.dispatch import ChunkFailedError, Dispatcher
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.reading import Reading, Upcasters

if TYPE_CHECKING:
    from pyarrow import Table
    from sqlalchemy import Connection


@dataclass(frozen=True)
class BookEvent:
    isbn: str


@event_type("lent")
@dataclass(frozen=True)
class Lent(BookEvent):
    reader: str = ""


@event_type("returned")
@dataclass(frozen=True)
class Returned(BookEvent):
    late: bool


CLASSES = (Lent, Returned)
TWICE = "table asks for the events of a chunk as columns, and "


def event(position: int, kind: str = "lent", payload: str = '{"isbn":"1"}') -> Event:
    return Event(position, str(position), "s", f"/books/{position}", kind, None, "application/json", payload, None)


def as_rows(events: Sequence[Event]) -> Chunk:
    whole = {one.position: one for one in events}
    return Chunk([(one.position, one.type, one.payload, one.subject, one.time) for one in events], whole.__getitem__)


class Tables:
    """Handlers that record the tables that they get."""

    def __init__(self, unit: Any) -> None:
        self.unit = unit
        self.calls: list[tuple[str, dict[str, list[Any]]]] = []
        self.bound: list[Any] = []

    def add(self, call: Callable[..., Any], events: type | None = None, types: Sequence[str] = ()) -> None:
        handler = Handler(HandlerMark("group", tuple(types), None, events), call, "handlers.py:7")
        self.bound.append(bind(handler, NothingProvided()))

    def takes(self, events: type | None = None, types: Sequence[str] = (), *, name: str = "table") -> None:
        def handle(table: pa.Table) -> None:
            self.calls.append((name, table.to_pydict()))

        self.add(handle, events, types)

    def handle(self, *events: Event, rows: bool = True, reading: Reading | None = None, around: Any = None) -> int:
        dispatcher = Dispatcher(self.bound, CLASSES, reading, around)
        return dispatcher.handle(as_rows(events) if rows else Chunk(events), self.work())

    def work(self) -> Work:
        return Work("group", Partition(1, 0), self.unit)

    def columns(self, name: str) -> list[Any]:
        return [call[1][name] for call in self.calls]


@pytest.fixture
def tables(unit: Any) -> Tables:
    return Tables(unit)


@pytest.fixture(params=["in columns", "one by one"])
def around(request: pytest.FixtureRequest) -> Interceptors | None:
    """No interceptor, or one, with which each event is processed separately."""

    def around_handler(invocation: Invocation) -> Iterator[None]:
        yield

    mark = AroundMark(Surrounded.HANDLER)
    return Interceptors([Interceptor(mark, around_handler, "x")]) if request.param == "one by one" else None


# What they get


def test_a_handler_gets_the_events_of_a_chunk_as_one_table(tables: Tables, around: Any) -> None:
    tables.takes(Lent)
    other = event(5, "never-heard-of", "no JSON")
    assert tables.handle(event(3), event(4, payload='{"isbn":"2","reader":"ada"}'), other, around=around) == 2
    assert tables.calls == [
        (
            "table",
            {
                "isbn": ["1", "2"],
                "reader": ["", "ada"],
                "position": [3, 4],
                "subject": ["/books/3", "/books/4"],
                "time": [None, None],
            },
        )
    ]


def test_each_handler_gets_the_events_of_its_class(tables: Tables, around: Any) -> None:
    tables.takes(Lent, name="lent")
    tables.takes(Returned, name="returned")
    tables.takes(types=["*t"], name="raw")
    returned = event(2, "returned", '{"isbn":"2","late":true}')
    assert tables.handle(event(1), returned, event(3), event(4, "unwanted"), around=around) == 3
    assert [(name, found["position"]) for name, found in tables.calls] == [
        ("lent", [1, 3]),
        ("returned", [2]),
        ("raw", [1, 3]),
    ]
    assert tables.calls[2][1]["data"] == ['{"isbn":"1"}'] * 2


def test_a_table_handler_is_not_called_for_a_chunk_without_matching_events(tables: Tables, around: Any) -> None:
    tables.takes(Lent)
    assert tables.handle(event(1, "returned"), around=around) == 0
    assert tables.calls == []


def test_a_parent_class_has_the_columns_that_its_children_share(tables: Tables, around: Any) -> None:
    tables.takes(BookEvent)
    assert tables.handle(event(1), event(2, "returned", '{"isbn":"2","late":true}'), around=around) == 2
    assert tables.columns("isbn") == [["1", "2"]]
    with pytest.raises(ChunkFailedError) as caught:
        tables.handle(event(1), event(2, "returned", '{"isbn":"2"}'), around=around)  # invalid for its own class
    assert caught.value.index == 1


class Media(BaseModel):
    isbn: str

    @model_validator(mode="wrap")
    @classmethod
    def of_kind(cls, data: Any, handler: Any) -> Any:
        if cls is Media and isinstance(data, dict) and "pages" in data:
            return Book.model_validate(data)
        return handler(data)


class Book(Media):
    pages: int


def test_a_table_contains_the_events_that_decode_to_its_class(tables: Tables) -> None:
    marked = event_type("media")(Media)
    tables.takes(Book)
    dispatcher = Dispatcher(tables.bound, [marked])
    book = event(2, "media", '{"isbn":"2","pages":7}')
    assert dispatcher.handle(Chunk([event(1, "media"), book]), tables.work()) == 1
    assert tables.columns("pages") == [[7]]
    assert tables.columns("position") == [[2]]


def test_with_types_the_class_only_defines_the_columns(tables: Tables, around: Any) -> None:
    tables.takes(BookEvent, types=["old.*"])
    assert tables.handle(event(1, "old.lent"), event(2, "lent"), around=around) == 1
    assert tables.columns("isbn") == [["1"]]


@pytest.mark.parametrize("kind", [Lent, None])
def test_events_are_unwrapped_and_upcast_before_they_become_columns(tables: Tables, kind: type | None) -> None:
    def renamed(data: dict[str, Any]) -> list[Upcast]:
        return [Upcast("lent", {"isbn": isbn}) for isbn in data["isbns"]]

    tables.takes(kind, types=["lent"])
    reading = Reading(Upcasters([Upcaster(("old",), renamed, "here")], NothingProvided()), enveloped=True)
    old = event(2, "old", '{"payload": {"isbns": ["2", "3"]}}')
    assert tables.handle(event(1, payload='{"payload": {"isbn": "1"}}'), old, reading=reading) == 2
    assert tables.columns("position") == [[1, 2, 2]]
    assert tables.columns("isbn" if kind else "data") == [
        ["1", "2", "3"] if kind else [f'{{"isbn":"{n}"}}' for n in "123"]
    ]


def test_a_table_handler_may_take_parts_of_the_transaction(tables: Tables, around: Any) -> None:
    seen: list[Any] = []

    def handle(
        connection: Connection, table: pa.Table, after_commit: AfterCommit, *, context: ProcessingContext
    ) -> None:
        seen.append((connection, table.num_rows, context))
        after_commit(lambda: None)

    tables.add(handle, Lent)
    dispatcher = Dispatcher(tables.bound, CLASSES, interceptors=around)
    assert dispatcher.transactional
    assert dispatcher.handle(as_rows([event(3), event(4)]), tables.work()) == 2
    assert seen == [(tables.unit.connection, 2, ProcessingContext("group", Partition(1, 0), 3, 1))]


def test_async_handlers_and_methods_may_take_tables(tables: Tables, around: Any) -> None:
    class Loans:
        async def handle(self, table: pa.Table) -> None:
            tables.calls.append(("method", table.to_pydict()))

    tables.add(Loans().handle, Lent)
    assert tables.handle(event(1), around=around) == 1
    assert [name for name, _ in tables.calls] == ["method"]


def test_handlers_of_events_lists_and_tables_may_share_a_group(tables: Tables) -> None:
    def one(event: Lent) -> None:
        tables.calls.append(("one", {"isbn": [event.isbn]}))

    def several(events: list[Lent]) -> None:
        tables.calls.append(("list", {"isbn": [event.isbn for event in events]}))

    tables.takes(Lent, name="table")
    tables.add(one)
    tables.add(several)
    assert tables.handle(event(1), event(2, payload='{"isbn":"2"}')) == 2
    assert [(name, found["isbn"]) for name, found in tables.calls] == [
        ("one", ["1"]),
        ("one", ["2"]),
        ("table", ["1", "2"]),
        ("list", ["1", "2"]),
    ]


def test_interceptors_get_the_events_of_a_table(tables: Tables) -> None:
    seen: list[Invocation] = []

    def around_handler(invocation: Invocation) -> Iterator[None]:
        seen.append(invocation)
        yield

    tables.takes(Lent)
    tables.handle(
        event(1), event(2), around=Interceptors([Interceptor(AroundMark(Surrounded.HANDLER), around_handler, "x")])
    )
    assert [one.position for one in seen[0].events] == [1, 2]


# Failures


@pytest.mark.parametrize("rows", [True, False])
def test_an_event_that_cannot_become_a_row_is_named(tables: Tables, around: Any, *, rows: bool) -> None:
    tables.takes(types=["returned"], name="raw")
    tables.takes(Lent)
    unwanted, wrong = event(1, "returned"), event(3, payload='{"isbn":5}')
    with pytest.raises(ChunkFailedError) as caught:
        tables.handle(unwanted, event(2), wrong, event(4), rows=rows, around=around)
    assert caught.value.index == 2
    assert isinstance(caught.value.error, EventFormatError)
    assert (caught.value.error.code, caught.value.error.where) == ("OCQ-211", wrong.label)
    assert tables.calls == []


def test_an_error_of_a_table_handler_names_no_event_unless_it_has_only_one(tables: Tables, around: Any) -> None:
    def handle(table: pa.Table) -> None:
        raise ValueError(table.num_rows)

    tables.add(handle, Lent)
    for events, index in ([event(1)], 0), ([event(1), event(2)], None):
        with pytest.raises(ChunkFailedError) as caught:
            tables.handle(*events, around=around)
        assert (caught.value.index, str(caught.value.error)) == (index, str(len(events)))


# What is read of the log


def test_a_group_of_table_handlers_only_reads_subjects_and_times(tables: Tables) -> None:
    tables.takes(Lent)
    assert Dispatcher(tables.bound, CLASSES).attributes == {"subject", "time"}
    tables.add(lambda: None, types=["*"])
    assert Dispatcher(tables.bound, CLASSES).attributes == {"subject", "time"}

    def raw(event: Event) -> None: ...

    tables.add(raw)
    assert Dispatcher(tables.bound, CLASSES).attributes == ATTRIBUTES


@pytest.mark.parametrize(("partitions", "size"), [(1, 5_000), (4, 5_000), (8, 2_500), (20, 1_000), (500, 1_000)])
def test_a_table_has_more_events_than_a_list_unless_the_group_has_many_partitions(
    tables: Tables, partitions: int, size: int
) -> None:
    tables.takes(Lent)
    made = Dispatcher(tables.bound, CLASSES)
    known: dict[str, Any] = {"subject": "/", "recursive": True, "sequencing": _Sequencing(), "batch_size": None}
    nothing: Any = None
    assert GroupProcessing("group", nothing, nothing, made, partitions=partitions, **known).batch_size == size


class _Sequencing:
    attributes: frozenset[str] = frozenset()


# Refused at startup


def unnamed(table: pa.Table) -> None: ...
def listing(events: list[Lent]) -> None: ...
def two(table: pa.Table, other: pa.Table) -> None: ...
def with_event(table: pa.Table, event: Lent) -> None: ...
def with_list(table: pa.Table, raws: list[Event]) -> None: ...
def with_metadata(table: pa.Table, metadata: Metadata) -> None: ...
def for_type_checkers(table: Table) -> None: ...


@pytest.mark.parametrize(
    ("call", "events", "code", "what"),
    [
        (unnamed, None, "OCQ-237", "it is not specified which events the table holds"),
        (unnamed, dict, "OCQ-237", "events= needs a class with fields, and dict has none"),
        (unnamed, str, "OCQ-237", "events= needs a class with fields, and str has none"),
        (listing, Lent, "OCQ-237", "events= names the columns of a table, and the handler takes none"),
        (two, Lent, "OCQ-203", f"{TWICE}other asks for the same events again"),
        (with_event, Lent, "OCQ-203", f"{TWICE}event asks for the same events again"),
        (with_list, Lent, "OCQ-203", f"{TWICE}raws asks for the same events again"),
        (
            with_metadata,
            Lent,
            "OCQ-203",
            f"{TWICE}metadata asks for the same events again",
        ),
    ],
)
def test_conflicting_parameters_are_refused(
    tables: Tables, call: Callable[..., None], events: type | None, code: str, what: str
) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        tables.add(call, events)
    assert (caught.value.code, caught.value.what, caught.value.where) == (code, what, "handlers.py:7")
    assert "pyarrow.Table" in caught.value.fix


def test_a_table_may_be_imported_for_type_checkers_only(tables: Tables) -> None:
    tables.add(for_type_checkers, Lent)
    assert tables.handle(event(1)) == 1


def test_a_class_without_event_type_is_refused(tables: Tables) -> None:
    @dataclass
    class Unmarked:
        isbn: str

    tables.takes(Unmarked)
    with pytest.raises(HandlerSignatureError, match="no event type leads to Unmarked"):
        Dispatcher(tables.bound, CLASSES)


def test_a_class_without_columns_is_refused(tables: Tables) -> None:
    @event_type("x")
    @dataclass
    class Extra:
        extra: dict[str, Any]

    tables.takes(Extra)
    with pytest.raises(HandlerSignatureError, match="OCQ-238"):
        Dispatcher(tables.bound, CLASSES)


@pytest.mark.parametrize("wrong", range(4))
def test_the_failing_event_is_named_in_any_order_of_events(tables: Tables, wrong: int) -> None:
    tables.takes(Lent)
    in_order = [event(9 - n, payload='{"isbn":7}' if n == wrong else '{"isbn":"1"}') for n in range(4)]
    with pytest.raises(ChunkFailedError) as caught:
        tables.handle(*in_order)
    assert caught.value.index == wrong

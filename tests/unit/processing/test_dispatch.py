"""Dispatch: which handlers get an event, in which order, and decoded to what."""

from __future__ import annotations

import asyncio
import functools
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

import attrs
import pytest
from pydantic import BaseModel

from opencqrs_py import AfterCommit, Event, Metadata, Upcast, event_type
from opencqrs_py.errors import EventFormatError, HandlerSignatureError
from opencqrs_py.model import (
    AroundMark,
    Handler,
    HandlerMark,
    Interceptor,
    Partition,
    ProcessingContext,
    Surrounded,
    Upcaster,
)
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.processing import decoding, plans
from opencqrs_py.processing.binding import NothingProvided, Work, bind, run_on_start
from opencqrs_py.processing.dispatch import ChunkFailedError, Dispatcher
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.reading import Reading, Upcasters

if TYPE_CHECKING:
    from fractions import Fraction

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

T = TypeVar("T")
CONTEXT = ProcessingContext("group", Partition(2, 1), 7, 3)


def dispatch(dispatcher: Dispatcher, given: Event, unit: Any, context: ProcessingContext = CONTEXT) -> bool:
    """Handle one event; return whether a handler got it."""
    work = Work(context.group, context.partition, unit, context.position, context.attempt)
    try:
        return dispatcher.handle(Chunk([given]), work) == 1
    except ChunkFailedError as failure:
        raise failure.error if failure.index == 0 else failure from None


@dataclass
class BookEvent:
    isbn: str


@event_type("book-lent")
@dataclass
class BookLent(BookEvent):
    reader: str = ""


@event_type("book-lent")
@dataclass(frozen=True)
class BookLentFrozen:
    isbn: str


@event_type("book-returned")
@dataclass
class BookReturned(BookEvent):
    pass


@event_type("book-lent")
class LentElsewhere(BaseModel):
    """Another module's view of the same events."""

    isbn: str


@event_type("reader-registered")
class ReaderRegistered(TypedDict):
    name: str


@attrs.define
class LentAttrs:
    isbn: str


@dataclass
class Untyped:
    isbn: str


def upcast(data: dict[str, Any]) -> Upcast:
    return Upcast("newer, and wanted by nobody", data)


AROUND = AroundMark(Surrounded.EVENT)


def nothing_around() -> Iterator[None]:
    yield


ALL_CLASSES = (BookEvent, BookLent, BookReturned, ReaderRegistered)


class Mailer:
    pass


def event(event_type: str = "book-lent", payload: str | None = '{"isbn": "1"}', extensions: str | None = None) -> Event:
    return Event(7, "4711", "s", "/books/1", event_type, None, "application/json", payload, extensions)


class Recorder:
    """Creates handlers that record what they were called with."""

    def __init__(self, injector: Any, unit: Any) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.injector = injector
        self.unit = unit
        self.bound: list[Any] = []

    def handles(self, annotation: Any = None, *, name: str = "handler", types: Sequence[str] = ()) -> None:
        """Add a handler of the annotated class; of the raw event if there is none."""

        def handle(event: Any) -> None:
            self.calls.append((name, event))

        handle.__annotations__["event"] = annotation or Event
        self.add(handle, types)

    def add(self, call: Callable[..., Any], types: Sequence[str] = ()) -> None:
        self.bound.append(bind(Handler(HandlerMark("group", tuple(types)), call, "handlers.py:7"), self.injector))

    def dispatcher(self, classes: Sequence[type] = ALL_CLASSES) -> Dispatcher:
        return Dispatcher(self.bound, classes)

    def sees(self, given: Event, classes: Sequence[type] = ALL_CLASSES) -> list[tuple[str, Any]]:
        """Dispatch one event and return the calls that were made."""
        handled = dispatch(self.dispatcher(classes), given, self.unit, CONTEXT)
        assert handled is bool(self.calls)
        return self.calls


@pytest.fixture
def recorder(injector: Any, unit: Any) -> Recorder:
    return Recorder(injector, unit)


# Which handlers


def test_handlers_run_in_the_given_order(recorder: Recorder) -> None:
    for name, annotation in {"c": BookLent, "a": Event, "b": BookEvent, "d": dict}.items():
        recorder.handles(annotation, name=name)
    assert [name for name, _ in recorder.sees(event())] == ["c", "a", "b", "d"]


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (BookLent, BookLent("1")),
        (BookEvent, BookLent("1")),
        (object, {"isbn": "1"}),
        (dict, {"isbn": "1"}),
        (dict[str, Any], {"isbn": "1"}),
        (Mapping[str, str], {"isbn": "1"}),
        (BookReturned | BookLent, BookLent("1")),
        (BookReturned | BookEvent, BookLent("1")),
        (ReaderRegistered | dict, {"isbn": "1"}),
        (LentElsewhere, LentElsewhere(isbn="1")),
        (BookReturned, None),
        (BookReturned | ReaderRegistered, None),
    ],
)
def test_a_handler_gets_the_events_that_are_instances_of_its_class(
    recorder: Recorder, annotation: Any, expected: object
) -> None:
    recorder.handles(annotation)
    assert recorder.sees(event()) == ([("handler", expected)] if expected is not None else [])


def test_a_typed_dict_only_matches_itself(recorder: Recorder) -> None:
    class Other(TypedDict):
        name: str

    recorder.handles(ReaderRegistered, name="own")
    recorder.handles(Other, name="other", types=["something-else"])
    assert recorder.sees(event("reader-registered", '{"name": "Ada"}')) == [("own", {"name": "Ada"})]


@pytest.mark.parametrize("order", [(BookLent, LentElsewhere), (LentElsewhere, BookLent)])
def test_each_handler_gets_its_own_class_when_several_classes_share_a_type(
    recorder: Recorder, order: tuple[type, ...]
) -> None:
    recorder.handles(BookLent, name="here")
    recorder.handles(LentElsewhere, name="elsewhere")
    recorder.handles(BookEvent, name="parent")
    assert recorder.sees(event(), order) == [
        ("here", BookLent("1")),
        ("elsewhere", LentElsewhere(isbn="1")),
        ("parent", BookLent("1")),
    ]


def test_events_that_no_handler_takes_are_not_decoded(recorder: Recorder) -> None:
    recorder.handles(BookReturned)
    recorder.handles(Event, types=["library.*"])
    assert recorder.sees(event("book-lent", "no JSON at all")) == []
    assert recorder.sees(event("never-heard-of", None)) == []


@pytest.mark.parametrize("interceptors", [Interceptors(), Interceptors([Interceptor(AROUND, nothing_around, "x")])])
def test_events_that_no_handler_takes_are_not_even_unwrapped(
    recorder: Recorder, unit: Any, interceptors: Interceptors
) -> None:
    recorder.handles(BookLent)
    reading = Reading(Upcasters([Upcaster(("old",), upcast, "here")], NothingProvided()), enveloped=True)
    dispatcher = Dispatcher(recorder.bound, ALL_CLASSES, reading, interceptors)
    assert [dispatcher.wants(name) for name in ("book-lent", "old", "other")] == [True, True, False]
    assert [dispatcher.handles(name) for name in ("book-lent", "old", "other")] == [True, False, False]
    assert dispatcher.wanted_types == {"book-lent", "old"}
    assert not dispatch(dispatcher, event("other", "no envelope"), unit)
    assert not dispatch(dispatcher, event("old", '{"payload": {}}'), unit)  # becomes an event that no handler takes
    assert dispatch(dispatcher, event("book-lent", '{"payload": {"isbn": "1"}}'), unit)
    assert recorder.calls == [("handler", BookLent("1"))]


def test_handlers_get_upcast_events_and_the_stored_raw_event(recorder: Recorder, unit: Any) -> None:
    seen: list[Any] = []

    def handle(event: BookLent, raw: Event, metadata: Metadata) -> None:
        seen.append((event, raw, metadata))

    def renamed(data: dict[str, Any]) -> Upcast:
        return Upcast("book-lent", data)

    recorder.add(handle)
    reading = Reading(Upcasters([Upcaster(("old",), renamed, "here")], NothingProvided()), enveloped=True)
    given = event("old", '{"payload": {"isbn": "1"}, "metadata": {"by": "Ada"}}')
    assert dispatch(Dispatcher(recorder.bound, ALL_CLASSES, reading), given, unit)
    assert seen == [(BookLent("1"), given, {"by": "Ada"})]


@pytest.mark.parametrize(
    ("patterns", "name", "wanted"),
    [
        (["library.*"], "library.book-lent.v1", True),
        (["library.*"], "librarybook", False),
        (["*"], "anything", True),
        (["a", "b.v?"], "b.v1", True),
        (["a", "b.v?"], "b.v10", False),
        (["[ab].v1"], "b.v1", True),
        (["Library.*"], "library.book", False),
        (["exact"], "exact", True),
        (["exact"], "exactly", False),
    ],
)
def test_patterns_select_types(recorder: Recorder, patterns: list[str], name: str, *, wanted: bool) -> None:
    recorder.handles(types=patterns)
    given = event(name, None)
    assert recorder.sees(given) == ([("handler", given)] if wanted else [])


@pytest.mark.parametrize(
    ("annotation", "name", "expected"),
    [
        (Untyped, "legacy.lent", Untyped("1")),
        (BookLent, "legacy.lent", BookLent("1")),
        (dict, "legacy.lent", {"isbn": "1"}),
        (BookReturned | BookLent, "book-lent", BookLent("1")),
        (BookReturned | BookLent, "book-returned", BookReturned("1")),
        (Untyped | BookLent, "book-lent", BookLent("1")),
        (BookEvent, "book-lent", BookLent("1")),
    ],
)
def test_with_patterns_an_event_decodes_to_the_class_of_its_type_or_else_the_annotated_one(
    recorder: Recorder, annotation: Any, name: str, expected: object
) -> None:
    recorder.handles(annotation, types=["legacy.*", "book-*"])
    assert recorder.sees(event(name)) == [("handler", expected)]


def test_patterns_apply_even_if_the_class_has_its_own_type(recorder: Recorder) -> None:
    recorder.handles(BookLent, types=["library.*"])
    assert recorder.sees(event("book-lent")) == []


# What handlers get


def test_every_argument_is_filled(recorder: Recorder) -> None:
    mailer = Mailer()
    recorder.injector.provided[Mailer] = lambda: mailer
    seen: dict[str, Any] = {}

    def handle(
        raw: Event,
        metadata: Metadata,
        connection: Connection,
        event: BookLent,
        session: Session,
        context: ProcessingContext,
        mailer: Mailer,
    ) -> None:
        seen.update(locals())

    recorder.add(handle)
    given = event(extensions='{"traceparent": "00-1"}')
    assert dispatch(recorder.dispatcher(), given, recorder.unit, CONTEXT)
    del seen["seen"]
    assert seen == {
        "raw": given,
        "metadata": {"traceparent": "00-1"},
        "connection": recorder.unit.connection,
        "event": BookLent("1"),
        "session": recorder.unit.session,
        "context": CONTEXT,
        "mailer": mailer,
    }


def test_the_driver_connection_and_after_commit_belong_to_the_transaction(recorder: Recorder) -> None:
    seen: list[Any] = []

    def handle(event: BookLent, connection: sqlite3.Connection, after_commit: AfterCommit) -> None:
        seen.append(connection)
        after_commit(lambda: seen.append("after"))

    recorder.add(handle)
    below = SimpleNamespace(connection=SimpleNamespace(driver_connection="the driver's"))
    work = Work("group", Partition(1, 0), SimpleNamespace(connection=below, session=None))
    assert recorder.dispatcher().handle(Chunk([event(), event()]), work) == 2
    assert seen == ["the driver's"] * 2
    assert work.committed() == []
    assert seen == ["the driver's"] * 2 + ["after"] * 2


def test_arguments_are_passed_by_name_where_required(recorder: Recorder) -> None:
    seen = []

    def handle(event: BookLent, limit: int = 3, raw: Event | None = None, *, context: ProcessingContext) -> None:
        seen.append((event, limit, raw, context))

    handle.__annotations__["raw"] = Event  # as under a type checker that allows None for any type
    recorder.add(handle)
    given = event()
    dispatch(recorder.dispatcher(), given, recorder.unit, CONTEXT)
    assert seen == [(BookLent("1"), 3, given, CONTEXT)]


def test_missing_metadata_become_an_empty_mapping(recorder: Recorder) -> None:
    recorder.handles(Metadata)
    assert recorder.sees(event(payload=None)) == [("handler", {})]


def test_provided_arguments_are_resolved_at_each_call(recorder: Recorder) -> None:
    numbers = itertools.count()
    recorder.injector.provided[Mailer] = lambda: next(numbers)
    recorder.handles(Mailer)
    dispatcher = recorder.dispatcher()
    for _ in range(3):
        dispatch(dispatcher, event(), recorder.unit, CONTEXT)
    assert [seen for _, seen in recorder.calls] == [0, 1, 2]


def test_only_immutable_objects_are_shared_by_several_handlers(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[type] = []

    def counting(cls: type) -> Callable[[Event], Any]:
        decode = decoding.decoder_for(cls)

        def counted(given: Event) -> Any:
            decoded.append(cls)
            return decode(given)

        return counted

    monkeypatch.setattr(plans, "decoder_for", counting)
    frozen = BookLentFrozen
    for annotation in (BookLent, frozen, BookEvent, dict, Event, BookLent, frozen, dict[str, Any], frozen, Mapping):
        recorder.handles(annotation)
    dispatcher = recorder.dispatcher()
    for _ in range(2):
        del decoded[:]
        dispatch(dispatcher, event(), recorder.unit, CONTEXT)
        assert decoded == [BookLent, frozen, BookLent, dict, BookLent, dict, Mapping]


def test_a_change_that_a_handler_makes_to_its_dict_is_invisible_to_the_next(recorder: Recorder) -> None:
    def spoil(data: dict[str, Any]) -> None:
        data.clear()

    seen: list[dict[str, Any]] = []

    def look(data: dict[str, Any]) -> None:
        seen.append(data)

    recorder.add(spoil)
    recorder.add(look)
    dispatch(recorder.dispatcher(), event(), recorder.unit, CONTEXT)
    assert seen == [{"isbn": "1"}]


def test_an_event_is_not_decoded_before_preceding_handlers_have_run(recorder: Recorder) -> None:
    recorder.handles(Event, name="raw first")
    recorder.handles(BookLent)
    with pytest.raises(EventFormatError, match="OCQ-211"):
        dispatch(recorder.dispatcher(), event(payload="{}"), recorder.unit, CONTEXT)
    assert [name for name, _ in recorder.calls] == ["raw first"]


def test_the_error_of_a_handler_propagates_unchanged_and_ends_the_calls(recorder: Recorder) -> None:
    mine = KeyError("mine")

    def handle(event: BookLent) -> None:
        raise mine

    recorder.add(handle)
    recorder.handles(name="behind")
    with pytest.raises(KeyError) as caught:
        dispatch(recorder.dispatcher(), event(), recorder.unit, CONTEXT)
    assert caught.value is mine
    assert recorder.calls == []


def test_results_are_ignored(recorder: Recorder) -> None:
    def handle(event: BookLent) -> str:
        return "no matter"

    recorder.add(handle)
    assert dispatch(recorder.dispatcher(), event(), recorder.unit, CONTEXT)


# Asynchronous handlers


def plainly(call: Any) -> Any:
    return call


def wrapped(call: Any) -> Any:
    """Decorate without regard to async."""

    @functools.wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("decorate", [plainly, wrapped])
def test_an_async_handler_runs_to_completion(recorder: Recorder, decorate: Callable[[Any], Any]) -> None:
    async def handle(event: BookLent, *, connection: Connection) -> None:
        await asyncio.sleep(0)
        connection.append(event)  # type: ignore[attr-defined]

    recorder.add(decorate(handle))
    assert dispatch(recorder.dispatcher(), event(), recorder.unit, CONTEXT)
    assert recorder.unit.connection == [BookLent("1")]


def test_the_error_of_an_async_handler_propagates_unchanged(recorder: Recorder) -> None:
    mine = asyncio.CancelledError("mine")

    async def handle(event: BookLent) -> None:
        await asyncio.sleep(0)
        raise mine

    recorder.add(handle)
    with pytest.raises(asyncio.CancelledError):
        dispatch(recorder.dispatcher(), event(), recorder.unit, CONTEXT)


def test_async_handlers_run_on_any_thread(recorder: Recorder) -> None:
    async def handle(event: BookLent) -> None:
        await asyncio.sleep(0)
        recorder.calls.append(("async", event.isbn))

    recorder.add(handle)
    dispatcher = recorder.dispatcher()
    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(lambda _: dispatch(dispatcher, event(), recorder.unit, CONTEXT), range(9)))
    assert recorder.calls == [("async", "1")] * 9


# What is requested from the store


@pytest.mark.parametrize(
    ("handlers", "wanted"),
    [
        ([], set()),
        ([(BookLent, ())], {"book-lent"}),
        ([(BookEvent, ())], {"book-lent", "book-returned"}),
        ([(BookLent, ()), (ReaderRegistered, ())], {"book-lent", "reader-registered"}),
        ([(BookLent | BookReturned, ())], {"book-lent", "book-returned"}),
        ([(Event, ("a", "b"))], {"a", "b"}),
        ([(Event, ("a",)), (BookLent, ())], {"a", "book-lent"}),
        ([(dict, ("legacy",))], {"legacy"}),
        ([(Event, ())], None),
        ([(Metadata, ())], None),
        ([(dict, ())], None),
        ([(dict[str, Any], ())], None),
        ([(object, ())], None),
        ([(BookLent | dict, ())], None),
        ([(Event, ("a.*",))], None),
        ([(Event, ("a.?",))], None),
        ([(Event, ("a.[bc]",))], None),
        ([(BookLent, ()), (Event, ("a", "b.*"))], None),
    ],
)
def test_only_the_wanted_types_are_requested_if_they_can_be_named(
    recorder: Recorder, handlers: list[tuple[Any, tuple[str, ...]]], wanted: set[str] | None
) -> None:
    for annotation, types in handlers:
        recorder.handles(annotation, types=types)
    dispatcher = recorder.dispatcher()
    assert dispatcher.wanted_types == wanted
    for name in wanted or ():
        assert dispatch(dispatcher, event(name, '{"isbn": "1", "name": "Ada"}'), recorder.unit, CONTEXT)


def by_driver(event: BookLent, connection: sqlite3.Connection) -> None: ...
def by_driver_with_more(
    event: BookLent, raw: Event, metadata: Metadata, after: AfterCommit, connection: sqlite3.Connection
) -> None: ...
def by_driver_with_mails(event: BookLent, connection: sqlite3.Connection, mailer: Mailer) -> None: ...
def by_driver_in_lists(events: list[BookLent], connection: sqlite3.Connection) -> None: ...
def by_both(event: BookLent, connection: sqlite3.Connection, other: Connection) -> None: ...
def by_sqlalchemy(event: BookLent, connection: Connection) -> None: ...
def by_nothing(event: BookLent) -> None: ...


@pytest.mark.parametrize(
    ("handlers", "pipelines"),
    [
        ([by_driver], True),
        ([by_driver, by_driver_with_more], True),
        ([by_driver, by_driver_with_mails], False),
        ([by_driver_in_lists], False),
        ([by_driver, by_sqlalchemy], False),
        ([by_both], False),
        ([by_driver, by_nothing], False),
    ],
)
def test_statements_are_pipelined_if_all_handlers_take_single_events_and_only_write_with_the_driver(
    recorder: Recorder, handlers: list[Any], *, pipelines: bool
) -> None:
    recorder.injector.provided[Mailer] = Mailer
    for handler in handlers:
        recorder.add(handler)
    assert recorder.dispatcher().pipelines is pipelines


def test_a_group_is_transactional_if_all_its_handlers_are(recorder: Recorder) -> None:
    def with_connection(event: BookLent, connection: Connection) -> None: ...
    def with_session(event: BookLent, session: Session) -> None: ...
    def with_neither(event: BookLent) -> None: ...

    recorder.add(with_connection)
    recorder.add(with_session)
    assert recorder.dispatcher().transactional
    recorder.add(with_neither)
    assert not recorder.dispatcher().transactional


# Errors at startup


def test_a_class_without_event_type_is_refused_with_the_line_to_add(recorder: Recorder) -> None:
    recorder.handles(Untyped)
    with pytest.raises(HandlerSignatureError) as caught:
        recorder.dispatcher()
    assert str(caught.value) == (
        "[OCQ-206] no event type leads to Untyped\n"
        "  where: handlers.py:7\n"
        '  fix:   write @event_type("…") above class Untyped, or give the handler types=["…"]'
    )


def test_each_member_of_a_union_needs_an_event_type(recorder: Recorder) -> None:
    recorder.handles(BookLent | Untyped)
    with pytest.raises(HandlerSignatureError, match="no event type leads to Untyped"):
        recorder.dispatcher()


def upcasting(*types: str) -> Reading:
    return Reading(Upcasters([Upcaster(types, upcast, "old.py:3 (upcast)")], NothingProvided()))


@pytest.mark.parametrize(
    ("wanted", "types"), [(BookLent, ()), (BookEvent, ()), (dict, ("book-lent",)), (BookLent, ("v1", "v2"))]
)
def test_a_handler_whose_types_are_all_upcast_is_refused(recorder: Recorder, wanted: Any, types: Any) -> None:
    recorder.handles(wanted, types=types)
    Dispatcher(recorder.bound, [BookLent], upcasting("other"))
    with pytest.raises(HandlerSignatureError) as caught:
        Dispatcher(recorder.bound, [BookLent], upcasting("book-lent", "v1", "v2"))
    shown = ", ".join(map(repr, types)) or "'book-lent'"
    assert str(caught.value) == (
        f"[OCQ-206] no event of type {shown} reaches the handler: the upcaster old.py:3 (upcast) takes them\n"
        "  where: handlers.py:7\n"
        "  fix:   have it take what the upcaster makes, or remove the upcaster"
    )


@pytest.mark.parametrize(
    ("wanted", "types"), [(BookLent | ReaderRegistered, ()), (dict, ("v1", "v3")), (dict, ("v*",)), (dict, ())]
)
def test_a_handler_that_another_type_can_reach_is_not_refused(recorder: Recorder, wanted: Any, types: Any) -> None:
    recorder.handles(wanted, types=types)
    names = Dispatcher(recorder.bound, [BookLent], upcasting("book-lent", "v1")).type_names
    assert not {"book-lent", "v1"} & set(names)  # which the log may contain


def becomes(*made: str) -> Reading:
    upcaster = Upcaster(("book-lent",), lambda: [Upcast(name, {"isbn": "1"}) for name in made], "old.py:3 (upcast)")
    return Reading(Upcasters([upcaster], NothingProvided()))


@pytest.mark.parametrize(
    ("wanted", "types", "made"),
    [
        (BookLent | BookReturned, (), ("reader-registered",)),
        (dict, ("book-lent", "other"), ("reader-registered", "more")),
    ],
)
def test_a_handler_that_gets_no_events_of_a_named_type_causes_one_warning(
    recorder: Recorder, unit: Any, caplog: pytest.LogCaptureFixture, wanted: Any, types: Any, made: Any
) -> None:
    recorder.handles(wanted, types=types)
    dispatcher = Dispatcher(recorder.bound, ALL_CLASSES, becomes(*made))
    for _ in range(2):
        assert not dispatch(dispatcher, event("book-lent"), unit)
    assert [record.getMessage() for record in caplog.records] == [
        "handler handlers.py:7 does not get events of type 'book-lent': the upcaster old.py:3 (upcast) takes them, and "
        f"makes events of type {', '.join(map(repr, made))}\n"
        "  fix:   have the handler take that type, or remove 'book-lent' from its types"
    ]


@pytest.mark.parametrize(
    ("wanted", "types", "made"),
    [
        (BookLent | BookReturned, (), ("book-returned",)),
        (dict, ("book-lent", "other"), ("reader-registered", "other")),
        (dict, ("book-lent", "other"), ()),  # dropped, on purpose
        (dict, ("*",), ("reader-registered",)),
        (dict, (), ("reader-registered",)),
        (dict, ("other",), ("reader-registered",)),
    ],
)
def test_a_handler_that_gets_results_of_upcasters_causes_no_warning(
    recorder: Recorder, unit: Any, caplog: pytest.LogCaptureFixture, wanted: Any, types: Any, made: Any
) -> None:
    recorder.handles(wanted, types=types)
    dispatch(Dispatcher(recorder.bound, ALL_CLASSES, becomes(*made)), event("book-lent"), unit)
    assert not caplog.records


def test_a_parent_class_gets_the_events_of_its_known_children(recorder: Recorder) -> None:
    recorder.handles(BookEvent)
    assert recorder.dispatcher([BookLent]).wanted_types == {"book-lent"}
    with pytest.raises(HandlerSignatureError, match="no event type leads to BookEvent"):
        recorder.dispatcher([ReaderRegistered])


@event_type("share-bought")
@dataclass
class ShareBought:
    share: Fraction


@dataclass
class Shares(Generic[T]):
    items: T


@pytest.mark.parametrize("types", [(), ("share.*",)])
def test_an_undecodable_class_is_refused_at_startup(recorder: Recorder, types: tuple[str, ...]) -> None:
    recorder.handles(ShareBought, types=types)
    with pytest.raises(HandlerSignatureError, match="OCQ-208"):
        recorder.dispatcher()


def test_an_undecodable_class_does_not_affect_groups_that_do_not_use_it(recorder: Recorder) -> None:
    recorder.handles(BookLent)
    recorder.handles(dict)
    assert len(recorder.sees(event(), (*ALL_CLASSES, ShareBought))) == 2


def test_a_generic_class_decodes_to_its_origin(recorder: Recorder) -> None:
    recorder.handles(Shares[list[int]], types=["shares"])
    assert recorder.sees(event("shares", '{"items": [1]}')) == [("handler", Shares([1]))]


@event_type("price-set")
@dataclass
class PriceSet(Generic[T]):
    price: T
    before: list[T] = field(default_factory=list)


@event_type("price-noted")
class PriceNoted(TypedDict, Generic[T]):
    price: T
    before: list[T]


@event_type("price-of")
@attrs.define
class PriceOf(Generic[T]):
    price: T
    before: list[T]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("types", [(), ("price-*",)])
@pytest.mark.parametrize("cls", [PriceSet, PriceNoted, PriceOf])
def test_a_generic_class_is_decoded_with_its_type_arguments(
    recorder: Recorder, cls: Any, types: tuple[str, ...], *, many: bool
) -> None:
    recorder.handles(list[cls[Decimal]] if many else cls[Decimal], types=types)
    name = {PriceSet: "price-set", PriceNoted: "price-noted", PriceOf: "price-of"}[cls]
    ((_, found),) = recorder.sees(event(name, '{"price": "1.10", "before": [1.10]}'), (PriceSet, PriceNoted, PriceOf))
    price = cls(price=Decimal("1.10"), before=[Decimal("1.1")])
    assert found == ([price] if many else price)
    read = found[0] if many else found
    assert type(read["price"] if isinstance(read, dict) else read.price) is Decimal


def test_data_that_do_not_match_a_type_argument_are_refused(recorder: Recorder) -> None:
    recorder.handles(PriceSet[Decimal])
    with pytest.raises(EventFormatError, match=r"OCQ-211\] .* do not fit PriceSet \(price: .* a valid decimal\)"):
        recorder.sees(event("price-set", '{"price": "much"}'))


def test_a_child_class_with_an_unresolved_type_variable_is_refused(recorder: Recorder) -> None:
    @dataclass
    class PriceInEuro(PriceSet[Decimal]):
        pass

    recorder.handles(PriceInEuro, types=["price-set"])
    with pytest.raises(HandlerSignatureError) as caught:
        recorder.dispatcher()
    assert str(caught.value).startswith(
        "[OCQ-208] PriceInEuro cannot be decoded from JSON (its field 'price' is a T of a parent, and may be anything)"
    )
    assert caught.value.fix == "annotate the field in PriceInEuro itself, with the type that it has there"


def test_a_wrong_signature_is_refused_when_the_handler_is_bound(recorder: Recorder) -> None:
    with pytest.raises(HandlerSignatureError, match="OCQ-201"):
        recorder.handles(int)


@pytest.mark.parametrize("annotation", [Event, BookLent])
def test_a_single_async_handler_is_awaited(recorder: Recorder, annotation: Any) -> None:
    async def handle(event: Any) -> None:
        await asyncio.sleep(0)
        recorder.calls.append(("awaited", event))

    handle.__annotations__["event"] = annotation
    recorder.add(handle)
    assert [name for name, _ in recorder.sees(event())] == ["awaited"]


# The fast decoder and the slow one


@pytest.mark.parametrize("annotation", [BookLent, dict, object, LentAttrs, ReaderRegistered])
def test_fast_and_slow_decoders_agree(recorder: Recorder, annotation: Any) -> None:
    payload = '{"isbn": "1", "name": "Ada"}'
    types = ["book-lent"]
    recorder.handles(annotation, name="alone", types=types)
    (alone,) = recorder.sees(event(payload=payload))
    assert alone == ("alone", decoding.decoder_for(annotation)(event(payload=payload)))


@pytest.mark.parametrize("annotation", [BookLent, dict, list[BookLent], list[dict]])
@pytest.mark.parametrize("payload", [None, "no JSON", "[1]", '"text"'])
def test_errors_of_the_fast_decoder_are_explained_by_the_slow_one(
    recorder: Recorder, annotation: Any, payload: str | None
) -> None:
    recorder.handles(annotation, types=["book-lent"])
    with pytest.raises(EventFormatError, match=r"OCQ-21[01].*\n.*event 4711"):
        recorder.sees(event(payload=payload))


# @on_start


def test_an_on_start_function_runs_in_the_given_transaction(injector: Any, unit: Any) -> None:
    def prepare(connection: Connection, mailer: Mailer) -> None:
        connection.append(mailer)  # type: ignore[attr-defined]

    injector.provided[Mailer] = lambda: "mailer"
    run_on_start(prepare, "handlers.py:3", injector, Work("group", Partition(1, 0), unit))
    assert unit.connection == ["mailer"]


def test_an_on_start_function_may_be_async_and_without_arguments(injector: Any, unit: Any) -> None:
    ran = []

    async def prepare() -> None:
        await asyncio.sleep(0)
        ran.append(True)

    run_on_start(prepare, "handlers.py:3", injector, Work("group", Partition(1, 0), unit))
    assert ran == [True]


def test_an_on_start_function_with_an_event_parameter_is_refused(injector: Any, unit: Any) -> None:
    def prepare(event: BookLent) -> None: ...

    with pytest.raises(HandlerSignatureError, match="OCQ-205"):
        run_on_start(prepare, "handlers.py:3", injector, Work("group", Partition(1, 0), unit))

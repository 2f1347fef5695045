"""Signatures: what a handler may take, and the error if it takes anything else."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Protocol, TypedDict, TypeVar, Union

import psycopg
import pytest
from psycopg.rows import TupleRow
from pydantic import BaseModel
from sqlalchemy.orm import scoped_session

from opencqrs_py import AfterCommit, Event, Invocation, Metadata
from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model import ProcessingContext
from opencqrs_py.processing.definitions import place_of
from opencqrs_py.processing.roles import HANDLER, JOB, ON_START, Kind, Role
from opencqrs_py.processing.signatures import read_signature

if TYPE_CHECKING:
    from fractions import Fraction

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

F = TypeVar("F", bound=Callable[..., Any])


class Mailer:
    pass


class Unprovided:
    pass


@dataclass
class BookLent:
    isbn: str


class BookReturned(BaseModel):
    isbn: str


class Typed(TypedDict):
    isbn: str


@pytest.fixture
def provided(injector: Any) -> Any:
    injector.provided = {Mailer: Mailer}
    return injector


def kinds(call: Callable[..., Any], injector: Any, role: Role = HANDLER) -> list[tuple[str, Kind, bool]]:
    signature = read_signature(call, "handlers.py:7 (lend)", injector, role)
    return [(argument.name, argument.kind, argument.by_keyword) for argument in signature.arguments]


# Valid signatures


def event_only(event: BookLent) -> None: ...
def everything_in_any_order(
    context: ProcessingContext,
    connection: Connection,
    metadata: Metadata,
    mailer: Mailer,
    raw: Event,
    event: BookLent,
    session: Session,
) -> None: ...
def nothing_at_all() -> None: ...
def raw_only(raw: Event) -> None: ...
def plain_mapping(event: Mapping[str, Any]) -> None: ...
def one_of_two(event: BookLent | BookReturned) -> None: ...
def one_of_two_as_before(event: Union[BookLent, BookReturned]) -> None: ...  # noqa: UP007 the old spelling is meant
def names_only(*, event: BookLent, connection: Connection) -> None: ...
def positions_only(event: BookLent, raw: Event, /) -> None: ...
def optional_without_annotation(event: BookLent, verbose=False) -> None: ...  # type: ignore[no-untyped-def] # noqa: FBT002
def optional_without_provider(event: BookLent, limit: int = 3, clock: Unprovided | None = None) -> None: ...
def optional_that_is_provided(event: BookLent, mailer: Mailer = Mailer()) -> None: ...  # noqa: B008 as users write it
def none_where_it_could_be_filled(
    event: BookLent,
    mailer: Mailer | None = None,
    connection: Optional[Connection] = None,  # noqa: UP045 the old spelling is meant
    raw: Event | None = None,
) -> None: ...
def none_without_default(event: BookLent, mailer: Mailer | None) -> None: ...
def none_for_an_option(event: BookLent, other: BookReturned | None = None, limit: int | None = None) -> None: ...
def optional_in_between(event: BookLent, limit: int = 3, connection: Connection = None) -> None: ...  # type: ignore[assignment]
def optional_in_between_by_position(event: BookLent, limit: int = 3, raw: Event = None, /) -> None: ...  # type: ignore[assignment]
async def asynchronous(event: BookLent, session: Session) -> None: ...
def after_the_commit(event: BookLent, after_commit: AfterCommit) -> None: ...
def of_sqlite(event: BookLent, connection: sqlite3.Connection) -> None: ...
def of_postgresql(event: BookLent, connection: psycopg.Connection) -> None: ...  # type: ignore[type-arg]
def of_postgresql_rows(event: BookLent, connection: psycopg.Connection[TupleRow]) -> None: ...
def lists(events: list[BookLent], raws: Sequence[Event], metadata: list[Metadata]) -> None: ...
def list_and_others(events: list[BookLent | BookReturned], context: ProcessingContext, session: Session) -> None: ...
def quoted(event: "BookLent", raw: "Event") -> "int": ...  # type: ignore[empty-body] # noqa: UP037


RIGHT = [
    (event_only, [("event", Kind.EVENT, False)]),
    (
        everything_in_any_order,
        [
            ("context", Kind.CONTEXT, False),
            ("connection", Kind.CONNECTION, False),
            ("metadata", Kind.METADATA, False),
            ("mailer", Kind.INJECTED, False),
            ("raw", Kind.RAW, False),
            ("event", Kind.EVENT, False),
            ("session", Kind.SESSION, False),
        ],
    ),
    (nothing_at_all, []),
    (raw_only, [("raw", Kind.RAW, False)]),
    (plain_mapping, [("event", Kind.EVENT, False)]),
    (one_of_two, [("event", Kind.EVENT, False)]),
    (one_of_two_as_before, [("event", Kind.EVENT, False)]),
    (names_only, [("event", Kind.EVENT, True), ("connection", Kind.CONNECTION, True)]),
    (positions_only, [("event", Kind.EVENT, False), ("raw", Kind.RAW, False)]),
    (optional_without_annotation, [("event", Kind.EVENT, False)]),
    (optional_without_provider, [("event", Kind.EVENT, False)]),
    (optional_that_is_provided, [("event", Kind.EVENT, False), ("mailer", Kind.INJECTED, False)]),
    (
        none_where_it_could_be_filled,
        [
            ("event", Kind.EVENT, False),
            ("mailer", Kind.INJECTED, False),
            ("connection", Kind.CONNECTION, False),
            ("raw", Kind.RAW, False),
        ],
    ),
    (none_without_default, [("event", Kind.EVENT, False), ("mailer", Kind.INJECTED, False)]),
    (none_for_an_option, [("event", Kind.EVENT, False)]),
    (optional_in_between, [("event", Kind.EVENT, False), ("connection", Kind.CONNECTION, True)]),
    (optional_in_between_by_position, [("event", Kind.EVENT, False)]),
    (asynchronous, [("event", Kind.EVENT, False), ("session", Kind.SESSION, False)]),
    (after_the_commit, [("event", Kind.EVENT, False), ("after_commit", Kind.AFTER_COMMIT, False)]),
    (of_sqlite, [("event", Kind.EVENT, False), ("connection", Kind.DRIVER, False)]),
    (of_postgresql, [("event", Kind.EVENT, False), ("connection", Kind.DRIVER, False)]),
    (of_postgresql_rows, [("event", Kind.EVENT, False), ("connection", Kind.DRIVER, False)]),
    (lists, [("events", Kind.EVENT, False), ("raws", Kind.RAW, False), ("metadata", Kind.METADATA, False)]),
    (
        list_and_others,
        [("events", Kind.EVENT, False), ("context", Kind.CONTEXT, False), ("session", Kind.SESSION, False)],
    ),
    (quoted, [("event", Kind.EVENT, False), ("raw", Kind.RAW, False)]),
]


@pytest.mark.parametrize(("call", "expected"), RIGHT, ids=[call.__name__ for call, _ in RIGHT])
def test_arguments_are_resolved_by_annotation(
    call: Callable[..., Any], expected: list[tuple[str, Kind, bool]], provided: Any
) -> None:
    assert kinds(call, provided) == expected


@pytest.mark.parametrize(
    ("call", "classes"),
    [
        (event_only, (BookLent,)),
        (one_of_two, (BookLent, BookReturned)),
        (one_of_two_as_before, (BookLent, BookReturned)),
        (plain_mapping, (Mapping[str, Any],)),
        (lists, (BookLent,)),
        (list_and_others, (BookLent, BookReturned)),
        (raw_only, ()),
    ],
)
def test_the_event_parameter_determines_the_wanted_classes(
    call: Callable[..., Any], classes: tuple[type, ...], provided: Any
) -> None:
    assert read_signature(call, "here", provided).event_classes == classes


@pytest.mark.parametrize(
    ("call", "transactional"),
    [
        (event_only, False),
        (asynchronous, True),
        (names_only, True),
        (everything_in_any_order, True),
        (raw_only, False),
        (of_sqlite, True),
        (of_postgresql_rows, True),
        (list_and_others, True),
        (after_the_commit, False),
    ],
)
def test_a_handler_with_a_connection_or_session_is_transactional(
    call: Callable[..., Any], provided: Any, *, transactional: bool
) -> None:
    assert read_signature(call, "here", provided).transactional is transactional


@pytest.mark.parametrize(
    ("call", "many"), [(event_only, False), (raw_only, False), (lists, True), (list_and_others, True)]
)
def test_a_handler_with_lists_takes_a_chunk_at_a_time(call: Callable[..., Any], provided: Any, *, many: bool) -> None:
    assert read_signature(call, "here", provided).many is many


class Reminders:
    def remind(self, event: BookLent, connection: Connection) -> None: ...

    @staticmethod
    def count(event: BookLent) -> None: ...

    def forget(event: BookLent, connection: Connection) -> None: ...  # noqa: N805 no self

    def typed(self: Reminders, event: BookLent) -> None: ...

    def renamed(me, event: BookLent) -> None: ...  # noqa: N805 shows that the name is free


def traced(call: F) -> F:
    @functools.wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


class Remind:
    def __call__(self, event: BookLent, *, connection: Connection) -> None: ...


def test_a_callable_object_has_the_signature_of_its_call_method(provided: Any) -> None:
    assert kinds(Remind(), provided) == [("event", Kind.EVENT, False), ("connection", Kind.CONNECTION, True)]


def lend_at(place: str, event: BookLent, *, copies: int, metadata: Metadata) -> None: ...


def test_bound_arguments_of_a_partial_are_omitted(provided: Any) -> None:
    signature = read_signature(functools.partial(functools.partial(lend_at, "Mitte"), copies=1), "here", provided)
    assert [argument.name for argument in signature.arguments] == ["event", "metadata"]
    with pytest.raises(HandlerSignatureError, match="OCQ-204"):
        read_signature(functools.partial(yielding), "here", provided)
    assert place_of(functools.partial(functools.partial(lend_at, "Mitte"), copies=1)) == place_of(lend_at)


def cached(event: BookLent) -> None: ...


class Cached:
    @functools.cache  # noqa: B019 which is what is refused
    def remind(self, event: BookLent) -> None: ...


@pytest.mark.parametrize(
    "call",
    [
        functools.lru_cache(cached),
        Cached().remind,
        traced(functools.cache(cached)),
        functools.partial(functools.cache(cached)),
    ],
    ids=["a function", "a method", "wrapped", "with arguments"],
)
def test_a_cached_handler_is_refused(call: Callable[..., Any], provided: Any) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        read_signature(call, "handlers.py:7 (lend)", provided)
    assert str(caught.value) == (
        "[OCQ-204] a handler must not be cached: an event equal to an earlier one would not be handled\n"
        "  where: handlers.py:7 (lend)\n"
        "  fix:   remove the cache, such as @functools.lru_cache; cache a function that it calls"
    )


def counting(number: int) -> None: ...


def test_the_error_for_a_job_shows_the_form_of_a_job(provided: Any) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        read_signature(counting, "here", provided, JOB)
    assert caught.value.fix == (
        "annotate each parameter with what a job can take: "
        "def remind(context: JobContext, connection: Connection) -> None"
    )


def test_a_bound_method_has_no_self(provided: Any) -> None:
    assert kinds(Reminders().remind, provided) == [
        ("event", Kind.EVENT, False),
        ("connection", Kind.CONNECTION, False),
    ]
    for same in (Reminders.count, Reminders().typed, Reminders().renamed):
        assert kinds(same, provided) == [("event", Kind.EVENT, False)]


def test_a_decorated_function_has_the_signature_of_the_original(provided: Any) -> None:
    assert kinds(traced(names_only), provided) == [
        ("event", Kind.EVENT, True),
        ("connection", Kind.CONNECTION, True),
    ]


def test_a_provided_class_takes_precedence_over_an_event_class(provided: Any) -> None:
    provided.provided[BookLent] = BookLent
    assert kinds(event_only, provided) == [("event", Kind.INJECTED, False)]


def test_an_on_start_function_may_take_anything_not_tied_to_an_event(provided: Any) -> None:
    def prepare(connection: Connection, session: Session, mailer: Mailer) -> None: ...

    assert [kind for _, kind, _ in kinds(prepare, provided, ON_START)] == [
        Kind.CONNECTION,
        Kind.SESSION,
        Kind.INJECTED,
    ]


def test_an_optional_parameter_that_cannot_be_filled_keeps_its_default(provided: Any) -> None:
    def prepare(connection: Connection | None = None, context: ProcessingContext | None = None) -> None: ...

    assert kinds(prepare, provided, ON_START) == [("connection", Kind.CONNECTION, False)]


# Invalid signatures

RIGHT_FORM = (
    "annotate each parameter: an event class, dict, Event (raw), Metadata, ProcessingContext, sqlalchemy.Connection, "
    "sqlalchemy.orm.Session, or a type that the container provides; for example "
    "def lend(event: BookLent, connection: Connection) -> None"
)


LISTS = "take lists of both, such as events: list[BookLent], raws: list[Event], or take one event"


def unannotated(event) -> None: ...  # type: ignore[no-untyped-def]
def variadic(event: BookLent, *args: Any) -> None: ...
def variadic_by_name(event: BookLent, **kwargs: Any) -> None: ...
def builtin(event: str) -> None: ...
def list_of_what_is_provided(mailers: list[Mailer]) -> None: ...
def list_of_builtins(events: list[int]) -> None: ...
def list_of_connections(connections: list[Connection]) -> None: ...
def list_of_contexts(contexts: list[ProcessingContext]) -> None: ...
def list_of_anything(events: list) -> None: ...  # type: ignore[type-arg]
def tuple_of_events(events: tuple[BookLent, ...]) -> None: ...
def list_and_event(events: list[BookLent], raw: Event) -> None: ...
def event_and_metadata_lists(event: BookLent, metadata: list[Metadata]) -> None: ...
def two_lists(events: list[BookLent], others: list[BookReturned]) -> None: ...
def with_invocation(invocation: Invocation) -> None: ...
def unprovided(event: BookLent, other: Unprovided) -> None: ...
def maybe(event: Optional[BookLent]) -> None: ...  # noqa: UP045 the old spelling is meant
def half_an_event(event: BookLent | int) -> None: ...
def anything(event: Any) -> None: ...
def of_any_type(event: F) -> None: ...
def own_session(session: scoped_session[Any]) -> None: ...
def two_events(event: BookLent, other: BookReturned) -> None: ...
def event_and_mapping(event: BookLent, data: dict[str, Any]) -> None: ...
def for_type_checkers_only(event: Fraction) -> None: ...
def misspelled(event: BookLend) -> None: ...  # type: ignore[name-defined] # noqa: F821 that is the mistake
def broken(event: BookLent[int]) -> None: ...  # type: ignore[type-arg]
def broken_beside_usual_names(event: BookLent[int], connection: Connection) -> None: ...  # type: ignore[type-arg]
def yielding(event: BookLent) -> Iterator[None]:
    yield


async def yielding_asynchronously(event: BookLent) -> AsyncIterator[None]:
    yield


class Sender(Protocol):
    def send(self) -> None: ...


def of_a_protocol(event: BookLent, sender: Sender) -> None: ...
def of_a_protocol_or_none(event: BookLent, sender: Sender | None) -> None: ...


PROTOCOL_FIX = "annotate it with the class that a provider makes, or make Sender an abstract class (abc.ABC)"
WRONG = [
    (unannotated, "OCQ-201", "parameter 'event' has no annotation", RIGHT_FORM),
    (variadic, "OCQ-201", "parameter '*args' cannot be filled", RIGHT_FORM),
    (variadic_by_name, "OCQ-201", "parameter '**kwargs' cannot be filled", RIGHT_FORM),
    (builtin, "OCQ-201", "parameter 'event: str' cannot be filled", RIGHT_FORM),
    (
        unprovided,
        "OCQ-201",
        "parameter 'other: Unprovided' cannot be filled",
        "make Unprovided a dataclass or a pydantic model if it is an event, or have the container provide it",
    ),
    (
        of_a_protocol,
        "OCQ-201",
        "parameter 'sender: Sender' cannot be filled: Sender is a protocol, but providers are found by class",
        PROTOCOL_FIX,
    ),
    (
        of_a_protocol_or_none,
        "OCQ-201",
        "parameter 'sender: Sender | None' cannot be filled: Sender is a protocol, but providers are found by class",
        PROTOCOL_FIX,
    ),
    (maybe, "OCQ-201", "parameter 'event: BookLent | None' cannot be filled", RIGHT_FORM),
    (list_of_what_is_provided, "OCQ-201", "parameter 'mailers: list[Mailer]' cannot be filled", RIGHT_FORM),
    (list_of_builtins, "OCQ-201", "parameter 'events: list[int]' cannot be filled", RIGHT_FORM),
    (list_of_connections, "OCQ-201", "parameter 'connections: list[Connection]' cannot be filled", RIGHT_FORM),
    (list_of_contexts, "OCQ-201", "parameter 'contexts: list[ProcessingContext]' cannot be filled", RIGHT_FORM),
    (list_of_anything, "OCQ-201", "parameter 'events: list' cannot be filled", RIGHT_FORM),
    (tuple_of_events, "OCQ-201", "parameter 'events: tuple[BookLent, Ellipsis]' cannot be filled", RIGHT_FORM),
    (list_and_event, "OCQ-203", "events asks for the events of a chunk, raw for one event", LISTS),
    (event_and_metadata_lists, "OCQ-203", "metadata asks for the events of a chunk, event for one event", LISTS),
    (
        two_lists,
        "OCQ-203",
        "a handler takes one event, but events and others both ask for one",
        "use one parameter; A | B accepts events of either class",
    ),
    (
        with_invocation,
        "OCQ-205",
        "a handler is called for events and cannot have invocation",
        "def lend(event: BookLent, connection: Connection) -> None",
    ),
    (half_an_event, "OCQ-201", "parameter 'event: BookLent | int' cannot be filled", RIGHT_FORM),
    (anything, "OCQ-201", "parameter 'event: Any' cannot be filled", RIGHT_FORM),
    (of_any_type, "OCQ-201", "parameter 'event: ~F' cannot be filled", RIGHT_FORM),
    (own_session, "OCQ-201", "parameter 'session: scoped_session[Any]' cannot be filled", RIGHT_FORM),
    (
        two_events,
        "OCQ-203",
        "a handler takes one event, but event and other both ask for one",
        "use one parameter; A | B accepts events of either class",
    ),
    (
        event_and_mapping,
        "OCQ-203",
        "a handler takes one event, but event and data both ask for one",
        "use one parameter; A | B accepts events of either class",
    ),
    (
        for_type_checkers_only,
        "OCQ-202",
        "the annotations cannot be read (name 'Fraction' is not defined)",
        "import the annotated types at run time, not only under TYPE_CHECKING",
    ),
    (
        misspelled,
        "OCQ-202",
        "the annotations cannot be read (name 'BookLend' is not defined)",
        "import the annotated types at run time, not only under TYPE_CHECKING",
    ),
    (
        broken,
        "OCQ-202",
        "the annotations cannot be read (type 'BookLent' is not subscriptable)",
        "import the annotated types at run time, not only under TYPE_CHECKING",
    ),
    (
        broken_beside_usual_names,
        "OCQ-202",
        "the annotations cannot be read (type 'BookLent' is not subscriptable)",
        "import the annotated types at run time, not only under TYPE_CHECKING",
    ),
    (
        Reminders().forget,  # type: ignore[misc]  # as a type checker would say
        "OCQ-201",
        "'event' would be the instance, as the first parameter of the method forget",
        "write def forget(self, event: …)",
    ),
    (
        yielding,
        "OCQ-204",
        "a handler must not yield: its code would never run",
        "return nothing; use a plain or an async function",
    ),
    (
        yielding_asynchronously,
        "OCQ-204",
        "a handler must not yield: its code would never run",
        "return nothing; use a plain or an async function",
    ),
]


@pytest.mark.parametrize(("call", "code", "what", "fix"), WRONG, ids=[call.__name__ for call, *_ in WRONG])
def test_a_wrong_signature_is_refused_with_place_reason_and_the_right_form(
    call: Callable[..., Any], code: str, what: str, fix: str, provided: Any
) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        read_signature(call, "handlers.py:7 (lend)", provided)
    error = caught.value
    assert (error.code, error.what, error.where, error.fix) == (code, what, "handlers.py:7 (lend)", fix)


def prepare_by_yielding(connection: Connection) -> Iterator[None]:
    yield


def test_an_on_start_function_must_not_yield(provided: Any) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        read_signature(prepare_by_yielding, "handlers.py:7 (prepare)", provided, ON_START)
    assert (caught.value.code, caught.value.what, caught.value.fix) == (
        "OCQ-204",
        "an @on_start function must not yield: its code would never run",
        "def prepare(connection: Connection) -> None",
    )


def prepare_event(event: BookLent) -> None: ...
def prepare_all(raw: Event, connection: Connection, metadata: Metadata, context: ProcessingContext) -> None: ...


@pytest.mark.parametrize(("call", "named"), [(prepare_event, "event"), (prepare_all, "raw, metadata, context")])
def test_an_on_start_function_cannot_take_an_event(call: Callable[..., Any], named: str, provided: Any) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        read_signature(call, "handlers.py:7 (prepare)", provided, ON_START)
    assert str(caught.value) == (
        f"[OCQ-205] an @on_start function runs before any event and cannot have {named}\n"
        "  where: handlers.py:7 (prepare)\n"
        "  fix:   def prepare(connection: Connection) -> None"
    )


def test_a_class_with_the_name_of_a_known_class_is_not_mistaken_for_it(provided: Any) -> None:
    class Connection:
        pass

    def handle(event: BookLent, connection: Any) -> None: ...

    handle.__annotations__["connection"] = Connection
    with pytest.raises(HandlerSignatureError, match="parameter 'connection: Connection' cannot be filled"):
        read_signature(handle, "here", provided)

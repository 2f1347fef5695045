"""A chunk that is decoded together is handled as if event by event, for every kind of group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator
from support.library import Lent, Returned

from opencqrs_py import AfterCommit, Event, Metadata, event_type
from opencqrs_py.model import AroundMark, Handler, HandlerMark, Interceptor, Partition, ProcessingContext, Surrounded
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.processing.binding import NothingProvided, Work, bind
from opencqrs_py.processing.decoding import decoder_for
from opencqrs_py.processing.dispatch import ChunkFailedError, Dispatcher
from opencqrs_py.processing.field_names import spelling_of
from opencqrs_py.processing.interception import Interceptors

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session


CLASSES = (Lent, Returned)
GOOD = '{"isbn": "1"}'
Log = list[tuple[Any, ...]]


def event(position: int, kind: str = "lent", payload: str | None = GOOD) -> Event:
    return Event(position, str(position), "s", "/books/1", kind, None, "application/json", payload, '{"by":"ada"}')


def as_rows(events: Sequence[Event]) -> Chunk:
    whole = {one.position: one for one in events}
    return Chunk([(one.position, one.type, one.payload) for one in events], whole.__getitem__)


class OneByOne(Dispatcher):
    """Processes each event separately."""

    def handle(self, events: Sequence[Event], work: Work) -> int:
        self._decoded_together = lambda _events: None  # type: ignore[method-assign]
        return super().handle(events, work)


def outcome(handle: Callable[[], int], log: Log) -> tuple[Any, ...]:
    """Return the outcome of a call: the calls made, the number handled, and what failed where."""
    try:
        return (*log, handle())
    except ChunkFailedError as failure:
        return (*log, failure.index, type(failure.error), str(failure.error))


def groups(log: Log) -> dict[str, list[tuple[Callable[..., Any], tuple[str, ...]]]]:  # noqa: C901 one a kind
    """Return handlers for several groups, which record their calls and fail where an ISBN says so."""

    def note(*seen: Any) -> None:
        log.append(seen)
        if "fail" in str(seen):
            raise ValueError(seen)

    def lent(event: Lent) -> None:
        note("lent", event)

    def returned(event: Returned) -> None:
        note("returned", event)

    def with_connection(event: Lent | Returned, connection: Connection) -> None:
        note("connection", event, connection)

    def with_session(session: Session, *, event: Lent) -> None:
        note("session", event, session)

    def with_after_commit(event: Lent, after_commit: AfterCommit) -> None:
        after_commit(lambda: note("committed", event))
        note("after", event)

    def with_metadata(event: Lent, metadata: Metadata) -> None:
        note("metadata", event, metadata)

    def with_context(event: Lent, context: ProcessingContext) -> None:
        note("context", event, context.position)

    def with_raw(raw: Event) -> None:
        note("raw", raw.id)

    def as_dict(event: dict) -> None:  # type: ignore[type-arg]
        note("dict", event)

    def as_lists(events: list[Lent]) -> None:
        note("list", tuple(events))

    def list_and_context(events: list[Lent], context: ProcessingContext) -> None:
        note("list and context", tuple(events), context)

    def all_as_dicts(events: list[dict]) -> None:  # type: ignore[type-arg]
        note("dicts", tuple(map(str, events)))

    async def awaited(event: Lent) -> None:
        await asyncio.sleep(0)
        note("awaited", event)

    both = ("lent", "returned")
    return {
        "one class": [(lent, ())],
        "a class each": [(lent, ()), (returned, ())],
        "a union": [(with_connection, ())],
        "twice": [(lent, ()), (with_connection, ())],
        "session": [(with_session, ()), (returned, ())],
        "after commit": [(with_after_commit, ())],
        "metadata": [(with_metadata, ())],
        "context": [(with_context, ()), (returned, ())],
        "raw": [(with_raw, both)],
        "dict": [(as_dict, both)],
        "a dict or a class": [(as_dict, ("lent",)), (returned, ())],
        "list": [(as_lists, ())],
        "list and context": [(list_and_context, ())],
        "dicts": [(all_as_dicts, both)],
        "list and one": [(as_lists, ()), (returned, ())],
        "two lists": [(as_lists, ()), (all_as_dicts, ("returned",))],
        "async": [(awaited, ()), (returned, ())],
    }


def handled(
    group: str, events: Sequence[Event], kind: type[Dispatcher], interceptors: Interceptors | None = None
) -> tuple[Any, ...]:
    log: Log = []
    bound = [
        bind(Handler(HandlerMark("g", types), call, "here"), NothingProvided()) for call, types in groups(log)[group]
    ]
    dispatcher = kind(bound, CLASSES, interceptors=interceptors)

    class Unit:
        connection, session = "the connection", "the session"

        def flush(self) -> None:
            pass

    work = Work("g", Partition(1, 0), Unit())
    result = outcome(lambda: dispatcher.handle(Chunk.of(events), work), log)
    return (*log, result, [str(error) for error in work.committed()], len(log))


GROUPS = sorted(groups([]))
some_events = st.lists(
    st.tuples(
        st.sampled_from(["lent", "returned", "lost"]),
        st.sampled_from([GOOD, GOOD, GOOD, '{"isbn": "fail"}', '{"other": 1}', "[1]", "null", "no JSON", None]),
    ),
    max_size=8,
).map(lambda given: [event(n, *one) for n, one in enumerate(given, 1)])


@pytest.mark.parametrize("group", GROUPS)
@given(events=some_events)
def test_events_have_the_same_effect_together_or_one_by_one(group: str, events: list[Event]) -> None:
    one_by_one = handled(group, events, OneByOne)
    assert handled(group, events, Dispatcher) == one_by_one
    assert handled(group, as_rows(events), Dispatcher) == one_by_one


@pytest.mark.parametrize(
    "group", ["one class", "a class each", "a union", "session", "dict", "a dict or a class", "async"]
)
def test_an_ordinary_chunk_is_not_processed_event_by_event(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dispatcher, "_run_for", None)
    events = [event(n, "lent") for n in range(1, 4)]
    assert handled(group, events, Dispatcher)[-1] == 3
    assert handled(group, as_rows(events), Dispatcher)[-1] == 3


@pytest.mark.parametrize("group", ["list", "dicts", "list and context"])
def test_the_list_of_an_ordinary_chunk_is_built_without_processing_each_event(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dispatcher, "_run_for", None)
    events = [event(n, "lent") for n in range(1, 4)]
    assert handled(group, events, Dispatcher)[-1] == 1
    assert handled(group, as_rows(events), Dispatcher)[-1] == 1


@pytest.mark.parametrize("kind", [Dispatcher, OneByOne])
def test_a_transaction_without_the_requested_resource_fails_with_the_first_event(kind: type[Dispatcher]) -> None:
    calls = groups([])["session"]
    dispatcher = kind([bind(Handler(HandlerMark("g"), calls[0][0], "here"), NothingProvided())], CLASSES)
    with pytest.raises(ChunkFailedError) as caught:
        dispatcher.handle(Chunk([event(1), event(2)]), Work("g", Partition(1, 0), object()))  # type: ignore[arg-type]
    assert (caught.value.index, type(caught.value.error)) == (0, AttributeError)


@pytest.mark.parametrize("surrounded", Surrounded)
def test_an_interceptor_runs_around_each_call(surrounded: Surrounded) -> None:
    seen: list[int] = []

    def around() -> Iterator[None]:
        seen.append(1)
        yield

    interceptors = Interceptors([Interceptor(AroundMark(surrounded), around, "here")])
    handled("a class each", [event(1), event(2, "returned"), event(3)], Dispatcher, interceptors)
    assert len(seen) == 3


def test_a_provided_argument_is_resolved_for_each_event() -> None:
    class Provides:
        def __init__(self) -> None:
            self.made = 0

        def provides(self, wanted: object) -> bool:
            return wanted is Mailer

        def provide(self, _wanted: object) -> Any:
            self.made += 1
            return self.made

    seen: list[Any] = []

    def mail(event: Lent, mailer: Mailer) -> None:
        seen.append(mailer)

    dispatcher = Dispatcher([bind(Handler(HandlerMark("g"), mail, "here"), Provides())], CLASSES)
    dispatcher.handle(Chunk([event(1), event(2)]), Work("g", Partition(1, 0), object()))  # type: ignore[arg-type]
    assert seen == [1, 2]


class Mailer:
    """Something that the container provides."""


class PanicException(BaseException):
    """What a panic of a Rust extension becomes."""


@event_type("lent")
class Panicking(BaseModel):
    isbn: str

    @field_validator("isbn")
    @classmethod
    def check(cls, isbn: str) -> str:
        if isbn == "panic":
            raise PanicException(isbn)
        return isbn


@pytest.mark.parametrize("rows", [True, False])
def test_a_panic_during_decoding_is_attributed_to_its_event(rows: bool) -> None:  # noqa: FBT001 a parameter
    handled: list[str] = []

    def handle(event: Panicking) -> None:
        handled.append(event.isbn)

    bound = bind(Handler(HandlerMark("group"), handle, "here"), NothingProvided())
    events = [event(n, payload=f'{{"isbn": "{"panic" if n == 3 else n}"}}') for n in range(1, 6)]
    work = Work("g", Partition(1, 0), object())  # type: ignore[arg-type]
    with pytest.raises(ChunkFailedError) as caught:
        Dispatcher([bound]).handle(as_rows(events) if rows else Chunk(events), work)
    assert (caught.value.index, type(caught.value.error), handled) == (2, PanicException, ["1", "2"])


@event_type("lent")
@dataclass(frozen=True)
class WithDefault:
    isbn: str
    pages: int = 0


@pytest.mark.parametrize("rows", [True, False])
def test_data_that_are_not_json_fail_their_event_even_if_spellings_are_checked(rows: bool) -> None:  # noqa: FBT001 a parameter
    spelling_of.cache_clear()
    decoder_for.cache_clear()
    handled: list[str] = []

    def handle(event: WithDefault) -> None:
        handled.append(event.isbn)

    bound = bind(Handler(HandlerMark("group"), handle, "here"), NothingProvided())
    events = [event(n, payload="{bad" if n == 3 else f'{{"isbn": "{n}"}}') for n in range(1, 6)]
    work = Work("g", Partition(1, 0), object())  # type: ignore[arg-type]
    with pytest.raises(ChunkFailedError, match=r"OCQ-210.*not JSON(.|\n)*event 3 at position 3") as caught:
        Dispatcher([bound]).handle(as_rows(events) if rows else Chunk(events), work)
    assert (caught.value.index, handled) == (2, ["1", "2"])


@event_type("lent")
class LookedUp(BaseModel):
    isbn: str

    @field_validator("isbn")
    @classmethod
    def check(cls, isbn: str) -> str:
        if isbn == "3":
            raise KeyError
        return dict.fromkeys(range(4), isbn)[int(isbn)]


@pytest.mark.parametrize("failing", [3, 4])
@pytest.mark.parametrize("types", [(), ("lent",)])
def test_a_key_error_of_a_validator_is_attributed_to_its_event(failing: int, types: tuple[str, ...]) -> None:
    def handle(event: LookedUp) -> None: ...

    bound = bind(Handler(HandlerMark("group", types), handle, "here"), NothingProvided())
    events = [event(n, payload=f'{{"isbn": "{isbn}"}}') for n, isbn in enumerate((1, 2, failing, 1), 1)]
    work = Work("g", Partition(1, 0), object())  # type: ignore[arg-type]
    with pytest.raises(ChunkFailedError) as caught:
        Dispatcher([bound]).handle(Chunk(events), work)
    assert (caught.value.index, repr(caught.value.error)) == (2, "KeyError()" if failing == 3 else "KeyError(4)")

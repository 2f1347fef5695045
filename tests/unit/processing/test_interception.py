"""Interception: the user's generator functions around events and single handler calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest
from support.library import Lent

from opencqrs_py import AfterCommit, Event, Invocation, Metadata, ProcessingContext
from opencqrs_py.errors import HandlerSignatureError, ProjectCodeError
from opencqrs_py.model import AroundMark, Handler, HandlerMark, Interceptor, Partition, Surrounded, Upcast, Upcaster
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.processing.binding import NothingProvided, Work, bind
from opencqrs_py.processing.dispatch import ChunkFailedError, Dispatcher
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.reading import Reading, Upcasters

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

EVENT, HANDLER = Surrounded.EVENT, Surrounded.HANDLER
Around = tuple[Surrounded, Callable[..., Any]]
span: ContextVar[str] = ContextVar("span", default="none")


class Tracer:
    pass


class World:
    """Handlers and interceptors that record the calls in order."""

    def __init__(self, injector: Any, unit: Any) -> None:
        self.notes: list[str] = []
        self.injector = injector
        self.unit = unit
        self.handlers: list[Any] = []

    def around(self, name: str) -> Callable[[], Iterator[None]]:
        def interceptor() -> Iterator[None]:
            self.notes.append(f"{name} in")
            yield
            self.notes.append(f"{name} out")

        return interceptor

    def catching(self, name: str) -> Callable[[], Iterator[None]]:
        def interceptor() -> Iterator[None]:
            try:
                yield
            except ValueError as error:
                self.notes.append(f"{name} caught {error}")

        return interceptor

    def handles(self, call: Callable[..., Any] | str, *, types: Sequence[str] = ()) -> None:
        if isinstance(call, str):
            name = call

            def handle(raw: Event) -> None:
                self.notes.append(name)
                if name.startswith("failing"):
                    raise ValueError(name)

            call = handle
        place = f"handlers.py:{len(self.handlers) + 1}"
        self.handlers.append(bind(Handler(HandlerMark("group", tuple(types)), call, place), self.injector))

    def run(self, *around: Around, events: Sequence[Event] = (), reading: Reading | None = None) -> int:
        interceptors = Interceptors(
            [
                Interceptor(AroundMark(surrounded), call, f"around.py:{n}")
                for n, (surrounded, call) in enumerate(around)
            ],
            self.injector,
        )
        dispatcher = Dispatcher(self.handlers, [Lent], reading, interceptors)
        work = Work("group", Partition(2, 1), self.unit, failing=7, attempt=3)
        try:
            return dispatcher.handle(Chunk.of(events or [event()]), work)
        except ChunkFailedError as failure:
            raise failure.error from None


def event(position: int = 7, event_type: str = "lent", payload: str = '{"isbn": "1"}') -> Event:
    return Event(
        position, str(position), "s", "/books/1", event_type, None, "application/json", payload, '{"by": "Ada"}'
    )


@pytest.fixture
def world(injector: Any, unit: Any) -> World:
    return World(injector, unit)


# What is intercepted, in which order


def test_the_first_interceptor_is_the_outermost(world: World) -> None:
    world.handles("one")
    world.handles("two")
    world.run(
        (EVENT, world.around("event 1")),
        (HANDLER, world.around("handler 1")),
        (EVENT, world.around("event 2")),
        (HANDLER, world.around("handler 2")),
    )
    inside = [f"handler {n} in" for n in (1, 2)], [f"handler {n} out" for n in (2, 1)]
    expected = ["event 1 in", "event 2 in"]
    for name in ("one", "two"):
        expected += [*inside[0], name, *inside[1]]
    assert world.notes == [*expected, "event 2 out", "event 1 out"]


def test_an_event_is_intercepted_once_regardless_of_its_upcast_results(world: World) -> None:
    def split(data: dict[str, Any]) -> list[Upcast]:
        return [Upcast("lent", data), Upcast("unwanted", data), Upcast("lent", data)]

    reading = Reading(Upcasters([Upcaster(("lent.v1",), split, "here")], NothingProvided()))
    world.handles("lent", types=["lent"])
    assert world.run((EVENT, world.around("event")), events=[event(7, "lent.v1")], reading=reading) == 1
    assert world.notes == ["event in", "lent", "lent", "event out"]


def test_events_that_no_handler_takes_are_not_intercepted(world: World) -> None:
    world.handles("lent", types=["lent"])
    assert world.run((EVENT, world.around("event")), events=[event(1, "other"), event(2)]) == 1
    assert world.notes == ["event in", "lent", "event out"]


def test_list_handlers_run_inside_handler_interceptors_but_outside_event_interceptors(world: World) -> None:
    def handle(events: list[Lent]) -> None:
        world.notes.append(f"{len(events)} at once")

    world.handles(handle)
    world.handles("one")
    world.run((EVENT, world.around("event")), (HANDLER, world.around("handler")), events=[event(1), event(2)])
    each = ["event in", "handler in", "one", "handler out", "event out"]
    assert world.notes == [*each, *each, "handler in", "2 at once", "handler out"]


# What interceptors see


def test_an_event_interceptor_may_take_parts_of_the_event(world: World) -> None:
    seen: dict[str, Any] = {}
    world.injector.provided[Tracer] = lambda: "tracer"

    def around(
        raw: Event,
        metadata: Metadata,
        context: ProcessingContext,
        connection: Connection,
        session: Session,
        after_commit: AfterCommit,
        tracer: Tracer,
    ) -> Iterator[None]:
        seen.update(raw=raw, metadata=metadata, context=context, connection=connection, session=session, tracer=tracer)
        assert isinstance(after_commit, AfterCommit)
        yield

    world.handles("one")
    world.run((EVENT, around))
    assert seen == {
        "raw": event(),
        "metadata": {"by": "Ada"},
        "context": ProcessingContext("group", Partition(2, 1), 7, 3),
        "connection": world.unit.connection,
        "session": world.unit.session,
        "tracer": "tracer",
    }


def test_interceptors_get_the_same_metadata_as_handlers(world: World) -> None:
    seen: list[Metadata] = []

    def around(metadata: Metadata) -> Iterator[None]:
        seen.append(metadata)
        yield

    def handle(metadata: Metadata) -> None:
        seen.append(metadata)

    world.handles(handle)
    wrapped = event(payload='{"payload": {}, "metadata": {"by": "Bob"}}')
    world.run((EVENT, around), events=[wrapped], reading=Reading(enveloped=True))
    assert seen == [{"by": "Bob"}] * 2


def test_a_handler_interceptor_gets_the_invocation(world: World) -> None:
    seen: list[Invocation] = []

    def around(invocation: Invocation) -> Iterator[None]:
        seen.append(invocation)
        yield

    def handle_all(raws: list[Event]) -> None: ...

    world.handles("one")
    world.handles(handle_all)
    world.run((HANDLER, around), events=[event(6), event(7)])
    six, seven = (ProcessingContext("group", Partition(2, 1), n, attempt) for n, attempt in ((6, 1), (7, 3)))
    assert seen == [
        Invocation("handlers.py:1", (event(6),), six),
        Invocation("handlers.py:1", (event(7),), seven),
        Invocation("handlers.py:2", (event(6), event(7)), six),
    ]


# What interceptors do


def test_an_error_is_raised_inside_the_interceptor_and_propagates_unless_caught(world: World) -> None:
    seen: list[str] = []

    def around() -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            seen.append(str(error))
            raise
        finally:
            seen.append("out")

    world.handles("failing")
    world.handles("behind")
    with pytest.raises(ValueError, match="failing"):
        world.run((EVENT, around), (HANDLER, around))
    assert seen == ["failing", "out", "failing", "out"]
    assert world.notes == ["failing"]


def test_an_interceptor_may_raise_another_error(world: World) -> None:
    def around() -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise KeyError("mine") from error

    world.handles("failing")
    with pytest.raises(KeyError):
        world.run((HANDLER, around))


def test_an_error_caught_around_a_handler_does_not_stop_later_handlers(world: World) -> None:
    world.handles("failing")
    world.handles("behind")
    assert world.run((HANDLER, world.catching("handler"))) == 1
    assert world.notes == ["failing", "handler caught failing", "behind"]


def test_an_error_caught_around_an_event_ends_only_the_handlers_of_that_event(world: World) -> None:
    world.handles("failing")
    world.handles("behind")
    assert world.run((EVENT, world.catching("event")), events=[event(1), event(2)]) == 2
    assert world.notes == ["failing", "event caught failing"] * 2


@pytest.mark.parametrize("surrounded", [EVENT, HANDLER])
def test_an_outer_interceptor_may_catch_an_error_that_an_inner_one_raises_before_the_call(
    world: World, surrounded: Surrounded
) -> None:
    def refusing() -> Iterator[None]:
        raise ValueError("refused")
        yield

    world.handles("one")
    assert world.run((surrounded, world.catching("outer")), (surrounded, refusing)) == 1
    assert world.notes == ["outer caught refused"]


def never() -> Iterator[None]:
    yield from ()


def twice() -> Iterator[None]:
    yield
    yield


def again_after_an_error() -> Iterator[None]:
    try:
        yield
    except ValueError:
        yield


def unwilling_to_end() -> Iterator[None]:
    yield
    try:
        yield
    except GeneratorExit:
        yield


@wraps(never)
def no_generator() -> Any:
    return None


NEVER = "ended without a yield, so that no handler was called"
TWICE = "yielded a second time"


@pytest.mark.parametrize("surrounded", [EVENT, HANDLER])
@pytest.mark.parametrize(
    ("around", "handler", "what"),
    [
        (never, "one", NEVER),
        (twice, "one", TWICE),
        (again_after_an_error, "failing", TWICE),
        (unwilling_to_end, "one", TWICE),
        (no_generator, "one", "returned a NoneType, which is not a generator"),
    ],
)
def test_an_interceptor_that_does_not_yield_exactly_once_is_named_and_not_the_event(
    world: World, surrounded: Surrounded, around: Callable[..., Any], handler: str, what: str
) -> None:
    world.handles(handler)
    with pytest.raises(ProjectCodeError) as caught:
        world.run((surrounded, around))
    assert caught.value.code == "OCQ-218"
    assert caught.value.what == f"the interceptor around.py:0 {what}"


def swallowing() -> Iterator[None]:
    with suppress(BaseException):
        yield


@pytest.mark.parametrize("surrounded", [EVENT, HANDLER])
@pytest.mark.parametrize("around", [never, twice])
def test_an_outer_interceptor_cannot_catch_the_misuse_of_an_inner_one(
    world: World, surrounded: Surrounded, around: Callable[..., Any]
) -> None:
    world.handles("one")
    with pytest.raises(ProjectCodeError, match=r"around\.py:1"):
        world.run((surrounded, swallowing), (surrounded, around))


def raising_provider() -> Any:
    raise ConnectionRefusedError("the mail server is away")


@pytest.mark.parametrize("surrounded", [EVENT, HANDLER])
def test_interceptors_cannot_catch_the_failure_of_a_provider(world: World, surrounded: Surrounded) -> None:
    def handle(event: Lent, tracer: Tracer) -> None: ...

    world.injector.provided[Tracer] = raising_provider
    world.handles(handle)
    with pytest.raises(ProjectCodeError, match="OCQ-217"):
        world.run((surrounded, swallowing))


def test_a_failing_provider_of_an_interceptor_is_named(world: World) -> None:
    def traced(tracer: Tracer) -> Iterator[None]:
        yield

    world.injector.provided[Tracer] = raising_provider
    world.handles("one")
    with pytest.raises(ProjectCodeError) as caught:
        world.run((EVENT, traced))
    assert caught.value.what == (
        "argument 'tracer' of around.py:0 cannot be provided: ConnectionRefusedError: the mail server is away"
    )


def test_no_interceptor_can_swallow_an_interrupt(world: World) -> None:
    def handle(raw: Event) -> None:
        raise KeyboardInterrupt

    world.handles(handle)
    with pytest.raises(KeyboardInterrupt):
        world.run((EVENT, swallowing), (HANDLER, swallowing))


class OddStop(StopIteration):
    pass


@pytest.mark.parametrize("surrounded", [EVENT, HANDLER])
@pytest.mark.parametrize(
    "error",
    [StopIteration(7), OddStop(), RuntimeError("mine"), GeneratorExit(), ValueError("x"), SystemExit(2)],
    ids=repr,
)
def test_every_error_of_a_handler_propagates_unchanged(
    world: World, surrounded: Surrounded, error: BaseException
) -> None:
    def handle(raw: Event) -> None:
        raise error

    world.handles(handle)
    with pytest.raises(type(error)) as caught:
        world.run((surrounded, world.around("outer")), (surrounded, world.around("inner")))
    assert caught.value is error
    assert world.notes == ["outer in", "inner in"]


@pytest.mark.parametrize("surrounded", [EVENT, HANDLER])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_raised_by_an_interceptor_is_attributed_to_the_event(
    world: World, surrounded: Surrounded, when: str
) -> None:
    mine = LookupError(when)

    def around() -> Iterator[None]:
        if when == "before":
            raise mine
        yield
        raise mine

    world.handles("one")
    with pytest.raises(LookupError) as caught:
        world.run((surrounded, around))
    assert caught.value is mine
    assert world.notes == ([] if when == "before" else ["one"])


def test_an_async_handler_completes_before_the_interceptor_continues(world: World) -> None:
    async def handle(raw: Event) -> None:
        await asyncio.sleep(0)
        world.notes.append(f"done in span {span.get()}")

    def traced() -> Iterator[None]:
        token = span.set("mine")
        yield
        span.reset(token)
        world.notes.append("out")

    world.handles(handle)
    world.run((HANDLER, traced))
    assert world.notes == ["done in span mine", "out"]


# Misuse


def plain() -> None: ...
async def asynchronous() -> None: ...
async def asynchronous_generator() -> AsyncIterator[None]:
    yield


def with_event(event: Lent) -> Iterator[None]:
    yield


def with_invocation(invocation: Invocation) -> Iterator[None]:
    yield


def with_raw(raw: Event) -> Iterator[None]:
    yield


def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def wrapper(*given: Any, **more: Any) -> Any:
        return call(*given, **more)

    return wrapper


def with_lists(raws: list[Event]) -> Iterator[None]:
    yield


ONCE = "must be a plain function that yields once, where the surrounded call is to run"
NO_MANAGER = "must be the generator function itself, not a context manager made of it"
AN_EVENT = "an @around_event function surrounds the handlers of one event, whatever its class"
A_CALL = "an @around_handler function surrounds one call of any handler"


@pytest.mark.parametrize(
    ("surrounded", "call", "code", "what"),
    [
        (EVENT, plain, "OCQ-204", f"an @around_event function {ONCE}"),
        (EVENT, asynchronous, "OCQ-204", f"an @around_event function {ONCE}"),
        (EVENT, asynchronous_generator, "OCQ-204", f"an @around_event function {ONCE}"),
        (HANDLER, plain, "OCQ-204", f"an @around_handler function {ONCE}"),
        (HANDLER, asynchronous_generator, "OCQ-204", f"an @around_handler function {ONCE}"),
        (EVENT, contextmanager(with_raw), "OCQ-204", f"an @around_event function {NO_MANAGER}"),
        (HANDLER, wrapped(contextmanager(never)), "OCQ-204", f"an @around_handler function {NO_MANAGER}"),
        (HANDLER, asynccontextmanager(asynchronous_generator), "OCQ-204", f"an @around_handler function {NO_MANAGER}"),
        (EVENT, with_event, "OCQ-205", f"{AN_EVENT} and cannot have event"),
        (EVENT, with_invocation, "OCQ-205", f"{AN_EVENT} and cannot have invocation"),
        (EVENT, with_lists, "OCQ-205", "an @around_event function sees one event at a time, but raws asks for a list"),
        (HANDLER, with_event, "OCQ-205", f"{A_CALL} and cannot have event"),
        (HANDLER, with_raw, "OCQ-205", f"{A_CALL} and cannot have raw"),
    ],
)
def test_a_wrong_signature_is_refused_at_startup(
    surrounded: Surrounded, call: Callable[..., Any], code: str, what: str
) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        Interceptors([Interceptor(AroundMark(surrounded), call, "around.py:7")])
    assert (caught.value.code, caught.value.what, caught.value.where) == (code, what, "around.py:7")


def test_a_handler_cannot_take_the_invocation(injector: Any) -> None:
    def handle(invocation: Invocation) -> None: ...

    with pytest.raises(HandlerSignatureError, match="a handler is called for events and cannot have invocation"):
        bind(Handler(HandlerMark("group"), handle, "here"), injector)

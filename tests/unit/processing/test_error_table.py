"""The error table: each row of the original's, with our changes, from the error to the state."""

from __future__ import annotations

from asyncio import CancelledError, TaskGroup
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from support.library import Lent, Returned

from opencqrs_py import Event, NonTransientError, TransientError, Upcast
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.errors import AssemblyError, EventStoreError, HandlerSignatureError, OpenCqrsError
from opencqrs_py.model import (
    AroundMark,
    Cursor,
    Handler,
    HandlerMark,
    Interceptor,
    Outcome,
    ProcessorState,
    Selection,
    Slice,
    Surrounded,
    Upcaster,
    layout,
)
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.binding import NothingProvided, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.feed import Feed
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.processor import PartitionProcessor, ProcessorParts
from opencqrs_py.processing.reading import Reading, Upcasters
from opencqrs_py.processing.recovery import Action, FixedBackOff
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByObject, sequencing_for
from opencqrs_py.processing.supervision import SupervisedPartition
from opencqrs_py.testing import FakeClock

if TYPE_CHECKING:
    from sqlalchemy import Connection


class Mailer:
    pass


class Store(InMemoryEventStore):
    """A store that can be made to raise; ``EOFError`` means an outage."""

    error: BaseException | None = None

    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        if self.error is not None:
            raise self.error
        return super().read(after, limit, selection, upto)

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, EOFError)


class World:
    """One event, one handler, two partitions; each part that is set to an error raises it."""

    def __init__(self, database: Any, injector: Any) -> None:
        self.database = database
        self.injector = injector
        self.store = Store()
        self.tracker = InMemoryProgressTracker(database)
        self.handler_raises: BaseException | None = None
        self.handler: Callable[..., Any] = self.handle
        self.event_type, self.payload = "lent", '{"isbn": "1"}'
        self.resolver: Callable[..., Any] = PerSubject()
        self.upcasters: list[Upcaster] = []
        self.interceptors: list[Interceptor] = []
        self.notices: list[Any] = []

    def handle(self, event: Lent, connection: Connection) -> None:
        connection.append(event.isbn)  # type: ignore[attr-defined]
        if self.handler_raises is not None:
            raise self.handler_raises

    def supervised(self) -> SupervisedPartition:
        owner = "/order/4"  # of partition 1/2
        self.store.append([Event(0, "1", "s", owner, self.event_type, None, "application/json", self.payload, None)])
        cursor = self.tracker.claim("group", layout(2), 0, "owner")[1]
        return SupervisedPartition("group", cursor, FixedBackOff(1, 2), OnExhausted.SKIP, FakeClock())

    def step(self, partition: SupervisedPartition) -> Outcome:
        types = EventTypes([Lent, Returned])
        reading = Reading(Upcasters(self.upcasters, NothingProvided()))
        sequencing = sequencing_for(self.resolver, types, reading, "by_something")
        belongs = sequencing.belongs if isinstance(sequencing, SequencingByObject) else None
        handler = bind(Handler(HandlerMark("group"), self.handler, "handlers.py:7"), self.injector)
        interceptors = Interceptors(self.interceptors, self.injector)
        dispatcher = Dispatcher([handler], types, reading, interceptors, belongs)
        feed = Feed(self.store, Selection(), sequencing, 10, wanted=dispatcher.wants)
        processor = PartitionProcessor(partition.partition, ProcessorParts("group", feed, self.tracker, dispatcher, 10))
        outcome = processor.step(partition.cursor)
        self.notices.append(partition.take(outcome))
        return outcome


@pytest.fixture
def world(database: Any, injector: Any) -> World:
    return World(database, injector)


class PanicException(BaseException):
    """What a panic of a Rust extension becomes."""


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class ClosedError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise ValueError(name)


# The arrangement of a row, and the resulting action


def handler_raises(error: BaseException) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        world.handler_raises = error

    return arrange


def async_handler_raises(error: BaseException) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        async def handle(event: Lent) -> None:
            raise error

        world.handler = handle

    return arrange


def handler_recurses(world: World) -> None:
    def handle(event: Lent) -> None:
        handle(event)

    world.handler = handle


def tasks_raise(*errors: BaseException) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        async def fail(error: BaseException) -> None:
            raise error

        async def handle(event: Lent) -> None:
            async with TaskGroup() as tasks:
                for error in errors:
                    tasks.create_task(fail(error))

        world.handler = handle

    return arrange


def own_pool_is_closed(world: World) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()

    def handle(event: Lent) -> None:
        pool.submit(print, event)

    world.handler = handle


def payload_is(payload: str | None) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        world.payload = payload  # type: ignore[assignment]

    return arrange


def argument_cannot_be_made(world: World) -> None:
    def make() -> Mailer:
        raise AssemblyError("OCQ-503", "2 providers make Mailer")

    def handle(event: Lent, mailer: Mailer) -> None: ...

    world.injector.provided[Mailer] = make
    world.handler = handle


def provider_raises(error: BaseException) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        def make() -> Mailer:
            raise error

        def handle(event: Lent, mailer: Mailer) -> None: ...

        world.injector.provided[Mailer] = make
        world.handler = handle

    return arrange


def interceptor_is(call: Callable[..., Any]) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        world.interceptors = [Interceptor(AroundMark(Surrounded.EVENT), call, "around.py:3")]

    return arrange


def never() -> Iterator[None]:
    yield from ()


def twice() -> Iterator[None]:
    yield
    yield


def raising_before() -> Iterator[None]:
    raise LookupError("no tenant")
    yield


def raising_after() -> Iterator[None]:
    yield
    raise LookupError("no tenant")


def resolver_is(resolver: Callable[..., Any]) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        world.resolver = resolver

    return arrange


def raising_resolver(event: Event) -> str:
    raise LookupError(event.subject)


def panicking_resolver(event: Event) -> str:
    raise PanicException(event.subject)


def resolver_without_result(event: Event) -> Any:
    return None


def resolver_of_another_class(event: Returned) -> str:
    return event.isbn


def upcaster_is(call: Callable[..., Any]) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        world.event_type = "lent.v0"
        world.upcasters = [Upcaster(("lent.v0",), call, "upcasters.py:3")]

    return arrange


def raising_upcaster(raw: Event) -> Upcast:
    raise LookupError(raw.subject)


def panicking_upcaster(raw: Event) -> Upcast:
    raise PanicException(raw.subject)


def cyclic_upcaster(raw: Event) -> Upcast:
    return Upcast("lent.v0", raw.data)


def upcaster_without_database(raw: Event) -> Upcast:
    raise ConnectionError("away")


def commit_raises(error: BaseException) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        world.database.fails_on_commit = error

    return arrange


def transaction_does_not_open(error: Exception) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        world.database.away = error

    return arrange


def store_raises(error: BaseException) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        world.store.error = error

    return arrange


def tracker_raises(error: Exception) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        @contextmanager
        def unit(group: str, cursor: Cursor, to: int, **recorded: Any) -> Iterator[Any]:
            raise error
            yield

        world.tracker.unit = unit  # type: ignore[method-assign]

    return arrange


NESTED = ExceptionGroup("outer", [ExceptionGroup("inner", [NonTransientError("never")])])
RETRY, STOP, WAIT = Action.RETRY, Action.STOP, Action.WAIT
TABLE: list[tuple[str, Callable[[World], None], Action]] = [
    ("handler: non-transient", handler_raises(NonTransientError("never")), STOP),
    ("handler: non-transient, a subclass", handler_raises(AssemblyError("OCQ-503", "no Mailer")), STOP),
    ("handler: the base class of all errors", handler_raises(OpenCqrsError("odd")), RETRY),
    ("handler: transient", handler_raises(TransientError("later")), RETRY),
    ("handler: any exception", handler_raises(ValueError("mine")), RETRY),
    ("handler: out of memory", handler_raises(MemoryError()), RETRY),
    ("handler, wrapped there: non-transient", async_handler_raises(NonTransientError("never")), STOP),
    ("handler, wrapped there: anything else", async_handler_raises(ValueError("mine")), RETRY),
    ("handler, wrapped there: interrupted", async_handler_raises(InterruptedError("mine")), RETRY),
    ("handler: rejected by the user's own pool (K6)", own_pool_is_closed, RETRY),
    ("handler: a cancelled future (K6)", handler_raises(CancelledError("mine")), RETRY),
    ("handler: a cancelled task (K6)", async_handler_raises(CancelledError("mine")), RETRY),
    ("handler: exits the process (K6)", handler_raises(SystemExit(3)), STOP),
    ("handler: a panic of a Rust extension", handler_raises(PanicException("out of bounds")), RETRY),
    ("handler, wrapped there: a panic", async_handler_raises(PanicException("out of bounds")), RETRY),
    ("handler: a group with a panic", handler_raises(BaseExceptionGroup("two", [PanicException()])), RETRY),
    ("handler: tasks of a group, any exception", tasks_raise(ValueError("a"), KeyError("b")), RETRY),
    ("handler: tasks of a group, one non-transient", tasks_raise(ValueError("a"), NonTransientError("never")), STOP),
    ("handler: tasks of a group, a database outage (K4)", tasks_raise(KeyError("a"), ConnectionError("away")), WAIT),
    ("handler: a group in a group, non-transient", handler_raises(NESTED), STOP),
    ("handler: the end of a generator", handler_raises(GeneratorExit()), RETRY),
    ("handler: an error without a text", handler_raises(SilentError()), RETRY),
    ("handler: an error that cannot be inspected", handler_raises(ClosedError()), RETRY),
    ("handler: infinite recursion", handler_recurses, RETRY),
    ("handler: a lone surrogate", handler_raises(ValueError("\ud800")), RETRY),
    ("handler: a database outage (K4)", handler_raises(ConnectionError("away")), WAIT),
    ("handler: an event store outage (K1)", handler_raises(EOFError("away")), WAIT),
    ("inside, non-transient: a cycle of upcasters", upcaster_is(cyclic_upcaster), STOP),
    ("inside, non-transient: undecodable payload", payload_is("{"), STOP),
    ("inside, non-transient: payload of another shape", payload_is("{}"), STOP),
    ("inside, non-transient: no payload (K14)", payload_is(None), STOP),
    ("inside, non-transient: an argument that cannot be injected", argument_cannot_be_made, STOP),
    ("inside, other: a provider that raises (K3)", provider_raises(LookupError("no mail")), STOP),
    ("inside, other: a provider in a database outage (K4)", provider_raises(ConnectionError("away")), WAIT),
    ("inside, other: a provider that panics", provider_raises(PanicException("no mail")), STOP),
    ("inside, other: an interceptor that never yields", interceptor_is(never), STOP),
    ("inside, other: an interceptor that yields twice", interceptor_is(twice), STOP),
    ("interceptor: raises before its yield", interceptor_is(raising_before), RETRY),
    ("interceptor: raises after its yield", interceptor_is(raising_after), RETRY),
    ("inside, other: a sequence resolver that raises (K3)", resolver_is(raising_resolver), STOP),
    ("inside, other: a sequence resolver that panics", resolver_is(panicking_resolver), STOP),
    ("inside, other: no sequence id (K3)", resolver_is(resolver_without_result), STOP),
    ("inside, other: an upcaster that raises (K3)", upcaster_is(raising_upcaster), STOP),
    ("inside, other: an upcaster that panics", upcaster_is(panicking_upcaster), STOP),
    ("inside, other: an upcaster in a database outage (K4)", upcaster_is(upcaster_without_database), WAIT),
    ("inside, other: an object that the resolver does not accept (K3)", resolver_is(resolver_of_another_class), STOP),
    ("inside, progress: a database outage (K4)", commit_raises(ConnectionError("away")), WAIT),
    ("inside, progress: the commit fails", commit_raises(ValueError("constraint")), RETRY),
    ("inside, progress: it cannot be stored (K3)", tracker_raises(LookupError("no such table")), STOP),
    ("outside: an event store outage (K1, K2)", store_raises(EOFError("away")), WAIT),
    ("outside: non-transient from the store", store_raises(EventStoreError("OCQ-303", "no driver")), STOP),
    ("outside: anything else from the store", store_raises(OpenCqrsError("odd")), STOP),
    ("outside: an unknown error from the store", store_raises(LookupError("odd")), STOP),
    ("inside, progress: a panic at the commit", commit_raises(PanicException("constraint")), RETRY),
    ("outside: a panic of the store", store_raises(PanicException("odd")), STOP),
    ("outside: progress cannot be read, a database outage (K4)", transaction_does_not_open(ConnectionError()), WAIT),
    ("outside: progress cannot be read, for another reason", transaction_does_not_open(LookupError("odd")), STOP),
]
STATES = {
    RETRY: ProcessorState.BACKING_OFF,
    STOP: ProcessorState.FAILED,
    WAIT: ProcessorState.WAITING,
}


@pytest.mark.parametrize(("arrange", "action"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_error_leads_to_its_action(world: World, arrange: Callable[[World], None], action: Action) -> None:
    arrange(world)
    partition = world.supervised()
    world.step(partition)
    (notice,) = world.notices
    assert notice.action is action
    assert notice.failure is not None
    assert partition.state is STATES[action]
    assert (partition.cursor.position, partition.cursor.stored) == (0, 0), "nothing is skipped"
    assert world.database.rows == []
    assert partition.wait() > 0, "it is tried again, after a wait (K8)"
    uses_an_attempt = action is RETRY
    assert partition.cursor.attempt == (2 if uses_an_attempt else 1)


@pytest.mark.parametrize(
    ("arrange", "action"),
    [row[1:] for row in TABLE if row[2] is not RETRY],
    ids=[row[0] for row in TABLE if row[2] is not RETRY],
)
def test_only_handler_errors_lead_to_an_abandoned_event(
    world: World, arrange: Callable[[World], None], action: Action
) -> None:
    arrange(world)
    partition = world.supervised()
    for _ in range(5):  # with two retries allowed
        if action is WAIT and world.database.fails_on_commit is None:
            arrange(world)
        outcome = world.step(partition)
        if outcome.failure is None:
            break  # the database was unavailable for one commit only
        assert not partition.cursor.skip
        assert partition.cursor.position == 0


def test_ambiguous_upcasters_are_refused_before_the_first_event(world: World) -> None:
    world.upcasters = [Upcaster(("lent",), raising_upcaster, f"upcasters.py:{n}") for n in (1, 2)]
    with pytest.raises(HandlerSignatureError, match="OCQ-220"):
        world.step(world.supervised())


def test_events_of_an_unknown_type_are_ignored_without_decoding(world: World) -> None:
    """K5."""
    world.event_type, world.payload = "never heard of", "no JSON"
    partition = world.supervised()
    outcome = world.step(partition)
    assert (outcome.failure, outcome.handled, partition.cursor.position) == (None, 0, 1)


@pytest.mark.parametrize("arrange", [handler_raises(KeyboardInterrupt()), store_raises(KeyboardInterrupt())])
def test_an_interrupt_ends_the_process_and_leaves_no_changes(world: World, arrange: Callable[[World], None]) -> None:
    """K6: interrupted from outside while reading, or while an event is in hand."""
    arrange(world)
    partition = world.supervised()
    with pytest.raises(KeyboardInterrupt):
        world.step(partition)
    assert world.database.rows == []
    assert world.tracker.statuses()[1].position == 0

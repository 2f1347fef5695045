"""The processor created by hand: invalid arguments, steps under a fake clock, and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event as Signal
from threading import Thread, get_ident
from typing import Any

import pytest
from support.library import Lent, Returned
from support.observers import Watching

from opencqrs_py import (
    Event,
    EventHandlerDefinition,
    EventHandlingProcessor,
    FixedBackOff,
    InMemoryEventStore,
    InMemoryProgressTracker,
    Invocation,
    Metadata,
    NonTransientError,
    NoRetry,
    NoSequence,
    OpenCqrsError,
    PartitionKeyResolver,
    PerDataField,
    PerMetadataKey,
    PerSubject,
    ProcessingContext,
    ProcessorOptions,
    Upcast,
    around_event,
    around_handler,
    event_handling,
    event_type,
    upcaster,
)
from opencqrs_py.errors import AssemblyError, EventStoreError, HandlerSignatureError
from opencqrs_py.model import Outcome, Partition, PartitionStatus, ProcessorState
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.definitions import interceptors_in_order, upcasters_of
from opencqrs_py.processing.recovery import Action
from opencqrs_py.testing import FakeClock

SECONDS = 60  # longest wait for another thread

FIRST, SECOND = "/order/1", "/order/4"  # subjects of partitions 0 and 1 of two


@event_type("lent-twice")
@dataclass(frozen=True)
class LentTwice(Lent):
    pass


class Mailer:
    pass


def by_isbn(event: Lent) -> str:
    return event.isbn


class Store(InMemoryEventStore):
    """A store that can be unavailable, and so can its watch."""

    def __init__(self) -> None:
        super().__init__()
        self.outage: Exception | None = None
        self.watch_errors: list[Exception] = []
        self.waited: list[float] = []

    def read(self, *arguments: Any) -> Any:
        if self.outage is not None:
            raise self.outage
        return super().read(*arguments)

    @contextmanager
    def watched(self) -> Iterator[Any]:
        if self.watch_errors:
            raise self.watch_errors.pop()
        with super().watched() as watch:
            yield watch

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)


class Tracker(InMemoryProgressTracker):
    """A tracker that can be unavailable, or fail to publish."""

    def __init__(self) -> None:
        super().__init__()
        self.outage: Exception | None = None
        self.report_error: Exception | None = None

    def claim(self, *arguments: Any, **named: Any) -> Any:
        if self.outage is not None:
            raise self.outage
        return super().claim(*arguments, **named)

    def unit(self, *arguments: Any, **recorded: Any) -> Any:
        if self.outage is not None:
            raise self.outage
        return super().unit(*arguments, **recorded)

    def report(self, status: PartitionStatus, epoch: int) -> None:
        if self.report_error is not None:
            raise self.report_error
        super().report(status, epoch)

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)


def nothing(_: Event) -> None:
    """Do nothing before an event is handled."""


@dataclass
class World:
    """A group whose handler calls ``before``, and then records the event."""

    store: Store = field(default_factory=Store)
    tracker: Tracker = field(default_factory=Tracker)
    clock: FakeClock = field(default_factory=FakeClock)
    watching: Watching = field(default_factory=Watching)
    handled: list[str] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    before: Callable[[Event], object] = nothing

    def append(self, *subjects: str, type_: str = "t", data: str = "{}", extensions: str | None = None) -> None:
        first = self.store.head()
        self.store.append(
            Event(0, str(n), "s", subject, type_, None, "application/json", data, extensions)
            for n, subject in enumerate(subjects, first + 1)
        )

    def handle(self, raw: Event, context: ProcessingContext) -> None:
        self.attempts.append(context.attempt)
        self.before(raw)
        self.handled.append(raw.id)

    def processor(self, partition: int = 0, partitions: int = 1, **named: Any) -> EventHandlingProcessor:
        parts: dict[str, Any] = {
            "subject": "/",
            "recursive": True,
            "reader": self.store,
            "tracker": self.tracker,
            "sequence_resolver": PerSubject(),
            "partition_resolver": PartitionKeyResolver(partitions),
            "definitions": [EventHandlerDefinition("orders", self.handle)],
            "backoff": FixedBackOff(5, max_attempts=2),
        }
        options = {"clock": self.clock, "observer": self.watching}
        parts |= {name: value for name, value in named.items() if name in parts}
        options |= {name: value for name, value in named.items() if name not in parts}
        return EventHandlingProcessor(partition, **parts, options=ProcessorOptions(**options))

    def status(self) -> PartitionStatus:
        (status,) = self.tracker.statuses()
        return status


def fails_with(error: BaseException, *ids: str) -> Callable[[Event], None]:
    def fail(raw: Event) -> None:
        if not ids or raw.id in ids:
            raise error

    return fail


@pytest.fixture
def world() -> World:
    return World()


def all_steps(processor: EventHandlingProcessor) -> list[float | None]:
    """Step while there is something to do at once."""
    waits = [processor.step()]
    while waits[-1] == 0:
        waits.append(processor.step())
    return waits


# ------------------------------------------------------------------------------------------------ constructor arguments


@event_handling("books")
def books(event: dict) -> None: ...


@event_handling("loans")
def loans(event: dict) -> None: ...


def undecorated(event: dict) -> None: ...


class Nameless:
    @event_handling
    def handle(self, event: dict) -> None: ...


@event_handling("reminders")
class Reminders:
    def __init__(self) -> None:
        self.seen: list[Event] = []

    @event_handling
    def remind(self, raw: Event) -> None:
        self.seen.append(raw)


def two_events(one: Lent, other: LentTwice) -> None: ...


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"definitions": []}, ValueError, "needs the handlers of one group, got no definitions"),
        ({"definitions": [books, loans]}, ValueError, "got definitions of several groups: books and loans"),
        ({"definitions": [undecorated]}, HandlerSignatureError, "OCQ-207.*the function is not decorated"),
        ({"definitions": [Nameless().handle]}, HandlerSignatureError, "OCQ-207.*names no processing group"),
        ({"definitions": [Reminders]}, HandlerSignatureError, "OCQ-207.*Reminders is not a function"),
        ({"definitions": [Reminders()]}, HandlerSignatureError, "OCQ-207.*Reminders is not a function"),
        ({"definitions": [EventHandlerDefinition("a", two_events)]}, HandlerSignatureError, "OCQ-203"),
        ({"partition": 2, "partitions": 2}, ValueError, r"partition must be in 0\.\.1, got 2"),
        ({"partition": -1}, ValueError, r"partition must be in 0\.\.0, got -1"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"initial_position": -1}, ValueError, "initial_position must be at least 0, got -1"),
        ({"upcasters": [undecorated]}, HandlerSignatureError, "OCQ-207.*is not decorated"),
        ({"interceptors": [undecorated]}, HandlerSignatureError, "OCQ-207.*is not decorated"),
    ],
)
def test_unsuitable_arguments_are_refused_by_the_constructor(
    world: World, changed: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=rf"(?s){said}"):
        world.processor(**changed)


def test_a_resolver_that_does_not_accept_the_handled_types_is_refused_by_the_constructor(world: World) -> None:
    def handle(event: Lent | Returned) -> None: ...

    with pytest.raises(AssemblyError, match=r"OCQ-514.*'returned'"):
        world.processor(sequence_resolver=by_isbn, definitions=[EventHandlerDefinition("books", handle)])


def test_definitions_run_in_order_and_those_without_an_order_last(world: World) -> None:
    called: list[str] = []

    def named(name: str, order: int | None) -> EventHandlerDefinition:
        return EventHandlerDefinition("books", lambda: called.append(name), ["*"], order)

    world.append(FIRST)
    all_steps(world.processor(definitions=[named("last", None), named("second", 20), named("first", 10)]))
    assert called == ["first", "second", "last"]


def test_a_method_belongs_to_the_group_of_its_class(world: World) -> None:
    world.append(FIRST)
    reminders = Reminders()
    processor = world.processor(definitions=[reminders.remind])
    all_steps(processor)
    assert (processor.group, [raw.id for raw in reminders.seen]) == ("reminders", ["1"])


# ---------------------------------------------------------------------------------------------------------------- steps


def test_steps_continue_until_no_event_is_left(world: World) -> None:
    world.append(FIRST, FIRST, FIRST)
    processor = world.processor(batch_size=2)
    assert processor.status() is None
    assert all_steps(processor) == [0, 0, None]
    assert world.handled == ["1", "2", "3"]
    world.append(FIRST)
    assert all_steps(processor) == [0, None]
    status = processor.status()
    assert status is not None
    assert (status.position, status.state) == (4, ProcessorState.RUNNING)


def test_an_event_is_tried_again_after_its_wait_and_then_skipped(world: World) -> None:
    world.append(FIRST, FIRST, FIRST)
    world.before = fails_with(ValueError("no"), "2")
    processor = world.processor()
    assert all_steps(processor) == [0, 5]
    assert world.status().state is ProcessorState.BACKING_OFF
    world.clock.advance(3)
    assert processor.step() == 2
    world.clock.advance(2)
    assert processor.step() == 5
    world.clock.advance(5)
    assert all_steps(processor) == [0, 0, 0, None]
    assert world.handled == ["1", "3"]
    assert world.attempts == [1, 1, 2, 3, 1]
    assert [notice.action for notice in world.watching.notices] == [Action.RETRY, Action.RETRY, Action.SKIP]


def test_exhausted_attempts_stop_the_partition_if_configured(world: World) -> None:
    world.append(FIRST, FIRST)
    world.before = fails_with(ValueError("no"), "1")
    processor = world.processor(backoff=NoRetry(), on_exhausted=OnExhausted.STOP)
    assert all_steps(processor) == [30]
    assert (world.status().state, world.status().position) == (ProcessorState.FAILED, 0)
    world.before = nothing
    world.clock.advance(30)
    assert all_steps(processor) == [0, 0, None]
    assert world.handled == ["1", "2"]


def test_a_non_transient_error_stops_the_partition(world: World) -> None:
    world.append(FIRST)
    world.before = fails_with(NonTransientError("never"))
    assert all_steps(world.processor()) == [30]
    assert world.status().state is ProcessorState.FAILED


@pytest.mark.parametrize("part", ["store", "tracker"])
def test_outages_delay_the_next_step_and_use_no_attempt(world: World, part: str) -> None:
    processor = world.processor()
    assert all_steps(processor) == [None]
    world.append(FIRST)
    getattr(world, part).outage = ConnectionError("no answer")
    waits = []
    for _ in range(4):
        waits += all_steps(processor)
        world.clock.advance(waits[-1] or 0)
    assert waits == [0.5, 1, 2, 4]
    assert processor.status().state is ProcessorState.WAITING  # type: ignore[union-attr]
    getattr(world, part).outage = None
    assert all_steps(processor) == [0, None]
    assert world.attempts == [1]
    assert [notice.attempt for notice in world.watching.notices] == [0, 0, 0, 0, 0]


def test_an_outage_at_the_start_is_an_error(world: World) -> None:
    world.tracker.outage = ConnectionError("no answer")
    processor = world.processor()
    for begin in (processor.step, processor.run, processor.start):
        with pytest.raises(ConnectionError):
            begin()
        assert not processor.is_running
    world.tracker.outage = None
    assert processor.step() is None


def test_a_number_of_partitions_that_differs_from_the_progress_is_refused(world: World) -> None:
    world.processor(1, 2).step()
    with pytest.raises(EventStoreError, match="OCQ-310"):
        world.processor(0, 3).step()


def test_a_partition_handles_its_own_events_and_stores_progress_past_those_of_others(world: World) -> None:
    world.append(FIRST, SECOND, FIRST, SECOND)
    first, second = world.processor(0, 2), world.processor(1, 2)
    all_steps(first)
    assert world.handled == ["1", "3"]
    all_steps(second)
    assert world.handled == ["1", "3", "2", "4"]
    assert [status.position for status in world.tracker.statuses()] == [4, 4]


def test_a_processor_that_was_taken_over_writes_nothing_and_has_nothing_to_do(world: World) -> None:
    world.append(FIRST)
    old, new = world.processor(), world.processor()
    all_steps(old)
    assert all_steps(new) == [None]
    world.append(FIRST)
    assert all_steps(old) == [0, None]
    assert old.step() is None
    assert (world.handled, old.status().state) == (["1"], ProcessorState.STOPPED)  # type: ignore[union-attr]
    old.stop()
    assert world.status().state is ProcessorState.RUNNING
    all_steps(new)
    assert world.handled == ["1", "2"]


def test_a_stop_between_steps_releases_the_partition_and_the_next_step_claims_it_again(world: World) -> None:
    world.append(FIRST)
    processor = world.processor(0, 2)
    processor.step()
    processor.stop()
    processor.stop()
    assert world.tracker.statuses()[0].state is ProcessorState.STOPPED
    world.append(SECOND)
    all_steps(processor)
    processor.stop()
    assert [each for each in world.watching.told if each[0] in ("claimed", "stopped")] == [
        ("claimed", "orders", "0/2", 0),
        ("stopped", "orders", "0/2"),
        ("claimed", "orders", "0/2", 1),
        ("stopped", "orders", "0/2"),
    ]


def test_a_stop_stores_progress_past_events_of_others(world: World) -> None:
    world.append(SECOND)
    processor = world.processor(0, 2)
    assert processor.step() == 0
    assert world.tracker.statuses()[0].position == 0
    processor.stop()
    assert world.tracker.statuses()[0].position == 1


def test_a_handler_may_request_a_stop(world: World) -> None:
    world.append(FIRST, FIRST)
    processor = world.processor()
    world.before = lambda raw: processor.stop()
    processor.step()
    assert world.handled == ["1"]
    assert world.watching.told[-1] == ("stopped", "orders", "0/1")


def test_only_one_thread_at_a_time_may_step(world: World) -> None:
    world.append(FIRST)
    processor = world.processor()
    world.before = lambda raw: processor.step()
    processor.step()
    assert "is already running" in world.watching.notices[0].failure.message  # type: ignore[union-attr]


# --------------------------------------------------------------------------------------------------------- the observer


def test_an_observer_is_notified_in_a_fixed_order(world: World) -> None:
    world.append(FIRST)
    world.before = fails_with(ValueError(), "1")
    processor = world.processor(backoff=FixedBackOff(0))
    processor.step()
    world.before = nothing
    all_steps(processor)
    processor.stop()
    assert world.watching.told == [
        ("claimed", "orders", "0/1", 0),
        ("advanced", 0),
        ("noticed", Action.RETRY),
        ("advanced", 1),
        ("noticed", None),
        ("advanced", 1),
        ("stopped", "orders", "0/1"),
    ]


def test_progress_is_stored_before_the_observer_is_notified(world: World) -> None:
    positions: list[int] = []
    world.watching.on_advanced = lambda outcome: positions.append(world.status().position)
    world.append(FIRST, FIRST)
    all_steps(world.processor())
    assert positions == [1, 2, 2]


# -------------------------------------------------------------------------------------------------------------- options


@dataclass(frozen=True)
class ByLastDigit:
    """A user-defined partition resolver."""

    partitions: int
    shift: int = 0

    def __call__(self, sequence_id: str, /) -> int:
        return int(sequence_id[-1]) % self.partitions + self.shift


def test_a_custom_partition_resolver_is_used(world: World) -> None:
    world.append("/1", "/2", "/3", "/4")
    all_steps(world.processor(1, 2, partition_resolver=ByLastDigit(2)))
    assert world.handled == ["1", "3"]


def test_an_event_resolved_to_a_nonexistent_partition_fails_the_partition(world: World) -> None:
    world.append("/2", "/3", "/4")
    processor = world.processor(1, 2, partition_resolver=ByLastDigit(2, shift=1))
    assert all_steps(processor) == [0, 30]
    assert world.handled == ["1"]
    assert world.tracker.statuses()[1].error.startswith(
        "ValueError: the partition resolver returned 2 for '/3', not one of 0..1 - event 2 at position 2"
    )


@pytest.mark.parametrize(
    ("resolver", "options"),
    [
        (PerDataField(("isbn",)), {}),
        (PerMetadataKey("tenant"), {}),
        (by_isbn, {}),
        (PerDataField(("isbn",)), {"enveloped": True}),
        (PerMetadataKey("tenant"), {"enveloped": True}),
        (by_isbn, {"enveloped": True}),
        (NoSequence(), {}),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_every_kind_of_resolver_assigns_each_event_to_one_partition(
    world: World, resolver: Any, options: dict[str, Any]
) -> None:
    seen: list[tuple[int, str]] = []
    for isbn in "abcabc":
        data, extensions = f'{{"isbn": "{isbn}"}}', f'{{"tenant": "{isbn}"}}'
        if options:
            data, extensions = f'{{"metadata": {extensions}, "payload": {data}}}', "{}"
        world.append(FIRST, type_="lent", data=data, extensions=extensions)

    def handle(event: Lent, metadata: Metadata, context: ProcessingContext) -> None:
        assert metadata == {"tenant": event.isbn}
        seen.append((context.partition.residue, event.isbn))

    for partition in range(2):
        all_steps(
            world.processor(
                partition,
                2,
                sequence_resolver=resolver,
                definitions=[EventHandlerDefinition("books", handle)],
                **options,
            )
        )
    assert sorted(isbn for _, isbn in seen) == list("aabbcc")
    if not isinstance(resolver, NoSequence):
        assert len(set(seen)) == 3


def test_the_given_upcasters_interceptors_and_event_classes_are_used(world: World) -> None:
    seen: list[object] = []

    @upcaster("lent.v0")
    def renamed(data: dict) -> Upcast:
        return Upcast("lent-twice", {"isbn": data["book"]})

    @around_handler("books")
    def noted(invocation: Invocation) -> Iterator[None]:
        seen.append("handler")
        yield

    @around_event(order=1)
    def noted_too(raw: Event) -> Iterator[None]:
        seen.append("event")
        yield

    @around_event("loans")
    def of_others(raw: Event) -> Iterator[None]:
        seen.append("other")
        yield

    def handle(event: Lent) -> None:
        seen.append(event)

    world.append(FIRST, type_="lent.v0", data='{"book": "1"}')
    processor = world.processor(
        definitions=[EventHandlerDefinition("books", handle)],
        upcasters=[renamed],
        interceptors=[noted, of_others, noted_too],
        event_classes=[LentTwice],
    )
    all_steps(processor)
    assert seen == ["event", "handler", LentTwice("1")]


@pytest.mark.parametrize(
    "options", [{"event_types": {"old": Lent}}, {"type_resolver": {"old": Lent}.get}], ids=" ".join
)
def test_event_types_may_come_from_a_map_or_a_resolver(world: World, options: dict[str, Any]) -> None:
    seen: list[object] = []

    def handle(event: Lent) -> None:
        seen.append(event)

    world.append(FIRST, type_="old", data='{"isbn": "1"}')
    all_steps(world.processor(definitions=[EventHandlerDefinition("books", handle)], **options))
    assert seen == [Lent("1")]


def test_further_arguments_of_handlers_come_from_the_injector(world: World) -> None:
    class One:
        def provides(self, wanted: object) -> bool:
            return wanted is Mailer

        def provide(self, wanted: object) -> Any:
            return Mailer()

    seen: list[object] = []

    def handle(event: dict, mailer: Mailer) -> None:
        seen.append(mailer)

    world.append(FIRST)
    all_steps(world.processor(definitions=[EventHandlerDefinition("books", handle)], injector=One()))
    assert isinstance(seen[0], Mailer)


def test_a_group_without_progress_starts_after_the_initial_position(world: World) -> None:
    world.append(FIRST, FIRST, FIRST)
    all_steps(world.processor(initial_position=2))
    all_steps(world.processor(initial_position=0))
    assert world.handled == ["3"]


def test_prepared_upcasters_and_interceptors_are_accepted(world: World) -> None:
    @upcaster("lent.v0")
    def dropped(raw: Event) -> None: ...

    world.append(FIRST, type_="lent.v0")
    all_steps(world.processor(upcasters=upcasters_of([dropped]), interceptors=interceptors_in_order([], "orders")))
    assert world.handled == []


def test_without_recursion_only_events_of_the_subject_itself_are_handled(world: World) -> None:
    world.append("/order", "/order/1", "/reader/1")
    all_steps(world.processor(subject="/order", recursive=False))
    assert world.handled == ["1"]


# -------------------------------------------------------------------------------------------------------------- threads


def on_thread(call: Callable[[], object]) -> Thread:
    thread = Thread(target=call)
    thread.start()
    return thread


def test_a_started_processor_handles_new_events_until_it_is_stopped(world: World) -> None:
    processor = world.processor()
    processor.start()
    assert processor.is_running
    world.append(FIRST)
    world.watching.wait_for(lambda: world.handled == ["1"])
    world.append(FIRST)
    world.watching.wait_for(lambda: world.handled == ["1", "2"])
    processor.stop(SECONDS)
    assert not processor.is_running
    assert world.watching.told[-1] == ("stopped", "orders", "0/1")
    assert world.status().state is ProcessorState.STOPPED
    assert processor.status().position == 2  # type: ignore[union-attr]


def test_a_stopped_processor_can_be_started_again(world: World) -> None:
    processor = world.processor()
    for number in range(1, 4):
        processor.start()
        world.append(FIRST)
        world.watching.wait_for(lambda number=number: len(world.handled) == number)
        processor.stop(SECONDS)
        processor.stop(SECONDS)
    assert world.handled == ["1", "2", "3"]


def test_a_running_processor_cannot_be_started_again(world: World) -> None:
    processor = world.processor()
    processor.start()
    for begin in (processor.start, processor.run, processor.step):
        with pytest.raises(OpenCqrsError, match="group 'orders' partition 0/1 is already running"):
            begin()
    assert processor.is_running
    processor.stop(SECONDS)


def test_run_stays_on_the_thread_that_called_it(world: World) -> None:
    idents: list[int] = []
    processor = world.processor()
    world.before = lambda raw: idents.append(get_ident())
    world.append(FIRST)
    thread = on_thread(processor.run)
    world.watching.wait_for(lambda: world.handled)
    assert idents == [thread.ident]
    processor.stop(SECONDS)
    thread.join(SECONDS)
    assert not processor.is_running
    thread = on_thread(processor.run)
    world.append(FIRST)
    world.watching.wait_for(lambda: world.handled == ["1", "2"])
    processor.stop(SECONDS)
    thread.join(SECONDS)


def test_a_stop_before_the_first_run_takes_effect(world: World) -> None:
    world.append(FIRST)
    processor = world.processor()
    processor.stop()
    processor.run()
    assert (world.handled, world.watching.told) == ([], [])
    world.watching.on_advanced = lambda outcome: processor.stop()
    processor.run()
    assert world.handled == ["1"]


def test_a_start_runs_the_processor_despite_an_earlier_stop(world: World) -> None:
    world.append(FIRST)
    processor = world.processor()
    processor.stop()
    processor.start()
    world.watching.wait_for(lambda: world.handled)
    processor.stop(SECONDS)


def test_a_stop_waits_for_a_thread_that_has_not_begun_yet(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = world.processor()
    stops, run = Signal(), processor._run

    def late() -> None:
        assert stops.wait(SECONDS)
        run()

    class StopSignal(Signal):
        def set(self) -> None:
            super().set()
            stops.set()

    monkeypatch.setattr(processor, "_run", late)
    monkeypatch.setattr(processor, "_stopping", StopSignal())
    processor.start()
    processor.stop(SECONDS)
    assert not processor.is_running
    assert world.status().state is ProcessorState.STOPPED


def test_an_observer_may_stop_the_processor(world: World) -> None:
    world.append(FIRST, FIRST)
    processor = world.processor()
    world.watching.on_advanced = lambda outcome: processor.stop()
    processor.start()
    assert processor.join(SECONDS)
    assert world.handled == ["1"]


def test_a_stop_waits_no_longer_than_its_timeout(world: World) -> None:
    gate = Watching()
    entered: list[bool] = []
    opened: list[bool] = []

    def wait(raw: Event) -> None:
        entered.append(True)
        gate.claimed("", Partition(1, 0), 0)
        gate.wait_for(lambda: opened)

    world.append(FIRST, FIRST)
    world.before = wait
    processor = world.processor()
    processor.start()
    gate.wait_for(lambda: entered)
    processor.stop(0.01)
    assert processor.is_running
    assert not processor.join(0.01)
    opened.append(True)
    gate.claimed("", Partition(1, 0), 0)
    assert processor.join(SECONDS)
    assert world.handled == ["1"]


def test_a_stop_does_not_wait_for_a_back_off_to_pass(world: World) -> None:
    world.append(FIRST)
    world.before = fails_with(ValueError())
    processor = world.processor(backoff=FixedBackOff(3_600))
    processor.start()
    world.watching.wait_for(lambda: world.watching.notices)
    processor.stop(SECONDS)
    assert not processor.is_running
    assert processor.status().error == "ValueError - event 1 at position 1 (t, /order/1)"  # type: ignore[union-attr]


def test_a_running_processor_that_is_taken_over_ends(world: World) -> None:
    old, new = world.processor(), world.processor()
    old.start()
    new.start()
    world.append(FIRST)
    assert old.join(SECONDS)
    world.watching.wait_for(lambda: world.handled)
    new.stop(SECONDS)
    assert world.handled == ["1"]
    assert [notice.action for notice in world.watching.notices] in ([Action.LEAVE], [])


def test_a_processor_with_a_failed_partition_keeps_running(world: World) -> None:
    world.append(FIRST)
    world.before = fails_with(NonTransientError())
    processor = world.processor()
    processor.start()
    world.watching.wait_for(lambda: world.watching.notices)
    assert processor.is_running
    processor.stop(SECONDS)
    assert world.status().state is ProcessorState.FAILED


class PanicException(BaseException):
    """What a panic of a Rust extension becomes."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("way", ["start", "run"])
@pytest.mark.parametrize("error", [LookupError, PanicException])
def test_an_error_of_an_observer_ends_the_loop_and_marks_the_partition_as_failed(
    world: World, way: str, error: type[BaseException]
) -> None:
    def spoil(outcome: Outcome) -> None:
        raise error("observer")

    world.append(FIRST)
    world.watching.on_advanced = spoil
    processor = world.processor()
    if way == "start":
        processor.start()
        assert processor.join(SECONDS)
    else:
        with pytest.raises(error):
            processor.run()
    assert not processor.is_running
    status = processor.status()
    assert status is not None
    assert (status.state, status.error) == (ProcessorState.FAILED, f"{error.__name__}: observer")
    assert world.watching.told[-1] == ("stopped", "orders", "0/1")
    assert world.status().state is ProcessorState.FAILED
    assert world.handled == ["1"]


@pytest.mark.parametrize("error", [LookupError, PanicException])
def test_a_store_that_cannot_be_watched_is_reported_and_tried_again(
    world: World, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencqrs_py.engines.watching._AFTER_ERROR_SECONDS", 0.001)
    monkeypatch.setattr("opencqrs_py.engines.following._IDLE_SECONDS", 0.001)
    world.append(FIRST)
    world.store.watch_errors = [error("watch")]  # type: ignore[list-item]
    processor = world.processor()
    processor.start()
    world.watching.wait_for(lambda: world.watching.notices)
    status = processor.status()
    assert status is not None
    assert (status.state, status.error) == (ProcessorState.FAILED, f"{error.__name__}: watch")
    processor.stop(SECONDS)
    assert world.handled == ["1"]


def test_an_interrupt_ends_the_loop_with_a_clean_stop(world: World) -> None:
    class Interrupted(KeyboardInterrupt): ...

    world.append(FIRST)
    world.before = fails_with(Interrupted())
    processor = world.processor()
    with pytest.raises(Interrupted):
        processor.run()
    assert not processor.is_running
    assert (world.status().state, world.status().position) == (ProcessorState.STOPPED, 0)


def test_a_watch_that_fails_in_an_outage_is_opened_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opencqrs_py.engines.watching._AFTER_ERROR_SECONDS", 0.001)
    world.store.watch_errors = [ConnectionError("no answer")] * 3
    world.append(FIRST)
    processor = world.processor()
    processor.start()
    world.watching.wait_for(lambda: world.handled)
    world.append(FIRST)  # steps before this one had no watch; this event needs one
    world.watching.wait_for(lambda: len(world.handled) == 2)
    processor.stop(SECONDS)
    assert world.watching.notices == []


class Quiet:
    """A watch that returns the given heads, and records how it was called."""

    def __init__(self, heads: Sequence[int], done: Callable[[], object]) -> None:
        self.asked: list[int] = []
        self._heads = list(heads)
        self._done = done

    def wait(self, after: int, seconds: float) -> int:
        self.asked.append(after)
        if self._heads:
            return self._heads.pop(0)
        self._done()
        return after

    def wake(self) -> None:
        """Do nothing: no thread waits."""


def test_a_new_head_without_new_events_is_checked_only_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.append(FIRST)
    processor = world.processor()
    watch = Quiet([1, 7, 7, 7], processor.stop)

    @contextmanager
    def watched() -> Iterator[Quiet]:
        yield watch

    monkeypatch.setattr(world.store, "watched", watched)
    processor.run()
    assert watch.asked == [0, 1, 7, 7, 7]
    steps = [each for each in world.watching.told if each[0] == "advanced"]
    assert len(steps) == 3  # the event, an empty step, and an empty step despite the new head

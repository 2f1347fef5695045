"""Which classes can take part in checkpoints, and the errors for the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from opencqrs_py import (
    AfterCommit,
    CheckpointParticipant,
    CheckpointTrigger,
    Event,
    EventHandlingProcessor,
    InMemoryEventStore,
    InMemoryProgressTracker,
    NoRetry,
    PartitionKeyResolver,
    PerSubject,
    ProcessorOptions,
    around_event,
    checkpointing,
    event_handling,
)
from opencqrs_py.engines.checkpointing import CheckpointRule
from opencqrs_py.errors import AssemblyError, HandlerSignatureError
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.testing import HandlerTest

ANY = {"type": "moved"}


class Plain:
    """The members that every participant needs, without the base class and the decorator."""

    @event_handling(types=["*"])
    def handle(self, event: Event) -> None:
        """Handle an event."""

    def on_checkpoint(self, _partition: Any, requested: int) -> int:
        """Confirm it."""
        return requested


def marked(*bases: type, groups: tuple[str, ...] = ("board",), **members: Any) -> type:
    """Return a class with ``@checkpointing`` for some groups."""
    cls = type("Board", bases, members)
    for group in groups:
        cls = checkpointing(group)(cls)
    return cls


def test_a_class_needs_no_base_and_only_one_callback() -> None:
    HandlerTest(marked(Plain)).given(ANY).handle().request().handle().restart().expect_progress(1)


@event_handling(types=["*"])
def of_board(self: Any, event: Event) -> None:
    """Handle an event, as a method."""


@event_handling("other", types=["*"])
def of_other(self: Any, event: Event) -> None:
    """Handle an event of another group, as a method."""


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (marked(handle=of_board), "Board does not report what is durable: it has no on_checkpoint"),
        (marked(CheckpointParticipant, handle=of_board), "Board does not report what is durable"),
        (marked(on_checkpoint=Plain.on_checkpoint), "Board is marked with @checkpointing and handles no event"),
        (marked(Plain, groups=("board", "chess")), "marked with @checkpointing for 2 groups"),
        (marked(Plain, other=of_other), "takes part in checkpoints of group 'board', but handles events of 'other'"),
        (marked(Plain, on_checkpoint=lambda self: 0), "on_checkpoint cannot be called with partition, requested"),
        (marked(Plain, on_partition_closed=7), "on_partition_closed is not a method"),
        (marked(Plain, on_parked_handled=lambda self, partition: 0), "on_parked_handled cannot be called with"),
        (marked(Plain, on_partition_claimed=lambda self, p: 0), "on_partition_claimed cannot be called with"),
    ],
)
def test_an_unsuitable_class_is_refused_with_what_to_write(cls: type, text: str) -> None:
    with pytest.raises(HandlerSignatureError, match="OCQ-640") as caught:
        HandlerTest(cls, group="board")
    assert text in caught.value.what
    assert caught.value.fix


def test_a_callback_must_not_yield() -> None:
    def claimed(_self: Any, _partition: Any, _resume_at: int, _trigger: Any) -> Iterator[None]:
        yield

    with pytest.raises(HandlerSignatureError, match=r"OCQ-640.*on_partition_claimed must not yield"):
        HandlerTest(marked(Plain, on_partition_claimed=claimed))


def test_a_subclass_of_a_participant_without_the_decorator_is_refused() -> None:
    class Forgotten(CheckpointParticipant):
        @event_handling("board", types=["*"])
        def handle(self, event: Event) -> None: ...

    class Child(marked(Plain)):  # type: ignore[misc]
        handle = None

        @event_handling("board", types=["*"])
        def other(self, event: Event) -> None: ...

    for cls, parent in ((Forgotten, "CheckpointParticipant"), (Child, "Board")):
        with pytest.raises(HandlerSignatureError, match="OCQ-640") as caught:
            HandlerTest(cls, group="board")
        assert f"derives from {parent} but is not itself marked with @checkpointing" in caught.value.what
        assert caught.value.fix == f'write @checkpointing("board") above class {cls.__name__}'


@pytest.mark.parametrize("group", ["", "  ", 7, None])
def test_the_decorator_needs_a_group(group: Any) -> None:
    with pytest.raises(HandlerSignatureError, match=r"OCQ-640.*needs the name of a processing group"):
        checkpointing(group)


def test_the_decorator_marks_classes_only() -> None:
    with pytest.raises(HandlerSignatureError, match=r"OCQ-640.*which is not a class"):
        checkpointing("board")(lambda: None)  # type: ignore[type-var]


@pytest.mark.parametrize("asked", [Connection, Session, AfterCommit])
def test_a_participants_handler_cannot_use_the_transaction(asked: type) -> None:
    def handle(_self: Any, event: Event, transaction: Any) -> None:
        del event, transaction

    handle.__annotations__["transaction"] = asked
    cls = marked(Plain, handle=event_handling(types=["*"])(handle))
    with pytest.raises(HandlerSignatureError, match=r"OCQ-641.*'transaction' belongs to the progress transaction"):
        HandlerTest(cls)


def test_an_interceptor_around_a_participant_cannot_use_the_transaction() -> None:
    @around_event
    def traced(connection: Connection) -> Iterator[None]:
        yield

    with pytest.raises(HandlerSignatureError, match=r"OCQ-641.*surrounds handlers of participants of group 'board'"):
        HandlerTest(marked(Plain), traced)


def test_an_interceptor_that_does_not_use_the_transaction_is_accepted() -> None:
    seen: list[str] = []

    @around_event
    def traced(raw: Event) -> Iterator[None]:
        seen.append(raw.id)
        yield

    HandlerTest(marked(Plain), traced).given(ANY).handle()
    assert seen == ["1"]


def test_a_handler_in_the_transaction_cannot_come_before_participants() -> None:
    @event_handling("board", types=["*"], order=1)
    def first(event: Event) -> None: ...

    with pytest.raises(AssemblyError, match=r"OCQ-642.*ordered before one of a participant"):
        HandlerTest(marked(Plain), first)


def test_a_trigger_is_for_groups_with_participants() -> None:
    @event_handling("board", types=["*"])
    def alone(event: Event, trigger: CheckpointTrigger) -> None: ...

    with pytest.raises(HandlerSignatureError, match=r"OCQ-644.*'trigger' asks for a CheckpointTrigger"):
        HandlerTest(alone)
    HandlerTest(marked(Plain), alone).given(ANY).handle().expect_progress(1)


@pytest.mark.parametrize("base", [object, CheckpointParticipant])
@pytest.mark.parametrize("setting", ["on_exhausted", "on_undecodable"])
def test_a_participant_in_a_group_that_parks_must_report_when_parked_events_are_durable(
    base: type, setting: str
) -> None:
    def made(**members: Any) -> object:
        cls = type("Board", (base,), {"handle": Plain.handle, "on_checkpoint": Plain.on_checkpoint, **members})
        options = ProcessorOptions(**{setting: OnExhausted.PARK})
        known = (InMemoryEventStore(), InMemoryProgressTracker(), PerSubject(), PartitionKeyResolver(1))
        handlers = [checkpointing("board")(cls)().handle]  # type: ignore[attr-defined]
        return EventHandlingProcessor(0, "/", True, *known, handlers, NoRetry(), options=options)  # noqa: FBT003 recursive

    with pytest.raises(AssemblyError, match="OCQ-642") as caught:
        made()
    assert caught.value.what == "group 'board' parks events, but Board does not report when those are durable"
    method = "def on_parked_handled(self, partition, positions) -> None"
    assert caught.value.fix == f"write {method}, or skip or stop instead of parking"
    made(on_parked_handled=lambda self, partition, positions: None)


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_timeout_must_be_more_than_0(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be more than 0"):
        CheckpointRule(timeout=timeout)

"""What a function changes of what it was given, it changes for nobody else: not for the next one, not for a retry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import attrs
import pytest
from pydantic import BaseModel
from sqlalchemy import Connection, text

from opencqrs_py import (
    Event,
    EventHandlerDefinition,
    EventHandlingProcessor,
    FixedBackOff,
    Invocation,
    Metadata,
    PartitionKeyResolver,
    ProcessorOptions,
    SqlEventStore,
    SqlProgressTracker,
    Upcast,
    around_event,
    around_handler,
    event_type,
    upcaster,
)
from opencqrs_py.adapters.sql import Database
from opencqrs_py.testing import FakeClock

EVENTS = 12


@event_type("lent")
@dataclass
class Mutable:
    reader: str
    tags: list[str] = field(default_factory=list)


@event_type("lent")
@dataclass(frozen=True)
class Frozen:
    reader: str
    tags: list[str] = field(default_factory=list)


@event_type("lent")
class Model(BaseModel):
    reader: str
    tags: list[str] = []


@event_type("lent")
@attrs.define
class Attrs:
    reader: str
    tags: list[str]


@event_type("lent")
class Typed(TypedDict):
    reader: str
    tags: list[str]


def spoil(given: Any) -> None:
    """Change whatever can be changed of an object, and what is in it."""
    if isinstance(given, Event):
        spoil(given.data)
        spoil(given.metadata)
        for name in ("data", "metadata", "payload", "extensions", "note"):
            with suppress(AttributeError):
                setattr(given, name, "spoilt")
    elif isinstance(given, Invocation):
        spoil(list(given.events))
        with suppress(AttributeError):
            object.__setattr__(given, "events", ())
    elif isinstance(given, dict | list):
        for member in given.values() if isinstance(given, dict) else given:
            spoil(member)
        given.clear()
    else:
        for name in ("reader", "tags"):
            if hasattr(given, name):
                spoil(getattr(given, name))
                with suppress(AttributeError):
                    setattr(given, name, "spoilt")


def spoiler(annotation: Any) -> Callable[..., None]:
    def spoils(given: Any) -> None:
        spoil(given)

    spoils.__annotations__ = {"given": annotation, "return": None}
    return spoils


def shown(given: Any) -> tuple[str, list[str]]:
    read = given if isinstance(given, dict) else {"reader": given.reader, "tags": given.tags}
    return read["reader"], list(read["tags"])


class Looks:
    """The last handlers of the group: they see what was stored, however often they are called."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str, Any]] = []
        self.failures = 1  # of each event

    def definitions(self) -> list[EventHandlerDefinition]:
        singles = [self.looking(cls) for cls in (Mutable, Frozen, Model, Attrs, Typed, dict)]
        calls = [*singles, self.raw, self.stored, self.lists]
        return [EventHandlerDefinition("group", call, types=["lent"]) for call in calls]

    def looking(self, cls: type) -> Callable[..., None]:
        def look(given: Any, raw: Event) -> None:
            self.seen.append((raw.position, cls.__name__, shown(given)))

        look.__annotations__ = {"given": cls, "raw": Event, "return": None}
        return look

    def raw(self, raw: Event, metadata: Metadata) -> None:
        self.seen.append((raw.position, "raw", shown(raw.data)))
        self.seen.append((raw.position, "metadata", (metadata["tenant"], raw.metadata["tenant"])))

    def stored(self, raw: Event, connection: Connection) -> None:
        row = {"position": raw.position, "tenant": raw.metadata["tenant"]}
        connection.execute(text("INSERT INTO seen VALUES (:position, :tenant)"), row)

    def lists(self, events: list[dict], raws: list[Event], metadata: list[Metadata]) -> None:  # type: ignore[type-arg]
        for given, raw, one in zip(events, raws, metadata, strict=True):
            self.seen.append((raw.position, "list", shown(given)))
            self.seen.append((raw.position, "list metadata", one["tenant"]))
        self.failures -= 1
        if self.failures >= 0:
            raise ValueError("once more")

    def expect(self) -> None:
        assert self.seen
        for position, kind, found in self.seen:
            reader, tenant = f"reader {position}", f"tenant {position}"
            match kind:
                case "metadata":
                    assert found == (tenant, tenant)
                case "list metadata":
                    assert found == tenant
                case _:
                    assert found == (reader, ["a", "b"]), kind


@around_event
def spoils_events(raw: Event, metadata: Metadata) -> Iterator[None]:
    spoil(raw)
    spoil(metadata)
    yield
    spoil(raw)


@around_handler
def spoils_invocations(invocation: Invocation) -> Iterator[None]:
    spoil(invocation)
    yield


@upcaster("lent.v0")
def spoils_and_upcasts(data: dict, raw: Event, metadata: Metadata) -> Iterator[Upcast]:  # type: ignore[type-arg]
    kept = {"reader": data["reader"], "tags": list(data["tags"])}
    spoil(data)
    spoil(raw)
    spoil(metadata)
    yield Upcast("lent", kept)
    spoil(kept)


def spoils_and_resolves(event: Event) -> str:
    found = event.data["reader"]
    spoil(event)
    return str(found)


def spoils_and_resolves_objects(event: Mutable, metadata: Metadata) -> str:
    found = event.reader
    spoil(event)
    spoil(metadata)
    return found


def plain_resolver(event: Event) -> str:
    return event.id


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path}/library.db")
    with opened.writing() as connection:
        connection.execute(text("CREATE TABLE seen (position INTEGER, tenant TEXT)"))
    yield opened
    opened.close()


def run(
    database: Database, spoilers: list[Any], resolver: Any = plain_resolver, kind: str = "lent", **more: Any
) -> None:
    """Handle a log with three partitions, each of which fails once; then look at what was seen."""
    store, looks = SqlEventStore(database), Looks()
    store.append(
        Event(0, str(n), "urn:library", f"/readers/{n}", kind, None, "application/json",
              f'{{"reader": "reader {n}", "tags": ["a", "b"]}}', f'{{"tenant": "tenant {n}"}}')
        for n in range(1, EVENTS + 1)
    )  # fmt: skip
    clock = FakeClock()
    options = ProcessorOptions(event_classes=[Mutable, Frozen, Model, Attrs, Typed], batch_size=5, clock=clock, **more)
    spoiling = [EventHandlerDefinition("group", call, types=["lent"], order=-1) for call in spoilers]
    definitions = [*spoiling, *looks.definitions()]
    resolver_of_three = PartitionKeyResolver(3)
    tracker, back_off = SqlProgressTracker(database), FixedBackOff(1, max_attempts=2)
    for number in range(3):
        processor = EventHandlingProcessor(
            number, "/", True, store, tracker, resolver, resolver_of_three, definitions, back_off, options=options,  # noqa: FBT003
        )  # fmt: skip
        looks.failures = 1
        for _ in range(200):
            if (wait := processor.step()) is None:
                break
            clock.advance(wait)
        status = processor.status()
        processor.stop()
        assert status is not None
        assert not status.error
    looks.expect()
    with database.reading() as connection:
        rows = connection.execute(text("SELECT position, tenant FROM seen ORDER BY position")).all()
    assert rows == [(n, f"tenant {n}") for n in range(1, EVENTS + 1)]


KINDS = [dict, object, Typed, Mutable, Frozen, Model, Attrs, Event, Metadata]


@pytest.mark.parametrize("annotation", [*KINDS, *(list[kind] for kind in KINDS)], ids=str)  # type: ignore[valid-type]
def test_what_a_handler_changes_no_other_handler_and_no_attempt_sees(database: Database, annotation: Any) -> None:
    run(database, [spoiler(annotation)])


def test_what_an_interceptor_changes_no_handler_sees(database: Database) -> None:
    run(database, [], interceptors=[spoils_events, spoils_invocations])


def test_what_an_upcaster_changes_no_handler_sees(database: Database) -> None:
    run(database, [], kind="lent.v0", upcasters=[spoils_and_upcasts])


@pytest.mark.parametrize("resolver", [spoils_and_resolves, spoils_and_resolves_objects])
def test_what_a_sequence_resolver_changes_no_handler_sees(database: Database, resolver: Any) -> None:
    run(database, [spoiler(dict), spoiler(list[Mutable])], resolver)

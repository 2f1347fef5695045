"""Groups that every engine runs on every database.

Those whose names begin with ``given`` change what they are given and look at what others are given; those with
``spread`` have sequence resolvers of a project; those with ``becomes`` take what events of a type really become (K7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypedDict

import attrs
from dependency_injector import containers, providers
from pydantic import BaseModel, Field, TypeAdapter, model_validator
from sqlalchemy import Connection, text

from opencqrs_py import (
    Event,
    Invocation,
    Metadata,
    NonTransientError,
    PerDataField,
    PerSubject,
    PerSubjectLevel,
    ProcessingContext,
    Upcast,
    around_event,
    around_handler,
    event_handling,
    event_type,
    on_start,
    upcaster,
)

LENT, FAILING = 24, (3, 4, 9)
"""Events of the type ``lent``, the first ones of the log; and those that fail once in each group."""

NOTES = Path(__file__).with_name("notes")
"""Where handlers note what they have done, for all processes. Workers of a JVM that runs do not see new variables."""

HANDLERS: dict[str, list[Any]] = {}
"""Of each group."""

RESOLVERS: dict[str, Any] = {}
"""Of groups that have one."""

INTERCEPTORS: list[Any] = []


def handles(group: str, *types: str, order: int | None = None, annotated: dict[str, Any] | None = None) -> Any:
    """Decorate a function as handler of a group."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if annotated:
            function.__annotations__ = {**annotated, "return": None}
        HANDLERS.setdefault(group, []).append(function)
        return event_handling(group, types=types, order=order)(function)

    return decorate


def write(connection: Connection, group: str, position: int, what: str) -> None:
    """Write a row of the read model."""
    row = {"of": group, "position": position, "what": what}
    connection.execute(text("INSERT INTO seen VALUES (:of, :position, :what)"), row)


def first(name: str) -> bool:
    """Return whether this is the first call with the name, in whatever process."""
    try:
        (NOTES / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


# What is given


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


CLASSES = (Mutable, Frozen, Model, Attrs, Typed)
KINDS = {cls.__name__: cls for cls in (dict, object, *CLASSES, Event, Metadata)}


def spoil(given: Any) -> None:
    """Change everything that can be changed in an object, recursively."""
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


def check(given: Any, raw: Event, metadata: Metadata) -> None:
    """Stop the partition unless everything is as it was stored."""
    data = given if isinstance(given, dict) else {"reader": given.reader, "tags": given.tags}
    found = [data["reader"], data["tags"], raw.data, metadata["tenant"], raw.metadata["tenant"]]
    reader, tags = f"reader {raw.position}", ["a", "b"]
    tenant = f"tenant {raw.position % 5}"
    if found != [reader, tags, {"reader": reader, "tags": tags}, tenant, tenant]:
        raise NonTransientError(f"changed: {found}")


def _looking(group: str) -> None:
    """Add the handlers that check, the last of which fails once for some events."""
    for cls in (*CLASSES, dict):

        def look(given: Any, raw: Event, metadata: Metadata) -> None:
            check(given, raw, metadata)

        handles(group, "lent", annotated={"given": cls, "raw": Event, "metadata": Metadata})(look)

    @handles(group, "lent")
    def looks(events: list[dict], raws: list[Event], all_: list[Metadata], connection: Connection) -> None:  # type: ignore[type-arg]
        for given, raw, metadata in zip(events, raws, all_, strict=True):
            check(given, raw, metadata)
            write(connection, group, raw.position, metadata["tenant"])
            if raw.position in FAILING and first(f"{group}-{raw.position}"):
                raise ValueError("again")


def _given(group: str, annotation: Any) -> None:
    def spoils(given: Any) -> None:
        spoil(given)

    handles(group, "lent", order=-1, annotated={"given": annotation})(spoils)
    _looking(group)


for _name, _kind in KINDS.items():
    _given(f"given-{_name}", _kind)
    _given(f"given-list-{_name}", list[_kind])  # type: ignore[valid-type]
_looking("given-surrounded")


@around_event("given-surrounded")
def spoils_events(raw: Event, metadata: Metadata) -> Iterator[None]:
    spoil(raw)
    spoil(metadata)
    yield
    spoil(raw)


@around_handler("given-surrounded")
def spoils_invocations(invocation: Invocation) -> Iterator[None]:
    spoil(invocation)
    yield


INTERCEPTORS += [spoils_events, spoils_invocations]


@upcaster("lent.v0")
def spoils_and_upcasts(data: dict, raw: Event, metadata: Metadata) -> Iterator[Upcast]:  # type: ignore[type-arg]
    kept = {"reader": data["reader"], "tags": list(data["tags"])}
    spoil(data)
    spoil(raw)
    spoil(metadata)
    yield Upcast("lent", kept)
    spoil(kept)


# How it is spread


class PerReader(PerSubjectLevel):
    def __call__(self, event: Event, /) -> str:
        return f"{super().__call__(event)} {event.data['reader']}"


class PerReaderOfSubject(PerSubject):
    looks_at: ClassVar[frozenset[str]] = frozenset({"subject", "data"})

    def __call__(self, event: Event, /) -> str:
        return f"{event.subject} {event.data['reader']}"


class PerTenant(PerDataField):
    def __call__(self, event: Event, /) -> str:
        return str(event.metadata["tenant"])


def spoiling(event: Event) -> str:
    found = str(event.data["reader"])
    spoil(event)
    return found


def spoiling_objects(event: Mutable, metadata: Metadata) -> str:
    found = event.reader
    spoil(event)
    spoil(metadata)
    return found


def _spread(name: str, resolver: Any) -> None:
    RESOLVERS[group := f"spread-{name}"] = resolver

    @handles(group, "lent")
    def note(raw: Event, connection: Connection, context: ProcessingContext) -> None:
        if raw.position in FAILING and first(f"{group}-{raw.position}"):
            raise ValueError("again")
        write(connection, group, raw.position, str(context.partition))

    _given(f"given-by-{name}", list[Mutable])
    RESOLVERS[f"given-by-{name}"] = resolver


_RESOLVERS = {
    "reader": PerReader(1),
    "reader-of-subject": PerReaderOfSubject(),
    "tenant": PerTenant(("reader",)),
    "field": PerDataField(("reader",)),
    "spoiling": spoiling,
    "spoiling-objects": spoiling_objects,
}
for _name, _resolver in _RESOLVERS.items():
    _spread(_name, _resolver)


# What it becomes


class Paid(BaseModel):
    """Becomes one of its children, by a discriminated union."""

    amount: int

    @model_validator(mode="wrap")
    @classmethod
    def _as_child(cls, data: Any, handler: Any) -> Any:
        return CHILDREN.validate_python(data) if cls is Paid else handler(data)


class Cash(Paid):
    kind: Literal["cash"]


class Card(Paid):
    kind: Literal["card"]


class Gift(Card):
    pass


CHILDREN: TypeAdapter[Any] = TypeAdapter(Annotated[Cash | Card, Field(discriminator="kind")])


class Ended(BaseModel):
    """Becomes its child after it is validated."""

    kind: str

    @model_validator(mode="after")
    def _as_child(self) -> Any:
        return EndedEarly.model_construct(**self.__dict__) if type(self) is Ended and self.kind == "cash" else self


class EndedEarly(Ended):
    pass


MAPPED = {"paid": Paid, "ended": Ended}


def resolve_type(name: str) -> type | None:
    return {"settled": Paid, "closed": Ended}.get(name)


def _becomes(group: str, cls: Any) -> None:
    def single(event: Any, raw: Event, connection: Connection) -> None:
        write(connection, group, raw.position, type(event).__name__)

    def listed(event: Any, raw: Any, connection: Connection) -> None:
        for each, its in zip(event, raw, strict=True):
            single(each, its, connection)

    async def awaited(event: Any, raw: Event, connection: Connection) -> None:
        single(event, raw, connection)

    annotated = {"event": cls, "raw": Event, "connection": Connection}
    for function in (single, awaited):
        handles(group, annotated=annotated)(function)
    handles(group, annotated={"event": list[cls], "raw": list[Event], "connection": Connection})(listed)


EXPECTED = {Cash: "Cash", Card: "Card", Gift: "", Paid: "Cash Card", Cash | Card: "Cash Card", EndedEarly: "EndedEarly"}
EXPECTED[Ended] = "Ended EndedEarly"
BECOMES = {f"becomes-{number}": cls for number, cls in enumerate(EXPECTED)}
for _group, _class in BECOMES.items():
    _becomes(_group, _class)


@event_handling("becomes-method")
class Methods:
    """A method gets a child, too."""

    @event_handling
    def take(self, event: Cash, raw: Event, connection: Connection) -> None:
        write(connection, "becomes-method", raw.position, type(event).__name__)


HANDLERS["becomes-method"] = [Methods().take]


CUT = dict.fromkeys(("mysql", "mariadb"), "KILL CONNECTION_ID()")
CUT["postgresql"] = "SELECT pg_terminate_backend(pg_backend_pid())"


@on_start("becomes-method")
def prepare(connection: Connection) -> None:
    """Lose the connection the first time, as if the server had gone."""
    if connection.dialect.name in CUT and first("prepare"):
        connection.execute(text(CUT[connection.dialect.name]))


class Parts(containers.DeclarativeContainer):
    """What settings name."""

    resolve_type = providers.Object(resolve_type)


for _group, _resolver in RESOLVERS.items():
    setattr(Parts, _group.replace("-", "_"), providers.Object(_resolver))

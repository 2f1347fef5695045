"""Roles: what a user's function is for, and which arguments it may therefore have."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = [
    "AROUND_EVENT",
    "AROUND_HANDLER",
    "HANDLER",
    "IN_TRANSACTION",
    "OF_AN_EVENT",
    "ON_START",
    "RESOLVER",
    "UPCASTER",
    "Kind",
    "Role",
]


class Kind(Enum):
    """Where an argument comes from."""

    EVENT = auto()
    RAW = auto()
    METADATA = auto()
    CONTEXT = auto()
    CONNECTION = auto()
    SESSION = auto()
    DRIVER = auto()
    AFTER_COMMIT = auto()
    INVOCATION = auto()
    INJECTED = auto()


IN_TRANSACTION = (Kind.CONNECTION, Kind.SESSION, Kind.DRIVER)
OF_AN_EVENT = (Kind.EVENT, Kind.RAW, Kind.METADATA)


@dataclass(frozen=True, slots=True)
class Role:
    """What a function is for, and so which arguments it may have.

    Attributes:
        name: How messages name such a function.
        because: Why other arguments make no sense.
        kinds: The arguments allowed.
        example: A right form.
        yields: Whether it is a generator function that yields once.
        several: Whether it may be a generator function, whose results are gathered.
        lists: Whether it may take lists of what belongs to an event.
    """

    name: str
    because: str
    kinds: frozenset[Kind]
    example: str
    yields: bool = False
    several: bool = False
    lists: bool = False

    @property
    def may_yield(self) -> bool:
        """Whether a generator function can serve."""
        return self.yields or self.several


HANDLER = Role(
    name="a handler",
    because="is called for events",
    kinds=frozenset(Kind) - {Kind.INVOCATION},
    example="def lend(event: BookLent, connection: Connection) -> None",
    lists=True,
)
ON_START = Role(
    name="an @on_start function",
    because="runs before any event",
    kinds=frozenset({*IN_TRANSACTION, Kind.INJECTED}),
    example="def prepare(connection: Connection) -> None",
)
UPCASTER = Role(
    name="an upcaster",
    because="sees an event before it is handled",
    kinds=frozenset({*OF_AN_EVENT, Kind.INJECTED}),
    example='def with_due_date(data: dict) -> Upcast: return Upcast("library.book-lent.v2", {**data, "due": None})',
    several=True,
)
RESOLVER = Role(
    name="a sequence resolver",
    because="sees an event before it is handled",
    kinds=frozenset(OF_AN_EVENT),
    example="def by_reader(event: BookLent, metadata: Metadata) -> str",
)
AROUND_EVENT = Role(
    name="an @around_event function",
    because="surrounds the handlers of one event, whatever its class",
    kinds=frozenset(Kind) - {Kind.EVENT, Kind.INVOCATION},
    example="def traced(raw: Event, metadata: Metadata) -> Iterator[None]: ...; yield; ...",
    yields=True,
)
AROUND_HANDLER = Role(
    name="an @around_handler function",
    because="surrounds one call of any handler",
    kinds=frozenset({*IN_TRANSACTION, Kind.INJECTED, Kind.INVOCATION, Kind.AFTER_COMMIT}),
    example="def timed(invocation: Invocation) -> Iterator[None]: ...; yield; ...",
    yields=True,
)

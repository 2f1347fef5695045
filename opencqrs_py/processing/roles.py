"""Roles of functions, and which arguments each can take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    """The source of an argument."""

    EVENT = auto()
    RAW = auto()
    TABLE = auto()
    FRAME = auto()
    METADATA = auto()
    CONTEXT = auto()
    CONNECTION = auto()
    SESSION = auto()
    DRIVER = auto()
    AFTER_COMMIT = auto()
    INVOCATION = auto()
    RESET = auto()
    JOB = auto()
    PAGE = auto()
    TRIGGER = auto()
    INJECTED = auto()


IN_TRANSACTION = (Kind.CONNECTION, Kind.SESSION, Kind.DRIVER)

OF_AN_EVENT = (Kind.EVENT, Kind.RAW, Kind.METADATA)


_OF_OTHERS = {Kind.INVOCATION, Kind.RESET, Kind.JOB, Kind.PAGE}  # not available to functions that are called for events


@dataclass(frozen=True, slots=True)
class Role:
    """The purpose of a function, which determines the arguments that it can take.

    Attributes:
        name: How messages name such a function.
        because: Why other arguments are refused.
        kinds: The arguments allowed.
        example: A correct form.
        yields: Whether it is a generator function that yields once.
        several: Whether it may be a generator function, whose results are collected.
        lists: Whether it may take lists, with a member for each event.
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
        """Whether it may be a generator function."""
        return self.yields or self.several


HANDLER = Role(
    name="a handler",
    because="is called for events",
    kinds=frozenset(Kind) - _OF_OTHERS,
    example="def lend(event: BookLent, connection: Connection) -> None",
    lists=True,
)


ON_START = Role(
    name="an @on_start function",
    because="runs before any event",
    kinds=frozenset({*IN_TRANSACTION, Kind.INJECTED}),
    example="def prepare(connection: Connection) -> None",
)


ON_RESET = Role(
    name="an @on_reset function",
    because="runs before any event",
    kinds=frozenset({*IN_TRANSACTION, Kind.INJECTED, Kind.RESET}),
    example="def clear(reset: Reset, connection: Connection) -> None",
)


ON_REPLAY_FINISHED = Role(
    name="an @on_replay_finished function",
    because="runs between two events",
    kinds=frozenset({*IN_TRANSACTION, Kind.INJECTED, Kind.RESET}),
    example="def announce(reset: Reset, connection: Connection) -> None",
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
    kinds=frozenset(Kind) - {Kind.EVENT, Kind.TABLE, Kind.FRAME, Kind.TRIGGER, *_OF_OTHERS},
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


JOB = Role(
    name="a job",
    because="runs without any event",
    kinds=frozenset({*IN_TRANSACTION, Kind.INJECTED, Kind.AFTER_COMMIT, Kind.JOB}),
    example="def remind(context: JobContext, connection: Connection) -> None",
)


JOB_INPUT = Role(
    name="the input of a job",
    because="returns what the job applies to",
    kinds=frozenset({*IN_TRANSACTION, Kind.INJECTED, Kind.PAGE}),
    example="def due_invoices() -> Select: return select(invoices.c.id).where(invoices.c.paid_at.is_(None))",
    several=True,
)

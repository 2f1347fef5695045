"""Binding: from a user's function to a call whose arguments are resolved, and the transaction that they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from typing_extensions import override

from opencqrs_py.errors import AssemblyError, HandlerSignatureError, ProjectCodeError
from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event
from opencqrs_py.model.frames import EventFrames
from opencqrs_py.model.handler import Handler
from opencqrs_py.model.inbox import InboxEntry
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.replay import Reset
from opencqrs_py.processing.after_commit import AfterCommit
from opencqrs_py.processing.annotations import signature_of
from opencqrs_py.processing.awaiting import complete
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointTrigger
from opencqrs_py.processing.decoding import has_fields
from opencqrs_py.processing.event_types import ANYTHING, plain
from opencqrs_py.processing.exceptions import one_line, raise_interrupt
from opencqrs_py.processing.pipelining import Pipeline, PipelineFailedError, Pipelining
from opencqrs_py.processing.ports import Injector, UnitOfWork
from opencqrs_py.processing.roles import ON_START, Kind, Role
from opencqrs_py.processing.signatures import Argument, Signature, read_signature


class NothingProvided(Injector):
    """Provides nothing: handlers get only what belongs to the event and its transaction."""

    @override
    def provides(self, wanted: object) -> bool:
        del wanted
        return False

    @override
    def provide(self, wanted: object) -> Any:
        raise LookupError(wanted)


IsMeant: TypeAlias = Callable[[str, int], bool]
"""Returns whether the event of a sequence id and position is handled now."""


@dataclass(eq=False)
class Work:
    """One transaction and the circumstances in which handlers are called in it.

    Attributes:
        group: Processing group.
        partition: Partition that handles the events.
        unit: The transaction.
        failing: Position of an event that has failed before, or ``None``.
        attempt: Number of this attempt of that event, from 1.
        parked: Whether the events come out of the inbox.
        waiting: Their entries there, if they do.
        replaying: Whether the events were handled before a reset.
        is_meant: Returns whether a sequence id and position are handled now, where an event becomes several of
            different sequences; ``None``: all that are the partition's.
        rebuilding: Whether new tables are filled beside those in use.
        trigger: Requests checkpoints of the partition; ``None`` without participants.
        calls_wait: Whether a handler has taken ``after_commit``.
        index: The index of the event that is being handled; ``None`` if it is a list of them.
        ahead: The events after it, instead, where the events of a chunk are given to one handler one by one.
        calls: How many calls of handlers have begun, where the event in hand does not determine that.
        pipelining: Decides whether statements of the driver's connection wait for their answers; ``None``: they do.
    """

    group: str
    partition: Partition
    unit: UnitOfWork
    failing: int | None = None
    attempt: int = 1
    parked: bool = False
    replaying: bool = False
    is_meant: IsMeant | None = None
    rebuilding: bool = False
    trigger: CheckpointTrigger | None = None
    waiting: Sequence[InboxEntry] = ()
    calls_wait: bool = field(default=False, init=False)
    index: int | None = field(default=0, init=False)
    ahead: Iterator[Any] | None = field(default=None, init=False)
    calls: int = field(default=0, init=False)
    pipelining: Pipelining | None = field(default=None, init=False)
    _pipeline: Pipeline | None = field(default=None, init=False)

    @cached_property
    def connection(self) -> Any:
        """The transaction's connection."""
        return self.unit.connection

    @cached_property
    def session(self) -> Any:
        """A session on the same connection."""
        return self.unit.session

    @cached_property
    def driver_connection(self) -> Any:
        """The connection of the database's driver, such as ``sqlite3.Connection``, below ``connection``."""
        if self.pipelining is not None and self.pipelining.begins():
            self._pipeline = self.unit.pipelined()
        return self.unit.connection.connection.driver_connection

    @cached_property
    def after_commit(self) -> AfterCommit:
        """Takes what is to be called after the commit."""
        self.calls_wait = True
        return AfterCommit()

    def settle(self) -> None:
        """Wait for the answers to what handlers have sent; raises ``PipelineFailedError`` if a statement has failed.

        It may take long, and any of the events may have caused the error.
        """
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None and self.pipelining is not None:
            self.index = self.ahead = None
            try:
                pipeline.settle()
            except PipelineFailedError:
                self.pipelining.failed()
                raise
            self.pipelining.took(pipeline)

    def refuse_pipeline(self, error: BaseException) -> None:
        """Raise ``PipelineFailedError`` if an earlier event's statement may have caused a handler's ``error``."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None and self.pipelining is not None:
            pipeline.close()
            if pipeline.statements:
                self.pipelining.failed()
                raise PipelineFailedError from error

    def close(self) -> None:
        """Accept no more calls for after the commit; those accepted so far wait for it."""
        if self.calls_wait:
            self.after_commit.close()

    def committed(self) -> list[BaseException]:
        """Make the calls that wait for the commit; return what they raised."""
        return self.after_commit.run() if self.calls_wait else []

    @cached_property
    def _shown_partition(self) -> Partition:
        """A copy of the partition: code that changes it by force changes no key of our dictionaries."""
        return Partition(self.partition.modulus, self.partition.residue)

    def context(self, event: Event) -> ProcessingContext:
        """Return the circumstances of a call for ``event``."""
        attempt = self.attempt if event.position == self.failing else 1
        circumstances = (attempt, self.replaying, self.parked, self.rebuilding)
        return ProcessingContext(self.group, self._shown_partition, event.position, *circumstances)


Call = Callable[..., Any]
"""``(decoded, event, raw, work)``; for a function that takes lists, each of the first three is a list.

``event`` is what upcasters have made, ``raw`` what the store holds. For one that takes a table, ``decoded`` is that.
"""

CallOfWork = Callable[[Work], Callable[[Any], Any]]
"""From a transaction to a function that takes the decoded object and nothing else."""

# How each kind of argument is taken from the parameters of a ``Call``.
_OF_TRANSACTION = {  # the same for all of its events
    Kind.CONNECTION: "work.connection",
    Kind.SESSION: "work.session",
    Kind.DRIVER: "work.driver_connection",
    Kind.AFTER_COMMIT: "work.after_commit",
    Kind.TRIGGER: "work.trigger",
}
_EXPRESSIONS = {
    Kind.EVENT: "decoded",
    Kind.RAW: "raw",
    Kind.TABLE: "decoded",
    Kind.FRAME: "decoded",
    Kind.METADATA: "event.metadata",
    Kind.CONTEXT: "work.context(raw)",
    Kind.INVOCATION: "decoded",
    Kind.RESET: "decoded",
    Kind.JOB: "decoded",
    Kind.PAGE: "decoded",
    **_OF_TRANSACTION,
}
_WHICH_EVENTS = """take the event, as in def lend(event: BookLent); or name types: types=["library.*"], ["*"] for all"""
_COLUMNS_FIX = (
    '@event_handling("loans", events=BookLent) on def lent(table: pyarrow.Table, connection: Connection); or '
    'types=["library.*"] instead of events, for a table with the data as JSON text'
)
_FRAMES_FIX = (
    '@dataframe_handler("loans", events=BookLent) on def lent(loans: DataFrame, connection: Connection); or without '
    "events on def lent(events: EventFrames, connection: Connection), which has events.of(BookLent)"
)
_OF_LISTS = {Kind.METADATA: "[one.metadata for one in event]", Kind.CONTEXT: "work.context(raw[0])"}


@dataclass(frozen=True, slots=True)
class BoundHandler:
    """A handler definition whose arguments are known, and its call for an event, or for those of a chunk.

    ``call_of_work`` makes the same call for one transaction, with all arguments in place but the decoded object; it is
    ``None`` if another one may differ from event to event.
    """

    handler: Handler
    signature: Signature
    call: Call
    call_of_work: CallOfWork | None


def bind(handler: Handler, injector: Injector) -> BoundHandler:
    """Check a handler's signature and prepare its call.

    Raises OCQ-201 to OCQ-205, OCQ-227 if neither a parameter nor a type says for which events the handler is, and
    OCQ-237 if ``events=`` and a parameter for a table do not belong together, OCQ-240 if the decorator and a parameter
    for data frames do not.
    """
    read = read_signature(handler.call, handler.place, injector)
    handler = _with_types_of_class(handler, read)
    signature = _with_events(read, handler)
    if not handler.mark.types and not signature.arguments:
        names = ", ".join(f"'{name}'" for name in signature_of(handler.call).parameters)
        lack = f"the handler's {names} would keep the default" if names else "the handler has no parameter"
        what = f"{lack}, and it names no types, so it would be called for every event"
        raise HandlerSignatureError("OCQ-227", what, handler.place, _WHICH_EVENTS)
    call = with_arguments(handler.call, signature, injector, handler.place)
    return BoundHandler(handler, signature, call, _call_of_work(handler.call, signature))


def _with_types_of_class(handler: Handler, signature: Signature) -> Handler:
    """Return the handler with the types of its class, unless it says itself which events it handles."""
    mark = handler.mark
    named = [cls for cls in signature.event_classes if plain(cls) not in ANYTHING]
    if not mark.class_types or mark.types or mark.events is not None or named:
        return handler
    return replace(handler, mark=replace(mark, types=mark.class_types))


def _with_events(signature: Signature, handler: Handler) -> Signature:
    """Return the signature with the event class that ``events=`` names, as an annotation of a table cannot."""
    if signature.in_frames or handler.mark.in_frames:
        return _with_frames(signature, handler)
    events, what = handler.mark.events, ""
    if not signature.in_columns:
        what = "events= names the columns of a table, and the handler takes none" if events is not None else ""
    elif events is None:
        what = "" if handler.mark.types else "it is not specified which events the table holds"
    elif not has_fields(events):
        what = f"events= needs a class with fields, and {events.__name__} has none"
    if what:
        raise HandlerSignatureError("OCQ-237", what, handler.place, _COLUMNS_FIX)
    return signature if events is None else replace(signature, event_classes=(events,))


def _with_frames(signature: Signature, handler: Handler) -> Signature:
    mark, what = handler.mark, ""
    in_one = not any(argument.annotation is EventFrames for argument in signature.arguments)
    if not mark.in_frames:
        what = "a handler that takes data frames needs its own decorator"
    elif not signature.in_frames:
        what = "@dataframe_handler marks a function that takes no data frame"
    elif in_one and mark.events is None and not mark.types:
        what = "it is not specified which events the data frame holds"
    elif not in_one and mark.events is not None:
        what = "events= names the columns of a DataFrame, and the handler takes EventFrames"
    elif mark.events is not None and not has_fields(mark.events):
        what = f"events= needs a class with fields, and {mark.events.__name__} has none"
    if what:
        raise HandlerSignatureError("OCQ-240", what, handler.place, _FRAMES_FIX)
    return signature


def run_on_start(call: Callable[..., Any], place: str, injector: Injector, work: Work) -> None:
    """Call an ``@on_start`` function inside a transaction."""
    signature = read_signature(call, place, injector, ON_START)
    complete(with_arguments(call, signature, injector, place)(None, None, None, work))


def of_reset(call: Callable[..., Any], place: str, injector: Injector, role: Role) -> Callable[[Reset, Work], None]:
    """Return the call of an ``@on_reset`` or ``@on_replay_finished`` function, for a reset and its transaction.

    Raises:
        HandlerSignatureError: OCQ-201 to OCQ-205, if it asks for something that is not available.
    """
    bound = with_arguments(call, read_signature(call, place, injector, role), injector, place)
    return lambda reset, work: complete(bound(reset, None, None, work))


def with_arguments(call: Callable[..., Any], signature: Signature, injector: Injector, place: str) -> Call:
    """Return a function that calls ``call`` with its arguments.

    What a provider raises becomes a ``ProjectCodeError`` OCQ-217 that names provider, argument and ``place``.

    It is generated as source and compiled, as ``namedtuple`` does: it runs once per event, and a loop over the
    arguments would cost more than many a handler. Parameter names are the only part of it that comes from the user.
    """
    names: dict[str, Any] = {"call": call}
    written = []
    for number, argument in enumerate(signature.arguments):
        expression = _expression(argument, signature, number)
        if argument.kind is Kind.INJECTED:
            names[f"provide{number}"] = _provision(argument, injector, place)
        written.append(_passed(argument, expression))
    bound: Call = _compiled(f"lambda decoded, event, raw, work: call({', '.join(written)})", names)
    return bound


def _call_of_work(call: Callable[..., Any], signature: Signature) -> CallOfWork | None:
    """Return a function that fetches what a transaction offers its handlers once, not for each event."""
    same = [argument for argument in signature.arguments if argument.kind in _OF_TRANSACTION]
    if len(same) + 1 != len(signature.arguments) or not any(a.kind is Kind.EVENT for a in signature.arguments):
        return None
    names = {argument: f"same{number}" for number, argument in enumerate(same)}
    written = ", ".join(_passed(argument, names.get(argument, "decoded")) for argument in signature.arguments)
    fetched = [f"{name}={_OF_TRANSACTION[argument.kind]}" for argument, name in names.items()]
    made = f"lambda {', '.join(['decoded', *fetched])}: call({written})" if written != "decoded" else "call"
    bound: CallOfWork = _compiled(f"lambda work: {made}", {"call": call})
    return bound


def _passed(argument: Argument, expression: str) -> str:
    return f"{argument.name}={expression}" if argument.by_keyword else expression


def _compiled(source: str, names: dict[str, Any]) -> Any:
    return eval(compile(source, __file__, "eval"), names)  # noqa: S307 see with_arguments


def _expression(argument: Argument, signature: Signature, number: int) -> str:
    if argument.kind is Kind.INJECTED:
        return f"provide{number}()"
    if signature.many and argument.kind in _OF_LISTS:
        return _OF_LISTS[argument.kind]
    return _EXPRESSIONS[argument.kind]


def _provision(argument: Argument, injector: Injector, place: str) -> Callable[[], Any]:
    wanted, asked = argument.annotation, f"argument '{argument.name}' of {place} cannot be provided"

    def provided() -> Any:
        try:
            return injector.provide(wanted)
        except AssemblyError as error:  # of the container, which does not know the caller
            raise AssemblyError(error.code, error.what, error.where or place, error.fix) from None
        except ProjectCodeError as error:  # likewise: it names the provider
            raise ProjectCodeError(error.code, f"{asked}: {error.what}", place, error.fix) from error.__cause__
        except BaseException as error:
            raise_interrupt(error)
            raise ProjectCodeError("OCQ-217", f"{asked}: {one_line(error)}", place) from error

    return provided

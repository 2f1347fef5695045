"""Assembly of a group's parts, for the container and for a processor made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opencqrs_py.engines.checkpointing import SCHEDULED, CheckpointRule, make_checkpointing
from opencqrs_py.errors import AssemblyError
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.handler import Handler, Interceptor, Upcaster
from opencqrs_py.model.partition import residue_of
from opencqrs_py.processing.binding import BoundHandler, NothingProvided, bind, of_reset
from opencqrs_py.processing.definitions import interceptors_in_order, place_of, upcasters_of
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.event_types import EventTypes, TypeResolver
from opencqrs_py.processing.frames import FrameDispatcher, FrameMaker, FrameProcessing
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.inbox.batches import ScheduleRule
from opencqrs_py.processing.inbox.parked_entries import ParkingRule
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.notices import NO_OBSERVER, Observer
from opencqrs_py.processing.ports import Clock, EventSource, Injector, ProgressTracker, SystemClock
from opencqrs_py.processing.reading import Reading, Upcasters
from opencqrs_py.processing.replays import ReplayRule, ResetFunction
from opencqrs_py.processing.roles import ON_REPLAY_FINISHED
from opencqrs_py.processing.sequence_resolvers import PerDataField, PerMetadataKey
from opencqrs_py.processing.sequencing import (
    PartitionKeyResolver,
    PartitionOf,
    PartitionResolver,
    Sequencing,
    SequencingByEvent,
    SequencingByObject,
    sequencing_for,
)


@dataclass(frozen=True, slots=True)
class ProcessorOptions:
    """Optional parts of a processor.

    Attributes:
        on_exhausted: What happens to an event whose attempts are exhausted.
        on_undecodable: What happens to an event that cannot be decoded.
        parking: How events are parked.
        schedule: How a scheduled group handles its events; ``None`` if they are handled as they arrive.
        batch_size: Most events in one transaction, at least 1; ``None``: chosen from the handlers.
        injector: Provides further dependencies of handlers.
        upcasters: Functions with ``@upcaster``.
        interceptors: Functions with ``@around_event`` or ``@around_handler``; those of other groups are left out.
        event_classes: Classes with ``@event_type`` that no handler takes itself, such as subclasses.
        event_types: More event types, each with its class.
        type_resolver: Called for types that are neither marked nor mapped.
        enveloped: Whether data come in OpenCQRS' envelope of metadata and payload.
        initial_position: Where a group without progress starts: after this position, at least 0.
        observer: Observes what happens.
        clock: Time.
        frames: Creates the maker of data frames for a ``@dataframe_handler``; ``None`` if there is no Spark.
        replay_finished: Called like ``@on_replay_finished`` functions.
        checkpointing: How participants confirm what is durable.

    Raises:
        ValueError: If a number is too small.
    """

    on_exhausted: OnExhausted = OnExhausted.SKIP
    on_undecodable: OnExhausted = OnExhausted.STOP
    parking: ParkingRule | None = None
    schedule: ScheduleRule | None = None
    batch_size: int | None = None
    injector: Injector = field(default_factory=NothingProvided)
    upcasters: Sequence[Upcaster | Callable[..., Any]] = ()
    interceptors: Sequence[Interceptor | Callable[..., Any]] = ()
    event_classes: Sequence[type] = ()
    event_types: Mapping[str, type] = field(default_factory=dict)
    type_resolver: TypeResolver | None = None
    enveloped: bool = False
    initial_position: int = 0
    observer: Observer = NO_OBSERVER
    clock: Clock = field(default_factory=SystemClock)
    frames: Callable[[FrameProcessing], FrameMaker] | None = None
    replay_finished: Sequence[Callable[..., Any]] = ()
    checkpointing: CheckpointRule = field(default_factory=CheckpointRule)

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.initial_position < 0:
            raise ValueError(f"initial_position must be at least 0, got {self.initial_position}")

    @property
    def parks(self) -> bool:
        """Whether events may be parked."""
        return OnExhausted.PARK in (self.on_exhausted, self.on_undecodable)


def make_dispatcher(
    handlers: Sequence[BoundHandler],
    types: EventTypes,
    reading: Reading,
    interceptors: Interceptors,
    sequencing: Sequencing,
) -> Dispatcher:
    """Return the dispatcher of a group's handlers.

    A sequence resolver that sees decoded objects learns from it what the group handles. If a stored event becomes
    several events, the resolver decides which of them belong to a partition.

    Raises:
        HandlerSignatureError: If a handler cannot be called with the events that it takes.
        AssemblyError: OCQ-514, if the sequence resolver does not take what the group handles; OCQ-541, if a handler of
            data frames is not alone.
    """
    if any(bound.signature.in_frames for bound in handlers):
        require_alone(handlers, interceptors)
        return FrameDispatcher(handlers[0], types, reading)
    if not isinstance(sequencing, SequencingByObject):
        return Dispatcher(handlers, types, reading, interceptors)
    dispatcher = Dispatcher(handlers, types, reading, interceptors, sequencing.belongs)
    sequencing.serve((dispatcher.wanted_types or frozenset()) - reading.upcast_types, dispatcher.handles)
    return dispatcher


def make_replay_rule(
    handlers: Sequence[BoundHandler],
    types: EventTypes,
    reading: Reading,
    interceptors: Interceptors,
    sequencing: Sequencing,
    dispatcher: Dispatcher,
    finished: Sequence[ResetFunction] = (),
    *,
    rebuilding: bool = False,
    run_all_handlers: bool = False,
) -> ReplayRule:
    """Return how a group handles events again: without handlers with ``replay=False``.

    Args:
        handlers: All handlers of the group.
        types: The event classes known.
        reading: How stored events are read.
        interceptors: Functions around events and handlers.
        sequencing: Maps events to sequences.
        dispatcher: Calls all of these handlers.
        finished: The group's ``@on_replay_finished`` functions.
        rebuilding: Whether new tables are filled beside those in use.
        run_all_handlers: Whether a rebuild also repeats effects outside of the transaction.
    """
    silent = rebuilding and not run_all_handlers
    kept = [bound for bound in handlers if bound.handler.mark.replay is not False]
    if not kept:
        return ReplayRule(None, finished, rebuilding, silent)
    if len(kept) < len(handlers):
        belongs = sequencing.belongs if isinstance(sequencing, SequencingByObject) else None
        return ReplayRule(Dispatcher(kept, types, reading, interceptors, belongs), finished, rebuilding, silent)
    return ReplayRule(dispatcher, finished, rebuilding, silent)


def require_alone(handlers: Sequence[BoundHandler], interceptors: Interceptors) -> None:
    """Refuse with OCQ-541 other handlers beside one that gets data frames, and interceptors around it."""
    (first, *_) = (bound for bound in handlers if bound.signature.in_frames)
    place = first.handler.place
    if len(handlers) > 1:
        others = [bound.handler.place for bound in handlers if bound is not first]
        what = "a group with a @dataframe_handler has no other handler"
        raise AssemblyError("OCQ-541", what, f"{place} and {others[0]}", "give each its own group")
    if interceptors.of_events or interceptors.of_handlers:
        what = "a @dataframe_handler cannot be surrounded: its events are read by Spark"
        fix = "name the groups that @around_event and @around_handler are for, or move their code into the handler"
        raise AssemblyError("OCQ-541", what, place, fix)


def group_processing(
    group: str,
    source: EventSource,
    tracker: ProgressTracker,
    dispatcher: Dispatcher,
    parking: ParkingRule | None = None,
    schedule: ScheduleRule | None = None,
    **rest: Any,
) -> GroupProcessing:
    """Return what makes the processors of a group; ``rest`` are the further parts of ``GroupProcessing``."""
    if isinstance(dispatcher, FrameDispatcher):
        rest.pop("checkpointing", None)
        return FrameProcessing(group, source, tracker, dispatcher, **rest)
    return GroupProcessing(group, source, tracker, dispatcher, parking=parking, schedule=schedule, **rest)


def unfit(options: ProcessorOptions) -> CheckpointRule:
    """Return the rule for participants of a processor made by hand, with its restrictions."""
    if options.schedule is not None:
        return replace(options.checkpointing, why_not=SCHEDULED, fix="remove the schedule")
    if options.parks:
        return replace(options.checkpointing, parks="skip or stop instead of parking")
    return options.checkpointing


def make_processing(
    group: str,
    handlers: Sequence[Handler],
    reader: EventSource,
    tracker: ProgressTracker,
    sequence_resolver: Callable[..., str],
    partition_resolver: PartitionResolver,
    options: ProcessorOptions,
    *,
    subject: str,
    recursive: bool,
) -> GroupProcessing:
    """Assemble a group's parts.

    Raises:
        HandlerSignatureError: If a handler, upcaster, interceptor or resolver cannot be called as declared.
        AssemblyError: OCQ-514, if the sequence resolver does not take what the group handles; OCQ-541, if a handler
            takes data frames, and nothing makes them.
    """
    injector = options.injector
    reading = Reading(Upcasters(upcasters_of(options.upcasters), injector), enveloped=options.enveloped)
    types = EventTypes(options.event_classes, options.event_types, options.type_resolver)
    sequencing = _sequencing(sequence_resolver, _checked(partition_resolver), types, reading, options)
    interceptors = Interceptors(interceptors_in_order(options.interceptors, group), injector)
    bound = [bind(each, injector) for each in handlers]
    parts = (bound, types, reading, interceptors, sequencing)
    dispatcher = make_dispatcher(*parts)
    checkpointing = make_checkpointing(group, *parts, unfit(options))
    ends = [of_reset(each, place_of(each), injector, ON_REPLAY_FINISHED) for each in options.replay_finished]
    processing = group_processing(
        group,
        reader,
        tracker,
        dispatcher,
        subject=subject,
        recursive=recursive,
        sequencing=sequencing,
        partitions=partition_resolver.partitions,
        batch_size=options.batch_size,
        parking=replace(
            options.parking or ParkingRule(),
            on_exhausted=options.on_exhausted,
            on_undecodable=options.on_undecodable,
        ),
        schedule=options.schedule,
        replays=make_replay_rule(*parts, dispatcher, ends),
        checkpointing=checkpointing,
    )
    if (options.parks or options.schedule) and not processing.has_inbox:
        raise ValueError("events wait by the CRC-32 of their sequences, and where a tracker has an inbox")
    if isinstance(processing, FrameProcessing):
        if options.frames is None:
            fix = "run the group with an Application, on the engine spark"
            place = processing.frames.bound.handler.place
            raise AssemblyError("OCQ-541", "a processor made by hand has no Spark for its data frames", place, fix)
        processing.use(options.frames(processing))
    return processing


def _checked(resolver: PartitionResolver) -> PartitionOf:
    """Return the resolver as the core calls it: our own as a plain function.

    For others, a result that is not a partition is an error: no processor would ever handle the event.
    """
    if type(resolver) is PartitionKeyResolver:
        return residue_of

    def partition_of(sequence_id: str, modulus: int) -> int:
        partition = resolver(sequence_id)
        if partition not in range(modulus):
            msg = f"the partition resolver returned {partition!r} for '{sequence_id}', not one of 0..{modulus - 1}"
            raise ValueError(msg)
        return partition

    return partition_of


def _sequencing(
    resolver: Callable[..., str],
    partition_of: PartitionOf,
    types: EventTypes,
    reading: Reading,
    options: ProcessorOptions,
) -> Sequencing:
    if options.enveloped and isinstance(resolver, PerDataField | PerMetadataKey):
        return SequencingByEvent(resolver, partition_of, reading.unwrapped)
    return sequencing_for(resolver, types, reading, "sequence_resolver", partition_of)

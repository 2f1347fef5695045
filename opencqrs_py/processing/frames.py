"""Groups whose handler gets events as data frames: what the core knows about them without Spark.

A step of such a group is a range of positions: one call handles it, in one transaction with the progress, by the rules
of chunks. The engine provides the maker of data frames when its session is open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from typing_extensions import override

from opencqrs_py.errors import HandlerSignatureError, ProjectCodeError, UnavailableError
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.frames import EventFrames
from opencqrs_py.model.handler import Handler, HandlerMark
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.awaiting import complete
from opencqrs_py.processing.binding import BoundHandler, Work
from opencqrs_py.processing.calls import NO_LIMITS, CallLimits
from opencqrs_py.processing.dispatch import ChunkFailedError, Dispatcher
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.inbox.parked_entries import ParkingRule
from opencqrs_py.processing.ports import Clock, EventSource, ProgressTracker
from opencqrs_py.processing.ranges import PositionRange, RangeFeed
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.replays import ReplayRule
from opencqrs_py.processing.roles import Kind
from opencqrs_py.processing.sequencing import Sequencing
from opencqrs_py.processing.signatures import Argument, Signature
from opencqrs_py.processing.staging import FrameRows, TakesFrameRows

RANGE = 500_000
"""Most positions of a range, unless a setting says otherwise."""

MOST_LOST = 3
"""How many workers in a row must be lost while an event is handled alone, to count as a failed attempt of the event."""

_PAGE = 10_000  # events that become one table
_TABLE = Argument("table", Kind.TABLE, None)
_NO_UNIT: Any = None  # tables are made outside of any transaction


class EventOfRangeError(Exception):
    """The event at ``position`` cannot become a row of a data frame, because of ``error``."""

    def __init__(self, position: int, error: BaseException) -> None:
        super().__init__(position, error)
        self.position = position
        self.error = error


class WorkerLostError(Exception):
    """A process that handled a range has ended: because of an event in it, or for another reason."""


class _LostWorkers:
    """Distinguishes an event that ends each process that handles it from processes that ended for other reasons.

    Ranges are halved until the event is alone. Then it is tried alone again, before it counts as the cause.
    """

    def __init__(self) -> None:
        self._position = 0
        self._count = 0

    def expects(self, chunk: Chunk, first: Event) -> bool:
        """Return whether a range begins with such an event and has others: it would fail again because of it."""
        return len(chunk) > 1 and self._count > 0 and first.position == self._position

    def lost(self, position: int, error: WorkerLostError) -> BaseException:
        """Return the error for a lost process while the event at a position was alone."""
        self._count = self._count + 1 if position == self._position else 1
        self._position = position
        if self._count >= MOST_LOST:
            return error
        return UnavailableError("OCQ-420", f"a Spark worker was lost, time {self._count} of {MOST_LOST}: {error}")

    def handled(self) -> None:
        """Note that a range was handled."""
        self._count = 0


@dataclass(eq=False)
class _Gathering(Work):
    """Collects the tables of a chunk."""

    tables: list[Any] = field(default_factory=list, init=False)


class EventTables(Dispatcher):
    """Makes tables of events as handlers of columns get them: decoded, upcast, with the same errors.

    Args:
        event_class: Class whose fields are columns; ``None``: the data are JSON texts.
        patterns: Of event types; empty where the class decides.
        place: How messages name the handler.
        types: The event classes known.
        reading: How stored events are read.

    Raises:
        HandlerSignatureError: OCQ-206, OCQ-208 or OCQ-238, if there can be no table of the class.
    """

    def __init__(
        self,
        event_class: type | None,
        patterns: Sequence[str],
        place: str,
        types: EventTypes,
        reading: Reading,
    ) -> None:
        mark = HandlerMark("", tuple(patterns), events=event_class)
        signature = Signature((_TABLE,), () if event_class is None else (event_class,))

        def gather(table: Any, _event: Any, _raw: Any, work: _Gathering) -> None:
            work.tables.append(table)

        super().__init__([BoundHandler(Handler(mark, gather, place), signature, gather, None)], types, reading)

    @property
    def schema(self) -> Any:
        """The ``pyarrow.Schema`` of the tables."""
        (target,) = self._targets
        return target.tables.of_events((), ()).schema if target.tables is not None else None

    def of_chunk(self, group: str, chunk: Chunk) -> list[Any]:
        """Return the tables of a chunk, none or one; raises ``EventOfRangeError``."""
        work = _Gathering(group, Partition(1, 0), _NO_UNIT)
        try:
            Dispatcher.handle(self, chunk, work)
        except ChunkFailedError as failed:
            raise EventOfRangeError(chunk.position(failed.index or 0), failed.error) from failed.error
        return work.tables


class OpenedFrames(EventFrames):
    """The data frames of a range as the core sees them."""

    @property
    def handled(self) -> int:
        """How many events they have read, as far as known."""
        return 0

    @property
    def rows(self) -> FrameRows | None:
        """Provides the rows of data frames that the handler writes; ``None``: the data frames do so themselves."""
        return None

    def serve_rebuild(self) -> None:
        """Note that they are for the new tables of a rebuild."""
        self._in_rebuild = True

    def require_read(self) -> None:
        """Read the events of the data frames that the handler has not read, so that no unreadable event is skipped.

        Called when the handler has ended without an error: it may have caught one of our errors.
        """

    def close(self) -> None:
        """Release what was opened for the range. Called when its handler has ended; ``handled`` stays known."""


class FrameMaker(Protocol):
    """Makes the data frames of ranges."""

    def frames(self, events: PositionRange, first: Event) -> OpenedFrames:
        """Return the data frames of a range, given its first event."""
        ...

    def explained(self, error: BaseException) -> BaseException:
        """Return how an error of a call is classified: ``EventOfRangeError``, if it names the event.

        ``UnavailableError``, if it means that Spark is gone or has cancelled the job; ``WorkerLostError``, if a process
        that worked on it has ended.
        """
        ...


class FrameDispatcher(EventTables):
    """Calls the only handler of a group with the data frames of a range.

    Args:
        bound: The handler.
        types: The event classes known.
        reading: How stored events are read.

    Raises:
        HandlerSignatureError: As ``EventTables``.
    """

    def __init__(self, bound: BoundHandler, types: EventTypes, reading: Reading) -> None:
        mark = bound.handler.mark
        self.bound = bound
        self._given = types
        self._as_read = reading
        self._of_class: dict[type | None, EventTables] = {}
        self._maker: FrameMaker | None = None
        self._lost = _LostWorkers()
        self._one_frame = not any(argument.annotation is EventFrames for argument in bound.signature.arguments)
        patterns = mark.types or (() if mark.events is not None else ("*",))
        super().__init__(mark.events, patterns, bound.handler.place, types, reading)

    @property
    @override
    def transactional(self) -> bool:
        return self.bound.signature.transactional

    @override
    def places(self, event: Event) -> list[str]:
        return [self.bound.handler.place]

    def use(self, maker: FrameMaker) -> None:
        """Use this maker of data frames from now on."""
        self._maker = maker

    def tables_of(self, event_class: type | None) -> EventTables:
        """Return the maker of tables with the fields of a class; ``None``: with the data as JSON texts.

        Raises:
            HandlerSignatureError: OCQ-241, if the group does not handle all event types that lead to the class; or as
                ``EventTables`` raises it.
        """
        if event_class is self.bound.handler.mark.events:
            return self
        found = self._of_class.get(event_class)
        if found is None:
            place = self.bound.handler.place
            found = EventTables(event_class, () if event_class else ("*",), place, self._given, self._as_read)
            if event_class:
                known = found.wanted_types  # none if a resolver may know more
                names = filter(found.wants, self._given.names) if known is None else known
                self.require_wanted(event_class, names)
            self._of_class[event_class] = found
        return found

    def require_wanted(self, event_class: type, types: Iterable[str]) -> None:
        """Refuse to give events of a class of which the group leaves some out: those would be skipped.

        Raises:
            HandlerSignatureError: OCQ-241, naming their types.
        """
        if left_out := sorted({name for name in types if not self.wants(name)}):
            what = f"events of {event_class.__name__} are requested, of types that the handler leaves out"
            place = self.bound.handler.place
            raise HandlerSignatureError("OCQ-241", what, place, f"add to its types: {', '.join(left_out)}")

    @override
    def handle(self, chunk: Chunk, work: Work) -> int:
        """Call the handler for a ``PositionRange``; return how many events its data frames have read.

        Raises ``ChunkFailedError`` with what the handler raised, or why an event cannot become a row.
        """
        if not isinstance(chunk, PositionRange) or self._maker is None:
            raise TypeError(f"data frames of group '{work.group}' need ranges, and an engine that makes them")
        first = chunk.first_event()
        if first is None:
            return 0
        if self._lost.expects(chunk, first):
            raise ChunkFailedError(None, WorkerLostError(f"a Spark worker was lost at position {first.position}"))
        frames = self._maker.frames(chunk, first)
        if work.rebuilding:
            frames.serve_rebuild()
        try:
            self._call(frames, first, work)
            frames.require_read()
        except BaseException as error:  # only a real interrupt ends the process (K6)
            raise_interrupt(error)
            raise self._failed(chunk, self._maker.explained(error)) from error
        finally:
            frames.close()
        self._lost.handled()
        return frames.handled

    def _failed(self, chunk: PositionRange, found: BaseException) -> ChunkFailedError:
        alone = len(chunk) == 1
        if isinstance(found, EventOfRangeError):
            if 0 <= (index := chunk.index_of(found.position)) < len(chunk):
                return ChunkFailedError(index, found.error, tries_alone=True)  # its files replace those of the range
            found = found.error  # the handler has kept a data frame of an earlier range
        if isinstance(found, HandlerSignatureError):  # the handler's request is wrong, not an event
            found = ProjectCodeError(found.code, found.what, found.where, found.fix)
        elif isinstance(found, WorkerLostError) and alone:
            found = self._lost.lost(chunk.position(0), found)
        return ChunkFailedError(0 if alone else None, found)

    def _call(self, frames: OpenedFrames, first: Event, work: Work) -> None:
        given: Any = frames
        if self._one_frame:
            events = self.bound.handler.mark.events
            given = frames.as_stored() if events is None else frames.of(events)
        work.index = None
        work.calls += 1
        if isinstance(work.unit, TakesFrameRows):
            work.unit.frame_rows = frames.rows
        complete(self.bound.call(given, first, first, work))
        if self.bound.signature.asks_for(Kind.SESSION):
            work.unit.flush()


class FrameProcessing(GroupProcessing):
    """A group whose handler gets data frames. It handles nothing before ``use`` is called.

    Args: as ``GroupProcessing``; ``batch_size`` is the most positions of a range, ``None`` for 500,000. Nothing is
    parked: a range belongs to no single sequence.
    """

    def __init__(  # noqa: PLR0913 as GroupProcessing
        self,
        group: str,
        source: EventSource,
        tracker: ProgressTracker,
        dispatcher: FrameDispatcher,
        *,
        subject: str,
        recursive: bool,
        sequencing: Sequencing,
        partitions: int,
        batch_size: int | None,
        clock: Clock | None = None,
        limits: CallLimits = NO_LIMITS,
        replays: ReplayRule | None = None,
    ) -> None:
        super().__init__(
            group,
            source,
            tracker,
            dispatcher,
            subject=subject,
            recursive=recursive,
            sequencing=sequencing,
            partitions=partitions,
            batch_size=batch_size or RANGE,
            clock=clock,
            limits=limits,
            replays=replays,
        )
        self.frames = dispatcher
        wanted = dispatcher.wants if self.selection.types is None else None
        self.feed = RangeFeed(source, self.selection, sequencing, self.batch_size, wanted)

    def use(self, maker: FrameMaker) -> None:
        """Use this maker of data frames from now on."""
        self.frames.use(maker)

    @override
    def _parking_by(self, rule: ParkingRule) -> None:
        return None

    @override
    def narrowed(self, partitions: Collection[Partition], most: int | None = None) -> GroupProcessing:
        return self

    def tables(self, event_class: type | None, after: int, upto: int) -> Iterator[Any]:
        """Yield the events of ``after + 1..upto`` as tables, in their order.

        Raises:
            EventOfRangeError: With the event that cannot become a row.
            UnavailableError: OCQ-420, if the log ends before.
        """
        tables = self.frames.tables_of(event_class)
        selection = replace(self.selection, types=tables.wanted_types, attributes=tables.attributes)
        wanted = tables.wants if selection.types is None else None
        while after < upto:
            part = self.source.read(after, _PAGE, selection, upto)
            if part.upto <= after:
                raise UnavailableError("OCQ-420", f"the log ends at position {after}, but {upto} existed before")
            chunk = Chunk.of(part.events)
            if chunk := chunk if wanted is None else chunk.of_types(wanted):
                if wanted is not None and event_class is not None and tables is not self.frames:
                    self.frames.require_wanted(event_class, chunk.types)
                yield from tables.of_chunk(self.group, chunk)
            after = part.upto

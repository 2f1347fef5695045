"""The processor of one partition: takes the next events, has them handled, moves progress."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from opencqrs_py.errors import (
    AssemblyError,
    DatabaseFileError,
    EventFormatError,
    EventStoreError,
    FencedError,
    NonTransientError,
    ProjectCodeError,
    TransactionEndedError,
)
from opencqrs_py.model.chunk import NOTHING, Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, Skip
from opencqrs_py.processing.dispatch import ChunkFailedError, Dispatcher
from opencqrs_py.processing.exceptions import (
    failure_of,
    label_text,
    leaves,
    own_frames,
    placed_error_text,
    raise_interrupt,
)
from opencqrs_py.processing.feed import Feed, UnsequencedError
from opencqrs_py.processing.ports import Clock, ProgressTracker, SystemClock, UnitOfWork
from opencqrs_py.processing.work import Work

_DECISIVE = (Origin.FENCED, Origin.OUTAGE, Origin.FRAMEWORK, Origin.EVENT, Origin.HANDLER)


class _NotOpenedError(Exception):
    """The tracker did not open the unit of work; no handler was called."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class PartitionProcessor:
    """Moves one partition of a group forward, a chunk at a time.

    It keeps nothing between two steps: where it resumes is in the cursor, so any process can do the next step.

    Args:
        group: Processing group.
        partition: Its share of the group's sequences.
        feed: Where events come from.
        tracker: Where progress goes.
        dispatcher: Calls the handlers.
        batch_size: Most events in one transaction, at least 1.
        clock: Time, for what is recorded.
    """

    def __init__(
        self,
        group: str,
        partition: Partition,
        feed: Feed,
        tracker: ProgressTracker,
        dispatcher: Dispatcher,
        batch_size: int,
        clock: Clock | None = None,
    ) -> None:
        self.group = group
        self.partition = partition
        self._feed = feed
        self._tracker = tracker
        self._dispatcher = dispatcher
        self._batch_size = batch_size
        self._clock = SystemClock() if clock is None else clock

    def step(self, cursor: Cursor) -> Outcome:
        """Handle the next chunk of events and store the progress with what the handlers wrote.

        When event k of a chunk fails, the chunk is rolled back, the events before k are committed, and the outcome
        names k. Errors come back in the outcome, whatever their class; only a real interrupt passes through.

        After an outage it is first seen to that the progress and the log are what they were. Progress that another
        task has moved under the same claim is taken over where the cursor is shared, and only there.

        Source:
            PRODUCT section 4, "Exactly once"; OpenCQRS event handling loop.
        """
        try:
            sure = self._confirmed(cursor) if cursor.doubtful else cursor
        except BaseException as error:
            raise_interrupt(error)
            return self._doubtful(Outcome(cursor, failure=self._reading_failure(error)))
        outcome = self._step(sure)
        fenced = outcome.failure is not None and outcome.failure.origin is Origin.FENCED
        return self._doubtful(self._taken_over(sure, outcome) if fenced and cursor.shared else outcome)

    def _confirmed(self, cursor: Cursor) -> Cursor:
        """Return the cursor as it is stored: an answer to a commit may have been lost, and the log replaced."""
        found = self._tracker.renewed(self.group, cursor)
        if found is None:
            msg = f"progress of group '{self.group}' partition {self.partition} was taken over by another processor"
            raise FencedError(msg)
        if found.stored > cursor.stored:
            cursor = cursor.moved_to(found.stored, stored=True, fingerprint=found.fingerprint)
        elif found.stored < cursor.stored:  # the database was restored, and the read model with it
            cursor = found
        self._feed.source.verify(cursor.stored, cursor.fingerprint)
        return replace(cursor, doubtful=False)

    def _taken_over(self, cursor: Cursor, outcome: Outcome) -> Outcome:
        """Continue from where another run of the same task has moved the progress."""
        try:
            found = self._tracker.renewed(self.group, cursor)
        except BaseException as error:
            raise_interrupt(error)
            return Outcome(cursor, failure=self._failure(error, Origin.FRAMEWORK))
        if found is None or found.stored == cursor.stored:  # the same place again would be a loop without end
            return outcome
        return Outcome(replace(found, shared=True), handled=outcome.handled, missed=outcome.missed)

    @staticmethod
    def _doubtful(outcome: Outcome) -> Outcome:
        if outcome.failure is None or outcome.failure.origin is not Origin.OUTAGE:
            return outcome
        return replace(outcome, cursor=replace(outcome.cursor, doubtful=True))

    def _step(self, cursor: Cursor) -> Outcome:
        try:
            page = self._feed.read(cursor.position)
            if page is None:
                return self.flush(cursor)
            events, upto = page.events_of(self.partition, cursor.position)
        except UnsequencedError as failed:
            failure, event = self._failure(failed.error, Origin.FRAMEWORK), failed.event
            return Outcome(cursor, failure=replace(failure, event=label_text(lambda: event.label)))
        except BaseException as error:  # whatever a store raises is an outcome
            raise_interrupt(error)
            return Outcome(cursor, failure=self._reading_failure(error))
        if not events:
            return Outcome(cursor.moved_to(upto, stored=False))
        chunk, upto = self._chunk(cursor, events, upto)
        if cursor.skip and cursor.failing == chunk.position(0):
            return self._give_up(cursor, chunk[0], upto)
        return self._handle(cursor, chunk, upto)

    def flush(self, cursor: Cursor) -> Outcome:
        """Store progress over events that were not this partition's."""
        if cursor.position == cursor.stored:
            return Outcome(cursor, idle=True)
        try:
            flushed = self._commit(cursor, NOTHING, cursor.position)
        except BaseException as error:
            raise_interrupt(error)
            return self._doubtful(Outcome(cursor, failure=self._failure(error, Origin.FRAMEWORK)))
        return replace(flushed, idle=True)

    def _chunk(self, cursor: Cursor, events: Chunk, upto: int) -> tuple[Chunk, int]:
        size = 1 if cursor.failing == events.position(0) else self._batch_size
        if len(events) <= size:
            return events, upto
        return events[:size], events.position(size - 1)

    def _give_up(self, cursor: Cursor, event: Event, upto: int) -> Outcome:
        try:
            skip = self._skip(cursor, event)
            return self._commit(cursor, NOTHING, upto, skip)
        except BaseException as error:
            raise_interrupt(error)
            return Outcome(cursor, failure=self._failure(error, Origin.FRAMEWORK))

    def _skip(self, cursor: Cursor, event: Event) -> Skip:
        record, now = cursor.failure, self._clock.now().isoformat(timespec="milliseconds")
        reason = record.last_error if record is not None else ""
        attempts = record.attempts if record is not None else max(1, cursor.attempt - 1)
        known = (event.position, event.id, event.source, event.subject, event.type)
        return Skip(self.group, self.partition, *known, attempts, reason, now)

    def _handle(self, cursor: Cursor, chunk: Chunk, upto: int) -> Outcome:
        try:
            return self._commit(cursor, chunk, upto)
        except ChunkFailedError as failed:
            return self._narrow(cursor, chunk, upto, failed)
        except BaseException as error:  # the commit: an outage, a lost claim, or a constraint checked at its end
            raise_interrupt(error)
            failure = self._failure(error, Origin.HANDLER, chunk[0])
            if len(chunk) == 1 or failure.origin is not Origin.HANDLER:
                return Outcome(cursor, failure=failure)
            if isinstance(error, TransactionEndedError):
                return self._one_by_one(cursor, chunk, upto)
            return self._by_halves(cursor, chunk, upto)

    def _narrow(self, cursor: Cursor, chunk: Chunk, upto: int, failed: ChunkFailedError) -> Outcome:
        """Commit what comes before the event that failed; look for it if it is not known."""
        index = failed.index
        failure = self._handler_failure(failed.error, chunk[index or 0])
        if index is None and failure.origin is Origin.OUTAGE:
            failure = replace(failure, event=f"one of {len(chunk)} events, from {failure.event}")
        if index == 0 or failure.origin is Origin.OUTAGE:
            return Outcome(cursor, failure=failure)
        if index is None:
            ended = isinstance(failed.error, TransactionEndedError)
            return (self._one_by_one if ended else self._by_halves)(cursor, chunk, upto)
        before = self._handle(cursor, chunk[:index], chunk.position(index - 1))
        return before if before.failure is not None else replace(before, failure=failure)

    def _by_halves(self, cursor: Cursor, chunk: Chunk, upto: int) -> Outcome:
        """Find the event by which a chunk fails: what comes before it is committed, in ever smaller chunks."""
        middle = len(chunk) // 2
        first = self._handle(cursor, chunk[:middle], chunk.position(middle - 1))
        if first.failure is not None:
            return first
        return first.followed_by(self._handle(first.cursor, chunk[middle:], upto))

    def _one_by_one(self, cursor: Cursor, chunk: Chunk, upto: int) -> Outcome:
        """Find the event whose handler ended the transaction: each further call of it repeats what it has committed."""
        done, last = Outcome(cursor), len(chunk) - 1
        for index in range(len(chunk)):
            to = upto if index == last else chunk.position(index)
            done = done.followed_by(self._handle(done.cursor, chunk[index : index + 1], to))
            if done.failure is not None:
                break
        return done

    def _commit(self, cursor: Cursor, chunk: Chunk, upto: int, skip: Skip | None = None) -> Outcome:
        """Handle events in one transaction with the progress; then make the calls that waited for its commit."""
        handled = 0
        fingerprint = self._fingerprint(chunk, upto)
        with ExitStack() as stack:
            unit = self._opened(stack, cursor, upto, fingerprint, skip)
            work = Work(self.group, self.partition, unit, cursor.failing, cursor.attempt)
            stack.callback(work.close)
            if chunk:
                handled = self._handled(chunk, work, unit)
        missed = tuple(self._failure(error, Origin.HANDLER) for error in work.committed())
        moved = cursor.moved_to(upto, stored=True, fingerprint=fingerprint)
        return Outcome(moved, handled=handled, skips=(skip,) if skip is not None else (), missed=missed)

    def _handled(self, chunk: Chunk, work: Work, unit: UnitOfWork) -> int:
        try:
            return self._dispatcher.handle(chunk, work)
        except ChunkFailedError as failed:
            ended = unit.ended_early(failed.error)
            if ended is None:
                raise
            ended.__cause__ = failed.error  # whose lines show where
            raise ChunkFailedError(failed.index, ended) from failed.error

    def _fingerprint(self, chunk: Chunk, upto: int) -> str:
        """Ask before the transaction is opened: a log that is unavailable must not keep it open."""
        newest = chunk.read_whole(-1) if chunk and chunk.position(-1) == upto else None
        try:
            return self._feed.source.fingerprint(upto, newest)
        except BaseException as error:
            raise_interrupt(error)
            raise _NotOpenedError(error) from error

    def _opened(self, stack: ExitStack, cursor: Cursor, upto: int, fingerprint: str, skip: Skip | None) -> UnitOfWork:
        try:
            unit = self._tracker.unit(self.group, cursor, upto, fingerprint=fingerprint, skip=skip)
            return stack.enter_context(unit)
        except BaseException as error:
            raise_interrupt(error)
            raise _NotOpenedError(error) from error

    def _failure(self, error: BaseException, otherwise: Origin, event: Event | None = None) -> Failure:
        if type(error) is _NotOpenedError:  # the tracker's error, not the event's: it uses no attempt (K1)
            return self._failure(error.error, Origin.FRAMEWORK)
        origin = self._origin(error, otherwise)
        return self._described(error, origin, None if origin in (Origin.OUTAGE, Origin.FENCED) else event)

    def _handler_failure(self, error: BaseException, event: Event) -> Failure:
        """Return what an error comes to that was raised while handlers were called.

        It cannot mean a lost claim, whatever its class. If it looks like an outage, it uses no attempt, but says where.
        """
        origin = self._origin(error, Origin.HANDLER)
        failure = self._described(error, Origin.HANDLER if origin is Origin.FENCED else origin, event)
        return replace(failure, position=None) if origin is Origin.OUTAGE else failure

    def _described(self, error: BaseException, origin: Origin, in_hand: Event | None) -> Failure:
        permanent = any(issubclass(type(one), NonTransientError | SystemExit) for one in leaves(error))
        failure = failure_of(error, origin, permanent=permanent, traceback=self._frames(error, origin, in_hand))
        if in_hand is None:
            return failure
        return replace(
            failure,
            position=in_hand.position,
            event=label_text(lambda: in_hand.label),
            event_id=_id_of(in_hand),
            event_type=in_hand.type,
        )

    def _frames(self, error: BaseException, origin: Origin, event: Event | None) -> str:
        """Return the lines of the user's code that an error comes from; if no handler is among them, name those."""
        frames = own_frames(error) if origin in (Origin.HANDLER, Origin.FRAMEWORK) else ""
        if event is None or origin not in (Origin.HANDLER, Origin.OUTAGE):
            return frames
        places = self._dispatcher.places(event)
        if any(place.partition(":")[0] in frames for place in places):
            return frames
        return "\n".join(["  in handler " + place for place in places] + ([frames] if frames else []))

    def _reading_failure(self, error: BaseException) -> Failure:
        """Return the failure to read an event: it names the file and line, where there is one."""
        return replace(self._failure(error, Origin.FRAMEWORK), message=placed_error_text(error).message)

    def _origin(self, error: BaseException, otherwise: Origin) -> Origin:
        """Return where an error arose; of a group, where the most decisive of its exceptions did."""
        return min((self._origin_of(one, otherwise) for one in leaves(error)), key=_DECISIVE.index)

    def _origin_of(self, error: BaseException, otherwise: Origin) -> Origin:
        kind = type(error)  # not isinstance, which asks the error itself for its class
        if issubclass(kind, FencedError):
            return Origin.FENCED
        wrapped = issubclass(kind, EventFormatError | ProjectCodeError)
        cause = error.__cause__ if wrapped else None  # what an upcaster, a provider or a resolver raised
        if any(self._is_outage(each) for each in (error, cause) if each is not None):
            return Origin.OUTAGE
        # What the project has besides handlers (K3), or the database's file was replaced
        if issubclass(kind, AssemblyError | ProjectCodeError | DatabaseFileError):
            return Origin.FRAMEWORK
        return Origin.EVENT if issubclass(kind, EventFormatError) else otherwise

    def _is_outage(self, error: BaseException) -> bool:
        try:
            return self._tracker.is_outage(error) or self._feed.source.is_outage(error)
        except BaseException as failed:  # an error that cannot be looked at comes from no store
            raise_interrupt(failed)
            return False


def _id_of(event: Event) -> str:
    try:
        return event.id
    except Exception:  # a store that is unavailable must not hide what is reported of the event
        return ""


def _is_of_user_code(error: BaseException, origin: Origin) -> bool:
    """Return whether frames may help; an error of a store says itself what is wrong."""
    return origin is Origin.HANDLER or (origin is Origin.FRAMEWORK and not issubclass(type(error), EventStoreError))

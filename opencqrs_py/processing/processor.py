"""The processors of a group: each takes the next events of its partition, has them handled, and moves progress."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import replace
from math import isqrt
from operator import length_hint
from threading import Lock, get_ident

from opencqrs_py.errors import FencedError, HandlerCrashError, HandlerTimeoutError, TransactionEndedError
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, FailureRecord, PartitionStatus, ProcessorState, Skip
from opencqrs_py.model.selection import ATTRIBUTES, Selection, Share
from opencqrs_py.processing.binding import Work
from opencqrs_py.processing.calls import NO_LIMITS, CallInHand, CallLimits
from opencqrs_py.processing.dispatch import ChunkFailedError, Dispatcher
from opencqrs_py.processing.exceptions import label_text, raise_interrupt, stack_of_thread
from opencqrs_py.processing.feed import Feed, UnsequencedError
from opencqrs_py.processing.isolation import OF_PROCESS
from opencqrs_py.processing.pipelining import PipelineFailedError, Pipelining
from opencqrs_py.processing.ports import (
    Clock,
    EventSource,
    ProgressTracker,
    SharingSource,
    SucceedingTracker,
    SystemClock,
)
from opencqrs_py.processing.recovery import Diagnosis
from opencqrs_py.processing.sequencing import Sequencing
from opencqrs_py.processing.supervision import in_words

CHUNK = 1_000
TABLE = 5_000  # events of a table: more of them are aggregated into fewer rows
_MOST_IN_TABLES = 20_000  # events of the tables of all partitions, since they are read at once
MOST_CRASHES = 3  # processes that may end while they handle an event
_PAGES_KEPT = 4  # of the log, for partitions that lag a little
_FEEDS_KEPT = 4  # for some partitions only
_LEAST_READ = 1_000  # events fetched at once, even when each is committed alone


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
        limits: How long a call of a handler may take; whoever drives the processor watches that.
        pipelining: Decides whether statements of a chunk wait for their answers; ``None``: they do.
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
        limits: CallLimits = NO_LIMITS,
        pipelining: Pipelining | None = None,
    ) -> None:
        self.group = group
        self.partition = partition
        self.limits = limits
        self._feed = feed
        self._tracker = tracker
        self._dispatcher = dispatcher
        self._batch_size = batch_size
        self._clock = SystemClock() if clock is None else clock
        self._diagnosis = Diagnosis(tracker, feed.source, dispatcher.places)
        self._pipelining = pipelining
        self._in_hand: tuple[Chunk, Work, int] | None = None  # and the thread; seen by others

    def call_in_hand(self) -> CallInHand | None:
        """Return the call of a handler that is under way, for other threads; ``None`` if there is none."""
        in_hand = self._in_hand
        if in_hand is None:
            return None
        chunk, work, thread = in_hand
        if (ahead := work.ahead) is None:
            return CallInHand(work, chunk, work.index, work.calls, thread)
        return CallInHand(work, chunk, max(0, len(chunk) - length_hint(ahead) - 1), work.calls, thread)

    def places(self, call: CallInHand) -> list[str]:
        """Return ``file:line (name)`` of the handlers, of which one has not returned."""
        return self._dispatcher.places(call.event)

    def overdue(self, call: CallInHand, seconds: float) -> Failure:
        """Return what it comes to that a call has not returned, with the lines at which its thread is."""
        what = f"the handler has not returned for {in_words(seconds)}"
        fix = "make sure that it ends by itself, with time limits for what it waits for, or raise {}"
        error = HandlerTimeoutError("OCQ-229", what, fix=fix.format("processing.handler-timeout"))
        failure = self._diagnosis.failure(error, Origin.HANDLER, call.event)
        stack = stack_of_thread(call.thread)
        if stack:
            failure = replace(failure, traceback="\n".join(filter(None, (failure.traceback, stack))))
        if call.index is None and len(call.chunk) > 1:
            failure = replace(failure, event=f"one of {len(call.chunk)} events, from {failure.event}")
        return failure

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
            return _doubtful(Outcome(cursor, failure=self._diagnosis.failure_to_read(error)))
        outcome = self._step(sure)
        if outcome.failure is None:
            return outcome
        fenced = outcome.failure.origin is Origin.FENCED
        return _doubtful(self._taken_over(sure, outcome) if fenced and cursor.shared else outcome)

    def succeed(self, cursor: Cursor) -> Outcome:
        """Take the partition over from another run of the same task, which can commit nothing more then.

        If the tracker has no means for that both go on, each from where the other has come to.
        """
        if not isinstance(self._tracker, SucceedingTracker):
            return Outcome(cursor)
        try:
            found = self._tracker.succeed(self.group, cursor)
        except BaseException as error:
            raise_interrupt(error)
            return _doubtful(Outcome(cursor, failure=self._failure(error, Origin.FRAMEWORK)))
        if found is None:
            return Outcome(cursor, failure=self._failure(self._fenced(), Origin.FRAMEWORK))
        if found.stored == cursor.stored:
            return Outcome(replace(cursor, epoch=found.epoch))
        return Outcome(replace(found, shared=cursor.shared, isolate=cursor.isolate))

    def is_succeeded(self, cursor: Cursor) -> bool:
        """Return whether another run of the same task has taken the partition over, and has it still."""
        of_other = replace(cursor, epoch=cursor.epoch + 1)
        if not isinstance(self._tracker, SucceedingTracker):
            return False
        try:
            return self._tracker.renewed(self.group, of_other) is not None
        except Exception:  # an outage, which the next task meets
            return False

    def flush(self, cursor: Cursor) -> Outcome:
        """Store progress over events that were not this partition's."""
        if cursor.position == cursor.stored:
            return Outcome(cursor, idle=True)
        try:
            return replace(self._commit(cursor, None, cursor.position), idle=True)
        except BaseException as error:
            raise_interrupt(error)
            return _doubtful(Outcome(cursor, failure=self._failure(error, Origin.FRAMEWORK)))

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
            return Outcome(cursor, failure=self._diagnosis.failure_to_read(error))
        return self._next(cursor, events, upto)

    def _next(self, cursor: Cursor, events: Chunk, upto: int) -> Outcome:
        """Handle the first chunk of events, or only the first event if it has failed before."""
        if not (found := len(events)):
            return Outcome(cursor.moved_to(upto, stored=False))
        again = cursor.failing is not None and cursor.failing == events.position(0)
        size = 1 if again or cursor.isolate else self._batch_size
        if cursor.failing is not None and not again:
            size = min(size, self._before_failing(cursor.failing, events))
        if found > size:
            events, upto = events[:size], events.position(size - 1)
        if not again and not cursor.isolate:
            return self._handle(cursor, events, upto)
        if again and cursor.failure is not None and cursor.failure.crashes >= MOST_CRASHES:
            return self._hold(cursor, cursor.failure, events[0])
        if again and cursor.skip:
            return self._give_up(cursor, events[0], upto)
        return self._isolated(cursor, events, upto) if cursor.isolate else self._handle(cursor, events, upto)

    def _before_failing(self, failing: int, events: Chunk) -> int:
        """Return how many events come before the one that has failed, which is tried alone."""
        most = min(self._batch_size, len(events))
        return next((index for index in range(1, most) if events.position(index) >= failing), most)

    def _hold(self, cursor: Cursor, record: FailureRecord, event: Event) -> Outcome:
        what = f"{record.crashes} processes have ended while they handled this event"
        fix = f"fix its handler, then: opencqrs groups restart {self.group}:{self.partition}"
        error = HandlerCrashError("OCQ-236", what, fix=fix)
        failure = self._diagnosis.failure(error, Origin.HANDLER, event)
        return Outcome(cursor, failure=replace(failure, permanent=True, held=True))

    def _isolated(self, cursor: Cursor, chunk: Chunk, upto: int) -> Outcome:
        """Handle one event after a mark, by which the next owner sees that this process has not survived it."""
        with OF_PROCESS.taken():
            try:
                self._mark(cursor, chunk[0])
            except BaseException as error:
                raise_interrupt(error)
                return Outcome(cursor, failure=self._failure(error, Origin.FRAMEWORK))
            done = self._handle(cursor, chunk, upto)
        return replace(done, cursor=replace(done.cursor, isolate=cursor.isolate - (done.failure is None)))

    def _mark(self, cursor: Cursor, event: Event) -> None:
        record = cursor.failure if cursor.failing == event.position else None
        if record is None:
            now = self._clock.now().isoformat(timespec="milliseconds")
            record = FailureRecord(event.position, event.id, event.type, 0, 0, "", "", now)
        known = (self.group, self.partition, cursor.stored, ProcessorState.RUNNING, record.attempts, record.last_error)
        self._tracker.report(PartitionStatus(*known, failure=replace(record, in_hand=True)), cursor.epoch)

    def _give_up(self, cursor: Cursor, event: Event, upto: int) -> Outcome:
        try:
            return self._commit(cursor, None, upto, self._skip(cursor, event))
        except BaseException as error:
            raise_interrupt(error)
            return Outcome(cursor, failure=self._failure(error, Origin.FRAMEWORK))

    def _handle(self, cursor: Cursor, chunk: Chunk, upto: int, *, pipelined: bool = True) -> Outcome:
        pipelining = self._pipelining if pipelined else None
        try:
            return self._commit(cursor, chunk, upto, pipelining=pipelining)
        except PipelineFailedError:  # by which event, and in which line, shows if each answer is waited for
            return self._handle(cursor, chunk, upto, pipelined=False)
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
        failure = self._diagnosis.failure_of_handler(failed.error, chunk[index or 0])
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

    def _commit(
        self,
        cursor: Cursor,
        chunk: Chunk | None,
        upto: int,
        skip: Skip | None = None,
        *,
        pipelining: Pipelining | None = None,
    ) -> Outcome:
        """Handle events in one transaction with the progress; then make the calls that waited for its commit.

        The log is asked before the transaction is opened: one that is unavailable must not keep it open.
        """
        opened, handled = False, 0
        try:
            newest = None if chunk is None else chunk.read_whole(-1)
            at_end = newest if newest is not None and newest.position == upto else None
            fingerprint = self._feed.source.fingerprint(upto, at_end)
            with self._tracker.unit(self.group, cursor, upto, fingerprint=fingerprint, skip=skip) as unit:
                opened = True
                work = Work(self.group, self.partition, unit, cursor.failing, cursor.attempt)
                if pipelining is not None and chunk is not None and len(chunk) > 1:
                    work.pipelining = pipelining
                if chunk is not None:
                    handled = self._handled(chunk, work)
        except BaseException as error:
            if opened:
                raise
            raise_interrupt(error)
            raise _NotOpenedError(error) from error
        missed = tuple(self._failure(error, Origin.HANDLER) for error in work.committed()) if work.calls_wait else ()
        moved = cursor.moved_to(upto, stored=True, fingerprint=fingerprint)
        return Outcome(moved, handled=handled, skips=() if skip is None else (skip,), missed=missed)

    def _handled(self, chunk: Chunk, work: Work) -> int:
        self._in_hand = chunk, work, get_ident()
        try:
            handled = self._dispatcher.handle(chunk, work)
            if work.pipelining is not None:
                work.settle()
        except ChunkFailedError as failed:
            work.refuse_pipeline(failed.error)
            ended = work.unit.ended_early(failed.error)
            if ended is None:
                raise
            ended.__cause__ = failed.error  # whose lines show where
            raise ChunkFailedError(failed.index, ended) from failed.error
        else:
            return handled
        finally:
            self._in_hand = None
            if work.calls_wait:
                work.close()

    def _skip(self, cursor: Cursor, event: Event) -> Skip:
        record, now = cursor.failure, self._clock.now().isoformat(timespec="milliseconds")
        reason = record.last_error if record is not None else ""
        attempts = record.attempts if record is not None else max(1, cursor.attempt - 1)
        known = (event.position, event.id, event.source, event.subject, event.type)
        return Skip(self.group, self.partition, *known, attempts, reason, now)

    def _confirmed(self, cursor: Cursor) -> Cursor:
        """Return the cursor as it is stored: an answer to a commit may have been lost, and the log replaced."""
        found = self._tracker.renewed(self.group, cursor)
        if found is None:
            raise self._fenced()
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
        found = replace(found, shared=True, isolate=cursor.isolate)
        return Outcome(found, handled=outcome.handled, missed=outcome.missed)

    def _fenced(self) -> FencedError:
        what = f"progress of group '{self.group}' partition {self.partition} was taken over by another processor"
        return FencedError(what)

    def _failure(self, error: BaseException, otherwise: Origin, in_hand: Event | None = None) -> Failure:
        if type(error) is _NotOpenedError:  # the tracker's error, not the event's: it uses no attempt (K1)
            return self._diagnosis.failure(error.error, Origin.FRAMEWORK)
        return self._diagnosis.failure(error, otherwise, in_hand)


def _doubtful(outcome: Outcome) -> Outcome:
    if outcome.failure is None or outcome.failure.origin is not Origin.OUTAGE:
        return outcome
    return replace(outcome, cursor=replace(outcome.cursor, doubtful=True))


class GroupProcessing:
    """Makes the processors of a group; they share source, tracker, dispatcher and feed.

    Args:
        group: Processing group.
        source: The event store.
        tracker: Where progress goes.
        dispatcher: Calls the group's handlers.
        subject: Root subject observed.
        recursive: Whether its child subjects are observed too.
        sequencing: Maps events to sequences, and sequences to partitions.
        partitions: Number of partitions, for the size of what is read at once.
        batch_size: Most events in one transaction. ``None``: 1,000 when every handler asks for the progress
            transaction, so that a repeated event changes nothing, or for a chunk at a time; 5,000 when every one takes
            a table, with more than four partitions fewer; else 1, so that a crash repeats at most one event.
        clock: Time, for what processors record that are given no other; ``None`` for the machine's.
        limits: How long a call of a handler may take.

    Attributes:
        selection: Which events the group looks at.
    """

    def __init__(  # noqa: PLR0913 all that a group is made from
        self,
        group: str,
        source: EventSource,
        tracker: ProgressTracker,
        dispatcher: Dispatcher,
        *,
        subject: str,
        recursive: bool,
        sequencing: Sequencing,
        partitions: int,
        batch_size: int | None,
        clock: Clock | None = None,
        limits: CallLimits = NO_LIMITS,
    ) -> None:
        self.group = group
        self.limits = limits
        self.source = source
        self.tracker = tracker
        self.batch_size = batch_size or _usual_size(dispatcher, partitions)
        self._dispatcher = dispatcher
        self._pipelining = Pipelining() if dispatcher.pipelines else None
        self._sequencing = sequencing
        self._clock = clock
        of_sequences = sequencing.attributes if partitions > 1 else frozenset[str]()
        whole = self.batch_size == 1  # each commit stores the identity of its event
        attributes = ATTRIBUTES if whole else of_sequences | dispatcher.attributes
        self.selection = selection = Selection(subject, recursive, dispatcher.wanted_types, attributes)
        wanted = dispatcher.wants if selection.types is None else None
        size, memory = read_size(self.batch_size, partitions), 1 if partitions == 1 else _PAGES_KEPT
        self.feed = Feed(source, selection, sequencing, size, memory, wanted)
        self._narrowed: dict[tuple[Share, int], GroupProcessing] = {}
        self._lock = Lock()

    def narrowed(self, partitions: Collection[Partition], most: int | None = None) -> GroupProcessing:
        """Return the same for some partitions only, which reads no other events where the store can tell them.

        Args:
            partitions: Which.
            most: Most events read at once; ``None`` for as many as their chunks need.
        """
        share = self._sequencing.share_of(partitions)
        if share is None or not isinstance(self.source, SharingSource) or not self.source.selects(share):
            return self
        size = read_size(self.batch_size, len(partitions))
        key = share, size if most is None else min(size, most)
        with self._lock:
            found = self._narrowed.pop(key, None)
            if found is None:
                found = copy(self)
                found.feed = self.feed.narrowed(*key)
            self._narrowed[key] = found  # the last one used is the last one forgotten
            for old in list(self._narrowed)[:-_FEEDS_KEPT]:
                del self._narrowed[old]
        return found

    def processor(self, partition: Partition, clock: Clock | None = None) -> PartitionProcessor:
        """Return the processor of one partition; the clock is for what it records."""
        clock = self._clock if clock is None else clock
        shared = (self.feed, self.tracker, self._dispatcher, self.batch_size)
        return PartitionProcessor(self.group, partition, *shared, clock, self.limits, self._pipelining)


def _usual_size(dispatcher: Dispatcher, partitions: int) -> int:
    if dispatcher.takes_tables:
        return max(CHUNK, min(TABLE, _MOST_IN_TABLES // partitions))
    return CHUNK if dispatcher.takes_chunks else 1


def read_size(batch_size: int, partitions: int) -> int:
    """Return how many events to read at once, so that a partition's share mostly fits one transaction.

    A share of n events varies by about the square root of n; four of them leave room for nearly all cases.
    """
    share = batch_size if partitions == 1 else max(1, batch_size - 4 * isqrt(batch_size))
    return max(_LEAST_READ, share * partitions)

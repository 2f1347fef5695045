"""The processor of one partition: takes the next events, has them handled, moves progress."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from opencqrs_py.errors import AssemblyError, EventFormatError, ExplainedError, FencedError, NonTransientError
from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event
from opencqrs_py.model.outcome import Origin, Outcome, Trouble
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.feed import Feed
from opencqrs_py.processing.ports import ProgressTracker, UnitOfWork
from opencqrs_py.processing.tracebacks import own_frames

__all__ = ["PartitionProcessor"]

# What a handler may raise and that is then the event's trouble; only a real interrupt ends the process (K6).
_HANDLER_ERRORS = (Exception, SystemExit, CancelledError)


class _EventFailedError(Exception):
    """The handlers of event ``index`` of a chunk raised ``error``."""

    def __init__(self, index: int, error: BaseException) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class _NotOpenedError(Exception):
    """The tracker did not open the unit of work; no handler was called."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class PartitionProcessor:
    """Moves one partition of a group forward, a chunk at a time.

    It keeps nothing between two steps: where it goes on is in the cursor, so any process can do the next step.

    Args:
        group: Processing group.
        partition: Its share of the group's sequences.
        feed: Where events come from.
        tracker: Where progress goes.
        dispatcher: Calls the handlers.
        batch_size: Most events in one transaction, at least 1.
    """

    def __init__(
        self,
        group: str,
        partition: Partition,
        feed: Feed,
        tracker: ProgressTracker,
        dispatcher: Dispatcher,
        batch_size: int,
    ) -> None:
        self.group = group
        self.partition = partition
        self._feed = feed
        self._tracker = tracker
        self._dispatcher = dispatcher
        self._batch_size = batch_size

    def step(self, cursor: Cursor) -> Outcome:
        """Handle the next chunk of events and store the progress with what the handlers wrote.

        When event k of a chunk fails, the chunk is rolled back, the events before k are committed, and the outcome
        names k. Errors come back in the outcome; only ``KeyboardInterrupt`` passes through.

        Progress that was moved under the cursor's own claim, by a task that Spark ran before this one, is taken over.

        Source:
            PRODUCT section 4, "Exactly once"; OpenCQRS event handling loop.
        """
        outcome = self._step(cursor)
        if outcome.trouble is None or outcome.trouble.origin is not Origin.FENCED:
            return outcome
        try:
            renewed = self._tracker.renewed(self.group, cursor)
        except Exception as error:
            return Outcome(cursor, trouble=self._trouble(error, Origin.FRAMEWORK))
        if renewed is None or renewed.stored == cursor.stored:  # the same place again would be a loop without end
            return outcome
        return Outcome(renewed)

    def _step(self, cursor: Cursor) -> Outcome:
        try:
            stretch = self._feed.read(cursor.position)
            events = stretch.share(self.partition, cursor.position) if stretch is not None else ()
        except Exception as error:  # whatever a store or a resolver raises is an outcome
            return Outcome(cursor, trouble=self._trouble(error, Origin.FRAMEWORK))
        if stretch is None:
            return self.flush(cursor)
        if not events:
            return Outcome(cursor.moved_to(stretch.upto, stored=False))
        chunk, upto = self._chunk(cursor, events, stretch.upto)
        if cursor.skip and cursor.troubled == chunk[0].position:
            return self._give_up(cursor, upto)
        return self._handle(cursor, chunk, upto)

    def flush(self, cursor: Cursor) -> Outcome:
        """Store progress over events that were not this partition's."""
        if cursor.position == cursor.stored:
            return Outcome(cursor, idle=True)
        try:
            self._commit(cursor, (), cursor.position)
        except Exception as error:
            return Outcome(cursor, trouble=self._trouble(error, Origin.FRAMEWORK))
        return Outcome(replace(cursor, stored=cursor.position), idle=True)

    def _chunk(self, cursor: Cursor, events: Sequence[Event], upto: int) -> tuple[Sequence[Event], int]:
        alone = cursor.troubled == events[0].position
        size = 1 if alone else self._batch_size
        if len(events) <= size:
            return events, upto
        chunk = events[:size]
        return chunk, chunk[-1].position

    def _give_up(self, cursor: Cursor, upto: int) -> Outcome:
        try:
            self._commit(cursor, (), upto)
        except Exception as error:
            return Outcome(cursor, trouble=self._trouble(error, Origin.FRAMEWORK))
        return Outcome(cursor.moved_to(upto, stored=True), skipped=1)

    def _handle(self, cursor: Cursor, chunk: Sequence[Event], upto: int) -> Outcome:
        try:
            handled = self._commit(cursor, chunk, upto)
        except _EventFailedError as failure:
            return self._narrow(cursor, chunk, failure.index, failure.error)
        except Exception as error:  # the commit itself: an outage, a lost claim, or a constraint checked at its end
            trouble = self._trouble(error, Origin.HANDLER, chunk[0])
            if len(chunk) == 1 or trouble.origin is not Origin.HANDLER:
                return Outcome(cursor, trouble=trouble)
            return self._one_by_one(cursor, chunk)
        return Outcome(cursor.moved_to(upto, stored=True), handled=handled)

    def _narrow(self, cursor: Cursor, chunk: Sequence[Event], index: int, error: BaseException) -> Outcome:
        trouble = self._trouble(error, Origin.HANDLER, chunk[index])
        if index == 0 or trouble.origin is Origin.OUTAGE:
            return Outcome(cursor, trouble=trouble)
        before = self._handle(cursor, chunk[:index], chunk[index - 1].position)
        return before if before.trouble is not None else replace(before, trouble=trouble)

    def _one_by_one(self, cursor: Cursor, chunk: Sequence[Event]) -> Outcome:
        done = Outcome(cursor)
        for event in chunk:
            step = self._handle(done.cursor, (event,), event.position)
            done = replace(step, handled=done.handled + step.handled)
            if done.trouble is not None:
                break
        return done

    def _commit(self, cursor: Cursor, events: Sequence[Event], upto: int) -> int:
        handled = 0
        with ExitStack() as stack:
            unit = self._opened(stack, cursor, upto)
            for index, event in enumerate(events):
                attempt = cursor.attempt if event.position == cursor.troubled else 1
                context = ProcessingContext(self.group, self.partition, event.position, attempt)
                try:
                    handled += self._dispatcher.dispatch(event, unit, context)
                except _HANDLER_ERRORS as error:
                    raise _EventFailedError(index, error) from error
        return handled

    def _opened(self, stack: ExitStack, cursor: Cursor, upto: int) -> UnitOfWork:
        try:
            return stack.enter_context(self._tracker.unit(self.group, cursor, upto))
        except Exception as error:
            raise _NotOpenedError(error) from error

    def _trouble(self, error: BaseException, otherwise: Origin, event: Event | None = None) -> Trouble:
        if isinstance(error, _NotOpenedError):  # the tracker's error, not the event's: it uses no attempt (K1)
            return self._trouble(error.error, Origin.FRAMEWORK)
        origin = self._origin(error, otherwise)
        in_hand = None if origin in (Origin.OUTAGE, Origin.FENCED) else event
        return Trouble(
            origin=origin,
            permanent=isinstance(error, NonTransientError | SystemExit),
            error=type(error).__name__,
            message=error.what if isinstance(error, ExplainedError) else str(error),
            traceback=own_frames(error) if origin in (Origin.HANDLER, Origin.FRAMEWORK) else "",
            position=in_hand.position if in_hand else None,
            event=in_hand.label if in_hand else "",
        )

    def _origin(self, error: BaseException, otherwise: Origin) -> Origin:
        away: tuple[Callable[[BaseException], bool], ...] = (
            self._tracker.is_outage,
            self._feed.source.is_outage,
        )
        if isinstance(error, FencedError):
            return Origin.FENCED
        if any(is_outage(error) for is_outage in away):
            return Origin.OUTAGE
        if isinstance(error, AssemblyError):  # the container could not provide an argument (K3)
            return Origin.FRAMEWORK
        return Origin.EVENT if isinstance(error, EventFormatError) else otherwise

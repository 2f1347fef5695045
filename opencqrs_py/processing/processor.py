"""The processor of one partition: takes the next events, has them handled, moves progress."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from opencqrs_py.errors import AssemblyError, EventFormatError, FencedError, NonTransientError, ProjectCodeError
from opencqrs_py.model.event import Event
from opencqrs_py.model.outcome import Origin, Outcome, Trouble
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.dispatch import ChunkFailedError, Dispatcher
from opencqrs_py.processing.error_text import error_text, label_text
from opencqrs_py.processing.feed import Feed, UnsequencedError
from opencqrs_py.processing.interrupts import raise_interrupt
from opencqrs_py.processing.ports import ProgressTracker, UnitOfWork
from opencqrs_py.processing.tracebacks import own_frames
from opencqrs_py.processing.work import Work

__all__ = ["PartitionProcessor"]


class _NotOpenedError(Exception):
    """The tracker did not open the unit of work; no handler was called."""

    def __init__(self, error: BaseException) -> None:
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
        names k. Errors come back in the outcome, whatever their class; only a real interrupt passes through.

        Progress that was moved under the cursor's own claim, by a task that Spark ran before this one, is taken over.

        Source:
            PRODUCT section 4, "Exactly once"; OpenCQRS event handling loop.
        """
        outcome = self._step(cursor)
        if outcome.trouble is None or outcome.trouble.origin is not Origin.FENCED:
            return outcome
        try:
            renewed = self._tracker.renewed(self.group, cursor)
        except BaseException as error:
            raise_interrupt(error)
            return Outcome(cursor, trouble=self._trouble(error, Origin.FRAMEWORK))
        if renewed is None or renewed.stored == cursor.stored:  # the same place again would be a loop without end
            return outcome
        return Outcome(renewed, handled=outcome.handled, missed=outcome.missed)

    def _step(self, cursor: Cursor) -> Outcome:
        try:
            stretch = self._feed.read(cursor.position)
            if stretch is None:
                return self.flush(cursor)
            events, upto = stretch.share(self.partition, cursor.position)
        except UnsequencedError as failure:
            trouble, event = self._trouble(failure.error, Origin.FRAMEWORK), failure.event
            return Outcome(cursor, trouble=replace(trouble, event=label_text(lambda: event.label)))
        except BaseException as error:  # whatever a store raises is an outcome
            raise_interrupt(error)
            return Outcome(cursor, trouble=self._trouble(error, Origin.FRAMEWORK))
        if not events:
            return Outcome(cursor.moved_to(upto, stored=False))
        chunk, upto = self._chunk(cursor, events, upto)
        if cursor.skip and cursor.troubled == chunk[0].position:
            return self._give_up(cursor, upto)
        return self._handle(cursor, chunk, upto)

    def flush(self, cursor: Cursor) -> Outcome:
        """Store progress over events that were not this partition's."""
        if cursor.position == cursor.stored:
            return Outcome(cursor, idle=True)
        try:
            self._commit(cursor, (), cursor.position)
        except BaseException as error:
            raise_interrupt(error)
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
        except BaseException as error:
            raise_interrupt(error)
            return Outcome(cursor, trouble=self._trouble(error, Origin.FRAMEWORK))
        return Outcome(cursor.moved_to(upto, stored=True), skipped=1)

    def _handle(self, cursor: Cursor, chunk: Sequence[Event], upto: int) -> Outcome:
        try:
            return self._commit(cursor, chunk, upto)
        except ChunkFailedError as failure:
            return self._narrow(cursor, chunk, upto, failure)
        except BaseException as error:  # the commit: an outage, a lost claim, or a constraint checked at its end
            raise_interrupt(error)
            trouble = self._trouble(error, Origin.HANDLER, chunk[0])
            if len(chunk) == 1 or trouble.origin is not Origin.HANDLER:
                return Outcome(cursor, trouble=trouble)
            return self._by_halves(cursor, chunk, upto, trouble)

    def _narrow(self, cursor: Cursor, chunk: Sequence[Event], upto: int, failure: ChunkFailedError) -> Outcome:
        """Commit what comes before the event that failed; look for it if it is not known."""
        index = failure.index
        trouble = self._trouble(failure.error, Origin.HANDLER, chunk[index or 0])
        if index == 0 or trouble.origin is Origin.OUTAGE:
            return Outcome(cursor, trouble=trouble)
        if index is None:
            return self._by_halves(cursor, chunk, upto, trouble)
        before = self._handle(cursor, chunk[:index], chunk[index - 1].position)
        return before if before.trouble is not None else replace(before, trouble=trouble)

    def _by_halves(self, cursor: Cursor, chunk: Sequence[Event], upto: int, trouble: Trouble) -> Outcome:
        """Find the event by which a chunk fails: what comes before it is committed, in ever smaller chunks."""
        middle = len(chunk) // 2
        first = self._handle(cursor, chunk[:middle], chunk[middle - 1].position)
        if first.trouble is not None:
            moved = first.trouble.origin is Origin.FENCED and trouble.permanent  # a handler has committed by itself
            return replace(first, trouble=replace(trouble, position=None, event="")) if moved else first
        second = self._handle(first.cursor, chunk[middle:], upto)
        return replace(second, handled=first.handled + second.handled, missed=first.missed + second.missed)

    def _commit(self, cursor: Cursor, events: Sequence[Event], upto: int) -> Outcome:
        """Handle events in one transaction with the progress; then make the calls that waited for its commit."""
        handled = 0
        with ExitStack() as stack:
            unit = self._opened(stack, cursor, upto)
            work = Work(self.group, self.partition, unit, cursor.troubled, cursor.attempt)
            if events:
                handled = self._dispatcher.handle(events, work)
        missed = tuple(self._trouble(error, Origin.HANDLER) for error in work.committed())
        return Outcome(cursor.moved_to(upto, stored=True), handled=handled, missed=missed)

    def _opened(self, stack: ExitStack, cursor: Cursor, upto: int) -> UnitOfWork:
        try:
            return stack.enter_context(self._tracker.unit(self.group, cursor, upto))
        except BaseException as error:
            raise_interrupt(error)
            raise _NotOpenedError(error) from error

    def _trouble(self, error: BaseException, otherwise: Origin, event: Event | None = None) -> Trouble:
        if type(error) is _NotOpenedError:  # the tracker's error, not the event's: it uses no attempt (K1)
            return self._trouble(error.error, Origin.FRAMEWORK)
        origin = self._origin(error, otherwise)
        in_hand = None if origin in (Origin.OUTAGE, Origin.FENCED) else event
        name, message = error_text(error)
        return Trouble(
            origin=origin,
            permanent=issubclass(type(error), NonTransientError | SystemExit),
            error=name,
            message=message,
            traceback=own_frames(error) if origin in (Origin.HANDLER, Origin.FRAMEWORK) else "",
            position=in_hand.position if in_hand else None,
            event=label_text(lambda: in_hand.label) if in_hand else "",
        )

    def _origin(self, error: BaseException, otherwise: Origin) -> Origin:
        kind = type(error)  # not isinstance, which asks the error itself for its class
        if issubclass(kind, FencedError):
            return Origin.FENCED
        wrapped = issubclass(kind, EventFormatError | ProjectCodeError)
        behind = error.__cause__ if wrapped else None  # what an upcaster, a provider or a resolver raised
        if any(self._is_outage(each) for each in (error, behind) if each is not None):
            return Origin.OUTAGE
        if issubclass(kind, AssemblyError | ProjectCodeError):  # what the project has besides handlers (K3)
            return Origin.FRAMEWORK
        return Origin.EVENT if issubclass(kind, EventFormatError) else otherwise

    def _is_outage(self, error: BaseException) -> bool:
        try:
            return self._tracker.is_outage(error) or self._feed.source.is_outage(error)
        except BaseException as failure:  # an error that cannot be looked at comes from no store
            raise_interrupt(failure)
            return False

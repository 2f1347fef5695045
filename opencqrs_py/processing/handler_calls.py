"""The calls of a partition's handlers: their arguments, which call is active, and what waits for the commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import length_hint
from threading import get_ident

from opencqrs_py.errors import HandlerTimeoutError
from opencqrs_py.model.ahead import Ahead
from opencqrs_py.model.chunk import NOTHING, Chunk
from opencqrs_py.model.inbox import InboxEntry
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.model.partition import Partition, hash_of
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.binding import IsMeant, Work
from opencqrs_py.processing.calls import CallInHand
from opencqrs_py.processing.diagnosis import Diagnosis
from opencqrs_py.processing.dispatch import ChunkFailedError, Dispatcher
from opencqrs_py.processing.exceptions import stack_of_thread
from opencqrs_py.processing.notices import in_words
from opencqrs_py.processing.portions import Portion
from opencqrs_py.processing.ports import UnitOfWork
from opencqrs_py.processing.replays import ReplayRule


class HandlerCalls:
    """Calls the handlers of a group for one partition.

    Args:
        group: Processing group.
        partition: The partition.
        dispatcher: Calls the handlers.
        replays: How events are handled again after a reset.
        diagnosis: Explains errors.
    """

    def __init__(
        self, group: str, partition: Partition, dispatcher: Dispatcher, replays: ReplayRule, diagnosis: Diagnosis
    ) -> None:
        self._group = group
        self._partition = partition
        self.dispatcher = dispatcher
        self._replays = replays
        self._diagnosis = diagnosis
        # With the thread, and whether these are the calls after the commit; one value, as other threads see it.
        self._in_hand: tuple[Chunk, Work, int, bool] | None = None

    def in_hand(self) -> CallInHand | None:
        """Return the active call, for other threads; ``None`` if there is none."""
        in_hand = self._in_hand
        if in_hand is None:
            return None
        chunk, work, thread, committed = in_hand
        if committed:
            return CallInHand(work, chunk, None, work.calls, thread, committed=True)
        if (ahead := work.ahead) is None:
            return CallInHand(work, chunk, work.index, work.calls, thread)
        return CallInHand(work, chunk, max(0, len(chunk) - length_hint(ahead) - 1), work.calls, thread)

    def places(self, call: CallInHand) -> list[str]:
        """Return ``file:line (name)`` of the handlers, of which one has not returned."""
        return self.dispatcher.places(call.event)

    def overdue(self, call: CallInHand, seconds: float) -> Failure:
        """Return the failure of a call that has not returned, with the stack of its thread."""
        what = f"the handler has not returned for {in_words(seconds)}"
        fix = "make sure that it returns, with time limits for what it waits for, or increase {}"
        error = HandlerTimeoutError("OCQ-229", what, fix=fix.format("processing.handler-timeout"))
        failure = self._diagnosis.failure(error, Origin.HANDLER, call.event)
        stack = stack_of_thread(call.thread)
        if stack:
            failure = replace(failure, traceback="\n".join(filter(None, (failure.traceback, stack))))
        if call.index is None and len(call.chunk) > 1:
            failure = replace(failure, event=f"one of {len(call.chunk)} events, from {failure.event}")
        return failure

    def begin(self, unit: UnitOfWork, cursor: Cursor, portion: Portion) -> Work:
        """Return the work that handlers of a portion share."""
        rebuilding = self._replays.rebuilding
        work = Work(self._group, self._partition, unit, cursor.failing, cursor.attempt, rebuilding=rebuilding)
        if portion.waiting or cursor.replay is not None or cursor.ahead is not None:
            note_circumstances(work, cursor, portion)
        return work

    def handle(self, portion: Portion, work: Work, dispatcher: Dispatcher | None = None) -> int:
        """Call the handlers for a portion, and wait for the answers to their statements; return the number of events.

        Args:
            portion: The events.
            work: Their transaction.
            dispatcher: Calls the handlers; ``None``: that of the group.

        Raises:
            ChunkFailedError: If one fails, or has ended the transaction.
            PipelineFailedError: If a pipelined statement fails.
        """
        if dispatcher is None:
            dispatcher = self._replays.dispatcher if work.replaying else self.dispatcher
        if dispatcher is None:
            return 0
        try:
            if portion.waiting and dispatcher.takes_several:
                handled = self._by_batches(portion, work, dispatcher)
            else:
                self._in_hand = portion.chunk, work, get_ident(), False
                handled = dispatcher.handle(portion.chunk, work)
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

    def call(self, work: Work, events: Chunk) -> int:
        """Call the handlers for some events of a transaction that ``end`` ends; return how many events they got.

        Raises:
            ChunkFailedError: If one fails.
        """
        dispatcher = self._replays.dispatcher if work.replaying else self.dispatcher
        if dispatcher is None:
            return 0
        self._in_hand = events, work, get_ident(), False
        return dispatcher.handle(events, work)

    def end(self, work: Work) -> None:
        """Call no further handler in this transaction."""
        self._in_hand = None
        work.close()

    def after_commit(self, work: Work, events: Chunk) -> tuple[Failure, ...]:
        """Make the calls after the commit of the work on some events; return the failures."""
        if not work.calls_wait or self._replays.silent:
            return ()
        self._in_hand = events, work, get_ident(), True
        try:
            return tuple(self._diagnosis.failure(error, Origin.HANDLER) for error in work.committed())
        finally:
            self._in_hand = None

    def _by_batches(self, portion: Portion, work: Work, dispatcher: Dispatcher) -> int:
        """Call the handlers for one batch after the other: lists and tables contain the events of one sequence."""
        handled = 0
        for start, end in portion.batches():
            try:
                self._in_hand = portion.chunk[start:end], work, get_ident(), False
                handled += dispatcher.handle(portion.chunk[start:end], work)
            except ChunkFailedError as failed:
                index = None if failed.index is None else start + failed.index
                if end - start == 1:
                    index = start
                raise ChunkFailedError(index, failed.error) from failed.error
        return handled


def note_circumstances(work: Work, cursor: Cursor, portion: Portion) -> None:
    """Note what is exceptional: that events wait, are handled again, or are partly handled already."""
    if portion.waiting:
        work.failing, work.attempt, work.parked = portion.chunk.position(0), portion.attempts + 1, True
        work.replaying = portion.waiting[0].replaying
        work.waiting, work.is_meant = portion.waiting, _of_those(portion.waiting)
    elif portion.chunk is not NOTHING:
        work.replaying = cursor.replay is not None and cursor.replay.covers(portion.chunk.position(0))
        work.is_meant = None if cursor.ahead is None else _not_ahead(cursor.ahead)


def _not_ahead(ahead: Ahead) -> IsMeant:
    return lambda sequence_id, position: not ahead.covers(hash_of(sequence_id), position)


def _of_those(entries: Sequence[InboxEntry]) -> IsMeant:
    return lambda sequence_id, position: any((e.sequence_id, e.position) == (sequence_id, position) for e in entries)

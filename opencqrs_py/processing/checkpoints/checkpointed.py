"""The processor of a partition with participants: its progress follows what they confirm, not what is handled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile

from typing_extensions import override

from opencqrs_py.errors import CheckpointError, FencedError
from opencqrs_py.model.checkpoint import CheckpointStatus
from opencqrs_py.model.chunk import NOTHING
from opencqrs_py.model.inbox import GivenUp
from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, PartitionStatus, ProcessorState, Skip
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointTrigger
from opencqrs_py.processing.checkpoints.participant_calls import NO_UNIT, ParticipantCalls
from opencqrs_py.processing.checkpoints.participation import ClaimedPartition, Participation, logger
from opencqrs_py.processing.dispatch import ChunkFailedError
from opencqrs_py.processing.exceptions import failure_of, own_frames, raise_interrupt
from opencqrs_py.processing.feed import Page
from opencqrs_py.processing.pipelining import Pipelining
from opencqrs_py.processing.portions import Portion, without_handling
from opencqrs_py.processing.processor import PartitionProcessor, ProcessorParts, Stopping
from opencqrs_py.processing.replays import ReplayRule

_BEAT_SECONDS = 1.0  # between two steps that check the claim first, and publish positions
_QUICK_SECONDS, _LONG_SECONDS = 0.05, 0.2  # of a chunk; below or above, the next ones are larger or smaller
_FIRST_SIZE = 16  # events


class _NotConfirmedError(Exception):
    """A participant has not confirmed what was handled; no transaction was opened."""

    def __init__(self, error: CheckpointError) -> None:
        super().__init__(error)
        self.error = error


class CheckpointedProcessor(PartitionProcessor):
    """Moves a partition whose events participants handle.

    Unlike others it keeps state between steps: the claim of the participants. The cursor's position is what is
    handled, and may be far ahead of what is stored.

    Source:
        Facts of Axon section 8: self-checkpointing, with the resolutions 8.7.
    """

    def __init__(self, partition: Partition, parts: ProcessorParts, checkpointing: Participation) -> None:
        super().__init__(partition, parts)
        self._pieces = None
        self._narrowing.parks_first_only = checkpointing.deferred
        self._all = checkpointing
        self._claimed: ClaimedPartition | None = None
        self._wake: Callable[[], None] | None = None
        self._checkpointed_at: str | None = None
        self._beaten = self._clock.monotonic()
        self._published: CheckpointStatus | None = None
        self._last: ClaimedPartition | None = None
        self._failed = False  # a checkpoint does not end a failure; the driver publishes both
        self._pauses = False  # until the next step, since no checkpoint can be stored
        self._replays = ReplayRule(checkpointing.others.replaying, self._replays.finished)
        self.calls = self._calls = ParticipantCalls(
            self.group,
            partition,
            parts.dispatcher,
            self._replays,
            self._diagnosis,
            checkpointing,
            trigger=lambda: self._participating().trigger,
        )
        self._most = self._batch_size
        own = checkpointing.own.usual
        self._gathers = own is not None and own.takes_several
        self._handles_singly = own is not None and own.takes_single
        self._repeats = self._gathers and own is not None and own.has_several_handlers
        self._one_by_one = (0, 0)  # positions of the first and the last event that are handled alone
        self._adapts = checkpointing.deferred and not self._gathers
        if self._adapts:
            self._batch_size = min(_FIRST_SIZE, self._most)

    @override
    def step(self, cursor: Cursor) -> Outcome:
        """Claim the partition for its participants, make a checkpoint that is due, or handle the next chunk."""
        outcome = self._stepped(cursor)
        self._pauses = outcome.failure is not None and (outcome.checkpoint or outcome.cursor.doubtful)
        if outcome.failure is not None or not outcome.checkpoint:
            self._failed = outcome.failure is not None
        return outcome

    def _stepped(self, cursor: Cursor) -> Outcome:
        beats = self._beats()
        try:
            cursor = self._confirmed(cursor) if cursor.doubtful else cursor
            if beats:
                self._look(cursor)
        except BaseException as error:
            return self._not_confirmed(cursor, error)
        if self._claimed is not None and self._claimed.closed:
            return Outcome(cursor, failure=self._diagnosis.failure(self.claim.lost(), Origin.FRAMEWORK))
        if self._claimed is None:
            cursor = replace(cursor, position=cursor.stored)  # nothing keeps what was handled after it
            if (refused := self._claim(cursor)) is not None:
                return refused
        requested = self._claimed.positions.take() if self._claimed is not None else None
        outcome = super().step(cursor) if requested is None else self._checkpoint(cursor, requested)
        if beats and outcome.failure is None and not (outcome.checkpoint and self._failed):
            self._publish_quietly(outcome.cursor)
        return outcome

    @override
    def flush(self, cursor: Cursor) -> Outcome:
        """Store progress over events of others, unless some before them wait for their checkpoint."""
        return Outcome(cursor, idle=True) if self.withholds() else super().flush(cursor)

    @override
    def release(self, cursor: Cursor) -> Outcome | None:
        """Have the participants flush what they can, and store what all of them confirm; one that fails is reported.

        If another process has the partition, or may have it, they flush nothing: its participants may have made later
        effects durable, which a flush would overwrite.
        """
        claimed = self._claimed
        if claimed is None:
            return super().release(cursor)
        if claimed.closed:
            return None
        try:
            cursor = self._confirmed(cursor) if cursor.doubtful else self._still_claimed(cursor)
        except BaseException as error:
            return self._not_confirmed(cursor, error)
        if self._claimed is None:  # the database was restored: what they would confirm is void
            return None
        confirmed, refusal = claimed.release(cursor.stored)
        done = self._stored(cursor, confirmed, claimed)
        if refusal is None or done.failure is not None:
            return done
        return replace(done, failure=_failure_of_checkpoint(refusal))

    def confirms_nothing(self, cursor: Cursor) -> Failure:
        """Return the failure of participants that confirm nothing of what they have handled, if it will be repeated."""
        handled = cursor.stored if self._last is None else self._last.positions.handled
        what = f"the participants confirmed no position after {cursor.stored} on release, of {handled} handled"
        fix = "return the position, or LATEST, when everything is durable: from on_partition_released, or from "
        fix += "on_checkpoint if the class has no such method"
        where = f"group {self.group}, partition {self.partition}"
        return _failure_of_checkpoint(CheckpointError("OCQ-646", what, where, fix))

    @override
    def close(self) -> None:
        """Have the participants discard the partition."""
        claimed, self._claimed = self._claimed, None
        if claimed is not None:
            self._all.close(claimed)

    @override
    def abandon(self) -> None:
        """End the claim, which the handlers of participants check: they have no transaction to be rolled back."""
        if (claimed := self._claimed) is not None:
            claimed.end()

    @override
    def resting(self, stopping: Stopping, wake: Callable[[], None]) -> Stopping:
        """Return what ends the partition's pause early: its stop, or a request."""
        self._wake = wake
        if self._claimed is not None:
            self._claimed.positions.wake = wake
        return _Rest(stopping, self.has_checkpoint)

    @override
    def has_checkpoint(self) -> bool:
        """Return whether a checkpoint is requested that can be made now."""
        return not self._pauses and self._is_due()

    @override
    def withholds(self) -> bool:
        """Return whether handled events wait for their checkpoint."""
        return self._claimed is not None and self._claimed.positions.unconfirmed

    @property
    @override
    def trigger(self) -> CheckpointTrigger | None:
        """Requests checkpoints of the participants that have the partition."""
        return None if self._claimed is None else self._claimed.trigger

    @override
    def checkpoint_status(self) -> CheckpointStatus | None:
        """Return how far the participants are; ``None`` before their first claim in this process."""
        if self._last is None:
            return None
        positions = self._last.positions
        return CheckpointStatus(self._all.mode, positions.polled, positions.handled, self._checkpointed_at)

    @override
    def is_replayed(self, cursor: Cursor) -> bool:
        """Return whether everything that is handled again since a reset is stored."""
        return cursor.replay is not None and cursor.stored >= cursor.replay.until

    def _claim(self, cursor: Cursor) -> Outcome | None:
        """Have the participants take the partition over; return the outcome if they cannot, else ``None``."""
        try:
            self._claimed = self._last = claimed = self._all.claim(self.group, self.partition, cursor.stored)
        except CheckpointError as error:
            return self._aborted(cursor, error)
        if self._wake is not None:
            claimed.positions.wake = self._wake
        return None

    def _checkpoint(self, cursor: Cursor, requested: int) -> Outcome:
        """Have the participants confirm a position, and store the highest that all of them do."""
        claimed = self._participating()
        try:
            confirmed = claimed.confirm(requested)
        except CheckpointError as error:
            return self._aborted(cursor, error)
        return self._stored(cursor, confirmed, claimed)

    def _stored(self, cursor: Cursor, confirmed: int, claimed: ClaimedPartition) -> Outcome:
        """Store a position that is confirmed; with the last one handled also what was passed after it."""
        to = max(cursor.position, confirmed) if confirmed >= claimed.positions.handled else confirmed
        if to <= cursor.stored:
            return Outcome(cursor, checkpoint=True)
        try:
            stored = super()._commit(cursor, without_handling(to)).cursor
        except BaseException as error:
            raise_interrupt(error)
            failure = self._diagnosis.failure(error, Origin.FRAMEWORK)
            doubtful = replace(cursor, doubtful=failure.origin is Origin.OUTAGE)
            claimed.positions.request(confirmed)  # the participants have flushed, and will not request again
            return Outcome(doubtful, failure=failure, checkpoint=True)
        claimed.positions.store(to)
        self._checkpointed_at = in_milliseconds(self._clock.now())
        done = Outcome(replace(stored, position=max(cursor.position, to)), checkpoint=True)
        return self._replay_ended(done) if done.cursor.replay is not None else done

    def _aborted(self, cursor: Cursor, error: CheckpointError) -> Outcome:
        """Begin again after the stored position: the participants discard the partition, and claim it again."""
        return Outcome(self._discarded(cursor), failure=_failure_of_checkpoint(error))

    def _discarded(self, cursor: Cursor) -> Cursor:
        """Have the participants discard the partition; return the cursor from which they begin again."""
        self.close()
        return replace(cursor, position=cursor.stored)

    @override
    def _confirmed(self, cursor: Cursor) -> Cursor:
        """Return the cursor as it is stored; handled events stay handled, unless the database was restored."""
        found = super()._confirmed(cursor)
        if found.stored < cursor.stored:
            self.close()
            return found
        if self._claimed is not None:
            self._claimed.positions.store(found.stored)
        return replace(found, position=max(cursor.position, found.stored))

    @override
    def _handle(self, cursor: Cursor, portion: Portion, *, pipelined: bool = True) -> Outcome:
        claimed = self._participating()
        alone = self._all.others.usual is None
        if portion.waiting:
            return self._waited(cursor, portion) if alone else super()._handle(cursor, portion, pipelined=pipelined)
        if portion.behind:
            return self._up_to_behind(cursor, portion)
        if self._repeats:
            portion = self._cut(portion)
        claimed.positions.poll(portion.chunk.position(-1))
        if self._all.deferred and alone:
            return self._delivered(cursor, portion, claimed)
        return super()._handle(cursor, portion, pipelined=pipelined)

    def _up_to_behind(self, cursor: Cursor, portion: Portion) -> Outcome:
        """Handle the events up to the first that goes into the inbox; if there are none, move those into the inbox.

        Progress is stored with what goes there, and only after a checkpoint. Events that are handled in one step with
        them would be handled again if that failed.
        """
        chunk, first = portion.chunk, portion.behind[0].position
        before = bisect_left(range(len(chunk)), first, key=chunk.position)
        if before:
            return self._handle(cursor, replace(portion.first(before), upto=chunk.position(before - 1), behind=()))
        next_one = chunk.position(0)
        run = tuple(takewhile(lambda entry: entry.position < next_one, portion.behind))
        return self._without_handling(cursor, without_handling(run[-1].position, run))

    def _waited(self, cursor: Cursor, portion: Portion) -> Outcome:
        """Let participants, which are alone in the group, handle events of the inbox, and remove the durable ones.

        Those before one that fails are not handled again.
        """
        failure, durable, began = None, portion, self._clock.monotonic()
        try:
            handled = self._deliver(cursor, portion)
        except ChunkFailedError as failed:
            failure = self._diagnosis.failure_of_handler(failed.error, portion.chunk[failed.index or 0])
            if self._gathers or not failed.index:
                return self._again(cursor, portion, failed.index, failure)
            durable, handled = portion.first(failed.index), failed.index
        if self._adapts:
            self._adapt(self._clock.monotonic() - began)
        try:
            self._participating().confirm_parked(_positions(durable))
            done = super()._commit(cursor, durable)
        except CheckpointError as error:
            return self._aborted(cursor, error)
        except BaseException as error:
            raise_interrupt(error)
            return self._not_committed(cursor, durable.first(1), error)
        return replace(done, handled=handled, failure=failure)

    def _again(self, cursor: Cursor, portion: Portion, index: int | None, failure: Failure) -> Outcome:
        """Handle events again of which none stays handled, after the one at an index has failed."""
        if index is None and len(portion.chunk) > 1:
            return self._not_all_handled(cursor, portion, failure)
        return self._again_up_to(cursor, portion.first(index), failure) if index else Outcome(cursor, failure=failure)

    def _again_up_to(self, cursor: Cursor, portion: Portion, failure: Failure) -> Outcome:
        """Handle the events before one that has failed, for which handlers of lists and tables were not called yet.

        Participants that take single events have already handled them, and discard that first.
        """
        if self._handles_singly:
            cursor = self._discarded(cursor)
            if not portion.waiting:
                return Outcome(cursor, failure=failure)
            if (refused := self._claim(cursor)) is not None:
                return refused
        before = self._handle(cursor, portion)
        return before if before.failure is not None or before.changed else replace(before, failure=failure)

    def _not_all_handled(self, cursor: Cursor, portion: Portion, failure: Failure) -> Outcome:
        """Find the event that made a handler of several events fail, or wait for the end of an outage.

        Where the participants have other handlers, some of these have handled all of the events. They would get them
        again, with each half: so the participants discard them first, and events of the log follow one by one.
        """
        outage = failure.origin is Origin.OUTAGE
        if self._repeats:
            cursor = self._discarded(cursor)
            if not outage and not portion.waiting:
                return self._again_one_by_one(cursor, portion)
            if not outage and (refused := self._claim(cursor)) is not None:
                return refused
        return Outcome(cursor, failure=failure) if outage else self._narrowing.by_halves(cursor, portion)

    def _again_one_by_one(self, cursor: Cursor, portion: Portion) -> Outcome:
        """Begin again after the stored position, and handle each of some events alone when it comes."""
        first, last = portion.chunk.position(0), portion.chunk.position(-1)
        if self._one_by_one[1] > cursor.stored:  # another one has failed, which will be repeated, too
            first, last = min(first, self._one_by_one[0]), max(last, self._one_by_one[1])
        self._one_by_one = first, last
        return Outcome(cursor)

    def _cut(self, portion: Portion) -> Portion:
        """Return the beginning of a portion: up to the events that are handled alone, or one of these."""
        chunk, (first, last) = portion.chunk, self._one_by_one
        if chunk.position(0) > last or chunk.position(-1) < first:
            return portion
        return portion.first(bisect_left(range(len(chunk)), first, key=chunk.position) or 1)

    def _delivered(self, cursor: Cursor, portion: Portion, claimed: ClaimedPartition) -> Outcome:
        """Let participants handle events; those before one that fails stay handled."""
        began = self._clock.monotonic()
        try:
            handled = self._deliver(cursor, portion)
        except ChunkFailedError as failed:
            failure = self._diagnosis.failure_of_handler(failed.error, portion.chunk[failed.index or 0])
            if self._gathers or not failed.index:
                return self._again(cursor, portion, failed.index, failure)
            last = portion.chunk.position(failed.index - 1)
            claimed.positions.handle(last)
            return Outcome(cursor.moved_to(last, stored=False), handled=failed.index, failure=failure)
        if self._adapts:
            self._adapt(self._clock.monotonic() - began)
        claimed.positions.handle(portion.chunk.position(-1))
        return Outcome(cursor.moved_to(portion.upto, stored=False), handled=handled)

    def _adapt(self, seconds: float) -> None:
        """Keep chunks of slow handlers small: a request or a stop waits for the current chunk."""
        if seconds < _QUICK_SECONDS:
            self._batch_size = min(2 * self._batch_size, self._most)
        elif seconds > _LONG_SECONDS:
            self._batch_size = max(1, self._batch_size // 2)

    def _deliver(self, cursor: Cursor, portion: Portion) -> int:
        """Call the participants' handlers, outside of any transaction."""
        return self._calls.deliver(portion, self._calls.begin(NO_UNIT, cursor, portion))

    @override
    def _commit(
        self,
        cursor: Cursor,
        portion: Portion,
        skip: Skip | None = None,
        *,
        pipelining: Pipelining | None = None,
    ) -> Outcome:
        """Let participants handle a chunk and flush; then run the other handlers in a transaction with the progress."""
        if portion.chunk is NOTHING or self._claimed is None:
            return super()._commit(cursor, portion, skip, pipelining=pipelining)
        positions, last = self._claimed.positions, portion.chunk.position(-1)
        given = self._deliver(cursor, portion)
        if portion.waiting:
            try:
                self._claimed.confirm_parked(_positions(portion))
            except CheckpointError as error:
                raise _NotConfirmedError(error) from error
            done = super()._commit(cursor, portion, skip, pipelining=pipelining)
            return replace(done, handled=max(given, done.handled))
        if self._all.deferred:
            unmoved = replace(portion, upto=cursor.stored)
            done = super()._commit(cursor, unmoved, skip, pipelining=pipelining)
            done = replace(done, cursor=cursor.moved_to(portion.upto, stored=False))
        else:
            try:
                self._claimed.confirm(last, last)
            except CheckpointError as error:
                raise _NotConfirmedError(error) from error
            done = super()._commit(cursor, portion, skip, pipelining=pipelining)
            positions.store(last)
            self._checkpointed_at = in_milliseconds(self._clock.now())
        positions.handle(last)
        return replace(done, handled=max(given, done.handled))

    @override
    def _without_handling(self, cursor: Cursor, portion: Portion, skip: Skip | None = None) -> Outcome:
        """Skip or park an event; what was handled before it has to be confirmed first."""
        outcome = self._checkpoint_before_passing(cursor)
        if outcome.failure is not None:
            return outcome
        return self._passed(super()._without_handling(outcome.cursor, portion, skip))

    @override
    def _park(self, cursor: Cursor, page: Page, portion: Portion, how: GivenUp) -> Outcome:
        """Move the progress past an event, which goes into the inbox; what was handled is confirmed first."""
        outcome = self._checkpoint_before_passing(cursor)
        if outcome.failure is not None:
            return outcome
        return self._passed(super()._park(outcome.cursor, page, portion, how))

    @override
    def _not_committed(self, cursor: Cursor, portion: Portion, error: BaseException) -> Outcome:
        if type(error) is _NotConfirmedError:
            return self._aborted(cursor, error.error)
        done = super()._not_committed(cursor, portion, error)
        if done.changed and portion.waiting:
            which = f"{portion.chunk[0].label} of sequence {portion.waiting[0].sequence_id!r}"
            text = "[%s %s] a person has changed %s in the inbox, or one after it, after participants had handled them"
            logger.warning(text, self.group, self.partition, which)
        return done

    def _checkpoint_before_passing(self, cursor: Cursor) -> Outcome:
        """Have all handled events confirmed, since the progress is about to pass an event that is not handled."""
        handled = self._participating().positions.handled
        return self._checkpoint(cursor, handled) if handled > cursor.stored else Outcome(cursor)

    def _passed(self, done: Outcome) -> Outcome:
        """Note that the progress has passed an event."""
        if done.failure is None:
            self._participating().positions.store(done.cursor.stored)
        return done

    def publish(self, cursor: Cursor) -> None:
        """Publish how far the participants are, if that has changed.

        Raises:
            BaseException: As the tracker raises it, during an outage.
        """
        status = self.checkpoint_status()
        if status != self._published:
            shown = PartitionStatus(
                self.group,
                self.partition,
                cursor.stored,
                ProcessorState.RUNNING,
                updated_at=in_milliseconds(self._clock.now()),  # events are handled: it is not stuck
                failure=cursor.failure,
                replay=cursor.replay,
                checkpoint=status,
            )
            self._tracker.report(shown, cursor.epoch)
            self._published = status

    def _participating(self) -> ClaimedPartition:
        if self._claimed is None:
            raise ValueError(f"partition {self.partition} is not claimed by its participants")
        return self._claimed

    def _is_due(self) -> bool:
        return self._claimed is not None and self._claimed.positions.due()

    def _beats(self) -> bool:
        """Return whether it is time to check the claim and to publish positions."""
        now = self._clock.monotonic()
        if now - self._beaten < _BEAT_SECONDS:
            return False
        self._beaten = now
        return True

    def _look(self, cursor: Cursor) -> None:
        """Notice when another process has the partition, before participants handle or flush anything more.

        Raises:
            FencedError: If it has.
            BaseException: As the tracker raises it, if a checkpoint is due.
        """
        try:
            self._still_claimed(cursor)
        except BaseException as error:  # an outage: the next step that writes reports it
            raise_interrupt(error)
            if isinstance(error, FencedError) or self._is_due():
                raise

    def _still_claimed(self, cursor: Cursor) -> Cursor:
        """Return the cursor of a claim that still stands.

        Raises:
            FencedError: If another process has the partition.
        """
        if self._tracker.renewed(self.group, cursor) is None:
            raise self.claim.lost()
        return cursor

    def _not_confirmed(self, cursor: Cursor, error: BaseException) -> Outcome:
        """Return the outcome if the partition is, or may be, another process's."""
        raise_interrupt(error)
        return Outcome(replace(cursor, doubtful=True), failure=self._diagnosis.failure_to_read(error))

    def _publish_quietly(self, cursor: Cursor) -> None:
        try:
            self.publish(cursor)
        except BaseException as error:  # an outage: the next step that writes reports it
            raise_interrupt(error)


class _Rest:
    """What ends the pause of a partition early."""

    def __init__(self, stopping: Stopping, due: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._due = due

    def is_set(self) -> bool:
        """Return whether the partition is to stop, or has a checkpoint to make."""
        return self._stopping.is_set() or self._due()


def _positions(portion: Portion) -> tuple[int, ...]:
    return tuple(portion.chunk.position(index) for index in range(len(portion.chunk)))


def _failure_of_checkpoint(error: CheckpointError) -> Failure:
    traceback = own_frames(error.__cause__) if error.__cause__ is not None else ""
    return failure_of(error, Origin.CHECKPOINT, traceback=traceback)

"""Narrowing: from a chunk that fails to the event that makes it fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from opencqrs_py.errors import InboxChangedError, InboxFullError, TransactionEndedError
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.outcome import Failure, Origin, Outcome, Parked
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.caution import Caution
from opencqrs_py.processing.diagnosis import Diagnosis, NotOpenedError
from opencqrs_py.processing.dispatch import ChunkFailedError
from opencqrs_py.processing.inbox.parking import PartitionInbox, unseen, with_entry
from opencqrs_py.processing.portions import Portion


class Narrowing:
    """Commits what comes before the event that makes a chunk fail, so that this event comes first.

    Args:
        handle: Handles a portion in one transaction with the progress.
        move: Moves the progress over a portion that no handler gets, and stores what enters the inbox.
        diagnosis: Classifies errors.
        inbox: Where an event without attempts left is parked; ``None`` if the group has no such inbox.
        caution: Makes chunks smaller after an event was parked.

    Attributes:
        parks_first_only: Whether what comes before a parked event is handled in a step of its own.
    """

    def __init__(
        self,
        handle: Callable[[Cursor, Portion], Outcome],
        move: Callable[[Cursor, Portion], Outcome],
        diagnosis: Diagnosis,
        inbox: PartitionInbox | None,
        caution: Caution,
    ) -> None:
        self._handle = handle
        self._move = move
        self._diagnosis = diagnosis
        self._inbox = inbox
        self._caution = caution
        self.parks_first_only = False

    def after_call(self, cursor: Cursor, portion: Portion, failed: ChunkFailedError) -> Outcome:
        """Commit what comes before the event whose handler failed; look for it if it is not known."""
        index, chunk = failed.index, portion.chunk
        failure = self._diagnosis.failure_of_handler(failed.error, chunk[index or 0])
        if index is None and failure.origin is Origin.OUTAGE:
            failure = replace(failure, event=_one_of(chunk, failure.event))
        if index is not None and (parked := self._park_at_once(cursor, portion, index, failure)) is not None:
            return parked
        if index == 0 and failed.tries_alone and len(chunk) > 1 and failure.origin is not Origin.OUTAGE:
            return self._handle(cursor, portion.first(1))
        if index == 0 or failure.origin is Origin.OUTAGE:
            return Outcome(cursor, failure=failure)
        if index is None:
            return self.search(cursor, portion, failed.error)
        before = self._handle(cursor, portion.first(index))
        return before if before.failure is not None or before.changed else replace(before, failure=failure)

    def after_commit(self, cursor: Cursor, portion: Portion, error: BaseException) -> Outcome:
        """Return the outcome of an error that no handler raised; look for its event if it may be that of one."""
        if type(error) is NotOpenedError:
            changed = isinstance(error.error, InboxChangedError)
            return Outcome(unseen(cursor), changed=True) if changed else self.unopened(cursor, portion, error)
        failure = self._diagnosis.failure(error, Origin.HANDLER, portion.chunk[0])
        if len(portion.chunk) == 1 or failure.origin is not Origin.HANDLER:
            return Outcome(cursor, failure=failure)
        return self.search(cursor, portion, error)

    def unopened(self, cursor: Cursor, portion: Portion, error: BaseException) -> Outcome:
        """Return the outcome of a portion of which nothing was stored.

        If an event does not fit the inbox, what comes before it is committed, and the outcome names it. One that has
        just failed has its failure recorded first.
        """
        full = error.error if type(error) is NotOpenedError else error
        places = (one for one in portion.behind if isinstance(full, InboxFullError) and one.position == full.position)
        if (entry := next(places, None)) is None:
            return Outcome(cursor, failure=self._diagnosis.failure(error, Origin.FRAMEWORK))
        failure, before = self._diagnosis.failure_before(full, entry), portion.up_to(entry.position - 1)
        just_failed = entry.attempts > 0 and cursor.failing != entry.position
        if just_failed or not (before.chunk or before.behind):
            return Outcome(cursor, failure=failure)
        done = self._handle_or_move(cursor, before)
        stops = done.failure is not None or done.changed or done.cursor.position < before.upto
        return done if stops else replace(done, failure=failure)

    def _park_at_once(self, cursor: Cursor, portion: Portion, index: int, failure: Failure) -> Outcome | None:
        """Park an event that has no attempt left, in the transaction of what comes before it; else ``None``."""
        if self._inbox is None or (self.parks_first_only and index):
            return None
        if (entry := self._inbox.entry_at_once(cursor, portion, index, failure)) is None:
            return None
        self._caution.failed()
        done = self._handle_or_move(cursor, portion.before(index, entry))
        if done.failure is not None and done.cursor is cursor:
            if done.failure.origin in (Origin.OUTAGE, Origin.FENCED):  # it may be stored anyway
                return done
            return None  # such as a full inbox, or what comes before it fails now
        if done.failure is not None or done.cursor.stored < entry.position:
            return done
        parked = Parked(failure, entry.sequence_id, entry.attempts, None, new=True)
        return replace(done, cursor=with_entry(done.cursor, entry), parked=(*done.parked, parked))

    def _handle_or_move(self, cursor: Cursor, portion: Portion) -> Outcome:
        return self._handle(cursor, portion) if portion.chunk else self._move(cursor, portion)

    def search(self, cursor: Cursor, portion: Portion, error: BaseException) -> Outcome:
        """Find the event that an error belongs to, if the error names none."""
        if isinstance(error, TransactionEndedError):
            return self._one_by_one(cursor, portion, error)
        return self.by_halves(cursor, portion)

    def by_halves(self, cursor: Cursor, portion: Portion) -> Outcome:
        """Find the event that makes a chunk fail: what comes before it is committed, in ever smaller chunks."""
        middle = len(portion.chunk) // 2
        half = portion.first(middle)
        first = self._handle(cursor, half)
        if first.failure is not None or not _is_done(first, half):
            return first
        return first.followed_by(self._handle(first.cursor, portion.after(middle)))

    def _one_by_one(self, cursor: Cursor, portion: Portion, error: TransactionEndedError) -> Outcome:
        """Find the event whose handler ended the transaction: each further call repeats what it has committed.

        A handler that does not end it this time, such as one that creates a table only if it is missing, is not found.
        But what the chunk had committed may be stored twice, so the partition fails. An event that fails for another
        reason in the meantime fails again at the next step: nothing of it is stored.
        """
        done, rest = Outcome(cursor), portion
        while rest.chunk and done.failure is None:
            part, rest = rest.first(1), rest.after(1)
            done = done.followed_by(self._handle(done.cursor, part))
            if not _is_done(done, part):
                break
        found = done.failure
        if not error.may_be_kept or (found is not None and (found.code == error.code or found.origin is Origin.FENCED)):
            return done
        return replace(done, failure=self._unfound(portion, error))

    def _unfound(self, portion: Portion, error: TransactionEndedError) -> Failure:
        """Return the failure of a chunk whose transaction was ended by a handler that did not do so again."""
        failure = self._diagnosis.failure_of_handler(error, portion.chunk[0])
        event = _one_of(portion.chunk, failure.event)
        return replace(failure, origin=Origin.FRAMEWORK, position=None, event=event, message=_ENDED_ONCE)


_ENDED_ONCE = (
    "a handler ended the transaction that it shares with the progress, and did not do so again when events were "
    "handled alone: what it had written may exist twice; correct the read model or handle the events again, and "
    "remove what commits, such as commit(), COMMIT, executescript(), or the definition of a table on MariaDB"
)


def _one_of(chunk: Chunk, first: str) -> str:
    return f"one of {len(chunk)} events, from {first}"


def _is_done(done: Outcome, portion: Portion) -> bool:
    """Return whether what follows a portion may be handled: none of its events waits, or was changed by a person."""
    if done.parked or done.changed:
        return False
    return bool(portion.waiting) or done.cursor.position >= portion.upto

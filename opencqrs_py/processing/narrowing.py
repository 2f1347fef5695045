"""Narrowing: from a chunk that fails to the event that makes it fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from opencqrs_py.errors import TransactionEndedError
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.diagnosis import Diagnosis
from opencqrs_py.processing.dispatch import ChunkFailedError
from opencqrs_py.processing.portions import Portion


class Narrowing:
    """Commits what comes before the event that makes a chunk fail, so that this event comes first.

    Args:
        handle: Handles a portion in one transaction with the progress.
        park_at_once: Parks the event at an index of a portion, if it has no attempt left; else returns ``None``.
        diagnosis: Classifies errors.
    """

    def __init__(
        self,
        handle: Callable[[Cursor, Portion], Outcome],
        park_at_once: Callable[[Cursor, Portion, int, Failure], Outcome | None],
        diagnosis: Diagnosis,
    ) -> None:
        self._handle = handle
        self._park_at_once = park_at_once
        self._diagnosis = diagnosis

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

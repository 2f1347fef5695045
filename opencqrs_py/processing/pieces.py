"""Pieces: parts of a chunk with a savepoint before each, so that a failing event undoes little more than itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from opencqrs_py.model.chunk import NOTHING
from opencqrs_py.model.event import Event
from opencqrs_py.model.inbox import InboxEntry
from opencqrs_py.model.outcome import Failure, Outcome, Parked
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.binding import Work
from opencqrs_py.processing.diagnosis import Diagnosis, NotOpenedError
from opencqrs_py.processing.dispatch import ChunkFailedError
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.handler_calls import HandlerCalls
from opencqrs_py.processing.inbox.parking import PartitionInbox, with_entry
from opencqrs_py.processing.portions import Portion
from opencqrs_py.processing.ports import EventSource, SavingTracker, SavingUnit

SIZE = 100  # events; a savepoint for that many costs little, and so does handling that many again


class NotUndoneError(Exception):
    """The work of an event cannot be undone separately: the whole chunk has to be handled in the usual way.

    Attributes:
        error: What its handler has raised; ``None`` if none has.
    """

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.error = error


@dataclass(slots=True)
class _Handled:
    """The state of a portion while its pieces are handled.

    Attributes:
        rest: What remains of it; ``behind`` is all that enters the inbox, ``upto`` is where the progress moves.
        newest: The last event of the partition that the progress passes.
        events: How many events a handler got.
        given_up: Failures of events, with their entries in the inbox.
    """

    rest: Portion
    newest: Event | None
    events: int = 0
    given_up: list[tuple[Failure, InboxEntry]] = field(default_factory=list)


class Pieces:
    """Handles chunks of a partition in pieces: failing events are parked in the transaction of the others.

    A failing event undoes its piece only, of which the events before it are handled again. Later events of its
    sequence follow it into the inbox, and all others are handled as usual.

    Args:
        group: Processing group.
        tracker: Where progress goes.
        inbox: Inbox of the partition.
        source: The event store.
        diagnosis: Explains errors.
        calls: Calls the handlers.
    """

    def __init__(
        self,
        group: str,
        tracker: SavingTracker,
        inbox: PartitionInbox,
        source: EventSource,
        diagnosis: Diagnosis,
        calls: HandlerCalls,
    ) -> None:
        self._group = group
        self._tracker = tracker
        self._inbox = inbox
        self._source = source
        self._diagnosis = diagnosis
        self._calls = calls

    def handle(self, cursor: Cursor, portion: Portion) -> Outcome:
        """Handle events of the log in one transaction with the progress and what is parked.

        Raises:
            NotUndoneError: If an event fails in another way, or its work cannot be undone alone: nothing
                is stored.
            ChunkFailedError: Likewise, if an event fails that was handled before.
            InboxError: Likewise, if too much would wait.
            NotOpenedError: If the unit of work was not opened.
        """
        done = _Handled(portion, portion.chunk.read_whole(-1))
        to, fingerprint = self._reached(done)
        opening = partial(self._tracker.unit_in_parts, self._group, cursor, to, fingerprint=fingerprint)
        with _opened(opening) as unit:
            work = self._calls.begin(unit, cursor, portion)
            try:
                while done.rest.chunk:
                    self._next_piece(cursor, unit, work, done)
            except NotUndoneError as failed:
                ended = None if failed.error is None else unit.ended_early(failed.error)
                if ended is None:
                    raise
                raise ended from failed.error
            finally:
                self._calls.end(work)
            if done.rest.upto != to:
                to, fingerprint = self._reached(done)
            unit.conclude(to, fingerprint, self._inbox.change(done.rest) if done.rest.behind else None)
        moved, parked = cursor.moved_to(to, stored=True, fingerprint=fingerprint), list[Parked]()
        for failure, entry in done.given_up:
            moved = with_entry(moved, entry)
            parked.append(Parked(failure, entry.sequence_id, entry.attempts, None, new=True))
        missed = self._calls.after_commit(work, portion.chunk)
        return Outcome(moved, handled=done.events, missed=missed, parked=tuple(parked))

    def _next_piece(self, cursor: Cursor, unit: SavingUnit, work: Work, done: _Handled) -> None:
        """Handle the first events of the rest, up to one that fails, which is parked."""
        undo = unit.saved()
        if undo is None:
            raise NotUndoneError
        rest = done.rest
        piece = rest.chunk[:SIZE]
        try:
            done.events += self._calls.call(work, piece)
        except ChunkFailedError as failed:
            index = failed.index
            given = None if index is None or work.calls_wait else self._given_up(cursor, rest, index, failed.error)
            if index is None or given is None or not undo():
                raise NotUndoneError(failed.error) from failed
            if index:
                done.events += self._calls.call(work, piece[:index])
            done.given_up.append(given)
            self._go_on(cursor, done, index, given[1])
        else:
            done.rest = replace(rest, chunk=rest.chunk[SIZE:])

    def _given_up(
        self, cursor: Cursor, rest: Portion, index: int, error: BaseException
    ) -> tuple[Failure, InboxEntry] | None:
        failure = self._diagnosis.failure_of_handler(error, rest.chunk[index])
        entry = self._inbox.entry_at_once(cursor, rest, index, failure)
        return None if entry is None else (failure, entry)

    def _go_on(self, cursor: Cursor, done: _Handled, index: int, entry: InboxEntry) -> None:
        """Continue with the events after a parked one, except those of its sequence, which join it in the inbox.

        The chunk ends with the parked event if their sequences cannot be determined: the next step reports why.
        """
        rest, event = done.rest, done.rest.chunk[index]
        try:
            others, those = self._inbox.followers(rest, index, entry, cursor)
        except Exception:
            behind = tuple(one for one in rest.behind if one.position < entry.position)
            done.rest = replace(rest, chunk=NOTHING, upto=entry.position, behind=(*behind, entry))
            done.newest = event
        else:
            behind = tuple(sorted((*rest.behind, entry, *those), key=lambda one: one.position))
            done.rest = replace(rest, chunk=others, behind=behind)

    def _reached(self, done: _Handled) -> tuple[int, str]:
        """Return the position that the progress reaches, and the fingerprint of the log up to it."""
        upto, newest = done.rest.upto, done.newest
        return upto, self._source.fingerprint(upto, newest if newest is not None and newest.position == upto else None)


@contextmanager
def _opened(opening: Callable[[], AbstractContextManager[SavingUnit]]) -> Iterator[SavingUnit]:
    """Open a unit of work; raises ``NotOpenedError`` if that fails."""
    with ExitStack() as stack:
        try:
            unit = stack.enter_context(opening())
        except BaseException as error:
            raise_interrupt(error)
            raise NotOpenedError(error) from error
        yield unit

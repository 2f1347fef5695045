"""Pieces: parts of a chunk with a savepoint before each, so that an event that fails undoes little more than itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.inbox import InboxEntry
from opencqrs_py.model.outcome import Failure
from opencqrs_py.processing.dispatch import ChunkFailedError
from opencqrs_py.processing.portions import Portion
from opencqrs_py.processing.ports import SavingUnit

SIZE = 50  # events; a savepoint for so many costs little, and so do so many that are handled again


class NotUndoneError(Exception):
    """What an event has done cannot be undone by itself: the whole chunk has to be handled in the usual way.

    Attributes:
        error: What its handler has raised; ``None`` if none has.
    """

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.error = error


@dataclass(frozen=True, slots=True)
class Given:
    """An event that is given up in the middle of a chunk: how it has failed, and the entry that waits in its place."""

    failure: Failure
    entry: InboxEntry


@dataclass(frozen=True, slots=True)
class Handled:
    """What has come of the pieces of a portion.

    Attributes:
        portion: What of it is handled, and goes into the inbox.
        events: How many of the events a handler got.
        given: The event behind them that was given up; ``None`` if all are handled.
    """

    portion: Portion
    events: int
    given: Given | None = None


def handle_in_pieces(
    portion: Portion,
    unit: SavingUnit,
    handle: Callable[[Chunk], int],
    give_up: Callable[[int, BaseException], Given | None],
) -> Handled:
    """Handle the events of a portion in an open transaction, up to the first that fails and is given up.

    Args:
        portion: Events of the log.
        unit: The transaction.
        handle: Has handlers called for some of the events; raises ``ChunkFailedError`` if one fails.
        give_up: Returns from the index and the error of an event how it is given up; ``None``: not so.

    Raises:
        NotUndoneError: If an event fails in another way, or what it has done cannot be undone by itself.
    """
    chunk, handled = portion.chunk, 0
    for start in range(0, len(chunk), SIZE):
        undo = unit.saved()
        if undo is None:
            raise NotUndoneError
        piece = chunk[start : start + SIZE]
        try:
            handled += handle(piece)
        except ChunkFailedError as failed:
            if failed.index is None or (given := give_up(start + failed.index, failed.error)) is None or not undo():
                raise NotUndoneError(failed.error) from failed
            again = handle(piece[: failed.index]) if failed.index else 0
            return Handled(portion.before(start + failed.index, given.entry), handled + again, given)
    return Handled(portion, handled)

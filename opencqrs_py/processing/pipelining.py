"""Whether the statements of a group's handlers are sent without waiting for each answer. Pure."""

from __future__ import annotations

from typing import Protocol

_LEAST_STATEMENTS = 4  # for each wait of a handler for an answer; with fewer, to wait each time is quicker
_REST = 100  # chunks that are handled as usual before it is tried again


class PipelineFailedError(Exception):
    """A statement of a chunk failed whose answers were awaited together, so it is not known what followed from it.

    Nothing of the chunk may be kept: it is handled again with an answer to each statement.
    """


class Pipeline(Protocol):
    """Statements of one transaction that are sent without waiting for each answer.

    Attributes:
        statements: How many were sent so.
        waits: How often a handler had to wait for answers, because it looked at one.
    """

    statements: int
    waits: int

    def settle(self) -> None:
        """Wait for all answers; from then on each statement waits for its own.

        Raises:
            PipelineFailedError: If a statement has failed, also if its error was raised in a handler.
        """
        ...

    def close(self) -> None:
        """Settle it without a word, if that was not done: the transaction is rolled back."""
        ...


class Pipelining:
    """Decides chunk by chunk, by what the handlers of a group did in those before. Safe for several threads."""

    def __init__(self) -> None:
        self._rest = 0

    def begins(self) -> bool:
        """Return whether the next chunk is to be handled so."""
        if self._rest <= 0:
            return True
        self._rest -= 1
        return False

    def took(self, pipeline: Pipeline) -> None:
        """Learn from a chunk: handlers that look at what they have just sent gain nothing."""
        if pipeline.statements < _LEAST_STATEMENTS * pipeline.waits:
            self._rest = _REST

    def failed(self) -> None:
        """Learn that a chunk has to be handled again."""
        self._rest = _REST

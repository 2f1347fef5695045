"""Pipelining: whether statements of handlers are sent without waiting for each answer. Pure."""

from __future__ import annotations

from typing import Protocol

_LEAST_STATEMENTS = 4  # per wait of a handler for an answer; with fewer, waiting each time is quicker
_REST = 100  # chunks without pipelining before it is tried again


class PipelineFailedError(Exception):
    """A pipelined statement of a chunk failed, so its consequences are unknown.

    Nothing of the chunk may be kept: it is handled again, waiting for each answer.
    """


class Pipeline(Protocol):
    """Statements of one transaction that are sent without waiting for each answer.

    Attributes:
        statements: How many were sent.
        waits: How often a handler had to wait because it used an answer.
    """

    statements: int
    waits: int

    def settle(self) -> None:
        """Wait for all answers; from then on each statement waits for its answer.

        Raises:
            PipelineFailedError: If a statement has failed, also if its error was raised in a handler.
        """
        ...

    def close(self) -> None:
        """Settle it silently, unless it is settled: the transaction is rolled back."""
        ...


class Pipelining:
    """Decides for each chunk, by what the group's handlers did in earlier ones. Safe for several threads."""

    def __init__(self) -> None:
        self._rest = 0

    def begins(self) -> bool:
        """Return whether the next chunk is to be pipelined."""
        if self._rest <= 0:
            return True
        self._rest -= 1
        return False

    def took(self, pipeline: Pipeline) -> None:
        """Learn from a chunk: handlers that wait for most answers gain nothing."""
        if pipeline.statements < _LEAST_STATEMENTS * pipeline.waits:
            self._rest = _REST

    def failed(self) -> None:
        """Learn that a chunk has to be handled again."""
        self._rest = _REST

"""Which chunks are handled without waiting for each answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from opencqrs_py.processing.pipelining import Pipelining


def chunk(statements: int, waits: int) -> Any:
    return SimpleNamespace(statements=statements, waits=waits)


def next_pipelined(pipelining: Pipelining) -> int:
    """Return how many chunks are handled as usual before one is tried again."""
    return next(number for number in range(1_000) if pipelining.begins())


@pytest.mark.parametrize(
    ("statements", "waits", "usual"),
    [(1_000, 0, 0), (1_000, 1, 0), (1_000, 250, 0), (1_000, 251, 100), (2_000, 1_000, 100), (0, 0, 0), (0, 1, 100)],
)
def test_handlers_that_read_the_results_of_their_statements_are_not_pipelined_for_a_while(
    statements: int, waits: int, usual: int
) -> None:
    pipelining = Pipelining()
    assert pipelining.begins()
    pipelining.took(chunk(statements, waits))
    assert next_pipelined(pipelining) == usual


def test_chunks_after_a_failed_one_are_not_pipelined_for_a_while() -> None:
    pipelining = Pipelining()
    pipelining.failed()
    assert next_pipelined(pipelining) == 100

"""Caution: chunks are smaller for some time after an event has failed."""

from __future__ import annotations

import pytest

from opencqrs_py.processing.caution import Caution


def sizes_of(caution: Caution, usual: int, chunks: int) -> list[int]:
    return [caution.size(usual) if caution.left > 0 else usual for _ in range(chunks)]


@pytest.mark.parametrize(("usual", "small"), [(5_000, 2_500), (1_000, 500), (150, 100), (100, 100), (1, 1)])
def test_chunks_are_halved_after_a_failure_down_to_a_minimum(usual: int, small: int) -> None:
    caution = Caution()
    assert sizes_of(caution, usual, 2) == [usual, usual]
    caution.failed()
    assert sizes_of(caution, usual, 2) == [small, small]


def test_chunks_handled_in_pieces_keep_their_usual_size() -> None:
    caution = Caution()
    caution.failed()
    assert [caution.size(1_000, in_pieces=True) for _ in range(100)] == [1_000] * 100
    assert caution.left == 0


def test_chunks_regain_their_usual_size_after_a_hundred_chunks_without_failure() -> None:
    caution = Caution()
    caution.failed()
    sizes_of(caution, 1_000, 50)
    caution.failed()
    assert sizes_of(caution, 1_000, 102) == [500] * 100 + [1_000] * 2

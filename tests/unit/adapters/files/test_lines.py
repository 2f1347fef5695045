"""The line index, compared with counting lines directly."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.adapters.files import lines as line_files
from opencqrs_py.adapters.files.lines import LineIndex, Mark

PIECES = st.sampled_from([b"\n", b"\r\n", b" \n", b"\t\n", b"a\n", b"a b\n", b"\n\n", b"x" * 40 + b"\n", b"a", b" "])
TEXTS = st.lists(PIECES, max_size=40).map(b"".join)


def complete(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines(keepends=True) if line.endswith(b"\n")]


@pytest.fixture(params=[1, 7, 64])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(line_files, "_BLOCK", request.param)
    return int(request.param)


@given(text=TEXTS, block=st.sampled_from([1, 7, 64]), cuts=st.lists(st.integers(0, 400), max_size=4))
def test_a_growing_file_is_indexed_like_a_complete_one(text: bytes, block: int, cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_files, "_BLOCK", block)
        index = LineIndex()
        for size in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
            index.advance(io.BytesIO(text), size)
            lines = complete(text[:size])
            events = sum(1 for line in lines if not line.isspace())
            assert index.end == Mark(events, len(lines), sum(map(len, lines)))


@given(text=TEXTS, block=st.sampled_from([1, 7, 64]))
def test_every_mark_is_at_the_start_of_a_line(text: bytes, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_files, "_BLOCK", block)
        index = LineIndex()
        index.advance(io.BytesIO(text), len(text))
    for event in range(index.end.event + 1):
        mark = index.mark_before(event)
        before = complete(text[: mark.offset])
        assert sum(map(len, before)) == mark.offset
        assert len(before) == mark.line
        assert sum(1 for line in before if not line.isspace()) == mark.event <= event


def test_there_is_a_mark_for_every_block(block: int) -> None:
    text = b"event\n" * 100
    index = LineIndex()
    index.advance(io.BytesIO(text), len(text))
    offsets = sorted({index.mark_before(event).offset for event in range(101)})
    assert max(later - earlier for earlier, later in pairwise(offsets)) <= max(block, 12) + 6

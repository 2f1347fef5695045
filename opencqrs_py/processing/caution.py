"""Caution: how large the chunks of a group are while some of its events fail. Pure."""

from __future__ import annotations

_LEAST = 100  # events: a transaction of this size has little overhead
_PART = 2  # with one failure in 4,000 events, more transactions cost more than they save
_CHUNKS = 100  # chunks that stay small after a failure


class Caution:
    """Makes chunks smaller for a while after an event has failed, because a chunk is handled again up to that event.

    Safe for several threads: the count need not be exact.

    Attributes:
        left: How many chunks are small from now on.
    """

    def __init__(self) -> None:
        self.left = 0

    def failed(self) -> None:
        """Note a failure."""
        self.left = _CHUNKS

    def size(self, usual: int, *, in_pieces: bool = False) -> int:
        """Return how many events the next chunk may have; if a chunk is in pieces, little of it is handled again."""
        self.left -= 1
        if in_pieces:
            return usual
        return min(usual, max(_LEAST, usual // _PART))

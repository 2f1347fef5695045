"""Long calls of handlers: which call a thread is making, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.processing.binding import Work

_SHORTEST_LOOK, _LONGEST_LOOK = 0.05, 1.0  # seconds between two checks


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long a call of a handler may take.

    Attributes:
        warn_after: Seconds after which it is logged that a call takes long; ``math.inf``: never.
        timeout: Seconds after which a call is abandoned; ``math.inf``: never.
    """

    warn_after: float = inf
    timeout: float = inf

    @property
    def interval(self) -> float:
        """Seconds between two checks of the active calls; ``math.inf``: there is nothing to check."""
        shortest = min(self.warn_after, self.timeout)
        return inf if shortest == inf else min(max(shortest / 10, _SHORTEST_LOOK), _LONGEST_LOOK)


NO_LIMITS = CallLimits()


@dataclass(frozen=True, slots=True)
class CallInHand:
    """A call of a handler that has not returned, or those of a transaction after its commit.

    Attributes:
        work: Its transaction, and the circumstances.
        chunk: The events of that transaction.
        index: Which of them the handler got; ``None`` if it got a list.
        number: Number of the call in its transaction.
        thread: Identifies the thread on which it is made.
        committed: Whether the transaction is committed. Such a call is never too long, as nothing can be done about it.
    """

    work: Work
    chunk: Chunk
    index: int | None
    number: int
    thread: int
    committed: bool = False

    @property
    def event(self) -> Event:
        """The event in hand; the first one of a list."""
        return self.chunk[self.index or 0]

    @property
    def sequence_id(self) -> str:
        """The sequence of the event in hand, if it comes from the inbox, else an empty text.

        It may wait there in several sequences, of which a transaction handles one.
        """
        position = self.event.position
        return next((entry.sequence_id for entry in self.work.waiting if entry.position == position), "")

    def is_same(self, other: CallInHand | None) -> bool:
        """Return whether both are one and the same call."""
        if other is None:
            return False
        this, that = ((one.committed, one.index, one.number) for one in (self, other))
        return self.work is other.work and self.chunk is other.chunk and this == that


@dataclass(frozen=True, slots=True)
class OverdueCall:
    """A call, how many seconds it has taken at least, and whether that is too long."""

    call: CallInHand
    seconds: float
    timed_out: bool


class CallTimer:
    """Measures how long the calls of one processor take, by regular checks of the active call.

    A call counts from when it is first seen, so no warning and no timeout comes too early.
    """

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._call: CallInHand | None = None
        self._since = 0.0
        self._next_warning = inf

    def look(self, call: CallInHand | None, now: float) -> OverdueCall | None:
        """Return the active call if it takes too long, or long enough for a warning; the next comes at twice the time.

        Args:
            call: The active call, ``None`` if there is none.
            now: Seconds of a clock that never goes back.
        """
        if call is None or not call.is_same(self._call):
            self._call, self._since, self._next_warning = call, now, self._limits.warn_after
            return None
        seconds = now - self._since
        if seconds >= self._limits.timeout and not call.committed:
            self._call = None
            return OverdueCall(call, seconds, timed_out=True)
        if seconds < self._next_warning:
            return None
        self._next_warning = 2 * max(seconds, self._next_warning)
        return OverdueCall(call, seconds, timed_out=False)

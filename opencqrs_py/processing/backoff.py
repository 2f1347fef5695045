"""Back-off: the waits before the further attempts of an event."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice, repeat
from math import inf

__all__ = ["ExponentialBackOff", "FixedBackOff", "NoRetry"]


@dataclass(frozen=True, slots=True)
class NoRetry:
    """Give an event up at its first failure."""

    def waits(self) -> Iterator[float]:
        """Yield nothing."""
        return iter(())


@dataclass(frozen=True, slots=True)
class FixedBackOff:
    """The same wait before each attempt.

    Attributes:
        interval: Wait in seconds.
        max_attempts: Retries after the first attempt; ``None`` for no limit.
    """

    interval: float
    max_attempts: int | None = None

    def waits(self) -> Iterator[float]:
        """Yield ``interval`` up to ``max_attempts`` times."""
        return islice(repeat(self.interval), self.max_attempts)


@dataclass(frozen=True, slots=True)
class ExponentialBackOff:
    """Waits that grow by a factor up to a limit.

    Computed in whole milliseconds, cut off, as the original does. The time limit is compared with the sum of the
    waits handed out so far, before the next is computed, so the sum may pass it by one wait.

    Attributes:
        initial: First wait in seconds.
        multiplier: Factor from one wait to the next, at least 1.
        maximum: Longest wait in seconds.
        max_elapsed: Limit of the sum of waits in seconds; ``inf`` for none.
        max_attempts: Retries after the first attempt; ``None`` for no limit.
        jitter: Share of each wait, ``0..1``, that is drawn at random around it; the limit of a wait still holds.
        draw: Source of numbers in ``0..1``, for tests.

    Source:
        Facts of OpenCQRS section 5.4: Spring's exponential back-off. Jitter is ours.
    """

    initial: float = 2.0
    multiplier: float = 1.5
    maximum: float = 30.0
    max_elapsed: float = inf
    max_attempts: int | None = None
    jitter: float = 0.0
    draw: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if self.multiplier < 1:
            msg = f"multiplier must be at least 1, got {self.multiplier}"
            raise ValueError(msg)

    def waits(self) -> Iterator[float]:
        """Yield the waits in seconds."""
        longest = round(self.maximum * 1000)
        wait = min(round(self.initial * 1000), longest)
        spent = 0
        for _ in count() if self.max_attempts is None else range(self.max_attempts):
            if spent >= self.max_elapsed * 1000:
                return
            spent += wait
            yield min(wait * self._factor(), longest) / 1000
            wait = min(int(wait * self.multiplier), longest)

    def _factor(self) -> float:
        return 1 + self.jitter * (self.draw() - 0.5) if self.jitter else 1.0

"""Recovery: what is done about a failure, and the waits before further attempts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import count, islice, repeat
from math import inf

from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.processing.ports import BackOff


class OnExhausted(Enum):
    """What happens to an event whose attempts are exhausted."""

    SKIP = "skip"
    STOP = "stop"


class Action(Enum):
    """What the processor of a partition does next."""

    RETRY = "retry"  # the same event again, after its back-off
    SKIP = "skip"  # skip the event and continue
    STOP = "stop"  # the partition has failed; tried again only after a growing pause
    WAIT = "wait"  # the store or the database is unavailable; no attempt is used
    LEAVE = "leave"  # another processor has the partition


def action_for(failure: Failure, *, exhausted: bool, on_exhausted: OnExhausted) -> Action:
    """Decide what to do about an error.

    Args:
        failure: The error and where it arose.
        exhausted: Whether the event's attempts are exhausted.
        on_exhausted: What the group wants then.

    Source:
        Error classification of OpenCQRS with the decisions K1-K4 and K6.
    """
    match failure.origin:
        case Origin.FENCED:
            return Action.LEAVE
        case Origin.OUTAGE:
            return Action.WAIT
        case Origin.EVENT | Origin.FRAMEWORK:
            return Action.STOP
        case Origin.HANDLER if failure.permanent:
            return Action.STOP
        case Origin.HANDLER if not exhausted:
            return Action.RETRY
        case Origin.HANDLER:  # pragma: no branch there is no other origin
            return Action.SKIP if on_exhausted is OnExhausted.SKIP else Action.STOP


_LONGEST = 1e12  # seconds, about 30,000 years: as in the settings


@dataclass(frozen=True, slots=True)
class NoRetry(BackOff):
    """Give an event up at its first failure."""

    def waits(self) -> Iterator[float]:
        """Yield nothing."""
        return iter(())


@dataclass(frozen=True, slots=True)
class FixedBackOff(BackOff):
    """The same wait before each attempt.

    Attributes:
        interval: Wait in seconds, ``0..1e12``.
        max_attempts: Retries after the first attempt, 0 or more; ``None`` for no limit.

    Raises:
        ValueError: If a number is not in its range; ``nan`` is in none.
    """

    interval: float
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        _check("interval", self.interval)
        _check_attempts(self.max_attempts)

    def waits(self) -> Iterator[float]:
        """Yield ``interval`` up to ``max_attempts`` times."""
        return islice(repeat(self.interval), self.max_attempts)


@dataclass(frozen=True, slots=True)
class ExponentialBackOff(BackOff):
    """Waits that grow by a factor up to a limit.

    Computed in whole milliseconds, cut off, as the original does. The time limit is compared with the sum of the
    waits handed out so far, as jitter has made them, before the next is computed, so the sum may pass it by one wait.

    Attributes:
        initial: First wait in seconds, ``0..1e12``.
        multiplier: Factor from one wait to the next, at least 1 and finite.
        maximum: Longest wait in seconds, ``0..1e12``.
        max_elapsed: Limit of the sum of waits in seconds, 0 or more; ``inf`` for none.
        max_attempts: Retries after the first attempt, 0 or more; ``None`` for no limit.
        jitter: Share of each wait, ``0..1``, of which a random part is taken off. Waits at the maximum are spread as
            widely as others.
        draw: Source of numbers in ``0..1``, for tests.

    Raises:
        ValueError: If a number is not in its range; ``nan`` is in none.

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
        _check("initial", self.initial)
        _check("multiplier", self.multiplier, 1)
        _check("maximum", self.maximum)
        _check("max_elapsed", self.max_elapsed, most=inf)
        _check("jitter", self.jitter, most=1)
        _check_attempts(self.max_attempts)

    def waits(self) -> Iterator[float]:
        """Yield the waits in seconds."""
        longest = round(self.maximum * 1000)
        wait = min(round(self.initial * 1000), longest)
        spent = 0.0
        for _ in count() if self.max_attempts is None else range(self.max_attempts):
            if spent >= self.max_elapsed * 1000:
                return
            made = wait * (1 - self.jitter * self.draw()) if self.jitter else wait
            spent += made
            yield made / 1000
            wait = int(min(wait * self.multiplier, longest))


def _check(name: str, value: float, least: float = 0, most: float = _LONGEST) -> None:
    if not least <= value <= most:  # nan is neither
        limit = f"{least:g} or more" if most == inf else f"{least:g} to {most:g}"
        msg = f"{name} must be {limit}, got {value}"
        raise ValueError(msg)


def _check_attempts(value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        msg = f"max_attempts must be a whole number, 0 or more, or None for no limit, got {value}"
        raise ValueError(msg)

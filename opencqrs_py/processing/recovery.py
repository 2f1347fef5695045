"""Recovery: what is done about an error, and the waits before further attempts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count, islice, repeat
from math import inf

from typing_extensions import override

from opencqrs_py.errors import (
    AssemblyError,
)
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.processing.exceptions import (
    one_line,
)
from opencqrs_py.processing.ports import BackOff


class Action(Enum):
    """What the processor of a partition does next."""

    RETRY = "retry"  # the same event again, after its back-off
    ISOLATE = "isolate"  # the events of a call that has hung, again, each alone; no attempt is used
    SKIP = "skip"  # skip the event and continue
    PARK = "park"  # put the event into the inbox, and continue with other sequences
    STOP = "stop"  # the partition has failed; tried again only after a growing pause
    HOLD = "hold"  # the partition has failed; tried again only when it is restarted
    WAIT = "wait"  # the store or the database is unavailable; no attempt is used
    LEAVE = "leave"  # another processor has the partition
    CLAIM = "claim"  # a checkpoint has failed; participants claim the partition again after a pause


def action_for(
    failure: Failure,
    *,
    exhausted: bool,
    on_exhausted: OnExhausted,
    on_undecodable: OnExhausted = OnExhausted.STOP,
) -> Action:
    """Decide what to do about an error.

    Args:
        failure: The error and where it arose.
        exhausted: Whether the event's attempts are exhausted.
        on_exhausted: The group's choice in that case.
        on_undecodable: The group's choice if the event cannot be decoded.

    Source:
        Error classification of OpenCQRS with the decisions K1-K4 and K6.
    """
    match failure.origin:
        case Origin.FENCED:
            return Action.LEAVE
        case Origin.OUTAGE:
            return Action.WAIT
        case Origin.CHECKPOINT:
            return Action.CLAIM
        case Origin.EVENT if failure.position is not None and not failure.untried:
            return _GIVING_UP[on_undecodable]
        case Origin.EVENT | Origin.FRAMEWORK:
            return Action.STOP
        case Origin.HANDLER:  # pragma: no branch there is no other origin
            return _after_handler(failure, exhausted=exhausted, on_exhausted=on_exhausted)


def _after_handler(failure: Failure, *, exhausted: bool, on_exhausted: OnExhausted) -> Action:
    if failure.permanent and on_exhausted is not OnExhausted.PARK:
        return Action.HOLD if failure.held else Action.STOP
    return _GIVING_UP[on_exhausted] if exhausted or failure.permanent else Action.RETRY


_GIVING_UP = {OnExhausted.SKIP: Action.SKIP, OnExhausted.STOP: Action.STOP, OnExhausted.PARK: Action.PARK}


_LONGEST = 1_000 * 365 * 86_400  # seconds, 1,000 years: as in the settings
_STEEPEST = 1e12  # factor from one wait to the next


@dataclass(frozen=True, slots=True)
class NoRetry(BackOff):
    """No further attempt after the first failure."""

    def waits(self) -> Iterator[float]:
        """Yield nothing."""
        return iter(())


@dataclass(frozen=True, slots=True)
class FixedBackOff(BackOff):
    """The same wait before each attempt.

    Attributes:
        interval: Wait in seconds, up to 1,000 years.
        max_attempts: Retries after the first attempt, 0 or more; ``None`` for no limit.

    Raises:
        ValueError: If a number is out of range; ``nan`` always is.
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

    Computed in whole milliseconds, truncated, like the original. The time limit is compared with the sum of the
    waits so far, including jitter, before the next is computed, so the sum may exceed it by one wait.

    Attributes:
        initial: First wait in seconds, up to 1,000 years.
        multiplier: Factor from one wait to the next, at least 1 and finite.
        maximum: Longest wait in seconds, up to 1,000 years.
        max_elapsed: Limit of the sum of waits in seconds, 0 or more; ``inf`` for none.
        max_attempts: Retries after the first attempt, 0 or more; ``None`` for no limit.
        jitter: Fraction of each wait, ``0..1``, of which chance subtracts a part. Waits at the maximum are spread as
            widely as others.
        draw: Source of numbers in ``0..1``, for tests; ``None`` for random numbers.

    Raises:
        ValueError: If a number is out of range; ``nan`` always is.

    Source:
        Facts of OpenCQRS section 5.4: Spring's exponential back-off. Jitter is ours.
    """

    initial: float = 2.0
    multiplier: float = 1.5
    maximum: float = 30.0
    max_elapsed: float = inf
    max_attempts: int | None = None
    jitter: float = 0.0
    draw: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        _check("initial", self.initial)
        _check("multiplier", self.multiplier, 1, _STEEPEST)
        _check("maximum", self.maximum)
        _check("max_elapsed", self.max_elapsed, most=inf)
        _check("jitter", self.jitter, most=1)
        _check_attempts(self.max_attempts)

    def of(self, what: str) -> ExponentialBackOff:
        """Return the back-off with jitter seeded by what is retried; one with its own ``draw`` keeps it."""
        if not self.jitter or self.draw is not None:
            return self
        return replace(self, draw=random.Random(what).random)  # noqa: S311 nothing secret

    def waits(self) -> Iterator[float]:
        """Yield the waits in seconds."""
        longest = round(self.maximum * 1000)
        wait = min(round(self.initial * 1000), longest)
        spent, draw = 0.0, self.draw or random.random
        for _ in count() if self.max_attempts is None else range(self.max_attempts):
            if spent >= self.max_elapsed * 1000:
                return
            made = wait * (1 - self.jitter * draw()) if self.jitter else wait
            spent += made
            yield made / 1000
            wait = int(min(wait * self.multiplier, longest))


def without_chance(back_off: BackOff) -> BackOff:
    """Return the back-off whose waits none of this one exceeds, however jitter shortens them."""
    if isinstance(back_off, ExponentialBackOff):
        return replace(back_off, jitter=0.0, max_elapsed=inf)  # waits that are not spread would reach that limit sooner
    return back_off


def waits_of(back_off: BackOff, what: str) -> Iterator[float]:
    """Yield the waits for one retried thing, such as an event of a group.

    Jitter is seeded by its name. So the waits are the same in each process and for each call, and
    ``max_elapsed`` counts the real waits.

    Raises:
        AssemblyError: OCQ-546, if a back-off of the project raises, or yields anything but a wait, such as ``nan``.
    """
    back_off = back_off.of(what) if isinstance(back_off, ExponentialBackOff) else back_off
    return back_off.waits() if type(back_off) in _OURS else _Checked(back_off)


_OURS = (ExponentialBackOff, FixedBackOff, NoRetry)


class _Checked(Iterator[float]):
    """The waits of a back-off of the project. An error does not end them, however often they are queried."""

    def __init__(self, back_off: BackOff) -> None:
        self._back_off = back_off
        self._waits: Iterator[float] | None = None
        self._error: AssemblyError | None = None

    @override
    def __next__(self) -> float:
        if self._error is not None:
            raise self._error
        try:
            self._waits = iter(self._back_off.waits()) if self._waits is None else self._waits
            wait = next(self._waits)
            _check("a wait", wait)
        except StopIteration:
            raise
        except Exception as error:
            what = f"the back-off {type(self._back_off).__qualname__} failed: {one_line(error)}"
            fix = "have waits() yield numbers of seconds, 0 or more, or return; then start again"
            self._error = AssemblyError("OCQ-546", what, "retry.back-off-ref", fix)
            raise self._error from error
        return wait


def wait_after(back_off: BackOff, retries: int, what: str) -> float | None:
    """Return the seconds to wait after the given number of waits; ``None`` if there are no more."""
    return next(islice(waits_of(back_off, what), retries, None), None)


def _check(name: str, value: object, least: float = 0, most: float = _LONGEST) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{name} must be a number, got {value!r}"
        raise ValueError(msg)  # noqa: TRY004 as for numbers that are out of range
    if not least <= value <= most:  # nan is neither
        limit = f"{least:g} or more" if most == inf else f"{least:g} to {most:,.12g}"
        msg = f"{name} must be {limit}, got {value}"
        raise ValueError(msg)


def _check_attempts(value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        msg = f"max_attempts must be a whole number, 0 or more, or None for no limit, got {value}"
        raise ValueError(msg)

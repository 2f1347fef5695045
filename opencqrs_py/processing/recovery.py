"""Recovery: how an error is classified, what is done about it, and the waits before further attempts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count, islice, repeat
from math import inf

from typing_extensions import override

from opencqrs_py.errors import (
    AssemblyError,
    DatabaseFileError,
    EventFormatError,
    FencedError,
    NonTransientError,
    OrderingError,
    ProjectCodeError,
    UnavailableError,
)
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.event import Event
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.processing.exceptions import (
    failure_of,
    label_text,
    leaves,
    one_line,
    own_frames,
    placed_error_text,
    raise_interrupt,
)
from opencqrs_py.processing.ports import BackOff, EventSource, ProgressTracker

_OWN_CONNECTION = (
    "  fix:   if the handler opens its own connection, have it use the one that it is given: its own may wait for the "
    "transaction around the handler; if the database ends transactions that are idle for long, as "
    "idle_in_transaction_session_timeout says, have it wait for as long as handlers take"
)
_DECISIVE = (Origin.FENCED, Origin.OUTAGE, Origin.FRAMEWORK, Origin.CHECKPOINT, Origin.EVENT, Origin.HANDLER)


class Diagnosis:
    """Determines where errors of a partition arose, and what is reported about them.

    The tracker and the source know which errors mean that they are unavailable; ``places`` returns the handlers of an
    event.
    """

    def __init__(self, tracker: ProgressTracker, source: EventSource, places: Callable[[Event], Sequence[str]]) -> None:
        self._tracker = tracker
        self._source = source
        self._places = places

    def failure(self, error: BaseException, otherwise: Origin, in_hand: Event | None = None) -> Failure:
        """Return an error as a failure, which arose at ``otherwise`` unless the error itself shows its origin."""
        origin = self._origin(error, otherwise)
        return self._described(error, origin, None if origin in (Origin.OUTAGE, Origin.FENCED) else in_hand)

    def failure_to_read(self, error: BaseException) -> Failure:
        """Return the failure to read an event, with file and line, if any."""
        return replace(self.failure(error, Origin.FRAMEWORK), message=placed_error_text(error).message)

    def failure_of_handler(self, error: BaseException, in_hand: Event) -> Failure:
        """Return the failure for an error that was raised while handlers were called.

        It cannot mean a lost claim, whatever its class. An apparent outage uses no attempt, but has a place.
        """
        origin = self._origin(error, Origin.HANDLER)
        failure = self._described(error, Origin.HANDLER if origin is Origin.FENCED else origin, in_hand)
        if origin is not Origin.OUTAGE:
            return failure
        advice = failure.advice if failure.code else _OWN_CONNECTION
        return replace(failure, position=None, advice=advice)

    def _described(self, error: BaseException, origin: Origin, in_hand: Event | None) -> Failure:
        raised = error.__cause__ if type(error) is OrderingError and error.__cause__ is not None else error
        permanent = any(issubclass(type(one), NonTransientError | SystemExit) for one in leaves(raised))
        failure = failure_of(error, origin, permanent=permanent, traceback=self._frames(error, origin, in_hand))
        if in_hand is None:
            return failure
        return replace(
            failure,
            position=in_hand.position,
            event=label_text(lambda: in_hand.label),
            event_id=_id_of(in_hand),
            event_type=in_hand.type,
        )

    def _frames(self, error: BaseException, origin: Origin, event: Event | None) -> str:
        """Return the lines of the user's code that raised an error; without a handler among them, the handlers."""
        frames = own_frames(error) if origin in (Origin.HANDLER, Origin.FRAMEWORK) else ""
        if event is None or origin not in (Origin.HANDLER, Origin.OUTAGE) or type(error) is OrderingError:
            return frames
        places = self._places(event)
        if any(place.partition(":")[0] in frames for place in places):
            return frames
        return "\n".join(["  in handler " + place for place in places] + ([frames] if frames else []))

    def _origin(self, error: BaseException, otherwise: Origin) -> Origin:
        """Return where an error arose; for a group, where the most decisive of its exceptions did."""
        return min((self._origin_of(one, otherwise) for one in leaves(error)), key=_DECISIVE.index)

    def _origin_of(self, error: BaseException, otherwise: Origin) -> Origin:
        kind = type(error)  # not isinstance, which reads the class from the error itself
        if issubclass(kind, FencedError):
            return Origin.FENCED
        wrapped = issubclass(kind, EventFormatError | OrderingError | ProjectCodeError)
        cause = error.__cause__ if wrapped else None  # what an upcaster, a provider or a resolver raised
        if any(self._is_outage(each) for each in (error, cause) if each is not None):
            return Origin.OUTAGE
        # What the project has besides handlers (K3), or the database's file was replaced
        if issubclass(kind, AssemblyError | ProjectCodeError | DatabaseFileError):
            return Origin.FRAMEWORK
        return Origin.EVENT if issubclass(kind, EventFormatError) else otherwise

    def _is_outage(self, error: BaseException) -> bool:
        if issubclass(type(error), UnavailableError):
            return True
        try:
            return self._tracker.is_outage(error) or self._source.is_outage(error)
        except BaseException as failed:  # an error that cannot be inspected is not a store's
            raise_interrupt(failed)
            return False


def _id_of(event: Event) -> str:
    try:
        return event.id
    except Exception:  # an unavailable store must not hide what is reported about the event
        return ""


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
        case Origin.EVENT if failure.position is not None:
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

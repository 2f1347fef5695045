"""Back-offs: the waits between attempts, as settings or a provider describe them."""

from __future__ import annotations

from collections.abc import Callable

from opencqrs_py.assembly.conditions import Decision
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.assembly.replacements import BACK_OFF, provided
from opencqrs_py.config import (
    EffectiveGroup,
    JobRetrySettings,
    RetryPolicy,
    RetrySettings,
)
from opencqrs_py.config.groups import ParkRetrySettings, ScheduleRetrySettings
from opencqrs_py.processing.inbox.parked_entries import ParkingRule
from opencqrs_py.processing.ports import (
    BackOff,
)
from opencqrs_py.processing.recovery import ExponentialBackOff, FixedBackOff, NoRetry


def back_off_for(settings: EffectiveGroup, choice: Decision, injector: ContainerInjector) -> BackOff:
    """Return the waits between an event's attempts."""
    back_off: BackOff | None = provided(choice, BACK_OFF, injector)
    return back_off_of(settings.retry) if back_off is None else back_off


def back_off_of(rule: RetrySettings | JobRetrySettings) -> BackOff:
    """Return the waits that settings describe."""
    match rule.policy:
        case RetryPolicy.NONE:
            return NoRetry()
        case RetryPolicy.FIXED:
            return FixedBackOff(rule.initial_interval, rule.max_attempts)
        case _:
            return ExponentialBackOff(
                initial=rule.initial_interval,
                multiplier=rule.multiplier,
                maximum=rule.max_interval,
                max_elapsed=rule.max_elapsed_time,
                max_attempts=rule.max_attempts,
                jitter=rule.jitter,
            )


def parking_of(settings: EffectiveGroup, retry: Callable[[], BackOff]) -> ParkingRule:
    """Return how a group parks events, and handles those that wait, even if it parks none any more."""
    rule = settings.park.retry
    return ParkingRule(
        exponential(rule, rule.max_attempts),
        settings.park.max_sequences,
        settings.park.max_sequence_size,
        retry=retry(),
        on_exhausted=settings.retry.on_exhausted,
        on_undecodable=settings.retry.on_undecodable,
    )


def exponential(rule: ParkRetrySettings | ScheduleRetrySettings, further_attempts: int | None) -> ExponentialBackOff:
    """Return the waits before the attempts of events that wait in the inbox."""
    return ExponentialBackOff(
        initial=rule.initial_interval,
        multiplier=rule.multiplier,
        maximum=rule.max_interval,
        max_attempts=further_attempts,
    )

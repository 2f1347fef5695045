"""From the names in settings to the parts they stand for."""

from __future__ import annotations

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.adapters.sql import Database, DatabaseTransactions, SqlProgressTracker
from opencqrs_py.assembly.conditions import decide_tracking
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.config import EffectiveGroup, Resolution, RetryPolicy, Tracking
from opencqrs_py.processing.backoff import ExponentialBackOff, FixedBackOff, NoRetry
from opencqrs_py.processing.ports import BackOff, ProgressTracker, SequenceResolver
from opencqrs_py.processing.sequencing import NoSequence, PerSubject, PerSubjectLevel

__all__ = ["back_off_for", "sequence_resolver_for", "tracker_for"]

_RESOLVERS: dict[Resolution, SequenceResolver] = {
    Resolution.NO_SEQUENCE: NoSequence(),
    Resolution.PER_SUBJECT: PerSubject(),
    Resolution.PER_SECOND_LEVEL_SUBJECT: PerSubjectLevel(2),
}


def tracker_for(settings: EffectiveGroup, database: Database, injector: ContainerInjector) -> ProgressTracker:
    """Return the group's progress tracker."""
    decision = decide_tracking(settings)
    if settings.progress.tracker_ref is not None:
        tracker: ProgressTracker = injector.named(decision.choice, "progress.tracker-ref")
        return tracker
    if decision.choice == Tracking.IN_MEMORY.value:
        return InMemoryProgressTracker(DatabaseTransactions(database))
    return SqlProgressTracker(database)


def sequence_resolver_for(settings: EffectiveGroup, injector: ContainerInjector) -> SequenceResolver:
    """Return the group's sequence resolver."""
    if settings.sequence.resolver_ref is not None:
        resolver: SequenceResolver = injector.named(settings.sequence.resolver_ref, "sequence.resolver-ref")
        return resolver
    return _RESOLVERS[settings.sequence.resolution or Resolution.PER_SECOND_LEVEL_SUBJECT]


def back_off_for(settings: EffectiveGroup) -> BackOff:
    """Return the waits between an event's attempts."""
    rule = settings.retry
    match rule.policy:
        case RetryPolicy.NONE:
            return NoRetry()
        case RetryPolicy.FIXED:
            return FixedBackOff(rule.initial_interval, rule.max_attempts)
        case RetryPolicy.EXPONENTIAL_BACKOFF:
            return ExponentialBackOff(
                initial=rule.initial_interval,
                multiplier=rule.multiplier,
                maximum=rule.max_interval,
                max_elapsed=rule.max_elapsed_time,
                max_attempts=rule.max_attempts,
                jitter=rule.jitter,
            )

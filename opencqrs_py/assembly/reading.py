"""How a group reads events: their classes, the envelope, upcasters, and what is handled in order."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from opencqrs_py.assembly.back_offs import exponential
from opencqrs_py.assembly.discovery.discovered import Discovered, GroupFunction
from opencqrs_py.assembly.injection import check_argument
from opencqrs_py.config import Configuration, DataFormat, EffectiveGroup, Resolution
from opencqrs_py.config.choices import Interval, Mode
from opencqrs_py.config.groups import ScheduleSettings
from opencqrs_py.errors import AssemblyError
from opencqrs_py.model.choices import BatchOrder
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.handler import event_type_of
from opencqrs_py.model.naming import in_one_line
from opencqrs_py.processing.definitions import place_of
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.filters import EventFilter
from opencqrs_py.processing.inbox.batches import OrderingKey, ScheduleRule
from opencqrs_py.processing.inbox.schedules import CronSchedule, FixedDelay, FixedRate, Schedule
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.ports import SequenceResolver
from opencqrs_py.processing.reading import Reading, Upcasters
from opencqrs_py.processing.sequence_resolvers import (
    NoSequence,
    PerDataField,
    PerMetadataKey,
    PerSubject,
    PerSubjectLevel,
)
from opencqrs_py.processing.sequencing import Sequencing, SequencingByEvent, sequencing_for

_SIMPLE: Mapping[Resolution | None, SequenceResolver] = {
    None: PerSubjectLevel(2),
    Resolution.NO_SEQUENCE: NoSequence(),
    Resolution.PER_SUBJECT: PerSubject(),
    Resolution.PER_SECOND_LEVEL_SUBJECT: PerSubjectLevel(2),
}


@dataclass(frozen=True, slots=True)
class EventsRule:
    """The settings of stored events. Sent to Spark's workers.

    Attributes:
        enveloped: Whether data come in OpenCQRS' envelope.
        types: Pairs of event type and class, written ``module:Class``.
        type_resolver_ref: Provider of a function from a type to its class; ``None`` for none.
        type_resolver_place: The setting that names it, as messages have it, with its origin.
    """

    enveloped: bool = False
    types: tuple[tuple[str, str], ...] = ()
    type_resolver_ref: str | None = None
    type_resolver_place: str = field(default="events.type-resolver-ref", compare=False)

    @property
    def format(self) -> DataFormat:
        """The layout of the data."""
        return DataFormat.ENVELOPE if self.enveloped else DataFormat.PLAIN


PLAIN = EventsRule()
"""What is so without any setting."""


def events_rule(configuration: Configuration) -> EventsRule:
    """Return the settings of stored events."""
    said, resolver = configuration.settings.events, "events.type-resolver-ref"
    place = f"{resolver} ({configuration.origin(resolver)})"
    return EventsRule(said.format is DataFormat.ENVELOPE, tuple(said.types.items()), said.type_resolver_ref, place)


def event_types_for(rule: EventsRule, discovered: Discovered) -> EventTypes:
    """Return the event classes: those that ``@event_type`` marks, those of ``events.types``, those of a resolver.

    Raises:
        AssemblyError: OCQ-516, if a class cannot be imported; OCQ-502, if there is no such provider, or what it makes
            cannot be called with a type.
    """
    resolver: Callable[[str], type | None] | None = None
    if rule.type_resolver_ref is not None:
        resolver = discovered.injector.function(rule.type_resolver_ref, rule.type_resolver_place)
        check_argument(resolver, "an event type", rule.type_resolver_ref, rule.type_resolver_place)
    mapped = {name: _imported(name, path) for name, path in rule.types}
    return EventTypes(discovered.event_classes, mapped, resolver)


def mapped_types_of(rule: EventsRule, dispatcher: Dispatcher) -> str:
    """Return the entries of ``events.types`` by which a group's handlers get events, as YAML has them, in one line.

    Classes are named without their module, so that one may be moved.
    """
    taken = sorted(each for each in rule.types if dispatcher.takes(each[0], _imported(*each)))
    return in_one_line("{" + ", ".join(f"{name}: {path.partition(':')[2]}" for name, path in taken) + "}")


def reading_for(rule: EventsRule, discovered: Discovered) -> Reading:
    """Return how stored events are read."""
    types: set[str] = set()
    if rule.type_resolver_ref is None:  # else any type may have a class
        types.update(name for one in discovered.declared for name in (*one.mark.types, *one.mark.class_types))
        types.update(filter(None, map(event_type_of, discovered.event_classes)), dict(rule.types))
    return Reading(Upcasters(discovered.upcasters, discovered.injector, types), enveloped=rule.enveloped)


def interceptors_for(settings: EffectiveGroup, discovered: Discovered) -> Interceptors:
    """Return what surrounds the events and handlers of a group."""
    around = [one for one in discovered.interceptors if one.mark.group in ("", settings.name)]
    return Interceptors(around, discovered.injector)


def sequencing_of(
    settings: EffectiveGroup, rule: EventsRule, discovered: Discovered, types: EventTypes, reading: Reading
) -> Sequencing:
    """Return what the group handles in order.

    In a scheduled group its ``@batch_key`` function replaces the settings.

    Raises:
        AssemblyError: OCQ-610, if a group that is not scheduled has a batch key or a filter, or a group two batch keys;
            OCQ-515, if ``sequence.resolution`` lacks the setting that it needs; OCQ-502, if there is no
            provider of the name in ``sequence.resolver-ref``, or what it makes cannot be called with an event.
    """
    if (key := batch_key_of(settings, discovered)) is not None:
        return sequencing_for(key.call, types, reading, key.place)
    if (reference := settings.sequence.resolver_ref) is not None:
        return _sequencing_by(reference, settings, discovered, types, reading)
    match settings.sequence.resolution:
        case Resolution.PER_LEVEL_SUBJECT:
            return SequencingByEvent(PerSubjectLevel(_needed(settings, "level")))
        case Resolution.PER_DATA_FIELD:
            by_field = PerDataField(tuple(_needed(settings, "data_field").split(".")))
            return SequencingByEvent(by_field, opened=reading.unwrapped if rule.enveloped else None)
        case Resolution.PER_METADATA_KEY:
            by_key = PerMetadataKey(_needed(settings, "metadata_key"))
            return SequencingByEvent(by_key, opened=reading.unwrapped if rule.enveloped else None)
        case resolution:
            return SequencingByEvent(_SIMPLE[resolution])


def _sequencing_by(
    reference: str, settings: EffectiveGroup, discovered: Discovered, types: EventTypes, reading: Reading
) -> Sequencing:
    """Return what is in order by the function that a provider makes."""
    setting = settings.place_of("sequence", "resolver_ref")
    resolver = discovered.injector.function(reference, setting)
    sequencing = sequencing_for(resolver, types, reading, f"provider {reference}")
    if isinstance(sequencing, SequencingByEvent):  # else its annotations say what it takes
        check_argument(resolver, "an event", reference, setting)
    return sequencing


def batch_key_of(settings: EffectiveGroup, discovered: Discovered) -> GroupFunction | None:
    """Return the ``@batch_key`` function of a scheduled group, ``None`` if it has none.

    Raises:
        AssemblyError: OCQ-610, if the group has two, or is not scheduled and has one, or a filter.
    """
    keys = discovered.functions_of(Declaration.BATCH_KEY, settings.name)
    filters = discovered.functions_of(Declaration.INBOX_FILTER, settings.name)
    whose = f"group '{settings.name}'"
    if settings.processing.mode is not Mode.SCHEDULED and (keys or filters):
        decorator = "@batch_key" if keys else "@inbox_filter"
        what = f"{whose} has a function with {decorator}, and is not scheduled"
        fix = f"set event-handling.groups[{settings.name}].processing.mode: scheduled, or remove {decorator}"
        raise AssemblyError("OCQ-610", what, (keys or filters)[0].place, fix)
    if len(keys) > 1:
        places = " and ".join(one.place for one in keys)
        raise AssemblyError("OCQ-610", f"{whose} has {len(keys)} functions with @batch_key", places, "keep one")
    return keys[0] if keys else None


def schedule_rule_of(
    settings: EffectiveGroup,
    discovered: Discovered,
    types: EventTypes,
    reading: Reading,
    handles: Callable[[str], bool],
) -> ScheduleRule | None:
    """Return how a scheduled group handles its events, ``None`` for any other group.

    Its filters decide by the events, as read, whose type ``handles`` accepts.

    Raises:
        AssemblyError: OCQ-502, if there is no provider of the name in ``batch.ordering-ref``, or what it makes cannot
            be called with an event.
        HandlerSignatureError: OCQ-201 to OCQ-205, if a filter cannot be called as it is written.
    """
    if settings.processing.mode is not Mode.SCHEDULED:
        return None
    schedule, batch, retry = settings.schedule, settings.batch, settings.schedule.retry
    key: OrderingKey | None = None
    if batch.ordering_ref is not None:
        setting = settings.place_of("batch", "ordering_ref")
        function = discovered.injector.function(batch.ordering_ref, setting)
        check_argument(function, "an event", batch.ordering_ref, setting)
        key = OrderingKey(function, f"batch.ordering-ref '{batch.ordering_ref}'", place_of(function))
    further_attempts = None if retry.max_attempts is None else retry.max_attempts - 1
    filters = discovered.functions_of(Declaration.INBOX_FILTER, settings.name)
    return ScheduleRule(
        schedule=_schedule(schedule),
        mode=batch.mode,
        size=batch.size,
        order=BatchOrder.INSERTED if batch.ordering is None else batch.ordering,
        key=key,
        fetch_size=batch.fetch_size,
        grace_seconds=schedule.error_grace_period,
        expires_seconds=schedule.expires_after,
        back_off=exponential(retry, further_attempts),
        on_exhausted=schedule.on_exhausted,
        filters=tuple(EventFilter(one.call, types, reading, one.place, handles) for one in filters),
    )


def _schedule(settings: ScheduleSettings) -> Schedule:
    if settings.cron is not None:
        return CronSchedule(settings.cron, ZoneInfo(settings.time_zone))
    kind = FixedRate if settings.kind is Interval.FIXED_RATE else FixedDelay
    return kind(settings.initial_delay, settings.interval or 0.0)


def _needed(settings: EffectiveGroup, leaf: str) -> Any:
    value = getattr(settings.sequence, leaf)
    if value is None:
        name = f"sequence.{leaf.replace('_', '-')}"
        what = f"group '{settings.name}' has sequence.resolution: {settings.sequence.resolution}, but {name} is not set"
        raise AssemblyError("OCQ-515", what, settings.place_of("sequence", "resolution"), f"set {name}")
    return value


def _imported(event_type: str, path: str) -> type:
    module, _, name = path.partition(":")
    where, fix = f"events.types: {event_type}", "write module:Class, such as library.events:BookLent"
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # an import runs the user's module
        what = f"the event class '{path}' cannot be found ({type(error).__name__}: {error})"
        raise AssemblyError("OCQ-516", what, where, fix) from error
    if not isinstance(found, type):
        raise AssemblyError("OCQ-516", f"'{path}' is not a class", where, fix)
    return found

"""Settings of a group that exclude each other, or one of its handlers."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from opencqrs_py.assembly.conditions import Decision
from opencqrs_py.config import EffectiveGroup, Engine, OnExhausted, Tracking
from opencqrs_py.config.choices import Mode
from opencqrs_py.errors import AssemblyError


def parks(settings: EffectiveGroup) -> bool:
    """Return whether events of the group may be parked."""
    return OnExhausted.PARK in (settings.retry.on_exhausted, settings.retry.on_undecodable)


def waits(settings: EffectiveGroup) -> bool:
    """Return whether events of the group may wait in the inbox: it parks them, or is scheduled."""
    return parks(settings) or settings.processing.mode is Mode.SCHEDULED


def unfit_for_parking(settings: EffectiveGroup, tracking: Decision) -> Iterator[AssemblyError]:
    """Yield an error, OCQ-604, if events are to wait and the progress is where Spark workers do not see it."""
    in_memory = tracking.choice == Tracking.IN_MEMORY.value and not tracking.provider
    if waits(settings) and in_memory and settings.processing.engine is Engine.SPARK:
        yield no_inbox(settings, "the progress is in memory, which Spark workers do not share")


def no_inbox(settings: EffectiveGroup, reason: str) -> AssemblyError:
    """Return the error, OCQ-604, that events of a group are to wait, but there is no inbox for them."""
    scheduled = settings.processing.mode is Mode.SCHEDULED
    what = f"events are to {'wait' if scheduled else 'be parked'} in an inbox beside the progress, and {reason}"
    otherwise = (
        "processing.mode: streaming" if scheduled else "retry.on-exhausted and retry.on-undecodable: skip or stop"
    )
    return AssemblyError("OCQ-604", what, f"group {settings.name}", f"set progress.tracking: sql, or {otherwise}")


def unfit_for_frames(settings: EffectiveGroup, place: str) -> Iterator[AssemblyError]:
    """Yield an error, OCQ-541, for each setting with which a group with a ``@dataframe_handler`` cannot be run."""
    whose = f"group '{settings.name}' has a @dataframe_handler"
    path = f"event-handling.groups[{settings.name}]"
    if settings.processing.engine is not Engine.SPARK:
        what = f"{whose}, and its engine is {settings.processing.engine.value}"
        fix = f"set {path}.processing.engine: spark, or take a pyarrow.Table in an @event_handling function"
        yield AssemblyError("OCQ-541", what, place, fix)
    if settings.life_cycle.partitions != 1:
        what = f"{whose}, and has {settings.life_cycle.partitions} partitions"
        yield AssemblyError("OCQ-541", what, place, f"set {path}.life-cycle.partitions: 1; Spark splits each range")
    if parks(settings):
        what = f"{whose}, and events are parked: a range has no single sequence"
        fix = f"set {path}.retry.on-exhausted and retry.on-undecodable: skip or stop"
        yield AssemblyError("OCQ-541", what, place, fix)
    if settings.processing.mode is Mode.SCHEDULED:
        what = f"{whose}, and is scheduled: a range has no batches"
        yield AssemblyError("OCQ-541", what, place, f"set {path}.processing.mode: streaming")
    if settings.processing.handler_timeout != inf:
        what = f"{whose}, and processing.handler-timeout is set: a call on the driver cannot be abandoned"
        yield AssemblyError("OCQ-541", what, place, f"set {path}.processing.handler-timeout: infinite")

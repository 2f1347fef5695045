"""Events that start jobs: for each such job a scheduled group that records a run for every event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from opencqrs_py.assembly.discovery.discovered import DeclaredHandler, Discovered
from opencqrs_py.config import Configuration, EffectiveGroup, Engine
from opencqrs_py.config.choices import Mode
from opencqrs_py.errors import EventFormatError
from opencqrs_py.jobs.binding import GROUP_PREFIX
from opencqrs_py.jobs.ports import JobStore
from opencqrs_py.jobs.runs import JobRun
from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import Handler, HandlerMark
from opencqrs_py.model.job import Job, JobId, Trigger
from opencqrs_py.model.naming import canonical
from opencqrs_py.processing.after_commit import AfterCommit

_TICK_SECONDS = 1.0  # between two checks of such a group's inbox, unless settings say otherwise
_IDENTITY = 8  # digits that identify an event among others at its position
_OF_DATA = "data."


class Bell:
    """Wakes what runs jobs in this process, when a run was recorded."""

    def __init__(self) -> None:
        self.ring: Callable[[], None] = _do_nothing


def _do_nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class EventTrigger:
    """The settings of the events that start a job.

    Attributes:
        job: Canonical name of the job; empty for all jobs without own settings.
        types: Patterns of their types; empty: no event starts it.
        ids: Where the id comes from: ``subject``, ``id``, or ``data.`` with a path; ``None``: the run is for all.
    """

    job: str
    types: tuple[str, ...]
    ids: str | None


def event_triggers(configuration: Configuration) -> tuple[EventTrigger, ...]:
    """Return the settings of the events that start jobs; empty if none does."""
    rules = {canonical(name): configuration.job(name).triggers.events for name in configuration.job_names}
    rules[""] = configuration.settings.jobs.standard.triggers.events
    found = tuple(EventTrigger(name, tuple(rule.types), rule.ids) for name, rule in rules.items())
    return found if any(each.types for each in found) else ()


@dataclass(frozen=True, slots=True)
class JobEvents:
    """Which events start a job.

    Attributes:
        job: Name of the job.
        types: Patterns of their types.
        ids: Where the id comes from: ``subject``, ``id``, or ``data.`` with a path; ``None``: the run is for all.
        place: ``file:line (name)`` of the job.
    """

    job: str
    types: tuple[str, ...]
    ids: str | None
    place: str

    @property
    def group(self) -> str:
        """The group that reads them."""
        return f"{GROUP_PREFIX}{self.job}"


def events_of(jobs: Sequence[Job], triggers: Sequence[EventTrigger]) -> tuple[JobEvents, ...]:
    """Return which events start which jobs."""
    rules = {each.job: each for each in triggers}
    found = ((job, rules.get(canonical(job.name), rules.get(""))) for job in jobs)
    return tuple(
        JobEvents(job.name, rule.types, rule.ids, job.place) for job, rule in found if rule is not None and rule.types
    )


def group_of(events: JobEvents, settings: EffectiveGroup, *, enabled: bool) -> EffectiveGroup:
    """Return the settings of the group that reads the events of a job: what differs from those of other groups.

    It is scheduled, runs on threads, and begins at the head of the log; settings of this very group take precedence.
    """
    mine = settings.set_leaves
    fetch, schedule, life_cycle = settings.fetch, settings.schedule, settings.life_cycle
    if ("fetch", "initial_position") not in mine:
        fetch = replace(fetch, initial_position="head")
    if ("schedule", "initial_delay") not in mine:
        schedule = replace(schedule, initial_delay=0.0)
    if ("schedule", "interval") not in mine and schedule.cron is None:
        schedule = replace(schedule, interval=_TICK_SECONDS)
    if not enabled:
        life_cycle = replace(life_cycle, auto_start=False)
    processing = replace(settings.processing, mode=Mode.SCHEDULED, engine=Engine.THREAD)
    return replace(
        settings, name=events.group, fetch=fetch, schedule=schedule, life_cycle=life_cycle, processing=processing
    )


def with_job_events(
    discovered: Discovered,
    triggers: Sequence[EventTrigger],
    store: Callable[[], JobStore],
    connection: type | None,
    bell: Bell,
) -> Discovered:
    """Return what was discovered, with a handler for each group that reads events for a job."""
    handlers = [
        Handler(HandlerMark(one.group, one.types), _recorder(one, store, connection, bell), one.place)
        for one in events_of(discovered.jobs, triggers)
    ]
    return replace(discovered, declared=(*discovered.declared, *map(DeclaredHandler.of, handlers)))


def _recorder(
    events: JobEvents, store: Callable[[], JobStore], connection: type | None, bell: Bell
) -> Callable[..., None]:
    """Return a handler that records a run for an event, in the transaction in which the event leaves the inbox."""
    from opencqrs_py.adapters.sql import unit_of  # noqa: PLC0415 loads SQLAlchemy

    def record(event: Event, after_commit: AfterCommit, context: ProcessingContext, transaction: Any = None) -> None:
        now = datetime.now(UTC)
        # Not by its position alone: another event has that in another log, after a reset to its beginning.
        identity = sha256(f"{len(event.source)}:{event.source}{event.id}".encode()).hexdigest()[:_IDENTITY]
        id_ = f"{events.job}@event:{event.position}-{identity}"
        run = JobRun(id_, events.job, Trigger.EVENT, now, ids=_ids(events, event))  # due at once, by the store's clock
        unit, times = unit_of(transaction) if transaction is not None else None, 1
        while not store().request(run, unit) and context.replaying:  # its run of before the reset is still listed
            times += 1
            run = replace(run, id=f"{id_}-{times}")
        after_commit(bell.ring)

    hints: dict[str, Any] = {"event": Event, "after_commit": AfterCommit, "context": ProcessingContext, "return": None}
    record.__annotations__ = hints if connection is None else {**hints, "transaction": connection}
    return record


def _ids(events: JobEvents, event: Event) -> tuple[JobId, ...] | None:
    match events.ids:
        case None:
            return None
        case "subject":
            return (event.subject,)
        case "id":
            return (event.id,)
        case path:
            return (_of_data(events, event, path.removeprefix(_OF_DATA)),)


def _of_data(events: JobEvents, event: Event, path: str) -> JobId:
    value: Any = event.data
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | str):
        what = f"{event.label} starts job '{events.job}', and its data have no text or whole number at {path}"
        fix = f"correct jobs.{events.job}.triggers.events.ids, or name types whose events have that field"
        raise EventFormatError("OCQ-662", what, events.place, fix)
    return value

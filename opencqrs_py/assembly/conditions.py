"""Conditions: what is chosen where settings leave a choice, each with its candidates and its reason.

Providers of the project's containers can replace a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from opencqrs_py.config import Controller, EffectiveGroup, Engine, OnExhausted, Tracking
from opencqrs_py.config.choices import Mode
from opencqrs_py.errors import AssemblyError, AssemblyErrors, ExplainedError
from opencqrs_py.model.naming import listed
from opencqrs_py.processing.notices import Observer
from opencqrs_py.processing.ports import BackOff, Clock, EventSource, LockRegistry, ProgressTracker

if TYPE_CHECKING:
    from opencqrs_py.assembly.injection import ContainerInjector

ELECTION = Controller.LEADER_ELECTION.value
CONTROLLER, REGISTRATION = "life-cycle.controller", "life-cycle.controller-registration"


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice and why it was made.

    Attributes:
        group: Processing group; empty when the choice is a job's or the whole application's.
        subject: What was chosen, as a setting's path.
        choice: The result; empty if it could not be decided.
        reason: Why.
        candidates: What is configured or registered that could have been chosen.
        setting: The setting that decided it; empty if the available parts did.
        error: Why it could not be decided; ``None`` also if another decision prevents it.
        provider: Name of the provider that was chosen; empty when it is none.
        job: Name of the job; empty when the choice is not about one.
    """

    group: str
    subject: str
    choice: str
    reason: str
    candidates: tuple[str, ...] = ()
    setting: str = ""
    error: ExplainedError | None = None
    provider: str = ""
    job: str = ""

    def __str__(self) -> str:
        choice = self.choice or "not decided"
        whose = f"job {self.job}" if self.job else self.group or "application"
        return f"{whose}: {self.subject} = {choice}: {self.reason}"


def undecided(group: str, subject: str, error: ExplainedError, candidates: tuple[str, ...] = ()) -> Decision:
    """Return the decision that could not be made because of ``error``."""
    return Decision(group, subject, "", error.what, candidates, error=error)


def ignored_variables(names: tuple[str, ...]) -> list[Decision]:
    """Return the decision to ignore environment variables that Kubernetes sets; none if there are none."""
    reason = "Kubernetes sets them for a Service"
    return [Decision("", "environment variables", f"{len(names)} ignored", reason, names)] if names else []


def decide_controller(settings: EffectiveGroup, injector: ContainerInjector, tracking: Decision) -> Decision:
    """Decide what starts and stops a group.

    The injector knows the providers of lock registries, too. Leases are stored in the progress database, if
    ``tracking`` says that there is one.

    Source:
        OpenCQRS life-cycle inference; decisions K10 (a lock registry that is named is used, an ambiguous one is an
        error) and K11.
    """
    name, path, rule = settings.name, CONTROLLER, settings.life_cycle
    registries = injector.makers(LockRegistry)
    candidates = tuple(f"provider {each}" for each in registries)
    if (reference := rule.controller_registration) is not None:
        choice = f"provider {reference}"
        decision = Decision(name, path, choice, "named", candidates, REGISTRATION, provider=reference)
        return checked(decision, reference, injector)
    if rule.controller is Controller.APPLICATION_CONTEXT:
        return _context(name, registries, candidates)
    if (reference := rule.lock_registry) is not None:
        setting, reason = "life-cycle.lock-registry", f"lock registry {reference} is named"
        decision = Decision(name, path, ELECTION, reason, candidates, setting, provider=reference)
        return checked(decision, reference, injector, LockRegistry)
    return _by_candidates(settings, registries, candidates, tracking)


def _context(group: str, registries: Sequence[str], candidates: tuple[str, ...]) -> Decision:
    """Decide on the application context, which wants all locks of the only registry, if there is exactly one."""
    decision = Decision(group, CONTROLLER, Controller.APPLICATION_CONTEXT.value, "set", candidates, CONTROLLER)
    if len(registries) != 1:
        return decision
    reason = f"set, and exactly one lock registry is registered, {registries[0]}"
    return replace(decision, reason=reason, provider=registries[0])


def _by_candidates(
    settings: EffectiveGroup, registries: Sequence[str], candidates: tuple[str, ...], tracking: Decision
) -> Decision:
    """Decide on the controller where neither a provider nor the application context is configured."""
    name, path, wanted = settings.name, CONTROLLER, settings.life_cycle.controller
    setting = path if wanted is not None else ""
    if len(registries) > 1:
        return undecided(name, path, _several_registries(name, registries), candidates)
    if registries:
        reason = f"{'set, and ' if setting else ''}exactly one lock registry is registered, {registries[0]}"
        return Decision(name, path, ELECTION, reason, candidates, setting, provider=registries[0])
    if tracking.choice == Tracking.SQL.value and not tracking.provider:
        reason = f"{'set, and ' if setting else ''}leases are stored in the progress database"
        return Decision(name, path, ELECTION, reason, candidates, setting)
    if not tracking.choice:
        return Decision(name, path, "", f"{tracking.subject} is not decided")
    if wanted is not None:
        return undecided(name, path, _no_leases(name))
    return Decision(name, path, Controller.APPLICATION_CONTEXT.value, "leases need progress in a database")


def checked(decision: Decision, name: str, injector: ContainerInjector, wanted: type | None = None) -> Decision:
    """Return the decision for the provider ``name``, or the error that it cannot be used."""
    try:
        injector.check(name, decision.setting, wanted)
    except ExplainedError as error:
        return replace(decision, choice="", reason=error.what, error=error)
    return decision


def _several_registries(group: str, registries: Sequence[str]) -> AssemblyError:
    what = f"{len(registries)} lock registries are registered and none is chosen: {listed(registries)}"
    fix = "name one with life-cycle.lock-registry, or set life-cycle.controller: application_context"
    return AssemblyError("OCQ-523", what, f"group {group}", fix)


def _no_leases(group: str) -> AssemblyError:
    what = "life-cycle.controller is leader_election, but leases need progress in a database"
    fix = "set progress.tracking: sql, or life-cycle.controller: application_context"
    return AssemblyError("OCQ-505", what, f"group {group}", fix)


def decide_batch(
    settings: EffectiveGroup, *, transactional: bool, size: int, in_tables: bool = False, in_frames: bool = False
) -> Decision:
    """Decide how many events share a transaction, and why."""
    path = "processing.batch-size"
    if settings.processing.batch_size is not None:
        return Decision(settings.name, path, str(size), "set", setting=path)
    if in_frames:
        return Decision(settings.name, path, str(size), "the handler takes data frames of Spark: positions of a range")
    if in_tables:
        return Decision(settings.name, path, str(size), "every handler takes a table, and so a chunk at a time")
    if transactional:
        return Decision(settings.name, path, str(size), "every handler asks for the progress transaction")
    if size > 1:
        reason = "every handler asks for the progress transaction or takes lists, and so a chunk at a time"
        return Decision(settings.name, path, str(size), reason)
    reason = "a handler works outside the progress transaction, so a crash must repeat at most one event"
    return Decision(settings.name, path, str(size), reason)


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


def raise_together(errors: Iterable[ExplainedError]) -> None:
    """Raise all errors as one; those that differ only in their place become one that names the places.

    Raises:
        ExplainedError: The error, if there is only one.
        AssemblyErrors: All of them, if there are several.
    """
    alike: dict[tuple[str, str, str], list[ExplainedError]] = {}
    for error in errors:
        alike.setdefault((error.code, error.what, error.fix), []).append(error)
    merged = tuple(_merged(same) for same in alike.values())
    if len(merged) == 1:
        raise merged[0]
    if merged:
        raise AssemblyErrors(merged)


def _merged(same: Sequence[ExplainedError]) -> ExplainedError:
    first = same[0]
    places = list(dict.fromkeys(error.where for error in same))
    if len(places) == 1:
        return first
    return type(first)(first.code, first.what, listed(places), first.fix)


@dataclass(frozen=True, slots=True)
class Part:
    """A part that a provider of its protocol may replace.

    Attributes:
        name: Its name in messages, with the article.
        subject: Its name in decisions.
        protocol: What has to be provided.
        reference: The setting that names a provider.
        setting: The setting that determines it otherwise; empty if there is none.
        declared: Whether what is made must derive from the protocol, unless a setting names its provider. A class with
            an unrelated purpose may have the one or two methods of a small protocol.
    """

    name: str
    subject: str
    protocol: type
    reference: str
    setting: str = ""
    declared: bool = False

    def unless_set(self, reason: str) -> str:
        """Return a reason that applies because the setting is not set."""
        return f"{reason}, and {self.setting} is not set" if self.setting else reason


EVENT_STORE = Part("an event store", "event-store", EventSource, "event-store.ref", "event-store.url")
CLOCK = Part("a clock", "clock", Clock, "clock.ref", declared=True)
TRACKER = Part("a progress tracker", "progress.tracking", ProgressTracker, "progress.tracker-ref", "progress.tracking")
LOCKS = Part("a lock registry", CONTROLLER, LockRegistry, "life-cycle.lock-registry")
BACK_OFF = Part("a back-off", "retry.policy", BackOff, "retry.back-off-ref", "retry.policy", declared=True)


def decide(
    part: Part, otherwise: Decision, injector: ContainerInjector, reference: str | None, *, is_set: bool = False
) -> Decision:
    """Decide whether a provider replaces a part.

    The provider that the reference names is used; else the part's setting, if it is set; else the only provider of the
    part's protocol. Several are an error. Without a provider, the decision is ``otherwise``.
    """
    group, makers = otherwise.group, injector.makers(part.protocol, declared=part.declared)
    candidates = (*otherwise.candidates, *(f"provider {name}" for name in makers))
    if reference is not None:
        named = Decision(group, part.subject, f"provider {reference}", "named", candidates, part.reference)
        return checked(replace(named, provider=reference), reference, injector, part.protocol)
    if is_set or not makers:
        return replace(otherwise, candidates=candidates)
    if len(makers) > 1:
        return undecided(group, part.subject, _several(part, group, makers), candidates)
    reason = part.unless_set(f"the only provider of {part.name}")
    return Decision(group, part.subject, f"provider {makers[0]}", reason, candidates, provider=makers[0])


def _several(part: Part, group: str, makers: tuple[str, ...]) -> AssemblyError:
    what = f"there are {len(makers)} providers of {part.name}, and none is chosen: {listed(makers)}"
    fix = f"name one with {part.reference}" + (f", or set {part.setting}" if part.setting else "")
    return AssemblyError("OCQ-532", what, f"group {group}" if group else "", fix)


def decide_clock(reference: str | None, injector: ContainerInjector) -> Decision:
    """Decide by which clock waits end and failures are dated."""
    otherwise = Decision("", CLOCK.subject, "the machine's", f"no provider of {CLOCK.name} is registered")
    return decide(CLOCK, otherwise, injector, reference)


def decide_back_off(settings: EffectiveGroup, injector: ContainerInjector) -> Decision:
    """Decide how long a group waits between an event's attempts."""
    rule, is_set = settings.retry, ("retry", "policy") in settings.set_leaves
    reason = "set" if is_set else BACK_OFF.unless_set(f"no provider of {BACK_OFF.name} is registered")
    policy = rule.policy.value if rule.policy is not None else ""
    otherwise = Decision(settings.name, BACK_OFF.subject, policy, reason, setting=BACK_OFF.setting if is_set else "")
    return decide(BACK_OFF, otherwise, injector, rule.back_off_ref, is_set=is_set)


def decide_tracking(settings: EffectiveGroup, database: Decision, injector: ContainerInjector) -> Decision:
    """Decide where a group keeps its progress; the database's choice is ``none`` when there is none.

    Source:
        OpenCQRS inference; there, several candidates mean progress in memory. Here they are an error.
    """
    rule = settings.progress
    otherwise = _tracking(settings, database)
    return decide(TRACKER, otherwise, injector, rule.tracker_ref, is_set=rule.tracking is not None)


def _tracking(settings: EffectiveGroup, database: Decision) -> Decision:
    """Decide where a group keeps its progress if no provider does."""
    name, path, tracking = settings.name, TRACKER.setting, settings.progress.tracking
    has_database = database.choice not in ("", "none")
    candidates = (database.choice,) if has_database else ()
    if tracking is Tracking.SQL and database.choice == "none":
        what = "progress.tracking is sql, but there is no database"
        fix = "set database.url, register a provider of a sqlalchemy.Engine, or set progress.tracking: in_memory"
        return undecided(name, path, AssemblyError("OCQ-522", what, f"group {name}", fix))
    if tracking is not None:
        return Decision(name, path, tracking.value, "set", candidates, path)
    if not database.choice:
        return Decision(name, path, "", "the database is not decided")
    if has_database:
        return Decision(name, path, Tracking.SQL.value, "there is exactly one database", candidates)
    return Decision(name, path, Tracking.IN_MEMORY.value, "no database is configured or registered")


def decide_observers(injector: ContainerInjector) -> Decision | None:
    """Decide what observes processors: every provider of an observer; ``None`` if there is none."""
    names = injector.makers(Observer)
    found = tuple(f"provider {name}" for name in names)
    reason = "every provider of an observer sees what processors do"
    return Decision("", "observer", ", ".join(found), reason, found, provider=", ".join(names)) if names else None


def observers_of(injector: ContainerInjector) -> list[Observer]:
    """Return what the providers of observers make.

    Raises:
        AssemblyError: OCQ-502, if one makes something else.
        ProjectCodeError: OCQ-217, if one raises.
    """
    return [injector.named(name, "as an observer", Observer) for name in injector.makers(Observer)]


def provided(decision: Decision, part: Part, injector: ContainerInjector) -> Any:
    """Return what the chosen provider makes, ``None`` if no provider was chosen.

    Raises:
        ExplainedError: If the part could not be decided; OCQ-502, if what is made lacks a method of the protocol.
        ProjectCodeError: OCQ-217, if the provider raises.
    """
    if decision.error:
        raise decision.error
    if not decision.provider:
        return None
    return injector.named(decision.provider, decision.setting or f"as {part.name}", part.protocol)


def as_made(decision: Decision, make: Callable[[], object]) -> Decision:
    """Return the decision for a provider after checking its object: it may raise, or lack a method."""
    if decision.error or not decision.provider:
        return decision
    try:
        make()
    except ExplainedError as error:
        return replace(decision, choice="", reason=error.what, error=error)
    return decision

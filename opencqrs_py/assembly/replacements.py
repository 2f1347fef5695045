"""Replacements: parts that providers of the project's containers may replace, and which one is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opencqrs_py.assembly.conditions import CONTROLLER, Decision, checked, undecided
from opencqrs_py.config import EffectiveGroup, Tracking
from opencqrs_py.errors import AssemblyError, ExplainedError
from opencqrs_py.model.naming import listed
from opencqrs_py.processing.notices import Observer
from opencqrs_py.processing.ports import BackOff, Clock, EventSource, LockRegistry, ProgressTracker

if TYPE_CHECKING:
    from opencqrs_py.assembly.injection import ContainerInjector


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

"""Conditions: what is chosen where settings leave a choice, each with its candidates and its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opencqrs_py.config import Controller, EffectiveGroup, Tracking
from opencqrs_py.errors import AssemblyError, AssemblyErrors, ExplainedError
from opencqrs_py.model.naming import listed
from opencqrs_py.processing.ports import LockRegistry

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

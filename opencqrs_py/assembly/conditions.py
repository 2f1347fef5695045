"""Conditions: what is chosen where settings leave a choice, each with its candidates and its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opencqrs_py.config import Controller, EffectiveGroup, OnExhausted
from opencqrs_py.errors import AssemblyError, AssemblyErrors, ExplainedError
from opencqrs_py.model.naming import listed
from opencqrs_py.processing.ports import LockRegistry

if TYPE_CHECKING:
    from opencqrs_py.assembly.injection import ContainerInjector


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice and why it was made.

    Attributes:
        group: Processing group; empty when the choice is the whole application's.
        subject: What was chosen, as a setting's path.
        choice: What it came to; empty when it could not be decided.
        reason: Why.
        candidates: What is configured or registered that could have been chosen.
        setting: The setting that decided it; empty when it was decided by what there is.
        error: Why it could not be decided; ``None`` also when another decision stands in its way.
        provider: Name of the provider that was chosen; empty when it is none.
    """

    group: str
    subject: str
    choice: str
    reason: str
    candidates: tuple[str, ...] = ()
    setting: str = ""
    error: ExplainedError | None = None
    provider: str = ""

    def __str__(self) -> str:
        choice = self.choice or "not decided"
        return f"{self.group or 'application'}: {self.subject} = {choice}: {self.reason}"


def undecided(group: str, subject: str, error: ExplainedError, candidates: tuple[str, ...] = ()) -> Decision:
    """Return the decision that could not be made because of ``error``."""
    return Decision(group, subject, "", error.what, candidates, error=error)


def ignored_variables(names: tuple[str, ...]) -> list[Decision]:
    """Return the decision to ignore environment variables that Kubernetes sets; none if there are none."""
    reason = "their names and values are those that Kubernetes sets for a Service"
    return [Decision("", "environment variables", f"{len(names)} ignored", reason, names)] if names else []


def decide_controller(settings: EffectiveGroup, injector: ContainerInjector) -> Decision:
    """Decide who starts and stops a group.

    Args:
        settings: The group's effective settings.
        injector: Knows the providers, those of lock registries among them.

    Source:
        OpenCQRS life-cycle inference; decisions K10 (a lock registry that is named is used, an ambiguous one is an
        error) and K11.
    """
    name, path, rule = settings.name, "life-cycle.controller", settings.life_cycle
    registries = injector.makers(LockRegistry)
    candidates = tuple(f"provider {each}" for each in registries)
    if (reference := rule.controller_registration) is not None:
        setting = "life-cycle.controller-registration"
        return checked(Decision(name, path, f"provider {reference}", "named", candidates, setting), reference, injector)
    if rule.controller is Controller.APPLICATION_CONTEXT:
        return Decision(name, path, rule.controller.value, "set", candidates, path)
    if (reference := rule.lock_registry) is not None:
        setting, reason = "life-cycle.lock-registry", f"lock registry {reference} is named"
        decision = Decision(name, path, Controller.LEADER_ELECTION.value, reason, candidates, setting)
        return checked(decision, reference, injector, LockRegistry)
    return _by_registries(settings, registries, candidates)


def _by_registries(settings: EffectiveGroup, registries: Sequence[str], candidates: tuple[str, ...]) -> Decision:
    """Decide on the controller where no provider is named and the application context is not asked for."""
    name, path, wanted = settings.name, "life-cycle.controller", settings.life_cycle.controller
    election = Controller.LEADER_ELECTION.value
    if len(registries) > 1:
        return undecided(name, path, _several_registries(name, registries), candidates)
    if wanted is not None and not registries:
        return undecided(name, path, _no_registry(name))
    if wanted is not None:
        reason = f"set, and exactly one lock registry is registered, {registries[0]}"
        return Decision(name, path, election, reason, candidates, path)
    if registries:
        return Decision(name, path, election, f"exactly one lock registry is registered, {registries[0]}", candidates)
    return Decision(name, path, Controller.APPLICATION_CONTEXT.value, "no lock registry is registered")


def checked(decision: Decision, name: str, injector: ContainerInjector, wanted: type | None = None) -> Decision:
    """Return the decision for the provider ``name``, or that it cannot be it."""
    try:
        injector.check(name, decision.setting, wanted)
    except ExplainedError as error:
        return replace(decision, choice="", reason=error.what, error=error)
    return decision


def _several_registries(group: str, registries: Sequence[str]) -> AssemblyError:
    what = f"{len(registries)} lock registries are registered and none is chosen: {listed(registries)}"
    fix = "name one with life-cycle.lock-registry, or set life-cycle.controller: application_context"
    return AssemblyError("OCQ-523", what, f"group {group}", fix)


def _no_registry(group: str) -> AssemblyError:
    what = "life-cycle.controller is leader_election, but no lock registry is registered"
    fix = "set life-cycle.controller: application_context and run the group in one process at a time"
    return AssemblyError("OCQ-505", what, f"group {group}", fix)


def decide_batch(settings: EffectiveGroup, *, transactional: bool, size: int) -> Decision:
    """Tell how many events share a transaction, and why."""
    path = "processing.batch-size"
    if settings.processing.batch_size is not None:
        return Decision(settings.name, path, str(size), "set", setting=path)
    if transactional:
        return Decision(settings.name, path, str(size), "every handler asks for the progress transaction")
    if size > 1:
        reason = "every handler asks for the progress transaction or takes lists, and so a chunk at a time"
        return Decision(settings.name, path, str(size), reason)
    reason = "a handler works outside the progress transaction, so a crash must repeat at most one event"
    return Decision(settings.name, path, str(size), reason)


def unsupported(settings: EffectiveGroup, controller: Decision) -> Iterator[AssemblyError]:
    """Yield an error, OCQ-506, for each thing that the group asks for and that does not exist yet."""
    where = f"group {settings.name}"
    if settings.retry.on_exhausted is OnExhausted.PARK:
        what = "retry.on-exhausted is park, which does not exist yet"
        yield AssemblyError("OCQ-506", what, where, "use skip or stop")
    if settings.life_cycle.controller_registration is not None:
        what = "life-cycle.controller-registration is set, which does not exist yet"
        yield AssemblyError("OCQ-506", what, where, "leave the setting out")
    if controller.choice == Controller.LEADER_ELECTION.value:
        what = f"leader election does not exist yet, and the controller comes to it: {controller.reason}"
        fix = "set life-cycle.controller: application_context, and run the group in one process at a time"
        yield AssemblyError("OCQ-506", what, where, fix)


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

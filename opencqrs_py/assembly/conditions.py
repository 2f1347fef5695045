"""Conditions: what is chosen where settings leave a choice, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from opencqrs_py.config import Controller, EffectiveGroup, OnExhausted, Tracking
from opencqrs_py.errors import AssemblyError

__all__ = ["Decision", "check_supported", "decide_batch", "decide_controller", "decide_tracking"]


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice and why it was made.

    Attributes:
        group: Processing group.
        subject: What was chosen, as a setting's path.
        choice: What it came to.
        reason: Why.
    """

    group: str
    subject: str
    choice: str
    reason: str

    def __str__(self) -> str:
        return f"{self.group}: {self.subject} = {self.choice}: {self.reason}"


def decide_tracking(settings: EffectiveGroup) -> Decision:
    """Decide where a group keeps its progress.

    Source:
        OpenCQRS inference; here a database is always configured, by default the event store's own.
    """
    path = "progress.tracking"
    if settings.progress.tracker_ref is not None:
        return Decision(settings.name, path, settings.progress.tracker_ref, "named by progress.tracker-ref")
    if settings.progress.tracking is not None:
        return Decision(settings.name, path, settings.progress.tracking.value, "set")
    return Decision(settings.name, path, Tracking.SQL.value, "exactly one database is configured")


def decide_controller(settings: EffectiveGroup) -> Decision:
    """Decide who starts and stops a group.

    Raises:
        AssemblyError: OCQ-505, if leader election is asked for: no lock registry can be had yet.
    """
    path = "life-cycle.controller"
    if settings.life_cycle.controller is Controller.LEADER_ELECTION:
        what = f"group '{settings.name}' wants leader election, but no lock registry is registered"
        fix = "set life-cycle.controller: application_context and run the group in one process at a time"
        raise AssemblyError("OCQ-505", what, path, fix)
    reason = "set" if settings.life_cycle.controller is not None else "no lock registry is registered"
    return Decision(settings.name, path, Controller.APPLICATION_CONTEXT.value, reason)


def decide_batch(settings: EffectiveGroup, *, transactional: bool, size: int) -> Decision:
    """Tell how many events share a transaction, and why."""
    path = "processing.batch-size"
    if settings.processing.batch_size is not None:
        return Decision(settings.name, path, str(size), "set")
    if transactional:
        return Decision(settings.name, path, str(size), "every handler asks for the progress transaction")
    reason = "a handler works outside the progress transaction, so a crash must repeat at most one event"
    return Decision(settings.name, path, str(size), reason)


def check_supported(settings: EffectiveGroup) -> None:
    """Refuse settings for what does not exist yet.

    Raises:
        AssemblyError: OCQ-506.
    """
    life_cycle = settings.life_cycle
    missing = {
        "retry.on-exhausted: park": settings.retry.on_exhausted is OnExhausted.PARK,
        "life-cycle.controller-registration": life_cycle.controller_registration is not None,
        "life-cycle.lock-registry": life_cycle.lock_registry is not None,
    }
    for name, wanted in missing.items():
        if wanted:
            fix = "use skip or stop" if "park" in name else "leave the setting out"
            what = f"group '{settings.name}' sets {name}, which does not exist yet"
            raise AssemblyError("OCQ-506", what, f"event-handling … {name}", fix)

"""Participants: instances of classes with ``@checkpointing``, and whether they are valid."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model.checkpoint import Participant
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.naming import canonical
from opencqrs_py.processing.annotations import why_not_called_with
from opencqrs_py.processing.checkpoints.participation import (
    CHECKPOINT,
    CLAIMED,
    CLOSED,
    PARKED,
    RELEASED,
    CheckpointParticipant,
)

_PARAMETERS = {
    CLAIMED: "partition, resume_at, trigger",
    CHECKPOINT: "partition, requested",
    RELEASED: "partition, up_to",
    CLOSED: "partition",
    PARKED: "partition, positions",
}


def checkpointed_groups(cls: type) -> list[str]:
    """Return the groups that ``@checkpointing`` names on this class itself, not on a parent."""
    return [mark.group for mark in vars(cls).get(Declaration.CHECKPOINTING.attribute, ())]


def participant_of(instance: object, group: str, place: str) -> Participant | None:
    """Return an instance as a participant of a group; ``None`` if its class is not one.

    Raises:
        HandlerSignatureError: OCQ-640, if its class is invalid, or looks like a participant without the mark.
    """
    cls = type(instance)
    groups = checkpointed_groups(cls)
    if not groups:
        _check_unmarked(cls, group, place)
        return None
    if len(groups) > 1:
        what = f"{cls.__name__} is marked with @checkpointing for {len(groups)} groups, whose positions differ"
        raise HandlerSignatureError("OCQ-640", what, place, "write a class for each group")
    if canonical(group) != canonical(groups[0]):
        what = f"{cls.__name__} takes part in checkpoints of group '{groups[0]}', but handles events of '{group}'"
        raise HandlerSignatureError("OCQ-640", what, place, "write a class for each group")
    asked = getattr(cls, CHECKPOINT, None)
    if not callable(asked) or asked is CheckpointParticipant.on_checkpoint:
        what = f"{cls.__name__} does not report what is durable: it has no {CHECKPOINT}"
        raise HandlerSignatureError("OCQ-640", what, place, f"write {form_of(CHECKPOINT)}")
    for name in _PARAMETERS:
        _check_callback(getattr(instance, name, None), name, place)
    return Participant(instance, cls.__name__, place)


def says_when_parked_events_are_durable(participant: Participant) -> bool:
    """Return whether a participant can belong to a group that parks events."""
    said = getattr(type(participant.instance), PARKED, None)
    return callable(said) and said is not CheckpointParticipant.on_parked_handled


def _check_unmarked(cls: type, group: str, place: str) -> None:
    """Refuse a class that looks like a participant: its progress would be stored with each chunk."""
    marked = next((parent for parent in cls.__mro__ if checkpointed_groups(parent)), None)
    if issubclass(cls, CheckpointParticipant) or marked is not None:
        parent = CheckpointParticipant if marked is None else marked
        what = f"{cls.__name__} derives from {parent.__name__} but is not itself marked with @checkpointing"
        raise HandlerSignatureError(
            "OCQ-640", what, place, f'write @checkpointing("{group}") above class {cls.__name__}'
        )


def _check_callback(callback: Callable[..., Any] | None, name: str, place: str) -> None:
    if callback is None:
        return
    if not callable(callback):
        raise HandlerSignatureError("OCQ-640", f"{name} is not a method", place, f"write {form_of(name)}")
    if inspect.isgeneratorfunction(callback) or inspect.isasyncgenfunction(callback):
        what = f"{name} must not yield: its code would never run"
        raise HandlerSignatureError("OCQ-640", what, place, f"write {form_of(name)}")
    if why := why_not_called_with(callback, *_PARAMETERS[name].split(", ")):
        what = f"{name} cannot be called with {_PARAMETERS[name]} ({why})"
        raise HandlerSignatureError("OCQ-640", what, place, f"write {form_of(name)}")


def form_of(name: str) -> str:
    """Return the form of a participant's method, for messages."""
    returned = "None" if name in (CLAIMED, CLOSED, PARKED) else "int"
    return f"def {name}(self, {_PARAMETERS[name]}) -> {returned}"

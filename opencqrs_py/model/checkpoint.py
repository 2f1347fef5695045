"""Checkpoints: what a participant confirms as durable, and the status of a partition with participants."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


class Latest(Enum):
    """The type of ``LATEST``."""

    LATEST = "latest"


LATEST: Final = Latest.LATEST
"""In a request or an answer: everything that the participant has received and handled so far."""


@dataclass(frozen=True, slots=True, eq=False)
class Participant:
    """An instance of a class with ``@checkpointing``, which reports which events are durable.

    Attributes:
        instance: The object whose methods handle events and answer requests.
        name: Name of its class.
        place: ``file:line (name)`` for messages.
    """

    instance: object
    name: str
    place: str

    def callback(self, name: str) -> Callable[..., object] | None:
        """Return a method of the instance, ``None`` if there is none of that name."""
        found: Callable[..., object] | None = getattr(self.instance, name, None)
        return found


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """The state of a partition with participants.

    Attributes:
        mode: ``auto`` if there is a checkpoint with each chunk, ``deferred`` if only when one is requested.
        polled: Position of the last event that was given to handlers.
        handled: Position of the last event that they have handled.
        at: ISO 8601 time of the last checkpoint that was stored; ``None`` if there was none since the claim.
    """

    mode: str
    polled: int
    handled: int
    at: str | None = None

    @property
    def text(self) -> str:
        """The value as JSON in ASCII."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> CheckpointStatus:
        """Return the value that a text describes."""
        return cls(**json.loads(text))

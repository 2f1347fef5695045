"""Replays: which handlers are called for events that were handled before, and what is done when the last of them is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opencqrs_py.model.replay import Reset
from opencqrs_py.processing.binding import Work
from opencqrs_py.processing.dispatch import Dispatcher

ResetFunction = Callable[[Reset, Work], None]
"""The call of an ``@on_reset`` or ``@on_replay_finished`` function."""


@dataclass(frozen=True)
class ReplayRule:
    """How a group handles events again after a reset.

    Attributes:
        dispatcher: Calls the handlers that are for replays; ``None`` if there are none.
        finished: The group's ``@on_replay_finished`` functions, in the order of definition.
        rebuilding: Whether all events are handled again, beside the group that has handled them: in a rebuild.
        silent: Whether no calls are made after a commit, as the group has made them when it handled the events.
    """

    dispatcher: Dispatcher | None
    finished: Sequence[ResetFunction] = ()
    rebuilding: bool = False
    silent: bool = False

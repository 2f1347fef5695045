"""Replays: which handlers are called for events that were handled before, and what happens at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opencqrs_py.model.progress import Cursor
from opencqrs_py.model.replay import Reset
from opencqrs_py.processing.binding import Work
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.ports import ResettableTracker

ResetFunction = Callable[[Reset, Work], None]
"""The call of an ``@on_reset`` or ``@on_replay_finished`` function."""


@dataclass(frozen=True)
class ReplayRule:
    """How a group handles events again after a reset.

    Attributes:
        dispatcher: Calls the handlers that take part in replays; ``None`` if there are none.
        finished: The group's ``@on_replay_finished`` functions, in the order of definition.
        rebuilding: Whether this is a rebuild: all events are handled again, beside the live group.
        silent: Whether calls after a commit are suppressed, because the group made them when it first handled the
            events.
    """

    dispatcher: Dispatcher | None
    finished: Sequence[ResetFunction] = ()
    rebuilding: bool = False
    silent: bool = False

    def end(self, tracker: ResettableTracker, group: str, cursor: Cursor, *, after_inbox: bool) -> bool:
        """End the replay of a partition; that of the group's last one calls the functions, in the same transaction.

        Args:
            tracker: Where progress goes.
            group: Processing group.
            cursor: The partition, which has handled everything again.
            after_inbox: Whether what waits in the inbox was handled, too.

        Returns:
            Whether it has ended: not while replayed events wait in the inbox.
        """
        with tracker.ending_replay(group, cursor, after_inbox=after_inbox) as ending:
            if ending is None:
                return False
            if ending.finished is not None:
                work = Work(group, cursor.partition, ending.unit)
                for function in self.finished:
                    function(ending.finished, work)
        return True

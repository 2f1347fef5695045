"""Resets of a group's progress, and the replays that follow: events that were handled before are handled again."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from opencqrs_py.errors import ResetError
from opencqrs_py.model.naming import counted

_LONGEST = 60_000  # characters of a replay that every database keeps in one text


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset of a group's progress, as ``@on_reset`` and ``@on_replay_finished`` functions get it.

    Attributes:
        group: Processing group.
        position: Position after which the group continues, 0 for the start of the log.
        context: Context given with the reset, as JSON values; ``None`` without any.
        reason: Why the group was reset, one line; empty if no reason was given.
        reset_at: ISO 8601 time.
        newest: Position of the newest event, if the group was beyond it, as after the log was restored: events that
            are added later are new. ``None`` if it was not.
    """

    group: str
    position: int
    context: Any = None
    reason: str = ""
    reset_at: str = ""
    newest: int | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Replay:
    """What a partition handles again after a reset.

    Attributes:
        reset: The reset that it follows.
        until: The last position that was handled before; events after it are new.
        unhandled: Positions up to ``until`` whose events waited in the inbox and so are new, too; ascending.

    Source:
        Axon's replay token: the event at the position of the reset is a replay, the next one is not.
    """

    reset: Reset
    until: int
    unhandled: tuple[int, ...] = field(default=(), repr=False)

    def covers(self, position: int) -> bool:
        """Return whether the event at a position was handled before."""
        return position <= self.until and not self._waited(position)

    def _waited(self, position: int) -> bool:
        index = bisect_left(self.unhandled, position)
        return index < len(self.unhandled) and self.unhandled[index] == position

    def boundary(self, position: int) -> int | None:
        """Return the next position at which the result of ``covers`` may change.

        ``None`` if there is none: all later events are new.
        """
        if position > self.until:
            return None
        if self._waited(position):
            return position + 1
        index = bisect_left(self.unhandled, position)
        return self.unhandled[index] if index < len(self.unhandled) else self.until + 1

    @property
    def text(self) -> str:
        """The replay as JSON in ASCII."""
        reset = self.reset
        known = {
            "position": reset.position,
            "context": reset.context,
            "reason": reset.reason,
            "at": reset.reset_at,
            "until": self.until,
            "unhandled": self.unhandled,
        }
        return json.dumps(known)

    def check(self) -> None:
        """Refuse a replay that cannot be stored.

        Raises:
            ResetError: OCQ-612, if too many events are exceptions.
        """
        if len(self.text) > _LONGEST:
            new = counted(len(self.unhandled), "event", "events")
            what = f"the context and {new} that were never handled are too much to store"
            fix = "let the group handle them first, or opencqrs inbox skip those that wait; and shorten --context"
            raise ResetError("OCQ-612", what, f"group {self.reset.group}", fix)

    @classmethod
    def of(cls, group: str, text: str) -> Replay:
        """Return the replay that a text describes."""
        known = json.loads(text)
        reset = Reset(group, known["position"], known["context"], known["reason"], known["at"])
        return cls(reset, known["until"], tuple(known["unhandled"]))


def replay_after(reset: Reset, position: int, before: Replay | None, waiting: Collection[int] = ()) -> Replay | None:
    """Return what a partition replays after a reset; ``None`` if it only moves ahead, or had handled nothing.

    Args:
        reset: The reset.
        position: Position of the partition.
        before: Its current replay, ``None`` for none: events of it beyond the position count as handled, too.
        waiting: Positions after the reset whose events wait in the inbox and were never handled.

    Raises:
        ResetError: OCQ-612, if too many events wait.

    Source:
        Axon's table of resets: a reset in a replay keeps the farther end, one to a position ahead ends the replay.
    """
    until = position if before is None else max(position, before.until)
    until = until if reset.newest is None else min(until, reset.newest)
    if reset.position >= until:
        return None
    still = () if before is None else (one for one in before.unhandled if one > position)
    unhandled = sorted({one for one in (*waiting, *still) if reset.position < one <= until})
    replay = Replay(reset, until, tuple(unhandled))
    replay.check()
    return replay

"""Checkpoints of a partition: its positions, what is requested, and on which position participants agree. Pure.

Three positions follow each other. An event is *polled* when handlers get it, *handled* when they have returned,
and *stored* when the progress says so, which is never before every participant has confirmed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import TypeAlias

from opencqrs_py.errors import CheckpointError
from opencqrs_py.model.checkpoint import LATEST, Latest

_MOST_ROUNDS = 10  # of questions in one checkpoint: participants may outbid each other endlessly


class CheckpointMode(Enum):
    """When the progress of a group with participants is stored."""

    AUTO = "auto"  # when a participant requests it, if all handlers are theirs; else with each chunk
    DEFERRED = "deferred"  # when a participant requests it
    REQUIRE_DEFERRED = "require-deferred"  # likewise; other handlers are refused


class CheckpointPositions:
    """How far one claim of a partition is, and which checkpoint is requested. Requests come from any thread.

    Args:
        resume_at: The stored position at the claim: nothing of this claim is at or before it.
        wake: Called after a request that must be met, to wake a pausing partition.

    Attributes:
        polled: Position of the last event that was given to handlers.
        handled: Position of the last event that they have handled.
    """

    def __init__(self, resume_at: int, wake: Callable[[], None] | None = None) -> None:
        self.polled = self.handled = resume_at
        self.wake: Callable[[], None] = wake or _nothing
        self._stored = resume_at
        self._position = resume_at  # the highest one requested
        self._latest = False  # whether everything handled is requested
        self._open = True
        self._lock = Lock()

    def request(self, position: int | Latest) -> None:
        """Accept a request; pending requests are merged into one for the highest position.

        A request after the claim, for a stored position, or for ``LATEST`` before the first event has no effect.

        Raises:
            CheckpointError: OCQ-647, if ``position`` is not a position, or beyond the last event given.
        """
        if position is not LATEST and (isinstance(position, bool) or not isinstance(position, int)):
            what = f"a checkpoint was requested at {position!r}, which is not a position"
            raise CheckpointError("OCQ-647", what, fix="request() for everything so far, or the position of an event")
        with self._lock:
            if not self._open:
                return
            if position is LATEST:
                if self.polled <= self._stored:
                    return
                self._latest = True
            elif position > self.polled:
                what = f"a checkpoint was requested at {position}, but no event after {self.polled} was given yet"
                raise CheckpointError("OCQ-647", what, fix="request() for everything so far")
            elif position <= max(self._stored, self._position):
                return
            else:
                self._position = position
        self.wake()

    def due(self) -> bool:
        """Return whether a checkpoint is requested that can be made now."""
        return self._wanted() is not None

    def take(self) -> int | None:
        """Return the position that is due, and clear the requests that it meets; ``None`` if none is.

        Later requests lead to another checkpoint.
        """
        with self._lock:
            wanted = self._wanted()
            if wanted is not None:
                self._latest = False
                self._position = self._position if self._position > wanted else self._stored
            return wanted

    def _wanted(self) -> int | None:
        wanted = self.handled if self._latest else self._position
        return wanted if self._stored < wanted <= self.handled else None

    def poll(self, position: int) -> None:
        """Note that handlers get events up to a position."""
        self.polled = max(self.polled, position)

    def handle(self, position: int) -> None:
        """Note that they have handled everything up to a position."""
        self.handled = max(self.handled, position)

    def store(self, position: int) -> None:
        """Note that the progress is stored."""
        with self._lock:
            self._stored = max(self._stored, position)

    @property
    def unconfirmed(self) -> bool:
        """Whether handled events are not stored yet: progress past later ones must wait for their checkpoint."""
        return self.handled > self._stored

    @property
    def is_open(self) -> bool:
        """Whether the partition is still claimed."""
        return self._open

    def close(self) -> None:
        """Ignore every further request."""
        with self._lock:
            self._open, self._latest, self._position = False, False, self._stored


def _nothing() -> None:
    pass


class CheckpointTrigger:
    """Requests checkpoints of one partition, for as long as its participants have it. Safe for several threads.

    A handler of a group with participants gets it by annotation, and a participant when it claims a partition. It
    never blocks. A request concerns all participants of the partition.
    """

    def __init__(self, positions: CheckpointPositions) -> None:
        self._positions = positions

    def request(self, position: int | Latest = LATEST) -> None:
        """Request a checkpoint of everything up to a position, or of everything given so far.

        It is made when these events are handled. Pending requests become one; those for stored positions, and those
        after the partition was released, are ignored.

        Raises:
            CheckpointError: OCQ-647, if no event at that position was given yet.
        """
        self._positions.request(position)

    @property
    def is_over(self) -> bool:
        """Whether the partition was released, or claimed again: further work for this claim is lost."""
        return not self._positions.is_open


Asked: TypeAlias = "Mapping[int, int]"
"""A question: which participant is asked, by its number, for which position."""

Answers: TypeAlias = "Mapping[int, int | None]"
"""Up to which position it has confirmed, clamped; ``None`` if it has not answered with a position."""

Ask: TypeAlias = "Callable[[Asked], Answers]"


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the participants of a partition have agreed on.

    Attributes:
        position: The highest position that all of them confirm; ``None`` if one does not confirm what was requested.
        lagging: The numbers of the participants that have confirmed less than others.
    """

    position: int | None
    lagging: tuple[int, ...] = ()


def clamped(answer: object, handled: int) -> int | None:
    """Return the position that an answer confirms, never more than what is handled; ``None`` if it is none."""
    if answer is LATEST:
        return handled
    if isinstance(answer, bool) or not isinstance(answer, int) or answer < 0:
        return None
    return min(answer, handled)


def agree(count: int, requested: int, ask: Ask) -> Agreement:
    """Have all participants confirm a position, and ask those that confirm less than another again, for that position.

    A participant that cannot reach it limits the position, but not below the requested one.

    Args:
        count: Number of participants.
        requested: What each of them has to confirm at least.
        ask: Asks some of them.
    """
    answers = dict(ask(dict.fromkeys(range(count), requested)))
    if short := tuple(number for number, answer in sorted(answers.items()) if answer is None or answer < requested):
        return Agreement(None, short)
    known = {number: answer for number, answer in answers.items() if answer is not None}
    return _levelled(known, ask, _MOST_ROUNDS)


def agree_at_release(stored: int, answers: Answers, ask: Ask) -> Agreement:
    """Return what to store when a partition is released: the highest position that all participants confirm.

    Participants that confirm less than another are asked again. A missing answer counts as confirming what is stored.
    """
    failed = [number for number, answer in answers.items() if answer is None]
    if failed:
        return Agreement(stored, tuple(failed))
    known = {number: answer for number, answer in answers.items() if answer is not None}
    return _levelled(known, ask, 1)


def _levelled(known: dict[int, int], ask: Ask, most: int) -> Agreement:
    for _ in range(most):
        highest = max(known.values())
        behind = {number: highest for number, position in known.items() if position < highest}
        if not behind:
            break
        further = {n: at for n, at in ask(behind).items() if at is not None and at > known[n]}
        if not further:
            break
        known |= further
    return Agreement(min(known.values()), _lagging(known.items()))


def _lagging(known: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    known = list(known)
    highest = max(position for _, position in known)
    return tuple(number for number, position in sorted(known) if position < highest)

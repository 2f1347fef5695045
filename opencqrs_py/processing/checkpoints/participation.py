"""Participation: the participants of a group, and their answers about which events of a partition are durable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Protocol, TypeAlias

from opencqrs_py.errors import CheckpointError
from opencqrs_py.model.checkpoint import Latest, Participant
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.checkpoints.checkpoints import (
    Agreement,
    Answers,
    Asked,
    CheckpointPositions,
    CheckpointTrigger,
    agree,
    agree_at_release,
    clamped,
)
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.exceptions import one_line

logger = logging.getLogger("opencqrs.processing")

CLAIMED, CHECKPOINT, RELEASED, CLOSED, PARKED = (
    "on_partition_claimed",
    "on_checkpoint",
    "on_partition_released",
    "on_partition_closed",
    "on_parked_handled",
)


class CheckpointParticipant:
    """A base for classes with ``@checkpointing``, whose effects become durable after their handlers return.

    One instance serves all partitions of the process, each on its own thread, so it keeps its state by
    partition. Every method may be ``async``, and must return within ``checkpointing.timeout``. A class need not derive
    from this one: only ``on_checkpoint`` is required.
    """

    def on_partition_claimed(self, partition: Partition, resume_at: int, trigger: CheckpointTrigger) -> object:
        """Take a partition over, before its first event. If this raises, the partition is tried again after a pause.

        Args:
            partition: Partition of the group.
            resume_at: The stored position: the first event handled comes after it. Durable state ahead of it can
                skip the events up to there.
            trigger: Requests checkpoints of this partition, and of no other, until it is released.
        """

    def on_checkpoint(self, partition: Partition, requested: int) -> object:
        """Make everything durable up to at least a position, and return the position up to which it is.

        Args:
            partition: Partition of the group.
            requested: Position of a handled event.

        Returns:
            A position, at least the requested one, or ``LATEST`` for everything that was handled. Less, nothing or an
            error means that the checkpoint has failed: events after the stored position are handled again.
        """
        raise NotImplementedError(f"{type(self).__name__} does not report what is durable: write {CHECKPOINT}")

    def on_partition_released(self, partition: Partition, up_to: int) -> object:
        """Flush what is possible before the partition is released; by default the same as a checkpoint.

        Args:
            partition: Partition of the group.
            up_to: Position of the last event handled.

        Returns:
            As ``on_checkpoint``; less than ``up_to`` is stored as it is.
        """
        return self.on_checkpoint(partition, up_to)

    def on_partition_closed(self, partition: Partition) -> object:
        """Discard the state of a partition: there are no calls for it until it is claimed again."""

    def on_parked_handled(self, partition: Partition, positions: Sequence[int]) -> object:
        """Make durable the handled events that had been parked. Required where the group parks events.

        Checkpoints do not cover them: they are handled after later events, and the progress has passed them. When all
        participants have returned, they leave the inbox. If one raises or does not return in time, they stay there and
        are handled again.

        Args:
            partition: Partition of the group.
            positions: Positions of the events, ascending.
        """
        raise NotImplementedError(f"{type(self).__name__} must report when parked events are durable: write {PARKED}")


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call: its result, or its error."""

    value: object = None
    error: BaseException | None = None


ParticipantCall: TypeAlias = "Callable[[], object]"


class Caller(Protocol):
    """Calls the methods of participants within a time limit."""

    def ask(self, calls: Mapping[Hashable, ParticipantCall], seconds: float) -> dict[Hashable, CallOutcome]:
        """Make calls at the same time and wait for them; awaitables are awaited.

        A call that has not returned in time is abandoned, with a ``TimeoutError`` as its answer. Until it has
        returned, further calls with its key are not made, and get the same answer.

        Args:
            calls: Calls by key; one call per key is made at a time.
            seconds: Time limit for all of them together.
        """
        ...

    def still(self, key: Hashable) -> TimeoutError | None:
        """Return why a call would be refused, since an earlier one has not returned; ``None`` if it would be made."""
        ...


@dataclass(frozen=True, slots=True)
class Halves:
    """The dispatchers of some handlers of a group; each is ``None`` without handlers.

    Attributes:
        usual: Calls the handlers.
        replaying: Calls the handlers that take part in replays.
    """

    usual: Dispatcher | None
    replaying: Dispatcher | None


class Participation:
    """The participants of a group in this process, and the partitions that they have.

    Args:
        participants: At least one, each once.
        own: Calls the participants' handlers.
        others: Calls the group's other handlers.
        deferred: Whether progress is stored only when a checkpoint is requested; else each chunk has a checkpoint.
        timeout: Seconds within which participants must answer.
        caller: Calls their methods.
        warning: Text that is logged at the first claim; empty for none.
    """

    def __init__(
        self,
        participants: Sequence[Participant],
        own: Halves,
        others: Halves,
        caller: Caller,
        *,
        deferred: bool,
        timeout: float,
        warning: str = "",
    ) -> None:
        self.participants = tuple(participants)
        self.own = own
        self.others = others
        self.deferred = deferred
        self.timeout = timeout
        self._caller = caller
        self._warning = warning
        self._open: dict[Partition, ClaimedPartition] = {}
        self._owed: set[tuple[int, Partition]] = set()  # participants that have yet to discard a partition
        self._lock = Lock()

    @property
    def mode(self) -> str:
        """The name of the mode: ``deferred`` or ``auto``."""
        return "deferred" if self.deferred else "auto"

    def warn(self) -> None:
        """Log the group's warning once."""
        warning, self._warning = self._warning, ""
        if warning:
            logger.warning("%s", warning)

    def claim(self, group: str, partition: Partition, resume_at: int) -> ClaimedPartition:
        """Have the participants take a partition over, after closing an earlier claim of it in this process.

        Raises:
            CheckpointError: OCQ-645, if one of them cannot.
        """
        claimed = ClaimedPartition(self, group, partition, resume_at)
        with self._lock:
            before, self._open[partition] = self._open.get(partition), claimed
        if before is not None:
            before.close_participants()
        try:
            claimed.claim(resume_at)
        except BaseException:
            self.close(claimed)
            raise
        return claimed

    def close(self, claimed: ClaimedPartition) -> None:
        """Have the participants discard a partition, unless they have done so."""
        with self._lock:
            if self._open.get(claimed.partition) is claimed:
                del self._open[claimed.partition]
        claimed.close_participants()

    def discard(self, partition: Partition, numbers: Iterable[int]) -> dict[int, CallOutcome]:
        """Have participants discard a partition; one that has not returned from an earlier call does so later."""
        free = [number for number in numbers if self._caller.still((number, partition)) is None]
        with self._lock:
            self._owed.update((number, partition) for number in numbers if number not in free)
        return self.ask(CLOSED, partition, dict.fromkeys(free, ()))

    def settle(self, number: int, partition: Partition) -> None:
        """Make a participant's pending call; it may get no other call before it has returned from all earlier ones.

        Raises:
            TimeoutError: If it has not.
        """
        error = self._caller.still((number, partition))
        if error is not None:
            raise error
        with self._lock:
            owed = (number, partition) in self._owed
            self._owed.discard((number, partition))
        if owed and (answer := self.discard(partition, [number]).get(number)) is not None and answer.error is not None:
            raise answer.error

    def ask(self, name: str, partition: Partition, arguments: Mapping[int, Sequence[object]]) -> dict[int, CallOutcome]:
        """Call a method of participants, given by number, for a partition; those without the method give no answer."""
        calls: dict[Hashable, ParticipantCall] = {}
        numbers: dict[Hashable, int] = {}
        shown = Partition(partition.modulus, partition.residue)
        for number, given in arguments.items():
            method = self.participants[number].callback(name)
            if method is not None:
                key = (number, partition)
                calls[key], numbers[key] = partial(method, shown, *given), number
        answers = self._caller.ask(calls, self.timeout) if calls else {}
        return {numbers[key]: answer for key, answer in answers.items()}


class ClaimedPartition:
    """One claim of a partition by the participants of its group. Used by one thread at a time.

    Attributes:
        positions: Its positions.
        trigger: Requests its checkpoints.
        closed: Whether it has ended, because it was released or because the partition was claimed again in this
            process.
    """

    def __init__(self, checkpointing: Participation, group: str, partition: Partition, resume_at: int) -> None:
        self.partition = partition
        self.positions = CheckpointPositions(resume_at)
        self.trigger = CheckpointTrigger(self.positions)
        self.closed = False
        self._all = checkpointing
        self._where = f"group {group}, partition {partition}"
        self._claimed: list[int] = []
        self._lock = Lock()

    def claim(self, resume_at: int) -> None:
        """Notify the participants one after the other.

        Raises:
            CheckpointError: OCQ-645, if one raises or does not return in time; the others are not notified.
        """
        for number, participant in enumerate(self._all.participants):
            try:
                self._all.settle(number, self.partition)
            except Exception as error:
                what = f"{participant.name} has not finished an earlier claim: {one_line(error)}"
                raise CheckpointError("OCQ-645", what, self._where_of(participant)) from error
            self._claimed.append(number)
            if participant.callback(CLAIMED) is None:
                continue
            answer = self._all.ask(CLAIMED, self.partition, {number: (resume_at, self.trigger)})[number]
            if answer.error is not None:
                what = f"{participant.name}.{CLAIMED} has failed: {one_line(answer.error)}"
                raise CheckpointError("OCQ-645", what, self._where_of(participant)) from answer.error

    def confirm(self, requested: int, handled: int | None = None) -> int:
        """Have all participants confirm a position; return the highest that all of them do.

        Args:
            requested: What they have to confirm.
            handled: Position that counts as handled; ``None`` for the actual one.

        Raises:
            CheckpointError: OCQ-646, if one of them does not.
        """
        if self.closed:
            raise CheckpointError("OCQ-646", "the partition was released in the meantime", self._where)
        most = self.positions.handled if handled is None else handled
        seen: dict[int, CallOutcome] = {}

        def ask(asked: Asked) -> Answers:
            arguments = {number: (position,) for number, position in asked.items()}
            seen.update(answers := self._all.ask(CHECKPOINT, self.partition, arguments))
            return {number: _confirmed(answer, most) for number, answer in answers.items()}

        agreement = agree(len(self._all.participants), requested, ask)
        if agreement.position is None:
            number = agreement.lagging[0]
            raise self._refused(number, seen[number], requested, CHECKPOINT)
        self._warn(agreement, "a checkpoint")
        return agreement.position

    def confirm_parked(self, positions: tuple[int, ...]) -> None:
        """Have all participants make durable the handled events that had been parked.

        Raises:
            CheckpointError: OCQ-646, if one of them raises or does not return in time.
        """
        if self.closed:
            raise CheckpointError("OCQ-646", "the partition was released in the meantime", self._where)
        everybody = dict.fromkeys(range(len(self._all.participants)), (positions,))
        answers = self._all.ask(PARKED, self.partition, everybody)
        for number, participant in enumerate(self._all.participants):
            error = answers[number].error if number in answers else AttributeError(f"it has no {PARKED}")
            if error is not None:
                at = _listed(positions)
                what = f"{participant.name} has not confirmed the parked events at {at}: {one_line(error)}"
                fix = _cause_in(PARKED) if number in answers else f"return from {PARKED} when they are durable"
                raise CheckpointError("OCQ-646", what, self._where_of(participant), fix) from error

    def release(self, stored: int) -> tuple[int, CheckpointError | None]:
        """Have the participants flush what they can; never raises. Requests are ignored from here on.

        Args:
            stored: Position that is returned if one of them fails.

        Returns:
            The highest position that all confirm, and the error, OCQ-646, if one has failed with events to flush.
        """
        self.positions.close()
        up_to = max(stored, self.positions.handled)
        numbers = range(len(self._all.participants))
        with_own = [number for number in numbers if self._all.participants[number].callback(RELEASED) is not None]
        others = {number: (up_to,) for number in numbers if number not in with_own}
        answers = self._all.ask(RELEASED, self.partition, dict.fromkeys(with_own, (up_to,)))
        answers |= self._all.ask(CHECKPOINT, self.partition, others)
        known = {number: _confirmed(answers[number], up_to) for number in numbers}
        for number, position in known.items():
            if position is None:
                reason = _reason(answers[number])
                logger.warning("[%s] %s could not flush: %s", self._where, self._all.participants[number].name, reason)

        def ask(asked: Asked) -> Answers:
            arguments = {number: (position,) for number, position in asked.items()}
            again = self._all.ask(CHECKPOINT, self.partition, arguments)
            return {number: _confirmed(answer, up_to) for number, answer in again.items()}

        agreement = agree_at_release(stored, known, ask)
        if None not in known.values():
            self._warn(agreement, "the release")
        elif up_to > stored:
            number = agreement.lagging[0]
            callback = RELEASED if _is_released_by_own(self._all.participants[number]) else CHECKPOINT
            return stored, self._refused(number, answers[number], up_to, callback)
        return max(stored, agreement.position or 0), None

    def end(self) -> None:
        """Accept no more requests, events and confirmations."""
        self.closed = True
        self.positions.close()

    def close_participants(self) -> None:
        """Have the participants that were notified of the claim discard their state, once. Never raises."""
        self.end()
        with self._lock:
            claimed, self._claimed = self._claimed, []
        answers = self._all.discard(self.partition, claimed)
        for number, answer in answers.items():
            if answer.error is not None:
                name, reason = self._all.participants[number].name, one_line(answer.error)
                logger.warning("[%s] %s.%s has failed: %s", self._where, name, CLOSED, reason)

    def _refused(self, number: int, answer: CallOutcome, requested: int, callback: str) -> CheckpointError:
        participant = self._all.participants[number]
        what = f"{participant.name} has not confirmed position {requested}: {_reason(answer)}"
        fix = f"return at least position {requested}, or LATEST, from {callback} when everything is durable"
        if answer.error is not None:
            fix = _cause_in(callback)
        error = CheckpointError("OCQ-646", what, self._where_of(participant), fix)
        error.__cause__ = answer.error
        return error

    def _warn(self, agreement: Agreement, when: str) -> None:
        for number in agreement.lagging:
            text = "[%s] %s holds the progress back at %s: it confirms less than others"
            logger.warning(text, self._where, self._all.participants[number].name, when)

    def _where_of(self, participant: Participant) -> str:
        return f"{participant.place}, {self._where}"


def _listed(positions: Sequence[int]) -> str:
    return ", ".join(map(str, positions[:3])) + (", …" if len(positions) > 3 else "")


def _confirmed(answer: CallOutcome, handled: int) -> int | None:
    return None if answer.error is not None else clamped(answer.value, handled)


def _is_released_by_own(participant: Participant) -> bool:
    """Return whether its class is released by a method of its own; the inherited one calls ``on_checkpoint``."""
    inherited = CheckpointParticipant.on_partition_released
    return getattr(type(participant.instance), RELEASED, inherited) is not inherited


def _cause_in(callback: str) -> str:
    return f"fix the cause of this error in {callback}"


def _reason(answer: CallOutcome) -> str:
    if answer.error is not None:
        return one_line(answer.error)
    value = answer.value
    return f"it returned {value.name if isinstance(value, Latest) else repr(value)}"

"""The participants of a group: their handlers, and whether the group can have participants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opencqrs_py.engines.answers import AnswersInTime
from opencqrs_py.errors import AssemblyError, FencedError, HandlerSignatureError
from opencqrs_py.model.checkpoint import Participant
from opencqrs_py.processing.binding import BoundHandler, Work
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointMode
from opencqrs_py.processing.checkpoints.participants import form_of, says_when_parked_events_are_durable
from opencqrs_py.processing.checkpoints.participation import PARKED, Halves, Participation
from opencqrs_py.processing.definitions import order_of
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.roles import IN_TRANSACTION, Kind
from opencqrs_py.processing.sequencing import Sequencing, SequencingByObject

SCHEDULED = "is scheduled: its events are handled out of the order of their positions"
FRAMES = "its handler takes data frames: Spark reads a range of them at once"


@dataclass(frozen=True, slots=True)
class CheckpointRule:
    """How the participants of a group, if it has any, confirm what is durable.

    Attributes:
        mode: When progress is stored.
        timeout: Seconds within which participants must answer.
        why_not: Why the group cannot have participants with its settings; empty if it can.
        fix: What to change in that case.
        parks: What to change so that the group parks no events; empty if it parks none.

    Raises:
        ValueError: If the time-out is not above 0.
    """

    mode: CheckpointMode = CheckpointMode.AUTO
    timeout: float = 30.0
    why_not: str = ""
    fix: str = ""
    parks: str = ""

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ValueError(f"timeout must be more than 0, got {self.timeout}")


def make_checkpointing(
    group: str,
    handlers: Sequence[BoundHandler],
    types: EventTypes,
    reading: Reading,
    interceptors: Interceptors,
    sequencing: Sequencing,
    rule: CheckpointRule,
) -> Participation | None:
    """Return the participants of a group, ``None`` if no handler belongs to one.

    Args:
        group: Processing group.
        handlers: All of its handlers, in their order.
        types: The event classes known.
        reading: How stored events are read.
        interceptors: Functions around events and handlers.
        sequencing: Maps events to sequences.
        rule: How they confirm what is durable.

    Raises:
        HandlerSignatureError: OCQ-641, if a handler or interceptor takes part of a transaction; OCQ-644, if a handler
            takes a trigger, but there is no participant.
        AssemblyError: OCQ-642, if the group cannot have them; OCQ-643, if the mode is ``require-deferred`` and there
            are other handlers.
    """
    own = [bound for bound in handlers if bound.handler.participant is not None]
    others = [bound for bound in handlers if bound.handler.participant is None]
    if not own:
        for bound in handlers:
            _require_no_trigger(bound, group)
        return None
    _check_handlers(group, own, others, interceptors)
    in_frames = any(bound.signature.in_frames for bound in own)
    if why_not := FRAMES if in_frames else rule.why_not:
        what = f"group '{group}' has participants, and {why_not}"
        fix = "take lists or a pyarrow.Table" if in_frames else rule.fix
        raise AssemblyError("OCQ-642", what, own[0].handler.place, fix)
    if rule.parks:
        _require_parking(group, own, rule.parks)
    belongs = sequencing.belongs if isinstance(sequencing, SequencingByObject) else None

    own = [_while_claimed(bound) for bound in own]

    def dispatcher(some: Sequence[BoundHandler]) -> Dispatcher | None:
        return Dispatcher(some, types, reading, interceptors, belongs) if some else None

    def halves(some: Sequence[BoundHandler]) -> Halves:
        kept, usual = [bound for bound in some if bound.handler.mark.replay is not False], dispatcher(some)
        return Halves(usual, usual if len(kept) == len(some) else dispatcher(kept))

    deferred = rule.mode is not CheckpointMode.AUTO or not others
    warning = _mixed(group, own, others, rule.mode) if others else ""
    parts = (_each_once(own), halves(own), halves(others), AnswersInTime())
    return Participation(*parts, deferred=deferred, timeout=rule.timeout, warning=warning)


def _require_parking(group: str, own: Sequence[BoundHandler], without: str) -> None:
    """Refuse a participant that only confirms positions, since the progress has passed a parked event."""
    for participant in _each_once(own):
        if not says_when_parked_events_are_durable(participant):
            what = f"group '{group}' parks events, but {participant.name} does not report when those are durable"
            raise AssemblyError("OCQ-642", what, participant.place, f"write {form_of(PARKED)}, or {without}")


def _while_claimed(bound: BoundHandler) -> BoundHandler:
    """Return the handler of a participant, guarded so that it takes no event after the end of its claim.

    A hanging call is abandoned, and the partition is claimed again. If the call then returns, no transaction prevents
    its thread from handling the rest of the chunk, beside the new claim.
    """
    call, call_of_work = bound.call, bound.call_of_work

    def guarded(*arguments: Any) -> Any:
        _require_claimed(arguments[-1])
        return call(*arguments)

    def guarded_of_work(work: Work) -> Callable[[Any], Any]:
        made: Callable[[Any], Any] = call_of_work(work)  # type: ignore[misc]

        def one(decoded: Any) -> Any:
            _require_claimed(work)
            return made(decoded)

        return one

    return replace(bound, call=guarded, call_of_work=None if call_of_work is None else guarded_of_work)


def _require_claimed(work: Work) -> None:
    if work.trigger is not None and work.trigger.is_over:
        raise FencedError(f"group '{work.group}' partition {work.partition} was claimed again meanwhile")


def _each_once(own: Sequence[BoundHandler]) -> list[Participant]:
    found: dict[int, Participant] = {}
    for bound in own:
        if (participant := bound.handler.participant) is not None:
            found.setdefault(id(participant.instance), participant)
    return list(found.values())


def _require_no_trigger(bound: BoundHandler, group: str) -> None:
    for argument in bound.signature.arguments:
        if argument.kind is Kind.TRIGGER:
            what = f"'{argument.name}' asks for a CheckpointTrigger, and group '{group}' has no participant"
            fix = "write @checkpointing above a handler class that reports what is durable, or remove the parameter"
            raise HandlerSignatureError("OCQ-644", what, bound.handler.place, fix)


def _check_handlers(
    group: str, own: Sequence[BoundHandler], others: Sequence[BoundHandler], interceptors: Interceptors
) -> None:
    for bound in own:
        for argument in bound.signature.arguments:
            if argument.kind in (*IN_TRANSACTION, Kind.AFTER_COMMIT):
                what = f"'{argument.name}' belongs to the progress transaction, in which no participant handles events"
                fix = "have it open its own connection, or move the method to a class without @checkpointing"
                raise HandlerSignatureError("OCQ-641", what, bound.handler.place, fix)
    if interceptors.in_transaction:
        what = f"it surrounds handlers of participants of group '{group}', which have no transaction"
        fix = "name in its decorator the groups that it is for, or remove the arguments that belong to a transaction"
        raise HandlerSignatureError("OCQ-641", what, interceptors.in_transaction[0], fix)
    last = max(order_of(bound.handler) for bound in own)
    before = next((each for each in others if order_of(each.handler) < last), None)
    if before is not None:
        what = "a handler in the transaction is ordered before one of a participant, which comes first in any case"
        fix = "give the participant's handlers an order that is not higher"
        raise AssemblyError("OCQ-642", what, before.handler.place, fix)


def _mixed(group: str, own: Sequence[BoundHandler], others: Sequence[BoundHandler], mode: CheckpointMode) -> str:
    """Return the warning for a group with handlers of participants and others; refuse it if so configured."""
    ours = ", ".join(participant.name for participant in _each_once(own))
    places = ", ".join(bound.handler.place for bound in others)
    if mode is CheckpointMode.REQUIRE_DEFERRED:
        what = f"checkpointing.mode of group '{group}' is require-deferred, but some handlers are not of participants"
        raise AssemblyError("OCQ-643", what, places, "give these handlers their own group")
    if mode is CheckpointMode.DEFERRED:
        again = "after a crash these handlers see events again"
        return f"group {group}: its progress waits for checkpoints of {ours}; {again}: {places}"
    return f"group {group}: there is a checkpoint of {ours} with each chunk, as it has other handlers, too: {places}"

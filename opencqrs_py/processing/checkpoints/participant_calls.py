"""The calls of participants' handlers: outside of any transaction, before those of the others of their group."""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.awaiting import tasks_may_stay
from opencqrs_py.processing.binding import Work
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointTrigger
from opencqrs_py.processing.checkpoints.participation import Participation
from opencqrs_py.processing.diagnosis import Diagnosis
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.handler_calls import HandlerCalls
from opencqrs_py.processing.portions import Portion
from opencqrs_py.processing.ports import NoUnit
from opencqrs_py.processing.replays import ReplayRule


class ParticipantCalls(HandlerCalls):
    """Calls the handlers of participants outside of the transaction, and the others of their group within it."""

    def __init__(
        self,
        group: str,
        partition: Partition,
        dispatcher: Dispatcher,
        replays: ReplayRule,
        diagnosis: Diagnosis,
        checkpointing: Participation,
        trigger: Callable[[], CheckpointTrigger],
    ) -> None:
        super().__init__(group, partition, checkpointing.others.usual or dispatcher, replays, diagnosis)
        self._all = checkpointing
        self._trigger = trigger

    def deliver(self, portion: Portion, work: Work) -> int:
        """Call the participants' handlers; return how many events they got."""
        dispatcher = self._all.own.replaying if work.replaying else self._all.own.usual
        if dispatcher is None:
            return 0
        work.trigger = self._trigger()
        with tasks_may_stay():  # which a participant awaits at a checkpoint
            return super().handle(portion, work, dispatcher)

    @override
    def handle(self, portion: Portion, work: Work, dispatcher: Dispatcher | None = None) -> int:
        if self._all.others.usual is None:  # participants have handled everything
            return 0
        work.trigger = self._trigger()
        return super().handle(portion, work, dispatcher)


NO_UNIT = NoUnit("participants handle events outside of the transaction")

"""Turns: how the partitions of a task take their steps, and how the calls of handlers in them are watched.

Runs on executors; on the driver, too, while Spark is starting. Each turn is on a thread that can be abandoned: a slow
handler delays only its own partition. A call that takes too long ends the task with an error that identifies it, and
with the task its worker and the call's transaction; the driver records it as the event's error.
"""

from __future__ import annotations

import time
import zlib
from base64 import b64decode, b64encode
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from pydantic import TypeAdapter

from opencqrs_py.engines.call_watching import CallWatcher
from opencqrs_py.engines.threads import Threads
from opencqrs_py.model.outcome import Failure, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.calls import CallInHand, CallLimits
from opencqrs_py.processing.ports import SystemClock
from opencqrs_py.processing.processor import PartitionProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

TURN_SECONDS = 0.005  # after which a partition lets another one step
SLOW_SECONDS = 0.5  # after which the others no longer wait for a turn
CATCH_UP_SECONDS = 0.05  # for which partitions let those behind them catch up, before they step again
_MOST_REST_SECONDS = 1.0  # after a wait in which not all have caught up; less would delay the others
_LOOK_SECONDS = 0.05  # between two reads of the log for the others, while a turn is slow

Permitted: TypeAlias = "Callable[[], bool]"
"""Returns whether another step may begin."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """An abandoned call: its partition, its failure, and how many events it got if that was a list.

    ``parked`` tells whether they came from the inbox, and ``sequence_id`` as part of which sequence. ``outcomes`` are
    the earlier outcomes of the partitions of its task, in any order; what is committed later is not in them.
    """

    partition: Partition
    failure: Failure
    listed: int
    parked: bool = False
    sequence_id: str = ""
    outcomes: tuple[Outcome, ...] = ()


_TIMED_OUT = TypeAdapter(TimedOut)


class TaskTimedOutError(Exception):
    """A call of a handler has not returned in time.

    Its text is one word, which Spark's messages leave unchanged: as plain text it might look like the end of a
    traceback.
    """

    @classmethod
    def of(cls, call: TimedOut) -> TaskTimedOutError:
        """Return the error that reports a call to the driver."""
        return cls(b64encode(zlib.compress(_TIMED_OUT.dump_json(call))).decode())

    @property
    def call(self) -> TimedOut:
        """The call that has not returned."""
        return _TIMED_OUT.validate_json(zlib.decompress(b64decode(str(self))))

    def beside(self, others: Iterable[Outcome]) -> TaskTimedOutError:
        """Return the error with the outcomes of other partitions of the task."""
        return self.of(replace(self.call, outcomes=(*self.call.outcomes, *others)))


def timed_out_of(line: str) -> TimedOut | None:
    """Return the abandoned call in the last line of a traceback; ``None`` for other errors."""
    _, found, text = line.partition(f"{TaskTimedOutError.__name__}: ")
    return TaskTimedOutError(text).call if found else None


class Turn(Future[Outcome]):
    """An active turn; ``so_far`` is the outcome of its steps."""

    def __init__(self, so_far: Outcome) -> None:
        super().__init__()
        self.so_far = so_far


class Turns:
    """Runs the steps of processors, and watches their calls. One for all tasks of a worker with the same limits."""

    def __init__(self, limits: CallLimits) -> None:
        self._threads = Threads()
        self._under_way: dict[PartitionProcessor, Turn] = {}
        self._alone = limits.timeout == inf
        CallWatcher(self._processors, [limits], self._time_out, SystemClock()).start()

    def begin(
        self, processor: PartitionProcessor, so_far: Outcome, permitted: Permitted, upto: float | None = None
    ) -> Turn:
        """Let a partition step for a moment, and return its outcome as soon as it is known.

        Args:
            processor: That of the partition.
            so_far: Where it continues.
            permitted: Returns whether another step may begin.
            upto: Position at which its turn ends; ``None`` if it is alone. Then no other partition waits for its turn
                to end, so it needs no thread.
        """
        turn = self._under_way[processor] = Turn(so_far)
        if upto is None and self._alone:
            self._do(turn, processor, permitted, inf)
        else:
            end = inf if upto is None else upto
            self._threads.run(f"opencqrs-{processor.group}", lambda: self._do(turn, processor, permitted, end))
        return turn

    def _do(self, turn: Turn, processor: PartitionProcessor, permitted: Permitted, upto: float) -> None:
        try:
            _step(turn, processor, permitted, upto)
        except BaseException as error:
            del self._under_way[processor]
            _settle(turn.set_exception, error)
        else:
            del self._under_way[processor]
            _settle(turn.set_result, turn.so_far)

    def _processors(self) -> list[PartitionProcessor]:
        return list(self._under_way)

    def _time_out(self, processor: PartitionProcessor, call: CallInHand, failure: Failure) -> None:
        if (turn := self._under_way.get(processor)) is not None:  # else it has returned after all
            timed_out = TimedOut(
                processor.partition,
                failure,
                listed=len(call.chunk) if call.index is None else 0,
                parked=call.work.parked,
                sequence_id=call.sequence_id,
                outcomes=(turn.so_far,),
            )
            _settle(turn.set_exception, TaskTimedOutError.of(timed_out))


turns_within = cache(Turns)
"""Return the object that runs steps within limits, one per process."""


class PartitionsInTurn:
    """The partitions of a task, which take turns until each is done, has failed, or may not begin another step.

    Args:
        turns: Runs their steps.
        processors: One for each partition.
        outcomes: Where each of them continues.
    """

    def __init__(
        self, turns: Turns, processors: Collection[PartitionProcessor], outcomes: dict[Partition, Outcome]
    ) -> None:
        self.outcomes = outcomes
        self._turns = turns
        self._processors = {each.partition: each for each in processors}
        self._open = list(self._processors)  # those that may have something to do
        self._slow: dict[Partition, Turn] = {}
        self._advancing = set[Partition]()  # those whose last turn moved them
        self._catch_up_until = self._waits_again_at = 0.0
        self._rest = 0.0  # between a wait that was not enough and the next one

    def run(self, until: float, permitted: Permitted) -> None:
        """Have each partition take a turn, and continue with all of them until a time while they have something to do.

        Without a permission no further step is begun, not even the first of a partition. While a turn is slow the
        others continue after that time: the task cannot end. Progress that is not stored yet is stored in the end.

        Raises:
            TaskTimedOutError: If a call of a handler has not returned in time. This worker must do no further step.
        """
        stepping = True
        while self._open or self._slow:
            if stepping:
                self._step_each(permitted)
            stepping = permitted() and (bool(self._slow) or time.monotonic() < until)
            if self._slow:
                self._look_at_slow(resting=not stepping or not self._open)
            elif not stepping:
                break
        for partition in self._open:
            so_far = self.outcomes[partition]
            flushed = so_far.followed_by(self._processors[partition].flush(so_far.cursor))
            self.outcomes[partition] = replace(flushed, idle=False, without_log=so_far.without_log)

    def _step_each(self, permitted: Permitted) -> None:
        """Give each a turn, up to the position of the first, and the first one a step, so that all read the same pages.

        The permission may end during any of the turns.
        """
        alone = len(self._processors) == 1
        some = self._while_some_catch_up()
        for partition in some or tuple(self._open):
            if not permitted() or (some and time.monotonic() >= self._catch_up_until):
                return
            upto = None if alone else max(self.outcomes[one].cursor.position for one in self._open)
            turn = self._turns.begin(self._processors[partition], self.outcomes[partition], permitted, upto)
            self._open.remove(partition)
            if alone or wait([turn], SLOW_SECONDS).done:
                self._take(partition, turn)
            else:
                self._slow[partition] = turn
        if not some:
            self._catch_up_until = time.monotonic() + CATCH_UP_SECONDS

    def _while_some_catch_up(self) -> list[Partition]:
        """Return the partitions that step while the others let them catch up; empty if all are to step.

        Partitions that take as many steps as the first one stay behind it, and pages would be read again for them.
        Those that have not moved, since they work in the inbox, step as well. After a wait in which not all have caught
        up, the next one comes after twice as long a time as before, at most after a second: what is far behind must not
        delay the others.
        """
        position = {one: self.outcomes[one].cursor.position for one in self._open}
        first = max(position.values(), default=0)
        behind = {one for one in self._advancing if position.get(one, first) < first}
        now = time.monotonic()
        if behind and now >= self._catch_up_until:
            self._rest = min(2 * max(self._rest, now - self._catch_up_until + CATCH_UP_SECONDS), _MOST_REST_SECONDS)
            self._waits_again_at = now + self._rest
        if not behind or now < self._waits_again_at:
            return []
        return [one for one in self._open if one in behind or one not in self._advancing]

    def _look_at_slow(self, *, resting: bool) -> None:
        """Process ended turns; the partitions without work check again."""
        wait(self._slow.values(), _LOOK_SECONDS if resting else 0, FIRST_COMPLETED)
        for partition, turn in tuple(self._slow.items()):
            if turn.done():
                del self._slow[partition]
                self._take(partition, turn)
        if self._slow:
            known = {*self._open, *self._slow}
            self._open += [each for each, outcome in self.outcomes.items() if outcome.idle and each not in known]

    def _take(self, partition: Partition, turn: Turn) -> None:
        before = self.outcomes[partition].cursor.position
        try:
            outcome = self.outcomes[partition] = turn.result()
        except TaskTimedOutError as error:
            so_far = self.outcomes | {each: slow.so_far for each, slow in self._slow.items()}
            raise error.beside(one for each, one in so_far.items() if each != partition) from None
        (self._advancing.add if outcome.cursor.position > before else self._advancing.discard)(partition)
        if not outcome.idle and outcome.failure is None:
            self._open.append(partition)


def _step(turn: Turn, processor: PartitionProcessor, permitted: Permitted, upto: float) -> None:
    """Step a partition until it finds nothing, fails, or its turn is over: after a moment, or at a position."""
    until = time.monotonic() + TURN_SECONDS
    while True:
        step = processor.step(turn.so_far.cursor)
        turn.so_far = turn.so_far.followed_by(step)
        if step.idle or step.failure is not None or turn.so_far.cursor.position >= upto:
            return
        if time.monotonic() >= until or not permitted():
            return


def _settle(how: Callable[..., None], what: object) -> None:
    with suppress(InvalidStateError):  # it was abandoned, or returned, a moment before
        how(what)

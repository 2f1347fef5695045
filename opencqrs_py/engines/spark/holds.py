"""Holds: a partition of a group with participants as one long task, from their claim to their release.

Runs on executors. Spark does not send two tasks of a partition to the same Python worker, so nothing is kept between
two of them: a task claims the partition for its participants at its beginning, and has them release it, with what they
can flush, at its end. If a worker is lost, what was not confirmed is lost, too, and the next task resumes after the
stored position.
"""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from opencqrs_py.engines.spark.turns import Turns
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.model.outcome import Outcome
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.checkpoints.checkpointed import CheckpointedProcessor
from opencqrs_py.processing.checkpoints.participation import logger
from opencqrs_py.processing.exceptions import one_line, raise_interrupt
from opencqrs_py.processing.groups import GroupProcessing

if TYPE_CHECKING:
    from opencqrs_py.engines.spark.turns import Permitted

IDLE_SECONDS = 2.0
"""After which a task without new events ends, since others can use its slot."""
_LOOK_SECONDS = 0.2  # between two checks whether the task should end, while no event arrives


class Hold:
    """One partition, for as long as one task has it.

    Args:
        processing: The parts of the group.
        turns: Runs the steps, and watches the calls of handlers in them.
        seconds: How long it has the partition, at most.
        permitted: Returns whether it may continue.
    """

    def __init__(self, processing: GroupProcessing, turns: Turns, seconds: float, permitted: Permitted) -> None:
        self._processing = processing
        self._turns = turns
        self._end = time.monotonic() + seconds
        self._permitted = permitted

    def is_set(self) -> bool:
        """Return whether the task should end."""
        return time.monotonic() >= self._end or not self._permitted()

    def run(self, begun: Outcome) -> Outcome:
        """Handle the partition's events until the end, or until a failure; then have it released.

        The outcome's cursor is where the progress is stored: what was handled after it is handled again. If events were
        handled, and nothing of it is confirmed, that is a failure, unless the end of the task was requested.

        Raises:
            TaskTimedOutError: If a call of a handler has not returned in time. This worker must do no further step.
        """
        processor = self._processing.processor(begun.cursor.partition)
        if begun.failure is not None or not isinstance(processor, CheckpointedProcessor):
            return begun
        watcher = HeadWatcher(self._processing.source)
        try:
            done = self._followed(processor, begun, watcher)
        finally:
            watcher.stop()
        released = _released(processor, done)
        nothing = released.failure is None and released.handled > 0 and released.cursor.stored <= begun.cursor.stored
        if nothing and self._permitted():  # the next task would handle the same again, and so on
            return replace(released, failure=processor.confirms_nothing(released.cursor))
        return released

    def _followed(self, processor: CheckpointedProcessor, so_far: Outcome, watcher: HeadWatcher) -> Outcome:
        rest = processor.resting(self, watcher.wake)
        quiet_since = inf
        while not self.is_set():
            handled = so_far.handled
            turn = self._turns.begin(processor, replace(so_far, idle=False), lambda: not self.is_set())
            so_far = turn.result()
            if so_far.failure is not None:
                break
            if so_far.handled > handled or not so_far.idle:
                quiet_since = inf
            if not so_far.idle:
                continue
            quiet_since = min(quiet_since, time.monotonic())
            if time.monotonic() - quiet_since >= IDLE_SECONDS:
                break
            watcher.wait_beyond(so_far.cursor.position, _LOOK_SECONDS, rest)
        return so_far


def _released(processor: CheckpointedProcessor, so_far: Outcome) -> Outcome:
    """Have the participants flush, and store what they confirm; a failure of a step stays the outcome's.

    If another processor has the partition, they are only closed: a flush would interfere with its own.
    """
    if so_far.is_fenced:
        processor.close()
        return so_far
    cursor: Cursor = so_far.cursor
    released = processor.release(cursor)
    failure = so_far.failure
    if released is not None:
        cursor, failure = released.cursor, failure or released.failure
    try:
        processor.publish(cursor)
    except BaseException as error:  # an outage, which the next task reports
        raise_interrupt(error)
        logger.debug("the positions of %s cannot be published: %s", cursor.partition, one_line(error))
    processor.close()
    back = replace(cursor, position=cursor.stored)
    return replace(so_far, cursor=back, failure=failure, idle=False, checkpoint=False)

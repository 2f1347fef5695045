"""The watch over calls of handlers in a Python worker of Spark. Runs on executors.

A call that takes long is logged there. One that takes too long ends the task with an error that says which it is, and
with the task its worker, and the call's transaction: the driver settles it as the event's error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias

from pydantic import TypeAdapter

from opencqrs_py.engines.call_watching import CallWatcher
from opencqrs_py.model.outcome import Failure, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.calls import CallInHand, CallLimits
from opencqrs_py.processing.ports import SystemClock
from opencqrs_py.processing.processor import PartitionProcessor


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A call that was given up: its partition, what it comes to, and how many events it got if that was a list."""

    partition: Partition
    failure: Failure
    listed: int


_TIMED_OUT = TypeAdapter(TimedOut)
_Answers: TypeAlias = "SimpleQueue[Outcome | TimedOut]"


class TaskTimedOutError(Exception):
    """A call of a handler has not returned in time; its text is one line of JSON."""


def timed_out_of(line: str) -> TimedOut | None:
    """Return what the last line of a traceback tells of a call that was given up; ``None`` for other errors."""
    _, found, text = line.partition(f"{TaskTimedOutError.__name__}: ")
    return _TIMED_OUT.validate_json(text) if found else None


class WatchedSteps:
    """Does the steps of processors, whose calls it watches. One for all tasks of a worker with the same limits."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._under_way: tuple[PartitionProcessor, _Answers] | None = None
        self._asked: SimpleQueue[tuple[PartitionProcessor, Cursor, _Answers]] = SimpleQueue()
        if limits.timeout < inf:
            Thread(target=self._serve, name="opencqrs-steps", daemon=True).start()
        CallWatcher(self._processors, [limits], self._time_out, SystemClock()).start()

    def step(self, processor: PartitionProcessor, cursor: Cursor) -> Outcome:
        """Do a step; where calls may time out, on a thread that can be left to itself.

        Raises:
            TaskTimedOutError: If a call has not returned in time. This worker must do no further step.
        """
        answers: _Answers = SimpleQueue()
        self._under_way = processor, answers
        try:
            if self._limits.timeout == inf:
                return processor.step(cursor)
            self._asked.put((processor, cursor, answers))
            answer = answers.get()
        finally:
            self._under_way = None
        if isinstance(answer, Outcome):
            return answer
        raise TaskTimedOutError(_TIMED_OUT.dump_json(answer).decode())

    def _serve(self) -> None:
        while True:
            processor, cursor, answers = self._asked.get()
            answers.put(processor.step(cursor))

    def _processors(self) -> list[PartitionProcessor]:
        under_way = self._under_way
        return [] if under_way is None else [under_way[0]]

    def _time_out(self, processor: PartitionProcessor, call: CallInHand, failure: Failure) -> None:
        under_way = self._under_way
        if under_way is not None and under_way[0] is processor:  # else it has returned at last
            listed = len(call.chunk) if call.index is None else 0
            under_way[1].put(TimedOut(processor.partition, failure, listed))


steps_within = cache(WatchedSteps)
"""Return what does steps within limits, the same in all of the process."""

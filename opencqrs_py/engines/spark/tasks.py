"""Tasks and results: what driver and executors say to each other, as one line of JSON each.

Runs on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from opencqrs_py.model.outcome import Outcome
from opencqrs_py.model.progress import Cursor

__all__ = ["Task", "TaskResult", "read_result", "read_task", "write_result", "write_task"]


@dataclass(frozen=True, slots=True)
class Task:
    """Work for one task: partitions of one group that share one reading of the log.

    Attributes:
        cursors: Where each of the partitions continues.
        seconds: Time after which no further step is begun.
    """

    cursors: tuple[Cursor, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What came of a task: one outcome per cursor, in their order."""

    outcomes: tuple[Outcome, ...]


_TASK = TypeAdapter(Task)
_RESULT = TypeAdapter(TaskResult)


def write_task(task: Task) -> str:
    """Return the task as a line."""
    return _TASK.dump_json(task).decode()


def read_task(line: str) -> Task:
    """Return the task that a line stands for."""
    return _TASK.validate_json(line)


def write_result(result: TaskResult) -> str:
    """Return the result as a line."""
    return _RESULT.dump_json(result).decode()


def read_result(line: str) -> TaskResult:
    """Return the result that a line stands for."""
    return _RESULT.validate_json(line)

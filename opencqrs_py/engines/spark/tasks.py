"""What driver and executors say to each other: tasks and results as lines of JSON, recipes and permits as files.

A recipe holds the settings of a group, with the URL of the database and the token of the event store. Whatever Spark
sends to a task goes through its block manager, so with a local master only the name of a file is sent. Nothing reaches
a task once it has begun, so a file that is not there any more asks it to end. Runs on both sides.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter
from pyspark import cloudpickle

from opencqrs_py.engines.runs import Recipe
from opencqrs_py.model.outcome import Outcome
from opencqrs_py.model.progress import Cursor


@dataclass(frozen=True, slots=True)
class Task:
    """Work for one task: partitions of one group that share one reading of the log, and where each of them continues.

    After ``seconds`` no further step is begun.
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


@dataclass(frozen=True)
class KeptRecipe:
    """Where a recipe is: the path of a file on this machine."""

    file: str

    def fetch(self) -> Recipe:
        """Return the recipe, read once per process; ``OSError`` if the run that kept it is over. For executors."""
        return _read(self.file)


@dataclass(frozen=True)
class Permit:
    """What a task needs to begin another chunk: a file on this machine that exists for as long as it may.

    The path is empty where workers are elsewhere: then it always may.
    """

    file: str = ""

    @classmethod
    def in_folder(cls, folder: str) -> Permit:
        """Return one whose file will be in this folder; it is not given yet."""
        return cls(str(Path(folder, f"permit-{uuid.uuid4().hex}")))

    @property
    def holds(self) -> bool:
        """Whether another chunk may begin."""
        return not self.file or os.path.exists(self.file)  # noqa: PTH110 four times as fast, once a chunk

    def give(self) -> None:
        """Let tasks go on. Runs on the driver."""
        if self.file:
            Path(self.file).touch(0o600)

    def withdraw(self) -> None:
        """Have tasks end after the chunk in hand. Runs on the driver."""
        if self.file:
            Path(self.file).unlink(missing_ok=True)


ALWAYS = Permit()


def keep(recipe: Recipe, folder: Path) -> KeptRecipe:
    """Write a recipe to a new file that only this user can read. Runs on the driver.

    The folder lives as long as Spark, which deletes it.
    """
    file = folder / f"recipe-{uuid.uuid4().hex}"
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as written:  # noqa: PTH123 - a handle, not a path
        written.write(cloudpickle.dumps(recipe))  # type: ignore[no-untyped-call] # PySpark says no types for it
    return KeptRecipe(str(file))


@cache
def _read(file: str) -> Recipe:
    recipe: Recipe = cloudpickle.loads(Path(file).read_bytes())
    return recipe

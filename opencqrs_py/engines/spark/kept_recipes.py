"""What workers on the driver's machine find in files of their own user: recipes, and the permission to go on.

A recipe holds the settings of a group, with the URL of the database and the token of the event store. Whatever Spark
sends to a task goes through its block manager, so with a local master only the name of a file is sent.

Nothing reaches a task once it has begun, so a file that is not there any more asks it to end.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pyspark import cloudpickle

from opencqrs_py.engines.runs import Recipe

__all__ = ["KeptRecipe", "keep"]


@dataclass(frozen=True)
class KeptRecipe:
    """Where a recipe is.

    Attributes:
        file: Path of the file, on this machine.
    """

    file: str

    def fetch(self) -> Recipe:
        """Return the recipe; it is read once per process. Runs on an executor.

        Raises:
            OSError: If the run that has kept it is over.
        """
        return _read(self.file)


@dataclass(frozen=True)
class Permit:
    """What a task needs to begin another chunk.

    Attributes:
        file: Path of the file that exists for as long as it may, on this machine. Empty where workers are elsewhere:
            then it always may.
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

    Args:
        recipe: The recipe.
        folder: A folder that lives as long as Spark, which deletes it.
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

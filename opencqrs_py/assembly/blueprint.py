"""Blueprints: all that another process needs to assemble the same parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from opencqrs_py.assembly.discovery import Discovered, discover, import_modules
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.processing.group import GroupProcessing

__all__ = ["Blueprint", "GroupRecipe", "UserModules", "located"]


@dataclass(frozen=True, slots=True)
class UserModules:
    """Where the handlers are.

    Attributes:
        names: Names of the user's modules.
        roots: Folders that must be on ``sys.path`` to import them; those that a machine lacks are left out there.
        files: Their files, which travel to the executors of a cluster.
        only: ``module:name`` of the handlers to take, ``None`` for all.
    """

    names: tuple[str, ...]
    roots: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    only: frozenset[str] | None = None

    def shipped(self) -> tuple[tuple[Path, str], ...]:
        """Return each file with its place below the root from which it is imported."""
        roots = [Path(root) for root in self.roots]
        pairs = ((Path(file), root) for file in self.files for root in reversed(roots))
        return tuple((file, str(file.relative_to(root))) for file, root in pairs if file.is_relative_to(root))


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What an application is made from, without anything that runs. Pickles, hashes, compares by value.

    Attributes:
        modules: Where the handlers are.
        event_store_url: URL of the event store, absolute.
        database_url: URL of the read models' database, absolute.
    """

    modules: UserModules
    event_store_url: str
    database_url: str

    def discover(self) -> Discovered:
        """Import the modules and find the handlers; once per process."""
        return _discovered(self)


@dataclass(frozen=True, slots=True)
class GroupRecipe:
    """Builds one group's parts in any process, by the same container as the driver's.

    Attributes:
        blueprint: What the application is made from.
        settings: The group's effective settings.
    """

    blueprint: Blueprint
    settings: EffectiveGroup

    def __call__(self) -> GroupProcessing:
        """Assemble the parts. Called once per Spark worker and group."""
        from opencqrs_py.assembly.container import (  # noqa: PLC0415 the container's module imports this one
            add_groups,
            assemble,
        )

        container = assemble(self.blueprint)
        add_groups(container, [self.settings])
        processing: GroupProcessing = container.groups()[self.settings.name].processing()
        return processing


def located(url: str, project: Path) -> str:
    """Return a database URL with a relative SQLite path made absolute, seen from the project folder."""
    prefix = "sqlite:///"
    path = url.removeprefix(prefix)
    if not url.startswith(prefix) or not path or path.startswith((":memory:", "file:")) or Path(path).is_absolute():
        return url
    return prefix + (project.resolve() / path).as_posix()


@cache
def _discovered(blueprint: Blueprint) -> Discovered:
    modules = blueprint.modules
    roots = [path for root in modules.roots if (path := Path(root)).is_dir()]
    return discover(import_modules(modules.names, roots), modules.only)

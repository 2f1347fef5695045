"""Blueprints: all that another process needs to assemble the same parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from opencqrs_py.assembly.databases import DatabaseRule
from opencqrs_py.assembly.discovery import Discovered, discover
from opencqrs_py.assembly.importing import import_modules
from opencqrs_py.assembly.reading import PLAIN, EventsRule
from opencqrs_py.model.mapping import TableMapping


@dataclass(frozen=True, slots=True)
class UserModules:
    """Where the handlers are.

    Attributes:
        names: Names of the user's modules.
        roots: Folders that must be on ``sys.path`` to import them; those that a machine lacks are left out there.
        files: Their files, which travel to the executors of a cluster.
        places: File of each module, as far as it is known; on a machine that has it, an import has to find it.
        only: References of the handlers to take: ``module:name``, from the second of that name on ``module:name#2``,
            and ``module:*`` for all of a module; ``None`` for all. They name the same in every process, since a
            module registers what is decorated in the order in which its lines run.
    """

    names: tuple[str, ...]
    roots: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    only: frozenset[str] | None = None
    places: tuple[str, ...] = ()

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
        database: What settings say of the read models' database and of the event store.
        events: What settings say of how stored events are read.
        api_token: What EventSourcingDB asks for.
        mapping: The table of another system that is the event store, ``None`` for a store of ours.
        secrets: Secret values of the settings, which no message must show.
    """

    modules: UserModules
    database: DatabaseRule
    events: EventsRule = PLAIN
    api_token: str = field(default="", repr=False)
    mapping: TableMapping | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def event_store_url(self) -> str:
        """URL of the event store, absolute."""
        return self.database.event_store.value

    def discover(self) -> Discovered:
        """Import the modules and find the handlers; once per process."""
        return _discovered(self.modules)


@cache
def _discovered(modules: UserModules) -> Discovered:
    roots = [path for root in modules.roots if (path := Path(root)).is_dir()]
    expected = dict(zip(modules.names, modules.places, strict=False))
    return discover(import_modules(modules.names, roots, expected), modules.only)

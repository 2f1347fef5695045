"""Blueprints: all that another process needs to import the same modules, assemble the same parts and close them."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

from opencqrs_py.assembly.conditions import raise_together
from opencqrs_py.assembly.databases import DatabaseRule
from opencqrs_py.assembly.discovery.discovered import Discovered
from opencqrs_py.assembly.discovery.discovery import discover
from opencqrs_py.assembly.discovery.members import EVERYTHING, home_of, reference_of
from opencqrs_py.assembly.discovery.project import Scan
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.assembly.jobs.events import EventTrigger
from opencqrs_py.assembly.reading import PLAIN, EventsRule
from opencqrs_py.errors import AssemblyError, ExplainedError
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.processing.exceptions import message_of, one_line, raise_interrupt, type_name
from opencqrs_py.processing.loggers import enable_loggers
from opencqrs_py.processing.supervision import SupervisedPartition

_log = logging.getLogger("opencqrs.settings")
_LEAVE_OUT = "discovery.exclude, or the modules with handlers in discovery.modules"
_MAIN = f'put what is to run below if __name__ == "__main__":, or name the module in {_LEAVE_OUT}'
_START = (
    'put what is to run below if __name__ == "__main__":; a module that a server imports must keep its start: '
    f"name it in {_LEAVE_OUT}"
)
_being_imported: ContextVar[str] = ContextVar("module that discovery imports", default="")


@dataclass(frozen=True, slots=True)
class UserModules:
    """Where the handlers are.

    Attributes:
        names: Names of the user's modules.
        roots: Folders that must be on ``sys.path`` to import them; those that a machine lacks are left out there.
        files: Their files, which travel to the executors of a cluster.
        places: File of each module, as far as it is known; on a machine that has it, an import has to find it.
        containers: Whether a module may declare a container; if not, what is provided is known without an import.
        only: References of the handlers to take: ``module:name``, from the second of that name on ``module:name#2``,
            and ``module:*`` for all of a module; ``None`` for all. They name the same in every process, since a
            module registers what is decorated in the order in which its lines run.
        named_at: Place of the setting ``discovery.modules`` that names them; empty if they were found.
    """

    names: tuple[str, ...]
    roots: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    only: frozenset[str] | None = None
    places: tuple[str, ...] = ()
    containers: bool = True
    named_at: str = ""

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
        database: Settings of the read models' database and of the event store.
        events: Settings for reading stored events.
        api_token: The token for EventSourcingDB.
        mapping: The table of another system that is the event store, ``None`` for a store of ours.
        clock_ref: Provider of the clock; ``None`` when settings name none.
        secrets: Secret values of the settings, which no message must show.
        job_triggers: Settings of the events that start jobs.
    """

    modules: UserModules
    database: DatabaseRule
    events: EventsRule = PLAIN
    api_token: str = field(default="", repr=False)
    mapping: TableMapping | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    clock_ref: str | None = None
    rebuilding: bool = False
    job_triggers: tuple[EventTrigger, ...] = ()

    @property
    def event_store_url(self) -> str:
        """URL of the event store, absolute."""
        return self.database.event_store.value

    def discover(self) -> Discovered:
        """Import the modules and find the handlers; once per process.

        Threads that do so at the same moment get what the first has found. None waits for another: an import runs the
        user's code, which may itself wait for a thread, or for a lock of the containers.
        """
        if (known := _discoveries.get(self.modules)) is None:
            made = _Discovery(_discovered(self.modules), _imports_of(self.modules))
            with _lock:
                known = _discoveries.setdefault(self.modules, made)
        return known.found

    @property
    def discovered(self) -> Discovered | None:
        """What ``discover`` has found; ``None`` before it is called, and after ``forget``."""
        known = _discoveries.get(self.modules)
        return None if known is None else known.found

    def injector(self) -> ContainerInjector:
        """Return what the user's containers provide; imports nothing if no module declares one."""
        return self.discover().injector if self.modules.containers else ContainerInjector()

    def forget(self, found: Discovered) -> bool:
        """Have the next ``discover`` make the project's containers and handler classes again.

        Args:
            found: What is to be forgotten.

        Returns:
            Whether it was known until now; ``False`` if another thread was faster.
        """
        with _lock:
            if self.discovered is not found:
                return False
            del _discoveries[self.modules]
            return True

    def forget_outdated(self) -> None:
        """Forget what was found if a module was imported again since, or a provider was overridden.

        Not while an application of this process runs with it.
        """
        known = _discoveries.get(self.modules)
        if known is None or known.found.injector.in_use:
            return
        imports = zip(known.imports, _imports_of(self.modules), strict=True)
        is_outdated = known.found.injector.is_outdated or any(before is not now for before, now in imports)
        if is_outdated and self.forget(known.found):
            known.found.injector.close_resources(was_user=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Discovery:
    """What a discovery has found, and the import of each module that it has inspected."""

    found: Discovered
    imports: tuple[object, ...]


_discoveries: dict[UserModules, _Discovery] = {}
_lock = Lock()  # held briefly, while they are changed


def _imports_of(modules: UserModules) -> tuple[object, ...]:
    """Return what identifies the last import of each module; ``importlib.reload`` makes a new one."""
    return tuple(getattr(sys.modules.get(name), "__spec__", None) for name in modules.names)


def _discovered(modules: UserModules) -> Discovered:
    roots = [path for root in modules.roots if (path := Path(root)).is_dir()]
    expected = dict(zip(modules.names, modules.places, strict=False))
    imported = import_modules(modules.names, roots, expected, modules.named_at)
    enable_loggers()
    return discover(imported, modules.only)


def modules_in(scan: Scan, named_at: str = "") -> UserModules:
    """Return the modules of a project folder: those that were found, or that the setting at a place names."""
    return UserModules(
        names=tuple(dict.fromkeys(module.name for module in scan.modules)),
        roots=scan.roots,
        files=tuple(str(module.path) for module in scan.files),
        places=tuple(str(module.path) for module in scan.modules),
        containers=scan.containers or not scan.complete,
        named_at=named_at,
    )


def modules_of(handlers: Sequence[Any]) -> UserModules:
    """Return the modules of what is given: modules with all their handlers, and single functions and classes.

    Raises:
        AssemblyError: OCQ-513, if other processes could not find one of them.
        TypeError: If one is something else, such as the name of a module.
    """
    for each in handlers:
        if not isinstance(each, ModuleType | type) and not callable(each):
            raise TypeError(
                f"handlers must be modules, functions or classes, got {each!r}; import it and pass the imported object"
            )
    homes = [each.__name__ if isinstance(each, ModuleType) else home_of(each) for each in handlers]
    _require_importable(homes)
    references = frozenset(
        f"{home}:{EVERYTHING}" if isinstance(each, ModuleType) else reference_of(each, sys.modules[home])
        for each, home in zip(handlers, homes, strict=True)
    )
    modules = tuple(dict.fromkeys(homes))
    roots = tuple(dict.fromkeys(_root_of(sys.modules[name]) for name in modules))
    files = tuple(str(sys.modules[name].__file__) for name in modules)
    whole = all(isinstance(each, ModuleType) for each in handlers)
    return UserModules(modules, roots, files, None if whole else references)


def _require_importable(names: Sequence[str]) -> None:
    """Refuse modules that other processes could not import: OCQ-513."""
    if "__main__" in names:
        what = "handlers of the program's main module cannot be found by other processes, such as Spark's workers"
        fix = "put them into a module of their own and import it"
        raise AssemblyError("OCQ-513", what, str(getattr(sys.modules["__main__"], "__file__", "__main__")), fix)
    if unknown := next((name for name in names if name not in sys.modules), None):
        what = f"the module '{unknown}' was not imported in the usual way: it is not in sys.modules"
        fix = "import it by its name; or register it there before its code runs: sys.modules[module.__name__] = module"
        raise AssemblyError("OCQ-513", what, fix=fix)
    if lost := next((name for name in names if not getattr(sys.modules[name], "__file__", None)), None):
        what = f"the module '{lost}' has no file from which other processes could import it"
        fix = "put its handlers into a file and import that; of a folder without __init__.py, pass its modules"
        raise AssemblyError("OCQ-513", what, fix=fix)


def _root_of(module: ModuleType) -> str:
    """Return the folder from which a module is imported."""
    file = Path(str(module.__file__))
    if file.name == "__init__.py":
        file = file.parent
    return str(file.parents[module.__name__.count(".")])


_IMPORT_FIX = f"fix the line named, install what it imports, or name the module in {_LEAVE_OUT}"
_NAMED_FIX = (
    "give the file and its folders names without a dot that no other module has, or name it in discovery.exclude"
)
_NAME_FIX = "name modules as an import does, such as shop.handlers for shop/handlers.py, or leave the setting out"
_BREAK_CYCLE = "break the cycle: move what both modules need into a third one"
_OURS = Path(__file__).parents[1]


def import_modules(
    names: Sequence[str], roots: Iterable[Path], expected: Mapping[str, str] | None = None, named_at: str = ""
) -> list[ModuleType]:
    """Import the user's modules from some folders; each has to come from the file that is known on this machine.

    Raises:
        HandlerSignatureError: If a decorator refuses what it is given.
        AssemblyError: OCQ-501, if one cannot be imported or ends the program; names the file and line that raised.
            OCQ-512, if another module has the same name.
        AssemblyErrors: All of these, if there are several.
        KeyboardInterrupt: If Ctrl-C was pressed.
    """
    unique = list(dict.fromkeys(str(root) for root in roots))
    for root in unique:
        if root not in sys.path:
            sys.path.insert(0, root)
    importlib.invalidate_caches()
    modules: list[ModuleType] = []
    errors: dict[tuple[str, str], ExplainedError] = {}
    for name in names:
        try:
            file = (expected or {}).get(name, "")
            modules.append(_imported(name, unique, file, named_at))
            _check_place(modules[-1], unique, file)
        except ExplainedError as error:
            where = error.where
            cause = one_line(error.__cause__) if error.__cause__ else error.what
            if error.fix == _BREAK_CYCLE:  # each module of the cycle fails, in a line of the other
                cause = where = _BREAK_CYCLE
            errors.setdefault((cause, where), error)  # importers of a broken module fail like it
    raise_together(errors.values())
    return modules


def refuse_in_import() -> None:
    """Refuse to start an application in a module that discovery imports: it would run within that of the project.

    Raises:
        AssemblyError: OCQ-501, with the line of the module once it has passed through the import.
    """
    name = _being_imported.get()
    if name:
        raise AssemblyError("OCQ-501", f"module '{name}' starts an application when it is imported", fix=_START)


def _imported(name: str, roots: Sequence[str], expected: str, named_at: str) -> ModuleType:
    before = _being_imported.set(name)
    try:
        return importlib.import_module(name)
    except SystemExit as error:
        what = f"module '{name}' ends the program when it is imported (SystemExit: {message_of(error)})"
        raise AssemblyError("OCQ-501", what, _raised_at(error, roots), _MAIN) from error
    except ExplainedError as error:  # of a decorator, which does not know its line
        raise type(error)(error.code, error.what, error.where or _raised_at(error, roots), error.fix) from error
    except BaseException as error:  # an import runs the user's code; everything but Ctrl-C is that module's error
        raise_interrupt(error)
        if named_at and _is_missing(name, error):
            raise AssemblyError("OCQ-501", f"there is no module '{name}'", named_at, _NAME_FIX) from None
        what = f"module '{name}' cannot be imported ({type_name(error)}: {message_of(error)})"
        fix = _BREAK_CYCLE if "circular import" in str(error) else _IMPORT_FIX
        raised_at = _raised_at(error, roots)
        if not raised_at and _is_missing(name, error):  # which discovery has found, unlike Python
            raised_at, fix = expected, _NAMED_FIX if Path(expected).is_file() else fix
        raise AssemblyError("OCQ-501", what, raised_at, fix) from error
    finally:
        _being_imported.reset(before)


def _is_missing(name: str, error: BaseException) -> bool:
    """Return whether a module does not exist, rather than one that it imports."""
    missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
    return missing or name.startswith(".")


def _raised_at(error: BaseException, roots: Sequence[str]) -> str:
    """Return the innermost line of the project, else of any code, that raised ``error``."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    trace = error.__traceback__
    frames = [frame for frame in inspect.getinnerframes(trace) if "importlib" not in frame.filename] if trace else []
    if len(frames) <= 1:
        return str(getattr(error, "filename", None) or "")
    own = [frame for frame in frames if any(Path(frame.filename).is_relative_to(root) for root in roots)]
    ours = Path(frames[-1].filename).is_relative_to(_OURS)
    frame = own[-1] if own and (ours or isinstance(error, SystemExit)) else frames[-1]
    return f"{frame.filename}:{frame.lineno}"


def _check_place(module: ModuleType, roots: Sequence[str], expected: str) -> None:
    """Refuse a module that another of the same name shadows, such as ``calendar``."""
    file = getattr(module, "__file__", None)
    if expected and Path(expected).exists():
        hidden = not file or Path(file).resolve() != Path(expected).resolve()
    else:
        hidden = any(roots) and not any(_lies_in(file, root) for root in roots)
    if hidden:
        what = f"module '{module.__name__}' of the project is shadowed by another module of that name"
        raise AssemblyError("OCQ-512", what, file or "built in", "give the project's file another name")


def _lies_in(file: str | None, root: str) -> bool:
    return Path(file or "/").resolve().is_relative_to(Path(root).resolve())


class ProjectResources:
    """Every ``providers.Resource`` of the project's containers, as one application opens and closes them.

    Applications of one process that share containers share them, too. ``forget_parts`` has the application's parts
    created again on their next use.
    """

    def __init__(self, blueprint: Blueprint, forget_parts: Callable[[], None]) -> None:
        self._blueprint = blueprint
        self._forget_parts = forget_parts
        self._found: Discovered | None = None  # what the application's parts are made of
        self._is_user = False
        blueprint.forget_outdated()

    def use(self) -> None:
        """Remember from which containers the new parts are made."""
        self._found = self._found or self._blueprint.discover()

    def renew(self) -> None:
        """Have all parts made again if the containers were closed since they were made, or are outdated."""
        self._blueprint.forget_outdated()
        if self._found is not None and self._found is not self._blueprint.discovered:
            self._forget_parts()
            self._found = self._blueprint.discover()

    def open(self) -> None:
        """Open every resource that needs no event loop; raise OCQ-217, naming it, for one that cannot be opened."""
        self.renew()
        self._found = found = self._blueprint.discover()
        if not self._is_user:
            self._is_user = True
            found.injector.open_resources()

    def close(self, in_hand: Sequence[SupervisedPartition]) -> None:
        """Close what is open, also what parts have opened when they were made, unless others may still use it.

        Nothing is closed while handlers of the partitions ``in_hand`` have not returned.
        """
        found = self._blueprint.discovered
        if found is None:
            return
        if in_hand and found.injector.has_resources:
            shown = ", ".join(f"{each.group} {each.partition}" for each in in_hand)
            _log.warning("resources stay open: handlers are still running (%s); another stop() closes them", shown)
            return
        was_user, self._is_user = self._is_user, False
        if found.injector.close_resources(was_user=was_user):
            self._found = found
            self._blueprint.forget(found)

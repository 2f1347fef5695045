"""From what an application is given, a project or modules and functions, to the modules that every process imports."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from opencqrs_py.assembly.blueprint import UserModules
from opencqrs_py.assembly.members import EVERYTHING, home_of, reference_of
from opencqrs_py.assembly.sources import Scan
from opencqrs_py.errors import AssemblyError

__all__ = ["modules_in", "modules_of"]


def modules_in(scan: Scan) -> UserModules:
    """Return the modules that were found in a project folder."""
    return UserModules(
        names=tuple(dict.fromkeys(module.name for module in scan.modules)),
        roots=scan.roots,
        files=tuple(str(module.path) for module in scan.files),
        places=tuple(str(module.path) for module in scan.modules),
    )


def modules_of(handlers: Sequence[Any]) -> UserModules:
    """Return the modules of what is given: modules with all their handlers, and single functions and classes.

    Raises:
        AssemblyError: OCQ-513, if other processes could not find one of them.
    """
    homes = [each.__name__ if isinstance(each, ModuleType) else home_of(each) for each in handlers]
    if "__main__" in homes:
        what = "handlers of the program's main module cannot be found by other processes, such as Spark's workers"
        fix = "put them into a module of their own and import it"
        raise AssemblyError("OCQ-513", what, str(getattr(sys.modules["__main__"], "__file__", "__main__")), fix)
    references = frozenset(
        f"{home}:{EVERYTHING}" if isinstance(each, ModuleType) else reference_of(each, sys.modules[home])
        for each, home in zip(handlers, homes, strict=True)
    )
    modules = tuple(dict.fromkeys(homes))
    roots = tuple(dict.fromkeys(_root_of(sys.modules[name]) for name in modules))
    files = tuple(str(sys.modules[name].__file__) for name in modules)
    whole = all(isinstance(each, ModuleType) for each in handlers)
    return UserModules(modules, roots, files, None if whole else references)


def _root_of(module: ModuleType) -> str:
    """Return the folder from which a module is imported."""
    file = Path(str(module.__file__))
    if file.name == "__init__.py":
        file = file.parent
    return str(file.parents[module.__name__.count(".")])

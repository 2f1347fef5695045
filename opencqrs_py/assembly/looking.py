"""What was looked at for handlers: modules, what was found in them, and what was passed over and why."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from opencqrs_py.assembly.blueprint import UserModules
from opencqrs_py.assembly.conditions import Decision
from opencqrs_py.assembly.discovery import Discovered
from opencqrs_py.assembly.sources import Scan
from opencqrs_py.errors import ExplainedError, SeveralErrors

__all__ = ["looked_at"]


def looked_at(
    modules: UserModules, scan: Scan | None, project: Path, found: Discovered | ExplainedError
) -> list[Decision]:
    """Return a decision for each module, each file that was passed over, and the handlers of each group.

    Args:
        modules: The modules that are imported.
        scan: How they were found; ``None`` when they were given.
        project: The project folder.
        found: What is in them, or why that is not known.
    """
    if isinstance(found, ExplainedError):
        errors = found.errors if isinstance(found, SeveralErrors) else (found,)
        imported = [Decision("", "discovery", "", error.what, error=error) for error in errors]
    else:
        imported = list(_modules(modules, scan, project, found))
    passed = scan.passed_over if scan else ()
    left_out = [Decision("", f"discovery {_below(each.path, project)}", "passed over", each.why) for each in passed]
    if isinstance(found, ExplainedError):
        return [*imported, *left_out]
    warned = [
        Decision("", "discovery", "warning", f"{each.what} ({each.where}); {each.fix}") for each in found.warnings
    ]
    return [*imported, *left_out, *warned, *_handlers(found, project)]


def _modules(modules: UserModules, scan: Scan | None, project: Path, found: Discovered) -> Iterator[Decision]:
    counted = Counter(handler.reference.partition(":")[0] for handler in found.handlers)
    paths = {module.name: _below(module.path, project) for module in scan.modules} if scan else {}
    for name in modules.names:
        reason = f"module {name} has {counted[name]} handler{'' if counted[name] == 1 else 's'}"
        yield Decision("", f"discovery {paths.get(name, name)}", "imported", reason)


def _handlers(found: Discovered, project: Path) -> Iterator[Decision]:
    for group in found.groups:
        places = tuple(handler.place.removeprefix(f"{project}{os.sep}") for handler in found.of_group(group))
        yield Decision(group, "handlers", str(len(places)), "in the order in which they run", places)


def _below(path: Path, project: Path) -> str:
    return str(path.relative_to(project)) if path.is_relative_to(project) else str(path)

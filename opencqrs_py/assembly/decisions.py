"""Every decision of an application: on its parts, each with the place of its setting, and of discovery."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from opencqrs_py.assembly.blueprint import UserModules
from opencqrs_py.assembly.checkpointing import MODE, decide_checkpointing
from opencqrs_py.assembly.conditions import REGISTRATION, Decision, decide_batch, undecided
from opencqrs_py.assembly.databases import decide_event_store
from opencqrs_py.assembly.discovery.discovered import Discovered
from opencqrs_py.assembly.discovery.project import Scan
from opencqrs_py.assembly.replacements import as_made, decide_observers
from opencqrs_py.config import Configuration, EffectiveGroup
from opencqrs_py.errors import ExplainedError, SeveralErrors
from opencqrs_py.model.naming import counted
from opencqrs_py.processing.frames import FrameDispatcher

if TYPE_CHECKING:
    from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer


def decisions(
    configuration: Configuration,
    container: ApplicationContainer,
    groups: Sequence[EffectiveGroup],
    containers: Mapping[str, GroupContainer],
) -> list[Decision]:
    """Return the choices for the application and for each group, each with the place of its setting."""
    database = container.database_choice().decision
    injector = container.discovered().injector
    store = as_made(decide_event_store(container.database_rule(), injector), container.event_store)
    clock = as_made(container.clock_choice(), container.clock)
    made = [database, store, clock]
    if (observers := decide_observers(injector)) is not None:
        made.append(as_made(observers, container.observers))
    for settings in groups:
        group = containers[settings.name]
        tracking = as_made(group.tracking(), group.tracker)
        waiting = as_made(group.waiting(), group.back_off)
        missing = next((each for each in (store, clock, tracking, waiting) if not each.choice), None)
        batch = _batch(settings, group, missing)
        leader = group.registration if group.controller().setting == REGISTRATION else group.lock_registry
        made += [tracking, waiting, as_made(group.controller(), leader), batch, *_checkpointing(settings, group)]
    return [_with_origin(each, configuration) for each in made]


def _checkpointing(settings: EffectiveGroup, group: GroupContainer) -> list[Decision]:
    """Decide when the progress of a group with participants is stored; nothing for others."""
    try:
        checkpointing = group.checkpointing()
    except ExplainedError as error:
        return [undecided(settings.name, MODE, error)] if _are_bound(group) else []  # else reported with the chunks
    return [] if checkpointing is None else [decide_checkpointing(settings, checkpointing)]


def _are_bound(group: GroupContainer) -> bool:
    """Return whether the handlers of a group are right, apart from what participants ask of them."""
    try:
        group.handlers()
    except ExplainedError:
        return False
    return True


def _batch(settings: EffectiveGroup, group: GroupContainer, missing: Decision | None) -> Decision:
    """Decide on the chunks of a group, for which its handlers and its parts have to be right."""
    path = "processing.batch-size"
    try:
        calls = group.dispatcher()
        takes = {"in_tables": calls.takes_tables, "in_frames": isinstance(calls, FrameDispatcher)}
        if missing is not None:
            return Decision(settings.name, path, "", f"{missing.subject} is not decided")
        processing = group.processing()
        size = processing.batch_size
        if processing.checkpointing is not None and settings.processing.batch_size is None:
            reason = "participants handle events outside of the progress transaction, and report which are durable"
            return Decision(settings.name, path, str(size), reason)
    except ExplainedError as error:
        return undecided(settings.name, path, error)
    return decide_batch(settings, transactional=calls.transactional, size=size, **takes)


def _with_origin(decision: Decision, configuration: Configuration) -> Decision:
    """Add the place of the deciding setting to the reason, or to the error."""
    if not decision.setting:
        return decision
    prefix = f"event-handling.groups[{decision.group}]." if decision.group else ""
    origin = configuration.origin(prefix + decision.setting)
    if (error := decision.error) is None:
        return replace(decision, reason=f"{decision.reason} ({origin})")
    return replace(decision, error=type(error)(error.code, error.what, f"{error.where} ({origin})", error.fix))


def discovery_decisions(
    modules: UserModules, scan: Scan | None, project: Path, found: Discovered | ExplainedError
) -> list[Decision]:
    """Return a decision for each module, each file that was skipped, and the handlers of each group.

    The scan is ``None`` when the modules were given; ``found`` is what is in them, or why that is not known.
    """
    if isinstance(found, ExplainedError):
        errors = found.errors if isinstance(found, SeveralErrors) else (found,)
        imported = [Decision("", "discovery", "", error.what, error=error) for error in errors]
    else:
        imported = list(_modules(modules, scan, project, found))
    passed = scan.skipped if scan else ()
    left_out = [Decision("", f"discovery {below(each.path, project)}", "passed over", each.why) for each in passed]
    if isinstance(found, ExplainedError):
        return [*imported, *left_out]
    warned = [
        Decision("", "discovery", "warning", f"{each.what} ({each.where}); {each.fix}") for each in found.warnings
    ]
    return [*imported, *left_out, *warned, *_handlers(found, project)]


def _modules(modules: UserModules, scan: Scan | None, project: Path, found: Discovered) -> Iterator[Decision]:
    handlers = Counter(handler.reference.partition(":")[0] for handler in found.declared)
    paths = {module.name: below(module.path, project) for module in scan.modules} if scan else {}
    jobs = Counter(job.reference.partition(":")[0] for job in found.jobs)
    for name in modules.names:
        there = [counted(handlers[name], "handler")] if handlers[name] or not jobs[name] else []
        there += [counted(jobs[name], "job")] if jobs[name] else []
        reason = f"module {name} has {' and '.join(there)}"
        yield Decision("", f"discovery {paths.get(name, name)}", "imported", reason)


def _handlers(found: Discovered, project: Path) -> Iterator[Decision]:
    for group in found.groups:
        places = tuple(handler.place.removeprefix(f"{project}{os.sep}") for handler in found.declared_of(group))
        yield Decision(group, "handlers", str(len(places)), "in the order in which they run", places)


def below(path: Path, project: Path) -> str:
    """Return the path of a file from the project folder on, if it is there."""
    return str(path.relative_to(project)) if path.is_relative_to(project) else str(path)
